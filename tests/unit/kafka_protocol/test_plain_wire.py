"""Plain Produce requests: the compiled reader and writer agree with the general codecs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_core.errors import NotLeaderOrFollowerError, OutOfOrderSequenceNumberError
from headrace_core.records import encode_batch
from headrace_kafka.produce_path import PlainProduce
from headrace_kafka.wire._plain import PLAIN_BATCH_BYTES_MAX, PLAIN_PARTITIONS_MAX, TOPIC_IDS, plain_answer, read_plain
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
    batches = [
        (topic.topic_id if header.version >= TOPIC_IDS else topic.name, partition.index, bytes(partition.records))
        for topic in message.topic_data
        for partition in topic.partition_data
    ]
    acks = message.acks == -1
    return header.version, header.correlation_id, header.client_id, acks, message.timeout, batches


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


@pytest.mark.parametrize("version", FLEXIBLE)
def test_a_plain_request_may_have_several_topics_and_partitions(version: int, rng: random.Random) -> None:
    for _ in range(100):
        topics = [
            {
                **topic_of(version, f"topic-{number}" * rng.choice((1, 20))),
                "partition_data": [
                    {"index": rng.randrange(-1, 2**31), "records": encode_batch([(1, None, b"v" * size, [])])}
                    for size in rng.choices((1, 50, 200, 20_000), k=rng.randrange(1, 8))
                ],
            }
            for number in range(rng.randrange(1, 5))
        ]
        frame = framed(version, request(version, topic_data=topics))
        assert read_plain(frame) == general(frame)


@pytest.mark.parametrize("name", ["o", "ü", "n" * 126, "n" * 249])
def test_a_topics_name_may_have_249_bytes(name: str) -> None:
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
        request(version, topic_data=[{**topic_of(version), "partition_data": [one] * (PLAIN_PARTITIONS_MAX + 1)}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one]}] * (PLAIN_PARTITIONS_MAX + 1)),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one, {**one, "records": None}]}]),
        request(version, topic_data=[{**topic_of(version), "partition_data": [one, {**one, "records": old}]}]),
        request(version, records=None),
        request(version, records=b""),
        request(version, records=BATCH[:-1]),
        request(version, records=BATCH + BATCH),
        request(version, records=old),
        request(version, records=encode_batch([(1, None, b"v" * PLAIN_BATCH_BYTES_MAX, [])])),
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
    topic = {**topic_of(version), "partition_data": [{"index": index, "records": BATCH} for index in (7, 8)]}
    frame = framed(version, request(version, topic_data=[topic, topic]))
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
    for _ in range(100):
        batches: list[Any] = []
        outcomes, responses = [], []
        for number in range(rng.choice((1, 1, 2, 130))):
            topic = topic_of(version, f"{number}" + rng.choice(["n" * rng.randrange(1, 240), "ü" * 60]))
            results: list[dict[str, Any]] = []
            responses.append({**topic, "partition_responses": results})
            for _ in range(rng.choice((1, 1, 5, 130))):
                base, start = rng.choice((0, rng.randrange(2**63))), rng.randrange(-1, 2**63 - 1)
                index = rng.randrange(-1, 2**31)
                results.append({"index": index, "base_offset": base, "log_append_time": -1, "log_start_offset": start})
                (name,) = topic.values()
                batches.append((name, index, b""))
                outcomes.append((base, start))
        out = response_start(Api.PRODUCE, version, 4711)
        response_body(Api.PRODUCE, version).write({"responses": responses, "throttle_time": 0}, out)
        assert plain_answer(version, 4711, batches, outcomes) == bytes(finish(out))


@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_answer_to_a_request_with_a_refused_batch_names_the_leader(version: int) -> None:
    client = SimpleNamespace(listener="kafka", client_id="", caller=None)
    topic = SimpleNamespace(name="orders", partitions=[SimpleNamespace(leader=3, leader_epoch=5)] * 9)
    cluster = SimpleNamespace(
        topic=lambda name: topic,
        topic_by_id=lambda topic_id: topic,
        authorization=SimpleNamespace(authorizer=None, sample=False),
        node=lambda listener, leader: SimpleNamespace(broker_id=leader, host="h", port=9, rack=None),
    )
    partitions = [{"index": index, "records": BATCH} for index in (7, 8)]
    two = [
        {**topic_of(version), "partition_data": partitions},
        {**topic_of(version, "other"), "partition_data": partitions[:1]},
    ]
    fields = read_plain(framed(version, request(version, topic_data=two)))
    assert fields is not None
    replies: list[Any] = []
    plain = PlainProduce(cast("Any", client), cast("Any", cluster), fields, 100, replies.append)
    assert plain.start(lambda *_, **__: True, has_traces=False)
    assert [records for _, _, records in plain.fields[-1]] == [b""] * 3, "records are not kept for the answer"
    assert not plain.told(1, NotLeaderOrFollowerError("moved"))
    assert not plain.told(0, (17, 3))
    assert plain.told(2, OutOfOrderSequenceNumberError("a gap"))
    ((frame,),) = replies
    start = len(response_start(Api.PRODUCE, version, 4711))
    found = response_body(Api.PRODUCE, version).read(bytes(frame), start)
    (one, moved), (last,) = [each.partition_responses for each in found.responses]
    assert (one.error_code, one.base_offset, one.log_start_offset) == (0, 17, 3)
    assert (moved.error_code, moved.index, moved.base_offset) == (NotLeaderOrFollowerError.number, 8, -1)
    assert (last.error_code, last.error_message) == (OutOfOrderSequenceNumberError.number, "a gap")
    if version >= 10:
        assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (3, 5)
        assert [node.node_id for node in found.node_endpoints] == [3]
