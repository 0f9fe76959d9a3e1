"""Read and change whole batches without reading their records.

Each function takes a buffer and a position in the buffer, and copies no bytes except the bytes that it returns. For a
damaged batch, functions raise CorruptMessageError, which names the position.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ..errors import CorruptMessageError, InvalidRecordError, InvalidTimestampError, UnsupportedVersionError
from ..types import TimestampType
from .compression import compress, decompress
from .crc import crc32c
from .types import (
    COMPRESSION_MASK,
    CRC_START,
    DEFAULT_LIMITS,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    BatchSpan,
    Buffer,
    Compression,
    DecodeLimits,
)

#: Results of ``check_slice`` for sound batches: SLICE_EXACT when the offsets of the batches have no gap, else
#: SLICE_HAS_GAPS.
SLICE_EXACT, SLICE_HAS_GAPS = -1, -2

_OFFSET_MAX = 2**63 - 1
_PLACE = re.compile(r"\Abatch at position \d+")
_BASE = struct.Struct(">q4xi")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
MAX_TIMESTAMP = struct.Struct(">35xq")  #: Reads the max timestamp of the batch that begins at a position.
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 8, 17, 21, 35


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Read the batch header at ``position``; the buffer need not hold the rest of the batch.

    Raises CorruptMessageError when fewer than 61 bytes follow, or when the 61 bytes cannot be the header of a version-2
    batch.
    """
    left = len(data) - position
    if position < 0 or left < HEADER_BYTES:
        raise CorruptMessageError(
            f"batch at position {position}: a header has {HEADER_BYTES} bytes, only {max(left, 0)} are there"
        )
    header = BatchHeader._make(HEADER.unpack_from(data, position))
    wrong = _what_is_wrong(header)
    if wrong:
        raise CorruptMessageError(f"batch at position {position}: {wrong}")
    return header


def _what_is_wrong(header: BatchHeader) -> str | None:
    if header.magic != MAGIC:
        return f"magic is {header.magic}, only version {MAGIC} of the format is understood"
    if header.batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        return f"batch length {header.batch_length} is too small for its own header"
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        return f"its attributes name compression {header.attributes & COMPRESSION_MASK}, which is unknown"
    if header.base_offset < 0 or header.base_offset > _OFFSET_MAX - max(header.last_offset_delta, 0) - 1:
        return f"base offset {header.base_offset} is out of range"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"record count {header.record_count} does not fit last offset delta {header.last_offset_delta}"
    return None


