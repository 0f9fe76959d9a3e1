"""Confluent's wire format: the first bytes of a key or value identify the schema with which it was written.

    byte 0        magic byte 0
    bytes 1 to 4  the schema's id, big-endian
    Protobuf      the path to the message in its file: a count and so many indexes, as zigzag varints; [0] is one byte 0
    the rest      the value

Source: Confluent's documentation, "Formats, Serializers, and Deserializers: Wire format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from .errors import CorruptValueError, WrongMagicByteError

MAGIC: Final = 0
HEADER_BYTES: Final = 5
#: Maximum nesting depth of a Protobuf message within other messages.
INDEXES_MAX: Final = 32

_HEADER = struct.Struct(">BI")


def header(schema_id: int) -> bytes:
    """The first bytes of a value: the magic byte and the schema id."""
    return _HEADER.pack(MAGIC, schema_id)


def schema_id(data: bytes) -> int:
    """The schema id at the start of ``data``. Raises WrongMagicByteError."""
    if len(data) < HEADER_BYTES:
        raise WrongMagicByteError(
            f"{len(data)} bytes are too short for a magic byte and a schema id ({HEADER_BYTES} bytes): the data was "
            "not written by a schema serializer; use the deserializer that fits the producer"
        )
    magic, found = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WrongMagicByteError(
            f"the first byte is {magic}, not the magic byte 0: the data was not written by a schema serializer; use "
            "the deserializer that fits the producer"
        )
    return int(found)


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Encode the path to a Protobuf message within its file."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def read_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the path to a Protobuf message within its file, and the position after the path. Raises
    CorruptValueError."""
    count, at = _read_varint(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise CorruptValueError(f"the message's path has {count} indexes; must be 1 to {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        if index < 0:
            raise CorruptValueError(f"the message's path has the negative index {index}")
        indexes.append(index)
    return tuple(indexes), at


def _varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise CorruptValueError("the message's path ends within a number, or a number is too long")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
