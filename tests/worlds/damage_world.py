"""A small log with every feature, a model of its content, and a check of the results of a log with damaged files."""

from __future__ import annotations

import enum
import logging
import os
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace_core.errors import CorruptLogError, InvalidConfigError
from headrace_core.log import FoundTimestamp, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.dump import problem_of
from headrace_core.records import Compression, decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import FlushPolicy, TopicPartition

#: A run damages one position out of this number of positions; with HEADRACE_FULL=1 (`make verify`) all of them.
STEP = 1 if os.environ.get("HEADRACE_FULL", "0") not in ("", "0") else 5
ROOT = "/data"
ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=360, index_interval_bytes=1, segment_index_bytes=1200, flush=FlushPolicy.OS, segment_ms=10**12
)
_CODECS = (Compression.NONE, Compression.GZIP, Compression.NONE, Compression.LZ4)
#: Timestamps that grow, repeat and go back, which a time index must handle.
_TIMES = (0, 5, 5, 9, 3, 20, 14, 22, 22, 30, 28, 41)


def of_today(positions: range) -> range:
    """The positions to test today: within STEP days in a row, each position is tested once."""
    day = int(os.environ["HEADRACE_TEST_SEED"])
    return positions[(day - positions.start) % STEP :: STEP]


@dataclass(frozen=True)
class Image:
    """A log directory without a running process, and the model: the records that must be read from it."""

    fs: CrashingFileSystem
    records: dict[int, tuple[int, bytes, int]]  # offset: timestamp, value, leader epoch
    log_start_offset: int
    log_end_offset: int
    #: The base offsets of the batches above the recovery point.
    tail: tuple[int, ...]

    @property
    def bytes_below_the_start(self) -> int:
        """The number of bytes of batches below the log start offset."""
        first = split_batches(self.fs.files()[f"{ROOT}/{ORDERS}/{0:020}.log"])
        return sum(span.size for span in first if span.last_offset < self.log_start_offset)

    @property
    def last_batch(self) -> range:
        """The position of the last batch in its file."""
        last = max(path for path in self.fs.files() if path.startswith(f"{ROOT}/{ORDERS}/") and path.endswith(".log"))
        size = len(self.fs.files()[last])
        return range(size - split_batches(self.fs.files()[last])[-1].size, size)

    def damaged(self) -> CrashingFileSystem:
        """A copy of the file system, which a test may damage."""
        return self.fs.crash_clone(loss=Loss.NONE)


def open_directory(fs: CrashingFileSystem) -> LogDirectory:
    return LogDirectory.open(
        fs, ROOT, clock=ManualClock(NOW_MS), config_of=lambda topic, topic_id: CONFIG, rng=random.Random(1)
    )


def make_image(*, clean: bool) -> Image:
    """A log with several segments, three leader epochs, batches with and without compression, and a log start offset in
    the middle of a segment."""
    fs = CrashingFileSystem(keep_trace=False)
    format_directory(fs, ROOT, cluster_id="c", node_id=1)
    directory = open_directory(fs)
    log = directory.create(ORDERS, uuid.UUID(int=1), CONFIG)
    other = directory.create(PAYMENTS, uuid.UUID(int=2), CONFIG)
    other.append(encode_batch([(NOW_MS, None, b"paid", [])]), 0)
    records: dict[int, tuple[int, bytes, int]] = {}
    bases: list[int] = []
    for number, time in enumerate(_TIMES):
        epoch = (2, 2, 2, 2, 3, 3, 3, 7, 7, 7, 7, 7)[number]
        batch = [(NOW_MS + time + i, b"k", b"%d.%d" % (number, i) * 3, []) for i in range(1 + number % 3)]
        info = log.append(encode_batch(batch, compression=_CODECS[number % 4]), epoch)
        bases.append(info.base_offset)
        for i, (timestamp_ms, _, value, _) in enumerate(batch):
            records[info.base_offset + i] = (timestamp_ms, value, epoch)
        if number == 9:
            log.flush()
            other.flush()
            directory.write_recovery_points()
            directory.write_high_watermarks({ORDERS: log.log_end_offset, PAYMENTS: 1})
    start = bases[1] + 1
    directory.delete_records(log, start)
    assert len(log.segments) >= 4, "a small log with several segments"
    assert start > log.segments[0].base_offset, "the log starts in the middle of a segment"
    end = log.log_end_offset
    assert log.active.base_offset <= bases[-2], "the last two batches share the active segment"
    if clean:
        directory.close(broker_epoch=5)
    kept = {offset: record for offset, record in records.items() if offset >= start}
    return Image(fs.crash_clone(loss=Loss.NONE), kept, start, end, () if clean else tuple(bases[10:]))


class Outcome(enum.Enum):
    """The allowed outcomes of damaged bytes. Damage must not have an outcome that is not listed."""

    IDENTICAL = "the written records are served"
    NAMED = "a named error"
    TORN = "a named torn tail"