def check_batch(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``; CorruptMessageError unless the batch is complete and its CRC
    correct."""
    header = read_whole_header(data, position)
    found = crc32c(memoryview(data)[position + CRC_START : position + header.size])
    if found != header.crc:
        raise CorruptMessageError(
            f"batch at position {position} (base offset {header.base_offset}, {header.size} bytes): "
            f"CRC-32C is {found:#010x}, its header says {header.crc:#010x}"
        )
    return header


def is_as_sent(data: Buffer) -> bool:
    """Whether ``data`` are whole batches with correct CRCs. A header of such a batch can still contradict itself: the
    sender built the header so, and nothing damaged the batch on its way."""
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_BYTES:
            return False
        header = BatchHeader._make(HEADER.unpack_from(data, position))
        end = position + header.size
        if header.size < HEADER_BYTES or end > len(data):
            return False
        if crc32c(memoryview(data)[position + CRC_START : end]) != header.crc:
            return False
        position = end
    return True


def read_whole_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``, without a CRC check; CorruptMessageError unless the batch is
    complete."""
    header = read_header(data, position)
    if header.size > len(data) - position:
        raise CorruptMessageError(
            f"batch at position {position}: the header says {header.size} bytes, only {len(data) - position} are there"
        )
    return header


def iterate_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of batches that lie back to back and fill ``data``; CorruptMessageError for a partial
    batch."""
    position = 0
    while position < len(data):
        header = read_whole_header(data, position)
        yield position, header
        position += header.size


def check_batch_count(data: Buffer, most: int, owner: object) -> None:
    """Refuse more than ``most`` batches for ``owner``, the partition that an error names. The function reads only the
    lengths of the first ``most`` batches, so that millions of small batches cost nothing.

    Raises InvalidRecordError, or CorruptMessageError if the further bytes may be damage on the way: the first batches
    do not match their CRCs. Incomplete batches pass, because the check of the batches themselves refuses them.
    """
    position, size = 0, len(data)
    for _ in range(most):
        if size - position < HEADER_BYTES:
            return
        length = _LENGTH.unpack_from(data, position + _LENGTH_AT)[0] + LENGTH_PREFIX_BYTES
        position += length
        if length < HEADER_BYTES or position + HEADER_BYTES > size:
            return
    first = memoryview(data)[:position]
    if not is_as_sent(first):
        raise CorruptMessageError(
            f"{owner}: {size} bytes of records, but the first {position} bytes, which should be whole batches, do not "
            "match their CRC"
        )
    allowed = "exactly one batch" if most == 1 else f"at most {most} batches"
    raise InvalidRecordError(
        f"{owner}: a request may have {allowed} of records for a partition, but {size - position} bytes follow; send "
        "each further batch in a request of its own"
    )


def split_batches(data: Buffer) -> list[BatchSpan]:
    """Find the position of each batch from the headers, without CRC checks. Raises CorruptMessageError when ``data``
    does not consist of whole batches."""
    return [
        BatchSpan(position, header.size, header.base_offset, header.last_offset)
        for position, header in iterate_headers(data)
    ]


def check_slice(data: Buffer, offset: int, end_offset: int, epochs: Sequence[tuple[int, int]] | None = None) -> int:
    """Check that ``data`` is a correct result of a log read at ``offset``. The batches must be undamaged, back to back
    and in ascending order. The first batch ends at or above ``offset``, all batches end below ``end_offset``, and each
    batch has the leader epoch of its offsets.

    ``epochs``: (epoch, start offset) of each epoch, ascending; None: epochs are not checked. The CRC does not cover a
    batch's offset, length, magic and epoch, so only the neighbouring batches and the epochs confirm these four fields.
    Returns SLICE_EXACT when the offsets have no gap up to ``end_offset``: any batch with wrong offsets would have been
    found. Returns SLICE_HAS_GAPS when the offsets have gaps: the caller must then check the batches before and after
    ``data``. If a batch is faulty, returns the position of the first faulty batch, which ``slice_fault`` describes.
    """
    position, expected, is_exact = 0, offset, True
    while position < len(data):
        try:
            header = check_batch(data, position)
        except CorruptMessageError:
            return position
        if header.base_offset < expected and (position or header.last_offset < offset):
            return position
        if header.base_offset > expected:
            is_exact = False
        if header.last_offset >= end_offset:
            return position
        if epochs is not None:
            _, _, least, most = epoch_range(epochs, header.last_offset)
            if not least <= header.leader_epoch <= most:
                return position
        expected = header.next_offset
        position += header.size
    return SLICE_EXACT if is_exact and expected == end_offset else SLICE_HAS_GAPS


def epoch_range(epochs: Sequence[tuple[int, int]], offset: int) -> tuple[int, int, int, int]:
    """(from, to, lowest, highest): the batches that end at ``from`` <= offset < ``to`` have a leader epoch of
    ``lowest`` to ``highest``. A batch before the start of the first known epoch may have no epoch (-1), an earlier
    epoch, or the first known epoch. A batch may have an epoch before the first known epoch, because advancing a log's
    start moves the start of the first epoch."""
    at = bisect_right(epochs, offset, key=_start_offset) - 1
    end = epochs[at + 1][1] if at + 1 < len(epochs) else _OFFSET_MAX
    if at < 0:
        return 0, end, -1, epochs[0][0] if epochs else -1
    epoch, start = epochs[at]
    return start, end, epoch, epoch


def _start_offset(entry: tuple[int, int]) -> int:
    return entry[1]


def slice_fault(
    data: Buffer,
    position: int,
    expected: int,
    end_offset: int,
    epochs: Sequence[tuple[int, int]] | None = None,
) -> str:
    """Describe the fault of the batch at ``position``, where a batch with offsets from ``expected`` on should begin."""
    try:
        header = check_batch(data, position)
    except CorruptMessageError as error:
        return without_position(error.message)
    offsets = f"offsets {header.base_offset} to {header.last_offset}"
    if header.base_offset < expected:
        return f"{offsets} cannot follow offset {expected - 1}"
    if header.last_offset >= end_offset:
        return f"{offsets}, but the next batch begins with {end_offset}"
    if epochs is not None:
        _, _, least, most = epoch_range(epochs, header.last_offset)
        if not least <= header.leader_epoch <= most:
            known = f"{most}" if least == most else f"{least} to {most}"
            return f"leader epoch {header.leader_epoch}, but the epoch of {offsets} is {known} by the epoch checkpoint"
    return f"{offsets}: the batch is intact now, but was damaged when it was read first"


def without_position(message: str) -> str:
    """Return an error's text without its position in the buffer, for callers that know the position in the file."""
    return _PLACE.sub("the batch", message, count=1)


def whole_batches_end(data: Buffer) -> int:
    """Find the end of the last whole batch; a part of one more batch may follow."""
    size, position = len(data), 0
    while size - position >= HEADER_BYTES:
        end = position + read_header(data, position).size
        if end > size:
            break
        position = end
    return position


def check_producer_fields(
    header: BatchHeader, allow_control: bool, allow_transactional: bool, allow_producer_id: bool
) -> None:
    """Raise the errors of ``validate_batches`` that concern the header of a producer's batch, without reading
    records."""
    where = f"the batch with base offset {header.base_offset}"
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{where}: the header has the record count {header.record_count} and the last offset delta "
            f"{header.last_offset_delta}; the delta must be the count minus 1"
        )
    if header.timestamp_type is not TimestampType.CREATE_TIME:
        raise InvalidTimestampError(f"{where}: only a broker may set the timestamp type LogAppendTime")
    if header.is_control and not allow_control:
        raise InvalidRecordError(f"{where}: clients are not allowed to write control batches")
    if header.is_transactional and not allow_transactional:
        raise InvalidRecordError(
            f"{where}: the batch is part of a transaction, but the request has no transactional id"
        )
    if header.producer_id >= 0:
        if not allow_producer_id:
            raise UnsupportedVersionError(
                f"{where}: the batch has producer id {header.producer_id}, but the server does not support "
                "idempotence: set enable.idempotence=false"
            )
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecordError(
                f"{where}: producer id {header.producer_id} needs an epoch and a base sequence of 0 or above"
            )


