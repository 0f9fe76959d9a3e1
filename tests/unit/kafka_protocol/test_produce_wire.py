"""Produce requests and answers with one partition: their codecs agree with the general ones."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.frames import finish, response_start
from headrace_kafka.wire.primitives import WireError
from headrace_kafka.wire.produce import TOPIC_IDS, read_one, write_one
from headrace_kafka.wire.schema import Message, as_dict, request_body, response_body

FLEXIBLE = range(VERSIONS[Api.PRODUCE].flexible, VERSIONS[Api.PRODUCE].high + 1)
HEAD = b"header"
#: Sizes of records around the limits of a varint's bytes.
SIZES = (0, 1, 100, 125, 126, 127, 128, 16_382)


def topic_of(version: int, name: str = "orders") -> dict[str, Any]:
    return {"topic_id": name.encode().ljust(16, b"-")[:16]} if version >= TOPIC_IDS else {"name": name}


def request(version: int, **more: Any) -> dict[str, Any]:
    partition = {"index": 7, "records": b"r" * 100}
    topic = {**topic_of(version), "partition_data": [partition]}
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [topic], **more}


def encoded(version: int, fields: dict[str, Any]) -> bytes:
    return HEAD + bytes(request_body(Api.PRODUCE, version).write(fields))


def general(version: int, frame: bytes) -> Message:
    return request_body(Api.PRODUCE, version).read(frame, len(HEAD))


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("size", SIZES)
def test_a_request_with_one_partition_is_read_as_the_general_codec_reads_it(version: int, size: int) -> None:
    fields = request(version, acks=1)
    fields["topic_data"][0]["partition_data"][0]["records"] = b"r" * size
    frame = encoded(version, fields)
    found = read_one(frame, len(HEAD), version)
    assert found is not None
    assert found == general(version, frame)
    assert type(found) is type(general(version, frame))
    assert as_dict(found) == fields
    assert read_one(frame + b"more", len(HEAD), version) == found


@pytest.mark.parametrize("name", ["", "ü", "n" * 126])
def test_a_topics_name_may_have_126_bytes(name: str) -> None:
    version = TOPIC_IDS - 1
    topic = {**topic_of(version, name), "partition_data": [{"index": 0, "records": b"r"}]}
    frame = encoded(version, request(version, topic_data=[topic]))
    assert read_one(frame, len(HEAD), version) == general(version, frame)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_other_requests_are_left_to_the_general_codec(version: int) -> None:
    one = {"index": 0, "records": b"r"}
    large = {"index": 0, "records": b"r" * (SIZES[-1] + 1)}
    others = [
        request(version, transactional_id="t"),
        request(version, transactional_id=""),
        request(version, topic_data=[]),
        request(version, topic_data=[{**topic_of(version), "partition_data": []}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one, one]}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one]}] * 2),
        request(version, topic_data=[{**topic_of(version), "partition_data": [{"index": 0, "records": None}]}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [large]}]),
    ]
    for fields in others:
        frame = encoded(version, fields)
        assert read_one(frame, len(HEAD), version) is None, fields
        assert as_dict(general(version, frame)) == fields
    tagged = encoded(version, request(version))[:-1] + b"\x01\x07\x01x"  # an unknown tagged field
    assert read_one(tagged, len(HEAD), version) is None
    assert as_dict(general(version, tagged)) == request(version)


def test_a_version_without_compact_fields_is_left_to_the_general_codec() -> None:
    version = FLEXIBLE.start - 1
    assert read_one(encoded(version, request(version)), len(HEAD), version) is None


@pytest.mark.parametrize("version", FLEXIBLE)
def test_damaged_requests_are_read_as_the_general_codec_reads_them(version: int, rng: random.Random) -> None:
    """Each byte that is changed, and each cut."""
    frame = encoded(version, request(version))
    damaged = [frame[:end] for end in range(len(HEAD), len(frame))]
    for at in range(len(HEAD), len(frame)):
        damaged += [frame[:at] + bytes([byte]) + frame[at + 1 :] for byte in (0, 1, 2, 3, 0x7F, 0x80, 0xFF)]
    damaged += [HEAD + rng.randbytes(rng.randrange(80)) for _ in range(2_000)]
    for each in damaged:
        try:
            expected: Message | None = general(version, each)
        except WireError:
            expected = None
        found = read_one(each, len(HEAD), version)
        assert found is None or found == expected, each


@pytest.mark.parametrize("version", FLEXIBLE)
def test_an_answer_has_the_bytes_of_the_general_codec(version: int, rng: random.Random) -> None:
    for _ in range(50):
        result = {
            "index": rng.randrange(2**31),
            "base_offset": rng.choice((0, rng.randrange(2**63))),
            "log_append_time": rng.choice((-1, rng.randrange(2**63))),
            "log_start_offset": rng.randrange(-1, 2**63 - 1),
        }
        topic, throttle_ms = topic_of(version, "n" * rng.randrange(1, 250)), rng.choice((0, rng.randrange(2**31)))
        out = response_start(Api.PRODUCE, version, 4711)
        responses = [{**topic, "partition_responses": [result]}]
        response_body(Api.PRODUCE, version).write({"responses": responses, "throttle_time": throttle_ms}, out)
        (name,) = topic.values()
        assert write_one(version, 4711, name, result, throttle_ms) == bytes(finish(out))
