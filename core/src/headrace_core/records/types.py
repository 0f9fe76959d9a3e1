"""Values of the record batch format, version 2 (magic 2; KIP-98, "Message format" in Kafka's documentation).

    offset  bytes  field
         0      8  base offset              } set by the log on append; the CRC does not cover these 16 bytes
         8      4  batch length             } (bytes after this field)
        12      4  partition leader epoch   }
        16      1  magic, always 2
        17      4  CRC-32C of everything after this field
        21      2  attributes: bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
        23      4  last offset delta
        27      8  base timestamp, ms
        35      8  max timestamp, ms
        43      8  producer id, -1 none
        51      2  producer epoch
        53      4  base sequence
        57      4  record count
        61         records, compressed as one block when the attributes say so

All fixed-size fields are big-endian. A record is: varint length, int8 attributes (unused), varlong timestamp delta,
varint offset delta, varint key length (-1 null), key, varint value length (-1 null), value, varint header count, and
for each header varint key length, key (UTF-8), varint value length (-1 null), value. Varints are zigzag.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InvalidArgumentError
from ..types import TimestampType

Buffer = bytes | bytearray | memoryview

#: Headers of a record, as a decoder returns them; encoders accept any iterable of (name, value) pairs.
Headers = list[tuple[str, bytes | None]]

#: A record as encoders take it: (timestamp_ms, key, value, headers).
RecordTuple = tuple[int, Buffer | None, Buffer | None, Iterable[tuple[str, Buffer | None]] | None]

HEADER_BYTES = 61
#: Number of bytes that ``batch_length`` does not count: the base offset and the length itself.
LENGTH_PREFIX_BYTES = 12
CRC_START = 21  #: Position in a batch of the first byte that the CRC covers.
#: Bytes of the smallest record: one byte each for length, attributes, two deltas, two null lengths and the header
#: count.
RECORD_BYTES_MIN = 7
MAGIC = 2
NO_TIMESTAMP = -1
#: The earliest timestamp that a broker accepts, in milliseconds; Kafka accepts all of 64 bits. The distance from a
#: delete horizon (see compaction) to an earlier timestamp might not fit into a record's delta.
TIMESTAMP_MS_MIN = -(1 << 62)

HEADER = struct.Struct(">qiibIhiqqqhii")

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
#: Types of the control records that end transactions; a control record's key is version int16, type int16 (KIP-98).
ABORT, COMMIT = 0, 1


class Compression(enum.IntEnum):
    """The codec of a batch's records; each value is the codec's number in the attributes field."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """Return the codec of a ``compression.type`` such as "lz4"; InvalidArgumentError names the legal types."""
        try:
            return cls[name.strip().upper()]
        except KeyError:
            legal = ", ".join(codec.name.lower() for codec in cls)
            raise InvalidArgumentError(f"unknown compression {name!r}: must be one of {legal}") from None


class BatchHeader(NamedTuple):
    """The header of a batch: its first 61 bytes, field by field in the order of the format."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Limits of a decoder for one batch, so that a few hostile bytes cannot claim the machine's memory.

    The defaults are far above the batches that clients write: 128 MiB for a decompressed batch, 4 Mi records in a
    batch.
    """

    max_decompressed_bytes: int = 128 * 1024 * 1024
    max_records: int = 4 * 1024 * 1024
    max_headers: int = 65_536


DEFAULT_LIMITS = DecodeLimits()


#: Maximum number of different schema ids in the keys, or in the values, of one batch.
SCHEMA_IDS_MAX = 1_000
#: Maximum number of records of one batch that ``SchemaIds`` lists for one schema id.
SCHEMA_PLACES_MAX = 100
#: Stands for the schema id of a key or value that does not begin with a magic byte 0 and a schema id.
NO_SCHEMA = -1


class BatchSchemas(NamedTuple):
    """The schema ids of one batch. Each dict maps an id, or NO_SCHEMA, to the indexes (in the batch) of the first
    SCHEMA_PLACES_MAX records with that id. A record is left out of ``keys`` if its key is null, and of ``values`` if
    its value is null."""

    keys: dict[int, list[int]]
    values: dict[int, list[int]]


class SchemaIds:
    """The schema ids with which keys and values of batches begin, in Confluent's wire format: a byte 0, then the id as
    int32. ``validate_batches`` adds one entry to ``batches`` for each batch. ``of_keys``, ``of_values``: whether to
    collect the ids of keys, and of values."""

    __slots__ = ("batches", "of_keys", "of_values")

    def __init__(self, *, of_keys: bool = False, of_values: bool = True) -> None:
        self.of_keys = of_keys
        self.of_values = of_values
        self.batches: list[BatchSchemas] = []


class BatchSpan(NamedTuple):
    """A batch's place in a buffer of whole batches, and its base offset and last offset (both inclusive)."""

    position: int
    size: int
    base_offset: int
    last_offset: int
