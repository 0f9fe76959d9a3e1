"""Producers and consumers with schema serializers: blocking and asyncio clients, and a registry that is slow, dead, or
lacks a schema. The registry is a small one in memory, so that a test can stop it in the middle of an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headrace import AsyncConsumer, AsyncProducer, Consumer, LocalCluster, Producer, TopicPartition
from headrace.errors import IllegalStateError, RequestTimedOutError, SerializationError
from headrace.schemas import (
    AvroDeserializer,
    AvroSerializer,
    InvalidValueError,
    RegistryUnavailableError,
    SchemaNotFoundError,
    SchemaRegistry,
    UnknownSchemaIdError,
    WrongMagicByteError,
)
from tests.worlds.registries import FakeRegistry, fake_registry
from tests.worlds.waiting import check_in_time, check_took, in_loop, until, until_async

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, mode="inprocess") as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(fake.url, retries=0, failure_cache_ms=200) as client:
        yield client


def reading(cluster: LocalCluster, registry: SchemaRegistry) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "value_deserializer": AvroDeserializer(registry),
    }


def write(cluster: LocalCluster, topic: str, values: list[Any], serializer: Any = None) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer) as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(30)


class Ticker:
    """Counts the turns of an event loop, and the longest pause between two, in seconds."""

    async def __aenter__(self) -> Ticker:
        self.turns, self.longest_s = 0, 0.0
        self._task = asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.turns += 1

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def after_turns(ticker: Ticker, count: int) -> None:
    until = ticker.turns + count
    await until_async(lambda: ticker.turns >= until)


@pytest.mark.parametrize("many", [False, True])
@in_loop
async def test_an_async_producer_does_not_block_its_event_loop(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry, many: bool
) -> None:
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    async with (
        AsyncProducer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer) as producer,
        Ticker() as ticker,
    ):
        topic = f"async-{many}"
        await producer.partitions_for(topic)
        fake.gate.clear()
        values = [{"id": number} for number in range(100)]
        if many:
            sends = [asyncio.create_task(producer.send_many(topic, values))]
        else:
            sends = [asyncio.create_task(_sent(producer, topic, value)) for value in values]
        await after_turns(ticker, 60)  # the registry is asked, and does not answer
        assert len(fake.requests) == 1
        assert not any(each.done() for each in sends)
        fake.gate.set()
        for future in await asyncio.gather(*sends):
            await future
        check_took(ticker.longest_s, 2)
        assert len(fake.requests) <= 3, "100 sends share the requests"


async def _sent(producer: AsyncProducer, topic: str, value: Any) -> Any:
    return await producer.send(topic, value)


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_an_async_consumer_does_not_block_its_event_loop(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry, how: str
) -> None:
    topic = f"async-read-{how}"
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    write(cluster, topic, [{"id": number} for number in range(20)], serializer)
    fake.gate.clear()
    before = len(fake.requests)

    async def take(consumer: AsyncConsumer) -> list[int]:
        found: list[int] = []
        if how == "poll":
            while len(found) < 20:
                found += [record.value["id"] for record in await consumer.poll(timeout=30)]
            return found
        async for record in consumer:
            found.append(record.value["id"])
            if len(found) == 20:
                break
        return found

    async def scenario() -> None:
        async with AsyncConsumer(**reading(cluster, registry)) as consumer, Ticker() as ticker:
            consumer.assign([TopicPartition(topic, 0)])
            taking = asyncio.create_task(take(consumer))
            await until_async(lambda: len(fake.requests) > before)
            await after_turns(ticker, 60)
            assert not taking.done()
            fake.gate.set()
            assert await taking == list(range(20))
            check_took(ticker.longest_s, 2)

    asyncio.run(scenario())


def test_a_poll_ends_in_time_while_the_registry_is_silent(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    write(cluster, "silent", [{"id": 1}], AvroSerializer(registry, ORDER, auto_register_schemas=True))
    fake.gate.clear()
    before = len(fake.requests)
    with Consumer(**reading(cluster, registry)) as consumer:
        consumer.assign([TopicPartition("silent", 0)])
        while len(fake.requests) == before:
            assert consumer.poll(timeout=0.2) == []
        began = time.monotonic()
        assert consumer.poll(timeout=0.2) == []
        check_in_time(began, 3)
        fake.gate.set()
        assert [record.value for record in consumer.poll(timeout=30)] == [{"id": 1, "note": ""}]


def test_an_async_poll_ends_in_time_while_the_registry_is_silent(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    write(cluster, "silent-too", [{"id": 1}], AvroSerializer(registry, ORDER, auto_register_schemas=True))
    fake.gate.clear()
    before = len(fake.requests)

    async def scenario() -> None:
        async with AsyncConsumer(**reading(cluster, registry)) as consumer:
            consumer.assign([TopicPartition("silent-too", 0)])
            while len(fake.requests) == before:
                assert await consumer.poll(timeout=0.2) == []
            assert await consumer.poll(timeout=0.2) == []
            fake.gate.set()
            assert [record.value for record in await consumer.poll(timeout=30)] == [{"id": 1, "note": ""}]

    asyncio.run(scenario())


def test_keys_and_values_have_subjects_of_their_own(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    both = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, key_serializer=both, value_serializer=both) as producer:
        producer.send("both", {"id": 1, "note": "v"}, key={"id": 2}).result(30)
    assert sorted(fake.subjects) == ["both-key", "both-value"]
    with Consumer(**reading(cluster, registry), key_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign([TopicPartition("both", 0)])
        for record in consumer:
            assert (record.key, record.value) == ({"id": 2, "note": ""}, {"id": 1, "note": "v"})
            break


def test_a_bad_record_is_named_and_can_be_passed(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    good = [serializer("bad", {"id": number}) for number in range(3)]
    write(cluster, "bad", [good[0], b"no schema", good[1], b"\0\0\0\0\x63abc", good[2]])
    found: list[Any] = []
    with Consumer(**reading(cluster, registry)) as consumer:
        consumer.assign([TopicPartition("bad", 0)])
        while len(found) < 5:
            try:
                found += [record.value["id"] for record in consumer.poll(timeout=30)]
            except SerializationError as error:
                found.append(error)
                consumer.seek(error.topic_partition, (error.offset or 0) + 1)
    assert [each for each in found if isinstance(each, int)] == [0, 1, 2]
    magic, unknown = found[1], found[3]
    assert isinstance(magic, WrongMagicByteError)
    assert (magic.topic, magic.partition, magic.offset, magic.field) == ("bad", 0, 1, "value")
    assert magic.record.value == b"no schema"
    assert "bad-0 at offset 1" in magic.message
    assert isinstance(unknown, UnknownSchemaIdError)
    assert (unknown.offset, unknown.schema_id, unknown.subject) == (3, 99, "bad-value")


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_known_ids_go_on_while_the_registry_is_down(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry, kind: str
) -> None:
    topic, later = f"down-{kind}", f"down-later-{kind}"
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    write(cluster, topic, [{"id": 0}], serializer)
    data = serializer(topic, {"id": 9})
    assert AvroDeserializer(registry)(topic, data) == {"id": 9, "note": ""}
    fake.stop()

    async def scenario() -> None:
        async with (
            AsyncProducer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer) as producer,
            AsyncConsumer(**reading(cluster, registry)) as consumer,
        ):
            await producer.send_and_wait(topic, {"id": 1}, partition=0)
            with pytest.raises(RegistryUnavailableError) as refused:
                await producer.send(later, {"id": 1})
            assert refused.value.topic == later
            with pytest.raises(RegistryUnavailableError):
                await producer.send_many(later, [{"id": 1}])
            consumer.assign([TopicPartition(topic, 0)])
            found: list[int] = []
            while len(found) < 2:
                found += [record.value["id"] for record in await consumer.poll(timeout=30)]
            assert found == [0, 1]

    if kind == "async":
        asyncio.run(scenario())
        return
    write(cluster, topic, [{"id": 1}], serializer)
    with pytest.raises(RegistryUnavailableError):
        write(cluster, later, [{"id": 1}], serializer)
    with Consumer(**reading(cluster, registry)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[int] = []
        while len(found) < 2:
            found += [record.value["id"] for record in consumer.poll(timeout=30)]
        assert found == [0, 1]


def test_a_producer_raises_the_serializers_own_errors(cluster: LocalCluster, registry: SchemaRegistry) -> None:
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers, value_serializer=AvroSerializer(registry, ORDER)
    ) as producer:
        with pytest.raises(SchemaNotFoundError, match=r"value\.serializer failed for topic 'errors'") as missing:
            producer.send("errors", {"id": 1})
        assert (missing.value.subject, missing.value.topic, missing.value.field) == ("errors-value", "errors", "value")
    registering = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=registering) as producer:
        producer.send("errors", {"id": 1}).result(30)
        with pytest.raises(InvalidValueError) as invalid:
            producer.send_many("errors", [{"id": 1}, {"id": "x"}])
        assert invalid.value.path == "id"
        assert "record 1:" in invalid.value.message


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_send_waits_for_the_registry_up_to_max_block_ms(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry, kind: str
) -> None:
    settings: Any = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "value_serializer": AvroSerializer(registry, ORDER, auto_register_schemas=True),
        "max_block_ms": 300,
    }
    topic = f"blocked-{kind}"
    serializer = settings["value_serializer"]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.partitions_for(topic)  # creates the topic, which may take longer than max.block.ms
    fake.gate.clear()

    async def scenario() -> None:
        async with AsyncProducer(**settings) as producer:
            while not await knows_async(producer, topic):
                pass
            with pytest.raises(RequestTimedOutError, match=r"the schema registry.* within max\.block\.ms=300"):
                await producer.send(topic, {"id": 1})
            with pytest.raises(RequestTimedOutError):
                await producer.send_many(topic, [{"id": 1}])
            fake.gate.set()
            await asyncio.to_thread(serializer, topic, {"id": 1})  # the registry's answer
            await producer.send_and_wait(topic, {"id": 1})

    if kind == "async":
        asyncio.run(scenario())
        return
    with Producer(**settings) as producer:
        until(lambda: knows(producer, topic))
        with pytest.raises(RequestTimedOutError, match=r"the schema registry.* within max\.block\.ms=300"):
            producer.send(topic, {"id": 1})
        with pytest.raises(RequestTimedOutError):
            producer.send_many(topic, [{"id": 1}])
        fake.gate.set()
        serializer(topic, {"id": 1})  # the registry's answer
        producer.send(topic, {"id": 1}).result(30)


def knows(producer: Producer, topic: str) -> bool:
    """Whether a producer that waits for a short time has the topic's metadata."""
    with suppress(RequestTimedOutError):
        return bool(producer.partitions_for(topic))
    return False


async def knows_async(producer: AsyncProducer, topic: str) -> bool:
    with suppress(RequestTimedOutError):
        return bool(await producer.partitions_for(topic))
    return False


def test_a_callback_must_not_wait_for_the_registry(
    cluster: LocalCluster, fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=True)
    errors: list[BaseException] = []
    with Producer(bootstrap_servers=cluster.bootstrap_servers, value_serializer=serializer) as producer:
        for topic in ("first", "second"):
            producer.partitions_for(topic)

        def again(*_: object) -> None:
            try:
                producer.send("second", {"id": 2})
            except IllegalStateError as error:
                errors.append(error)

        producer.send("first", {"id": 1}, on_delivery=again).result(30)
        until(lambda: errors)
        assert "cannot wait in the callback" in str(errors[0])
        producer.send("second", {"id": 2}).result(30)
