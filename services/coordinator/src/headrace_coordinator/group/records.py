"""The records of groups, and their encoding.

    key      int16 kind (state_machine.RecordKind), then a msgpack array: [group id] or [group id, member id or slot]
    value    int16 version, then a msgpack array of the struct's fields; fields are only ever added at the end

    GROUP                 one per group: its epochs
    MEMBER                one per member: its own description
    TARGET_ASSIGNMENT     one per member with a target
    CURRENT_ASSIGNMENT    one per member: the partitions that it may read now, and those that it must still release
    STORY                 the last rebalances of the group, in a ring of slots, so that compaction keeps no more

Kafka has the same records with longer names (ConsumerGroupMetadata and so on), except STORY. Kafka's readers skip
record kinds from 1000 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from headrace_core.errors import CorruptLogError, UnsupportedVersionError

from ..state_machine import RecordKind, kind_of
from .messages import Part, Parts
from .subscriptions import Subscription

#: The version of the records that this coordinator writes, and the newest version that it can read. New fields at the
#: end of a record need no new version.
VERSION = 1

PackedParts = tuple[tuple[bytes, tuple[int, ...]], ...]  #: Ascending pairs of (topic id, partitions).
#: Ascending triples of (topic id, partitions, epochs of the partitions).
PackedEpochs = tuple[tuple[bytes, tuple[int, ...], tuple[int, ...]], ...]


class GroupValue(msgspec.Struct, frozen=True, array_like=True):
    """``target_epoch``: the group epoch for which the target was computed; if it is below ``epoch``, a new target is
    due. ``topics_digest``: digest of the subscribed topics at the last change of ``epoch``. ``empty_since_ms``: when
    the last member left; -1 while the group has members. ``rebalances``: the number of rebalances so far, from which
    the next rebalance gets its number."""

    epoch: int
    target_epoch: int = 0
    assignor: str = ""
    topics_digest: int = 0
    empty_since_ms: int = -1
    rebalances: int = 0


class ClassicSaid(msgspec.Struct, frozen=True, array_like=True):
    """Properties that only members of the classic protocol have (see classic.messages.Join)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    """The properties that a member reports about itself (see messages.Heartbeat). ``classic`` is None unless the member
    uses the classic protocol (classic_members.py). ``principal``, ``principal_host``: the user for whom the pattern is
    resolved; "" without an authorizer."""

    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 300_000
    topics: tuple[str, ...] = ()
    topic_regex: str = ""
    assignor: str = ""
    classic: ClassicSaid | None = None
    principal: str = ""
    principal_host: str = ""

    @property
    def subscription(self) -> Subscription:
        if not self.topic_regex:
            return Subscription(self.topics)
        return Subscription(self.topics, self.topic_regex, self.principal, self.principal_host)


class TargetValue(msgspec.Struct, frozen=True, array_like=True):
    parts: PackedParts


class CurrentValue(msgspec.Struct, frozen=True, array_like=True):
    """``epoch``: the member's epoch. ``first_epoch``: the member's epoch when the member joined. ``revision``: the
    revision of ``assigned``. ``assigned``: the member's partitions, each with the epoch in which the member got it
    (KIP-1251). ``revoking_epochs``: the epochs of each topic's partitions in ``revoking``; older records have none.
    ``taken``: partitions that were freed without the member's knowledge; older records have none."""

    epoch: int
    first_epoch: int
    revision: int
    assigned: PackedEpochs = ()
    revoking: PackedParts = ()
    revoking_epochs: tuple[tuple[int, ...], ...] = ()
    taken: PackedParts = ()


