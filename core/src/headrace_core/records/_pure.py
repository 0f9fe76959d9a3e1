"""Record batch v2 in plain Python: the readable reference, the tests' oracle, and the fallback without compiled code.

The compiled modules do the same work faster; one test suite runs on both backends. The module ``types`` describes the
format.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from ..errors import (
    CorruptMessageError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from ..types import TimestampType
from ._faults import too_many_schemas
from ._pure_records import INT64_MAX, INT64_MIN, bad_record, encode_record, read_records
from ._pure_records import Record as Record
from .batches import assemble_batch, check_producer_fields, iterate_headers, read_whole_header
from .batches import check_batch as check_batch
from .batches import check_slice as check_slice
from .batches import read_header as read_header
from .batches import split_batches as split_batches
from .compression import decompress
from .types import (
    ABORT,
    COMPRESSION_MASK,
    DEFAULT_LIMITS,
    HEADER_BYTES,
    NO_SCHEMA,
    NO_TIMESTAMP,
    SCHEMA_IDS_MAX,
    SCHEMA_PLACES_MAX,
    BatchHeader,
    BatchSchemas,
    Buffer,
    Compression,
    DecodeLimits,
    RecordTuple,
    SchemaIds,
)

_RECORD_BYTES_LIMIT = 2**31 - 1 - HEADER_BYTES


# --- encoding ------------------------------------------------------------------------------------------------------


def record_bytes_max(
    key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]] | None = None
) -> int:
    """Upper bound of a record's encoded size, at any place in a batch."""
    size = 5 + 1 + 10 + 5 + 5 + 5 + 5
    size += (0 if key is None else memoryview(key).nbytes) + (0 if value is None else memoryview(value).nbytes)
    for name, content in headers or ():
        size += 10 + len(name.encode()) + (0 if content is None else memoryview(content).nbytes)
    return size


