"""Encode and decode the records of the metadata log.

The log is an ordinary log of record batches (headrace_core.records), which all log tools read. **One decision is one
batch**: both are written and read whole or not at all. Each record's value is

    byte 0      framing version, 1
    byte 1...   msgpack array: the kind's tag, then the fields of the struct in records.py

The batch's leader epoch is the controller's term, its timestamp the time of the decision. A control batch (the first
entry of a new leader) uses offsets, but changes no metadata.
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
    """One batch of the metadata log: offsets [base_offset, next_offset), decided in term ``epoch``."""

    base_offset: int
    next_offset: int
    epoch: int
    records: tuple[MetadataRecord, ...]


def encode_record(record: MetadataRecord) -> bytes:
    return _FRAMING + _encoder.encode(record)


def decode_record(value: bytes | memoryview | None) -> MetadataRecord:
    """The record of a value. UnsupportedVersionError: written by a newer Headrace. CorruptLogError: damaged."""
    if not value:
        raise CorruptLogError("a metadata record is empty; the metadata log is damaged")
    if value[0] != FRAMING_VERSION:
        raise UnsupportedVersionError(
            f"metadata record framing {value[0]} is newer than this version's {FRAMING_VERSION}: upgrade this node"
        )
    try:
        return _decoder.decode(memoryview(value)[1:])
    except msgspec.ValidationError as error:
        raise UnsupportedVersionError(f"metadata record of an unknown kind ({error}): upgrade this node") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the second for a text that is not UTF-8
        raise CorruptLogError(f"metadata record cannot be decoded: {error}") from None


def encode_decision(records: Sequence[MetadataRecord], *, timestamp_ms: int, base_offset: int, epoch: int) -> bytes:
    """The batch of one decision (at least one record)."""
    assert records, "a decision without records is not written"
    return encode_batch(
        [(timestamp_ms, None, encode_record(record), ()) for record in records],
        base_offset=base_offset,
        leader_epoch=epoch,
    )


def decode_batches(data: bytes | memoryview) -> Iterator[MetadataBatch]:
    """The batches of ``data``, which holds whole batches back to back. CorruptMessageError when one is damaged."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        decoded = decode_batch(data, position)  # control batches too: their CRC covers the bit that says so
        records = () if header.is_control else tuple(decode_record(record.value) for record in decoded)
        yield MetadataBatch(header.base_offset, header.next_offset, header.leader_epoch, records)
        position += header.size