class StoryMove(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    topic: str
    partition: int
    from_member: str
    to_member: str
    unread_ms: int = -1


class StoryValue(msgspec.Struct, frozen=True, array_like=True):
    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: int
    moves: tuple[StoryMove, ...]
    ended_ms: int = -1


Value = GroupValue | MemberValue | TargetValue | CurrentValue | StoryValue

_encoder = msgspec.msgpack.Encoder()
_VALUES: Mapping[int, msgspec.msgpack.Decoder[Value]] = {
    kind: msgspec.msgpack.Decoder(struct)
    for kind, struct in (
        (RecordKind.GROUP, GroupValue),
        (RecordKind.MEMBER, MemberValue),
        (RecordKind.TARGET_ASSIGNMENT, TargetValue),
        (RecordKind.CURRENT_ASSIGNMENT, CurrentValue),
        (RecordKind.STORY, StoryValue),
    )
}
_group_key = msgspec.msgpack.Decoder(tuple[str])
_member_key = msgspec.msgpack.Decoder(tuple[str, str])
_story_key = msgspec.msgpack.Decoder(tuple[str, int])
_Body = TypeVar("_Body")


class Key(NamedTuple):
    """``member``: the member's id; for a STORY key, the number of the recorded rebalance's slot as text; for a GROUP
    key, ""."""

    kind: RecordKind
    group_id: str
    member: str = ""


def encode_key(key: Key) -> bytes:
    body: tuple[str | int, ...] = (key.group_id,)
    if key.kind == RecordKind.STORY:
        body = (key.group_id, int(key.member))
    elif key.kind != RecordKind.GROUP:
        body = (key.group_id, key.member)
    return key.kind.to_bytes(2, "big") + _encoder.encode(body)


def decode_key(data: bytes) -> Key:
    """Decode the key of a group's record. Raises CorruptLogError if the key is damaged, or is not a key of a group's
    record."""
    kind = kind_of(data)
    if kind not in _VALUES:
        raise CorruptLogError(f"a record of kind {kind} is not a group record")
    body = data[2:]
    if kind == RecordKind.GROUP:
        return Key(RecordKind(kind), _decode(_group_key, body, "key")[0])
    if kind == RecordKind.STORY:
        group_id, slot = _decode(_story_key, body, "key")
        return Key(RecordKind(kind), group_id, str(slot))
    return Key(RecordKind(kind), *_decode(_member_key, body, "key"))


def encode_value(value: Value) -> bytes:
    return VERSION.to_bytes(2, "big") + _encoder.encode(value)


def decode_value(kind: RecordKind, data: bytes) -> Value:
    """Decode the value of a group's record of the given kind. Raises UnsupportedVersionError for a record of a newer
    Headrace, and CorruptLogError."""
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or version < 1:
        raise CorruptLogError(f"a {kind.name} record is damaged: {len(data)} bytes are too few for a version")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"a {kind.name} record has version {version}, but this coordinator supports at most {VERSION}: "
            "upgrade the coordinator"
        )
    return _decode(_VALUES[kind], data[2:], kind.name)


def _decode(decoder: msgspec.msgpack.Decoder[_Body], data: bytes, what: str) -> _Body:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptLogError(f"cannot decode a group's {what} record: {error}") from None


def pack(parts: Iterable[Part]) -> PackedParts:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(parts):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in by_topic.items())


def unpack(packed: PackedParts) -> Parts:
    return frozenset((topic_id, number) for topic_id, numbers in packed for number in numbers)


def pack_epochs(epochs: Mapping[Part, int]) -> PackedEpochs:
    return tuple(
        (topic_id, numbers, tuple(epochs[topic_id, number] for number in numbers)) for topic_id, numbers in pack(epochs)
    )


def unpack_epochs(packed: PackedEpochs) -> dict[Part, int]:
    """Raises CorruptLogError if the numbers of epochs and of partitions differ."""
    found = {}
    for topic_id, numbers, epochs in packed:
        if len(numbers) != len(epochs):
            raise CorruptLogError(
                f"{len(numbers)} partitions of topic {topic_id.hex()} are listed with {len(epochs)} epochs"
            )
        found.update({(topic_id, number): epoch for number, epoch in zip(numbers, epochs, strict=True)})
    return found
