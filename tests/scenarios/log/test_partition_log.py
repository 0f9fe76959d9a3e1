"""One partition's log: rolls, refusals, reads."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from headrace_core.clock import SystemClock
from headrace_core.errors import (
    CorruptLogError,
    CorruptMessageError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordListTooLargeError,
    RecordTooLargeError,
)
from headrace_core.log import Append, AppendInfo, LogConfig, PartitionLog, ReadResult, RealFileSystem
from headrace_core.log.reading import PLACES_MAX
from headrace_core.records import Compression, check_batch, decode_batch, encode_batch, read_header, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TimestampType
from tests.worlds.log_world import NOW_MS, ORDERS, batch, values_of


def open_log(
    config: LogConfig | None = None,
    *,
    fs: CrashingFileSystem | None = None,
    clock: ManualClock | None = None,
    **more: object,
) -> PartitionLog:
    if fs is None:
        fs = CrashingFileSystem()
        fs.mkdir("/log")
    return PartitionLog.open(
        fs,
        "/log",
        ORDERS,
        config or LogConfig(),
        clock=clock or ManualClock(NOW_MS),
        rng=random.Random(1),
        **more,  # type: ignore[arg-type]
    )


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# ---------------------------------------------------------------------------------------------- appending


def test_append_changes_nothing_but_base_offset_and_leader_epoch() -> None:
    log = open_log()
    sent = batch("a", "b") + batch("c", timestamp_ms=NOW_MS + 5)
    info = log.append(sent, 7)
    assert info == AppendInfo(0, 3, -1, len(sent), 0, NOW_MS + 5)
    kept = log.read(0, 10_000)
    assert kept is not None
    first = read_header(sent).size
    assert kept.records[16:first] == sent[16:first]
    assert kept.records[first + 16 :] == sent[first + 16 :]
    assert [(span.base_offset, span.last_offset) for span in split_batches(kept.records)] == [(0, 1), (2, 2)]
    assert {check_batch(kept.records, span.position).leader_epoch for span in split_batches(kept.records)} == {7}


def test_log_append_time_gives_every_record_the_brokers_time() -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME), clock=clock)
    clock.advance(1234)
    info = log.append(batch("a", "b", timestamp_ms=5), 0)
    assert info.log_append_time_ms == info.max_timestamp_ms == NOW_MS + 1234
    kept = log.read(0, 10_000)
    assert kept is not None
    assert {record.timestamp_ms for record in decode_batch(kept.records)} == {NOW_MS + 1234}
    found = log.offset_for_timestamp(NOW_MS + 1000)
    assert found is not None
    assert found.offset == 0


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "lz4"])
def test_topic_with_a_codec_of_its_own_compresses_anew(wanted: str) -> None:
    log = open_log(LogConfig(compression_type=wanted))
    for codec in (Compression.NONE, Compression.GZIP):
        log.append(encode_batch([(NOW_MS, None, b"value" * 50, [])] * 3, compression=codec), 0)
    kept = log.read(0, 10_000)
    assert kept is not None
    codec = Compression.NONE if wanted == "uncompressed" else Compression.parse(wanted)
    for span in split_batches(kept.records):
        assert check_batch(kept.records, span.position).compression is codec
    assert [value[:5] for value in values_of(log)] == ["value"] * 6


@pytest.mark.parametrize(
    ("config", "data", "error"),
    [
        (LogConfig(message_bytes_max=100), batch("x", pad=100), RecordTooLargeError),
        (LogConfig(segment_bytes=300), batch("x", pad=100) + batch("y", pad=100), RecordListTooLargeError),
        (LogConfig(), batch("x", timestamp_ms=NOW_MS + 3_600_001), InvalidTimestampError),
        (LogConfig(timestamp_before_max_ms=1000), batch("x", timestamp_ms=NOW_MS - 1001), InvalidTimestampError),
        (LogConfig(), batch("x")[:-1], CorruptMessageError),
        (LogConfig(), batch("x")[:-1] + b"?", CorruptMessageError),
        (LogConfig(), b"", InvalidRecordError),
        (LogConfig(cleanup_compact=True), batch("no key"), InvalidRecordError),
    ],
)
def test_refused_append_leaves_no_byte(config: LogConfig, data: bytes, error: type[Exception]) -> None:
    log = open_log(config)
    with pytest.raises(error):
        log.append(data, 0)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    log.append(encode_batch([(NOW_MS, b"key", b"fine", [])]), 0)
    assert values_of(log) == ["fine"]


def test_timestamps_at_the_bounds_are_accepted() -> None:
    log = open_log(LogConfig(timestamp_before_max_ms=1000))
    log.append(batch("late", timestamp_ms=NOW_MS - 1000) + batch("early", timestamp_ms=NOW_MS + 3_600_000), 0)
    assert log.log_end_offset == 2


def test_append_of_an_older_leader_epoch_is_refused() -> None:
    log = open_log()
    log.append(batch("new"), 5)
    with pytest.raises(InvalidArgumentError, match="epoch"):
        log.append(batch("stale"), 4)
    assert values_of(log) == ["new"]


def test_headers_that_do_not_belong_to_the_data_are_refused() -> None:
    log = open_log()
    (outcome,) = log.append_many([Append(data=batch("a"), leader_epoch=0, headers=[read_header(batch("abc"))])])
    assert isinstance(outcome, CorruptMessageError)
    assert log.size_bytes == 0


# ---------------------------------------------------------------------------------------------- rolling


def test_rolls_before_a_segment_would_pass_its_size() -> None:
    size = len(batch("x"))
    log = open_log(LogConfig(segment_bytes=3 * size))
    for _ in range(7):
        log.append(batch("x"), 0)
    assert bases(log) == [0, 3, 6]
    assert all(segment.size <= 3 * size for segment in log.segments)


def test_rolls_when_records_span_segment_ms() -> None:
    log = open_log(LogConfig(segment_ms=1000))
    for ms in (0, 999, 1000, 1001, 1500, 2002):
        log.append(batch("x", timestamp_ms=NOW_MS + ms), 0)
    assert bases(log) == [0, 3, 5]


def test_roll_by_time_goes_by_the_first_batch_also_after_a_restart() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(LogConfig(segment_ms=1000), fs=fs)
    log.append(batch("x", timestamp_ms=NOW_MS), 0)
    log.close()
    log = open_log(LogConfig(segment_ms=1000), fs=fs, recovery_point=1, clean=True)
    log.append(batch("x", timestamp_ms=NOW_MS + 1001), 0)
    assert bases(log) == [0, 1]


def test_jitter_shortens_segment_ms() -> None:
    rolled_at = set()
    for seed in range(20):
        fs = CrashingFileSystem()
        fs.mkdir("/log")
        config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
        log = PartitionLog.open(fs, "/log", ORDERS, config, clock=ManualClock(NOW_MS), rng=random.Random(seed))
        for ms in range(0, 1100, 50):
            log.append(batch("x", timestamp_ms=NOW_MS + ms), 0)
            if len(log.segments) > 1:
                rolled_at.add(ms)
                break
    assert len(rolled_at) > 3
    assert min(rolled_at) >= 100
    assert max(rolled_at) <= 1050


def test_rolls_when_an_index_is_full() -> None:
    log = open_log(
        LogConfig(segment_index_bytes=40, index_interval_bytes=10)
    )  # 5 offset entries, 2 time entries + seal
    for i in range(12):
        log.append(batch("x", timestamp_ms=NOW_MS + i), 0)
    assert len(bases(log)) > 2
    assert all(len(segment.time_index) <= 3 for segment in log.segments)
    assert values_of(log) == ["x"] * 12


def test_rolls_when_an_offset_no_longer_fits_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-6264: relative offsets have 31 bits; in the test they have fewer bits."""
    monkeypatch.setattr("headrace_core.log.segment.RELATIVE_OFFSET_MAX", 3)
    log = open_log()
    for _ in range(5):
        log.append(batch("a", "b", "c"), 0)
    assert bases(log) == [0, 3, 6, 9, 12]
    assert values_of(log) == ["a", "b", "c"] * 5


