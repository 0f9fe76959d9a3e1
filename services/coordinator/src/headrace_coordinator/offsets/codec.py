"""Encode and decode offset commits as Kafka does, so that Kafka's tools can read ``__consumer_offsets``. Pure.

Source: OffsetCommitKey.json and OffsetCommitValue.json of Kafka's group-coordinator.

    key     int16 1 (0 of old) | group: string | topic: string | partition: int32
    value   int16 version
        0   offset: int64 | metadata: string | commit timestamp: int64
        1   as 0 | expire timestamp: int64                                        (until KIP-211)
        2   as 0
        3   offset: int64 | leader epoch: int32 | metadata: string | commit timestamp: int64         KIP-320
        4   as 3, the string compact | tagged fields: 0 = topic id, 16 bytes                         KIP-848, KIP-915

Commits are written with version 4 if the topic's id is known, as in Kafka 4, and with version 3 otherwise.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace_core.errors import InvalidGroupIdError, UnsupportedVersionError
from headrace_core.types import NO_EPOCH, TopicPartition

from ..kafka_fields import FieldReader, varint
from ..state_machine import RecordKind, kind_of

#: Maximum bytes of a string, because the length of a string is an int16. Version 4 of an offset commit could have
#: longer strings, but Kafka's readers refuse them.
STRING_BYTES_MAX = 0x7FFF
TOPIC_ID_BYTES = 16
_RECORD_OVERHEAD_BYTES = 32  #: Maximum bytes of a record in addition to key and value: lengths, deltas and attributes.
_NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)
#: The three bytes directly before the topic id in a value: the number of tagged fields (1), the tag (0), and the topic
#: id's size (16).
_ONE_TOPIC_ID = b"\x01\x00\x10"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_LENGTHS = struct.Struct(">hh")
_HEAD = struct.Struct(">hqi")


class CommittedOffset(NamedTuple):
    """A group's committed offset for a partition: the group continues with the record at ``offset``.

    ``leader_epoch``: leader epoch of the last record before ``offset``; -1 if the epoch is unknown.
    ``commit_timestamp_ms``: time of the commit on the coordinator's clock. ``expire_timestamp_ms``: expiry that a
    client of Kafka before 2.1 requested; None if the retention decides.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int | None = None
    topic_id: bytes | None = None


class CommitKey(NamedTuple):
    group_id: str
    partition: TopicPartition


def encode_key(group_id: str, partition: TopicPartition) -> bytes:
    """The record key of an offset commit. Raises InvalidGroupIdError if the group's id is too long."""
    group, topic = group_id.encode(), partition.topic.encode()
    if len(group) > STRING_BYTES_MAX:
        raise InvalidGroupIdError(
            f"the group id has {len(group)} bytes, more than the {STRING_BYTES_MAX} bytes that fit into a record"
        )
    return b"".join(
        (
            _TWO_LENGTHS.pack(RecordKind.OFFSET_COMMIT, len(group)),
            group,
            _INT16.pack(len(topic)),
            topic,
            _INT32.pack(partition.partition),
        )
    )


def encode_value(committed: CommittedOffset) -> bytes:
    """The value of a commit: version 4 with a topic id, version 3 without. The commit's metadata always fits, because
    longer metadata was refused."""
    metadata = committed.metadata.encode()
    assert len(metadata) <= STRING_BYTES_MAX, f"metadata of {len(metadata)} bytes"
    timestamp = _INT64.pack(committed.commit_timestamp_ms)
    if committed.topic_id is None:
        head = _HEAD.pack(3, committed.offset, committed.leader_epoch)
        return b"".join((head, _INT16.pack(len(metadata)), metadata, timestamp))
    head = _HEAD.pack(4, committed.offset, committed.leader_epoch)
    return b"".join((head, varint(len(metadata) + 1), metadata, timestamp, _ONE_TOPIC_ID, committed.topic_id))


def record_bytes(key: bytes, value: bytes | None) -> int:
    """Maximum bytes of a record in a batch."""
    return len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES


