"""State of a partition's producers: epoch, last sequences, open transaction; Kafka's .snapshot file.

Pure: values in, verdicts out. The partition's owner calls ``check`` before it appends a batch with a producer id, then
``appended`` or ``marker_appended``. Opening a log replays what lies behind the last snapshot in the same way, so a
rebuilt table equals the lost one (KIP-98; ProducerStateManager).

A producer expires (KIP-854) by the local time of its last append on this replica, on a monotonic clock. Kafka compares
the record's timestamp with the wall clock, so it forgets a producer of old events while it writes, and appends its
retry twice. The time is not in the file, whose bytes are Kafka's; after a load it counts from the load.

``<offset>.snapshot`` holds the state of all producers before that offset, in Kafka's bytes (version 1), big-endian:

    int16   version, 1
    uint32  CRC-32C of all that follows
    int32   number of entries, then for each:
        int64 producer id       int16 producer epoch        int32 last sequence (-1: none)
        int64 last offset (-1)  int32 offset delta (of the last batch: last sequence - first one)
        int64 timestamp, ms     int32 coordinator epoch     int64 first offset of its open transaction (-1: none)

A snapshot holds each producer's last batch only. When its next batch does not fit, the batches before are looked up
once in the log, by headers (``complete_window``), so a producer may resend its five batches after a restart.

The table learns of a batch before the write, so the next one in the same turn can follow; a failed write is undone.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from ..errors import CorruptLogError
from ..records import BatchHeader, Buffer

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1
#: Last batches of a producer, by which a repeated one is recognised (Kafka's number: at most 5 in flight).
BATCHES_KEPT = 5
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER_EPOCH = -1

_BLOCK_BYTES = 4096
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


def sequence_after(sequence: int, count: int = 1) -> int:
    """Sequences go from 0 to 2^31 - 1 and wrap."""
    return (sequence + count) & SEQUENCE_MAX


class LastRecord(NamedTuple):
    """An active producer's epoch and last data offset (None: only a marker is left)."""

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
    """Verdict on a producer's batch."""

    NEXT = "next"  #: Append it.
    DUPLICATE = "duplicate"  #: Appended before: answer with that batch's offset, append nothing.
    OUT_OF_ORDER = "out of order"  #: A batch before it is missing.
    FENCED = "fenced"  #: A newer producer has this id.


class Checked(NamedTuple):
    """``batch``: for a duplicate, the appended one. ``why``: a sentence for an error, or empty."""

    check: Check
    batch: ProducerBatch | None = None
    why: str = ""


_NEXT = Checked(Check.NEXT)


@dataclass(slots=True)
class ProducerEntry:
    """One producer. ``batches``: its last ones with this epoch, oldest first; replaced whole, for other threads."""

    producer_id: int
    epoch: int
    batches: tuple[ProducerBatch, ...] = ()
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1  #: Time of its last batch or marker.
    transaction_first_offset: int | None = None  #: Start of its open transaction; None: none is open.
    #: Its bytes in a snapshot; None: changed since the last one. A table of a million producers is written at each
    #: roll, and few of them have changed.
    packed: bytes | None = field(default=None, compare=False, repr=False)
    #: Whether the log holds batches of its window that are not here: a snapshot has only the last one.
    is_cut_short: bool = field(default=False, compare=False)
    #: When this replica appended its last batch or marker, or loaded the table; see ``ProducerTable.local_ms``.
    appended_ms: float = field(default=0.0, compare=False, repr=False)

    @property
    def last_batch(self) -> ProducerBatch | None:
        return self.batches[-1] if self.batches else None

    def move_to_epoch(self, epoch: int) -> None:
        """Start a new epoch with new sequences."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()
            self.is_cut_short = False

    def pack(self) -> bytes:
        packed = self.packed
        if packed is None:
            last = self.last_batch or ProducerBatch(-1, -1, 0, self.last_timestamp_ms)
            first_offset = self.transaction_first_offset
            packed = self.packed = _ENTRY.pack(
                self.producer_id,
                self.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                self.last_timestamp_ms,
                self.coordinator_epoch,
                -1 if first_offset is None else first_offset,
            )
        return packed


class Remembered(NamedTuple):
    """A producer's entry before an append that may fail; ``epoch`` None: there was none."""

    producer_id: int
    epoch: int | None = None
    batches: tuple[ProducerBatch, ...] = ()
    last_timestamp_ms: int = -1
    transaction_first_offset: int | None = None
    is_cut_short: bool = False


