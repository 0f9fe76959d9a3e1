"""The committed offsets of a shard's groups, derived only from the records. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace_core.types import TopicPartition

from .codec import CommittedOffset
from .pending import PendingBook

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetBook:
    """Committed offsets by group and partition, and the pending offsets, which open transactions may still commit."""

    __slots__ = ("_by_group", "pending")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.pending = PendingBook()

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All committed offsets of a group. Do not keep the mapping of committed offsets, because it changes."""
        return self._by_group.get(group_id, _NOTHING)

    def has(self, group_id: str) -> bool:
        """Whether the group has committed or pending offsets."""
        return group_id in self._by_group or bool(self.pending.partitions(group_id))

    def group_ids(self) -> tuple[str, ...]:
        """Ids of the groups with committed or pending offsets."""
        return tuple(dict.fromkeys((*self._by_group, *self.pending.group_ids())))

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
