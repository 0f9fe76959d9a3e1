"""Reading a topic to its present end."""

from __future__ import annotations

from typing import Any

from headrace import Record, TopicPartition
from headrace_pipelines.topics import records_in_topic


class Log:
    """A consumer of one partition; its last record becomes visible with the third poll."""

    def __init__(self, end: int) -> None:
        self._end, self._at, self._polls = end, 0, 0

    def partitions_for(self, topic: str) -> list[int]:
        return [0]

    def assign(self, partitions: Any) -> None:
        pass

    def seek_to_beginning(self) -> None:
        self._at = 0

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._end)

    def position(self, partition: TopicPartition) -> int:
        return self._at

    def poll(self, timeout: float) -> list[Record]:
        self._polls += 1
        visible = 2 if self._polls < 3 else 3
        found = [Record("t", 0, offset, 0, None, b"%d" % offset) for offset in range(self._at, visible)]
        self._at = visible
        return found


def offsets(**given: Any) -> list[int]:
    committed: Any = Log(end=2)
    return [record.offset for records in records_in_topic(committed, "t", **given) for record in records]


def test_a_topic_is_read_to_its_end() -> None:
    assert offsets() == [0, 1]


def test_the_end_of_uncommitted_records_waits_for_the_markers() -> None:
    """The last stable offset is 2: a transaction of record 2 is committed, and its marker is not written yet."""
    assert offsets(ends=Log(end=3)) == [0, 1, 2]
