"""The guarantees of produce.proto over the wire, and the errors when a broker cannot keep them."""

from __future__ import annotations

import time

import grpc
import pytest

from headrace_core import errors
from headrace_core.records import Compression, decode_batch, split_batches
from headrace_core.records.batches import assemble_batch
from headrace_core.testing.batches import patched
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc
from tests.worlds.broker_world import WAIT_S, batch, produce_partition, produce_request, produce_stream
from tests.worlds.waiting import until


def code(result) -> int:
    return result.error.code


def test_an_answer_carries_offset_log_start_and_the_promise_that_was_met(topic):
    orders = topic()
    first, second = orders.produce(b"a", b"b", b"c"), orders.produce(b"d")
    assert (first.base_offset, second.base_offset) == (0, 3)
    assert (first.log_start_offset, first.log_append_time_ms) == (0, -1)
    assert first.durability == produce_pb2.DURABILITY_COMMIT
    assert orders.read() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("policy", "promise"),
    [("os", produce_pb2.DURABILITY_OS), ("interval", produce_pb2.DURABILITY_INTERVAL)],
)
def test_a_lazy_topic_reports_its_lesser_promise(topic, policy, promise):
    orders = topic(log_flush=policy)
    assert orders.produce(b"a").durability == promise
    assert orders.read() == [b"a"]


def test_acks_none_is_never_answered_and_appended_all_the_same(cluster, topic):
    orders = topic()
    with produce_stream(cluster) as stream:
        stream.send(produce_request(1, produce_partition(orders.name, batch(b"a")), acks=produce_pb2.ACKS_NONE))
        stream.send(produce_request(2, produce_partition("no-such-topic", batch(b"x")), acks=produce_pb2.ACKS_NONE))
        stream.send(produce_request(3, produce_partition(orders.name, batch(b"b")), acks=produce_pb2.ACKS_LEADER))
        answers = [stream.receive(), *stream.half_close()]
    assert [answer.correlation_id for answer in answers] == [3]
    assert orders.read() == [b"a", b"b"]


def test_many_requests_in_flight_keep_the_order_of_each_partition(cluster, topic):
    orders = topic(3)
    with produce_stream(cluster) as stream:
        for number in range(300):
            stream.send(produce_request(number, produce_partition(orders.name, batch(b"%d" % number), number % 3)))
        answers = stream.half_close()
    assert sorted(answer.correlation_id for answer in answers) == list(range(300))
    for partition in range(3):
        mine = [answer for answer in answers if answer.results[0].partition == partition]
        assert [answer.correlation_id for answer in mine] == list(range(partition, 300, 3))
        assert [answer.results[0].base_offset for answer in mine] == list(range(100))
        assert orders.read(partition=partition) == [b"%d" % number for number in range(partition, 300, 3)]


def test_one_refused_partition_does_not_hold_back_the_others(cluster, topic):
    orders = topic(2)
    with produce_stream(cluster) as stream:
        stream.send(
            produce_request(
                7,
                produce_partition(orders.name, batch(b"a"), 0),
                produce_partition(orders.name, batch(b"x"), 9),
                produce_partition(orders.name, b"garbage", 1),
                produce_partition(orders.name, batch(b"b"), 1),
            )
        )
        answer = stream.receive()
    assert [(result.partition, code(result)) for result in answer.results] == [
        (0, 0),
        (9, errors.UnknownTopicOrPartitionError.number),
        (1, errors.CorruptMessageError.number),
        (1, 0),
    ]
    assert answer.results[1].base_offset == -1
    assert orders.read(partition=1) == [b"b"]


def test_a_request_has_one_batch_for_a_partition_as_in_kafka(topic):
    orders = topic()
    assert code(orders.append(batch(b"a") + batch(b"b", b"c"))) == errors.InvalidRecordError.number
    assert code(orders.append(batch(b"d", b"e"))) == 0
    assert orders.read() == [b"d", b"e"]


def test_the_stored_bytes_are_the_producers_but_for_offset_and_epoch(cluster, topic):
    orders = topic()
    orders.produce(b"before")
    sent = batch(b"a", b"b", compression=Compression.LZ4)
    orders.append(sent)
    (segment,) = (cluster.broker.data / f"{orders.name}-0").glob("*.log")
    stored = segment.read_bytes()
    span = split_batches(stored)[1]
    assert (span.base_offset, span.last_offset) == (1, 2)
    assert stored[span.position + 16 :] == sent[16:]


