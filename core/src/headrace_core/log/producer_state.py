"""State of a partition's producers: epoch, last sequences, open transaction; Kafka's .snapshot file.

This module reads and writes no files. The partition's owner calls ``check`` before it appends a batch with a producer
id, then ``appended`` or ``marker_appended``. When a log is opened, ``appended`` and ``marker_appended`` get the batches
after the last snapshot, so a rebuilt table equals the lost table (KIP-98; Kafka's ProducerStateManager).

A producer expires (KIP-854) by the local time of its last append on the replica, on a monotonic clock. Kafka decides
about expiry by comparing the record's timestamp with the wall clock. Because record timestamps may be old, Kafka can
forget a producer while the producer still writes, and then append a retried batch twice. The snapshot file, whose bytes
are Kafka's, does not hold the local time. After a load of the producer table, each producer's time starts at the load.

``<offset>.snapshot`` holds the state of all producers below that offset, in Kafka's bytes (version 1), big-endian:

    int16   version, 1
    uint32  CRC-32C of all that follows
    int32   number of entries, then for each:
        int64 producer id       int16 producer epoch        int32 last sequence (-1: none)
        int64 last offset (-1)  int32 offset delta (of the last batch: last sequence - first sequence)
        int64 timestamp, ms     int32 coordinator epoch     int64 first offset of its open transaction (-1: none)

A snapshot holds each producer's last batch only. When a producer's next batch is out of order, the producer's earlier
batches are looked up once in the log, by headers (``complete_window``). After a restart of the broker, a producer may
still resend its last five batches.

A batch enters the table before it is written, so that the next batch in the same group commit can follow it. If the
write fails, the table returns to its state before the batch.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from ..errors import CorruptLogError
from ..records import BatchHeader, Buffer
from ..records.types import TRANSACTIONAL_BIT
from .txn_index import AbortedTransaction

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1
#: Number of last batches that the log keeps for each producer, to recognise a repeated batch (Kafka's number: at most 5
#: requests in flight).
BATCHES_KEPT = 5
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER_EPOCH = -1
_OPEN = 2**63 - 1

_BLOCK_BYTES = 4096
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


def sequence_after(sequence: int, count: int = 1) -> int:
    """Return the sequence number ``count`` steps after ``sequence``; sequences wrap after 2^31 - 1."""
    return (sequence + count) & SEQUENCE_MAX


class LastRecord(NamedTuple):
    """An active producer's epoch, and the offset of its last data record (None: the log has only its marker)."""

    last_data_offset: int | None
    producer_epoch: int


class ProducerBatch(NamedTuple):
    """An appended batch: its last sequence, last offset, last sequence - first sequence, max timestamp."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Check(enum.Enum):
    """Result of the check of a producer's batch."""

    NEXT = "next"  #: Append it.
    #: The log already has this batch: respond with the offset of that batch, and append no records.
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out of order"  #: The batch's sequence shows that the log lacks the producer's preceding batch.
    FENCED = "fenced"  #: The log knows a producer with the same id and a newer epoch.
    #: The batch is not transactional, but the producer's transaction is open.
    NOT_IN_TRANSACTION = "not in the transaction"


class Checked(NamedTuple):
    """Result of the check of a producer's batch, with details. ``batch``: for a duplicate, the batch that the log has.
    ``why``: a sentence for an error, or empty."""

    check: Check
    batch: ProducerBatch | None = None
    why: str = ""


_NEXT = Checked(Check.NEXT)


@dataclass(slots=True)
class ProducerEntry:
    """State of one producer. ``batches``: the producer's last batches with its current epoch, oldest first. The tuple
    ``batches`` is replaced as a whole, so other threads may read it."""

    producer_id: int
    epoch: int
    batches: tuple[ProducerBatch, ...] = ()
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1  #: Timestamp of the producer's last batch or marker.
    #: Offset of the first record in the producer's open transaction; None when no transaction is open.
    transaction_first_offset: int | None = None
    #: The bytes of this producer's entry in the last snapshot; None if the entry has changed since that snapshot. The
    #: bytes make a roll cheaper: a roll writes the whole table (up to a million producers), of which few entries have
    #: changed.
    packed: bytes | None = field(default=None, compare=False, repr=False)
    #: Whether the log has recent batches of the producer that are not in ``batches``: a snapshot holds only the last
    #: batch.
    is_cut_short: bool = field(default=False, compare=False)
    #: Time when this replica appended the producer's last batch or marker, or loaded the table; see
    #: ``ProducerTable.local_ms``.
    appended_ms: float = field(default=0.0, compare=False, repr=False)

    @property
    def last_batch(self) -> ProducerBatch | None:
        return self.batches[-1] if self.batches else None

    def pack(self) -> bytes:
        packed = self.packed
        if packed is None:
            last = self.last_batch or ProducerBatch(-1, -1, 0, self.last_timestamp_ms)
            first_offset = self.transaction_first_offset
            begun = -1 if first_offset is None else first_offset
            packed = self.packed = _pack(
                self.producer_id, self.epoch, last, self.last_timestamp_ms, self.coordinator_epoch, begun
            )
        return packed


