"""Control records of the metadata log and of its snapshots, in Kafka's format, so that Kafka's tools can read them.

    type  record                 where                                      source
    ----  ---------------------  -----------------------------------------  ------------------------
    2     LeaderChangeMessage    first in each term of the log              KIP-595, version 0
    3     SnapshotHeaderRecord   first in a snapshot                        KIP-630
    4     SnapshotFooterRecord   last in a snapshot                         KIP-630
    5     KRaftVersionRecord     after the header: 1, voters in the log     KIP-853
    6     KRaftVotersRecord      a change of the voters; in each snapshot   KIP-853

A control record's key is (version: int16, type: int16). The record's value is a message in Kafka's "flexible" encoding
(KIP-482). Fixed-size integers are big-endian, lengths are unsigned varints of length + 1, and every struct ends with
its tagged fields. Unknown tagged fields are skipped. Headrace's tagged fields have numbers from 10,000 on, and Kafka's
tools skip tagged fields with these numbers. For example, a tagged field holds the directory of a voter in a
LeaderChangeMessage. Version 1 of LeaderChangeMessage has a field for the directory, but Kafka's tools (4.3) read
version 0.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..errors import CorruptLogError, UnsupportedVersionError
from ..records import decode_batch, encode_batch
from ..types import join_address, split_address

T = TypeVar("T")

NO_DIRECTORY_ID = bytes(16)
VOTER_LISTENER = "internal"  #: Name of the listener on which voters reach each other.

_KEY = struct.Struct(">hh")
_HEADER = struct.Struct(">hq")
_FOOTER = struct.Struct(">h")
_VERSION = struct.Struct(">hh")
_PLACE = struct.Struct(">q")
_PLACE_TAG = 10_000  #: In a snapshot's header: number of the tagged field with the end offset of the image.
#: In a voter of a LeaderChangeMessage: number of the tagged field with the id of the voter's directory.
_DIRECTORY_TAG = 10_000
_KRAFT_VERSION = 1
_ITEMS_MAX = 1_000


class ControlType(enum.IntEnum):
    """The types of Kafka's ControlRecordType that the metadata log and its snapshots use."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class SnapshotVoter:
    """A voter: node id, directory id, and address ("host:port"; "" if unknown)."""

    node_id: int
    directory_id: bytes
    address: str = ""


class LeaderChange(NamedTuple):
    """The leader of a term, and (node id, directory id) of each voter."""

    leader_id: int
    voters: tuple[tuple[int, bytes], ...]


class SnapshotHeader(NamedTuple):
    """Header of a snapshot. ``next_offset``: the end offset of the image (exclusive); ``timestamp_ms``: timestamp of
    the last record below that end offset."""

    next_offset: int
    timestamp_ms: int


class ControlRecord(NamedTuple):
    type: ControlType
    value: bytes


def encode_control_batch(records: Iterable[ControlRecord], *, base_offset: int, epoch: int, timestamp_ms: int) -> bytes:
    return encode_batch(
        [(timestamp_ms, _KEY.pack(0, record.type), record.value, ()) for record in records],
        base_offset=base_offset,
        leader_epoch=epoch,
        control=True,
    )


def decode_control_batch(data: bytes | memoryview, position: int = 0) -> list[ControlRecord]:
    """Decode the records of the control batch at ``position``. Raises CorruptMessageError (the batch is damaged),
    CorruptLogError (the records are invalid), UnsupportedVersionError (a type of record is unknown)."""
    found = []
    for record in decode_batch(data, position):
        key = record.key
        if key is None or len(key) < _KEY.size or record.value is None:
            raise CorruptLogError(f"offset {record.offset}: a control record has no type")
        number = _KEY.unpack_from(key)[1]
        try:
            control_type = ControlType(number)
        except ValueError:
            raise UnsupportedVersionError(
                f"offset {record.offset}: this node does not know control records of type {number}: upgrade this node"
            ) from None
        found.append(ControlRecord(control_type, bytes(record.value)))
    return found


def leader_change(leader_id: int, voters: Sequence[tuple[int, bytes]]) -> ControlRecord:
    """Encode the first entry of a new leader. The entry names only one of the granted votes: the leader's own vote."""
    granting = [(node_id, directory_id) for node_id, directory_id in voters if node_id == leader_id]
    value = struct.pack(">hi", 0, leader_id) + _array(voters, _voter_key) + _array(granting, _voter_key) + b"\0"
    return ControlRecord(ControlType.LEADER_CHANGE, value)


def parse_leader_change(value: bytes) -> LeaderChange:
    """Decode the value of a LeaderChangeMessage; raises CorruptLogError for an invalid value."""

    def parse(reader: _Reader) -> LeaderChange:
        has_directories = reader.integer(2) >= 1
        leader_id = reader.integer(4)
        voters = reader.array(lambda: _read_voter_key(reader, has_directories=has_directories))
        return LeaderChange(leader_id, tuple(voters))

    return _parsed("LeaderChangeMessage", value, parse)


def kraft_voters(voters: Iterable[SnapshotVoter]) -> ControlRecord:
    """Encode a set of voters."""
    value = struct.pack(">h", 0) + _array(list(voters), _voter) + b"\0"
    return ControlRecord(ControlType.KRAFT_VOTERS, value)


def parse_kraft_voters(value: bytes) -> tuple[SnapshotVoter, ...]:
    """Decode the value of a KRaftVoters record; raises CorruptLogError for an invalid value."""

    def parse(reader: _Reader) -> tuple[SnapshotVoter, ...]:
        reader.integer(2)
        return tuple(reader.array(lambda: _read_voter(reader)))

    return _parsed("KRaftVotersRecord", value, parse)


