"""The committed offsets of a shard's groups, derived from the records alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace_core.types import TopicPartition

from .codec import CommittedOffset

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetBook:
    """Committed offsets by group and partition, and which of these offsets an open transaction may still change."""

    __slots__ = ("_by_group", "_pending")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[str, TopicPartition], set[int]] = {}

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group. Do not keep the mapping of committed offsets, because it changes."""
        return self._by_group.get(group_id, _NOTHING)

    def group_ids(self) -> tuple[str, ...]:
        """Ids of the groups with committed offsets."""
        return tuple(self._by_group)

    def __iter__(self) -> Iterator[tuple[str, TopicPartition, CommittedOffset]]:
        for group_id, offsets in self._by_group.items():
            for partition, committed in offsets.items():
                yield group_id, partition, committed

    def apply(self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        """Apply a record. A value of None is a tombstone, perhaps of a commit that does not exist."""
        if committed is not None:
            self._by_group.setdefault(group_id, {})[partition] = committed
            return
        offsets = self._by_group.get(group_id)
        if offsets is not None and offsets.pop(partition, None) is not None and not offsets:
            del self._by_group[group_id]

    # Offsets that a transaction commits take effect when the transaction commits (KIP-98). Until a transaction with
    # offsets ends, a stable fetch of the offsets must wait (KIP-447).

    def hold(self, group_id: str, partition: TopicPartition, producer_id: int) -> None:
        """An open transaction of the producer has an offset for the partition."""
        self._pending.setdefault((group_id, partition), set()).add(producer_id)

    def release(self, group_id: str, partition: TopicPartition, producer_id: int) -> None:
        """The producer's transaction has ended, committed or aborted."""
        producers = self._pending.get((group_id, partition))
        if producers is not None:
            producers.discard(producer_id)
            if not producers:
                del self._pending[group_id, partition]

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction may still change the committed offset of the partition."""
        return (group_id, partition) in self._pending
