"""The current log ends of groups' partitions: a leader without an answer hides only its own partitions, and the output
names them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from headrace.errors import RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_core.types import TopicPartition
from headrace_tools.group_ends import LogEnds, log_ends

#: partition -> (leader, log end)
LOGS = {TopicPartition("t", number): (number % 3 + 1, 10 * number) for number in range(6)}


class Client:
    """An Admin client. All leaders are asked before the first leader answers; ``silent`` leaders time out."""

    def __init__(self, *, silent: tuple[int, ...] = (), leaders: int = 3, has_metadata: bool = True) -> None:
        self.silent, self.has_metadata = silent, has_metadata
        self.all_asked = threading.Barrier(leaders)

    def describe_topics(self, topics: list[str], *, timeout: float) -> list[Any]:
        if not self.has_metadata:
            raise RequestTimedOutError("no node answers")
        if "gone" in topics:
            raise UnknownTopicOrPartitionError("topic 'gone' does not exist")
        parts = [SimpleNamespace(partition=part.partition, leader=leader) for part, (leader, _) in LOGS.items()]
        return [SimpleNamespace(name=topic, partitions=parts) for topic in topics]

    def list_offsets(
        self, wanted: Mapping[TopicPartition, str], *, isolation_level: str, timeout: float
    ) -> dict[TopicPartition, Any]:
        self.all_asked.wait(60)
        if any(LOGS[part][0] in self.silent for part in wanted):
            raise RequestTimedOutError("broker 2 did not answer")
        return {part: SimpleNamespace(offset=LOGS[part][1]) for part in wanted}


def test_all_ends_are_known() -> None:
    found = log_ends(Client(), LOGS, timeout_s=1.0)
    assert (found.known, found.unknown, found.gap()) == ({part: end for part, (_, end) in LOGS.items()}, {}, None)


def test_a_silent_leader_hides_only_its_own_partitions() -> None:
    found = log_ends(Client(silent=(2,)), LOGS, timeout_s=1.0)
    assert found.known == {part: end for part, (leader, end) in LOGS.items() if leader != 2}
    assert sorted(found.unknown) == [TopicPartition("t", 1), TopicPartition("t", 4)]
    assert found.gap() == ("log ends of 2 partitions (t-1, t-4)", "broker 2 did not answer [REQUEST_TIMED_OUT]")


def test_without_metadata_every_end_is_named_as_unknown() -> None:
    found = log_ends(Client(has_metadata=False), LOGS, timeout_s=1.0)
    assert (found.known, found.unknown.keys()) == ({}, LOGS.keys())
    assert found.gap() == ("log ends of 6 partitions (t-0, t-1, t-2, ...)", "no node answers [REQUEST_TIMED_OUT]")


def test_partitions_of_deleted_topics_are_left_out() -> None:
    wanted = {*LOGS, TopicPartition("gone", 0), TopicPartition("t", 99)}
    found = log_ends(Client(), wanted, timeout_s=1.0)
    assert (found.known.keys(), found.unknown) == (LOGS.keys(), {})


def test_nothing_wanted_asks_nobody() -> None:
    assert log_ends(None, (), timeout_s=1.0) == LogEnds({}, {})
