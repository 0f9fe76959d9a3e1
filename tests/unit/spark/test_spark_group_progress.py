"""A stream's progress goes to its group, and failures of the group do not affect the query."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace_core.errors import ClosedError, UnknownMemberIdError
from headrace_core.types import TopicPartition
from headrace_spark import group_progress
from headrace_spark.group_progress import PAUSE_S, REPEAT_S, GroupProgress
from headrace_spark.offset_reader import OffsetReader
from headrace_spark.schema import RECORD
from headrace_spark.stream import HeadraceStreamReader
from tests.unit.spark.spark_fakes import MemoryCluster, options, partition

T0, T1 = partition(0), partition(1)


class FakeGroup:
    """Answers at once, unless the test holds it. ``failure`` is the answer when the test no longer holds it."""

    def __init__(self, group_id: str = "g") -> None:
        self.group_id = group_id
        self.committed: list[dict[TopicPartition, int]] = []
        self.failure: BaseException | None = None
        self.is_held = self.closed = False
        self.futures: list[Future[None]] = []

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Future[None]:
        if self.closed:
            raise ClosedError("closed")
        self.committed.append(dict(offsets))
        future: Future[None] = Future()
        self.futures.append(future)
        if not self.is_held:
            self.answer(future)
        return future

    def answer(self, future: Future[None]) -> None:
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            future.set_result(None)

    def close(self) -> None:
        self.closed = True


class GroupProgressWorld:
    """A GroupProgress with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.group = FakeGroup()
        self.progress = GroupProgress("g", self.group, now_s=lambda: self.now_s)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> GroupProgressWorld:
    monkeypatch.setattr(group_progress, "COMMIT_TIMEOUT_S", 0.0)
    return GroupProgressWorld()


def test_each_place_is_committed_once(world: GroupProgressWorld) -> None:
    for offsets in ({T0: 5, T1: 0}, {T0: 5, T1: 0}, {T0: 7, T1: 1}, {T0: 7, T1: 1}, {}):
        world.progress.reached(offsets)
    assert world.group.committed == [{T0: 5, T1: 0}, {T0: 7, T1: 1}]


def test_an_idle_query_says_the_same_again_before_the_group_expires(world: GroupProgressWorld) -> None:
    world.progress.reached({T0: 5})
    world.now_s += REPEAT_S - 1
    world.progress.reached({T0: 5})
    assert len(world.group.committed) == 1
    world.now_s += 1
    world.progress.reached({T0: 5})
    assert world.group.committed == [{T0: 5}] * 2


def test_a_commit_that_hangs_holds_up_nobody_and_the_next_one_overtakes_it(
    world: GroupProgressWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.group.is_held = True
    for offset in (5, 6, 7):
        world.progress.reached({T0: offset})
    assert world.group.committed == [{T0: 5}], "one at a time"
    assert [record.getMessage() for record in caplog.records if "group 'g'" in record.getMessage()] == [
        "cannot commit the query's progress to group 'g' for 0 s; the query continues"
    ]
    world.group.futures[0].set_result(None)
    world.progress.reached({T0: 7})
    assert world.group.committed == [{T0: 5}, {T0: 7}]


@pytest.mark.parametrize("how", ["answered", "cancelled", "refused at once"])
def test_a_commit_that_fails_is_a_warning_and_is_tried_again_later(
    world: GroupProgressWorld, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "answered":
        world.group.failure = UnknownMemberIdError("the group has members")
    elif how == "cancelled":
        world.group.is_held = True
    else:
        world.group.closed = True
    with caplog.at_level(logging.WARNING):
        world.progress.reached({T0: 5})
        for future in world.group.futures:
            if not future.done():
                future.cancel()
        for offset in range(6, 100):
            world.progress.reached({T0: offset})
    (warning,) = (text for record in caplog.records if "Next attempt" in (text := record.getMessage()))
    assert "group 'g'" in warning, "once, not with each trigger"
    assert "The query continues" in warning
    world.group.failure, world.group.is_held, world.group.closed = None, False, False
    world.now_s += PAUSE_S
    world.progress.reached({T0: 100})
    assert world.group.committed[-1] == {T0: 100}


def test_the_end_waits_for_what_is_under_way(world: GroupProgressWorld) -> None:
    world.group.is_held = True
    world.progress.reached({T0: 5})
    world.group.futures[0].set_result(None)
    world.progress.close()
    assert world.group.closed


class Reader(HeadraceStreamReader):
    """A reader with a fake cluster and fake groups."""

    def __init__(self, cluster: MemoryCluster, **given: Any) -> None:
        super().__init__(options(**given), RECORD)
        self._offsets = OffsetReader(self.options, cluster, sleep=lambda seconds: None)
        self.groups: list[FakeGroup] = []

    def _open_group(self, group_id: str) -> FakeGroup:
        self.groups.append(FakeGroup(group_id))
        return self.groups[-1]


def test_a_query_commits_where_it_stands_with_each_trigger() -> None:
    """The last batch of a query is reported too, although Spark never calls commit for it."""
    cluster = MemoryCluster({T0: (2, 5), T1: (0, 4)})
    reader = Reader(cluster, startingOffsets="earliest", kafka__group__id="reports")
    start = reader.initialOffset()
    assert not reader.groups, "nothing is open before there is something to say"
    end = reader.latestOffset(start, ReadAllAvailable())
    (group,) = reader.groups
    assert group.group_id == "reports"
    assert group.committed == [{T0: 2, T1: 0}], "where it begins: what is before that it never reads"
    cluster.logs[T0] = (2, 9)
    second = reader.latestOffset(end, ReadAllAvailable())  # that batch is done
    reader.commit(end)
    assert group.committed[1:] == [{T0: 5, T1: 4}], "once"
    assert reader.latestOffset(second, ReadAllAvailable()) == second
    assert group.committed[2:] == [{T0: 9, T1: 4}]
    reader.stop()
    assert group.closed


def test_a_query_without_a_group_commits_to_none() -> None:
    reader = Reader(MemoryCluster({T0: (0, 5)}))
    reader.commit(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert not reader.groups


def test_a_prefix_makes_a_group_of_its_own_for_each_run_of_a_query() -> None:
    names = []
    for _ in range(2):
        reader = Reader(MemoryCluster({T0: (0, 5)}), groupIdPrefix="nightly")
        for _ in range(3):
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        (group,) = reader.groups
        names.append(group.group_id)
    assert names[0] != names[1]
    for name in names:
        assert uuid.UUID(name.removeprefix("nightly-"))
