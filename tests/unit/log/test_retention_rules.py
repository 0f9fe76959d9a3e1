"""Which of the oldest segments are deleted: Kafka's rules as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_core.config import LONG_MAX
from headrace_core.config.topic_keys import KEEPS_EVERYTHING, TOPIC
from headrace_core.log import LogConfig
from headrace_core.log.retention import (
    Expired,
    SegmentFacts,
    Share,
    Why,
    expired,
    is_waiting_for_compaction,
    time_of_segment,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
#: Four segments of 100 bytes and 10 records; the last segment is active. The latest records of the segments are 4, 3, 2
#: and 1 hours old.
FOUR = [SegmentFacts(offset, 100) for offset in (0, 10, 20, 30)]
AGES_MS = [4 * HOUR_MS, 3 * HOUR_MS, 2 * HOUR_MS, 1 * HOUR_MS]
KEEP_ALL = LogConfig(retention_ms=None, retention_bytes=None)


def test_a_topic_that_keeps_everything_has_no_rule() -> None:
    """The doctor's warning retention-unlimited matches these rules, with any defaults of the brokers."""
    defaults = {name: "0" for name in TOPIC.keys if name.startswith("retention.")}
    config = LogConfig.from_topic(KEEPS_EVERYTHING, broker_defaults=defaults | {"cleanup.policy": "compact"})
    assert judge(config) is None, "a rule deletes records: add its key to KEEPS_EVERYTHING"
    assert not config.cleanup_compact


def judge(
    config: LogConfig,
    segments: list[SegmentFacts] = FOUR,
    *,
    log_start: int = 0,
    log_end: int = 40,
    high_watermark: int | None = None,
    ages_ms: list[int] = AGES_MS,
) -> Expired | None:
    return expired(
        segments,
        config,
        log_start_offset=log_start,
        log_end_offset=log_end,
        high_watermark=log_end if high_watermark is None else high_watermark,
        now_ms=NOW_MS,
        time_of=lambda place: NOW_MS - ages_ms[place],
    )


def gone(verdict: Expired | None) -> tuple[int, int, bool]:
    return (0, -1, False) if verdict is None else (verdict.segments, verdict.log_start_offset, verdict.roll_first)


@pytest.mark.parametrize(
    ("hours", "segments", "log_start", "roll_first"),
    [(5, 0, -1, False), (4, 0, -1, False), (3, 1, 10, False), (1.5, 3, 30, False), (0.5, 4, 40, True)],
)
def test_segments_go_whose_latest_record_is_older_than_retention_ms(
    hours: float, segments: int, log_start: int, roll_first: bool
) -> None:
    config = replace(KEEP_ALL, retention_ms=int(hours * HOUR_MS))
    assert gone(judge(config)) == (segments, log_start, roll_first)


@pytest.mark.parametrize(
    ("limit", "segments"),
    [(400, 0), (399, 0), (301, 0), (300, 1), (299, 1), (200, 2), (101, 2), (100, 3), (1, 3), (0, 4), (10**9, 0)],
)
def test_segments_go_as_long_as_the_rest_is_not_smaller_than_retention_bytes(limit: int, segments: int) -> None:
    verdict = judge(replace(KEEP_ALL, retention_bytes=limit))
    assert gone(verdict)[0] == segments
    assert verdict is None or verdict.shares == (Share(Why.SIZE, segments, 100 * segments),)


@pytest.mark.parametrize(("log_start", "segments"), [(0, 0), (9, 0), (10, 1), (15, 1), (30, 3), (40, 3)])
def test_segments_go_that_lie_below_the_log_start_but_the_active_one_stays(log_start: int, segments: int) -> None:
    verdict = judge(KEEP_ALL, log_start=log_start)
    assert gone(verdict)[0] == segments
    assert verdict is None or verdict.log_start_offset == log_start


def test_each_rule_works_on_what_the_one_before_it_left() -> None:
    config = LogConfig(retention_bytes=200, retention_ms=int(1.5 * HOUR_MS))
    verdict = judge(config, log_start=10)
    assert verdict is not None
    assert verdict.shares == (Share(Why.LOG_START, 1, 100), Share(Why.SIZE, 1, 100), Share(Why.TIME, 1, 100))
    assert verdict.log_start_offset == 30


@pytest.mark.parametrize(("high_watermark", "segments"), [(40, 4), (39, 3), (30, 3), (29, 2), (10, 1), (9, 0), (0, 0)])
def test_nothing_goes_that_reaches_above_the_high_watermark(high_watermark: int, segments: int) -> None:
    for config in (replace(KEEP_ALL, retention_ms=0), replace(KEEP_ALL, retention_bytes=0)):
        assert gone(judge(config, high_watermark=high_watermark))[0] == segments


def test_a_segment_that_stays_keeps_all_that_is_behind_it() -> None:
    ages = [HOUR_MS, 9 * HOUR_MS, 9 * HOUR_MS, 9 * HOUR_MS]
    assert judge(replace(KEEP_ALL, retention_ms=2 * HOUR_MS), ages_ms=ages) is None