def test_one_call_with_many_appends_rolls_in_between() -> None:
    size = len(batch("x"))
    log = open_log(LogConfig(segment_bytes=3 * size))
    outcomes = log.append_many([Append(data=batch("x"), leader_epoch=0) for _ in range(8)])
    assert [outcome.base_offset for outcome in outcomes if isinstance(outcome, AppendInfo)] == list(range(8))
    assert bases(log) == [0, 3, 6]
    assert log.flushed_end == 6, "sealed segments are flushed, the active one waits"


# ---------------------------------------------------------------------------------------------- reading


def test_records_are_deleted_up_to_the_log_s_end_and_not_beyond() -> None:
    log = open_log()
    for i in range(3):
        log.append(batch(str(i)), 0)
    with pytest.raises(OffsetOutOfRangeError, match="cannot delete records before 4, but the log ends at 3"):
        log.delete_records(4)
    assert log.log_start_offset == 0
    assert log.delete_records(3) == 3
    assert log.delete_records(1) == 3, "deleted records do not come back"


def test_read_is_bounded_below_above_and_in_size() -> None:
    log = open_log()
    for i in range(10):
        log.append(batch(str(i), pad=50), 0)
    log.delete_records(3)
    for offset in (2, 11):
        with pytest.raises(OffsetOutOfRangeError, match="orders-0"):
            log.read(offset, 100)
    assert log.read(10, 100) == ReadResult(b"", 10)
    assert log.read(7, 100, up_to=7) == ReadResult(b"", 7)
    first = log.read(3, 1)
    assert first is not None
    assert first.next_offset == 4, "the first batch comes whole"
    two = log.read(3, 2 * len(first.records) + 1)
    assert two is not None
    assert (two.next_offset, len(two.records)) == (5, 2 * len(first.records))
    rest = log.read(3, 1 << 20, up_to=9)
    assert rest is not None
    assert rest.next_offset == 9


