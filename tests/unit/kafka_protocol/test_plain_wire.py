"""Plain Produce requests: the compiled reader and writer agree with the general codecs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace_core.records import encode_batch
from headrace_kafka.wire._plain import PLAIN_BYTES_MAX, TOPIC_IDS, plain_answer, read_plain
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.frames import finish, read_header, response_start
from headrace_kafka.wire.primitives import WireError
from headrace_kafka.wire.schema import request_body, response_body

FLEXIBLE = range(VERSIONS[Api.PRODUCE].flexible, VERSIONS[Api.PRODUCE].high + 1)
BATCH = encode_batch([(1, None, b"v" * 20, [])])


def topic_of(version: int, name: str = "orders") -> dict[str, Any]:
    return {"topic_id": name.encode().ljust(16, b"-")[:16]} if version >= TOPIC_IDS else {"name": name}


def request(version: int, *, records: bytes | None = BATCH, name: str = "orders", **more: Any) -> dict[str, Any]:
    topic = {**topic_of(version, name), "partition_data": [{"index": 7, "records": records}]}
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [topic], **more}


def framed(version: int, fields: dict[str, Any], client_id: str | None = "c", tags: bytes = b"\0") -> bytes:
    head = int(Api.PRODUCE).to_bytes(2, "big") + version.to_bytes(2, "big") + (4711).to_bytes(4, "big")
    named = b"\xff\xff" if client_id is None else len(client_id.encode()).to_bytes(2, "big") + client_id.encode()
    return head + named + tags + bytes(request_body(Api.PRODUCE, version).write(fields))


def general(frame: bytes) -> tuple[Any, ...]:
    """What the general codec reads, in the form of ``read_plain``."""
    header = read_header(frame)
    message = request_body(Api.PRODUCE, header.version).read(frame, header.body)
    (topic,) = message.topic_data
    (partition,) = topic.partition_data
    name = topic.topic_id if header.version >= TOPIC_IDS else topic.name
    acks, records = message.acks == -1, bytes(partition.records)
    return (
        header.version,
        header.correlation_id,
        header.client_id,
        acks,
        message.timeout,
        name,
        partition.index,
        records,
    )


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("size", [1, 50, 130, 16_300, 16_400, 40_000])
def test_a_plain_request_is_read_as_the_general_codec_reads_it(version: int, size: int) -> None:
    records = encode_batch([(1, None, b"v" * size, [])])
    for acks, client_id in ((1, "producer"), (-1, ""), (-1, None), (1, "ü" * 30)):
        frame = framed(version, request(version, records=records, acks=acks), client_id)
        found = read_plain(frame)
        assert found is not None
        assert found == general(frame)
        assert found[3] is (acks == -1)


@pytest.mark.parametrize("name", ["o", "ü", "n" * 126])
def test_a_topics_name_may_have_126_bytes(name: str) -> None:
    frame = framed(TOPIC_IDS - 1, request(TOPIC_IDS - 1, name=name))
    assert read_plain(frame) == general(frame)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_other_requests_are_left_to_the_general_codec(version: int) -> None:
    one = {"index": 0, "records": BATCH}
    old = BATCH[:16] + b"\1" + BATCH[17:]
    others = [
        request(version, transactional_id="t"),
        request(version, transactional_id=""),
        request(version, acks=0),
        request(version, acks=2),
        request(version, timeout=-1),
        request(version, topic_data=[]),
        request(version, topic_data=[{**topic_of(version), "partition_data": []}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one, one]}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one]}] * 2),
        request(version, records=None),
        request(version, records=b""),
        request(version, records=BATCH[:-1]),
        request(version, records=BATCH + BATCH),
        request(version, records=old),
        request(version, records=encode_batch([(1, None, b"v" * PLAIN_BYTES_MAX, [])])),
    ]
    for fields in others:
        assert read_plain(framed(version, fields)) is None, fields
    plain = framed(version, request(version))
    assert read_plain(plain[:-1] + b"\x01\x07\x01x") is None, "an unknown tagged field"
    assert read_plain(framed(version, request(version), tags=b"\x01\x07\x01x")) is None, "in the header"
    assert read_plain(plain + b"\0") is None
    assert read_plain(b"\0\1" + plain[2:]) is None, "another type of request"


def test_other_versions_are_left_to_the_general_codec() -> None:
    frame = framed(FLEXIBLE.start, request(FLEXIBLE.start))
    for version in (0, FLEXIBLE.start - 1, FLEXIBLE.stop, 0x7FFF):
        assert read_plain(frame[:2] + version.to_bytes(2, "big") + frame[4:]) is None


@pytest.mark.parametrize("version", FLEXIBLE)
def test_damaged_requests_are_read_as_the_general_codec_reads_them(version: int, rng: random.Random) -> None:
    """Each byte that is changed, and each cut."""
    frame = framed(version, request(version))
    damaged = [frame[:end] for end in range(len(frame))]
    for at in range(len(frame)):
        damaged += [frame[:at] + bytes([byte]) + frame[at + 1 :] for byte in (0, 1, 2, 3, 0x7F, 0x80, 0xFF)]
    damaged += [frame[: rng.randrange(60)] + rng.randbytes(rng.randrange(200)) for _ in range(2_000)]
    for each in damaged:
        found = read_plain(each)
        if found is not None:
            assert found == general(each), each
    for each in damaged[: len(frame)]:
        assert read_plain(each) is None, "a cut"


def test_a_name_that_is_no_text_is_left_to_the_general_codec() -> None:
    version = TOPIC_IDS - 1
    frame = framed(version, request(version))
    broken = frame.replace(b"orders", b"or\xff\xffrs")
    assert read_plain(broken) is None
    with pytest.raises(WireError):
        general(broken)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_an_answer_has_the_bytes_of_the_general_codec(version: int, rng: random.Random) -> None:
    for _ in range(50):
        index, base, start = rng.randrange(2**31), rng.choice((0, rng.randrange(2**63))), rng.randrange(-1, 2**63 - 1)
        topic = topic_of(version, rng.choice(["n" * rng.randrange(1, 126), "ü" * 60]))
        result = {"index": index, "base_offset": base, "log_append_time": -1, "log_start_offset": start}
        out = response_start(Api.PRODUCE, version, 4711)
        fields = {"responses": [{**topic, "partition_responses": [result]}], "throttle_time": 0}
        response_body(Api.PRODUCE, version).write(fields, out)
        (name,) = topic.values()
        assert plain_answer(version, 4711, name, index, base, start) == bytes(finish(out))
