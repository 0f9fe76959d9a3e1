"""Logs in memory: batches with recognizable values, idempotent and transactional batches, and the producer table, the
last stable offset and the transaction indexes, computed independently of the log."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.producer_state import BATCHES_KEPT, ProducerTable
from headrace_core.log.txn_index import AbortedTransaction, pack_entries
from headrace_core.records import decode_batch, encode_batch, read_header, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition

ROOT = "/data"
TOPIC_ID = uuid.UUID(int=0x1234)
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
#: A few batches for each segment.
TINY = LogConfig(segment_bytes=900, index_interval_bytes=120, segment_index_bytes=240)
NOW_MS = 1_700_000_000_000


def batch(*values: str, timestamp_ms: int = NOW_MS, pad: int = 0) -> bytes:
    """Make one uncompressed batch; record i has the timestamp ``timestamp_ms + i``."""
    return encode_batch([(timestamp_ms + i, None, value.encode() + b"." * pad, []) for i, value in enumerate(values)])


def formatted() -> CrashingFileSystem:
    """A file system with one formatted log directory, whose files are durable."""
    fs = CrashingFileSystem()
    format_directory(fs, ROOT, cluster_id="test", node_id=1)
    return fs


def open_directory(
    fs: CrashingFileSystem,
    config: LogConfig | None = None,
    clock: ManualClock | None = None,
    broker_epoch: int | None = None,
) -> LogDirectory:
    """Let every use of a log's descriptor close a descriptor of another log, if possible. The closed descriptors must
    have no visible effect."""
    chosen = config or LogConfig()
    return LogDirectory.open(
        DescriptorCache(fs, 1),
        ROOT,
        clock=clock or ManualClock(NOW_MS),
        config_of=lambda topic, topic_id: chosen,
        rng=random.Random(1),
        broker_epoch=broker_epoch,
    )


def begun(config: LogConfig | None = None) -> tuple[CrashingFileSystem, LogDirectory, PartitionLog]:
    """A formatted directory with one empty log."""
    config = config or LogConfig()
    fs = formatted()
    directory = open_directory(fs, config)
    return fs, directory, directory.create(ORDERS, TOPIC_ID, config)


def values_of(log: PartitionLog, max_bytes: int = 1 << 20) -> list[str]:
    """Read all values of the log; check that offsets have no gap and that batches are sound."""
    values: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes)
        assert result is not None
        assert result.records, f"an empty read at {offset} of {log.log_start_offset}..{log.log_end_offset}"
        for span in split_batches(result.records):
            for record in decode_batch(result.records, span.position, start_offset=offset):
                assert record.offset == offset
                values.append((record.value or b"").decode().rstrip("."))
                offset += 1
        assert offset == result.next_offset
    return values


def log_files(fs: CrashingFileSystem) -> dict[str, bytes]:
    """The files that a second recovery must not change: all files except the lock."""
    return {path: data for path, data in fs.files().items() if not path.endswith("/.lock")}


class Sent(NamedTuple):
    """A batch that was appended to the log."""

    base_offset: int
    count: int
    producer_id: int
    epoch: int
    sequence: int
    timestamp_ms: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


def idempotent(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    timestamp_ms: int = NOW_MS,
    offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Make a batch of a producer; ``producer_id`` -1 makes a batch without idempotence."""
    plain = producer_id < 0
    return encode_batch(
        [(timestamp_ms, None, f"{producer_id}:{sequence + i}".encode(), []) for i in range(count)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=-1 if plain else epoch,
        base_sequence=-1 if plain else sequence,
    )  # fmt: skip


def append(log: PartitionLog, *batches: bytes, leader_epoch: int = 0) -> AppendInfo | HeadraceError:
    """Append one request with the given batches."""
    (outcome,) = log.append_many([Append(data=b"".join(batches), leader_epoch=leader_epoch)])
    return outcome


#: producer id -> (epoch, time, [(last sequence, last offset)] of the last batches, oldest first).
Expected = dict[int, tuple[int, int, list[tuple[int, int]]]]


def expected_of(sent: list[Sent], end: int) -> Expected:
    """The expected producer state of a log that ends at ``end``."""
    found: Expected = {}
    for batch in sent:
        if batch.next_offset > end or batch.producer_id < 0:
            continue
        epoch, _, batches = found.get(batch.producer_id, (batch.epoch, 0, []))
        if epoch != batch.epoch:
            batches = []
        last = (batch.sequence + batch.count - 1) % 2**31, batch.next_offset - 1
        found[batch.producer_id] = batch.epoch, batch.timestamp_ms, [*batches, last][-BATCHES_KEPT:]
    return found


def check_table(table: ProducerTable, expected: Expected, *, whole_window: bool = False) -> None:
    """Check that ``table`` has the expected state; each producer's window may lack older batches."""
    assert {entry.producer_id for entry in table} == set(expected)
    for entry in table:
        epoch, timestamp_ms, batches = expected[entry.producer_id]
        assert (entry.epoch, entry.last_timestamp_ms) == (epoch, timestamp_ms)
        found = [(batch.last_sequence, batch.last_offset) for batch in entry.batches]
        assert found, "the last batch is always known"
        assert found == batches[-len(found) :]
        assert len(found) == len(batches) or (entry.is_cut_short and not whole_window)


class Producers:
    """Producers that write to a log, and the list of their appended batches."""

    def __init__(self, rng: random.Random, ids: int = 4) -> None:
        self.rng = rng
        self.ids = ids
        self.sent: list[Sent] = []
        self.clock_ms = NOW_MS

    def cut(self, end: int) -> None:
        """Remove the batches after ``end``, where the log was truncated."""
        self.sent = [batch for batch in self.sent if batch.next_offset <= end]

    def next_sequence(self, producer_id: int) -> tuple[int, int]:
        """The (epoch, sequence) of a producer's next batch."""
        for batch in reversed(self.sent):
            if batch.producer_id == producer_id:
                return batch.epoch, (batch.sequence + batch.count) % 2**31
        return 0, self.rng.choice([0, 0, 2**31 - 2])

    def write(self, log: PartitionLog, requests: int = 1, leader_epoch: int = 0) -> None:
        """Append several requests in one pass of the log's writer, each with one to three batches."""
        appends, coming = [], []
        end = log.log_end_offset
        for _ in range(requests):
            data = b""
            for _ in range(self.rng.randint(1, 3)):
                producer_id = self.rng.choice([-1, *range(self.ids)])
                epoch, sequence = self.next_sequence(producer_id)
                if producer_id >= 0 and self.rng.random() < 0.1:
                    epoch, sequence = epoch + 1, 0
                self.clock_ms += 1
                batch = Sent(end, self.rng.randint(1, 3), producer_id, epoch, sequence, self.clock_ms)
                data += idempotent(producer_id, sequence, batch.count, epoch=epoch, timestamp_ms=self.clock_ms)
                end = batch.next_offset
                self.sent.append(batch)
                coming.append(batch)
            appends.append(Append(data=data, leader_epoch=leader_epoch))
        outcomes = log.append_many(appends)
        assert all(isinstance(outcome, AppendInfo) and not outcome.is_duplicate for outcome in outcomes), outcomes
        assert log.log_end_offset == end

    def check(self, log: PartitionLog, *, whole_window: bool = False) -> None:
        """Check that the log's producer table matches the appended batches."""
        check_table(log.producers, expected_of(self.sent, log.log_end_offset), whole_window=whole_window)
        assert log.producers.next_offset == log.log_end_offset

    def check_window(self, log: PartitionLog) -> None:
        """Send the last batches of every producer again: each must be answered with its first offset, and none may be
        appended."""
        end = log.log_end_offset
        for producer_id in range(self.ids):
            its = [batch for batch in self.sent if batch.producer_id == producer_id]
            for batch in [batch for batch in its if batch.epoch == its[-1].epoch][-BATCHES_KEPT:]:
                outcome = append(log, idempotent(producer_id, batch.sequence, batch.count, epoch=batch.epoch))
                assert isinstance(outcome, AppendInfo), (batch, outcome)
                assert (outcome.is_duplicate, outcome.base_offset) == (True, batch.base_offset)
                assert outcome.next_offset == batch.next_offset
        assert log.log_end_offset == end
        self.check(log)


def log_of(directory: LogDirectory) -> PartitionLog:
    """The only element of a list."""
    (log,) = directory.logs.values()
    return log


ABORT, COMMIT = 0, 1


class Written(NamedTuple):
    """A batch in the log. ``kind`` is None for a data batch."""

    base_offset: int
    next_offset: int
    producer_id: int
    is_transactional: bool
    kind: int | None


class Spanned(NamedTuple):
    """A transaction. ``marker`` is None while the transaction is open."""

    producer_id: int
    first_offset: int
    marker: int | None
    is_aborted: bool


def transactional(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    offset: int = 0,
    leader_epoch: int = -1,
    key: bytes | None = None,
) -> bytes:
    """A batch of an open transaction."""
    return encode_batch(
        [(NOW_MS, key, f"{producer_id}:{sequence + number}".encode(), []) for number in range(count)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def marker(
    producer_id: int, kind: int, *, epoch: int = 0, offset: int = 0, leader_epoch: int = -1, coordinator_epoch: int = 1
) -> bytes:
    """A COMMIT or an ABORT marker."""
    return encode_batch(
        [(NOW_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch), [])],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


def append_to(log: PartitionLog, *batches: bytes, leader_epoch: int = 0) -> AppendInfo:
    """Append these batches as their leader; the headers are passed as well, because appends of markers require them."""
    headers = [read_header(batch) for batch in batches]
    (outcome,) = log.append_many([Append(data=b"".join(batches), leader_epoch=leader_epoch, headers=headers)])
    assert isinstance(outcome, AppendInfo), outcome
    return outcome


def spans_of(written: Sequence[Written], end: int) -> list[Spanned]:
    """The transactions of a log that ends at ``end``; ended transactions are in the order of their markers."""
    found: list[Spanned] = []
    begun: dict[int, int] = {}
    for batch in written:
        if batch.next_offset > end or not batch.is_transactional:
            continue
        if batch.kind is None:
            begun.setdefault(batch.producer_id, batch.base_offset)
        elif (first := begun.pop(batch.producer_id, None)) is not None:
            found.append(Spanned(batch.producer_id, first, batch.base_offset, batch.kind == ABORT))
    return [*found, *(Spanned(producer_id, first, None, False) for producer_id, first in begun.items())]


def stable_offset_of(written: Sequence[Written], end: int, high_watermark: int) -> int:
    """The last stable offset for a high watermark of a log that ends at ``end``."""
    undecided = [
        span.first_offset
        for span in spans_of(written, end)
        if span.first_offset < high_watermark and (span.marker is None or span.marker >= high_watermark)
    ]
    return min([high_watermark, *undecided])


def aborted_of(written: Sequence[Written], end: int) -> list[AbortedTransaction]:
    """All entries of the transaction indexes of a log that ends at ``end``."""
    spans = spans_of(written, end)
    found = []
    for span in spans:
        if span.is_aborted:
            assert span.marker is not None
            others = [
                other.first_offset
                for other in spans
                if other.first_offset < span.marker and (other.marker is None or other.marker > span.marker)
            ]
            stable_offset = min([span.marker + 1, *others])
            found.append(AbortedTransaction(span.producer_id, span.first_offset, span.marker, stable_offset))
    return found


def index_files(written: Sequence[Written], end: int, bases: Sequence[int]) -> dict[int, bytes]:
    """{base offset: bytes} of the .txnindex files of segments with these base offsets."""
    found: dict[int, list[AbortedTransaction]] = {}
    for entry in aborted_of(written, end):
        found.setdefault(max(base for base in bases if base <= entry.last_offset), []).append(entry)
    return {base: pack_entries(entries) for base, entries in found.items()}


class Transactions:
    """Transactional, idempotent and plain producers that write to a log."""

    def __init__(self, rng: random.Random, ids: int = 4, *, keys: int = 0) -> None:
        """``keys`` is the number of different keys of the records; with 0 the records have no key."""
        self.rng = rng
        self.written: list[Written] = []
        self._ids = ids
        self._keys = keys
        self._sequences: dict[int, int] = {}

    def cut(self, end: int) -> None:
        """Forget the batches from this offset on, where the log was truncated."""
        self.written = [batch for batch in self.written if batch.next_offset <= end]
        self._sequences = {}
        for batch in self.written:
            if batch.producer_id >= 0 and batch.kind is None:
                self._sequences[batch.producer_id] = (
                    self._sequences.get(batch.producer_id, 0) + batch.next_offset - batch.base_offset
                )

    def batches(self, offset: int, count: int) -> list[tuple[bytes, Written]]:
        """``count`` random batches for a log that ends at ``offset``."""
        found = []
        begun = {span.producer_id for span in spans_of(self.written, offset) if span.marker is None}
        for _ in range(count):
            producer_id = self.rng.randrange(-1, self._ids)
            size = 1
            if producer_id in begun and self.rng.random() < 0.5:
                kind: int | None = self.rng.choice([ABORT, ABORT, COMMIT])
                assert kind is not None
                data = marker(producer_id, kind, offset=offset)
                begun.discard(producer_id)
            else:
                kind, size = None, self.rng.randint(1, 3)
                sequence = self._sequences.get(producer_id, 0)
                key = f"k{self.rng.randrange(self._keys)}".encode() if self._keys else None
                if producer_id < 0:
                    values = [(NOW_MS, key, b"plain", []) for _ in range(size)]
                    data = encode_batch(values, base_offset=offset)
                else:
                    data = transactional(producer_id, sequence, size, offset=offset, key=key)
                    self._sequences[producer_id] = sequence + size
                    begun.add(producer_id)
            found.append((data, Written(offset, offset + size, producer_id, producer_id >= 0, kind)))
            offset += size
        return found

    def write(self, log: PartitionLog, requests: int = 1) -> None:
        """Requests in one turn of the log's owner, with one to three batches each."""
        appends = []
        end = log.log_end_offset
        for _ in range(requests):
            made = self.batches(end, self.rng.randint(1, 3))
            self.written += [written for _, written in made]
            end = made[-1][1].next_offset
            headers = [read_header(data) for data, _ in made]
            appends.append(Append(data=b"".join(data for data, _ in made), leader_epoch=0, headers=headers))
        outcomes = log.append_many(appends)
        assert all(isinstance(outcome, AppendInfo) and not outcome.is_duplicate for outcome in outcomes), outcomes
        assert log.log_end_offset == end

    def check_stable_offsets(self, log: PartitionLog, since: int = 0) -> None:
        """Check that the last stable offset is right for every high watermark from ``since`` on."""
        end = log.log_end_offset
        for high_watermark in range(max(since, log.log_start_offset), end + 1):
            expected = max(stable_offset_of(self.written, end, high_watermark), log.log_start_offset)
            assert log.last_stable_offset(high_watermark) == expected, high_watermark

    def check_aborted(self, log: PartitionLog, ranges: int = 20) -> None:
        """Check that every range below the last stable offset names exactly the aborted transactions that readers must
        skip."""
        end = log.last_stable_offset(log.log_end_offset)
        entries = aborted_of(self.written, log.log_end_offset)
        for _ in range(ranges):
            start = self.rng.randint(log.log_start_offset, end)
            up_to = self.rng.randint(start, end)
            expected = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < up_to]
            expected.sort(key=lambda entry: entry.first_offset)
            assert log.aborted_transactions(start, up_to) == expected, (start, up_to)

    def check(self, log: PartitionLog, since: int = 0) -> None:
        self.check_stable_offsets(log, since)
        self.check_aborted(log)


def committed_values(records: bytes, fetch_offset: int, aborted: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
    """The (offset, value) pairs that a read_committed consumer returns for an answer with these aborted transactions
    (producer id, first offset); the algorithm of Kafka's CompletedFetch."""
    coming = sorted(aborted, key=lambda each: each[1])
    aborting: set[int] = set()
    found: list[tuple[int, bytes]] = []
    for span in split_batches(records):
        header = read_header(records, span.position)
        while coming and coming[0][1] <= header.last_offset:
            aborting.add(coming.pop(0)[0])
        if header.is_control:
            (record,) = decode_batch(records, span.position)
            if int.from_bytes((record.key or b"")[2:4], "big") == ABORT:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += [
                (record.offset, record.value or b"")
                for record in decode_batch(records, span.position, start_offset=fetch_offset)
            ]
    return found


def committed_offsets(written: Sequence[Written], end: int) -> list[int]:
    """The offsets of the records that read_committed consumers get from a log that ends at ``end`` and is wholly below
    the high watermark."""
    stable_offset = stable_offset_of(written, end, end)
    spans = [span for span in spans_of(written, end) if span.is_aborted and span.marker is not None]
    found = []
    for batch in written:
        if batch.kind is not None or batch.next_offset > stable_offset:
            continue
        if not any(
            span.producer_id == batch.producer_id and span.first_offset <= batch.base_offset < (span.marker or 0)
            for span in spans
        ):
            found += range(batch.base_offset, batch.next_offset)
    return found
