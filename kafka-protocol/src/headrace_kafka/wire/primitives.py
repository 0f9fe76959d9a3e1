"""Kafka's primitive types on the wire (KIP-482 defines the compact formats): a cursor reads values within limits, and
functions append values to a bytearray.

Hostile bytes cost at most a constant amount of memory per byte. The cursor checks each length or count against the
remaining bytes before it allocates memory. One message has at most ``ITEMS_MAX`` items (structures, strings, numbers in
arrays, tagged fields).
"""

from __future__ import annotations

import struct

#: Maximum number of items in one message; a structure in a list counts as two items. Decoding ITEMS_MAX items takes
#: about 0.05 s. A broker accepts requests with 10,000 topics or partitions.
ITEMS_MAX = 60_000
#: Minimum size in bytes of records that a response's frame does not copy.
WHOLE_BYTES_MIN = 16 * 1024

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_UINT16, _FLOAT64 = struct.Struct(">H"), struct.Struct(">d")
_VARINT_BYTES_MAX = 5

pack_int16, pack_int32, pack_int64 = _INT16.pack, _INT32.pack, _INT64.pack
pack_uint16, pack_float64 = _UINT16.pack, _FLOAT64.pack


class WireError(ValueError):
    """The bytes are not a valid message of the type and version in their header. The error's message names the position
    of the wrong byte."""


class TooManyItemsError(WireError):
    """The message has more items than the reader accepts."""


class Cursor:
    """Reads primitive values from ``data``, which is one whole message. Every method raises WireError at the end of
    the data."""

    __slots__ = ("_items", "data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, items_max: int = ITEMS_MAX) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self._items = items_max

    def left(self) -> int:
        return self.end - self.position

    def fail(self, what: str) -> WireError:
        return WireError(f"{what} at byte {self.position} of {self.end}")

    def count_items(self, count: int) -> None:
        """Count ``count`` further items of the message. Raises TooManyItemsError."""
        self._items -= count
        if self._items < 0:
            raise TooManyItemsError(
                f"the message has more than {ITEMS_MAX} items at byte {self.position} of {self.end}"
            )

    def skip(self, size: int) -> int:
        """Advance the position by ``size`` bytes; returns the old position."""
        position = self.position
        if size < 0 or size > self.end - position:
            raise self.fail(f"{size} bytes expected, but {self.end - position} bytes are left")
        self.position = position + size
        return position

    def boolean(self) -> bool:
        return self.data[self.skip(1)] != 0

    def int8(self) -> int:
        value = self.data[self.skip(1)]
        return value - 256 if value > 127 else value

    def int16(self) -> int:
        return _INT16.unpack_from(self.data, self.skip(2))[0]  # type: ignore[no-any-return]

    def uint16(self) -> int:
        return _UINT16.unpack_from(self.data, self.skip(2))[0]  # type: ignore[no-any-return]

    def int32(self) -> int:
        return _INT32.unpack_from(self.data, self.skip(4))[0]  # type: ignore[no-any-return]

    def int64(self) -> int:
        return _INT64.unpack_from(self.data, self.skip(8))[0]  # type: ignore[no-any-return]

    def float64(self) -> float:
        return _FLOAT64.unpack_from(self.data, self.skip(8))[0]  # type: ignore[no-any-return]

    def uuid(self) -> bytes:
        """A UUID, as 16 bytes."""
        start = self.skip(16)
        return self.data[start : start + 16]

    def varint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        position = self.position
        if position < self.end and (byte := self.data[position]) < 0x80:  # nearly every varint has one byte
            self.position = position + 1
            return byte
        value = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise self.fail("a varint is longer than 32 bits")

    def bytes_of(self, length: int) -> bytes | None:
        """Read ``length`` bytes; returns None for length -1 (null)."""
        if length == -1:
            return None
        start = self.skip(length)
        return self.data[start : self.position]

    def text_of(self, length: int) -> str | None:
        """Read ``length`` bytes of UTF-8; returns None for length -1 (null)."""
        if length == -1:
            return None
        start = self.skip(length)
        self.count_items(1)
        try:
            return str(self.data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            self.position = start
            raise self.fail("a string is not valid UTF-8") from None

    def string(self) -> str | None:
        return self.text_of(self.int16())

    def compact_string(self) -> str | None:
        return self.text_of(self.varint() - 1)

    def bytestring(self) -> bytes | None:
        return self.bytes_of(self.int32())

    def compact_bytestring(self) -> bytes | None:
        return self.bytes_of(self.varint() - 1)

    def records(self) -> memoryview | None:
        """Read record batches like ``bytestring``, but without a copy, because record batches may be most of a large
        message."""
        return self._view(self.int32())

    def compact_records(self) -> memoryview | None:
        return self._view(self.varint() - 1)

    def _view(self, length: int) -> memoryview | None:
        if length == -1:
            return None
        start = self.skip(length)
        return memoryview(self.data)[start : self.position]

    def skip_tagged(self) -> None:
        """Skip a section of tagged fields."""
        count = self.varint()
        if not count:
            return
        self.count_items(count)
        for _ in range(count):
            self.varint()
            self.skip(self.varint())


def put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode("utf-8", "surrogateescape")
    out += pack_int16(len(data))
    out += data


def put_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode("utf-8", "surrogateescape")
    put_varint(out, len(data) + 1)
    out += data


def put_bytestring(out: bytearray, value: bytes | memoryview | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += pack_int32(len(value))
    out += value


def put_compact_bytestring(out: bytearray, value: bytes | memoryview | None) -> None:
    if value is None:
        out.append(0)
        return
    put_varint(out, len(value) + 1)
    out += value


class Frame(bytearray):
    """A response's frame that does not copy large records: ``parts`` inserts them."""

    __slots__ = ("_records",)

    def __init__(self, start: bytes | bytearray = b"") -> None:
        super().__init__(start)
        self._records: list[tuple[int, bytes | memoryview]] = []

    def add(self, records: bytes | memoryview) -> None:
        self._records.append((len(self), records))

    def parts(self) -> tuple[bytes | bytearray | memoryview, ...]:
        """The frame in parts, with its length. The frame is not changed afterwards."""
        size = len(self) + sum([len(records) for _, records in self._records])
        self[:4] = pack_int32(size - 4)
        if not self._records:
            return (self,)
        parts: list[bytes | bytearray | memoryview] = []
        view, start = memoryview(self), 0
        for end, records in self._records:
            parts += view[start:end], records
            start = end
        return (*parts, view[start:])


def put_records(out: bytearray, value: bytes | memoryview | None) -> None:
    if value is None or len(value) < WHOLE_BYTES_MIN or not isinstance(out, Frame):
        put_bytestring(out, value)
    else:
        out += pack_int32(len(value))
        out.add(value)


def put_compact_records(out: bytearray, value: bytes | memoryview | None) -> None:
    if value is None or len(value) < WHOLE_BYTES_MIN or not isinstance(out, Frame):
        put_compact_bytestring(out, value)
    else:
        put_varint(out, len(value) + 1)
        out.add(value)
