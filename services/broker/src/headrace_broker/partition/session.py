"""A fetch session: the partitions that a client reads over one stream, its position in each, and the partitions that
are ready.

A fetch session lasts as long as its stream (fetch.proto). A partition stays in the session once the client has named
it, and its position advances by the records sent. A partition is *ready* when it may have something to send: records
beyond the position, a new log start, or an error. A partition becomes ready when the client names it and when its
leader reports progress. A partition stays ready until a response has taken all of its records. A fetch looks only at
ready partitions, so a thousand idle partitions cost nothing.

The ready partitions of a session form a queue, for fairness. A response takes records from the head of the queue;
partitions with more records move to the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from headrace_core.types import NO_EPOCH, TopicPartition


class SessionPartition:
    """A partition of a fetch session. ``position`` is the next offset to send. ``sent_high_watermark`` and
    ``sent_log_start`` are the offsets that the last response gave to the client; -1 before the first such response."""

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
        """Whether the high watermark or the log start changed since the client last received them."""
        return high_watermark != self.sent_high_watermark or log_start != self.sent_log_start


class FetchSession:
    """The partitions that one stream fetches. The session watches the partitions' leaders as a PartitionWatcher.
    ``wake`` is called when a waiting fetch should look for records again. ``expect`` sets how many more readable bytes
    the fetch waits for."""

    __slots__ = ("_held_back", "_partitions", "_ready", "_wake", "expected", "undescribed")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._partitions: dict[TopicPartition, SessionPartition] = {}
        self._ready: dict[TopicPartition, SessionPartition] = {}
        #: The new partitions whose high watermark and log start no response has given to the client yet.
        self.undescribed: dict[TopicPartition, None] = {}
        self.expected: int | None = None  #: How many more bytes a fetch waits for; None: no fetch waits.
        self._held_back: Container[TopicPartition] = ()

    def close(self) -> None:
        """Drop the stream and its partitions: without a reference cycle, all these objects are freed at once."""
        self._wake = lambda: None
        self._partitions.clear()
        self._ready.clear()
        self.undescribed.clear()

    def __len__(self) -> int:
        return len(self._partitions)

    def __getitem__(self, partition: TopicPartition) -> SessionPartition:
        return self._partitions[partition]

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def put(self, entry: SessionPartition) -> bool:
        """Add a partition, or set its position; it becomes ready, behind the partitions that are already ready. Returns
        True if the partition is new."""
        new = entry.partition not in self._partitions
        self._partitions[entry.partition] = entry
        self._ready.pop(entry.partition, None)
        self._ready[entry.partition] = entry
        if new:
            self.undescribed[entry.partition] = None
        return new

    def forget(self, partition: TopicPartition) -> bool:
        """Remove the partition; returns True if the session had the partition."""
        self._ready.pop(partition, None)
        self.undescribed.pop(partition, None)
        return self._partitions.pop(partition, None) is not None

    def partitions(self) -> list[TopicPartition]:
        return list(self._partitions)

    def ready(self) -> list[SessionPartition]:
        """The ready partitions, longest wait first."""
        return list(self._ready.values())

    def advance(self, entry: SessionPartition, next_offset: int, *, exhausted: bool) -> None:
        """Record that a response contains the records up to ``next_offset``. ``exhausted`` means that the partition has
        no more records to send."""
        assert next_offset >= entry.position, f"{entry.partition}: position {entry.position} back to {next_offset}"
        entry.position = next_offset
        del self._ready[entry.partition]
        if not exhausted:
            self._ready[entry.partition] = entry

    def expect(self, missing_bytes: int, held_back: Container[TopicPartition] = ()) -> None:
        """Set how many more bytes a fetch waits for (at least one). ``held_back``:
        partitions whose new bytes may not be readable, because of open transactions. ``wake`` is called for each
        progress of a held-back partition, and the fetch continues to wait."""
        assert missing_bytes > 0, f"a poll cannot wait for {missing_bytes} bytes"
        self.expected, self._held_back = missing_bytes, held_back

    def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
        entry = self._partitions.get(partition)
        if entry is None:
            return
        self._ready[partition] = entry
        if self.expected is not None and partition in self._held_back:
            self._wake()
        elif self.expected is not None:
            self.expected -= readable_bytes
            if self.expected <= 0:
                self.expected = None
                self._wake()

    def partition_changed(self, partition: TopicPartition) -> None:
        """Called when the log start advanced, or when the leader resigned: the fetch no longer waits."""
        entry = self._partitions.get(partition)
        if entry is None:
            return
        self._ready[partition] = entry
        if self.expected is not None:
            self.expected = None
            self._wake()
