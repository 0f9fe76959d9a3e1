"""Prepare a producer's batches for the log. The functions are pure: they make buffers from bytes, headers and a time.

Usually no records are copied: each batch is written as two buffers, sixteen new bytes and a view of all bytes after
them. The sixteen bytes are base offset, length and leader epoch, which the CRC does not cover. A new batch is built
only for LogAppendTime or where the topic's ``compression.type`` differs from the batch's codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..config import LONG_MAX
from ..errors import (
    CorruptMessageError,
    HeadraceError,
    RecordListTooLargeError,
    RecordTooLargeError,
    RefusedRecordsError,
)
from ..records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_MS_MIN,
    BatchHeader,
    Compression,
    RecordIterator,
    SchemaIds,
    read_header,
    recompress,
    validate_batches,
    with_log_append_time,
    with_max_timestamps,
)
from ..records.batches import MAX_TIMESTAMP
from ..records.compression import check_lz4_frame
from ..records.types import COMPRESSION_MASK, LENGTH_PREFIX_BYTES
from ..types import TimestampType
from .config import LogConfig
from .fencing import Fence
from .files import Buffer
from .index import BatchMeta
from .producer_state import Remembered
from .transactions import Marker, TransactionalAppend

_BASE = struct.Struct(">qii")  #: A batch's first 16 bytes: base offset, batch length, leader epoch.
#: Maximum number of a batch's invalid records that an error lists; each record takes about 100 bytes of the response.
FAULTS_MAX = 100


def _ignored(outcome: object) -> None:
    """Ignore the outcome of an append that no caller waits for: the default of ``Append.done``."""


@dataclass(slots=True, kw_only=True, eq=False)
class Append:
    """A request to append whole batches: either all batches are appended, or none.

    ``headers``: the headers that ``validate`` returned with ``data``; None: the log validates ``data`` itself.

    ``replicated``: the batches come from the partition's leader in ``leader_epoch`` and keep their offsets and epochs;
    ``headers`` is then the result of ``replicated.check_replicated``. ``follows``: the log end offset at which the
    leader expects the follower to append the batches; None: unknown. Because offsets may have gaps, only ``follows``
    shows that no batch was lost between the log's end and the received batches.

    ``fence``: conditions for a coordinator's append to its shard (a partition of ``__consumer_offsets`` or
    ``__transaction_state``); the batches already contain the fence's shard epoch.

    ``transaction``: the transaction of the batches, or the marker to append; ``data`` is then transactional batches of
    one producer, or the marker as one batch. If ``transaction`` is None, the log does not check transactions.

    ``joined``: each batch is another producer's, and ``data`` is a bytearray that the log may change. A batch that the
    log refuses stops none of the others; the outcome is then a list with one outcome for each batch.

    The directory's writer calls ``done`` in the event loop, with the outcome or an exception.
    """

    data: Buffer
    leader_epoch: int
    headers: Sequence[BatchHeader] | None = None
    replicated: bool = False
    joined: bool = False
    follows: int | None = None
    fence: Fence | None = None
    transaction: TransactionalAppend | Marker | None = None
    done: Callable[[Any], None] = _ignored


class AppendInfo(NamedTuple):
    """The outcome of an append."""

    base_offset: int  #: Offset of the append's first record.
    next_offset: int  #: Offset after the append's last record.
    #: The timestamp that the log gave the records (LogAppendTime); -1 if the records keep their own timestamps
    #: (CreateTime).
    log_append_time_ms: int
    size: int  #: Bytes written.
    log_start_offset: int
    max_timestamp_ms: int
    #: Whether the append was a retry that added no batch, because the log already has its batches.
    is_duplicate: bool = False


@dataclass(slots=True, eq=False)
class Write:
    """The batches of one append with their final offsets: what a write adds to a segment."""

    buffers: list[Buffer]
    metas: list[BatchMeta]
    #: The batches with a producer id, each as (header that the producer sent, place in the log).
    producers: list[tuple[BatchHeader, BatchMeta]]
    info: AppendInfo  #: The outcome of the append once it is written.
    #: Former entries of the producer table, which are restored if the write fails.
    remembered: list[Remembered] = field(default_factory=list)


def timestamp_limits(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest timestamp in ms that the topic accepts now."""
    if config.timestamp_type is not TimestampType.CREATE_TIME:
        return -LONG_MAX - 1, LONG_MAX  # LogAppendTime replaces all timestamps
    earliest_ms, latest_ms = TIMESTAMP_MS_MIN, LONG_MAX
    if config.timestamp_before_max_ms < LONG_MAX:
        earliest_ms = max(now_ms - config.timestamp_before_max_ms, TIMESTAMP_MS_MIN)
    if config.timestamp_after_max_ms < LONG_MAX - now_ms:
        latest_ms = now_ms + config.timestamp_after_max_ms
    return earliest_ms, latest_ms


