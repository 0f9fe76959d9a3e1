"""The contract of the Python API, as a third party's script would use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import headrace as package
from headrace import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    LocalCluster,
    NewTopic,
    Producer,
    TopicPartition,
)
from headrace.errors import (
    BootstrapError,
    ClosedError,
    DeliveryTimeoutError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
)
from headrace_core.testing.verdicts import NotInTimeError


def all_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(3)]


def test_every_method_of_the_async_clients_can_be_awaited(bootstrap: str, topic: str) -> None:
    asyncio.run(await_every_method(bootstrap, topic))


async def await_every_method(bootstrap: str, topic: str) -> None:
    awaited: dict[str, set[str]] = {"AsyncProducer": set(), "AsyncConsumer": set(), "AsyncAdmin": set()}

    async def on(client: Any, method: str, *arguments: Any, **named: Any) -> Any:
        awaited[type(client).__name__].add(method)
        found: Awaitable[Any] = getattr(client, method)(*arguments, **named)
        return await found

    import pyarrow as pa

    partitions = all_of(topic)
    async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
        assert topic in await on(admin, "list_topics")
    producer = AsyncProducer(bootstrap_servers=bootstrap)
    await on(producer, "start")
    metadata = await (await on(producer, "send", topic, value=b"v", key=b"k", partition=0))
    assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 0, 0)
    assert (await (await on(producer, "send_many", topic, [b"a", (b"k", b"b")], partition=1))).record_count == 2
    assert (await (await on(producer, "send_arrow", topic, pa.table({"value": [b"c"]})))).record_count == 1
    assert (await on(producer, "send_and_wait", topic, b"d")).topic == topic
    await on(producer, "flush", timeout=60)
    assert await on(producer, "partitions_for", topic) == [0, 1, 2]
    assert (await on(producer, "metrics"))["record-send-total"] == 5
    await on(producer, "close")
    transactional = AsyncProducer(bootstrap_servers=bootstrap, transactional_id=f"of-{topic}")
    assert await on(transactional, "init_transactions") is None
    for end in ("abort_transaction", "commit_transaction"):
        await on(transactional, "begin_transaction")
        await on(transactional, end)
    await on(transactional, "begin_transaction")
    await on(transactional, "complete", await on(transactional, "prepare"), commit=False)
    async with transactional.transaction():
        awaited["AsyncProducer"].add("transaction")

    consumer = AsyncConsumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"})
    assert await on(consumer, "assign", partitions) is None
    assert await on(consumer, "assignment") == set(partitions) == consumer.assignment()
    assert await on(consumer, "pause", *partitions) is None
    assert await on(consumer, "paused") == set(partitions) == consumer.paused()
    assert await on(consumer, "resume", *partitions) is None
    assert consumer.paused() == set()
    assert await on(consumer, "seek", partitions[1], 1) is None
    assert await on(consumer, "position", partitions[1]) == 1
    assert await on(consumer, "seek_to_end", partitions[1]) is None
    assert await on(consumer, "position", partitions[1]) >= 2
    assert await on(consumer, "seek_to_beginning") is None
    assert await on(consumer, "position", partitions[1]) == 0
    await on(consumer, "start")
    assert await on(consumer, "partitions_for", topic) == [0, 1, 2]
    assert await on(consumer, "beginning_offsets", partitions) == dict.fromkeys(partitions, 0)
    assert sum((await on(consumer, "end_offsets", partitions)).values()) == 5
    assert (await on(consumer, "offsets_for_times", {partitions[0]: 0}))[partitions[0]].offset == 0
    got: list[Any] = []
    while len(got) < 5:
        records = await on(consumer, "poll", timeout=10.0, max_records=500)
        assert records, got
        got += records
    await on(consumer, "seek_to_beginning")
    async for records in consumer.batches(timeout=10.0):
        assert records
        awaited["AsyncConsumer"].add("batches")
        break
    await on(consumer, "seek_to_beginning")
    assert (await on(consumer, "fetch_arrow", timeout=10.0)).num_rows
    assert (await on(consumer, "metrics"))["assigned-partitions"] == 3
    for method, arguments in (("subscribe", ([topic],)), ("commit", ()), ("committed", (partitions[0],))):
        with pytest.raises(InvalidGroupIdError, match=rf"{method} needs a consumer group: set group\.id"):
            await on(consumer, method, *arguments)
    await on(consumer, "close")

    group = {"group.id": f"group-of-{topic}", "auto.offset.reset": "earliest"}
    async with AsyncConsumer({"bootstrap.servers": bootstrap, **group}) as member:
        assert await on(member, "subscribe", [topic]) is None
        got = []
        while len(got) < 5:
            records = await on(member, "poll", timeout=60.0)
            assert records, got
            got += records
        assert member.subscription() == {topic}
        assert member.group_metadata().group_id == f"group-of-{topic}"
        await on(member, "commit_async", {partitions[0]: 0})
        assert await on(member, "committed", partitions[0]) == 0
        await on(member, "commit")
        assert sum(each.offset for each in (await on(member, "committed", partitions)).values()) == 5
        async with transactional.transaction():
            await on(transactional, "send_offsets", {partitions[0]: 0}, group=member.group_metadata())
        await transactional.close()
        await on(member, "seek_to_committed")
        assert await member.position(partitions[0]) == 0
        await on(member, "unsubscribe")
        assert (member.subscription(), member.assignment()) == (frozenset(), set())
    awaited["AsyncConsumer"] |= {"subscription", "group_metadata"}  # what it knows of itself: plain values
    for name in awaited:
        awaited[name] |= {"from_properties", "partition_metrics"}  # a constructor, and plain values
    awaited["AsyncConsumer"].add("process")  # see tests of consumer/processing

    for twin in (AsyncProducer, AsyncConsumer):
        public = {name for name in dir(twin) if not name.startswith("_")}
        assert awaited[twin.__name__] == public, f"not tried: {public - awaited[twin.__name__]}"


def test_plain_calls_of_async_methods_act_at_once(bootstrap: str, topic: str) -> None:
    async def main() -> list[bytes | None]:
        async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
            await (await producer.send(topic, b"one", partition=2))
        async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign(all_of(topic))  # not awaited, as aiokafka's is not
            consumer.seek(TopicPartition(topic, 2), 0)
            return [record.value for record in await consumer.poll(timeout=60)]

    assert asyncio.run(main()) == [b"one"]


def test_blocking_and_async_faces_name_the_same_partitions_alike(bootstrap: str, topic: str) -> None:
    partitions = all_of(topic)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(partitions)
        consumer.pause(partitions)  # a list, as confluent-kafka has it
        assert consumer.paused() == set(partitions)
        consumer.resume(*partitions)  # or one by one, as kafka-python has it
        assert consumer.paused() == set()
        for nonsense in (topic, [topic], [(topic, "0")], [7]):
            with pytest.raises(InvalidArgumentError, match="partition"):
                consumer.assign(nonsense)  # type: ignore[arg-type]
        assert consumer.assignment() == set(partitions)  # as it was


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 10)])
@pytest.mark.parametrize("read", ["poll", "fetch_arrow"])
def test_position_tells_where_reading_went_on_after_an_offset_out_of_range(
    bootstrap: str, topic: str, reset: str, expected: int, read: str
) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_many(topic, [b"v"] * 10, partition=0).result(60)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset=reset) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 1_000_000)
        deadline = time.monotonic() + 60
        while consumer.position(partition) == 1_000_000:
            getattr(consumer, read)(timeout=0.1)
            if time.monotonic() >= deadline:
                raise NotInTimeError("the offset is still out of range")
        consumer.pause(partition)
        assert consumer.position(partition) in (expected, 10)


def test_counts_of_a_new_topic_that_cannot_be_are_refused(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        for count in (0, -2):
            with pytest.raises(InvalidPartitionsError, match="at least 1"):
                admin.create_topics([NewTopic(f"{topic}-none", partitions=count)])
            with pytest.raises(InvalidReplicationFactorError, match="at least 1"):
                admin.create_topics([NewTopic(f"{topic}-none", replication_factor=count)])
        (made,) = admin.create_topics([NewTopic(f"{topic}-default", -1, -1)])  # Kafka's word for the default
        assert (made.partitions, made.replication_factor) == (1, 1)
        assert [made.name for made in admin.create_topics(f"{topic}-alone")] == [f"{topic}-alone"]


def test_a_thousand_partitions_start_together(bootstrap: str, topic: str) -> None:
    name = f"{topic}-wide"
    partitions = [TopicPartition(name, number) for number in range(1_000)]
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=1_000)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(1_000):
            producer.send(name, b"%d" % number, partition=number)
        producer.flush(30)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=1_000) as consumer:
        asked = requests_counted(consumer)
        consumer.assign(partitions)
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        while len(seen) < 1_000:
            seen |= {record.partition for record in consumer.poll(1.0)}
            if time.monotonic() >= deadline:
                raise NotInTimeError(len(seen))
        assert len(asked) <= 5, "positions are found together, not partition by partition"


def requests_counted(consumer: Consumer) -> list[int]:
    """Collect the sizes of the ListOffsets requests that the consumer sends from now on."""
    sizes: list[int] = []
    connections = consumer._core.engine.connections
    offsets: Callable[[str], Any] = connections.offsets

    class Counting:
        def __init__(self, address: str) -> None:
            self._stub = offsets(address)

        def ListOffsets(self, request: Any, **more: Any) -> Any:
            sizes.append(len(request.partitions))
            return self._stub.ListOffsets(request, **more)

    connections.offsets = Counting  # type: ignore[method-assign, assignment]
    return sizes


def test_a_topic_that_was_deleted_under_a_producer_is_named_as_the_cause(bootstrap: str, topic: str) -> None:
    short = {"request.timeout.ms": 1_000, "delivery.timeout.ms": 4_000, "allow.auto.create.topics": False}
    with Admin(bootstrap_servers=bootstrap) as admin, Producer({"bootstrap.servers": bootstrap, **short}) as producer:
        producer.send(topic, b"before").result(60)
        admin.delete_topics([topic])
        with pytest.raises(DeliveryTimeoutError, match=f"topic '{topic}' no longer exists"):
            producer.send(topic, b"after").result(60)


def test_a_record_of_a_producer_that_nothing_else_holds_is_delivered(bootstrap: str, topic: str) -> None:
    """The producer is garbage-collected while its record waits. The producer sends its records before it ends."""
    metadata = Producer(bootstrap_servers=bootstrap, linger_ms=100).send(topic, b"v").result(60)
    assert (metadata.topic, metadata.offset) == (topic, 0)


def test_cancelling_an_awaited_call_cancels_it(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers=bootstrap) as consumer:
            await consumer.assign(all_of(topic))
            for call in (consumer.poll(timeout=60), consumer.partitions_for(f"{topic}-unknown")):
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    asyncio.run(main())


def words(text: str) -> list[str]:
    return text.split()


# --- words -----------------------------------------------------------------------------------------------------------

CLIENT_KEYS = words("""
bootstrap.servers acks linger.ms batch.size buffer.memory compression.type enable.idempotence transactional.id
max.in.flight.requests.per.connection delivery.timeout.ms request.timeout.ms retries group.id group.instance.id
group.protocol auto.offset.reset enable.auto.commit auto.commit.interval.ms isolation.level max.poll.interval.ms
max.poll.records session.timeout.ms heartbeat.interval.ms fetch.min.bytes fetch.max.wait.ms client.rack
security.protocol sasl.mechanism key.serializer value.serializer key.deserializer value.deserializer
partitioner.class interceptor.classes client.id client.dns.lookup max.request.size max.block.ms retry.backoff.ms
retry.backoff.max.ms metadata.max.age.ms reconnect.backoff.ms fetch.max.bytes max.partition.fetch.bytes
allow.auto.create.topics exclude.internal.topics check.crcs group.remote.assignor
""")

SERVER_KEYS = words("""
broker.id node.id process.roles listeners advertised.listeners inter.broker.listener.name
listener.security.protocol.map controller.listener.names controller.quorum.voters
controller.quorum.bootstrap.servers log.dirs num.partitions default.replication.factor min.insync.replicas
unclean.leader.election.enable log.retention.hours log.retention.minutes log.retention.ms log.retention.bytes
log.retention.check.interval.ms log.segment.bytes log.roll.hours num.network.threads num.io.threads
socket.send.buffer.bytes socket.receive.buffer.bytes socket.request.max.bytes queued.max.requests request.timeout.ms
num.replica.fetchers replica.fetch.max.bytes replica.socket.timeout.ms replica.lag.time.max.ms
quota.producer.default quota.consumer.default compression.type message.max.bytes auto.create.topics.enable
delete.topic.enable broker.rack broker.session.timeout.ms broker.heartbeat.interval.ms
offsets.topic.replication.factor offsets.topic.num.partitions offsets.retention.minutes
transaction.state.log.replication.factor transaction.state.log.min.isr group.consumer.session.timeout.ms
group.consumer.heartbeat.interval.ms group.initial.rebalance.delay.ms
""")

TOPIC_KEYS = words("""
cleanup.policy retention.ms retention.bytes segment.bytes segment.ms segment.index.bytes min.insync.replicas
compression.type max.message.bytes message.timestamp.type message.timestamp.before.max.ms
message.timestamp.after.max.ms min.compaction.lag.ms max.compaction.lag.ms delete.retention.ms
min.cleanable.dirty.ratio file.delete.delay.ms flush.messages flush.ms unclean.leader.election.enable
index.interval.bytes preallocate log.flush
""")


def test_every_key_of_our_users_is_known() -> None:
    from headrace.settings import CONSUMER, PRODUCER
    from headrace_core.config.server_keys import SERVER
    from headrace_core.config.topic_keys import TOPIC

    for name in CLIENT_KEYS:
        assert name in PRODUCER.keys or name in CONSUMER.keys, name
        home = PRODUCER if name in PRODUCER.keys else CONSUMER
        assert home.key(name.replace(".", "_")).name == name
    assert [name for name in SERVER_KEYS if name not in SERVER.keys] == []
    assert [name for name in TOPIC_KEYS if name not in TOPIC.keys] == []


def test_pasted_server_keys_are_noted_or_refused_with_the_reason() -> None:
    from headrace_core.config.server_keys import SERVER

    pasted = {"num.io.threads": "8", "socket.send.buffer.bytes": "102400", "replica.fetch.max.bytes": "2097152"}
    SERVER.parse(pasted)
    notes = SERVER.notes(pasted)
    assert len(notes) == 3
    assert all("has no effect" in note for note in notes)
    with pytest.raises(InvalidConfigError, match="must be PEM or PKCS12"):
        SERVER.parse({"ssl.keystore.type": "JKS"})


def test_wrong_configurations_say_what_would_be_right(bootstrap: str) -> None:
    for make, text in (
        (lambda: Producer({"bootstrap.server": bootstrap}), "did you mean 'bootstrap.servers'"),
        (lambda: Producer(bootstrap_server=bootstrap), "did you mean 'bootstrap.servers'"),
        (lambda: Producer(group_id="g"), "'group_id' is a configuration key of the consumer, not of the producer"),
        (lambda: Consumer({"linger.ms": 5}), "'linger.ms' is a configuration key of the producer, not of the consumer"),
        (lambda: Admin(acks="all"), "'acks' is a configuration key of the producer, not of the admin"),
        (lambda: Producer(bootstrap), "takes a dict with dotted keys, or keywords"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidConfigError) as caught:
            make()
        assert text in str(caught.value)


def test_nobody_at_home_names_each_address_the_cause_and_the_cure() -> None:
    dead = Admin(bootstrap_servers="127.0.0.1:1,127.0.0.1:2", bootstrap_timeout_ms=3_000)
    with dead as admin, pytest.raises(BootstrapError) as caught:
        admin.list_topics()
    text = str(caught.value)
    assert caught.value.retriable
    assert caught.value.code == "BOOTSTRAP_FAILED"
    for part in ("127.0.0.1:1: connection refused", "127.0.0.1:2: connection refused", "is the cluster up?"):
        assert part in text


def test_errors_have_stable_codes_and_a_verdict(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer, pytest.raises(HeadraceError) as caught:
        producer.send(topic, bytes(2_000_000))
    assert (caught.value.code, caught.value.retriable) == ("MESSAGE_TOO_LARGE", False)
    with pytest.raises(ClosedError, match="this producer is closed"):
        producer.send(topic, b"late")


def test_local_cluster_refuses_what_it_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match="mode='threads': must be 'process' or 'inprocess'"):
        LocalCluster(mode="threads")  # type: ignore[arg-type]
    with pytest.raises(IllegalStateError, match="with"):
        _ = LocalCluster().bootstrap_servers
    assert {"kill", "pause", "resume", "restart", "bootstrap_servers"} <= set(dir(package.LocalCluster))
