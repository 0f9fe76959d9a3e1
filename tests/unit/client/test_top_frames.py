"""The frames of `headrace top`, from two samples."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from headrace.cluster_models import PartitionDescription, TopicDescription
from headrace.errors import RequestTimedOutError
from headrace.group_models import GroupLag, GroupListing, PartitionLag
from headrace.models import BrokerInfo
from headrace_core.types import TopicPartition
from headrace_tools.asking import ask_each
from headrace_tools.cli.top import _frames, _in_a_pipe
from headrace_tools.top.frames import Sample, frame_of

ORDERS = [TopicPartition("orders", number) for number in range(3)]


def partition(number: int, led_by: int, **changed: Any) -> PartitionDescription:
    return dataclasses.replace(PartitionDescription(number, 1, 1, (1, 2), (1, 2)), **{"leader": led_by, **changed})


def topic(name: str, *partitions: PartitionDescription, topic_id: bytes = b"i" * 16) -> TopicDescription:
    return TopicDescription(name, topic_id, False, partitions)


def lag(committed: int, *, behind: int = 10, lag_ms: int | None = 700) -> GroupLag:
    part = PartitionLag("orders", 0, committed, 0, committed + behind, behind, lag_ms, False, 0, "OK", 1.0)
    return GroupLag("billing", "OK", behind, (part,))


BEFORE = Sample(
    at_ms=1_000,
    steady_s=10.0,
    cluster_id="c",
    controller_id=2,
    brokers=(BrokerInfo(1, "h", 1), BrokerInfo(2, "h", 2)),
    topics=(topic("orders", partition(0, 1), partition(1, 2)), topic("idle", partition(0, 1))),
    ends={ORDERS[0]: 100, ORDERS[1]: 50, TopicPartition("idle", 0): 7},
    sizes={(ORDERS[0], 1): 10_000, (ORDERS[1], 2): 5_000, (TopicPartition("idle", 0), 1): 70},
    groups=(GroupListing("billing", "stable", 2),),
    lags=(lag(40),),
)


def later(**changed: Any) -> Sample:
    """Two seconds later: 200 records and 20,000 bytes to orders-0, 100 and 10,000 to orders-1."""
    return dataclasses.replace(
        BEFORE,
        **{
            "at_ms": 3_000,
            "steady_s": 12.0,
            "ends": {ORDERS[0]: 300, ORDERS[1]: 150, TopicPartition("idle", 0): 7},
            "sizes": {(ORDERS[0], 1): 30_000, (ORDERS[1], 2): 15_000, (TopicPartition("idle", 0), 1): 70},
            "lags": (lag(100, behind=30),),
            **changed,
        },
    )


def test_rates_are_what_was_appended_by_topic_by_leader_and_in_all() -> None:
    frame = frame_of(BEFORE, later())
    assert (frame.records_per_s, frame.bytes_per_s, frame.interval_s) == (150.0, 15_000.0, 2.0)
    assert [(row.topic, row.records_per_s, row.bytes_per_s) for row in frame.topics] == [
        ("orders", 150.0, 15_000.0),
        ("idle", 0.0, 0.0),
    ]
    assert [(row.id, row.leaders, row.replicas, row.records_per_s, row.bytes_per_s) for row in frame.brokers] == [
        (1, 2, 3, 100.0, 10_000.0),
        (2, 1, 3, 50.0, 5_000.0),
    ]
    assert (frame.partitions, frame.under_replicated, frame.offline) == (3, 0, 0)


def test_a_node_that_stood_still_does_not_make_rates_higher_than_they_were() -> None:
    """Broker 1 answered the second sample 4 s late, and its answer includes the records of these 4 s. The rate is still
    100 records per second."""
    late = later(
        ends={ORDERS[0]: 700, ORDERS[1]: 150},
        ends_at_s={1: 16.0, 2: 12.0},
        sizes={(ORDERS[0], 1): 70_000, (ORDERS[1], 2): 15_000},
        sizes_at_s={1: 16.0, 2: 12.0},
        lags=(lag(220),),
        lags_at_s=16.0,
    )
    frame = frame_of(BEFORE, late)
    assert [(row.records_per_s, row.bytes_per_s) for row in frame.brokers] == [(100.0, 10_000.0), (50.0, 5_000.0)]
    assert frame.groups[0].records_per_s == 30.0
    after = dataclasses.replace(
        late, steady_s=14.0, ends={ORDERS[0]: 700, ORDERS[1]: 250}, ends_at_s={1: 16.1, 2: 14.0}
    )
    assert [row.records_per_s for row in frame_of(late, after).brokers] == [0.0, 50.0]


def test_each_is_asked_at_once_and_has_an_answer_or_an_error_of_its_own() -> None:
    all_asked = threading.Barrier(3)

    def question(number: int) -> int:
        all_asked.wait(60)  # one after the other would wait for ever
        if number == 2:
            raise RequestTimedOutError("silent")
        return number * 10

    answers = ask_each([1, 2, 3, 1], question)
    assert list(answers) == [1, 2, 3]
    assert [answer.value for answer in answers.values()] == [10, None, 30]
    assert [answer.error is None for answer in answers.values()] == [True, False, True]


class Leaving:
    """A cluster that does not answer after the first sample."""

    def __init__(self) -> None:
        self.looks = 0

    def sample(self) -> Sample:
        self.looks += 1
        if self.looks > 1:
            raise RequestTimedOutError("nobody answers")
        return BEFORE


@pytest.mark.parametrize("count", [1, 3])
def test_so_many_looks_end_also_when_the_cluster_has_gone(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    sampling: Any = Leaving()
    shown: list[Any] = []
    assert _in_a_pipe(_frames(sampling, 0.001, count), shown.append) == 1
    assert (sampling.looks, shown) == (count + 1, [])
    assert capsys.readouterr().err.count("nobody answers [REQUEST_TIMED_OUT]") == count


def test_a_groups_lag_and_how_fast_it_commits() -> None:
    (row,) = frame_of(BEFORE, later()).groups
    assert (row.group, row.members, row.lag, row.lag_ms, row.records_per_s, row.status) == (
        "billing", 2, 30, 700, 30.0, "OK",
    )  # fmt: skip
    assert frame_of(BEFORE, later()).total_lag == 30
    (reset,) = frame_of(BEFORE, later(lags=(lag(0),))).groups
    assert reset.records_per_s == 0.0
    (unknown,) = frame_of(BEFORE, later(lags=())).groups
    assert (unknown.lag, unknown.lag_ms, unknown.records_per_s, unknown.status) == (None, None, None, None)


def test_the_group_that_is_furthest_behind_comes_first() -> None:
    listed = (GroupListing("a", "stable", 1), GroupListing("billing", "stable", 2))
    assert [row.group for row in frame_of(BEFORE, later(groups=listed)).groups] == ["billing", "a"]


@pytest.mark.parametrize(
    ("changed", "under_replicated", "offline"),
    [
        ({"isr": (1,)}, 1, 0),
        ({"leader": -1, "isr": (1,)}, 1, 1),
        ({"replicas": (1, 2, 3)}, 0, 0),  # broker 3 is being added
    ],
)
def test_partitions_in_trouble_are_counted(changed: dict[str, Any], under_replicated: int, offline: int) -> None:
    topics = (topic("orders", partition(0, 1, **changed), partition(1, 2)),)
    frame = frame_of(BEFORE, later(topics=topics, adding={ORDERS[0]: frozenset({3})}))
    assert (frame.under_replicated, frame.offline) == (under_replicated, offline)
    assert (frame.topics[0].under_replicated, frame.topics[0].offline) == (under_replicated, offline)


def test_what_was_seen_once_only_has_no_rate() -> None:
    fresh = (topic("orders", partition(0, 1), partition(1, 2), topic_id=b"another"),)
    (row,) = frame_of(BEFORE, later(topics=fresh)).topics
    assert (row.records_per_s, row.bytes_per_s) == (None, None)
    moved = (topic("orders", partition(0, 2), partition(1, 2)),)  # its new leader's size was not seen before
    (row,) = frame_of(BEFORE, later(topics=moved)).topics
    assert (row.records_per_s, row.bytes_per_s) == (150.0, 5_000.0)


def test_a_log_that_shrank_or_was_cut_back_makes_no_negative_rate() -> None:
    shrunk = {(ORDERS[0], 1): 100, (ORDERS[1], 2): 15_000}
    frame = frame_of(BEFORE, later(sizes=shrunk, ends={ORDERS[0]: 10, ORDERS[1]: 150}))
    assert (frame.records_per_s, frame.bytes_per_s) == (50.0, 5_000.0)