class BatchBuilder:
    """Collects records until the uncompressed batch would exceed ``max_bytes``, then builds the batch.

    One builder builds many batches, one after another; a builder is not shared between threads.
    """

    def __init__(self, max_bytes: int) -> None:
        if not HEADER_BYTES < max_bytes <= 2**31 - 1:
            raise InvalidArgumentError(f"max_bytes={max_bytes}: must be between {HEADER_BYTES + 1} and {2**31 - 1}")
        self.max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Drop the appended records."""
        self._records = bytearray()
        self.count = 0
        self._base_timestamp_ms = self._max_timestamp_ms = NO_TIMESTAMP

    @property
    def size(self) -> int:
        """Uncompressed size in bytes of the batch if it were built now."""
        return HEADER_BYTES + len(self._records)

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] | None = None,
    ) -> int:
        """Append one record. Returns the record's index in the batch. Returns -1 when the batch would exceed
        ``max_bytes``: build the batch, then append the record again.

        The first record of a batch always fits. Raises InvalidTimestampError for a timestamp that does not fit into 64
        bits, or whose distance from the batch's first timestamp does not fit; TypeError for a key or value that is not
        bytes-like; RecordTooLargeError for a record above 2 GiB.
        """
        # Read the headers before anything else, because the caller's iterable may run any code, even append to this
        # builder.
        headers = None if headers is None else list(headers)
        check_timestamp(timestamp_ms)
        base = self._base_timestamp_ms if self.count else timestamp_ms
        if not INT64_MIN <= timestamp_ms - base <= INT64_MAX:
            raise InvalidTimestampError(
                f"timestamp {timestamp_ms} is too far from {base}, the first timestamp of its batch"
            )
        record = encode_record(timestamp_ms - base, self.count, key, value, headers)
        if self.count and self.size + len(record) > self.max_bytes:
            return -1
        if len(record) > _RECORD_BYTES_LIMIT:
            raise RecordTooLargeError(f"a record of {len(record)} bytes is larger than any batch may be")
        self._records += record
        self._base_timestamp_ms = base
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms) if self.count else timestamp_ms
        self.count += 1
        return self.count - 1

    def append_many(self, records: Sequence[Any], start: int = 0, timestamp_ms: int = NO_TIMESTAMP) -> int:
        """Append ``records[start:]``, all with one timestamp; a record is a value, a (key, value) or a (key, value,
        headers).

        Returns the index in ``records`` of the first record that did not fit; ``len(records)`` when all fit.
        """
        for index in range(start, len(records)):
            record = records[index]
            if isinstance(record, tuple):
                if not 2 <= len(record) <= 3:
                    raise TypeError(f"record {index} is a tuple of {len(record)} items, not (key, value[, headers])")
                added = self.append(timestamp_ms, *record)
            else:
                added = self.append(timestamp_ms, None, record)
            if added < 0:
                return index
        return len(records)

    def build(
        self,
        *,
        compression: Compression = Compression.NONE,
        level: int | None = None,
        base_offset: int = 0,
        leader_epoch: int = -1,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
    ) -> bytes:
        """Build the batch and empty the builder. Raises IllegalStateError when no record was appended."""
        if not self.count:
            raise IllegalStateError("a batch needs at least one record: nothing was appended")
        batch = assemble_batch(
            self._records,
            record_count=self.count,
            last_offset_delta=self.count - 1,
            base_timestamp_ms=self._base_timestamp_ms,
            max_timestamp_ms=self._max_timestamp_ms,
            compression=compression,
            level=level,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            timestamp_type=timestamp_type,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            control=control,
        )
        self.clear()
        return batch


def check_timestamp(timestamp_ms: int) -> None:
    """Raise InvalidTimestampError unless the timestamp fits into 64 bits."""
    if not INT64_MIN <= timestamp_ms <= INT64_MAX:
        raise InvalidTimestampError(f"timestamp {timestamp_ms} does not fit into 64 bits")


def encode_batch(records: Iterable[RecordTuple], **fields: Any) -> bytes:
    """Encode records, each (timestamp_ms, key, value, headers), as one batch of any size; ``fields`` as in
    ``BatchBuilder.build``."""
    builder = BatchBuilder(2**31 - 1)
    for timestamp_ms, key, value, headers in records:
        if builder.append(timestamp_ms, key, value, headers) < 0:
            raise RecordTooLargeError(f"a batch has at most {2**31 - 1} bytes; {builder.count} records fit")
    return builder.build(**fields)


# --- decoding ------------------------------------------------------------------------------------------------------


def decode_batch(
    data: Buffer,
    position: int = 0,
    *,
    topic: str = "",
    partition: int = -1,
    start_offset: int = 0,
    limits: DecodeLimits = DEFAULT_LIMITS,
    check_crc: bool = True,
) -> list[Record]:
    """Return the records with ``start_offset`` or a higher offset of the batch at ``position``, control records
    included.

    Raises CorruptMessageError for a damaged batch, InvalidRecordError for a malformed batch or a batch that exceeds the
    limits.
    """
    header = check_batch(data, position) if check_crc else read_whole_header(data, position)
    return [
        record
        for record in _records_of(data, position, header, topic, partition, limits)
        if record.offset >= start_offset
    ]


def batch_body(data: Buffer, position: int, header: BatchHeader, limits: DecodeLimits) -> Buffer:
    """Return the decompressed bytes of the records of the batch at ``position``."""
    block = memoryview(data)[position + HEADER_BYTES : position + header.size]
    try:
        return decompress(header.compression, block, limits.max_decompressed_bytes)
    except InvalidRecordError as error:
        raise bad_record(header, None, error.message) from None


def _records_of(
    data: Buffer, position: int, header: BatchHeader, topic: str, partition: int, limits: DecodeLimits
) -> Iterator[Record]:
    given_ms = header.max_timestamp_ms if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    for raw in read_records(batch_body(data, position, header, limits), header, limits):
        yield Record(
            topic,
            partition,
            header.base_offset + raw.offset_delta,
            header.base_timestamp_ms + raw.timestamp_delta if given_ms is None else given_ms,
            raw.key,
            raw.value,
            raw.headers,
            header.leader_epoch,
            header.timestamp_type,
        )


class RecordIterator:
    """Iterates over the records of many batches from ``start_offset`` on; leaves out control records unless
    ``include_control`` is set.

    ``slices`` are buffers of whole batches, back to back. A batch is checked and decompressed when the iterator reaches
    it. ``position`` is the offset after the last record that the iterator returned or skipped. After an error the
    iterator does not advance, and its next step raises the error again.
    """

    def __init__(
        self,
        slices: Buffer | Iterable[Buffer],
        *,
        topic: str = "",
        partition: int = -1,
        start_offset: int = 0,
        limits: DecodeLimits = DEFAULT_LIMITS,
        check_crc: bool = True,
        include_control: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = start_offset
        self.taken_bytes = 0
        self._slices = list(slices) if not isinstance(slices, bytes | bytearray | memoryview) else [slices]
        self._options = (limits, check_crc, include_control)
        self._slice = self._at = 0
        self._is_stuck = False
        self._header: BatchHeader | None = None
        self._records: Iterator[Record] = iter(())

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> Record:
        while True:
            try:
                for record in self._records:
                    if record.offset >= self.position:
                        self.position = record.offset + 1
                        return record
            except InvalidRecordError:
                self._header, self._records = None, iter(())
                self._is_stuck = True  # the next step enters this batch again, even if all its offsets were returned
                raise
            self._leave_batch()
            if not self._enter_batch():
                raise StopIteration

    def take(self, count: int, max_bytes: int = sys.maxsize) -> list[Record]:
        """Return up to ``count`` records; an empty list when no records are left. The last record of a list reaches
        ``max_bytes`` of keys, values and headers. ``taken_bytes`` is their number afterwards."""
        taken: list[Record] = []
        self.taken_bytes = 0
        while len(taken) < count and self.taken_bytes < max_bytes:
            try:
                record = next(self)
                taken.append(record)
                self.taken_bytes += len(record.key or b"") + len(record.value or b"")
                self.taken_bytes += sum(len(name) + len(content or b"") for name, content in record.headers)
            except StopIteration:
                break
            except (CorruptMessageError, InvalidRecordError):
                if not taken:
                    raise
                break  # return the sound records first; the next call raises the error
        return taken

    def _leave_batch(self) -> None:
        if self._header is not None:
            self.position = max(self.position, self._header.next_offset)
            self._at += self._header.size
            self._header = None

    def _enter_batch(self) -> bool:
        limits, check_crc, include_control = self._options
        while self._slice < len(self._slices):
            data = self._slices[self._slice]
            if self._at >= len(data):
                self._slice, self._at = self._slice + 1, 0
                continue
            header = read_whole_header(data, self._at)
            # Check also the CRC of skipped batches: a flipped bit must not turn a wanted batch into a skipped batch.
            if check_crc:
                check_batch(data, self._at)
            is_wanted = header.last_offset >= self.position or self._is_stuck
            if is_wanted and (include_control or not header.is_control):
                self._records = _records_of(data, self._at, header, self.topic, self.partition, limits)
                self._header = header
                return True
            self.position = max(self.position, header.next_offset)
            self._at += header.size
        return False


# --- read_committed ------------------------------------------------------------------------------------------------


def without_aborted(data: Buffer, aborted: Iterable[tuple[int, int]], *, check_crc: bool = True) -> list[Buffer]:
    """Return ``data`` (whole batches) without the batches of aborted transactions, in parts. ``aborted``: (producer id,
    first offset) of each aborted transaction. The parts are views of ``data``, not copies; ``[data]`` when nothing is
    removed.

    The algorithm is Kafka's (KIP-98, CompletedFetch). A fetch result names every aborted transaction among its records,
    and the header of a batch names the batch's producer. From an aborted transaction's first offset up to the
    producer's ABORT marker, the producer's transactional batches are removed; markers stay.

    A damaged batch and all batches after it are kept: the decoder raises the error when it reaches the damaged batch.
    With ``check_crc``, a batch with a wrong CRC counts as damaged instead of removed, because its header may name the
    wrong producer.
    """
    coming = sorted(aborted, key=itemgetter(1), reverse=True)
    skipping: set[int] = set()
    view = memoryview(data)
    kept: list[Buffer] = []
    kept_to = position = 0
    try:
        while position < len(view) and (coming or skipping):
            header = read_whole_header(data, position)
            while coming and coming[-1][1] <= header.last_offset:
                skipping.add(coming.pop()[0])
            if header.producer_id in skipping:
                if header.is_control:
                    if _is_abort_marker(data, position, check_crc):
                        skipping.discard(header.producer_id)
                elif header.is_transactional:
                    if check_crc:
                        check_batch(data, position)
                    if kept_to < position:
                        kept.append(view[kept_to:position])
                    kept_to = position + header.size
            position += header.size
    except (CorruptMessageError, InvalidRecordError):
        pass
    if not kept_to:
        return [data]
    if kept_to < len(view):
        kept.append(view[kept_to:])
    return kept


def _is_abort_marker(data: Buffer, position: int, check_crc: bool) -> bool:
    """Return whether the control batch at ``position`` is the ABORT marker of its producer's aborted transaction. A
    control batch with a correct CRC and unreadable records ends no transaction, as in the broker. Without ``check_crc``
    a damaged control batch counts as the marker, because the producer's next control batch can only be the marker."""
    try:
        records = decode_batch(data, position)
    except InvalidRecordError:
        return False
    except CorruptMessageError:
        if check_crc:
            raise
        return True
    key = records[0].key if records else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == ABORT