def with_base(data: Buffer, position: int, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of the batch at ``position`` with a new base offset and leader epoch; the CRC does not
    cover the 16 bytes."""
    start = bytearray(_BASE.pack(base_offset, leader_epoch))
    start[8:12] = data[position + 8 : position + 12]
    return bytes(start)


def with_log_append_time(batch: Buffer, now_ms: int) -> bytes:
    """Copy one whole batch; all records of the copy have the log's time ``now_ms`` (LogAppendTime)."""
    header = read_header(batch)
    out = bytearray(memoryview(batch)[: header.size])
    _ATTRIBUTES.pack_into(out, _ATTRIBUTES_AT, header.attributes | TIMESTAMP_TYPE_BIT)
    _TIMESTAMP.pack_into(out, _MAX_TIMESTAMP_AT, now_ms)
    return _sealed(out)


def with_max_timestamps(data: Buffer, headers: Sequence[BatchHeader]) -> Buffer:
    """Return ``data`` with each batch's max timestamp taken from ``headers``, the result of ``validate_batches`` for
    ``data``.

    Kafka's brokers correct a wrong max timestamp instead of refusing the batch. Returns ``data`` itself if all max
    timestamps are correct; only faulty clients send wrong max timestamps.
    """
    out: bytearray | None = None
    position = 0
    for header in headers:
        if MAX_TIMESTAMP.unpack_from(data, position)[0] != header.max_timestamp_ms:
            out = bytearray(data) if out is None else out
            _TIMESTAMP.pack_into(out, position + _MAX_TIMESTAMP_AT, header.max_timestamp_ms)
            _seal(out, position, position + header.size)
        position += header.size
    return data if out is None else bytes(out)


def recompress(
    batch: Buffer, compression: Compression, level: int | None = None, *, limits: DecodeLimits = DEFAULT_LIMITS
) -> bytes:
    """Copy one whole batch and compress its records with another codec; all other fields are unchanged."""
    header = read_header(batch)
    view = memoryview(batch)[: header.size]
    records = decompress(header.compression, view[HEADER_BYTES:], limits.max_decompressed_bytes)
    body = compress(compression, records, level)
    changed = header._replace(
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
        attributes=(header.attributes & ~COMPRESSION_MASK) | compression,
    )
    out = bytearray(HEADER.pack(*changed))
    out += body
    return _sealed(out)


def assemble_batch(
    body: Buffer,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
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
    """Build a batch from encoded records: compresses the records, writes the header, computes the CRC."""
    packed = compress(compression, body, level)
    out = bytearray(
        HEADER.pack(
            base_offset,
            HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed),
            leader_epoch,
            MAGIC,
            0,
            attributes_of(compression, timestamp_type, transactional=transactional, control=control),
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
    )
    out += packed
    return _sealed(out)


def attributes_of(
    compression: Compression, timestamp_type: TimestampType, *, transactional: bool = False, control: bool = False
) -> int:
    """The attributes field of a batch."""
    return compression | timestamp_type << 3 | transactional << 4 | control << 5


def _seal(out: bytearray, start: int, end: int) -> None:
    _CRC.pack_into(out, start + _CRC_AT, crc32c(memoryview(out)[start + CRC_START : end]))


def _sealed(out: bytearray) -> bytes:
    _seal(out, 0, len(out))
    return bytes(out)
