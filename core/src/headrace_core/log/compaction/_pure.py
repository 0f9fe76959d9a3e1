"""Compaction, record by record, in plain Python: the readable reference, and the tests' oracle for _cleaning.pyx.

All functions take buffers that begin with a whole batch. A partial batch at the buffer's end is left for the next call:
each function and ``feed`` returns how many bytes it consumed. A damaged batch raises CorruptMessageError or
InvalidRecordError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from crc32c import crc32c

from ...errors import InvalidRecordError
from ...records import DEFAULT_LIMITS, HEADER_BYTES, BatchHeader, Buffer, check_batch, read_header
from ...records._pure_records import INT64_MAX, INT64_MIN, bad_record, encode_record, read_records
from ...records.compression import compress, decompress
from ...records.types import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    LENGTH_PREFIX_BYTES,
    TRANSACTIONAL_BIT,
)
from ...types import TimestampType
from ..index import BatchMeta
from .horizon import HORIZON_BIT, NO_CONTROL_TYPE, Verdict, delete_horizon_ms

Judge = Callable[[BatchHeader, int], int]

SLOT_BYTES = 24
_CONTROL_KEY = struct.Struct(">hh")


class OffsetMap:
    """Map from each key to its largest offset; holds at most ``capacity`` keys in ``memory_bytes`` bytes. ``secret``:
    16 bytes that producers do not know, so that producers cannot choose keys whose hashes collide. This plain Python
    map stores the keys themselves; the compiled map stores hashes."""

    def __init__(self, memory_bytes: int, secret: bytes, load_factor: float = 0.9) -> None:
        if len(secret) != 16:
            raise ValueError("the hash secret must have 16 bytes")
        slots = max(memory_bytes // SLOT_BYTES, 2)
        self.capacity = max(min(int(slots * load_factor), slots - 1), 1)
        self._offsets: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        return len(self._offsets)

    def clear(self) -> None:
        self._offsets.clear()

    def put(self, key: bytes, offset: int) -> None:
        """Set a key's offset; callers pass ascending offsets. Raises ValueError when the map is full."""
        if self.size >= self.capacity:
            raise ValueError(f"the offset map is full: {self.size} keys")
        self._offsets[key] = offset

    def get(self, key: bytes) -> int:
        """-1 for a key that was never put."""
        return self._offsets.get(key, -1)


def _control_type(data: Buffer, position: int, header: BatchHeader) -> int:
    """Return the control type of a whole control batch whose CRC was checked. The type is NO_CONTROL_TYPE when the
    batch has no record, no type or unreadable records. A batch without a control type ends no transaction, as in the
    producer table, and stays in the log."""
    if header.record_count == 0 or header.attributes & COMPRESSION_MASK:
        return NO_CONTROL_TYPE
    body = memoryview(data)[position + HEADER_BYTES : position + header.size]
    try:
        key = next(iter(read_records(body, header, DEFAULT_LIMITS))).key
    except InvalidRecordError:
        return NO_CONTROL_TYPE
    return NO_CONTROL_TYPE if key is None or len(key) < 4 else int(_CONTROL_KEY.unpack_from(key)[1])


