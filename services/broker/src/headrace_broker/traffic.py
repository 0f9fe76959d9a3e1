"""Counters of records and bytes by topic. The replicas of a topic on this broker share one ``TopicTraffic``.

A replica gets its counters when it is made, so counting costs one addition for each batch. When a topic no longer has a
replica on this broker, ``retire`` removes the topic. The counts of a retired topic stay in the totals, and its metric
rows disappear.
"""

from __future__ import annotations

from collections.abc import Collection


class TopicTraffic:
    """Counters that only grow. ``records_in`` and ``bytes_in`` count the records and bytes that leaders appended;
    ``records_out`` and ``bytes_out`` count those that consumers received."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0

    def add(self, other: TopicTraffic) -> None:
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.records_out += other.records_out
        self.bytes_out += other.bytes_out


class Traffic:
    """The counters of all topics."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self._retired = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicTraffic()
        return found

    def retire(self, present: Collection[str]) -> None:
        """Remove the topics that are not ``present``; their counts stay in the totals."""
        for topic in [each for each in self.topics if each not in present]:
            self._retired.add(self.topics.pop(topic))

    def total(self) -> TopicTraffic:
        found = TopicTraffic()
        for each in (self._retired, *self.topics.values()):
            found.add(each)
        return found
