"""Read a segment in pieces of whole batches, at a limited rate."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...clock import Clock
from ...errors import CorruptLogError, CorruptMessageError, InvalidRecordError
from ...records import HEADER_BYTES, read_header
from ..segment import LogSegment


class RateLimiter:
    """Limits reading and writing together to ``log.cleaner.io.max.bytes.per.second``; all cleaning threads share one
    limiter. A burst may have as many bytes as the limit allows in one second."""

    def __init__(self, bytes_per_s: float, clock: Clock, *, wait_s: Callable[[float], None]) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s={bytes_per_s}: must be above 0")
        self._bytes_per_ms = bytes_per_s / 1000
        self._clock = clock
        self._wait_s = wait_s
        self._free_at_ms = clock.monotonic_ms()
        self._lock = threading.Lock()

    def spend(self, size: int) -> None:
        """Wait until ``size`` more bytes may be read or written."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._free_at_ms = max(self._free_at_ms, now_ms - 1000) + size / self._bytes_per_ms
            wait_ms = self._free_at_ms - now_ms
        if wait_ms > 0:
            self._wait_s(wait_ms / 1000)


def feed_segment(
    segment: LogSegment,
    feed: Callable[[bytes], int],
    *,
    window_bytes: int,
    limiter: RateLimiter | None,
    check: Callable[[], None],
    start: int = 0,
    after: Callable[[], object] = lambda: None,
) -> int:
    """Pass the file's bytes from position ``start`` (where a batch begins) to ``feed``. ``feed`` returns how many bytes
    it consumed, or 0 to stop; if it returns more bytes than it received, the excess bytes are skipped.

    ``check`` is called before each piece of the data and may raise an error; ``after`` is called after each piece.
    Returns the position in the file up to which bytes were consumed. CorruptLogError names the file and the position.
    """
    position, size = start, segment.size
    wanted = window_bytes
    while position < size:
        check()
        window = segment.log.pread(min(wanted, size - position), position)
        if limiter is not None:
            limiter.spend(len(window))
        try:
            done = feed(window)
            if done == 0:
                header = read_header(window)
                if header.size <= len(window):
                    return position  # refused
                if header.size > size - position:
                    raise CorruptMessageError(
                        f"the header of the batch says {header.size} bytes, only {size - position} are in the file"
                    )
                wanted = header.size
                continue
        except (CorruptMessageError, InvalidRecordError) as error:
            raise CorruptLogError(
                f"{segment.path}, in the {len(window)} bytes from position {position}: {error.message}. The log is "
                "unchanged; `headrace log dump --deep` shows the batch"
            ) from error
        position += done
        wanted = max(window_bytes, HEADER_BYTES)
        after()
    return position
