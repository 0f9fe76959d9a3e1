"""The inbox: a queue of fetched slices, limited in bytes. A slice consists of whole batches of one partition. The I/O
thread fills the inbox; the caller's thread empties it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_core.clock import boottime_s
from headrace_core.errors import HeadraceError
from headrace_core.records import Buffer
from headrace_core.types import TopicPartition

from ..callbacks import SIGNALS_S, refuse_to_wait
from ..engine.io_thread import call_in
from .read_epochs import ReadEpochs


@dataclass(slots=True, eq=False)
class Partition:
    """An assigned partition from one position on: a seek, or a repeated assignment, puts a new Partition in its place
    (``anew``). The old one is stale, and with it all data that were fetched for it.

    The caller's thread owns ``position``, ``paused`` and ``is_stale``, the I/O thread the rest. While ``position`` is
    None, the I/O thread looks up an offset by ``reset`` ("earliest", "latest", or None for auto.offset.reset), and
    stores it in ``found``.
    """

    tp: TopicPartition
    counts: dict[str, float]  # metrics
    is_stale: bool = False
    position: int | None = None
    found: int | None = None
    reset: str | None = None
    paused: bool = False
    # The committed position: (offset, leader epoch of the record before the offset)
    begun: tuple[int, int] | None = None
    # True if the program assigned the partition itself (``assign``): if the partition has no position, fetching
    # begins at the group's committed offset.
    from_group: bool = False
    end_offset: int | None = None  # end of a bounded read: fetch nothing from here on
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    epochs: ReadEpochs = field(default_factory=ReadEpochs)  # of the records before fetch_at (KIP-320)
    # --- how it is fetched
    fetch_at: int | None = None
    asks_group: bool = False  # look up the group's committed offset before any other position
    is_placing: bool = False  # its leader and position are being looked up
    known_epoch: int = -1  # the largest leader epoch in the metadata
    has_news: bool = False  # whether the metadata changed since the partition got its last link
    may_be_truncated: bool = False  # a broker reported that the log changed before fetch_at
    near: int = -1  # a follower in our rack to read from until near_until, in time.monotonic() (KIP-392)
    near_until: float = 0.0
    leader_until: float = 0.0  # a follower was unreachable: read from the leader until this time
    valid_from: int = 0  # responses to requests before this number are for an old position
    attempts: int = 0
    retry_at: float = 0.0
    reported: Slice | None = None  # the Slice with the partition's last retriable error

    def anew(self) -> Partition:
        """The partition that takes the place of this one, without a position."""
        self.is_stale = True
        new = Partition(self.tp, self.counts)
        new.reset, new.paused, new.begun, new.from_group = self.reset, self.paused, self.begun, self.from_group
        new.end_offset, new.epochs = self.end_offset, self.epochs
        new.high_watermark, new.last_stable_offset = self.high_watermark, self.last_stable_offset
        new.log_start_offset = self.log_start_offset
        return new

    def begin(self, position: int | None) -> None:
        """Fetch from ``position`` on; None: from the offset that a lookup finds."""
        self.fetch_at = position
        self.asks_group = self.from_group and position is None and self.reset is None
        self.epochs = ReadEpochs()
        if self.begun is not None and self.begun[0] == position:
            self.epochs.begin(*self.begun)

    def learn_epoch(self, leader_epoch: int) -> None:
        """Note the partition's leader epoch in the metadata. A newer leader epoch ends the partition's pause after a
        failure."""
        if leader_epoch > self.known_epoch:
            self.known_epoch, self.has_news = leader_epoch, True
            self.retry_at, self.attempts = 0.0, 0

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1: unknown. Before the first fetch of the partition, only
        the leader epoch of the committed offset is known."""
        read = self.epochs.before(offset)
        return self.begun[1] if read < 0 and self.begun is not None and self.begun[0] == offset else read


class Slice:
    """Whole batches of one partition, from ``fetch_offset`` to ``next_offset``; the first batch may begin below
    ``fetch_offset``. ``parts`` has the batches that the consumer may read; a part is one or more batches. ``size`` is
    the size in bytes of the fetched data, which the parts keep in memory. With an ``error``, the Slice has no batches:
    the error is raised when the Slice is read, and then ``is_raised`` is True, as for an error that is over."""

    __slots__ = ("error", "fetch_offset", "is_raised", "next_offset", "partition", "parts", "size")

    def __init__(
        self,
        partition: Partition,
        fetch_offset: int,
        next_offset: int,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        error: HeadraceError | None = None,
    ) -> None:
        self.partition = partition
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
        """Return the next Slice that is not stale, or None. Slices of paused partitions must have been
        removed from the queue before (see Reading._hold)."""
        while self.slices:
            item = self.slices.popleft()
            self._bytes_out += item.size
            if self.fetcher_waits:
                self._tell_of_room()
            if not item.partition.is_stale and not item.is_raised:
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
