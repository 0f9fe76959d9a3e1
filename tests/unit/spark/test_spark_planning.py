"""Limits, ranges and splits: the Kafka source's arithmetic."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import InvalidConfigError
from headrace_spark.offsets import from_json, start_within, to_json, with_start
from headrace_spark.planning import OffsetRange, check_covers, offsets_waiting, plan_ranges, rate_limit, split_ranges
from tests.unit.spark.spark_fakes import partition

sizes = st.lists(st.integers(0, 5_000), min_size=1, max_size=12)


def test_offsets_are_the_kafka_sources_json() -> None:
    offsets = {partition(1, "b"): 7, partition(0, "a"): 123, partition(10, "b"): 1, partition(2, "b"): 0}
    text = json.dumps(to_json(offsets))
    assert text == '{"a": {"0": 123}, "b": {"1": 7, "2": 0, "10": 1}}'
    assert from_json(json.loads(text)) == offsets


def test_an_end_may_carry_its_start() -> None:
    end = with_start(to_json({partition(0): 9}), {partition(0): 4})
    assert from_json(end) == {partition(0): 9}
    assert start_within(end) == {partition(0): 4}
    assert start_within(to_json({partition(0): 9})) is None


def test_a_limit_is_shared_in_proportion_and_starves_nobody() -> None:
    """A case of Spark's own tests: with 101, 11 and 1 records and ten per trigger, the partitions give eight, one and
    one."""
    start = {partition(0): 100, partition(1): 10, partition(2): 0}
    end = {partition(0): 201, partition(1): 21, partition(2): 1}
    assert rate_limit(10, start, end, {}) == {partition(0): 108, partition(1): 11, partition(2): 1}


def test_what_rounding_leaves_is_given_out() -> None:
    start = dict.fromkeys(map(partition, range(3)), 0)
    end = dict.fromkeys(map(partition, range(3)), 100)
    limited = rate_limit(100, start, end, {})
    assert sorted(limited.values()) == [33, 33, 34]


def test_a_new_partition_takes_part_from_its_beginning() -> None:
    limited = rate_limit(10, {partition(0): 0}, {partition(0): 10, partition(1): 30}, {partition(1): 20})
    assert limited == {partition(0): 5, partition(1): 25}


def test_a_limit_larger_than_what_waits_changes_nothing() -> None:
    end = {partition(0): 10, partition(1): 3}
    assert rate_limit(8, {partition(0): 5, partition(1): 3}, end, {}) == end


@given(sizes, st.integers(1, 20_000))
def test_a_limit_is_kept_and_progress_is_made(counts: list[int], limit: int) -> None:
    start = {partition(i): i for i in range(len(counts))}
    end = {partition(i): i + count for i, count in enumerate(counts)}
    limited = rate_limit(limit, start, end, {})
    assert limited.keys() == end.keys()
    assert all(start[p] <= limited[p] <= end[p] for p in end)
    taken, waiting = offsets_waiting(start, limited), sum(counts)
    assert taken <= limit + sum(0 < count * limit < waiting for count in counts), "one more for each small one"
    assert taken >= min(limit, waiting)
    assert all(limited[p] > start[p] for p in end if end[p] > start[p] and limit * (end[p] - start[p]) < waiting)


def test_ranges_leave_out_what_has_nothing_to_read() -> None:
    plan = plan_ranges({partition(0): 5, partition(1): 7}, {partition(0): 9, partition(1): 7}, {})
    assert plan.ranges == [OffsetRange("t", 0, 5, 9)]
    assert plan.losses == []


def test_a_partition_added_since_is_read_from_its_beginning() -> None:
    plan = plan_ranges({partition(0): 5}, {partition(0): 5, partition(1): 4}, {partition(1): 0})
    assert plan.ranges == [OffsetRange("t", 1, 0, 4)]
    assert plan.losses == []


@pytest.mark.parametrize(
    ("start", "end", "first", "message"),
    [
        ({}, {partition(1): 9}, {partition(1): 3}, "starts at 3 instead of 0"),
        ({}, {partition(1): 9}, {}, "cannot find the start of t-1"),
        ({partition(0): 1, partition(1): 2}, {partition(0): 1}, {}, "t-1 is gone"),
        ({partition(0): 9}, {partition(0): 4}, {}, "t-0 went back from offset 9 to 4"),
        ({partition(0): 4}, {partition(0): 9}, {partition(0): 5}, "the log starts at 5: 1 offsets are deleted"),
    ],
)
def test_what_may_be_lost_is_reported(start: dict, end: dict, first: dict, message: str) -> None:  # type: ignore[type-arg]
    losses = plan_ranges(start, end, first).losses
    assert len(losses) == 1
    assert message in losses[0]


def test_ranges_are_not_split_unless_asked() -> None:
    ranges = [OffsetRange("t", 0, 0, 1000), OffsetRange("t", 1, 0, 0), OffsetRange("t", 2, 0, 1)]
    assert split_ranges(ranges) == [ranges[0], ranges[2]]
    assert split_ranges(ranges, min_partitions=2) == [ranges[0], ranges[2]]


def test_min_partitions_splits_the_large_ranges() -> None:
    """A case of Spark's own tests: 1, 2, 5 and 10 records in at least 4 ranges. With skew, only large partitions are
    split."""
    parts = split_ranges([OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 1)], min_partitions=4)
    assert parts == [
        OffsetRange("t", 0, 0, 33),
        OffsetRange("t", 0, 33, 66),
        OffsetRange("t", 0, 66, 100),
        OffsetRange("t", 1, 0, 1),
    ]


def test_max_records_splits_every_range_above_it() -> None:
    parts = split_ranges([OffsetRange("t", 0, 10, 31), OffsetRange("t", 1, 0, 5)], max_records=10)
    assert parts == [
        OffsetRange("t", 0, 10, 17),
        OffsetRange("t", 0, 17, 24),
        OffsetRange("t", 0, 24, 31),
        OffsetRange("t", 1, 0, 5),
    ]


@given(sizes, st.none() | st.integers(1, 40), st.none() | st.integers(1, 500))
def test_splitting_covers_each_offset_once(counts: list[int], tasks: int | None, records: int | None) -> None:
    ranges = [OffsetRange("t", i, i, i + count) for i, count in enumerate(counts)]
    parts = split_ranges(ranges, min_partitions=tasks, max_records=records)
    assert all(part.size > 0 for part in parts)
    if records is not None:
        assert all(part.size <= records for part in parts)
    for whole in ranges:
        mine = [part for part in parts if part.partition == whole.partition]
        assert sum(part.size for part in mine) == whole.size
        assert all(one.end == other.start for one, other in itertools.pairwise(mine))
        if mine:
            assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)


def test_offsets_by_partition_must_name_all_partitions() -> None:
    check_covers("startingOffsets", [partition(0)], [partition(0)])
    with pytest.raises(InvalidConfigError, match=r"Missing: t-1\. Named but not read: u-0\."):
        check_covers("startingOffsets", [partition(0), partition(0, "u")], [partition(0), partition(1)])