DAMAGED = {
    "nothing": (b"", errors.InvalidRecordError),
    "three bytes": (b"abc", errors.CorruptMessageError),
    "half a batch": (batch(b"a" * 100)[:80], errors.CorruptMessageError),
    "a batch and a bit": (batch(b"a") + b"\0" * 10, errors.CorruptMessageError),
    "zeros": (b"\0" * 1000, errors.CorruptMessageError),
    "a wrong crc": (batch(b"a")[:-1] + b"\xff", errors.CorruptMessageError),
    "magic 1": (patched(batch(b"a"), 16, b"\1"), errors.InvalidRecordError),
    "a count of two for one record": (patched(batch(b"a"), 57, b"\0\0\0\2"), errors.InvalidRecordError),
    "two billion records": (patched(batch(b"a"), 57, b"\x7f\xff\xff\xff"), errors.HeadraceError),
    "garbage said to be lz4": (patched(batch(b"a" * 50), 21, b"\0\3"), errors.HeadraceError),
    "a control batch": (patched(batch(b"a"), 21, b"\0\x20"), errors.InvalidRecordError),
    "a transactional batch": (patched(batch(b"a"), 21, b"\0\x10"), errors.HeadraceError),
    "a batch of a transaction": (
        batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        errors.InvalidRecordError,
    ),
    "a producer without an epoch": (
        patched(batch(b"a"), 43, (7).to_bytes(8, "big")),
        errors.InvalidRecordError,
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_bad_batch_is_a_typed_error_and_changes_nothing(topic, what):
    records, expected = DAMAGED[what]
    orders = topic()
    result = orders.append(records)
    refusal = errors.from_number(code(result), result.error.message)
    assert isinstance(refusal, expected)
    assert not isinstance(refusal, errors.UnknownServerError)
    assert (result.base_offset, orders.end()) == (-1, 0)
    assert orders.produce(b"fine").base_offset == 0


def test_an_idempotent_producer_gets_an_id_and_writes_each_batch_once(cluster, topic):
    orders = topic()
    stub = produce_pb2_grpc.ProduceStub(cluster.channel)
    first, second = (stub.InitProducerId(produce_pb2.InitProducerIdRequest(), timeout=WAIT_S) for _ in range(2))
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)

    def write(value: bytes, sequence: int, epoch: int = 0):
        identity = {"producer_id": first.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return orders.append(batch(value, **identity))

    assert [write(b"a", 0).base_offset, write(b"b", 1).base_offset] == [0, 1]
    assert [write(b"a", 0).base_offset, write(b"b", 1).base_offset] == [0, 1]
    assert code(write(b"d", 3)) == errors.OutOfOrderSequenceNumberError.number
    present = produce_pb2.InitProducerIdRequest(producer_id=first.producer_id, producer_epoch=0)
    renewed = stub.InitProducerId(present, timeout=WAIT_S)
    assert (renewed.producer_id, renewed.producer_epoch) == (first.producer_id, 1)
    assert write(b"c", 0, epoch=1).base_offset == 2
    assert code(write(b"z", 2)) == errors.InvalidProducerEpochError.number
    assert orders.read() == [b"a", b"b", b"c"]
    with pytest.raises(grpc.RpcError) as caught:
        stub.InitProducerId(produce_pb2.InitProducerIdRequest(producer_id=5), timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_batch_above_the_topics_limit_is_too_large(topic):
    orders = topic(max_message_bytes="1000")
    result = orders.produce(b"x" * 1000)
    assert code(result) == errors.RecordTooLargeError.number
    assert "max.message.bytes=1000" in result.error.message
    assert orders.produce(b"x" * 900).base_offset == 0


def test_records_that_do_not_fit_a_segment_are_too_large(topic):
    orders = topic(segment_bytes="2000", max_message_bytes="3000")
    result = orders.append(batch(b"x" * 2400))
    assert code(result) == errors.RecordListTooLargeError.number
    assert orders.end() == 0


def test_a_request_above_the_brokers_limit_is_a_typed_error(make_cluster):
    cluster = make_cluster(**{"socket.request.max.bytes": "2000", "message.max.bytes": "1500"})
    orders = cluster.topic("orders")
    assert code(orders.produce(b"x" * 3000)) == errors.RecordListTooLargeError.number
    assert orders.produce(b"x" * 1000).base_offset == 0


def test_timestamps_out_of_bounds_are_refused(topic):
    now = int(time.time() * 1000)
    bounded = topic(message_timestamp_before_max_ms="60000")
    assert code(bounded.append(batch(b"a", timestamp_ms=now - 3_600_000))) == errors.InvalidTimestampError.number
    assert code(bounded.append(batch(b"a", timestamp_ms=now + 7_200_000))) == errors.InvalidTimestampError.number
    assert code(bounded.append(batch(b"a", timestamp_ms=now))) == 0


def test_log_append_time_is_the_brokers_and_is_reported(topic):
    orders = topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    result = orders.append(batch(b"a", timestamp_ms=5))
    assert before <= result.log_append_time_ms <= int(time.time() * 1000)
    assert orders.offset_of(-3).timestamp_ms == result.log_append_time_ms


def test_a_topics_own_compression_is_applied(cluster, topic):
    orders = topic(compression_type="zstd")
    assert code(orders.append(batch(b"a" * 500, b"b" * 500, compression=Compression.GZIP))) == 0
    (segment,) = (cluster.broker.data / f"{orders.name}-0").glob("*.log")
    stored = segment.read_bytes()
    assert stored[22] & 7 == Compression.ZSTD
    assert [record.value for record in decode_batch(stored)] == [b"a" * 500, b"b" * 500]


def test_the_topic_id_must_be_of_this_life_of_the_topic(cluster, topic):
    orders = topic()
    with produce_stream(cluster) as stream:
        stream.send(produce_request(1, produce_partition(orders.name, batch(b"a"), topic_id=orders.topic_id)))
        stream.send(produce_request(2, produce_partition(orders.name, batch(b"b"), topic_id=b"\1" * 16)))
        answers = [stream.receive(), stream.receive()]
    assert [code(answer.results[0]) for answer in answers] == [0, errors.InconsistentTopicIdError.number]


def test_answers_for_one_partition_keep_their_order_refusals_included(cluster, topic):
    orders = topic()
    with produce_stream(cluster) as stream:
        for number in range(200):
            records = b"garbage" if number % 3 == 2 else batch(b"%d" % number)
            stream.send(produce_request(number, produce_partition(orders.name, records)))
        answers = stream.half_close()
    assert [answer.correlation_id for answer in answers] == list(range(200))
    assert [number for number, answer in enumerate(answers) if code(answer.results[0])] == list(range(2, 200, 3))


def test_compressed_batches_keep_their_place_among_the_others(cluster, topic):
    """A thread checks large batches. Later requests for the same partition wait, also requests that will be refused."""
    orders = topic(2)
    sent: list[bytes] = []
    with produce_stream(cluster) as stream:
        for number in range(120):
            value = b"%05d" % number * 400
            if number % 7 == 6:
                records = b"garbage" * 200
            else:
                sent.append(value)
                codec = (Compression.NONE, Compression.LZ4, Compression.GZIP, Compression.ZSTD)[number % 4]
                records = batch(value, value[:1000] + str(hash(value)).encode() * 50, compression=codec)
            stream.send(produce_request(number, produce_partition(orders.name, records)))
            stream.send(produce_request(1000 + number, produce_partition(orders.name, batch(value), 1)))
        answers = stream.half_close()
    first = [answer for answer in answers if answer.correlation_id < 1000]
    assert [answer.correlation_id for answer in first] == list(range(120))
    offsets = [answer.results[0].base_offset for answer in first if not code(answer.results[0])]
    assert offsets == list(range(0, 2 * len(sent), 2))
    assert orders.read()[::2] == sent


def bomb() -> bytes:
    """A small batch that decompresses to 140 MiB."""
    return assemble_batch(
        bytes(140 * 1024 * 1024),
        record_count=1,
        last_offset_delta=0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        compression=Compression.ZSTD,
    )


def test_a_batch_that_would_decompress_to_more_than_is_allowed_stalls_nobody(cluster, topic):
    orders, others = topic(2), topic()
    hostile = bomb()
    assert len(hostile) < 100_000
    with produce_stream(cluster) as stream:
        for number in range(3):
            stream.send(produce_request(number, produce_partition(orders.name, hostile)))
        assert others.produce(b"meanwhile").base_offset == 0
        results = [stream.receive().results[0] for _ in range(3)]
    assert {code(result) for result in results} <= {
        errors.InvalidRecordError.number,
        errors.CorruptMessageError.number,
        errors.RecordTooLargeError.number,
    }
    assert orders.end() == 0


@pytest.mark.parametrize("name", ["", ".", "..", "../../etc/passwd", "a/b", "a\0b", "ü", "x" * 300, "missing"])
def test_a_name_that_is_no_topic_is_unknown_and_touches_no_file(cluster, name):
    before = sorted(path.name for path in cluster.broker.data.iterdir() if path.is_dir())
    with produce_stream(cluster) as stream:
        stream.send(produce_request(1, produce_partition(name, batch(b"a"))))
        (result,) = stream.receive().results
    assert code(result) == errors.UnknownTopicOrPartitionError.number
    assert len(result.error.message) < 500
    assert sorted(path.name for path in cluster.broker.data.iterdir() if path.is_dir()) == before


@pytest.mark.parametrize("partition", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_partition_that_does_not_exist_is_unknown(topic, partition):
    assert code(topic().produce(b"a", partition=partition)) == errors.UnknownTopicOrPartitionError.number


def test_acks_that_do_not_exist_are_refused(cluster, topic):
    orders = topic()
    with produce_stream(cluster) as stream:
        stream.send(produce_request(1, produce_partition(orders.name, batch(b"a")), acks=9))
        (result,) = stream.receive().results
    assert code(result) == errors.InvalidRequiredAcksError.number
    assert orders.end() == 0


@pytest.mark.parametrize(
    "request_", [produce_request(1), produce_request(1, produce_partition("t", b""), timeout_ms=-1)]
)
def test_a_request_that_makes_no_sense_ends_the_call(cluster, request_):
    with produce_stream(cluster) as stream:
        stream.send(request_)
        with pytest.raises(grpc.RpcError) as failed:
            stream.receive()
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.value.details().startswith("INVALID_REQUEST: ")
    assert ("headrace-error-code", "42") in list(failed.value.trailing_metadata())


def test_bytes_that_are_no_protobuf_end_the_call_with_a_typed_error(cluster):
    method = cluster.channel.stream_stream("/headrace.v1.Produce/Produce")
    with pytest.raises(grpc.RpcError) as failed:
        next(method(iter([b"\xff\xff\xff\xff"]), timeout=WAIT_S))
    assert failed.value.details().startswith("INVALID_REQUEST: ")


def test_a_message_beyond_the_wires_limit_ends_one_call_and_not_the_broker(cluster, topic):
    orders = topic()
    huge = cluster.connect()
    method = produce_pb2_grpc.ProduceStub(huge).Produce
    request = produce_request(1, produce_partition(orders.name, b"x" * (113 * 1024 * 1024)))
    with pytest.raises(grpc.RpcError) as failed:
        next(method(iter([request]), timeout=WAIT_S))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    huge.close()
    assert orders.produce(b"fine").base_offset == 0


def test_a_broken_stream_does_not_tear_what_it_sent(cluster, topic):
    """A stream is cancelled during many appends. The log has a prefix of the sent records, in whole batches."""
    orders = topic()
    sent = [b"%05d" % number for number in range(2000)]
    with produce_stream(cluster) as stream:
        for number, value in enumerate(sent):
            stream.send(produce_request(number, produce_partition(orders.name, batch(value, value))))
        for _ in range(50):
            stream.receive()
    arrived = orders.produce(b"last").base_offset  # all records that reached the broker earlier have lower offsets
    stored = orders.read()
    assert 100 <= arrived < len(stored)
    assert stored[:arrived] == [value for value in sent for _ in (0, 1)][:arrived]


def test_back_pressure_bounds_what_the_broker_holds(cluster, topic):
    """A client that never stops sending, and reads no answer, is slowed down. The broker still serves other clients."""
    orders, others = topic(), topic()
    own = cluster.connect()
    flood = batch(*[b"x" * 1000] * 900)
    before = cluster.rss_bytes()
    sent = 0

    def requests():
        nonlocal sent
        while sent < 400 and not done:
            sent += 1
            yield produce_request(sent, produce_partition(orders.name, flood))

    done: list[bool] = []
    call = produce_pb2_grpc.ProduceStub(own).Produce(requests(), timeout=60)
    try:
        until(lambda: sent > 20, "the flood to begin")
        assert others.produce(b"a").base_offset == 0
        assert cluster.rss_bytes() - before < 300 * 1024 * 1024
    finally:
        done.append(True)
        call.cancel()
        own.close()