def decode_key(key: bytes) -> CommitKey:
    """Decode the record key of an offset commit, of version 0 or 1; the inverse of ``encode_key``. Raises
    CorruptLogError for bytes that are not the key of an offset commit."""
    kind = kind_of(key)
    assert kind in (RecordKind.OLD_OFFSET_COMMIT, RecordKind.OFFSET_COMMIT), f"kind {kind} is not an offset commit"
    found = _plain_key(key)
    if found is not None:
        return found
    reader = FieldReader(key, 2, "the key of an offset commit")
    group_id = reader.string(reader.int16())
    topic = reader.string(reader.int16())
    partition = reader.int32()
    reader.end()
    return CommitKey(group_id, TopicPartition(topic, partition))


def decode_value(value: bytes) -> CommittedOffset:
    """Decode the value of an offset commit, of version 0 to 4; the inverse of ``encode_value``. Raises CorruptLogError,
    and UnsupportedVersionError for a value of a newer Kafka."""
    found = _plain_value(value)
    if found is not None:
        return found
    reader = FieldReader(value, 0, "the value of an offset commit")
    version = reader.int16()
    if not 0 <= version <= 4:
        raise UnsupportedVersionError(f"unknown version {version} of an offset commit: upgrade this coordinator")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.string(reader.varint() - 1 if version >= 4 else reader.int16())
    commit_timestamp_ms = reader.int64()
    expire = reader.int64() if version == 1 else -1
    topic_id = _tagged_topic_id(reader) if version >= 4 else None
    reader.end()
    return CommittedOffset(
        offset, leader_epoch, metadata, commit_timestamp_ms, expire if expire >= 0 else None, topic_id
    )


# A coordinator replays a whole shard before it serves the shard, so values that Headrace wrote are decoded on a fast
# path (twice as fast). The general decoding functions decode all other values, and name the fault of a damaged value.


def _plain_key(key: bytes) -> CommitKey | None:
    size = len(key)
    if size < 10:
        return None
    topic_at = 4 + int.from_bytes(key[2:4], "big")
    partition_at = topic_at + 2 + int.from_bytes(key[topic_at : topic_at + 2], "big")
    if partition_at != size - 4:
        return None
    try:
        group_id, topic = key[4:topic_at].decode(), key[topic_at + 2 : partition_at].decode()
    except UnicodeDecodeError:
        return None
    return CommitKey(group_id, TopicPartition(topic, _INT32.unpack_from(key, partition_at)[0]))


def _plain_value(value: bytes) -> CommittedOffset | None:
    """Decode version 3, and version 4 with a topic id and less than 127 bytes of metadata; None for any other value."""
    size = len(value)
    if size < 24:
        return None
    version, offset, leader_epoch = _HEAD.unpack_from(value)
    if version == 4:
        metadata_at, metadata_end = 15, 14 + value[14]
        topic_id = bytes(value[-TOPIC_ID_BYTES:])
        is_plain = (
            0 < value[14] < 0x80
            and size == metadata_end + 8 + len(_ONE_TOPIC_ID) + TOPIC_ID_BYTES
            and value[metadata_end + 8 : -TOPIC_ID_BYTES] == _ONE_TOPIC_ID
            and topic_id != _NO_TOPIC_ID
        )
    elif version == 3:
        topic_id = None
        metadata_at, metadata_end = 16, 16 + int.from_bytes(value[14:16], "big")
        is_plain = size == metadata_end + 8
    else:
        return None
    if not is_plain:
        return None
    try:
        metadata = value[metadata_at:metadata_end].decode() if metadata_end > metadata_at else ""
    except UnicodeDecodeError:
        return None
    return CommittedOffset(offset, leader_epoch, metadata, _INT64.unpack_from(value, metadata_end)[0], None, topic_id)


def _tagged_topic_id(reader: FieldReader) -> bytes | None:
    topic_id = None
    for tag, field in reader.tagged():
        if tag == 0:
            data = field.take(TOPIC_ID_BYTES)
            field.end()
            topic_id = data if data != _NO_TOPIC_ID else None
    return topic_id
