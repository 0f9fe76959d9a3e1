"""Encode and decode the records of the metadata log.

The metadata log is an ordinary log of record batches (headrace_core.records), which all log tools can read. **One
decision of the controller is one batch**, so a decision is written and read as a whole. Each record's value is

    byte 0      framing version, 1
    byte 1...   msgpack array: the kind's tag, then the fields of the struct in records.py

The batch's leader epoch is the controller's term; the batch's timestamp is the time of the decision. A control batch
(the first entry of a new leader) occupies offsets but changes no metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..errors import CorruptLogError, UnsupportedVersionError
from ..records import decode_batch, encode_batch, read_header
from .records import MetadataRecord

FRAMING_VERSION = 1
_FRAMING = bytes([FRAMING_VERSION])

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[MetadataRecord] = msgspec.msgpack.Decoder(MetadataRecord)


class MetadataBatch(msgspec.Struct, frozen=True):
    """One batch of the metadata log: the records of one decision, with the offsets [base_offset, next_offset), which a
    controller wrote in term ``epoch``."""

    base_offset: int
    next_offset: int
    epoch: int
    records: tuple[MetadataRecord, ...]


def encode_record(record: MetadataRecord) -> bytes:
    return _FRAMING + _encoder.encode(record)


def decode_record(value: bytes | memoryview | None) -> MetadataRecord:
    """Decode the value of a log record to a metadata record. Raises UnsupportedVersionError when a newer Headrace wrote
    the value. CorruptLogError: damaged."""
    if not value:
        raise CorruptLogError("a metadata record is empty; the metadata log is damaged")
    if value[0] != FRAMING_VERSION:
        raise UnsupportedVersionError(
            f"metadata record has framing version {value[0]}, but this node supports at most {FRAMING_VERSION}: "
            "upgrade this node"
        )
    try:
        return _decoder.decode(memoryview(value)[1:])
    except msgspec.ValidationError as error:
        raise UnsupportedVersionError(f"metadata record of an unknown kind ({error}): upgrade this node") from None
    # msgspec raises UnicodeDecodeError for a text that is not UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptLogError(f"metadata record cannot be decoded: {error}") from None


def encode_decision(records: Sequence[MetadataRecord], *, timestamp_ms: int, base_offset: int, epoch: int) -> bytes:
    """Encode the records of one decision (at least one) as a batch."""
    assert records, "a decision without records is not written"
    return encode_batch(
        [(timestamp_ms, None, encode_record(record), ()) for record in records],
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def decode_batches(data: bytes | memoryview) -> Iterator[MetadataBatch]:
    """Decode the batches in ``data``, which holds whole batches back to back. Raises CorruptMessageError for a damaged
    batch."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        # Decode control batches too, which checks their CRC: a flipped control bit must not hide a batch of records.
        decoded = decode_batch(data, position)
        records = () if header.is_control else tuple(decode_record(record.value) for record in decoded)
        yield MetadataBatch(header.base_offset, header.next_offset, header.leader_epoch, records)
        position += header.size
