"""The trace contexts of batches that a leader has appended recently. The leader's stream to a follower adds these trace
contexts to the pushes of the batches, and the follower makes its spans as children of the contexts.

A leader pushes a batch to its followers before it knows the batch's offset. Therefore a batch is identified by its
idempotent producer's sequence number, or without an idempotent producer by its CRC. Neither the sequence number nor the
CRC depends on the offset.
"""

from __future__ import annotations

from collections import OrderedDict

from ..records import BatchHeader
from ..types import TopicPartition

#: Maximum number of remembered traced batches; the oldest batch is removed first. A follower that is further behind
#: gets no trace contexts.
BATCHES_MAX = 1_024
#: Seconds after a partition's last traced batch during which the partition's pushes are searched for traced batches.
KEPT_S = 10.0

BatchKey = tuple[int, int, int]


def batch_key(header: BatchHeader) -> BatchKey:
    """The key that identifies a batch within its partition."""
    if header.producer_id >= 0:
        return header.producer_id, header.producer_epoch, header.base_sequence
    return -1, -1, header.crc


class RecentTraces:
    """The trace contexts of at most BATCHES_MAX traced batches, as ``traceparent``. Times are monotonic seconds.

    To find the traced batches, the leader must read the header of each batch that it pushes. Therefore the leader
    searches a partition's pushes only until it has found each traced batch once for each follower, or until KEPT_S
    after the last traced batch.
    """

    __slots__ = ("_contexts", "_last_s", "_left")

    def __init__(self) -> None:
        self._contexts: OrderedDict[tuple[TopicPartition, BatchKey], str] = OrderedDict()
        #: Time of the last traced batch of each partition.
        self._last_s: dict[TopicPartition, float] = {}
        #: For each partition: the number of pushes of traced batches that are still expected.
        self._left: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def put(self, partition: TopicPartition, key: BatchKey, traceparent: str, now_s: float, followers: int) -> None:
        """Remember the trace context of a batch that the leader will push to this number of followers."""
        if followers <= 0:
            return
        left = self._left.get(partition, 0) if self.has(partition, now_s) else 0
        self._contexts[partition, key] = traceparent
        self._left[partition], self._last_s[partition] = left + followers, now_s
        if len(self._contexts) > BATCHES_MAX:
            self._contexts.popitem(last=False)
        if len(self._last_s) > BATCHES_MAX:
            self._last_s = {each: last_s for each, last_s in self._last_s.items() if now_s - last_s < KEPT_S}
            self._left = {each: self._left[each] for each in self._last_s}

    def has(self, partition: TopicPartition, now_s: float) -> bool:
        """Whether a push of a traced batch of the partition is expected."""
        last_s = self._last_s.get(partition)
        return last_s is not None and self._left[partition] > 0 and now_s - last_s < KEPT_S

    def pushed(self, partition: TopicPartition, key: BatchKey) -> str | None:
        """Return the trace context of a batch that the leader pushes to a follower; None if the batch is not traced."""
        found = self._contexts.get((partition, key))
        if found is not None:
            self._left[partition] = self._left.get(partition, 0) - 1
        return found
