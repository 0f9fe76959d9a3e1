"""Produce requests and answers with one partition, which unbatched producers send, in the flexible versions.

The general codecs (schema.py) take a third of a broker's processor time for such a request and its answer. The
functions of this module read and write the same bytes as the general codecs, with fewer function calls. The general
codecs process requests of any other form, and damaged requests.

    request      null transactional id: 0 | acks int16 | timeout int32 | 2 (one topic) | topic
                 | 2 (one partition) | index int32 | records | 0 | 0 | 0 (tagged fields)
    answer       2 | topic | 2 | index int32 | error int16 | base offset int64 | append time int64 | start offset int64
                 | 1 (no record errors) | 0 (no message) | 0 | 0 (tagged fields) | throttle time int32 | 0
    topic        from version 13 its id, 16 bytes; before, a compact string
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from .apis import VERSIONS, Api
from .frames import LENGTH_BYTES
from .primitives import put_compact_string
from .schema import Message, message_class

TOPIC_IDS = 13  #: The first version in which a topic has its id in place of its name.
_FLEXIBLE = VERSIONS[Api.PRODUCE].flexible
_ONE = 2  #: A compact array with one element begins with its length + 1.
_ID_BYTES = 16

_REQUEST = struct.Struct(">BhiB")
_PARTITION = struct.Struct(">Bi")
_ANSWER_BEFORE = struct.Struct(">iiBB")
_ANSWER_AFTER = struct.Struct(">BihqqqBBBBiB")


@functools.cache
def _classes() -> tuple[type[Message], type[Message], type[Message]]:
    """The classes of a request, of a topic, and of a partition."""
    of = functools.partial(message_class, Api.PRODUCE, "request")
    return of(), of("topic_data"), of("topic_data", "partition_data")


def _message(kind: type[Message], fields: dict[str, Any]) -> Message:
    made = kind.__new__(kind)
    made.__dict__ = fields
    return made


def read_one(frame: bytes, position: int, version: int) -> Message | None:
    """Decode the request that begins at ``position`` of ``frame``, as ``request_body(Api.PRODUCE, version).read`` does.
    Return None for a request of another form: several topics or partitions, a transactional id, a name above 126 bytes,
    tagged fields, null records, or records above 16 KiB. Return None also if the bytes are not a request."""
    if version < _FLEXIBLE:
        return None
    try:
        transactional_id, acks, timeout, topics = _REQUEST.unpack_from(frame, position)
        position += _REQUEST.size
        topic: dict[str, Any]
        if version >= TOPIC_IDS:
            topic = {"topic_id": frame[position : position + _ID_BYTES]}
            position += _ID_BYTES
        else:
            size = frame[position]  # the length + 1
            if not 0 < size < 0x80:
                return None
            topic = {"name": str(frame[position + 1 : position + size], "utf-8")}
            position += size
        partitions, index = _PARTITION.unpack_from(frame, position)
        if transactional_id != 0 or topics != _ONE or partitions != _ONE:
            return None
        position += _PARTITION.size
        size = frame[position]
        position += 1
        if size >= 0x80:
            more = frame[position]
            position += 1
            if more >= 0x80:
                return None
            size = size & 0x7F | more << 7
        end = position + size - 1
        if size == 0 or frame[end : end + 3] != b"\0\0\0":
            return None
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    request_class, topic_class, partition_class = _classes()
    partition = _message(partition_class, {"index": index, "records": frame[position:end]})
    topic["partition_data"] = [partition]
    fields = {"transactional_id": None, "acks": acks, "timeout": timeout, "topic_data": [_message(topic_class, topic)]}
    return _message(request_class, fields)


def write_one(version: int, correlation_id: int, topic: str | bytes, result: dict[str, Any], throttle_ms: int) -> bytes:
    """The frame of the answer to a request of ``read_one`` whose records were appended. ``topic``: the topic's id if
    ``version`` is TOPIC_IDS or higher, else the topic's name. ``result``: the partition's fields ``index``,
    ``base_offset``, ``log_append_time`` and ``log_start_offset``."""
    if version >= TOPIC_IDS:
        assert isinstance(topic, bytes)
        name: bytes | bytearray = topic
    else:
        assert isinstance(topic, str)
        name = bytearray()
        put_compact_string(name, topic)
    after = _ANSWER_AFTER.pack(
        _ONE,
        result["index"],
        0,
        result["base_offset"],
        result["log_append_time"],
        result["log_start_offset"],
        1,
        0,
        0,
        0,
        throttle_ms,
        0,
    )
    size = _ANSWER_BEFORE.size - LENGTH_BYTES + len(name) + len(after)
    return b"".join((_ANSWER_BEFORE.pack(size, correlation_id, 0, _ONE), name, after))
