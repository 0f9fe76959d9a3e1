"""A partition's leader: which offsets exist, which are promised, who waits for them.

Offsets of one partition, from left to right::

    log start      flushed end      high watermark      log end
        |               |                 |                |
        v               v                 v                v
    ----[=======================================================)
         readable by consumers: [log start, high watermark)

*Local promise.* What this broker itself vouches for: the flushed end under ``log.flush=commit``, the log end under
``interval`` and ``os`` (the produce response says which promise it was). *High watermark.* The smallest local promise
of the in-sync replicas, the leader among them like any other (design, section 6). With one replica it is the leader's
own promise; replication adds the followers' acknowledged ends to ``_recompute``, and nothing else changes here.

Waiters come in two kinds. A producer with acks waits for an end offset: producers' ends grow with their position in the
queue, so a deque suffices. A fetch session waits for *anything*: it stays subscribed while the partition is in it, and
is told how many bytes became readable, so that an idle partition costs nothing at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace_core.errors import (
    FencedLeaderEpochError,
    HeadraceError,
    InconsistentTopicIdError,
    UnknownLeaderEpochError,
)
from headrace_core.types import NO_EPOCH, FlushPolicy, TopicPartition

#: Called once: with None when the offset waited for is committed, else with what prevents it.
Waiter = Callable[[HeadraceError | None], None]


class PartitionWatcher(Protocol):
    """Who wants to know that a partition has moved. Calls must not block, and must not subscribe or unsubscribe."""

    def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
        """The high watermark has moved on by about ``readable_bytes`` bytes of records."""

    def partition_changed(self, partition: TopicPartition) -> None:
        """The log start moved, or this broker stopped leading the partition."""


class PartitionLeader:
    """The leader's state under one leader epoch. Single-threaded; the shell feeds it and calls back."""

    __slots__ = (
        "_bytes_unread",
        "_resigned",
        "_waiters",
        "_watchers",
        "flush_policy",
        "flushed_end",
        "high_watermark",
        "leader_epoch",
        "leader_id",
        "log_end",
        "log_start",
        "partition",
        "topic_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        topic_id: bytes,
        leader_id: int,
        leader_epoch: int,
        log_start: int,
        log_end: int,
        flushed_end: int,
        flush_policy: FlushPolicy = FlushPolicy.COMMIT,
    ) -> None:
        assert 0 <= log_start <= log_end, f"{partition}: log start {log_start} beyond log end {log_end}"
        assert flushed_end <= log_end, f"{partition}: flushed end {flushed_end} beyond log end {log_end}"
        self.partition = partition
        self.topic_id = topic_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.flush_policy = flush_policy
        self.log_start = log_start
        self.log_end = log_end
        self.flushed_end = flushed_end
        self.high_watermark = log_start
        self._resigned: HeadraceError | None = None
        self._bytes_unread = 0
        self._waiters: deque[tuple[int, Waiter]] = deque()
        self._watchers: dict[PartitionWatcher, None] = {}
        self._recompute()

    @property
    def last_stable_offset(self) -> int:
        """What a read_committed reader may see: the high watermark as long as there are no transactions."""
        return self.high_watermark

    @property
    def local_promise(self) -> int:
        """Everything below this offset has met the topic's flush policy on this broker."""
        return self.flushed_end if self.flush_policy is FlushPolicy.COMMIT else self.log_end

    # -- checks ------------------------------------------------------------------------------------------------------

    def check_serving(self) -> None:
        """Raises the error given to ``resign``."""
        if self._resigned is not None:
            raise self._resigned

    def check_epoch(self, current_leader_epoch: int) -> None:
        """KIP-320: the epoch a client believes in, -1: none. Raises FencedLeaderEpochError, UnknownLeaderEpochError."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.partition}: leader epoch {current_leader_epoch} is over, the present one is "
                f"{self.leader_epoch}; refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.partition}: leader epoch {current_leader_epoch} is not known here yet, the present one is "
            f"{self.leader_epoch}; retry"
        )

    def check_topic_id(self, topic_id: bytes) -> None:
        """``topic_id`` empty: not checked. Raises InconsistentTopicIdError when the topic was created anew."""
        if topic_id and topic_id != self.topic_id:
            raise InconsistentTopicIdError(
                f"{self.partition}: the request is for topic id {topic_id.hex()}, but the topic's id is "
                f"{self.topic_id.hex()}: it was deleted and created anew"
            )

    # -- the log moves -----------------------------------------------------------------------------------------------

    def appended(self, log_end: int, flushed_end: int, size: int) -> None:
        """The log now ends at ``log_end`` (``size`` more bytes), forced to the disk up to ``flushed_end``."""
        assert log_end >= self.log_end, f"{self.partition}: the log end went back from {self.log_end} to {log_end}"
        self.log_end = log_end
        self._bytes_unread += size
        self.flushed(flushed_end)

    def flushed(self, flushed_end: int) -> None:
        """The log is forced to the disk up to ``flushed_end``."""
        assert flushed_end <= self.log_end, f"{self.partition}: flushed {flushed_end} beyond the end {self.log_end}"
        if flushed_end > self.flushed_end:
            self.flushed_end = flushed_end
        self._recompute()

    def set_flush_policy(self, policy: FlushPolicy) -> None:
        """The topic's ``log.flush`` changed. The high watermark never goes back: what was promised stays promised."""
        self.flush_policy = policy
        self._recompute()

    def advance_log_start(self, offset: int) -> None:
        """Records below ``offset`` are gone (retention, DeleteRecords)."""
        if offset <= self.log_start:
            return
        assert offset <= self.high_watermark, f"{self.partition}: log start {offset} above {self.high_watermark}"
        self.log_start = offset
        for watcher in self._watchers:
            watcher.partition_changed(self.partition)

    def resign(self, reason: HeadraceError) -> None:
        """This broker leads the partition no more: every waiter learns ``reason``, and every later check raises it."""
        if self._resigned is not None:
            return
        self._resigned = reason
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            waiter(reason)
        for watcher in self._watchers:
            watcher.partition_changed(self.partition)

    def _recompute(self) -> None:
        promise = self.local_promise
        if promise <= self.high_watermark:
            return
        self.high_watermark = promise
        waiters = self._waiters
        while waiters and waiters[0][0] <= promise:
            waiters.popleft()[1](None)
        readable, self._bytes_unread = self._bytes_unread, 0
        for watcher in self._watchers:
            watcher.partition_advanced(self.partition, readable)

    # -- who waits ---------------------------------------------------------------------------------------------------

    def when_committed(self, end_offset: int, waiter: Waiter) -> None:
        """Call ``waiter`` as soon as the high watermark reaches ``end_offset``; at once if it has."""
        if self._resigned is not None:
            waiter(self._resigned)
        elif end_offset <= self.high_watermark:
            waiter(None)
        else:
            last = self._waiters[-1][0] if self._waiters else end_offset
            assert end_offset >= last, f"{self.partition}: waiters out of order, {end_offset} after {last}"
            self._waiters.append((end_offset, waiter))

    def subscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers[watcher] = None

    def unsubscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many producers and how many sessions wait here (for tests and metrics)."""
        return len(self._waiters), len(self._watchers)
