"""The streaming reader as Spark drives it: limits, AvailableNow, new and deleted partitions, and a restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from headrace_core.errors import NetworkError, TopicAuthorizationFailedError
from headrace_spark.errors import DataLossError
from headrace_spark.offset_reader import OffsetReader
from headrace_spark.schema import RECORD
from headrace_spark.stream import HeadraceStreamReader
from tests.unit.spark.spark_fakes import MemoryCluster, options, partition

T0, T1 = partition(0), partition(1)
Offsets = dict[str, Any]


class Reader(HeadraceStreamReader):
    """A reader with a fake cluster and a clock that the test sets."""

    def __init__(self, cluster: MemoryCluster, **given: object) -> None:
        super().__init__(options(**given), RECORD)
        self.clock_ms = 1e12
        self._offsets = OffsetReader(self.options, cluster, sleep=lambda seconds: None)

    def _now_ms(self) -> float:
        return self.clock_ms

    def ranges(self, start: Offsets, end: Offsets) -> list[tuple[int, int, int]]:
        return [tuple(part.value[1:4]) for part in self.partitions(start, end)]  # type: ignore[misc]


def offsets(**by_partition: int) -> Offsets:
    return {"t": {name[1:]: offset for name, offset in by_partition.items()}}


def test_a_query_starts_at_the_end_unless_configured_otherwise() -> None:
    cluster = MemoryCluster({T0: (2, 5)})
    assert Reader(cluster).initialOffset() == offsets(p0=5)
    assert Reader(cluster, startingOffsets="earliest").initialOffset() == offsets(p0=2)


def test_the_initial_offset_stays_the_same_while_the_log_grows() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    reader = Reader(cluster)
    assert reader.initialOffset() == offsets(p0=5)
    cluster.logs[T0] = (0, 9)
    assert reader.initialOffset() == offsets(p0=5)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": 9}, ReadMaxRows(9)),
        ({"minOffsetsPerTrigger": 3}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": 3, "maxOffsetsPerTrigger": 9}, ReadMaxRows(9)),
    ],
)
def test_the_default_limit_is_what_the_options_say(given: dict[str, int], limit: object) -> None:
    assert Reader(MemoryCluster({}), **given).getDefaultReadLimit() == limit


def test_each_trigger_takes_its_share_of_every_partition() -> None:
    reader = Reader(MemoryCluster({T0: (0, 30), T1: (0, 10)}), startingOffsets="earliest", maxOffsetsPerTrigger=8)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == offsets(p0=6, p1=2)
    assert reader.ranges(start, end) == [(0, 0, 6), (1, 0, 2)]
    assert reader.reportLatestOffset() == offsets(p0=30, p1=10)


def test_all_available_ignores_the_options_limits() -> None:
    reader = Reader(MemoryCluster({T0: (0, 30)}), startingOffsets="earliest", maxOffsetsPerTrigger=8)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == offsets(p0=30)


def test_too_few_offsets_wait_for_more_but_not_forever() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    reader = Reader(cluster, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(offsets(p0=0), limit) == offsets(p0=5), "the first trigger never waits"
    cluster.logs[T0] = (0, 14)
    assert reader.latestOffset(offsets(p0=5), limit) == offsets(p0=5), "nine are too few"
    cluster.logs[T0] = (0, 15)
    assert reader.latestOffset(offsets(p0=5), limit) == offsets(p0=15), "ten are enough"
    cluster.logs[T0] = (0, 16)
    assert reader.latestOffset(offsets(p0=15), limit) == offsets(p0=15)
    reader.clock_ms += 60_000
    assert reader.latestOffset(offsets(p0=15), limit) == offsets(p0=16), "the delay is over"


def test_a_least_and_a_most_together() -> None:
    cluster = MemoryCluster({T0: (0, 50)})
    reader = Reader(cluster, startingOffsets="earliest", minOffsetsPerTrigger=10, maxOffsetsPerTrigger=20)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(offsets(p0=0), limit) == offsets(p0=20)
    assert reader.latestOffset(offsets(p0=45), limit) == offsets(p0=45)


def test_available_now_ends_where_the_log_ended_and_never_waits() -> None:
    cluster = MemoryCluster({T0: (0, 12)})
    reader = Reader(cluster, startingOffsets="earliest", minOffsetsPerTrigger=9, maxOffsetsPerTrigger=10)
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first == offsets(p0=10)
    cluster.logs[T0] = (0, 100)
    second = reader.latestOffset(first, limit)
    assert second == offsets(p0=12)
    assert reader.latestOffset(second, limit) is second, "nothing more: Spark ends the query"


def test_a_partition_added_meanwhile_is_read_from_its_beginning() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    reader = Reader(cluster)
    start = reader.initialOffset()
    cluster.logs[T1] = (0, 7)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.ranges(start, end) == [(1, 0, 7)]


def test_a_partition_added_late_whose_head_is_gone_is_a_loss() -> None:
    cluster = MemoryCluster({T0: (0, 5), T1: (3, 7)})
    with pytest.raises(DataLossError, match="t-1 was added and starts at 3"):
        Reader(cluster).ranges(offsets(p0=5), offsets(p0=5, p1=7))
    lenient = Reader(cluster, failOnDataLoss="false")
    assert lenient.ranges(offsets(p0=5), offsets(p0=5, p1=7)) == [(1, 3, 7)]


def test_a_partition_that_is_gone_is_a_loss() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    with pytest.raises(DataLossError, match="t-1 is gone"):
        Reader(cluster).ranges(offsets(p0=3, p1=4), offsets(p0=5))
    assert Reader(cluster, failOnDataLoss="false").ranges(offsets(p0=3, p1=4), offsets(p0=5)) == [(0, 3, 5)]


def test_min_partitions_and_max_records_cut_tasks() -> None:
    cluster = MemoryCluster({T0: (0, 90)})
    assert len(Reader(cluster, minPartitions=3).ranges(offsets(p0=0), offsets(p0=90))) == 3
    assert len(Reader(cluster, maxRecordsPerPartition=20).ranges(offsets(p0=0), offsets(p0=90))) == 5


@pytest.mark.parametrize("starting", ["latest", "earliest", '{"t":{"0":-1}}', '{"t":{"0":4}}'])
@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("grown", [0, 6])
def test_a_restart_in_the_first_batch_reads_the_same_offsets(starting: str, head: int, grown: int) -> None:
    """Spark keeps only the end of the first batch. After the restart Spark requests the start of the batch again, from
    a log that has grown."""
    cluster = MemoryCluster({T0: (head, 5)})
    first = Reader(cluster, startingOffsets=starting)
    start = first.initialOffset()
    cluster.logs[T0] = (head, 5 + grown)
    end = json.loads(json.dumps(first.latestOffset(start, ReadAllAvailable())))
    planned = first.ranges(start, end)

    cluster.logs[T0] = (head, 20)  # killed; more is written; started again
    again = Reader(cluster, startingOffsets=starting)
    assert again.ranges(again.initialOffset(), end) == planned
    more = again.latestOffset(end, ReadAllAvailable())
    assert again.ranges(end, more) == [(0, 5 + grown, 20)], "and the next batch goes on where it ended"


def test_a_restart_in_the_first_batch_sees_that_its_head_aged_out() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    first = Reader(cluster, startingOffsets="earliest")
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    cluster.logs[T0] = (2, 9)
    again = Reader(cluster, startingOffsets="earliest")
    with pytest.raises(DataLossError, match="t-0: offsets 0 to 5 are missing, the log starts at 2: 2 offsets are d"):
        again.ranges(again.initialOffset(), end)
    lenient = Reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    assert lenient.ranges(lenient.initialOffset(), end) == [(0, 2, 5)]


def test_a_limit_counts_what_is_left_when_the_starts_have_moved(caplog: pytest.LogCaptureFixture) -> None:
    """Partition t-0 has 20 of 100 offsets left, and t-1 has all of its 20. Each of the two partitions gives half of the
    batch."""
    cluster = MemoryCluster({T0: (80, 100), T1: (0, 20)})
    reader = Reader(cluster, failOnDataLoss="false", maxOffsetsPerTrigger=10)
    start = offsets(p0=0, p1=0)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == offsets(p0=85, p1=5)
    assert reader.ranges(start, end) == [(0, 80, 85), (1, 0, 5)]
    assert "t-0: offsets 0 to 85 are missing, the log starts at 80: 80 offsets are deleted" in caplog.text
    assert reader.ranges(end, reader.latestOffset(end, reader.getDefaultReadLimit())) == [(0, 85, 90), (1, 5, 10)]
    strict = Reader(cluster, maxOffsetsPerTrigger=10)
    with pytest.raises(DataLossError, match="80 offsets are deleted"):
        strict.ranges(start, strict.latestOffset(start, strict.getDefaultReadLimit()))


def test_a_log_that_is_empty_behind_its_moved_start_is_passed_over() -> None:
    cluster = MemoryCluster({T0: (50, 50)})
    reader = Reader(cluster, failOnDataLoss="false", maxOffsetsPerTrigger=10)
    end = reader.latestOffset(offsets(p0=5), reader.getDefaultReadLimit())
    assert end == offsets(p0=50), "in one batch, not in five without a row"
    assert reader.ranges(offsets(p0=5), end) == []


@pytest.mark.parametrize("new_end", [2, 10, 17])
@pytest.mark.parametrize("limited", [False, True])
def test_a_topic_made_anew_is_a_loss_or_is_read_from_its_start(new_end: int, limited: bool) -> None:
    def made(**given: object) -> tuple[Reader, MemoryCluster, Offsets]:
        cluster = MemoryCluster({T0: (0, 10)})
        reader = Reader(cluster, startingOffsets="earliest", **given)
        limit = ReadMaxRows(1_000) if limited else ReadAllAvailable()
        at = reader.latestOffset(reader.initialOffset(), limit)
        assert at == offsets(p0=10)
        cluster.logs[T0], cluster.topic_ids["t"] = (0, new_end), "another"
        return reader, cluster, at

    reader, _, at = made()
    with pytest.raises(DataLossError, match="t-0: the topic was deleted and created again"):
        reader.latestOffset(at, ReadAllAvailable())

    reader, cluster, at = made(failOnDataLoss="false")
    end = reader.latestOffset(at, ReadMaxRows(1_000) if limited else ReadAllAvailable())
    assert end == {"t": {"0": new_end}, "$start": {"t": {"0": 0}}}
    assert reader.ranges(at, end) == [(0, 0, new_end)]
    again = Reader(cluster, startingOffsets="earliest", failOnDataLoss="false")  # killed in that batch
    assert again.ranges(at, end) == [(0, 0, new_end)]
    cluster.logs[T0] = (0, 30)
    assert reader.ranges(end, reader.latestOffset(end, ReadAllAvailable())) == [(0, new_end, 30)]


def test_without_news_the_answer_is_the_start_itself_even_when_it_carries_its_own_start() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    reader = Reader(cluster)
    start = reader.initialOffset()
    cluster.logs[T0] = (0, 9)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 9}, "$start": {"t": {"0": 5}}}
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_stop_closes_the_connections() -> None:
    cluster = MemoryCluster({T0: (0, 5)})
    reader = Reader(cluster)
    reader.initialOffset()
    reader.stop()
    assert cluster.closed


def test_a_topic_that_was_gone_and_comes_back_is_read_once() -> None:
    cluster = MemoryCluster({T0: (0, 10), partition(0, "u"): (0, 5)})
    reader = Reader(cluster, subscribePattern="t|u", startingOffsets="earliest", failOnDataLoss="false")
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    del cluster.logs[T0]
    second = reader.latestOffset(first, ReadAllAvailable())
    assert second == {"u": {"0": 5}}
    assert reader.ranges(first, second) == []
    cluster.logs[T0], cluster.topic_ids["t"] = (0, 3), "another"
    third = reader.latestOffset(second, ReadAllAvailable())
    assert reader.ranges(second, third) == [(0, 0, 3)]
    assert reader.latestOffset(third, ReadAllAvailable()) == third, "nothing is new: it is not read again"


# -- topics that are not seen for a while ------------------------------------------------------------------------------

U0 = partition(0, "u")
BOTH = {"t": {"0": 10}, "u": {"0": 5}}


def two_topics(**given: object) -> tuple[Reader, MemoryCluster]:
    """A reader that has read the topics t and u."""
    cluster = MemoryCluster({T0: (0, 10), U0: (0, 5)})
    reader = Reader(cluster, startingOffsets="earliest", **given)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == BOTH
    return reader, cluster


SOURCES = [{"subscribePattern": "t|u"}, {"subscribe": "t,u"}, {"assign": '{"t":[0],"u":[0]}'}]


@pytest.mark.parametrize("given", SOURCES)
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("denied", [{"t", "u"}, {"u"}])
def test_rights_that_are_lost_for_a_while_lose_no_place(given: dict[str, str], fails: str, denied: set[str]) -> None:
    reader, cluster = two_topics(**given, failOnDataLoss=fails)
    cluster.unauthorized = denied
    restarted = Reader(cluster, startingOffsets="earliest", **given, failOnDataLoss=fails)
    for each in (reader, restarted):
        with pytest.raises(TopicAuthorizationFailedError, match=str(sorted(denied)[0])):
            each.latestOffset(BOTH, ReadAllAvailable())
    cluster.unauthorized = set()
    cluster.logs[T0] = (0, 12)
    for each in (reader, restarted):
        end = each.latestOffset(BOTH, ReadAllAvailable())
        assert end == {"t": {"0": 12}, "u": {"0": 5}}
        assert each.ranges(BOTH, end) == [(0, 10, 12)], "neither lost nor read again"


@pytest.mark.parametrize("given", SOURCES)
def test_rights_that_are_lost_while_a_batch_is_planned_are_no_loss(given: dict[str, str]) -> None:
    reader, cluster = two_topics(**given)
    cluster.unauthorized = {"t"}
    with pytest.raises(TopicAuthorizationFailedError):
        reader.ranges({"t": {"0": 4}, "u": {"0": 5}}, BOTH)
    cluster.unauthorized = set()
    assert reader.ranges({"t": {"0": 4}, "u": {"0": 5}}, BOTH) == [(0, 4, 10)]


@pytest.mark.parametrize("given", SOURCES)
@pytest.mark.parametrize("fails", ["true", "false"])
def test_brokers_that_do_not_answer_lose_no_place(given: dict[str, str], fails: str) -> None:
    reader, cluster = two_topics(**given, failOnDataLoss=fails)
    cluster.failures = [NetworkError("no broker answers")] * 3
    with pytest.raises(NetworkError, match="no broker answers"):
        reader.latestOffset(BOTH, ReadAllAvailable())
    cluster.failures = [NetworkError("no broker answers")] * 2
    assert reader.latestOffset(BOTH, ReadAllAvailable()) == BOTH


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_pattern_without_any_topic_waits(fails: str) -> None:
    reader, cluster = two_topics(subscribePattern="t|u", failOnDataLoss=fails)
    cluster.logs.clear()
    for each in (reader, Reader(cluster, subscribePattern="t|u", failOnDataLoss=fails)):
        assert each.latestOffset(BOTH, ReadAllAvailable()) == BOTH
        assert each.latestOffset(BOTH, ReadMaxRows(3)) == BOTH


def test_a_pattern_whose_topics_were_all_deleted_goes_on_with_others_when_the_loss_is_accepted() -> None:
    strict, cluster = two_topics(subscribePattern="[t-v]")
    cluster.logs = {partition(0, "v"): (0, 4)}
    for each in (strict, Reader(cluster, subscribePattern="[t-v]")):
        with pytest.raises(DataLossError, match=r"t-0, u-0 is gone\..*failOnDataLoss"):  # before an end is written
            each.latestOffset(BOTH, ReadAllAvailable())
    lenient = Reader(cluster, subscribePattern="[t-v]", failOnDataLoss="false")
    end = lenient.latestOffset(BOTH, ReadAllAvailable())
    assert end == {"v": {"0": 4}}
    assert lenient.ranges(BOTH, end) == [(0, 0, 4)]
    assert strict.latestOffset(end, ReadAllAvailable()) == end, "accepted once, the query is strict again"


def test_a_topic_of_a_pattern_that_comes_back_anew_while_none_is_there_is_read_from_its_start() -> None:
    reader, cluster = two_topics(subscribePattern="t|u", failOnDataLoss="false")
    cluster.logs.clear()
    assert reader.latestOffset(BOTH, ReadAllAvailable()) == BOTH
    cluster.logs, cluster.topic_ids["t"] = {T0: (0, 3)}, "another"
    end = reader.latestOffset(BOTH, ReadAllAvailable())
    assert reader.ranges(BOTH, end) == [(0, 0, 3)]


def test_a_subscribed_topic_that_was_deleted_stays_accepted(caplog: pytest.LogCaptureFixture) -> None:
    reader, cluster = two_topics(subscribe="t,u", failOnDataLoss="false")
    del cluster.logs[U0]
    at = BOTH
    for _ in range(3):
        at = reader.latestOffset(at, ReadAllAvailable())
        assert at == {"t": {"0": 10}}
    assert caplog.text.count("the subscribed topic u was deleted") == 1


def test_available_now_waits_for_no_topic_that_it_cannot_see() -> None:
    reader, cluster = two_topics(subscribePattern="t|u")
    cluster.logs.clear()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(BOTH, reader.getDefaultReadLimit()) is BOTH, "nothing new: Spark ends the query"
