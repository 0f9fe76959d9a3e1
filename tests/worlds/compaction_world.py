"""Compacted logs in memory: a small one and the steps of a cleaning; and a partition with plain, idempotent and
transactional producers, whose log is cleaned and crashed, with a plain model of a cleaning."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace_core.log import Append, LogConfig, PartitionLog
from headrace_core.log.compaction.cleaner import Cleaner, CleaningReport, Execute
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.compaction.planning import CleanerConfig, Target
from headrace_core.log.compaction.windows import RateLimiter
from headrace_core.log.dump import Note, Problem, dump
from headrace_core.log.producer_state import SNAPSHOT_SUFFIX, ProducerEntry, ProducerTable
from headrace_core.records import (
    BatchHeader,
    Compression,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    read_header,
    split_batches,
)
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from headrace_core.types import FlushPolicy, TimestampType, TopicPartition

ROOT = "/data"
LEDGER = TopicPartition("ledger", 0)


def at_once(action: Callable[[], bool]) -> bool:
    return action()


class Ledger:
    """A log configuration with small segments, for a compacted topic with few keys."""

    def __init__(
        self, *, partition: TopicPartition = LEDGER, fs: CrashingFileSystem | None = None, **config: Any
    ) -> None:
        self.fs = fs or CrashingFileSystem()
        self.partition = partition
        self.clock = ManualClock(1_700_000_000_000)
        self.directory = f"{ROOT}/{partition}"
        if fs is None:
            self.fs.mkdir(ROOT)
        self.fs.mkdir(self.directory)
        self.fs.sync_directory("/")
        self.fs.sync_directory(ROOT)
        settings = {
            "segment_bytes": 1000,
            "index_interval_bytes": 100,
            "cleanup_compact": True,
            "delete_retention_ms": 1000,
        }
        self.config = LogConfig(**(settings | config))
        self.log = self.open()

    def open(self, fs: CrashingFileSystem | None = None, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            fs or self.fs,
            self.directory,
            self.partition,
            self.config,
            clock=self.clock,
            rng=random.Random(1),
            recovery_point=recovery_point,
        )

    def put(self, *pairs: tuple[str, str | None]) -> int:
        records = [
            (self.clock.now_ms(), key.encode(), None if value is None else value.encode(), None) for key, value in pairs
        ]
        return self.log.append(encode_batch(records), 0).base_offset

    def fill(self, count: int, keys: int = 5) -> None:
        """Append ``count`` records, one per batch, then roll to a new active segment with one more record."""
        for number in range(count):
            self.put((f"key-{number % keys}", f"value {number} " + "." * 60))
        self.log.roll()
        self.put(("active", "stays"))
        self.log.flush()

    def manager(self) -> CleanerManager:
        return CleanerManager(self.fs, ROOT)

    def target(self, manager: CleanerManager | None = None) -> Target:
        (found,) = (manager or self.manager()).plan(
            {self.partition: self.log},
            stable_offset_of=lambda log: log.log_end_offset,
            now_ms=self.clock.now_ms(),
        )
        return found

    def cleaner(self, limiter: RateLimiter | None = None, **config: Any) -> Cleaner:
        settings = {"dedupe_buffer_bytes": 1 << 14, "io_buffer_bytes": 512}
        return Cleaner(
            self.fs, CleanerConfig(**(settings | config)), clock=self.clock, secret=bytes(16), limiter=limiter
        )

    def clean(
        self,
        manager: CleanerManager | None = None,
        execute: Execute = at_once,
        cleaner: Cleaner | None = None,
        **more: Any,
    ) -> CleaningReport:
        manager = manager or self.manager()
        report = manager.clean(
            cleaner or self.cleaner(),
            self.log,
            self.target(manager),
            execute=execute,
            producers={},
            **more,
        )
        assert report is not None
        return report

    def records(self, max_bytes: int = 1 << 20) -> list[Record]:
        """All batches of the log, read with ``read``."""
        return read_on(self.log, self.log.log_start_offset, max_bytes)

    def values(self) -> dict[str, str]:
        return {record.key.decode(): (record.value or b"").decode().rstrip(". ") for record in self.records()}


def read_on(log: PartitionLog, offset: int, max_bytes: int) -> list[Record]:
    """The records that a consumer gets from ``offset`` to the log end; checks that offsets ascend and every read makes
    progress."""
    found: list[Record] = []
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes)
        assert result is not None
        assert result.next_offset > offset
        for span in split_batches(result.records):
            found += decode_batch(result.records, span.position, start_offset=offset)
        offset = result.next_offset
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return found


DIRECTORY = "/data/ledger-0"
PARTITION = TopicPartition("ledger", 0)
ABORT, COMMIT = 0, 1
HORIZON_BIT = 0x40
#: The expiration time of producers, and the maximum disorder of record timestamps.
EXPIRATION_MS, LATE_MS = 1_500, 50
UNCHANGING = frozenset({"open", "read", "listdir", "lock"})
CODECS = tuple(Compression)


class Rec(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(NamedTuple):
    """A batch of the log, with the base offset of its segment."""

    header: BatchHeader
    records: tuple[Rec, ...]
    raw: bytes
    segment: int

    @property
    def horizon_ms(self) -> int | None:
        return self.header.base_timestamp_ms if self.header.attributes & HORIZON_BIT else None

    @property
    def control_type(self) -> int | None:
        if not self.header.is_control or not self.records:
            return None
        assert self.records[0].key is not None
        return int(struct.unpack_from(">hh", self.records[0].key)[1])


def batches_of(log: PartitionLog) -> list[Batch]:
    """All batches of the log, with checked CRCs."""
    found = []
    for segment in log.segments:
        data = segment.log.pread(segment.size, 0)
        for position, header in iterate_headers(data):
            records = tuple(
                Rec(record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers))
                for record in decode_batch(data, position)
            )
            found.append(Batch(header, records, data[position : position + header.size], segment.base_offset))
    return found


# ---------------------------------------------------------------------------------------------- views


class Transactions(NamedTuple):
    aborted: frozenset[int]  # base offsets of batches that were aborted
    open_from: int | None  # first offset of the first open transaction


def transactions_of(batches: Iterable[Batch]) -> Transactions:
    """The open and the aborted transactions according to the markers, as a consumer of the whole log would compute
    them."""
    running: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for batch in batches:
        header = batch.header
        if header.is_control:
            ended = running.pop(header.producer_id, [])
            if batch.control_type == ABORT:
                aborted |= set(ended)
        elif header.is_transactional:
            running.setdefault(header.producer_id, []).append(header.base_offset)
    return Transactions(frozenset(aborted), min((first[0] for first in running.values()), default=None))


def committed(batches: list[Batch], up_to: int | None = None) -> list[Rec]:
    """The records that a read_committed consumer gets, in order."""
    seen = transactions_of(batches)
    limits = [offset for offset in (seen.open_from, up_to) if offset is not None]
    end = min(limits) if limits else None
    return [
        record
        for batch in batches
        if not batch.header.is_control and batch.header.base_offset not in seen.aborted
        for record in batch.records
        if end is None or record.offset < end
    ]


def latest_values(records: Iterable[Rec]) -> dict[bytes, bytes]:
    """The latest value of each key: the table that a compacted topic represents."""
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def producers_of(batches: Iterable[Batch]) -> ProducerTable:
    """The producer state that recovery rebuilds from the log."""
    table = ProducerTable()
    for batch in batches:
        if batch.header.is_control:
            table.marker_appended(batch.header, 0)
        else:
            table.appended(batch.header)
    return table


def last_of(table: ProducerTable, active: Iterable[int]) -> dict[int, tuple[int, int, int] | None]:
    """For each active producer: its epoch, last sequence and last offset."""
    found: dict[int, tuple[int, int, int] | None] = {}
    for producer_id in active:
        entry = table.get(producer_id)
        if entry is None:
            found[producer_id] = None
        else:
            last = entry.last_batch
            found[producer_id] = (entry.epoch, last.last_sequence if last else -1, last.last_offset if last else -1)
    return found


class Known(NamedTuple):
    """The state of one producer, as far as a producer snapshot and the log can rebuild it."""

    epoch: int
    last_sequence: int
    last_offset: int
    transaction_first_offset: int | None


def known_of(table: ProducerTable) -> dict[int, Known]:
    return {entry.producer_id: _known(entry) for entry in table}


def _known(entry: ProducerEntry) -> Known:
    last = entry.last_batch
    sequence, offset = (last.last_sequence, last.last_offset) if last is not None else (-1, -1)
    return Known(entry.epoch, sequence, offset, entry.transaction_first_offset)


# ---------------------------------------------------------------------------------------------- the model


class Left(NamedTuple):
    """The properties of a batch that a cleaning could change, with the values that the cleaning must leave."""

    base_offset: int
    last_offset: int
    records: tuple[Rec, ...]
    horizon_ms: int | None
    max_timestamp_ms: int


def left_of(batch: Batch) -> Left:
    header = batch.header
    return Left(header.base_offset, header.last_offset, batch.records, batch.horizon_ms, header.max_timestamp_ms)


def model_clean(
    batches: list[Batch], clean_offset: int, now_ms: int, retention_ms: int, table: ProducerTable
) -> list[Left]:
    """What one cleaning up to ``clean_offset`` must leave, as the documentation describes it: from decoded batches,
    without maps, passes, groups or files."""
    aborted = transactions_of(batches).aborted
    latest: dict[bytes, int] = {}
    for batch in batches:
        header = batch.header
        if header.last_offset < clean_offset and not header.is_control and header.base_offset not in aborted:
            latest.update({record.key: record.offset for record in batch.records if record.key is not None})
    has_data: set[int] = set()
    left = []
    for batch in batches:
        header = batch.header
        kept = batch.records
        horizon_ms = batch.horizon_ms
        of_nothing = False
        if header.is_control:
            of_nothing = header.producer_id not in has_data
            has_data.discard(header.producer_id)
        elif header.is_transactional:
            has_data.add(header.producer_id)
        if header.last_offset >= clean_offset:
            left.append(left_of(batch))
            continue
        passed = horizon_ms is not None and horizon_ms <= now_ms
        if header.is_control:
            if of_nothing and (passed or not kept):
                kept = ()
            needs_horizon = of_nothing
        elif header.base_offset in aborted:
            kept, needs_horizon = (), False
        else:
            kept = tuple(
                record
                for record in kept
                if record.key is not None
                and latest[record.key] == record.offset
                and not (record.value is None and passed)
            )
            needs_horizon = any(record.value is None for record in kept)
        if not kept:
            entry = table.get(header.producer_id) if header.producer_id >= 0 else None
            if entry is not None and (
                header.last_offset == entry.last_batch.last_offset
                if entry.last_batch is not None
                else header.is_control and header.producer_epoch == entry.epoch
            ):
                left.append(Left(header.base_offset, header.last_offset, (), None, header.max_timestamp_ms))
            continue
        if needs_horizon and horizon_ms is None:
            horizon_ms = now_ms + retention_ms
        is_changed = len(kept) < len(batch.records) or horizon_ms != batch.horizon_ms
        max_timestamp_ms = header.max_timestamp_ms
        if is_changed and header.timestamp_type is TimestampType.CREATE_TIME:
            max_timestamp_ms = max(record.timestamp_ms for record in kept)
        left.append(Left(header.base_offset, header.last_offset, kept, horizon_ms, max_timestamp_ms))
    return left


# ---------------------------------------------------------------------------------------------- the world


@dataclass
class Counts:
    """Counts of the events in one run."""

    cleanings: int = 0
    crashes: int = 0
    records: int = 0
    dropped: int = 0
    partial: int = 0


@dataclass
class CompactionWorld:
    """One random history."""

    seed: int
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.clock = ManualClock(1_700_000_000_000)
        self.fs = CrashingFileSystem(keep_trace=False)
        self.fs.mkdir(ROOT)
        self.fs.mkdir(DIRECTORY)
        self.fs.sync_directory("/")
        self.fs.sync_directory(ROOT)
        by_log = rng.random() < 0.2
        self.config = LogConfig(
            segment_bytes=rng.choice([400, 900, 2000]),
            index_interval_bytes=rng.choice([0, 100, 400]),
            segment_index_bytes=rng.choice([240, 2400]),
            cleanup_compact=True,
            cleanup_delete=False,
            timestamp_type=TimestampType.LOG_APPEND_TIME if by_log else TimestampType.CREATE_TIME,
            flush=FlushPolicy.COMMIT,
            min_dirty_ratio=0.0,
            delete_retention_ms=rng.choice([0, 500, 5_000]),
        )
        self.cleaner_config = CleanerConfig(
            dedupe_buffer_bytes=rng.choice([24 * 24, 1 << 12]), io_buffer_bytes=rng.choice([64, 300, 4096])
        )
        self.keys = [b"key-%d" % number for number in range(rng.choice([3, 8, 14, 40]))]
        self.log = self.open_log(self.fs)
        self.manager = CleanerManager(self.fs, ROOT)
        self.table = ProducerTable()
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.history: dict[int, Rec] = {}
        self.next_producer = 1
        #: Whether a crash has left this log. After a crash, producer snapshots may be torn, because they are not forced
        #: when a segment is rolled.
        self.has_crashed = False
        #: Whether the log was truncated below cleaned records, so that some state is in producer snapshots only.
        self.is_in_snapshots_only = False
        #: Ids of producers that have expired at some time.
        self.forgotten: set[int] = set()

    def open_log(self, fs: CrashingFileSystem, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            fs,
            DIRECTORY,
            PARTITION,
            self.config,
            clock=self.clock,
            rng=random.Random(1),
            recovery_point=recovery_point,
        )

    # ---------------------------------------------------------------- writing

    def write(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(self.rng.randrange(1, 60))
            choice = self.rng.random()
            if choice < 0.45:
                self.append_data(-1, transactional=False)
            elif choice < 0.6:
                self.append_data(self.producer(1, 4), transactional=False)
            elif choice < 0.85:
                self.append_data(self.producer(11, 14), transactional=True)
            elif choice < 0.97:
                self.end_transaction(self.producer(11, 14))
            else:
                self.log.roll()
        self.log.flush()

    def producer(self, low: int, high: int) -> int:
        return self.rng.randrange(low, high)

    def append_data(self, producer_id: int, *, transactional: bool) -> None:
        rng = self.rng
        records = [
            (
                self.clock.now_ms() - rng.randrange(LATE_MS),
                None if rng.random() < 0.03 else rng.choice(self.keys),
                None if rng.random() < 0.15 else rng.randbytes(rng.randrange(40)),
                [("h", b"x")] if rng.random() < 0.1 else None,
            )
            for _ in range(rng.randrange(1, 6))
        ]
        epoch = self.epochs.get(producer_id, 0) if producer_id >= 0 else -1
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        self.append(
            encode_batch(
                records,
                compression=rng.choice(CODECS) if rng.random() < 0.4 else Compression.NONE,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(records)

    def end_transaction(self, producer_id: int) -> None:
        epoch = self.epochs.get(producer_id, 0)
        # A marker makes a forgotten producer known; its next batch must be the epoch's first, as in Kafka. After the
        # marker, the producer uses another epoch.
        was_forgotten = self.sequences.get(producer_id, 0) > 0 and self.table.get(producer_id) is None
        if self.rng.random() < 0.3 or was_forgotten:  # KIP-890: the marker has the next epoch
            epoch += 1
            self.epochs[producer_id] = epoch
            self.sequences[producer_id] = 0
        self.append(
            encode_batch(
                [(self.clock.now_ms(), struct.pack(">hh", 0, self.rng.choice([ABORT, COMMIT])), b"\0" * 6, None)],
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=True,
                control=True,
            )
        )

    def append(self, data: bytes) -> None:
        (info,) = self.log.append_many([Append(data=data, leader_epoch=0, headers=[read_header(data)])])
        assert not isinstance(info, Exception), info
        segment = self.log.active
        place = segment.find(info.base_offset)
        header = place.header
        if header.is_control:
            self.table.marker_appended(header, 0)
        else:
            self.table.appended(header)
        if header.producer_id >= 0:
            entry = self.log.producers.get(header.producer_id)
            assert entry is not None
            assert _known(entry) == known_of(self.table)[header.producer_id], f"seed {self.seed}: what the log knows"
        raw = segment.log.pread(header.size, place.position)
        for record in decode_batch(raw):
            self.history[record.offset] = Rec(
                record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers)
            )
            self.counts.records += 1

    @property
    def stable_offset(self) -> int:
        unstable = self.table.first_unstable_offset
        return self.log.log_end_offset if unstable is None else unstable

    # ---------------------------------------------------------------- cleaning

    def clean(self) -> None:
        """Run one cleaning, compare its result with the model, and simulate a crash at each of its steps."""
        self.clock.advance(self.rng.randrange(1, 2_000))
        if self.rng.random() < 0.1:
            self.forget_idle_producers(EXPIRATION_MS)
        targets = self.manager.plan(
            {PARTITION: self.log},
            stable_offset_of=lambda log: self.stable_offset,
            now_ms=self.clock.now_ms(),
        )
        if not targets:
            return
        (target,) = targets
        before = batches_of(self.log)
        states = [before]
        clones: list[tuple[str, int, CrashingFileSystem]] = []

        def crash(entry: TraceEntry) -> None:
            if entry.operation not in UNCHANGING:
                loss = self.rng.choice(list(Loss))
                clones.append(
                    (f"{entry.operation} {entry.path}, {loss}", len(states), self.fs.crash_clone(self.rng, loss))
                )

        def execute(action: object) -> bool:
            done = bool(action())  # type: ignore[operator]
            states.append(batches_of(self.log))
            return done

        self.fs.on_operation = crash
        cleaner = Cleaner(self.fs, self.cleaner_config, clock=self.clock, secret=self.rng.randbytes(16))
        report = self.manager.clean(
            cleaner, self.log, target, execute=execute, producers=self.log.producers.last_records()
        )
        self.fs.on_operation = None
        assert report is not None
        assert known_of(self.log.producers) == known_of(self.table), f"seed {self.seed}: what the log knows"
        self.check_cleaned(before, report)
        for state in states:
            self.check_view(before, state)
        contents = [b"".join(batch.raw for batch in state) for state in states]
        for what, swapped, clone in clones:
            self.check_crash(clone, what, contents[max(swapped - 2, 0) :])
        self.counts.cleanings += 1
        self.counts.crashes += len(clones)
        self.counts.partial += report.is_partial
        self.counts.dropped += report.records_read - report.records_kept
        if clones and self.rng.random() < 0.4:  # continue with the state after one of the crashes
            self.fs = self.rng.choice(clones)[2]
            self.log = self.open_log(self.fs)
            self.manager = CleanerManager(self.fs, ROOT)
            self.has_crashed = True
            # A snapshot may have a producer that has expired, with the state before its last batch.
            self.forget_idle_producers(EXPIRATION_MS - LATE_MS)

    def clean_without_crashes(self) -> None:
        """Run one cleaning without crashes, which is a hundred times as fast."""
        self.clock.advance(self.rng.randrange(1, 2_000))
        targets = self.manager.plan(
            {PARTITION: self.log}, stable_offset_of=lambda log: self.stable_offset, now_ms=self.clock.now_ms()
        )
        if targets:
            cleaner = Cleaner(self.fs, self.cleaner_config, clock=self.clock, secret=self.rng.randbytes(16))
            report = self.manager.clean(
                cleaner,
                self.log,
                targets[0],
                execute=lambda action: bool(action()),
                producers=self.log.producers.last_records(),
            )
            assert report is not None

    def forget_idle_producers(self, expiration_ms: int) -> None:
        """Let idle producers expire, as the broker does at intervals."""
        for table in (self.table, self.log.producers):
            self.forgotten.update(table.expire(self.clock.now_ms(), expiration_ms))

    def check_cleaned(self, before: list[Batch], report: CleaningReport) -> None:
        """Check that the log has the batches that the model expects, except for the header that a segment keeps of its
        last batch."""
        after = batches_of(self.log)
        expected = model_clean(
            before, report.clean_offset, self.clock.now_ms(), self.config.delete_retention_ms, self.table
        )
        last_in_segment = {batch.segment: batch.header.base_offset for batch in after}
        may_be_kept = {
            batch.header.base_offset
            for batch in after
            if not batch.records and last_in_segment[batch.segment] == batch.header.base_offset
        }
        found = [left_of(batch) for batch in after]
        assert [left for left in found if left.base_offset not in may_be_kept] == [
            left for left in expected if left.base_offset not in may_be_kept
        ], f"seed {self.seed}: not what the model leaves"
        untouched = [batch.raw for batch in before if batch.header.last_offset >= report.clean_offset]
        assert [batch.raw for batch in after if batch.header.last_offset >= report.clean_offset] == untouched
        problems = [line for line in dump(DIRECTORY, fs=self.fs, deep=True) if isinstance(line, Problem)]
        assert [line for line in problems if not (self.has_crashed and self._is_torn_snapshot(line))] == []

    def _is_torn_snapshot(self, problem: Problem) -> bool:
        """Ignore an unreadable producer snapshot that is older than the newest readable snapshot: it is never read, and
        is deleted together with its segment."""
        return isinstance(problem, Note) and problem.path.endswith(SNAPSHOT_SUFFIX)

    def check_view(self, before: list[Batch], after: list[Batch]) -> None:
        """Check the conditions that must hold at every moment of a cleaning, even if the cleaning is incomplete."""
        offsets = [record.offset for batch in after for record in batch.records]
        assert offsets == sorted(set(offsets)), f"seed {self.seed}: offsets out of order"
        for batch in after:
            for record in batch.records:
                assert record == self.history[record.offset], f"seed {self.seed}: a record changed"
        old, new = committed(before), committed(after)
        assert latest_values(new) == latest_values(old), f"seed {self.seed}: read_committed sees other values"
        assert set(new) <= set(old), f"seed {self.seed}: read_committed sees a record that it did not see before"
        assert transactions_of(after).open_from == transactions_of(before).open_from, f"seed {self.seed}"
        active = [entry.producer_id for entry in self.table]
        rebuilt, known = last_of(producers_of(after), active), last_of(self.table, active)
        # The log may still have an older batch of a producer that expired and returned. From the batch of a returned
        # producer, recovery finds more state than the table has. After an unclean election the table may know a batch
        # that only a snapshot has (``check_crash`` loads it); the cleaning then keeps no older batch of the producer.
        earlier = last_of(producers_of(before), active)
        assert all(
            rebuilt[producer_id] in (known[producer_id], earlier[producer_id])
            or (self.is_in_snapshots_only and earlier[producer_id] != known[producer_id])
            for producer_id in active
        ), f"seed {self.seed}: producer state lost, {rebuilt} of {known}"

    def check_crash(self, clone: CrashingFileSystem, what: str, allowed: list[bytes]) -> None:
        """Check that recovery finds the log as it was before or after one of the swaps, and leaves no stray files."""
        end = self.log.log_end_offset
        recovery_point = self.rng.choice([0, end])
        log = self.open_log(clone, recovery_point)
        found = b"".join(segment.log.pread(segment.size, 0) for segment in log.segments)
        assert found in allowed, f"seed {self.seed}: a crash at {what} left neither the old nor the new segments"
        assert log.log_end_offset == end
        self.check_recovered_producers(log, what)
        odd = [name for name in clone.listdir(DIRECTORY) if name.endswith((".cleaned", ".swap", ".tmp"))]
        assert odd == [], f"seed {self.seed}: a crash at {what} left {odd}"

    def check_recovered_producers(self, log: PartitionLog, what: str) -> None:
        """Check that recovery knows the same producers as before the crash; additional producers must be idle
        producers, which expire again."""
        found, known = known_of(log.producers), known_of(self.table)
        assert {producer_id: found.get(producer_id) for producer_id in known} == known, (
            f"seed {self.seed}: a crash at {what} changed what is known of producers"
        )
        idle = log.producers.expired(self.clock.now_ms(), EXPIRATION_MS - LATE_MS)
        assert set(found) - set(known) <= set(idle), (
            f"seed {self.seed}: a crash at {what}: unknown producers {set(found)}"
        )


def run_history(seed: int, counts: Counts) -> None:
    """Run a history of alternating writes and cleanings."""
    world = CompactionWorld(seed, counts)
    for _ in range(world.rng.randrange(2, 5)):
        world.write(world.rng.randrange(10, 60))
        world.clean()