# --- validation ----------------------------------------------------------------------------------------------------


def validate_batches(
    data: Buffer,
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    allow_control: bool = False,
    allow_transactional: bool = False,
    allow_producer_id: bool = False,
    require_keys: bool = False,
    timestamp_ms_min: int = INT64_MIN,
    timestamp_ms_max: int = INT64_MAX,
    schemas: SchemaIds | None = None,
) -> list[BatchHeader]:
    """Check a producer's batches as a broker must before it appends them; returns the batches' headers, in order.

    The demands on a producer's batches are: whole batches back to back with correct CRCs; offset deltas exactly 0..n-1,
    n > 0; every record well-formed to its last byte and within the limits; create time; no control batch, and no
    transaction or producer id unless allowed. Each returned header has the true max timestamp: ``with_max_timestamps``
    corrects the bytes, as Kafka's brokers do. ``schemas`` collects the schema ids of the batches.

    Raises CorruptMessageError (framing, CRC), InvalidRecordError (structure, limits, control batch, a record without
    key where ``require_keys``, more than SCHEMA_IDS_MAX schema ids in a batch), InvalidTimestampError (outside of
    min..max, or the producer claims log-append time), UnsupportedVersionError (transactional or with a producer id,
    where that is not allowed).
    """
    headers = []
    for position, header in iterate_headers(data):
        check_batch(data, position)
        check_producer_fields(header, allow_control, allow_transactional, allow_producer_id)
        body = batch_body(data, position, header, limits)
        latest_ms = INT64_MIN
        for index, record in enumerate(read_records(body, header, limits)):
            if record.offset_delta != index:
                raise bad_record(header, index, f"the record's offset delta is {record.offset_delta}, not {index}")
            if require_keys and record.key is None:
                raise bad_record(header, index, "the record has no key, which a compacted topic needs")
            timestamp_ms = header.base_timestamp_ms + record.timestamp_delta
            if timestamp_ms != NO_TIMESTAMP and not timestamp_ms_min <= timestamp_ms <= timestamp_ms_max:
                raise InvalidTimestampError(
                    f"record {index} of a batch has timestamp {timestamp_ms}, outside of the topic's limits: "
                    f"{timestamp_ms_min} to {timestamp_ms_max}"
                )
            latest_ms = max(latest_ms, timestamp_ms)
        if schemas is not None:
            schemas.batches.append(_schemas_of(body, header, limits, schemas))
        headers.append(header._replace(max_timestamp_ms=latest_ms))
    if not headers:
        raise InvalidRecordError("not a record batch: the data is empty")
    return headers