def validate(
    data: Buffer,
    config: LogConfig,
    now_ms: int,
    *,
    allow_transactional: bool = False,
    schemas: SchemaIds | None = None,
) -> tuple[Buffer, list[BatchHeader]]:
    """Check a producer's batches against the topic's rules: CRC, structure of every record, timestamp bounds (KIP-937),
    keys in a compacted topic, lz4 frames that Kafka's clients can read. ``prepare`` checks the sizes of the batches.
    ``validate`` reads all bytes once; it runs before the append, in any thread. ``schemas`` collects the schema ids of
    the batches; the caller checks the ids.

    Returns the bytes (corrected where a max timestamp was wrong) and the headers of the batches, as arguments for
    ``Append``. Raises the errors of ``records.validate_batches``: CorruptMessageError, InvalidRecordError,
    InvalidTimestampError, UnsupportedVersionError.
    """
    earliest_ms, latest_ms = timestamp_limits(config, now_ms)
    try:
        headers = validate_batches(
            data,
            require_keys=config.cleanup_compact,
            allow_transactional=allow_transactional,
            allow_producer_id=True,
            timestamp_ms_min=earliest_ms,
            timestamp_ms_max=latest_ms,
            schemas=schemas,
        )
    except RefusedRecordsError as error:
        error.faults = error.faults or _faults(
            data, require_keys=config.cleanup_compact, earliest_ms=earliest_ms, latest_ms=latest_ms
        )
        raise
    position, is_exact = 0, True
    for header in headers:
        end = position + header.batch_length + LENGTH_PREFIX_BYTES
        if header.attributes & COMPRESSION_MASK == Compression.LZ4:
            check_lz4_frame(memoryview(data)[position + HEADER_BYTES : end])  # as Kafka's clients read it
        if MAX_TIMESTAMP.unpack_from(data, position)[0] != header.max_timestamp_ms:
            is_exact = False
        position = end
    return data if is_exact else with_max_timestamps(data, headers), headers


def _faults(data: Buffer, *, require_keys: bool, earliest_ms: int, latest_ms: int) -> tuple[tuple[int, str], ...]:
    """Return the first FAULTS_MAX records of the first batch that break the topic's rules: each record's index in the
    batch, and the record's fault. The returned tuple is empty for a batch that cannot be read."""
    faults: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(RecordIterator(memoryview(data)[: read_header(data).size])):
            if require_keys and record.key is None:
                faults.append((index, "a compacted topic does not accept a record without a key"))
            elif record.timestamp_ms != NO_TIMESTAMP and not earliest_ms <= record.timestamp_ms <= latest_ms:
                faults.append((index, f"timestamp {record.timestamp_ms} is outside of {earliest_ms} to {latest_ms}"))
            if len(faults) >= FAULTS_MAX:
                break
    except HeadraceError:
        return ()
    return tuple(faults)


def topic_codec(config: LogConfig) -> Compression | None:
    """The codec that the topic's configuration demands; None: keep the producer's codec."""
    if config.compression_type == "producer":
        return None
    return Compression.NONE if config.compression_type == "uncompressed" else Compression.parse(config.compression_type)


def _level(config: LogConfig) -> int | None:
    """The topic's compression level; None: the codec's default level. For gzip, which has no level -1, Kafka's level -1
    means the default level."""
    return None if config.compression_level == -1 and config.compression_type == "gzip" else config.compression_level


def in_topic_codec(
    data: Buffer, headers: Sequence[BatchHeader], config: LogConfig
) -> tuple[Buffer, Sequence[BatchHeader]]:
    """Recompress valid batches with the topic's codec, in any thread. Without a call of ``in_topic_codec``, ``prepare``
    recompresses the batches in the directory writer, while all other appends wait."""
    wanted = topic_codec(config)
    if wanted is None or all(header.compression is wanted for header in headers):
        return data, headers
    view, position = memoryview(data), 0
    batches: list[Buffer] = []
    for header in headers:
        batch: Buffer = view[position : position + header.size]
        position += header.size
        batches.append(batch if header.compression is wanted else recompress(batch, wanted, _level(config)))
    whole = b"".join(batches)
    return whole, headers_of(whole)


