"""The data that members of protocol type "consumer" exchange in classic groups: subscriptions and assignments, in
Kafka's bytes (ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json). Pure.

    subscription   int16 version | topics: array of string | user data: bytes
        1          as 0 | owned partitions: array of (topic: string | partitions: array of int32)       KIP-429
        2          as 1 | generation: int32                                                             KIP-792
        3          as 2 | rack: nullable string                                                         KIP-881
    assignment     int16 version | partitions: array of (topic: string | array of int32) | user data: bytes

A version above 3 begins with the fields of version 3. The coordinator of a classic group decodes only the subscribed
topics (``subscribed_topics``). A group that changes to the KIP-848 protocol decodes subscriptions and assignments
completely.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace_core.errors import CorruptLogError

from ..kafka_fields import FieldReader

VERSION_MAX = 3
CONSUMER = "consumer"  #: The protocol type of consumers.

NamedPart = tuple[str, int]  #: (topic name, partition)


class Subscription(NamedTuple):
    """``owned``: the partitions that the member reads when it joins; empty for a member with an eager assignor.
    ``generation``: the generation in which the member got ``owned``; None if the version lacks this field, or if the
    member has no generation."""

    version: int
    topics: tuple[str, ...]
    owned: frozenset[NamedPart] = frozenset()
    generation: int | None = None
    rack: str | None = None


class Assignment(NamedTuple):
    parts: tuple[NamedPart, ...]
    user_data: bytes = b""


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises CorruptLogError if the bytes are not a ConsumerProtocolSubscription."""
    reader = FieldReader(data, 0, "a member's subscription")
    version = _version(reader)
    topics = tuple(_string(reader) for _ in range(reader.int32()))
    _bytes(reader)
    owned = frozenset(_parts(reader)) if version >= 1 else frozenset()
    generation = reader.int32() if version >= 2 else -1
    rack = _nullable(reader) if version >= 3 else None
    return Subscription(version, topics, owned, None if generation < 0 else generation, rack)


def decode_assignment(data: bytes) -> Assignment:
    """Decode the assignment that the group's leader computed; empty bytes are an empty assignment. Raises
    CorruptLogError if the bytes are not a ConsumerProtocolAssignment."""
    if not data:
        return Assignment(())
    reader = FieldReader(data, 0, "a member's assignment")
    _version(reader)
    return Assignment(tuple(_parts(reader)), _bytes(reader))


def encode_assignment(parts: Iterable[NamedPart], version: int) -> bytes:
    """Encode an assignment, with ``version``, the version of the member's subscription."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(parts):
        topics.setdefault(topic, []).append(partition)
    return struct.pack(">h", min(version, VERSION_MAX)) + _encoded(topics) + b"\xff\xff\xff\xff"


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The topics in a member's subscription; None if ``metadata`` does not begin like a subscription. The fields after
    the topics are not decoded."""
    try:
        reader = FieldReader(metadata, 0, "a member's subscription")
        _version(reader)
        return tuple(_string(reader) for _ in range(reader.int32()))
    except CorruptLogError:
        return None


def _encoded(topics: Mapping[str, list[int]]) -> bytes:
    out = [struct.pack(">i", len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        out.append(struct.pack(">h", len(name)) + name)
        out.append(struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join(out)


def _version(reader: FieldReader) -> int:
    version = reader.int16()
    if version < 0:
        raise CorruptLogError(f"a member's subscription or assignment has the invalid version {version}")
    return version


def _parts(reader: FieldReader) -> Iterable[NamedPart]:
    for _ in range(reader.int32()):
        topic = _string(reader)
        for _ in range(reader.int32()):
            yield topic, reader.int32()


def _string(reader: FieldReader) -> str:
    return reader.string(reader.int16())


def _nullable(reader: FieldReader) -> str | None:
    size = reader.int16()
    return None if size < 0 else reader.string(size)


def _bytes(reader: FieldReader) -> bytes:
    size = reader.int32()
    return b"" if size < 0 else reader.take(size)