def judge_start(image: Image, fs: CrashingFileSystem, path: str) -> Outcome:
    """Open the log directory on ``fs``, whose file ``path`` is damaged, and read all records in all ways."""
    size = len(fs.files().get(path, b""))
    with said() as lines:
        try:
            directory = open_directory(fs)
        except InvalidConfigError as error:
            if path.endswith("meta.properties") and path in error.message:
                return Outcome.NAMED
            raise
        if path.startswith(f"{ROOT}/{PAYMENTS}/"):
            assert judge_orders(image, directory, "", 0, []) is Outcome.IDENTICAL
            return judge_payments(directory, path)
        assert judge_payments(directory, "") is Outcome.IDENTICAL
        return judge_orders(image, directory, path, size, lines)


def judge_payments(directory: LogDirectory, path: str) -> Outcome:
    """Judge the second partition, which has one flushed record."""
    if PAYMENTS in directory.quarantined:
        assert path in directory.quarantined[PAYMENTS].message
        return Outcome.NAMED

    def read() -> None:
        log = directory.logs[PAYMENTS]
        assert log.log_end_offset == 1
        _read_all(log, {0: (NOW_MS, b"paid", 0)}, 0, 1, 1 << 20)
        _same(log.offset_for_timestamp(NOW_MS), (NOW_MS, 0, 0))

    return _named(Outcome.IDENTICAL, path, read)


def judge_orders(image: Image, directory: LogDirectory, path: str, size: int, lines: list[str]) -> Outcome:
    """Judge the partition with all features."""
    if ORDERS in directory.quarantined:
        assert path in directory.quarantined[ORDERS].message
        return Outcome.NAMED
    log = directory.logs[ORDERS]
    if log.log_end_offset != image.log_end_offset:
        assert log.log_end_offset in image.tail, "records below the recovery point are missing"
        # A file that is cut at a batch border shows no sign of the lost bytes.
        assert log.active.size == size or any("cut at position" in line and path in line for line in lines), lines
        judge_log(image, log, path, end_offset=log.log_end_offset)
        return Outcome.TORN
    return judge_log(image, log, path)


def judge_log(image: Image, log: PartitionLog, path: str, *, end_offset: int | None = None) -> Outcome:
    """Read an open log in all ways: each read must return what was written, or raise an error."""
    end = image.log_end_offset if end_offset is None else end_offset
    assert log.log_start_offset == image.log_start_offset, "deleted records are back, or other records are missing"
    kept = {offset: record for offset, record in image.records.items() if offset < end}
    outcome = Outcome.IDENTICAL
    for max_bytes in (1, 300, 1 << 20):
        for first in (image.log_start_offset, *list(kept)[3::4]):
            outcome = _named(outcome, path, lambda: _read_all(log, kept, first, end, max_bytes))  # noqa: B023
    for time in range(-1, max(_TIMES) + 4):
        wanted_ms = NOW_MS + time
        expected = next(((ts, o, e) for o, (ts, _, e) in kept.items() if ts >= wanted_ms), None)
        outcome = _named(
            outcome,
            path,
            lambda: _same(log.offset_for_timestamp(wanted_ms, end), expected),  # noqa: B023
        )
    latest = max(ts for ts, _, _ in kept.values())
    expected = next((ts, o, e) for o, (ts, _, e) in kept.items() if ts == latest)
    return _named(outcome, path, lambda: _same(log.offset_of_max_timestamp(end), expected))


def _named(before: Outcome, path: str, read: Callable[[], None]) -> Outcome:
    failure: CorruptLogError | None = None
    try:
        read()
    except CorruptLogError as error:
        failure = error
    if failure is None:
        return before
    found = problem_of(failure, path="")
    assert found.path, f"the error does not name the place: {failure.message}"
    assert found.position >= 0
    assert path == found.path, f"{path} is damaged, not {failure.message}"
    return Outcome.NAMED


def _same(found: FoundTimestamp | None, expected: tuple[int, int, int] | None) -> None:
    assert found == expected, f"a search by time found {found}, not {expected}"


def _read_all(
    log: PartitionLog, kept: dict[int, tuple[int, bytes, int]], offset: int, end: int, max_bytes: int
) -> None:
    while offset < end:
        result = log.read(offset, max_bytes, end)
        assert result is not None
        assert result.records, f"nothing at offset {offset}"
        for span in split_batches(result.records):
            for record in decode_batch(result.records, span.position, start_offset=offset):
                assert record.offset == offset, f"offset {record.offset} was served where {offset} should be"
                assert (record.timestamp_ms, record.value, record.leader_epoch) == kept[offset], f"offset {offset}"
                offset += 1
        assert offset == result.next_offset, (
            f"{offset} was read, but the result tells the reader to continue at {result.next_offset}"
        )


@contextmanager
def said() -> Iterator[list[str]]:
    """Collect the lines that the modules of the log write to the process's logger."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("headrace_core.log")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
