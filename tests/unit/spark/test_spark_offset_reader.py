"""The partitions of a query and their offsets, from a cluster that changes between the requests."""

from __future__ import annotations

import logging

import pytest

from headrace_core.errors import (
    InvalidConfigError,
    NetworkError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from headrace_spark.errors import DataLossError
from headrace_spark.offset_reader import OffsetReader
from headrace_spark.options import parse_options
from headrace_spark.planning import OffsetRange
from headrace_spark.source import plan_batch
from tests.unit.spark.spark_fakes import MemoryCluster, options, partition

T0, T1, U0 = partition(0), partition(1), partition(0, "u")


def reader(cluster: MemoryCluster, *, streaming: bool = True, **given: object) -> OffsetReader:
    slept: list[float] = []
    made = OffsetReader(parse_options(options(**given), streaming=streaming), cluster, sleep=slept.append)
    made.slept = slept  # type: ignore[attr-defined]
    return made


def resolve(made: OffsetReader, *, starting: bool = True) -> dict:  # type: ignore[type-arg]
    limit = made.options.starting if starting else made.options.ending
    return made.resolve(limit, "startingOffsets" if starting else "endingOffsets", starting=starting)


def test_subscribe_reads_all_partitions_of_its_topics() -> None:
    cluster = MemoryCluster({T0: (0, 5), T1: (0, 6), U0: (0, 7)})
    assert reader(cluster).assigned() == {T0, T1}
    assert reader(cluster, subscribe="t,u").assigned() == {T0, T1, U0}


def test_a_pattern_matches_whole_names_and_may_match_none() -> None:
    cluster = MemoryCluster({T0: (0, 5), partition(0, "tt"): (0, 6), U0: (0, 7)})
    assert reader(cluster, subscribePattern="t").assigned() == {T0}
    assert reader(cluster, subscribePattern="t.*").assigned() == {T0, partition(0, "tt")}
    assert reader(cluster, subscribePattern="none").latest() == {}


def test_assign_reads_those_that_exist() -> None:
    cluster = MemoryCluster({T0: (0, 5), T1: (0, 6)})
    assert reader(cluster, assign='{"t":[1,7]}').assigned() == {T1}


def test_a_topic_that_never_was_is_an_error() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic named u"):
        reader(MemoryCluster({T0: (0, 5)}), subscribe="t,u", **{"fetchOffset.numRetries": 1}).latest()


def test_a_deleted_topic_is_a_loss() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    with pytest.raises(DataLossError, match="u was deleted"):
        reader(cluster, subscribe="t,u").latest({T0: 1, U0: 3})
    assert reader(cluster, subscribe="t,u", failOnDataLoss="false").latest({T0: 1, U0: 3}) == {T0: 5}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "earliest"}, {T0: 2, T1: 0}),
        ({"startingOffsets": "latest"}, {T0: 5, T1: 6}),
        ({"startingOffsets": '{"t":{"0":-1,"1":-2}}'}, {T0: 5, T1: 0}),
        ({"startingOffsets": '{"t":{"0":3,"1":4}}'}, {T0: 3, T1: 4}),
        ({"startingTimestamp": "1000"}, {T0: 4, T1: 1}),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1000,"1":2000}}'}, {T0: 4, T1: 5}),
    ],
)
def test_starting_positions(given: dict[str, str], expected: dict) -> None:  # type: ignore[type-arg]
    cluster = MemoryCluster({T0: (2, 5), T1: (0, 6)})
    cluster.times = {T0: {1000: 4}, T1: {1000: 1, 2000: 5}}
    assert resolve(reader(cluster, **given)) == expected


@pytest.mark.parametrize(
    "given", [{"startingOffsets": '{"t":{"0":3}}'}, {"startingOffsetsByTimestamp": '{"t":{"0":3}}'}]
)
def test_starting_positions_must_name_all_partitions(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match=r"Missing: t-1\."):
        resolve(reader(MemoryCluster({T0: (0, 5), T1: (0, 6)}), **given))


