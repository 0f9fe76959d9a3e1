"""The end of a topic, and the position of a group."""

from __future__ import annotations

from headrace import Admin, TopicPartition


class Positions:
    """The positions of one group in one topic. The topic has no markers and no gaps, so offsets count records."""

    def __init__(self, admin: Admin, topic: str, partitions: int, group: str) -> None:
        self._admin, self._group = admin, group
        self._parts = [TopicPartition(topic, part) for part in range(partitions)]

    def look(self) -> tuple[int, int]:
        """The number of records in the topic, and the number of records that the group has committed. Raises
        HeadraceError."""
        committed = self._admin.list_group_offsets(self._group, self._parts)
        ends = self._admin.list_offsets(dict.fromkeys(self._parts, "latest"))
        handled = sum(each.offset for each in committed.values() if each is not None)
        return sum(each.offset for each in ends.values()), handled
