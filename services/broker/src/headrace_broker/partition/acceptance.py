"""Check whether a producer's batches may enter a topic's log.

``headrace_core.log.appending`` checks the batches against the topic's configuration. The module acceptance.py also
refuses batches that are too large, or whose first header is invalid, before it decompresses records.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_core.errors import (
    CorruptMessageError,
    HeadraceError,
    InvalidRecordError,
    RecordListTooLargeError,
    RecordTooLargeError,
)
from headrace_core.log.appending import in_topic_codec, topic_codec, validate
from headrace_core.log.config import LogConfig
from headrace_core.log.files import Buffer
from headrace_core.records import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    SchemaIds,
    is_as_sent,
    read_header,
)
from headrace_core.records.compression import decompress
from headrace_core.records.types import COMPRESSION_MASK, LENGTH_PREFIX_BYTES
from headrace_core.types import TopicPartition

#: Maximum bytes of a compressed batch, and of its records, that the event loop checks without another thread. 1 KiB of
#: gzip or zstd may become a megabyte, and one request has 2,000 batches.
_INLINE_COMPRESSED_BYTES_MAX, _INLINE_INFLATED_BYTES_MAX = 1024, 4096


def needs_thread(records: Buffer, config: LogConfig) -> bool:
    """Whether the check of ``records`` would stall the calling thread. Decompression and recompression take
    milliseconds, or much longer for malicious input. All checks except decompression and recompression run at several
    GB/s."""
    wanted = None if config.compression_type == "producer" else topic_codec(config)
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            codec, size = header.attributes & COMPRESSION_MASK, header.batch_length + LENGTH_PREFIX_BYTES
            if wanted not in (None, Compression.NONE, codec):
                return True
            if codec:
                if size > _INLINE_COMPRESSED_BYTES_MAX:
                    return True
                body = memoryview(records)[position + HEADER_BYTES : position + size]
                decompress(Compression(codec), body, _INLINE_INFLATED_BYTES_MAX)
            position += size
    except CorruptMessageError:
        return False  # no batch before the wrong header needs a thread, and ``accept`` raises the error
    except HeadraceError:
        return True  # the records are damaged, or larger
    return False


def accept(
    records: Buffer,
    config: LogConfig,
    partition: TopicPartition,
    now_ms: int,
    *,
    allow_transactional: bool = False,
    schemas: SchemaIds | None = None,
) -> tuple[Buffer, Sequence[BatchHeader]]:
    """Return the batches and their headers, ready for the log, in the topic's codec (``compression.type``). The check
    of a producer's batches reads all bytes once, and may run on any thread. ``schemas`` collects the schema ids of the
    batches.

    Raises CorruptMessageError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError (a batch above
    ``max.message.bytes``), RecordListTooLargeError (the records do not fit into a segment). InvalidRecordError also
    means a transactional batch without ``allow_transactional``, and wrong headers of batches with correct CRCs. Clients
    send the records again after CorruptMessageError, which does not help if the client itself built a wrong header.
    """
    if not records:
        raise InvalidRecordError(f"{partition}: the request has no records")
    if len(records) > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{partition}: {len(records)} bytes of records do not fit into a segment "
            f"(segment.bytes={config.segment_bytes}): lower the producer's batch.size, or raise the topic's limit"
        )
    try:
        size = read_header(records).batch_length + LENGTH_PREFIX_BYTES
        if size > config.message_bytes_max and config.compression_type == "producer":
            raise RecordTooLargeError(
                f"{partition}: a batch of {size} bytes is larger than max.message.bytes="
                f"{config.message_bytes_max}: lower the producer's batch.size, or raise the topic's limit"
            )
        data, headers = validate(records, config, now_ms, allow_transactional=allow_transactional, schemas=schemas)
        return (data, headers) if config.compression_type == "producer" else in_topic_codec(data, headers, config)
    except CorruptMessageError as error:
        raise _fault_of(records, error) from None


def first_header(records: bytes) -> BatchHeader:
    """The header of the first batch. Raises CorruptMessageError or InvalidRecordError, as ``accept`` does."""
    try:
        return read_header(records)
    except CorruptMessageError as error:
        raise _fault_of(records, error) from None


def _fault_of(records: Buffer, error: CorruptMessageError) -> HeadraceError:
    return InvalidRecordError(error.message) if is_as_sent(records) else error


def check_transactional(header: BatchHeader, partition: TopicPartition) -> None:
    """Check the only batch of an append with a transaction. Raises InvalidRecordError."""
    if not header.is_transactional or header.producer_id < 0:
        raise InvalidRecordError(
            f"{partition}: the request has a transactional id, but the batch is not part of a transaction"
        )
