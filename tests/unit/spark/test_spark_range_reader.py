"""The work of a task: its range, no row twice, and the handling of deleted offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace_core.errors import OffsetOutOfRangeError, RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_spark.errors import DataLossError
from headrace_spark.planning import OffsetRange
from headrace_spark.range_reader import next_available, read_range
from tests.unit.spark.spark_fakes import MemoryCluster, partition
from tests.worlds.this_process import logged

T0 = partition(0)


def read(cluster: Any, start: int, end: int, *, fail: bool = True, columns: tuple[str, ...] = ("offset",)) -> list[Any]:
    batches = read_range(
        cluster, OffsetRange("t", 0, start, end), columns=columns, fail_on_data_loss=fail, timeout_ms=1_000
    )
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_a_range_is_read_from_start_to_end() -> None:
    assert read(MemoryCluster({T0: (0, 100)}), 10, 21) == list(range(10, 21))


def test_only_the_columns_that_were_asked_for_come_out() -> None:
    cluster = MemoryCluster({T0: (0, 100)})
    batches = list(
        read_range(cluster, OffsetRange("t", 0, 0, 3), columns=("value",), fail_on_data_loss=True, timeout_ms=1)
    )
    assert [batch.schema.names for batch in batches] == [["value"]]


def test_offsets_that_are_gone_fail_the_task() -> None:
    with pytest.raises(DataLossError, match=r"offsets 10 to 21 were not read: the log has 15 to 100.*failOnDataLoss"):
        read(MemoryCluster({T0: (15, 100)}), 10, 21)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ((15, 100), list(range(15, 21))),  # the first records expired
        ((21, 100), []),  # all records expired
        ((50, 100), []),
        ((0, 10), []),  # the topic was re-created, and is shorter
        ((0, 13), [10, 11, 12]),  # and reaches into the range
    ],
)
def test_with_loss_accepted_what_is_left_is_read(log: tuple[int, int], expected: list[int]) -> None:
    assert read(MemoryCluster({T0: log}), 10, 21, fail=False) == expected


def test_a_loss_that_is_accepted_is_reported_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    read(MemoryCluster({T0: (15, 18)}), 10, 21, fail=False)
    assert "offsets 10 to 21 were not read: the log has 15 to 18: 8 offsets are skipped, continuing at" in caplog.text


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_made_anew_since_the_plan_is_a_loss_also_when_it_has_such_offsets(
    fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"columns": ("offset",), "fail_on_data_loss": fail, "timeout_ms": 1, "topic_id": "of the plan"}
    batches = read_range(MemoryCluster({T0: (0, 100)}), OffsetRange("t", 0, 10, 21), **asked)  # type: ignore[arg-type]
    if fail:
        with pytest.raises(DataLossError, match=r"t-0: offsets 10 to 21 were not read: the topic was deleted and cre"):
            list(batches)
    else:
        assert list(batches) == []
        assert "11 offsets are skipped" in caplog.text


class CompactedCluster(MemoryCluster):
    """Every fifth record is left."""

    def read(self, wanted: OffsetRange, **asked: Any) -> Iterator[Any]:
        import pyarrow.compute as pc

        for batch in super().read(wanted, **asked):
            kept = batch.filter(pc.equal(pc.multiply(pc.divide(batch.column("offset"), 5), 5), batch.column("offset")))
            if kept.num_rows:
                yield kept


@pytest.mark.parametrize("end", [31, 34, 35])
def test_gaps_that_compaction_left_are_no_loss_also_at_both_ends(end: int) -> None:
    assert read(CompactedCluster({T0: (0, 100)}), 11, end) == [15, 20, 25, 30]
    assert read(CompactedCluster({T0: (0, 100)}), 11, 14) == [], "a range may be nothing but a gap"


class AgingCluster(MemoryCluster):
    """Returns two batches, and then loses the first records of its log."""

    def read(self, wanted: OffsetRange, **asked: Any) -> Iterator[Any]:
        for index, batch in enumerate(super().read(wanted, **asked)):
            if index == 2 and self.logs[T0][0] == 0:
                self.logs[T0] = (30, 100)
                yield from super().read(wanted._replace(start=8), **asked)
            yield batch


def test_a_loss_in_the_middle_repeats_no_row() -> None:
    assert read(AgingCluster({T0: (0, 100)}), 0, 40, fail=False) == [*range(8), *range(30, 40)]


class SilentCluster(MemoryCluster):
    def read(self, wanted: OffsetRange, **asked: Any) -> Iterator[Any]:
        raise RequestTimedOutError("nothing came")
        yield  # makes it an iterator


def test_a_slow_cluster_is_no_loss() -> None:
    with pytest.raises(RequestTimedOutError):
        read(SilentCluster({T0: (0, 100)}), 10, 21, fail=False)


class LaggingCluster(MemoryCluster):
    """A new leader that has its high watermark only from its followers: until then offsets from 15 on do not exist for
    readers."""

    lags_for = 3

    def read(self, wanted: OffsetRange, **asked: Any) -> Iterator[Any]:
        if not self.lags_for:
            yield from super().read(wanted, **asked)
            return
        self.lags_for -= 1
        if wanted.start < 15:
            yield from super().read(wanted._replace(end=15), **asked)
        raise OffsetOutOfRangeError("the range ends at 21, but the log ends at 15")


@pytest.mark.parametrize("fail", [True, False])
def test_records_that_a_new_leader_does_not_return_yet_are_no_loss(
    fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(LaggingCluster({T0: (0, 100)}), 10, 21, fail=fail) == list(range(10, 21))
    assert not logged(caplog)


def test_a_leader_that_lags_for_longer_than_the_time_limit_is_an_error_but_no_loss() -> None:
    cluster, clock = LaggingCluster({T0: (0, 100)}), [0.0]
    cluster.lags_for = 1_000
    batches = read_range(
        cluster,
        OffsetRange("t", 0, 10, 21),
        columns=("offset",),
        fail_on_data_loss=False,
        timeout_ms=1_000,
        now=lambda: clock[0],
        sleep=lambda s: clock.__setitem__(0, clock[0] + s),
    )
    with pytest.raises(OffsetOutOfRangeError):
        list(batches)
    assert 1.0 < clock[0] < 1.2


class DeletedTopicCluster(MemoryCluster):
    """The topic is deleted after two batches."""

    def read(self, wanted: OffsetRange, **asked: Any) -> Iterator[Any]:
        for index, batch in enumerate(super().read(wanted, **asked)):
            if index == 2:
                self.logs.clear()
                raise UnknownTopicOrPartitionError("topic 't' does not exist")
            yield batch

    def list_offsets(self, wanted: Any) -> dict[Any, int]:
        if not self.logs:
            raise UnknownTopicOrPartitionError("topic 't' does not exist")
        return super().list_offsets(wanted)


def test_a_topic_deleted_in_the_middle_is_a_loss_like_any_other() -> None:
    with pytest.raises(DataLossError, match=r"offsets 8 to 40 were not read: the topic no longer exists.*deleted"):
        read(DeletedTopicCluster({T0: (0, 100)}), 0, 40)
    assert read(DeletedTopicCluster({T0: (0, 100)}), 0, 40, fail=False) == list(range(8))


@pytest.mark.parametrize(
    ("available", "expected"), [((0, 100), 10), ((15, 100), 15), ((21, 100), 21), ((0, 10), 21), ((0, 11), 10)]
)
def test_the_next_available_offset(available: tuple[int, int], expected: int) -> None:
    assert next_available(OffsetRange("t", 0, 10, 21), available) == expected