def check_plain_batch(
    data: Buffer, size_max: int, require_keys: bool, timestamp_ms_min: int, timestamp_ms_max: int
) -> BatchHeader | None:
    """The header of a producer's only batch, if it has at most ``size_max`` bytes, is neither compressed nor
    transactional, and ``validate_batches`` accepts it with its max timestamp. None: it is not plain, or not sound;
    ``validate_batches`` says what is wrong."""
    if len(data) > size_max:
        return None
    try:
        given = read_header(data)
        (header,) = validate_batches(
            data,
            allow_producer_id=True,
            require_keys=require_keys,
            timestamp_ms_min=timestamp_ms_min,
            timestamp_ms_max=timestamp_ms_max,
        )
    except (HeadraceError, ValueError):  # ValueError: several batches
        return None
    return given if given == header and not given.attributes & COMPRESSION_MASK else None


def _schemas_of(body: Buffer, header: BatchHeader, limits: DecodeLimits, wanted: SchemaIds) -> BatchSchemas:
    """The schema ids of a batch whose records are well-formed."""
    found = BatchSchemas({}, {})
    for index, record in enumerate(read_records(body, header, limits)):
        if wanted.of_keys and record.key is not None:
            _note_schema(found.keys, record.key, index, header.base_offset)
        if wanted.of_values and record.value is not None:
            _note_schema(found.values, record.value, index, header.base_offset)
    return found


def _note_schema(places: dict[int, list[int]], data: Buffer, index: int, base_offset: int) -> None:
    is_framed = len(data) >= 5 and data[0] == 0
    schema_id = max(int.from_bytes(data[1:5], "big", signed=True), NO_SCHEMA) if is_framed else NO_SCHEMA
    indexes = places.get(schema_id)
    if indexes is None:
        if len(places) >= SCHEMA_IDS_MAX:
            raise too_many_schemas(index, base_offset)
        indexes = places[schema_id] = []
    if len(indexes) < SCHEMA_PLACES_MAX:
        indexes.append(index)