def scan_batches(data: Buffer, observe: Callable[[BatchHeader, int], object]) -> int:
    """Call ``observe(header, control_type)`` for each control batch and each transactional batch; returns the position
    after the last batch. Only control batches are read whole. Of a data batch only the header is read, so the last
    batch may end beyond ``data``. If the last batch ends beyond ``data``, the returned position is beyond ``data``,
    too."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.attributes & CONTROL_BIT:
            if header.size > len(data) - position:
                break
            check_batch(data, position)
            observe(header, _control_type(data, position, header))
        elif header.attributes & TRANSACTIONAL_BIT:
            observe(header, NO_CONTROL_TYPE)
        position += header.size
    return position


def _whole_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = read_header(data, position)
        if header.size > len(data) - position:
            return
        yield position, check_batch(data, position)
        position += header.size


def _body(data: Buffer, position: int, header: BatchHeader) -> Buffer:
    block = memoryview(data)[position + HEADER_BYTES : position + header.size]
    return decompress(header.compression, block, DEFAULT_LIMITS.max_decompressed_bytes)


class KeyIndexer:
    """Puts the keys of records from ``start_offset`` on into the map, batch by batch, until the keys of a whole batch
    do not fit (``is_full``).

    ``latest``: the offset up to which the map has the keys of every batch. ``judge`` is called for control and
    transactional batches, in the log's order. Records that ``judge`` discards are not put into the map, because an
    aborted record replaces no earlier record.
    """

    def __init__(self, offset_map: OffsetMap, start_offset: int, judge: Judge) -> None:
        self.latest = start_offset - 1
        self.is_full = False
        self.records_read = 0
        self._map = offset_map
        self._start = start_offset
        self._judge = judge

    def feed(self, data: Buffer) -> int:
        done = 0
        for position, header in _whole_batches(data):
            wanted = header.last_offset >= self._start and header.record_count > 0
            if header.attributes & CONTROL_BIT:
                self._judge(header, _control_type(data, position, header))
                wanted = False
            elif header.attributes & TRANSACTIONAL_BIT and self._judge(header, NO_CONTROL_TYPE) & Verdict.DISCARD:
                wanted = False
            if wanted:
                if self._map.size + header.record_count > self._map.capacity:
                    self.is_full = True
                    return done
                for record in read_records(_body(data, position, header), header, DEFAULT_LIMITS):
                    offset = header.base_offset + record.offset_delta
                    if record.key is not None and offset >= self._start:
                        self._map.put(record.key, offset)
                self.records_read += header.record_count
            self.latest = max(self.latest, header.last_offset)
            done = position + header.size
        return done


class BatchFilter:
    """Filters each batch, in the log's order; ``take`` returns the filtered bytes and the batches in these bytes.

    * Batches above ``latest`` stay unchanged, because the map does not have their keys yet.
    * A record stays if the map has no later record of its key; a record without a key is removed. A tombstone is
      removed once the delete horizon of its batch has passed. A batch with a remaining tombstone gets the horizon
      ``horizon_ms`` if it has no horizon.
    * ``judge`` decides which transactional batches and markers are emptied.
    * A batch without records is removed, but its header stays in three cases: the batch ends at ``keep_next_offset`` -
      1; it has a producer's last sequence (``last_offsets``: producer id -> last offset); it has the last epoch of a
      producer that has only a marker in the log (``marker_epochs``: producer id -> epoch).
    * Base offset, last offset, sequence, leader epoch and the offsets of records never change.

    The reported max timestamp of a batch without records is -1, so that no time index points to that batch. The header
    of a batch without records keeps the true max timestamp, which shows when an idle producer last wrote.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        latest: int,
        keep_next_offset: int,
        judge: Judge,
        last_offsets: dict[int, int],
        marker_epochs: dict[int, int],
        now_ms: int,
        horizon_ms: int,
    ) -> None:
        self.records_read = self.records_kept = self.records_without_key = 0
        self._map = offset_map
        self._latest = latest
        self._keep_next = keep_next_offset
        self._judge = judge
        self._last_offsets = last_offsets
        self._marker_epochs = marker_epochs
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._out = bytearray()
        self._metas: list[BatchMeta] = []

    def take(self) -> tuple[bytearray, list[BatchMeta]]:
        out, metas = self._out, self._metas
        self._out, self._metas = bytearray(), []
        return out, metas

    def feed(self, data: Buffer) -> int:
        done = 0
        for position, header in _whole_batches(data):
            self._one(data, position, header)
            done = position + header.size
        return done

    def _must_stay(self, header: BatchHeader) -> bool:
        if header.next_offset == self._keep_next:
            return True
        if header.producer_id < 0:
            return False
        if header.producer_id in self._last_offsets:
            return self._last_offsets[header.producer_id] == header.last_offset
        return header.is_control and self._marker_epochs.get(header.producer_id) == header.producer_epoch

    def _one(self, data: Buffer, position: int, header: BatchHeader) -> None:
        raw = memoryview(data)[position : position + header.size]
        verdict = 0
        if header.is_control:
            verdict = self._judge(header, _control_type(data, position, header))
        elif header.is_transactional:
            verdict = self._judge(header, NO_CONTROL_TYPE)
        self.records_read += header.record_count
        if header.last_offset > self._latest:
            self.records_kept += header.record_count
            self._append(raw, header)
        elif header.record_count == 0 or verdict & Verdict.DISCARD:
            if self._must_stay(header):
                self._append(raw, header) if header.record_count == 0 else self._append_empty(header)
        elif header.is_control and not (verdict & Verdict.OF_NOTHING and delete_horizon_ms(header) is None):
            self.records_kept += header.record_count
            self._append(raw, header)
        else:
            self._filter(data, position, header, raw)

    def _filter(self, data: Buffer, position: int, header: BatchHeader, raw: memoryview) -> None:
        records = list(read_records(_body(data, position, header), header, DEFAULT_LIMITS))
        horizon_ms = delete_horizon_ms(header)
        drops_tombstones = horizon_ms is not None and self._now_ms >= horizon_ms
        kept = []
        for record in records:
            if not header.is_control:
                if record.key is None:
                    self.records_without_key += 1
                    continue
                if header.base_offset + record.offset_delta < self._map.get(record.key):
                    continue
                if record.value is None and drops_tombstones:
                    continue
            kept.append(record)
        self.records_kept += len(kept)
        sets_horizon = horizon_ms is None and (header.is_control or any(record.value is None for record in kept))
        if not kept:
            if self._must_stay(header):
                self._append_empty(header)
            return
        if len(kept) == len(records) and not sets_horizon:
            self._append(raw, header)
            return
        by_log = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        times = [
            header.max_timestamp_ms if by_log else header.base_timestamp_ms + record.timestamp_delta for record in kept
        ]
        base_ms = self._horizon_ms if sets_horizon else header.base_timestamp_ms
        if sets_horizon and not all(INT64_MIN <= time_ms - base_ms <= INT64_MAX for time_ms in times):
            raise bad_record(header, None, "a record's timestamp delta overflows 64 bits")
        body = b"".join(
            encode_record(
                time_ms - base_ms if sets_horizon else record.timestamp_delta,
                record.offset_delta,
                record.key,
                record.value,
                record.headers,
            )
            for record, time_ms in zip(kept, times, strict=True)
        )
        self._seal(
            header._replace(
                attributes=header.attributes | (HORIZON_BIT if sets_horizon else 0),
                base_timestamp_ms=base_ms,
                max_timestamp_ms=header.max_timestamp_ms if by_log else max(times),
                record_count=len(kept),
            ),
            bytes(compress(header.compression, body)),
        )

    # ---------------------------------------------------------------- output

    def _append(self, raw: Buffer, header: BatchHeader) -> None:
        self._out += raw
        timestamp_ms = header.max_timestamp_ms if header.record_count else -1
        self._metas.append(BatchMeta(len(raw), header.base_offset, header.last_offset, timestamp_ms))

    def _append_empty(self, header: BatchHeader) -> None:
        attributes = header.attributes & ~(COMPRESSION_MASK | HORIZON_BIT)
        self._seal(header._replace(attributes=attributes, base_timestamp_ms=-1, record_count=0), b"")

    def _seal(self, header: BatchHeader, body: bytes) -> None:
        size = HEADER_BYTES + len(body)
        batch = bytearray(HEADER.pack(*header._replace(batch_length=size - LENGTH_PREFIX_BYTES, crc=0)) + body)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[CRC_START:]))
        self._append(batch, header)
