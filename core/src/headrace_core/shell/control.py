"""Control records of the metadata log and its snapshots, for people: Kafka's schemas (KIP-595, KIP-630, KIP-853).

All are flexible: counts and lengths are unsigned varints plus one, and a section of tagged fields (which we skip) ends
every struct. The key is ``int16 version, int16 type``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ..errors import CorruptLogError
from ..node.ids import ID_BYTES, id_to_text

_KEY = struct.Struct(">hh")
LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, VOTERS = 2, 3, 4, 5, 6


def describe(key: bytes | None, value: bytes | None) -> tuple[str, dict[str, Any]]:
    """(name of its kind, its fields). CorruptLogError when it is none, or does not hold what its kind has; a kind that
    this version does not know is shown as bytes."""
    if key is None or len(key) < _KEY.size:
        raise CorruptLogError("a control record without a key")
    _, kind = _KEY.unpack_from(key)
    name, read = _KINDS.get(kind, (f"control type {kind}", None))
    if read is None:
        return name, {"value": (value or b"").hex()}
    try:
        return name, read(_Reader(value or b""))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptLogError(f"a {name} record that cannot be decoded: {error}") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> Any:
        (value,) = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def bytes(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise IndexError(f"{size} bytes from {self._at} on, of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def id(self) -> str:
        return id_to_text(self.bytes(ID_BYTES))

    def text(self) -> str:
        return self.bytes(self.varint() - 1).decode()

    def array(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.varint() - 1)]

    def end(self) -> None:
        """The tagged fields."""
        for _ in range(self.varint()):
            self.varint()
            self.bytes(self.varint())


def _leader_change(read: _Reader) -> dict[str, Any]:
    version = read.take("h")

    def voter() -> dict[str, Any]:
        found = {"id": read.take("i")} | ({"directory_id": read.id()} if version >= 1 else {})
        read.end()
        return found

    leader = read.take("i")
    return {"leader": leader, "voters": read.array(voter), "granting_voters": read.array(voter)}


def _snapshot_header(read: _Reader) -> dict[str, Any]:
    read.take("h")
    return {"last_contained_log_timestamp_ms": read.take("q")}


def _kraft_version(read: _Reader) -> dict[str, Any]:
    read.take("h")
    return {"kraft_version": read.take("h")}


def _voters(read: _Reader) -> dict[str, Any]:
    read.take("h")

    def endpoint() -> dict[str, Any]:
        found = {"listener": read.text(), "host": read.text(), "port": read.take("H")}
        read.end()
        return found

    def voter() -> dict[str, Any]:
        found = {"id": read.take("i"), "directory_id": read.id(), "endpoints": read.array(endpoint)}
        read.bytes(4)  # the versions of KRaft that it supports
        read.end()
        read.end()
        return found

    return {"voters": read.array(voter)}


_KINDS: dict[int, tuple[str, Callable[[_Reader], dict[str, Any]]]] = {
    LEADER_CHANGE: ("LeaderChange", _leader_change),
    SNAPSHOT_HEADER: ("SnapshotHeader", _snapshot_header),
    SNAPSHOT_FOOTER: ("SnapshotFooter", lambda read: {}),
    KRAFT_VERSION: ("KRaftVersion", _kraft_version),
    VOTERS: ("KRaftVoters", _voters),
}
