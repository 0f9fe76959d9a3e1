"""Planning: which logs are cleaned, up to which offset, in which order, and which segments are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_core.config import LONG_MAX
from headrace_core.errors import InvalidConfigError
from headrace_core.log.compaction.planning import (
    CleanableSegment,
    SegmentSize,
    Target,
    first_dirty_offset,
    group_segments,
    in_order,
    target_of,
)
from headrace_core.log.config import LogConfig
from headrace_core.types import TopicPartition

LEDGER = TopicPartition("ledger", 0)
NOW_MS = 1_000_000
CONFIG = LogConfig()


def facts(*rows: tuple[int, int, int]) -> list[CleanableSegment]:
    """(base offset, size, time of all its records)."""
    return [CleanableSegment(base, size, time_ms, time_ms) for base, size, time_ms in rows]


FOUR = facts((0, 100, 1_000), (100, 100, 2_000), (200, 100, 999_000), (300, 50, 999_500))


def target(segments: list[CleanableSegment] = FOUR, config: LogConfig = CONFIG, **changed: int | None) -> Target:
    given = {
        "checkpoint": None,
        "log_start_offset": 0,
        "log_end_offset": 350,
        "stable_offset": 350,
        "now_ms": NOW_MS,
    }
    return target_of(LEDGER, segments, config, **(given | changed))  # type: ignore[arg-type]


def test_a_log_that_was_never_cleaned_is_dirty_up_to_its_active_segment() -> None:
    found = target()
    assert (found.first_dirty_offset, found.end_offset) == (0, 300)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (0, 300, 1.0)


def test_what_was_cleaned_before_counts_as_clean() -> None:
    found = target(checkpoint=100)
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (100, 100, 200)
    assert found.dirty_ratio == pytest.approx(2 / 3)


def test_a_segment_that_reaches_to_the_stable_offset_is_left_alone() -> None:
    assert target(stable_offset=250).end_offset == 200
    assert target(stable_offset=300).end_offset == 300
    assert target(stable_offset=50).cleanable_bytes == 0


def test_records_younger_than_the_min_lag_are_left_alone() -> None:
    config = replace(CONFIG, min_compaction_lag_ms=10_000)
    assert target(config=config).end_offset == 200
    assert target(config=config, now_ms=NOW_MS + 10_000).end_offset == 300


def test_a_log_with_a_record_older_than_the_max_lag_is_overdue() -> None:
    assert not target().is_overdue
    config = replace(CONFIG, max_compaction_lag_ms=900_000)
    assert target(config=config).is_overdue
    assert not target(config=config, checkpoint=200).is_overdue
    assert not target(config=config, stable_offset=50).is_overdue, "nothing can be cleaned yet"


def test_a_checkpoint_outside_of_the_log_is_worth_nothing() -> None:
    assert first_dirty_offset(None, 5, 50) == 5
    assert first_dirty_offset(4, 5, 50) == 5
    assert first_dirty_offset(51, 5, 50) == 5
    assert first_dirty_offset(50, 5, 50) == 50


def test_overdue_logs_come_first_then_the_dirtiest_and_others_not_at_all() -> None:
    def made(name: str, clean: int, dirty: int, is_overdue: bool = False) -> tuple[Target, LogConfig]:
        return Target(TopicPartition(name, 0), 0, 1, clean, dirty, is_overdue), CONFIG

    found = in_order(
        [
            made("half", 50, 50),
            made("most", 20, 80),
            made("all", 0, 10),
            made("late", 99, 1, True),
            made("late, nothing to clean", 99, 0, True),
            made("empty", 0, 0),
        ]
    )
    assert [target.topic_partition.topic for target in found] == ["late", "all", "most"]


def test_settings_come_from_the_topic_then_the_broker() -> None:
    found = LogConfig.from_topic(
        {"min.cleanable.dirty.ratio": "0.2", "delete.retention.ms": 5},
        broker_defaults={"min.cleanable.dirty.ratio": "0.9", "max.compaction.lag.ms": 7},
    )
    assert found == LogConfig(min_dirty_ratio=0.2, delete_retention_ms=5, max_compaction_lag_ms=7)
    assert LogConfig.from_topic({}) == LogConfig(max_compaction_lag_ms=LONG_MAX)
    with pytest.raises(InvalidConfigError, match="did you mean"):
        LogConfig.from_topic({"delete.retention": 5})


# ---------------------------------------------------------------------------------------------- groups

SMALL = LogConfig(segment_bytes=100, segment_index_bytes=100)


def sizes(*rows: tuple[int, int], index_bytes: int = 8, end: int | None = None) -> list[SegmentSize]:
    """(base offset, size)."""
    ends = [base for base, _ in rows[1:]] + [rows[-1][0] + 10 if end is None else end]
    return [SegmentSize(base, size, index_bytes, 12, next_) for (base, size), next_ in zip(rows, ends, strict=True)]


def test_neighbours_become_one_up_to_the_size_of_a_segment() -> None:
    assert group_segments(sizes((0, 60), (10, 40), (20, 1), (30, 100), (40, 200), (50, 0)), SMALL) == [
        [0, 1],
        [2],
        [3],
        [4],
        [5],
    ]


def test_neighbours_become_one_up_to_the_size_of_an_index() -> None:
    assert group_segments(sizes((0, 1), (10, 1), (20, 1), index_bytes=40), SMALL) == [[0, 1], [2]]


def test_every_offset_stays_within_31_bits_of_its_segment_s_base() -> None:
    assert group_segments(sizes((0, 1), (2**31 - 10, 1), end=2**31), SMALL) == [[0, 1]]
    assert group_segments(sizes((0, 1), (2**31 - 10, 1), end=2**31 + 1), SMALL) == [[0], [1]]
    far = sizes((7, 1), (2**31, 1), (2**31 + 5, 1), (2**33, 1))
    assert group_segments(far, SMALL) == [[0, 1], [2], [3]]
