"""The contexts of batches that a leader has appended lately, for the streams to its followers.

A leader pushes a batch to its followers before it knows the batch's offset. So a batch is recognized by the number that
its idempotent producer gave it, or without an idempotent producer by its CRC. Neither covers the offset.
"""

from __future__ import annotations

from collections import OrderedDict

from ..records import BatchHeader
from ..types import TopicPartition

#: Maximum number of batches; the oldest one is forgotten first. A follower that is further behind makes no span.
BATCHES_MAX = 1_024
#: Seconds after its last traced batch for which the pushes of a partition are searched for traced batches.
KEPT_S = 10.0

BatchKey = tuple[int, int, int]


def batch_key(header: BatchHeader) -> BatchKey:
    """What identifies a batch within its partition."""
    if header.producer_id >= 0:
        return header.producer_id, header.producer_epoch, header.base_sequence
    return -1, -1, header.crc


class RecentTraces:
    """The contexts of at most BATCHES_MAX traced batches, as ``traceparent``. Times are monotonic seconds."""

    __slots__ = ("_contexts", "_last_s")

    def __init__(self) -> None:
        self._contexts: OrderedDict[tuple[TopicPartition, BatchKey], str] = OrderedDict()
        #: When each partition had its last traced batch.
        self._last_s: dict[TopicPartition, float] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def put(self, partition: TopicPartition, key: BatchKey, traceparent: str, now_s: float) -> None:
        """Remember the context of a batch."""
        self._contexts[partition, key] = traceparent
        self._last_s[partition] = now_s
        if len(self._contexts) > BATCHES_MAX:
            self._contexts.popitem(last=False)
        if len(self._last_s) > BATCHES_MAX:
            self._last_s = {each: last_s for each, last_s in self._last_s.items() if now_s - last_s < KEPT_S}

    def has(self, partition: TopicPartition, now_s: float) -> bool:
        """Whether a recent batch of the partition has a context."""
        last_s = self._last_s.get(partition)
        return last_s is not None and now_s - last_s < KEPT_S

    def get(self, partition: TopicPartition, key: BatchKey) -> str | None:
        return self._contexts.get((partition, key))
