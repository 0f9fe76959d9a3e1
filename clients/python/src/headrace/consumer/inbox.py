"""The inbox: a queue of fetched slices, limited in bytes. A slice consists of whole batches of one partition. The I/O
thread fills the inbox; the caller's thread empties it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace_core.clock import boottime_s
from headrace_core.errors import HeadraceError
from headrace_core.records import Buffer
from headrace_core.types import TopicPartition

from ..callbacks import SIGNALS_S, refuse_to_wait
from ..engine.io_thread import call_in
from .read_epochs import ReadEpochs


class Assigned:
    """One assigned partition.

    The caller's thread owns ``position`` and ``generation``; assign and seek raise the generation, which makes data
    fetched for the old position stale. The I/O thread owns all fields other than ``position`` and ``generation``. While
    ``position`` is None, the I/O thread looks up an offset by ``reset`` ("earliest", "latest", or None for
    auto.offset.reset). The I/O thread stores the offset in ``found``, with the generation of the lookup, because a
    write to ``position`` could overwrite a seek.
    """

    __slots__ = (
        "begun",
        "counts",
        "end_offset",
        "epochs",
        "found",
        "from_group",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "paused",
        "position",
        "reset",
        "tp",
    )

    def __init__(self, tp: TopicPartition, generation: int, counts: dict[str, float]) -> None:
        self.tp = tp
        self.counts = counts  # metrics
        self.generation = generation
        self.position: int | None = None
        self.found: tuple[int, int] | None = None  # (generation, offset)
        self.reset: str | None = None
        self.paused = False
        # The committed position: (offset, leader epoch of the record before the offset)
        self.begun: tuple[int, int] | None = None
        self.epochs: ReadEpochs | None = None  # Leader epochs of the fetched records.
        # True if the program assigned the partition itself (``assign``): if the partition has no position, fetching
        # begins at the group's committed offset.
        self.from_group = False
        self.end_offset: int | None = None  # end of a bounded read: fetch nothing from here on
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1: unknown. Before the first fetch of the partition, only
        the leader epoch of the committed offset is known."""
        read = -1 if self.epochs is None else self.epochs.before(offset)
        if read < 0 and self.begun is not None and self.begun[0] == offset:
            return self.begun[1]
        return read


class Slice:
    """Whole batches of one partition, from ``fetch_offset`` to ``next_offset``; the first batch may begin below
    ``fetch_offset``. ``parts`` has the batches that the consumer may read; a part is one or more batches. ``size`` is
    the size in bytes of the fetched data, which the parts keep in memory. With an ``error``, the Slice has no batches:
    the error is raised when the Slice is read, and then ``is_raised`` is True."""

    __slots__ = ("assigned", "error", "fetch_offset", "generation", "is_raised", "next_offset", "parts", "size")

    def __init__(
        self,
        assigned: Assigned,
        generation: int,
        fetch_offset: int,
        next_offset: int,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        error: HeadraceError | None = None,
    ) -> None:
        self.assigned = assigned
        self.generation = generation
        self.fetch_offset = fetch_offset
        self.next_offset = next_offset
        self.parts = parts
        self.size = size
        self.error = error
        self.is_raised = False


class Inbox:
    """A FIFO queue of fetched data; ``on_room`` is called in the caller's thread when the fetcher waits for free space
    in the queue."""

    def __init__(self, max_bytes: int, on_room: Callable[[], object]) -> None:
        self.max_bytes = max_bytes
        self.fetcher_waits = False
        #: The I/O thread sets the flags ``alarm`` and ``shut``. ``alarm``: before the next record, the caller has other
        #: work, such as a rebalance callback; ``shut``: the inbox may return no records.
        self.alarm = self.shut = False
        #: Time (``boottime_s()``) after which the inbox may return no records; see ``open_until``.
        self.reads_until = float("inf")
        self.slices: deque[Slice] = deque()
        self._on_room = on_room
        # No lock is needed: only the I/O thread writes _bytes_in, only the caller's thread _bytes_out.
        self._bytes_in = 0
        self._bytes_out = 0
        self._decoded_bytes = 0  # decoded rows that wait for the next table; the caller's thread sets them
        self._sleeper: threading.Event | None = None
        self._async_sleeper: tuple[Any, Any] | None = None

    def open_until(self, moment_s: float) -> None:
        """Allow the inbox to return queued records until ``moment_s`` (``boottime_s()``); runs on the I/O thread."""
        was_over = self.reads_until <= boottime_s()
        self.reads_until = moment_s
        if was_over and not self.is_shut:  # the caller may sleep, because it has seen ``is_shut``
            self.notify()

    @property
    def is_shut(self) -> bool:
        """Whether the inbox may return no records now. The time limit is compared with the clock, because timers of the
        I/O thread fire late after the machine was suspended."""
        return self.shut or (self.reads_until != float("inf") and boottime_s() >= self.reads_until)

    @property
    def queued_bytes(self) -> int:
        return self._bytes_in - self._bytes_out + self._decoded_bytes

    def count_decoded(self, size: int) -> None:
        """Count ``size`` bytes of decoded rows as queued, in place of those that were counted before."""
        self._decoded_bytes = size
        if self.fetcher_waits:
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self.queued_bytes <= self.max_bytes // 2:
            self.fetcher_waits = False
            self._on_room()

    def put(self, item: Slice) -> None:
        """Add a slice. ``put`` runs on the I/O thread."""
        self._bytes_in += item.size
        self.slices.append(item)
        self.notify()

    def close(self) -> None:
        """Drop the queued slices, because otherwise their memory stays in use until a garbage collection. Runs on the
        I/O thread after the last ``put``."""
        self.slices.clear()
        self._bytes_in = self._bytes_out
        self._decoded_bytes = 0
        self._on_room = _closed

    def notify(self) -> None:
        """Wake the caller's thread or task if it waits for fetched data."""
        sleeper = self._sleeper
        if sleeper is not None:
            sleeper.set()
        waiting = self._async_sleeper
        if waiting is not None:
            self._async_sleeper = None
            loop, future = waiting
            call_in(loop, lambda: future.done() or future.set_result(None))

    def take(self) -> Slice | None:
        """Return the next Slice whose generation is current, or None. Slices of paused partitions must have been
        removed from the queue before (see Reading._hold)."""
        while self.slices:
            item = self.slices.popleft()
            self._bytes_out += item.size
            if self.fetcher_waits:
                self._tell_of_room()
            if item.generation == item.assigned.generation:
                return item
        return None

    def wait(self, deadline: float) -> bool:
        """Block until there are records or an alarm, or until ``deadline`` (time.monotonic()); return False at the
        deadline."""
        refuse_to_wait()
        if self._sleeper is None:
            self._sleeper = threading.Event()
        self._sleeper.clear()
        if not (self.alarm or (self.slices and not self.is_shut)):
            while (left := deadline - time.monotonic()) > 0 and not self._sleeper.wait(min(left, SIGNALS_S)):
                pass
        return self.alarm or (bool(self.slices) and not self.is_shut)

    async def wait_async(self, deadline: float) -> bool:
        """Wait like ``wait``, but from an event loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._async_sleeper = (loop, future)
        try:
            if not (self.alarm or (self.slices and not self.is_shut)):
                left = deadline - time.monotonic()
                if left > 0:
                    await asyncio.wait([future], timeout=None if left == float("inf") else left)
        finally:
            self._async_sleeper = None
        return self.alarm or (bool(self.slices) and not self.is_shut)


def _closed() -> None:
    """Replaces ``on_room`` in a closed inbox, because a reference to the consumer would be a reference cycle."""
