"""A fetch session: the partitions that a client reads over one stream, its position in each, and which have news.

The session is the stream (fetch.proto): a named partition stays, its position advances by what was sent. A partition is
*ready* when it may have something to send: records beyond the position, a moved log start, an error. It becomes ready
when it is named and when its leader reports progress, until an answer has taken everything. A poll looks at ready
partitions only, so a thousand idle ones cost nothing.

For fairness the ready partitions form a queue. An answer takes from its head; partitions with more go to the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace_core.types import NO_EPOCH, TopicPartition


class SessionPartition:
    """One partition of a session. ``position``: the next offset to send. ``told_*``: offsets sent last."""

    __slots__ = (
        "current_leader_epoch",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "position",
        "sent_high_watermark",
        "sent_log_start",
        "topic_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        position: int,
        max_bytes: int,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        topic_id: bytes = b"",
    ) -> None:
        self.partition = partition
        self.position = position
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.topic_id = topic_id
        self.sent_high_watermark = -1
        self.sent_log_start = -1

    def has_changed(self, high_watermark: int, log_start: int) -> bool:
        """Whether either offset changed since the client last received it."""
        return high_watermark != self.sent_high_watermark or log_start != self.sent_log_start


class FetchSession:
    """The partitions of one stream. It watches their leaders (a PartitionWatcher). ``wake`` is called when a waiting
    poll should look again; ``expect`` sets after how many more readable bytes."""

    __slots__ = ("_expected", "_partitions", "_ready", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._partitions: dict[TopicPartition, SessionPartition] = {}
        self._ready: dict[TopicPartition, None] = {}
        self._expected: int | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def put(self, entry: SessionPartition) -> bool:
        """Add a partition, or set its position; it is ready, behind those ready before. True when new."""
        new = entry.partition not in self._partitions
        self._partitions[entry.partition] = entry
        self._ready.pop(entry.partition, None)
        self._ready[entry.partition] = None
        return new

    def forget(self, partition: TopicPartition) -> bool:
        """Remove a partition. True when it was there."""
        self._ready.pop(partition, None)
        return self._partitions.pop(partition, None) is not None

    def partitions(self) -> list[TopicPartition]:
        return list(self._partitions)

    def ready(self) -> Iterator[SessionPartition]:
        """The ready partitions, longest wait first; a copy, so the session may change meanwhile."""
        partitions = self._partitions
        return iter([partitions[partition] for partition in self._ready])

    def advance(self, entry: SessionPartition, next_offset: int, *, exhausted: bool) -> None:
        """An answer took the records up to ``next_offset``; ``exhausted``: nothing more to send."""
        assert next_offset >= entry.position, f"{entry.partition}: position {entry.position} back to {next_offset}"
        entry.position = next_offset
        del self._ready[entry.partition]
        if not exhausted:
            self._ready[entry.partition] = None

    def expect(self, missing_bytes: int | None) -> None:
        """A poll waits for this many more bytes (at least one); None: it no longer waits."""
        assert missing_bytes is None or missing_bytes > 0, f"a poll cannot wait for {missing_bytes} bytes"
        self._expected = missing_bytes

    def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
        if partition not in self._partitions:
            return
        self._ready[partition] = None
        if self._expected is not None:
            self._expected -= readable_bytes
            if self._expected <= 0:
                self._expected = None
                self._wake()

    def partition_changed(self, partition: TopicPartition) -> None:
        """The log start moved, or the leader resigned: an error ends a wait at once."""
        if partition not in self._partitions:
            return
        self._ready[partition] = None
        if self._expected is not None:
            self._expected = None
            self._wake()
