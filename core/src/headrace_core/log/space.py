"""How much room a log directory has, and when it takes no more appends.

    0          reserve                                            size of the disk
    |-------------|------------- free bytes --------------------------|
      kept for deletes, checkpoints, indexes and compaction

An append that would take the free bytes below the reserve is refused before anything of it is written
(``log.dir.reserve.bytes``, at most 5 % of the disk). The broker then still has room for what makes room.

Measuring is a statvfs (a few microseconds), and rare: while there is plenty, once in so many written bytes; near the
reserve, at most once in 100 ms. In between, our own bytes are subtracted. There is no timer: who asks, measures. So a
directory that is full finds out that it is not when the next append is tried, or at the broker's housekeeping.

A *shortage* begins with the first refusal and outlasts it: until ``RESUME_BYTES`` above the reserve are free, and for
some seconds at least. While it lasts, replicas here are not to lead, and those that follow are out of sync; so a disk
at the threshold does not move leaders back and forth.
"""

from __future__ import annotations

from ..clock import Clock
from ..errors import DiskFullError
from .files import FileSystem

#: With less than this above the reserve, the disk is near to full: measured often, and no blocks are reserved ahead.
NEAR_BYTES = 256 * 1024 * 1024
#: The reserve is never more than this part of the disk.
RESERVE_PART_MAX = 20
#: So much is free above the reserve when a shortage ends; at most the same part of the disk.
RESUME_BYTES = 64 * 1024 * 1024
#: How long a shortage lasts at least, in milliseconds. One that comes back within twice that time lasts twice as long.
SHORTAGE_FIRST_MS, SHORTAGE_MOST_MS = 5_000.0, 60_000.0
_MEASURE_INTERVAL_MS = 100.0
#: Others write to the disk too: with plenty of room, a part of it may be written before it is measured again.
_PART_WRITTEN = 8


class SpaceGauge:
    """Of one directory. Asked and told by the directory's writer, one turn after the other; anybody may look."""

    __slots__ = (
        "_clock",
        "_fs",
        "_headroom",
        "_measured_ms",
        "_remeasure_below",
        "_root",
        "_shortage_ended_ms",
        "_shortage_first_ms",
        "_shortage_ms",
        "_shortage_until_ms",
        "_was_refused",
        "free_bytes",
        "is_short",
        "reserve_bytes",
        "total_bytes",
        "wanted_reserve_bytes",
    )

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        clock: Clock,
        reserve_bytes: int,
        *,
        shortage_first_ms: float = SHORTAGE_FIRST_MS,
    ) -> None:
        self._fs = fs
        self._root = root
        self._clock = clock
        self.wanted_reserve_bytes = reserve_bytes
        #: What is kept: ``wanted_reserve_bytes``, but no more than 5 % of the disk.
        self.reserve_bytes = 0
        #: As measured last.
        self.free_bytes = 0
        self.total_bytes = 0
        self._headroom = 0  # above the reserve, by the last measurement and what was written since
        self._remeasure_below = 0
        self._measured_ms = -_MEASURE_INTERVAL_MS
        self._was_refused = False
        #: A shortage lasts; see the module.
        self.is_short = False
        self._shortage_first_ms = self._shortage_ms = shortage_first_ms
        self._shortage_until_ms = 0.0
        self._shortage_ended_ms = float("-inf")

    @property
    def is_full(self) -> bool:
        """Below its reserve, or an append was refused, when it was measured last."""
        return self._headroom < 0 or self._was_refused

    @property
    def is_near(self) -> bool:
        """So little is left that it must not be tied up in blocks that are reserved ahead."""
        return self._headroom < NEAR_BYTES

    def measure(self) -> None:
        """Asks the file system. OSError when it cannot say: the disk is gone."""
        self.free_bytes = self._fs.free_bytes(self._root)
        self.total_bytes = self._fs.total_bytes(self._root)
        self.reserve_bytes = min(self.wanted_reserve_bytes, self.total_bytes // RESERVE_PART_MAX)
        self._headroom = headroom = self.free_bytes - self.reserve_bytes
        self._remeasure_below = max(headroom - headroom // _PART_WRITTEN, NEAR_BYTES)
        self._measured_ms = now_ms = self._clock.monotonic_ms()
        self._was_refused = False
        if headroom < 0:
            self._ran_short()
        elif (
            self.is_short
            and now_ms >= self._shortage_until_ms
            and headroom >= min(RESUME_BYTES, self.total_bytes // RESERVE_PART_MAX)
        ):
            self.is_short = False
            self._shortage_ended_ms = now_ms

    def refusal(self, size: int) -> DiskFullError | None:
        """Why ``size`` more bytes are not taken; None when they are (and count as written). OSError as ``measure``."""
        if self._headroom - size < self._remeasure_below and (
            self._clock.monotonic_ms() - self._measured_ms >= _MEASURE_INTERVAL_MS
        ):
            self.measure()
        if size > self._headroom:
            self._was_refused = True
            self._ran_short()
            return self.full_error()
        self._headroom -= size
        return None

    def ran_out(self) -> None:
        """A write met the end of the disk, or of a quota, which nobody had measured."""
        self._was_refused = True
        self._measured_ms = self._clock.monotonic_ms()
        self._ran_short()

    def _ran_short(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self.is_short:
            self.is_short = True
            is_back = now_ms - self._shortage_ended_ms < 2 * self._shortage_ms
            longest_ms = max(SHORTAGE_MOST_MS, self._shortage_first_ms)
            self._shortage_ms = min(2 * self._shortage_ms, longest_ms) if is_back else self._shortage_first_ms
        self._shortage_until_ms = now_ms + self._shortage_ms

    def full_error(self) -> DiskFullError:
        """What refused appends and creations are told."""
        return DiskFullError(
            f"log directory {self._root} is full: {self.free_bytes} bytes are free, {self.reserve_bytes} of them are "
            "kept in reserve (log.dir.reserve.bytes). Reads and deletes go on, and writes as soon as there is room: "
            "free some space, lower the topics' retention, or move partitions to another directory"
        )