def kraft_version() -> ControlRecord:
    """Encode the quorum's feature level (kraft.version 1): the log and its snapshots contain the voters."""
    return ControlRecord(ControlType.KRAFT_VERSION, _VERSION.pack(0, _KRAFT_VERSION) + b"\0")


def parse_kraft_version(value: bytes) -> int:
    """Decode the quorum's feature level. Raises CorruptLogError for an invalid value, UnsupportedVersionError for a
    level newer than this Headrace."""
    version = _parsed("KRaftVersionRecord", value, lambda reader: (reader.integer(2), reader.integer(2))[1])
    if version > _KRAFT_VERSION:
        raise UnsupportedVersionError(
            f"the quorum's kraft.version is {version}, but this node supports at most "
            f"{_KRAFT_VERSION}: upgrade this node"
        )
    return version


def snapshot_header(header: SnapshotHeader) -> ControlRecord:
    """Encode the header record, the first record of a snapshot."""
    place = _tagged(_PLACE_TAG, _PLACE.pack(header.next_offset))
    return ControlRecord(ControlType.SNAPSHOT_HEADER, _HEADER.pack(0, header.timestamp_ms) + place)


def parse_snapshot_header(value: bytes) -> SnapshotHeader:
    """Decode the value of a snapshot's header record; raises CorruptLogError for an invalid value."""

    def parse(reader: _Reader) -> SnapshotHeader:
        reader.integer(2)
        timestamp_ms = reader.integer(8)
        tagged = reader.tagged()
        if len(tagged.get(_PLACE_TAG, b"")) != _PLACE.size:
            raise ValueError("the header record of the metadata snapshot lacks the offset at which the snapshot ends")
        return SnapshotHeader(_PLACE.unpack(tagged[_PLACE_TAG])[0], timestamp_ms)

    return _parsed("SnapshotHeaderRecord", value, parse)


def snapshot_footer() -> ControlRecord:
    """Encode the last record of a snapshot; a snapshot without this record is incomplete."""
    return ControlRecord(ControlType.SNAPSHOT_FOOTER, _FOOTER.pack(0) + b"\0")


_VOTER = struct.Struct(">i16s")
_PORT = struct.Struct(">H")
_FEATURE = struct.Struct(">hh")


def _voter_key(voter: tuple[int, bytes]) -> bytes:
    node_id, directory_id = voter
    return struct.pack(">i", node_id) + _tagged(_DIRECTORY_TAG, directory_id)


def _read_voter_key(reader: _Reader, *, has_directories: bool) -> tuple[int, bytes]:
    node_id = reader.integer(4)
    directory_id = reader.raw(16) if has_directories else NO_DIRECTORY_ID
    return node_id, reader.tagged().get(_DIRECTORY_TAG, directory_id)


def _voter(voter: SnapshotVoter) -> bytes:
    endpoints = [split_address(voter.address)] if voter.address else []
    feature = _FEATURE.pack(0, _KRAFT_VERSION) + b"\0"
    return _VOTER.pack(voter.node_id, voter.directory_id) + _array(endpoints, _endpoint) + feature + b"\0"


def _read_voter(reader: _Reader) -> SnapshotVoter:
    node_id, directory_id = reader.integer(4), reader.raw(16)
    endpoints = reader.array(lambda: _read_endpoint(reader))
    reader.raw(_FEATURE.size)
    reader.tagged()  # of the feature
    reader.tagged()  # of the voter
    return SnapshotVoter(node_id, directory_id, join_address(*endpoints[0]) if endpoints else "")


def _endpoint(endpoint: tuple[str, int]) -> bytes:
    host, port = endpoint
    return _text(VOTER_LISTENER) + _text(host) + _PORT.pack(port) + b"\0"


def _read_endpoint(reader: _Reader) -> tuple[str, int]:
    reader.text()
    host, port = reader.text(), reader.integer(2) & 0xFFFF
    reader.tagged()
    return host, port


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tagged(tag: int, value: bytes) -> bytes:
    """Encode the tagged fields of a struct that has one tagged field."""
    return _uvarint(1) + _uvarint(tag) + _uvarint(len(value)) + value


def _array(items: Sequence[T], encode: Callable[[T], bytes]) -> bytes:
    return _uvarint(len(items) + 1) + b"".join(map(encode, items))


def _text(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


class _Reader:
    """Reads the fields of an encoded value in order. Raises ValueError where the value ends too early or is
    impossible."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise ValueError(f"the record ends at byte {len(self._data)}, in the middle of a field")
        self._at += size
        return found

    def integer(self, size: int) -> int:
        return int.from_bytes(self.raw(size), "big", signed=True)

    def uvarint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("the record has a length field of more than five bytes")

    def text(self) -> str:
        length = self.uvarint()
        if not length:
            raise ValueError("a string of the record is null")
        return self.raw(length - 1).decode()

    def array(self, read: Callable[[], T]) -> list[T]:
        length = self.uvarint()
        if not 0 < length <= _ITEMS_MAX:
            raise ValueError(f"the record claims an array of {length - 1} items")
        return [read() for _ in range(length - 1)]

    def tagged(self) -> dict[int, bytes]:
        """Read the tagged fields of a struct, as bytes by tag."""
        count = self.uvarint()
        if count > _ITEMS_MAX:
            raise ValueError(f"{count} tagged fields")
        found = {}
        for _ in range(count):
            tag = self.uvarint()
            found[tag] = self.raw(self.uvarint())
        return found


def _parsed(what: str, value: bytes, parse: Callable[[_Reader], T]) -> T:
    try:
        return parse(_Reader(value))
    except ValueError as error:
        raise CorruptLogError(f"a {what} cannot be read: {error}") from None