def prepare(
    data: Buffer,
    headers: Sequence[BatchHeader],
    config: LogConfig,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    log_start_offset: int = 0,
) -> Write:
    """Set the batches' offsets and leader epoch, and apply the topic's codec and timestamp type.

    Raises RecordTooLargeError (a batch exceeds max.message.bytes), RecordListTooLargeError (all batches together exceed
    segment.bytes), CorruptMessageError (the headers do not belong to the data).
    """
    append_time_ms = now_ms if config.timestamp_type is TimestampType.LOG_APPEND_TIME else -1
    rewrite = append_time_ms >= 0 or config.compression_type != "producer"
    view = memoryview(data)
    buffers: list[Buffer] = []
    metas: list[BatchMeta] = []
    producers: list[tuple[BatchHeader, BatchMeta]] = []
    position = size = 0
    latest_ms = -1
    offset = base_offset
    for header in headers:
        batch_size = header.batch_length + LENGTH_PREFIX_BYTES
        batch = view[position : position + batch_size]
        position += batch_size
        max_timestamp_ms = header.max_timestamp_ms
        if rewrite:
            batch = memoryview(_rewritten(batch, header, config, append_time_ms))
            batch_size = len(batch)
            if append_time_ms >= 0:
                max_timestamp_ms = append_time_ms
        if batch_size > config.message_bytes_max and not header.is_control:
            raise RecordTooLargeError(
                f"a record batch of {batch_size} bytes ({header.record_count} records) is above the topic's "
                f"max.message.bytes={config.message_bytes_max}: lower the producer's batch.size, or raise the "
                "topic's limit"
            )
        last_offset = offset + header.last_offset_delta
        buffers += (_BASE.pack(offset, batch_size - LENGTH_PREFIX_BYTES, leader_epoch), batch[_BASE.size :])
        meta = BatchMeta(batch_size, offset, last_offset, max_timestamp_ms)
        metas.append(meta)
        if header.producer_id >= 0:
            producers.append((header, meta))
        if max_timestamp_ms > latest_ms:
            latest_ms = max_timestamp_ms
        size += batch_size
        offset = last_offset + 1
    if position != len(view) or not metas:
        raise CorruptMessageError(
            f"the append has {len(view)} bytes of record batches, but the batches' headers account for {position} bytes"
        )
    if size > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{size} bytes of record batches in one append are above the topic's segment.bytes={config.segment_bytes}: "
            "lower the producer's batch.size, or raise the topic's limit"
        )
    info = AppendInfo(base_offset, offset, append_time_ms, size, log_start_offset, latest_ms)
    return Write(buffers, metas, producers, info)


def prepare_joined(
    data: bytearray,
    headers: Sequence[BatchHeader],
    config: LogConfig,
    *,
    base_offset: int,
    leader_epoch: int,
    log_start_offset: int = 0,
) -> Write:
    """As ``prepare``, for the batches of a joined append, which the caller has checked against the topic's limits: a
    topic that rewrites batches takes no joined appends. The offsets and the leader epoch are set in ``data`` itself,
    which is written as one buffer."""
    metas: list[BatchMeta] = []
    producers: list[tuple[BatchHeader, BatchMeta]] = []
    position, offset, latest_ms = 0, base_offset, -1
    for header in headers:
        length, max_timestamp_ms = header.batch_length, header.max_timestamp_ms
        _BASE.pack_into(data, position, offset, length, leader_epoch)
        last_offset = offset + header.last_offset_delta
        size = length + LENGTH_PREFIX_BYTES
        meta = BatchMeta(size, offset, last_offset, max_timestamp_ms)
        metas.append(meta)
        if header.producer_id >= 0:
            producers.append((header, meta))
        if max_timestamp_ms > latest_ms:
            latest_ms = max_timestamp_ms
        position += size
        offset = last_offset + 1
    assert position == len(data) <= config.segment_bytes, "the headers are not those of the joined batches"
    return Write([data], metas, producers, AppendInfo(base_offset, offset, -1, position, log_start_offset, latest_ms))


def _rewritten(batch: memoryview, header: BatchHeader, config: LogConfig, append_time_ms: int) -> Buffer:
    out: Buffer = batch
    wanted = topic_codec(config)
    if wanted is not None and wanted is not header.compression and not header.is_control:
        out = recompress(out, wanted, _level(config))
    return with_log_append_time(out, append_time_ms) if append_time_ms >= 0 else out


def headers_of(data: Buffer) -> list[BatchHeader]:
    """Read the headers of batches that are known to be valid (from a log, or checked before)."""
    headers = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        headers.append(header)
        position += header.size
    return headers


#: Outcome of one of several appends: an AppendInfo, or the error with which the append was refused.
AppendOutcome = AppendInfo | HeadraceError
#: Outcome of a joined append of which a batch was refused, or was in the log already: the outcomes of its batches.
Outcomes = AppendOutcome | list[Any]
