"""The record of a classic group, in Kafka's bytes (GroupMetadataKey.json, GroupMetadataValue.json). Pure.

    key     int16 2 | group: string
    value   int16 version
        0   protocol type: string | generation: int32 | protocol, leader: nullable string | members
        1   as 0, members with a rebalance timeout
        2   as 1, before the members: current state timestamp: int64
        3   as 2, members with a group instance id: nullable string                                KIP-345
    member  id: string | instance id | client id, client host: string | rebalance timeout: int32 |
            session timeout: int32 | subscription, assignment: bytes

Headrace writes version 3, as Kafka 4 does, and reads versions 0 to 3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace_core.errors import UnsupportedVersionError

from ..kafka_fields import FieldReader
from ..state_machine import RecordKind

VERSION = 3
_NO_TIME = -1


class MemberRecord(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupRecord(NamedTuple):
    """The value of a classic group's record. ``state_ms``: time of the group's last change of state; -1 if unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberRecord, ...]


def encode_key(group_id: str) -> bytes:
    return RecordKind.CLASSIC_GROUP.to_bytes(2, "big") + _string(group_id)


def decode_key(data: bytes) -> str:
    """The group id. Raises CorruptLogError."""
    reader = FieldReader(data, 2, "the key of a classic group")
    group_id = reader.string(reader.int16())
    reader.end()
    return group_id


def encode_value(group: GroupRecord) -> bytes:
    parts = [
        struct.pack(">h", VERSION),
        _string(group.protocol_type),
        struct.pack(">i", group.generation),
        _nullable(group.protocol),
        _nullable(group.leader),
        struct.pack(">qi", group.state_ms, len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _nullable(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_value(data: bytes) -> GroupRecord:
    """Decode the value of a group's record. Raises CorruptLogError, and UnsupportedVersionError for any version but 0
    to 3."""
    reader = FieldReader(data, 0, "the record of a classic group")
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise UnsupportedVersionError(
            f"the record of a classic group has version {version}; this coordinator reads versions 0 to {VERSION}"
        )
    protocol_type = reader.string(reader.int16())
    generation = reader.int32()
    protocol, leader = _read_nullable(reader), _read_nullable(reader)
    state_ms = reader.int64() if version >= 2 else _NO_TIME
    members = tuple(_read_member(reader, version) for _ in range(reader.int32()))
    reader.end()
    return GroupRecord(protocol_type, generation, protocol, leader, state_ms, members)


def _read_member(reader: FieldReader, version: int) -> MemberRecord:
    member_id = reader.string(reader.int16())
    instance_id = _read_nullable(reader) if version >= 3 else None
    client_id, client_host = reader.string(reader.int16()), reader.string(reader.int16())
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.take(reader.int32()), reader.take(reader.int32())
    return MemberRecord(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _read_nullable(reader: FieldReader) -> str | None:
    size = reader.int16()
    return None if size < 0 else reader.string(size)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _nullable(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