def test_a_time_after_the_last_record_fails_or_starts_at_the_end() -> None:
    cluster = MemoryCluster({T0: (0, 5), T1: (0, 6)})
    cluster.times = {T0: {1000: 4}}
    with pytest.raises(NoOffsetForPartitionError, match=r"t-1 at 1000.*startingOffsetsByTimestampStrategy"):
        resolve(reader(cluster, startingTimestamp="1000"))
    lenient = reader(cluster, startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    assert resolve(lenient) == {T0: 4, T1: 6}


def test_an_ending_time_after_the_last_record_is_the_end() -> None:
    cluster = MemoryCluster({T0: (0, 5), T1: (0, 6)})
    cluster.times = {T0: {1000: 4}}
    assert resolve(reader(cluster, streaming=False, endingTimestamp="1000"), starting=False) == {T0: 4, T1: 6}


def test_transient_failures_are_tried_again_as_often_as_asked() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    cluster.failures = [NetworkError("one"), UnknownTopicOrPartitionError("two")]
    made = reader(cluster)
    assert made.latest() == {T0: 5}
    assert made.slept == [1.0, 1.0]  # type: ignore[attr-defined]
    cluster.failures = [NetworkError("one"), NetworkError("two")]
    with pytest.raises(NetworkError, match="two"):
        reader(cluster, **{"fetchOffset.numRetries": 2}).latest()


def test_an_end_before_what_was_read_is_asked_for_again_and_then_stands(caplog: pytest.LogCaptureFixture) -> None:
    made = reader(MemoryCluster({T0: (0, 5)}))
    with caplog.at_level(logging.WARNING):
        assert made.latest({T0: 9}) == {T0: 5}
    assert len(made.slept) == 2  # type: ignore[attr-defined]


def test_a_batch_reads_from_its_start_to_its_end() -> None:
    cluster = MemoryCluster({T0: (2, 5), T1: (0, 6)})
    plan = plan_batch(parse_options(options(endingOffsets='{"t":{"0":4,"1":-1}}'), streaming=False), cluster)
    assert [task.wanted for task in plan] == [OffsetRange("t", 0, 2, 4), OffsetRange("t", 1, 0, 6)]


def test_a_batch_that_ends_beyond_the_log_is_a_loss() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    given = {"endingOffsets": '{"t":{"0":9}}'}
    with pytest.raises(DataLossError, match="ends at 9, the log at 5"):
        plan_batch(parse_options(options(**given), streaming=False), cluster)
    with pytest.raises(DataLossError, match="ends at 9, the last stable offset is 5"):
        plan_batch(parse_options(options(**given, kafka__isolation__level="read_committed"), streaming=False), cluster)
    lenient = parse_options(options(**given, failOnDataLoss="false"), streaming=False)
    assert [task.wanted for task in plan_batch(lenient, cluster)] == [OffsetRange("t", 0, 0, 5)]


def test_a_batch_whose_start_lies_after_its_end_is_a_loss() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    with pytest.raises(DataLossError, match="went back from offset 8 to 5"):
        plan_batch(parse_options(options(startingOffsets='{"t":{"0":8}}'), streaming=False), cluster)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"t":{"0":4}}', "endingTimestamp": "1000"},
        {"startingTimestamp": "2000", "endingOffsets": '{"t":{"0":2}}'},
        {"startingOffsetsByTimestamp": '{"t":{"0":2000}}', "endingOffsets": '{"t":{"0":2}}'},
    ],
)
def test_options_that_end_before_they_start_are_no_loss(given: dict[str, str], fails: str) -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    cluster.times = {T0: {1000: 2, 2000: 4}}
    with pytest.raises(InvalidConfigError, match=r"would end before it starts: t-0 from 4 to 2\. The log has"):
        plan_batch(parse_options(options(**given, failOnDataLoss=fails), streaming=False), cluster)
    cluster.logs[T0] = (0, 3)
    cluster.times = {T0: {1000: 2}}
    if "startingOffsets" in given:  # offset 4 is not in the log: it may have been lost
        with pytest.raises(DataLossError, match="went back from offset 4 to 2"):
            plan_batch(parse_options(options(**given), streaming=False), cluster)


def test_a_batch_whose_given_start_is_gone_is_a_loss_before_any_task_runs() -> None:
    cluster = MemoryCluster({T0: (7, 9), T1: (0, 5)})
    given = {"startingOffsets": '{"t":{"0":3,"1":1}}'}
    message = r"t-0: offsets 3 to 9 are missing, the log starts at 7: 4 offsets are deleted.*failOnDataLoss"
    with pytest.raises(DataLossError, match=message):
        plan_batch(parse_options(options(**given), streaming=False), cluster)
    lenient = parse_options(options(**given, failOnDataLoss="false"), streaming=False)
    planned = plan_batch(lenient, cluster)
    assert [task.wanted for task in planned] == [OffsetRange("t", 0, 7, 9), OffsetRange("t", 1, 1, 5)]


def test_a_task_knows_which_topic_it_was_planned_for() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    cluster.topic_ids["t"] = "aa"
    [task] = plan_batch(parse_options(options(), streaming=False), cluster)
    assert task.value == ("t", 0, 0, 5, "aa")


def test_a_topic_made_anew_is_noticed_and_its_end_is_not_taken_for_a_lagging_node() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    made = reader(cluster)
    made.latest()
    assert made.take_renewed() == set()
    cluster.topic_ids["t"], cluster.logs[T0] = "another", (0, 2)
    assert made.latest({T0: 5}) == {T0: 2}
    assert made.take_renewed() == {"t"}
    assert made.take_renewed() == set(), "told once"
    assert made.slept == []  # type: ignore[attr-defined]