def test_remembered_positions_are_bounded_and_a_read_does_without_them() -> None:
    log = open_log()
    for number in range(2 * PLACES_MAX):
        log.append(batch(str(number)), 0)
    values = []
    for offset in range(log.log_end_offset):
        found = log.read(offset, 1, offset + 1)
        assert found is not None
        values += [(record.value or b"").decode() for record in decode_batch(found.records)]
        assert len(log.places) <= PLACES_MAX + 1
    assert values == [str(number) for number in range(2 * PLACES_MAX)]


def test_cold_read_is_put_off_when_the_caller_must_not_wait() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(fs=fs)
    log.append(batch("x"), 0)
    file = log.active.log
    log.active.log = _Cold(file)  # type: ignore[assignment]
    assert log.read(0, 100, wait=False) is None
    assert log.read(0, 100) is not None


class _Cold:
    """A file that is not in the page cache."""

    def __init__(self, file: object) -> None:
        self._file = file

    def pread_cached(self, size: int, position: int) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_readers_in_other_threads_see_whole_batches_while_the_log_grows_rolls_and_shrinks(tmp_path: Path) -> None:
    """On the real file system, segments are deleted while readers have their files open."""
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
    log = PartitionLog.open(RealFileSystem(), str(tmp_path), ORDERS, config, clock=SystemClock())
    stop = threading.Event()
    failures: list[BaseException] = []
    reads = [0, 0, 0]

    def reader(me: int) -> None:
        rng = random.Random(me)
        try:
            while not stop.is_set():
                end = log.log_end_offset
                start = log.log_start_offset
                if end == start:
                    continue
                offset = rng.randrange(start, end)
                try:
                    result = log.read(offset, rng.choice([1, 3000, 30_000]), end)
                except OffsetOutOfRangeError:
                    assert log.log_start_offset > offset
                    continue
                assert result is not None
                spans = split_batches(result.records)
                assert spans[0].base_offset <= offset <= spans[0].last_offset
                assert spans[-1].last_offset + 1 == result.next_offset <= end
                for span in spans:
                    record = decode_batch(result.records, span.position)[0]
                    assert (record.value or b"").rstrip(b".") == str(record.offset).encode()
                reads[me] += 1
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(me,)) for me in range(len(reads))]
    for thread in threads:
        thread.start()
    now_ms = SystemClock().now_ms()
    while min(reads) < 300 and not failures and log.log_end_offset < 200_000:
        log.append(batch(str(log.log_end_offset), timestamp_ms=now_ms, pad=300), 0)
        if log.log_end_offset % 500 == 0:
            log.delete_records(log.log_end_offset - 200)
            log.drop_segments_below_start()
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert min(reads) > 0
    log.close()


def test_damaged_batch_is_named_and_never_served() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(fs=fs)
    for i in range(3):
        log.append(batch(str(i)), 0)
    fs.flip("/log/00000000000000000000.log", len(batch("0")) + 16)  # the magic of the second one
    log._forget_places()
    with pytest.raises(CorruptLogError, match=r"\.log, position \d+"):
        log.read(2, 1000)


def test_sealed_segment_whose_index_rots_is_read_all_the_same() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(LogConfig(segment_bytes=2000, index_interval_bytes=100), fs=fs)
    for i in range(60):
        log.append(batch(str(i), timestamp_ms=NOW_MS + i), 0)
    log.close()
    garbage = fs.files()["/log/00000000000000000000.index"].replace(b"\0", b"\1")
    for name in ("index", "timeindex"):
        fs.replace(f"/log/00000000000000000000.{name}", garbage[: len(garbage) // 24 * 24])
    log = open_log(LogConfig(segment_bytes=2000, index_interval_bytes=100), fs=fs, recovery_point=60, clean=True)
    assert values_of(log, max_bytes=150) == [str(i) for i in range(60)]
    found = log.offset_for_timestamp(NOW_MS + 7)
    assert found is not None
    assert found.offset == 7


def test_clean_stop_is_not_believed_when_the_log_ends_elsewhere() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(fs=fs)
    for i in range(4):
        log.append(batch(str(i)), 0)
    log.close()
    data = fs.files()["/log/00000000000000000000.log"]
    fs.replace("/log/00000000000000000000.log", data[:-5])
    with pytest.raises(CorruptLogError, match="recovery point 4"):
        open_log(fs=fs, recovery_point=4, clean=True)
    fs.replace("/log/00000000000000000000.log", data + b"\0" * 10)
    assert values_of(open_log(fs=fs, recovery_point=4, clean=True)) == ["0", "1", "2", "3"]


def test_log_without_files_but_with_a_recovery_point_is_corrupt() -> None:
    with pytest.raises(CorruptLogError, match="flushed up to offset 9"):
        open_log(recovery_point=9)


def test_missing_segment_is_a_gap_and_corrupt() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    log = open_log(LogConfig(segment_bytes=400), fs=fs)
    for i in range(20):
        log.append(batch(str(i)), 0)
    middle = log.segments[2]
    log.close()
    fs.unlink(middle.path)
    with pytest.raises(CorruptLogError, match=f"ends at {middle.base_offset}"):
        open_log(LogConfig(segment_bytes=400), fs=fs)
