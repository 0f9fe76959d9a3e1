"""Timestamps before 1970. As in Kafka, they are accepted, and count as no time where the log goes by time: time index,
look-ups, age of a segment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.config import LONG_MAX
from headrace_core.errors import InvalidTimestampError
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.appending import validate
from headrace_core.records import NO_TIMESTAMP, TIMESTAMP_MS_MIN, Compression, decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TimestampType
from tests.worlds.log_world import NOW_MS, ORDERS

DAY_MS = 86_400_000
#: Far, near and at the special numbers -1 (no time), -2 and -3 (in ListOffsets).
TIMES = (TIMESTAMP_MS_MIN, -(2**40), -DAY_MS, -5, -3, -2, NO_TIMESTAMP, 0, 1, 5, DAY_MS, NOW_MS)


def opened(fs: CrashingFileSystem, config: LogConfig) -> PartitionLog:
    return PartitionLog.open(fs, "/log", ORDERS, config, clock=ManualClock(NOW_MS), rng=random.Random(1))


def written(log: PartitionLog) -> list[int]:
    """The timestamp of each record, by its offset."""
    found, at = [], log.log_start_offset
    while at < log.log_end_offset:
        kept = log.read(at, 1 << 20)
        assert kept is not None
        for span in split_batches(kept.records):
            found += [record.timestamp_ms for record in decode_batch(kept.records, span.position)]
        at = kept.next_offset
    return found


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    batches=st.lists(st.lists(st.sampled_from(TIMES), min_size=1, max_size=4), min_size=1, max_size=12),
    compression=st.sampled_from([Compression.NONE, Compression.ZSTD]),
)
def test_look_ups_by_time_pass_over_earlier_times(batches: list[list[int]], compression: Compression) -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    config = LogConfig(segment_bytes=400, index_interval_bytes=1)
    log = opened(fs, config)
    for batch in batches:
        log.append(encode_batch([(time_ms, b"k", b"v", []) for time_ms in batch], compression=compression), 0)
    times = [time_ms for batch in batches for time_ms in batch]
    for name in fs.listdir("/log"):  # the indexes are built anew from the batches
        if name.endswith("index"):
            fs.unlink(f"/log/{name}")
    for each in (log, opened(fs, config)):
        assert written(each) == times
        for asked_ms in (0, 1, 2, 5, 6, DAY_MS, NOW_MS, NOW_MS + 1):
            expected = next((at for at, time_ms in enumerate(times) if time_ms >= asked_ms), None)
            found = each.offset_for_timestamp(asked_ms)
            assert (found and found.offset) == expected, asked_ms
        latest = each.offset_of_max_timestamp()
        expected = times.index(max(times)) if max(times) >= 0 else None
        assert (latest and latest.offset) == expected


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("time_ms", [TIMESTAMP_MS_MIN, -DAY_MS, -2, 1])
def test_create_time_keeps_them_and_log_append_time_replaces_them(time_ms: int, compression: Compression) -> None:
    sent = encode_batch([(time_ms, b"k", b"v", []), (NO_TIMESTAMP, b"k", b"v", [])], compression=compression)
    for kind, expected in (
        (TimestampType.CREATE_TIME, [time_ms, NO_TIMESTAMP]),
        (TimestampType.LOG_APPEND_TIME, [NOW_MS, NOW_MS]),
    ):
        fs = CrashingFileSystem()
        fs.mkdir("/log")
        log = opened(fs, LogConfig(timestamp_type=kind))
        log.append(sent, 0)
        assert written(log) == expected


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (LogConfig(), [TIMESTAMP_MS_MIN - 1]),
        (LogConfig(timestamp_after_max_ms=1), [TIMESTAMP_MS_MIN - 1]),
        (LogConfig(timestamp_before_max_ms=NOW_MS + 2), [TIMESTAMP_MS_MIN, -DAY_MS, -3]),
        (LogConfig(timestamp_before_max_ms=1), [TIMESTAMP_MS_MIN, -DAY_MS, -3, -2, 0]),
        (LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=1), []),
        (LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME), []),
    ],
)
def test_a_limit_of_the_topic_holds_for_them_too(config: LogConfig, refused: list[int]) -> None:
    """The limits are those of Kafka: none by default, none where the broker sets the time, none for -1."""
    for time_ms in (-LONG_MAX - 1, TIMESTAMP_MS_MIN - 1, TIMESTAMP_MS_MIN, -DAY_MS, -3, -2, NO_TIMESTAMP, 0, NOW_MS):
        data = encode_batch([(NO_TIMESTAMP, b"k", b"v", []) if time_ms == NO_TIMESTAMP else (time_ms, b"k", b"v", [])])
        limit = max(refused, default=-LONG_MAX - 2)
        if time_ms <= limit and time_ms != NO_TIMESTAMP:
            with pytest.raises(InvalidTimestampError):
                validate(data, config, NOW_MS)
        else:
            validate(data, config, NOW_MS)


def test_a_segment_of_such_records_has_the_age_of_its_file() -> None:
    """As in Kafka: records of an archive are not deleted as soon as they are written."""
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    clock = fs.clock = ManualClock(NOW_MS)
    config = LogConfig(segment_bytes=150, retention_ms=7 * DAY_MS)
    log = PartitionLog.open(fs, "/log", ORDERS, config, clock=clock, rng=random.Random(1))
    for _ in range(3):
        log.append(encode_batch([(-DAY_MS, b"k", b"v" * 30, [])]), 0)
    assert len(log.segments) > 1
    assert [segment.largest_timestamp.timestamp_ms for segment in log.segments] == [-1] * len(log.segments)
    clock.advance(6 * DAY_MS)
    assert log.expired(log.log_end_offset) is None
    clock.advance(2 * DAY_MS)
    assert log.expired(log.log_end_offset) is not None


def test_a_record_of_1969_rolls_no_segment() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = opened(fs, LogConfig(segment_ms=DAY_MS))
    for time_ms in (NOW_MS, -DAY_MS, NOW_MS, TIMESTAMP_MS_MIN, NOW_MS):
        log.append(encode_batch([(time_ms, b"k", b"v", [])]), 0)
    assert len(log.segments) == 1
