"""Fields of records in the encoding that Kafka uses for its internal topics. Pure.

All is big-endian. A string is encoded as an int16 length and UTF-8. A compact string has an unsigned varint (its length
+ 1) in place of the int16. Tagged fields (KIP-482) are a count, then the tag, size and bytes of each field. A reader
skips the tagged fields whose tags it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace_core.errors import CorruptLogError


def varint(number: int) -> bytes:
    """``number`` (not negative) as an unsigned varint: seven bits in each byte, lowest bits first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class FieldReader:
    """Reads fields from ``data``, from ``position`` on. Raises CorruptLogError, which names ``what``, if a field does
    not fit into ``data``."""

    __slots__ = ("_data", "_position", "_what")

    def __init__(self, data: bytes, position: int, what: str) -> None:
        self._data = data
        self._position = position
        self._what = what

    def take(self, size: int) -> bytes:
        start = self._position
        if not 0 <= size <= len(self._data) - start:
            raise CorruptLogError(
                f"{self._what} is damaged: a field at byte {start} of {len(self._data)} claims {size} bytes"
            )
        self._position = start + size
        return bytes(self._data[start : start + size])

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise CorruptLogError(f"{self._what} is damaged: a varint at byte {self._position - 5} does not end")

    def string(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptLogError(f"{self._what} is damaged: a text is not valid UTF-8 ({error})") from None

    def tagged(self) -> Iterator[tuple[int, FieldReader]]:
        """Yield each tagged field: its tag, and a reader of its bytes."""
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            yield tag, FieldReader(self.take(size), 0, f"{self._what}, tagged field {tag},")

    def end(self) -> None:
        """Raise an error unless all bytes of ``data`` were read."""
        if self._position != len(self._data):
            left = len(self._data) - self._position
            raise CorruptLogError(f"{self._what} is damaged: {left} bytes follow its last field")