class Remembered(NamedTuple):
    """A producer's entry before an append that may fail; ``epoch`` is None if the producer had no entry."""

    producer_id: int
    epoch: int | None = None
    batches: tuple[ProducerBatch, ...] = ()
    last_timestamp_ms: int = -1
    transaction_first_offset: int | None = None
    is_cut_short: bool = False
    coordinator_epoch: int = -1


class Undecided(NamedTuple):
    """An open transaction, or an ended transaction whose marker may not be committed yet."""

    first_offset: int
    producer_id: int
    last_offset: int = _OPEN  #: Offset of the transaction's marker; _OPEN if the log has no marker.


class ProducerTable:
    """The state of all producers of one partition. Only the thread that writes to the log directory changes the
    table."""

    def __init__(self, entries: Iterable[ProducerEntry] = (), *, next_offset: int = 0) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        #: End offset of the producer table: the table has the state after all records before this offset.
        self.next_offset = next_offset
        #: Present time of a monotonic clock in milliseconds, which the next updates of the producer table store.
        self.local_ms = 0.0
        #: Aborted transactions that the owner has not yet added to the transaction index.
        self.aborted: list[AbortedTransaction] = []
        #: End of the committed records, as far as the log's owner knows: the producer table forgets transactions that
        #: ended before that offset.
        self.committed_end = 0
        #: Offset after the latest end marker among all transactions that the producer table has forgotten.
        self._forgotten_end = 0
        #: A pair of lists: the open transactions by first offset, and the ended transactions by the offset of their
        #: marker. A transaction leaves the second list after its marker was committed. Other threads read the pair
        #: before they read the list of ended transactions. The log's owner appends an ended transaction to the second
        #: list before it replaces the pair. Because of the order of reads and writes, each thread finds every
        #: transaction in at least one of the two lists.
        self._undecided: tuple[tuple[Undecided, ...], list[Undecided]] = (self._open_transactions(), [])

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> Checked:
        """Decide whether a data batch with a producer id may be appended. Changes no state.

        An unknown producer may begin with any sequence, because its state may have been deleted with its records. A
        known producer with a new epoch must begin with sequence 0.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return _NEXT
        if header.producer_epoch < entry.epoch:
            return Checked(
                Check.FENCED,
                why=(
                    f"producer {header.producer_id} with epoch {header.producer_epoch} is fenced: the partition has "
                    f"epoch {entry.epoch}"
                ),
            )
        if entry.transaction_first_offset is not None and not header.attributes & TRANSACTIONAL_BIT:
            return Checked(
                Check.NOT_IN_TRANSACTION,
                why=(
                    f"producer {header.producer_id} sent a batch that is not transactional, but its transaction is "
                    f"open since offset {entry.transaction_first_offset}"
                ),
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence == 0 or entry.epoch == NO_PRODUCER_EPOCH:
                return _NEXT
            return Checked(
                Check.OUT_OF_ORDER,
                why=(
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence "
                    f"{header.base_sequence}, but must be 0"
                ),
            )
        batches = entry.batches
        expected = (batches[-1].last_sequence + 1) & SEQUENCE_MAX if batches else 0
        if header.base_sequence == expected:
            return _NEXT
        last_sequence = sequence_after(header.base_sequence, header.last_offset_delta)
        for batch in batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):
                return Checked(Check.DUPLICATE, batch)
        return Checked(
            Check.OUT_OF_ORDER,
            why=(
                f"producer {header.producer_id}, epoch {header.producer_epoch}: received sequence "
                f"{header.base_sequence}, expected {expected}"
            ),
        )

    def appended(
        self, header: BatchHeader, *, base_offset: int | None = None, max_timestamp_ms: int | None = None
    ) -> None:
        """Record an appended data batch with the offset and time of ``header``; further arguments, where given, replace
        the two values."""
        if base_offset is None:
            base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        if last_offset >= self.next_offset:
            self.next_offset = last_offset + 1
        if header.producer_id < 0:
            return
        timestamp_ms = header.max_timestamp_ms if max_timestamp_ms is None else max_timestamp_ms
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._begin_epoch(header)
        entry.last_timestamp_ms, entry.appended_ms, entry.packed = timestamp_ms, self.local_ms, None
        delta = header.last_offset_delta
        batch = ProducerBatch((header.base_sequence + delta) & SEQUENCE_MAX, last_offset, delta, timestamp_ms)
        entry.batches = (*entry.batches[1 - BATCHES_KEPT :], batch)
        if header.attributes & TRANSACTIONAL_BIT and entry.transaction_first_offset is None:
            entry.transaction_first_offset = base_offset
            open_ones, ended_ones = self._undecided
            self._undecided = ((*open_ones, Undecided(base_offset, header.producer_id)), ended_ones)

    def marker_appended(
        self, header: BatchHeader, coordinator_epoch: int | None, *, is_abort: bool = False
    ) -> int | None:
        """Record an appended COMMIT or ABORT marker; returns the start of the transaction that the marker ends, None
        when that transaction was empty. ``coordinator_epoch`` is None if unknown."""
        self.next_offset = max(self.next_offset, header.next_offset)
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._begin_epoch(header)
        entry.last_timestamp_ms, entry.appended_ms, entry.packed = header.max_timestamp_ms, self.local_ms, None
        if coordinator_epoch is not None:
            entry.coordinator_epoch = coordinator_epoch
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, None
        if first_offset is not None:
            self._transaction_ended(Undecided(first_offset, header.producer_id, header.base_offset), is_abort)
        return first_offset

    def _transaction_ended(self, ended: Undecided, is_abort: bool) -> None:
        open_ones, ended_ones = self._undecided
        still_open = tuple(each for each in open_ones if each.producer_id != ended.producer_id)
        committed = bisect_left(ended_ones, self.committed_end, key=_last_offset)
        if committed:
            self._forgotten_end = max(self._forgotten_end, ended_ones[committed - 1].last_offset + 1)
            ended_ones = ended_ones[committed:]
        ended_ones.append(ended)
        self._undecided = still_open, ended_ones
        if is_abort:
            stable_offset = still_open[0].first_offset if still_open else ended.last_offset + 1
            aborted = AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, stable_offset)
            self.aborted.append(aborted)

    def _begin_epoch(self, header: BatchHeader) -> ProducerEntry:
        """The entry of a producer that is new, or has a new epoch and so new sequences."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        # Clear the batches first: ``snapshot_at``, in another thread, must not pair old batches with the new epoch.
        entry.batches, entry.is_cut_short = (), False
        entry.epoch = header.producer_epoch
        return entry

    def loaded(self, local_ms: float) -> None:
        """Set every producer's time to ``local_ms``, after the table was loaded from a snapshot or the log."""
        self.local_ms = local_ms
        for entry in self._entries.values():
            entry.appended_ms = local_ms

    def remember(self, producer_id: int) -> Remembered:
        """Return a producer's state for ``take_back``. Call ``remember`` before ``appended`` for a batch whose write
        may fail."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return Remembered(producer_id)
        return Remembered(
            producer_id,
            entry.epoch,
            entry.batches,
            entry.last_timestamp_ms,
            entry.transaction_first_offset,
            entry.is_cut_short,
            entry.coordinator_epoch,
        )

    def take_back(self, remembered: Iterable[Remembered], next_offset: int) -> None:
        """Undo failed appends. ``remembered``: the producers' states before the failed appends, latest first;
        ``next_offset``: the log's end."""
        self.next_offset = next_offset
        for old in remembered:
            entry = self._entries.get(old.producer_id)
            if entry is None:
                continue
            if old.epoch is None:
                del self._entries[old.producer_id]
                continue
            entry.epoch, entry.batches, entry.packed = old.epoch, old.batches, None
            entry.last_timestamp_ms, entry.transaction_first_offset = (
                old.last_timestamp_ms,
                old.transaction_first_offset,
            )
            entry.is_cut_short, entry.coordinator_epoch = old.is_cut_short, old.coordinator_epoch
        self._undecided = _undecided_before(*self._undecided, next_offset)
        if self.aborted:
            self.aborted = [each for each in self.aborted if each.last_offset < next_offset]

    @property
    def first_unstable_offset(self) -> int | None:
        """Start of the first open transaction; None: no transaction is open. Any thread."""
        open_ones, _ = self._undecided
        return open_ones[0].first_offset if open_ones else None

    def oldest_open_timestamp_ms(self) -> int | None:
        """Timestamp of the last record of the producer whose open transaction is the oldest; None: no transaction is
        open. Any thread."""
        open_ones, _ = self._undecided
        entry = self._entries.get(open_ones[0].producer_id) if open_ones else None
        return None if entry is None else entry.last_timestamp_ms

    @property
    def undecided_count(self) -> int:
        """Number of open transactions, and of ended transactions whose marker may not be committed yet."""
        return sum(map(len, self._undecided))

    @property
    def has_markers(self) -> bool:
        """Whether one of the producers has ended a transaction."""
        return any(entry.coordinator_epoch >= 0 for entry in self)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Start of the first transaction that is open, or whose marker is at or above the high watermark. If no
        transaction is open or undecided, the result is the high watermark. Any thread.

        Returns 0 for a high watermark below the markers of forgotten transactions. While the high watermark is below a
        forgotten transaction's marker, the last stable offset is unknown, and readers of committed records wait.
        """
        if high_watermark < self._forgotten_end:
            return 0
        open_ones, ended_ones = self._undecided
        stable_offset = min(open_ones[0].first_offset, high_watermark) if open_ones else high_watermark
        if ended_ones and ended_ones[-1].last_offset >= high_watermark:
            for each in ended_ones[bisect_left(ended_ones, high_watermark, key=_last_offset) :]:
                stable_offset = min(stable_offset, each.first_offset)
        return stable_offset

    def correct_transactions(self, first_offsets: Mapping[int, int | None]) -> None:
        """Set where the open transactions of the given producers begin (None: the producer has none), after the table
        was loaded from a snapshot."""
        for producer_id, first_offset in first_offsets.items():
            entry = self._entries[producer_id]
            entry.transaction_first_offset, entry.packed = first_offset, None
        _, ended_ones = self._undecided
        self._undecided = self._open_transactions(), ended_ones

    def _open_transactions(self) -> tuple[Undecided, ...]:
        return tuple(
            sorted(
                Undecided(entry.transaction_first_offset, entry.producer_id)
                for entry in self
                if entry.transaction_first_offset is not None
            )
        )

    def inherit_undecided(self, before: ProducerTable, offset: int) -> None:
        """Copy from ``before``, an earlier table of the log, the transactions that ended below ``offset``. The table of
        a truncated log lacks ended transactions, because a snapshot names only the open transactions."""
        open_ones, ended_ones = self._undecided
        _, ended_before = before._undecided
        ended = {each for each in ended_before if each.last_offset < offset}
        self._undecided = open_ones, sorted({*ended, *ended_ones}, key=_last_offset)
        self.committed_end = min(before.committed_end, offset)
        self._forgotten_end = min(before._forgotten_end, offset)

    def forget_undecided(self, offset: int) -> None:
        """Record that the table may lack transactions that ended below ``offset``."""
        self._forgotten_end = max(self._forgotten_end, offset)

    def last_records(self) -> dict[int, LastRecord]:
        """Return, for each producer, what compaction must keep so that the log can rebuild the producer table. Any
        thread may call ``last_records``."""
        found: dict[int, LastRecord] = {}
        for entry in list(self._entries.values()):
            batches = entry.batches
            found[entry.producer_id] = LastRecord(batches[-1].last_offset if batches else None, entry.epoch)
        return found

    def expired(self, now_ms: float, expiration_ms: int) -> list[int]:
        """Producers without an open transaction that wrote nothing for ``producer.id.expiration.ms``; ``now_ms`` is a
        time on the clock of ``local_ms``. Any thread."""
        latest_ms = now_ms - expiration_ms
        return [
            entry.producer_id
            for entry in list(self._entries.values())
            if entry.appended_ms <= latest_ms and entry.transaction_first_offset is None
        ]

    def expire(self, now_ms: float, expiration_ms: int, candidates: Iterable[int] | None = None) -> list[int]:
        """Remove expired producers; with ``candidates``, only producers among the candidates."""
        gone = []
        for producer_id in self.expired(now_ms, expiration_ms) if candidates is None else candidates:
            entry = self._entries.get(producer_id)
            if entry is None or entry.transaction_first_offset is not None:
                continue
            if entry.appended_ms <= now_ms - expiration_ms:
                del self._entries[producer_id]
                gone.append(producer_id)
        return gone

    def snapshot_at(self, offset: int) -> bytes:
        """Return a snapshot of the state after all records before ``offset``, for a replica whose log begins at
        ``offset``. Any thread may call ``snapshot_at``.

        Each producer's state is that of its last known batch before ``offset``, because the replica receives the later
        batches. A producer is left out if only its batches from ``offset`` on are known.
        """
        found: list[bytes] = []
        for entry in list(self._entries.values()):
            epoch = entry.epoch  # first, see ``_begin_epoch``
            batches, first_offset = entry.batches, entry.transaction_first_offset
            below = tuple(batch for batch in batches if batch.last_offset < offset)
            if below or not batches:
                last = below[-1] if below else ProducerBatch(-1, -1, 0, entry.last_timestamp_ms)
                begun = -1 if first_offset is None or first_offset >= offset else first_offset
                found.append(_pack(entry.producer_id, epoch, last, last.timestamp_ms, entry.coordinator_epoch, begun))
        return _snapshot(found)

    def snapshot(self) -> bytes:
        return _snapshot([entry.packed or entry.pack() for entry in self._entries.values()])

    @classmethod
    def from_snapshot(cls, data: Buffer, path: str, next_offset: int) -> ProducerTable:
        """Parse the bytes of ``snapshot``, which hold only each producer's last batch, as in Kafka. Raises
        CorruptLogError, which names the file; the state can be rebuilt from an older snapshot and the log."""
        view = memoryview(data)
        if len(view) < _HEAD.size + _COUNT.size:
            raise CorruptLogError(f"{path}: {len(view)} bytes are too few for a producer snapshot")
        version, crc = _HEAD.unpack_from(view)
        if version != SNAPSHOT_VERSION:
            raise CorruptLogError(f"{path}: version {version}; Headrace reads only version {SNAPSHOT_VERSION}")
        found = crc32c(view[_HEAD.size :])
        if found != crc:
            raise CorruptLogError(f"{path}: CRC-32C is {found:#010x}, but the checksum in the file is {crc:#010x}")
        (count,) = _COUNT.unpack_from(view, _HEAD.size)
        body = view[_HEAD.size + _COUNT.size :]
        if len(body) != count * _ENTRY.size:
            raise CorruptLogError(
                f"{path}: {count} entries need {count * _ENTRY.size} bytes, but the file has {len(body)}"
            )
        return cls(
            [
                _read_entry(values, bytes(body[number * _ENTRY.size : (number + 1) * _ENTRY.size]))
                for number, values in enumerate(_ENTRY.iter_unpack(body))
            ],
            next_offset=next_offset,
        )


def _snapshot(packed: Sequence[bytes]) -> bytes:
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def _undecided_before(
    open_ones: tuple[Undecided, ...], ended_ones: list[Undecided], end_offset: int
) -> tuple[tuple[Undecided, ...], list[Undecided]]:
    """The undecided transactions of a log that was truncated at ``end_offset``. Transactions after ``end_offset`` are
    left out, and transactions with a marker after ``end_offset`` are open again."""
    kept = bisect_left(ended_ones, end_offset, key=_last_offset)
    reopened = (each._replace(last_offset=_OPEN) for each in ended_ones[kept:])
    still_open = tuple(sorted(each for each in (*open_ones, *reopened) if each.first_offset < end_offset))
    return still_open, ended_ones if kept == len(ended_ones) else ended_ones[:kept]


def _last_offset(ended: Undecided) -> int:
    return ended.last_offset


def is_torn_snapshot(data: Buffer) -> bool:
    """Whether an invalid snapshot was probably damaged by a crash: the snapshot is too short, or has a block of
    zeros."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _COUNT.size:
        return True
    if any(not any(view[at : at + _BLOCK_BYTES]) for at in range(0, len(view), _BLOCK_BYTES)):
        return True
    count: int = _COUNT.unpack_from(view, _HEAD.size)[0]
    return len(view) < _HEAD.size + _COUNT.size + count * _ENTRY.size


def _pack(
    producer_id: int, epoch: int, last: ProducerBatch, timestamp_ms: int, coordinator_epoch: int, first_offset: int
) -> bytes:
    """A producer's entry in a snapshot; ``first_offset`` of its open transaction is -1 for none."""
    return _ENTRY.pack(
        producer_id,
        epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        timestamp_ms,
        coordinator_epoch,
        first_offset,
    )


def _read_entry(values: tuple[int, ...], packed: bytes) -> ProducerEntry:
    producer_id, epoch, sequence, offset, offset_delta, timestamp_ms, coordinator_epoch, first_offset = values
    return ProducerEntry(
        producer_id,
        epoch,
        (ProducerBatch(sequence, offset, offset_delta, timestamp_ms),) if offset >= 0 else (),
        coordinator_epoch,
        timestamp_ms,
        None if first_offset < 0 else first_offset,
        packed,
        offset >= 0,
    )