class ProducerTable:
    """All producers of one partition. Belongs to the partition's owner."""

    def __init__(self, entries: Iterable[ProducerEntry] = (), *, next_offset: int = 0) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        self.next_offset = next_offset  #: The state is that before this offset.
        self.local_ms = 0.0  #: Local time of the next updates, in milliseconds of a monotonic clock.

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> Checked:
        """Decide whether this batch (of data, with a producer id) may be appended. Changes nothing.

        An unknown producer may begin with any sequence: its state may have been deleted with its records. A known one
        with a new epoch begins with 0.
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
        if header.producer_epoch > entry.epoch:
            if header.base_sequence == 0 or entry.epoch == NO_PRODUCER_EPOCH:
                return _NEXT
            return Checked(
                Check.OUT_OF_ORDER,
                why=(
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence "
                    f"{header.base_sequence}, must be 0"
                ),
            )
        last = entry.last_batch
        expected = 0 if last is None else sequence_after(last.last_sequence)
        if header.base_sequence == expected:
            return _NEXT
        last_sequence = sequence_after(header.base_sequence, header.last_offset_delta)
        for batch in entry.batches:
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
        """Record an appended batch of data, with the offsets and time of ``header``, or with these."""
        if base_offset is None:
            base_offset = header.base_offset
        last_offset = base_offset + header.last_offset_delta
        if last_offset >= self.next_offset:
            self.next_offset = last_offset + 1
        if header.producer_id < 0:
            return
        timestamp_ms = header.max_timestamp_ms if max_timestamp_ms is None else max_timestamp_ms
        entry = self._entry(header, timestamp_ms)
        batch = ProducerBatch(
            sequence_after(header.base_sequence, header.last_offset_delta),
            last_offset,
            header.last_offset_delta,
            timestamp_ms,
        )
        entry.batches = (*entry.batches[1 - BATCHES_KEPT :], batch)
        if header.is_transactional and entry.transaction_first_offset is None:
            entry.transaction_first_offset = base_offset

    def marker_appended(self, header: BatchHeader, coordinator_epoch: int | None) -> int | None:
        """Record an appended COMMIT or ABORT marker; returns the start of the transaction that it ends, None when that
        was empty. ``coordinator_epoch`` None: unknown."""
        self.next_offset = max(self.next_offset, header.next_offset)
        entry = self._entry(header, header.max_timestamp_ms)
        if coordinator_epoch is not None:
            entry.coordinator_epoch = coordinator_epoch
        first_offset, entry.transaction_first_offset = entry.transaction_first_offset, None
        return first_offset

    def _entry(self, header: BatchHeader, timestamp_ms: int) -> ProducerEntry:
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        entry.move_to_epoch(header.producer_epoch)
        entry.last_timestamp_ms = timestamp_ms
        entry.appended_ms = self.local_ms
        entry.packed = None
        return entry

    def loaded(self, local_ms: float) -> None:
        """Set every producer's time to ``local_ms``: the table comes from a snapshot or the log."""
        self.local_ms = local_ms
        for entry in self._entries.values():
            entry.appended_ms = local_ms

    def remember(self, producer_id: int) -> Remembered:
        """The state for ``take_back``, before ``appended`` of a batch whose write may fail."""
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
        )

    def take_back(self, remembered: Iterable[Remembered], next_offset: int) -> None:
        """Undo failed appends. ``remembered``: the latest first; ``next_offset``: the log's end."""
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
            entry.is_cut_short = old.is_cut_short

    @property
    def first_unstable_offset(self) -> int | None:
        """Start of the first open transaction, which bounds the last stable offset; None: none is open."""
        return min(
            (entry.transaction_first_offset for entry in self if entry.transaction_first_offset is not None),
            default=None,
        )

    def last_records(self) -> dict[int, LastRecord]:
        """What compaction must keep of each producer, so that the log rebuilds this table. Any thread."""
        found: dict[int, LastRecord] = {}
        for entry in list(self._entries.values()):
            batches = entry.batches
            found[entry.producer_id] = LastRecord(batches[-1].last_offset if batches else None, entry.epoch)
        return found

    def expired(self, now_ms: float, expiration_ms: int) -> list[int]:
        """Producers without an open transaction that wrote nothing for ``producer.id.expiration.ms``; ``now_ms`` is of
        the clock of ``local_ms``. Any thread."""
        latest_ms = now_ms - expiration_ms
        return [
            entry.producer_id
            for entry in list(self._entries.values())
            if entry.appended_ms <= latest_ms and entry.transaction_first_offset is None
        ]

    def expire(self, now_ms: float, expiration_ms: int, candidates: Iterable[int] | None = None) -> list[int]:
        """Remove ``expired`` producers; ``candidates``: only these."""
        gone = []
        for producer_id in self.expired(now_ms, expiration_ms) if candidates is None else candidates:
            entry = self._entries.get(producer_id)
            if entry is None or entry.transaction_first_offset is not None:
                continue
            if entry.appended_ms <= now_ms - expiration_ms:
                del self._entries[producer_id]
                gone.append(producer_id)
        return gone

    def snapshot(self) -> bytes:
        body = _COUNT.pack(len(self._entries)) + b"".join(
            [entry.packed or entry.pack() for entry in self._entries.values()]
        )
        return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: Buffer, path: str, next_offset: int) -> ProducerTable:
        """Inverse of ``snapshot``: each producer's last batch only, as in Kafka. CorruptLogError names the file: the
        state can be rebuilt from an older snapshot and the log."""
        view = memoryview(data)
        if len(view) < _HEAD.size + _COUNT.size:
            raise CorruptLogError(f"{path}: {len(view)} bytes are too few for a producer snapshot")
        version, crc = _HEAD.unpack_from(view)
        if version != SNAPSHOT_VERSION:
            raise CorruptLogError(f"{path}: version {version}; only {SNAPSHOT_VERSION} is understood")
        found = crc32c(view[_HEAD.size :])
        if found != crc:
            raise CorruptLogError(f"{path}: CRC-32C is {found:#010x}, the file says {crc:#010x}")
        (count,) = _COUNT.unpack_from(view, _HEAD.size)
        body = view[_HEAD.size + _COUNT.size :]
        if len(body) != count * _ENTRY.size:
            raise CorruptLogError(f"{path}: {count} entries have {count * _ENTRY.size} bytes, {len(body)} are there")
        return cls(
            [
                _read_entry(values, bytes(body[number * _ENTRY.size : (number + 1) * _ENTRY.size]))
                for number, values in enumerate(_ENTRY.iter_unpack(body))
            ],
            next_offset=next_offset,
        )


def is_torn_snapshot(data: Buffer) -> bool:
    """Whether an unsound snapshot looks like the trace of a crash: too short, or with a block of zeros."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _COUNT.size:
        return True
    if any(not any(view[at : at + _BLOCK_BYTES]) for at in range(0, len(view), _BLOCK_BYTES)):
        return True
    count: int = _COUNT.unpack_from(view, _HEAD.size)[0]
    return len(view) < _HEAD.size + _COUNT.size + count * _ENTRY.size


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