def test_a_verdict_without_the_active_segment() -> None:
    verdict = judge(LogConfig(retention_bytes=200, retention_ms=0))
    assert verdict is not None
    assert verdict.shares == (Share(Why.SIZE, 2, 200), Share(Why.TIME, 2, 200))
    assert verdict.without_active(30, 100) == Expired(
        3, 30, (Share(Why.SIZE, 2, 200), Share(Why.TIME, 1, 100)), roll_first=False
    )
    alone = judge(replace(KEEP_ALL, retention_ms=0), FOUR[:1], log_end=10)
    assert alone is not None
    assert alone.without_active(0, 100) is None


def test_an_empty_active_segment_is_left_alone() -> None:
    with_empty = [*FOUR, SegmentFacts(40, 0)]
    ages = [*AGES_MS, 10**12]
    assert gone(judge(replace(KEEP_ALL, retention_ms=0), with_empty, ages_ms=ages)) == (4, 40, False)
    assert judge(replace(KEEP_ALL, retention_ms=0), [SegmentFacts(40, 0)], ages_ms=[10**12]) is None


def test_a_compacted_log_obeys_its_log_start_and_nothing_else() -> None:
    compacted = LogConfig(cleanup_delete=False, cleanup_compact=True, retention_ms=0, retention_bytes=0)
    assert judge(compacted) is None
    assert gone(judge(compacted, log_start=20)) == (2, 20, False)
    assert gone(judge(replace(compacted, cleanup_delete=True)))[0] == 4


def test_minus_one_is_no_limit() -> None:
    config = LogConfig.from_topic({"retention.ms": "-1", "retention.bytes": "-1"})
    assert judge(config, ages_ms=[10**12] * 4) is None


def test_the_times_of_segments_behind_the_first_that_stays_are_not_asked() -> None:
    asked = []

    def time_of(place: int) -> int:
        asked.append(place)
        return NOW_MS - AGES_MS[place]

    expired(
        FOUR,
        replace(KEEP_ALL, retention_ms=int(3.5 * HOUR_MS)),
        log_start_offset=0,
        log_end_offset=40,
        high_watermark=40,
        now_ms=NOW_MS,
        time_of=time_of,
    )
    assert asked == [0, 1]


# ---------------------------------------------------------------------------------------------- whose time


@pytest.mark.parametrize(
    ("largest_ms", "after_max_ms", "counts_as"),
    [
        (NOW_MS - 5, HOUR_MS, NOW_MS - 5),
        (0, HOUR_MS, 0),
        (-1, HOUR_MS, NOW_MS - 1000),  # no record has a timestamp, so the time of the file counts
        (NOW_MS + HOUR_MS, HOUR_MS, NOW_MS + HOUR_MS),  # as far ahead as the topic allows
        (NOW_MS + HOUR_MS + 1, HOUR_MS, NOW_MS - 1000),  # would be refused today
        (2**62, HOUR_MS, NOW_MS - 1000),
        (2**62, LONG_MAX, 2**62),  # the topic allows any future: Kafka's rule
    ],
)
def test_a_timestamp_that_would_be_refused_today_does_not_hold_its_segment(
    largest_ms: int, after_max_ms: int, counts_as: int
) -> None:
    config = LogConfig(timestamp_after_max_ms=after_max_ms)
    assert time_of_segment(largest_ms, lambda: NOW_MS - 1000, config=config, now_ms=NOW_MS) == counts_as


def test_the_file_is_only_asked_when_records_do_not_tell() -> None:
    def written_ms() -> int:
        raise AssertionError("asked for the file's time")

    assert time_of_segment(NOW_MS, written_ms, config=LogConfig(), now_ms=NOW_MS) == NOW_MS


# ---------------------------------------------------------------------------------------------- the active segment


@pytest.mark.parametrize(
    ("config", "first_ms", "waits"),
    [
        (LogConfig(cleanup_compact=True, max_compaction_lag_ms=HOUR_MS), NOW_MS - HOUR_MS - 1, True),
        (LogConfig(cleanup_compact=True, max_compaction_lag_ms=HOUR_MS), NOW_MS - HOUR_MS, False),
        (LogConfig(cleanup_compact=True, max_compaction_lag_ms=HOUR_MS), None, False),
        (LogConfig(cleanup_compact=True, max_compaction_lag_ms=HOUR_MS), -1, False),
        (LogConfig(cleanup_compact=True), 0, False),
        (LogConfig(max_compaction_lag_ms=HOUR_MS), 0, False),
    ],
)
def test_an_idle_active_segment_is_sealed_when_its_records_wait_too_long_for_compaction(
    config: LogConfig, first_ms: int | None, waits: bool
) -> None:
    assert is_waiting_for_compaction(config, first_ms, NOW_MS) is waits


def test_the_compaction_lag_bounds_the_time_that_a_segment_spans() -> None:
    config = LogConfig(segment_ms=1000, max_compaction_lag_ms=10)
    assert config.roll_after_ms == 1000
    assert replace(config, cleanup_compact=True).roll_after_ms == 10
    assert replace(config, cleanup_compact=True, segment_ms=5).roll_after_ms == 5
