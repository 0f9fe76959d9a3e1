"""Topics whose brokers validate schema ids, on a real broker beside a registry in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, ConfigResource
from headrace_core import errors
from headrace_core.records import encode_batch
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc
from tests.worlds.broker_world import WAIT_S, Cluster, Topic, produce_partition, produce_request, produce_stream
from tests.worlds.registries import FakeRegistry
from tests.worlds.waiting import until

VALIDATED = {"value_schema_validation": "true"}


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    running = FakeRegistry()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def validating(tmp_path_factory: pytest.TempPathFactory, registry: FakeRegistry) -> Iterator[Cluster]:
    """A cluster whose broker knows the registry, and forgets missing ids at once."""
    keys = {"confluent.schema.registry.url": registry.url, "confluent.missing.id.cache.ttl.sec": "0"}
    with Cluster(tmp_path_factory.mktemp("validating"), **keys) as running:
        yield running


@pytest.fixture
def topic(validating: Cluster, request: pytest.FixtureRequest) -> Callable[..., Topic]:
    def make(partitions: int = 1, suffix: str = "", **configs: str) -> Topic:
        name = f"{request.node.name[:100].replace('[', '-').strip(']')}{suffix}"
        return validating.topic(name, partitions, **(configs or VALIDATED))

    return make


def framed(schema_id: int, rest: bytes = b"rest") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + rest


def records(*values: bytes | None, **fields: Any) -> bytes:
    now = int(time.time() * 1000)
    return encode_batch([(now, b"key", value, []) for value in values], **fields)


def schema_of(registry: FakeRegistry, topic: Topic, side: str = "value") -> int:
    """A schema of its own for the topic."""
    return registry.add_avro(f"{topic.name}-{side}", {"type": "enum", "name": f"E{time.time_ns()}", "symbols": []})


def faults(result: Any) -> list[tuple[int, str]]:
    return [(fault.index, fault.message) for fault in result.record_faults]


def test_registered_ids_pass_and_others_are_refused_with_their_indexes(topic, registry):
    orders, payments = topic(), topic(suffix="-payments")
    own, other = schema_of(registry, orders), schema_of(registry, payments)
    assert orders.append(records(framed(own), None, framed(own))).base_offset == 0
    refused = orders.append(records(framed(own), b"plain", framed(other), framed(2**31 - 1)))
    assert refused.error.code == errors.InvalidRecordError.number
    assert faults(refused) == [
        (1, "the value does not begin with a magic byte 0 and a schema id (Confluent's wire format)")
    ]
    refused = orders.append(records(framed(own), framed(other), framed(2**31 - 1)))
    assert faults(refused) == [
        (1, f'the value has schema id {other}, which is not registered under the subject "{orders.name}-value"'),
        (2, "the value has schema id 2147483647, which the schema registry does not have"),
    ]
    assert f"{orders.name}-0: record 1 of a batch" in refused.error.message
    assert orders.read() == [framed(own), None, framed(own)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batches_are_checked_beside_others_and_keep_their_order(topic, registry, validating, codec):
    orders = topic()
    own = schema_of(registry, orders)
    sent = [framed(own, b"%d" % number * 3_000) for number in range(6)]
    with produce_stream(validating) as stream:
        for number, value in enumerate(sent):
            stream.send(
                produce_request(
                    number, produce_partition(orders.name, records(value, compression=codec * (number % 2)))
                )
            )
        bad = records(*[framed(own, b"x" * 3_000)] * 9, b"plain", compression=codec)
        stream.send(produce_request(9, produce_partition(orders.name, bad)))
        answers = sorted(stream.half_close(), key=lambda answer: answer.correlation_id)
    assert [answer.results[0].base_offset for answer in answers] == [0, 1, 2, 3, 4, 5, -1]
    assert [index for index, _ in faults(answers[-1].results[0])] == [9]
    assert orders.read() == sent


def test_keys_are_validated_under_their_key_and_under_confluents_name(topic, registry):
    keyed = topic(confluent_key_schema_validation="true")
    own = schema_of(registry, keyed, "key")
    now = int(time.time() * 1000)
    assert keyed.append(encode_batch([(now, framed(own), b"plain", []), (now, None, b"plain", [])])).base_offset == 0
    refused = keyed.append(encode_batch([(now, b"plain", framed(own), [])]))
    assert refused.error.code == errors.InvalidRecordError.number
    assert faults(refused)[0][1].startswith("the key does not begin")


def test_the_strategy_of_the_topic_decides_which_subjects_count(topic, registry):
    name = {"type": "enum", "name": f"Any{time.time_ns()}", "symbols": []}
    found = registry.add_avro("com.acme.Anything", name)
    strict, loose = topic(), topic(suffix="-loose", **VALIDATED, value_subject_name_strategy="RecordNameStrategy")
    assert strict.append(records(framed(found))).error.code == errors.InvalidRecordError.number
    assert loose.append(records(framed(found))).base_offset == 0


def test_while_the_registry_hangs_other_topics_and_partitions_go_on(topic, registry, validating):
    orders, plain = topic(2), topic(suffix="-plain", cleanup_policy="delete")
    own = schema_of(registry, orders)
    assert orders.append(records(framed(own)), partition=1).base_offset == 0
    late = schema_of(registry, orders)
    registry.gate.clear()
    try:
        with produce_stream(validating) as stream:
            stream.send(produce_request(1, produce_partition(orders.name, records(framed(late)), 0)))
            stream.send(produce_request(2, produce_partition(orders.name, records(framed(own)), 1)))
            stream.send(produce_request(3, produce_partition(plain.name, records(b"plain"))))
            assert sorted(stream.receive().correlation_id for _ in range(2)) == [2, 3]
            registry.gate.set()
            answer = stream.receive()
    finally:
        registry.gate.set()
    assert (answer.correlation_id, answer.results[0].base_offset) == (1, 0)
    assert orders.read() == [framed(late)]


def test_an_idempotent_producers_batches_wait_in_order_for_the_answer(topic, registry, validating):
    orders = topic()
    own, second = schema_of(registry, orders), schema_of(registry, orders)
    stub = produce_pb2_grpc.ProduceStub(validating.channel)
    producer_id = stub.InitProducerId(produce_pb2.InitProducerIdRequest(), timeout=WAIT_S).producer_id
    registry.gate.clear()
    try:
        with produce_stream(validating) as stream:
            for number, schema_id in enumerate((own, second, own, second)):
                batch = records(framed(schema_id), producer_id=producer_id, producer_epoch=0, base_sequence=number)
                stream.send(produce_request(number, produce_partition(orders.name, batch)))
            until(lambda: any(path.endswith(f"/{own}/subjects") for _, path in registry.requests), "the first question")
            registry.gate.set()
            answers = [stream.receive() for _ in range(4)]
    finally:
        registry.gate.set()
    assert [answer.results[0].base_offset for answer in answers] == [0, 1, 2, 3]
    assert orders.read() == [framed(own), framed(second)] * 2


def test_a_registry_that_is_down_and_back_again(tmp_path: Path):
    registry = FakeRegistry()
    with Cluster(tmp_path, **{"confluent.schema.registry.url": registry.url}) as cluster:
        orders = cluster.topic("orders", 1, **VALIDATED)
        own, unasked = schema_of(registry, orders), schema_of(registry, orders)
        assert orders.append(records(framed(own))).base_offset == 0
        registry.stop()
        refused = orders.append(records(framed(unasked)))
        assert refused.error.code == errors.ServerBusyError.number
        assert f"cannot check schema id {unasked}" in refused.error.message
        assert orders.append(records(framed(own))).base_offset == 1
        assert orders.append(records(b"plain")).error.code == errors.InvalidRecordError.number
        back = FakeRegistry()
        back.subjects, back.schemas = registry.subjects, registry.schemas
        try:
            with Admin(bootstrap_servers=cluster.broker.address()) as admin:
                admin.alter_configs({ConfigResource("broker", ""): {"confluent.schema.registry.url": back.url}})
            until(lambda: orders.append(records(framed(unasked))).base_offset == 2, "the registry to be asked again")
        finally:
            back.stop()
        assert orders.read() == [framed(own), framed(own), framed(unasked)]


def test_a_broker_without_a_registry_refuses_the_topics_records(tmp_path: Path):
    with Cluster(tmp_path) as cluster:
        orders = cluster.topic("orders", 1, **VALIDATED)
        refused = orders.append(records(framed(1)))
        assert refused.error.code == errors.InvalidConfigError.number
        assert "confluent.schema.registry.url" in refused.error.message
        assert orders.append(records(None)).base_offset == 0
