"""Short-lived clients leak no memory in a long-lived process: no native memory, no reference cycles."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, AsyncProducer, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.accumulator import Accumulator, PartitionQueue, TopicQueues
from headrace.admin.calls import AdminCalls
from headrace.consumer.fetcher import Fetcher
from headrace.consumer.group import GroupConsumer
from headrace.consumer.inbox import Inbox, Slice
from headrace.consumer.reading import Reading
from headrace.engine.client import Engine
from headrace.engine.metadata import MetadataCache
from headrace.errors import ClosedError, UnknownTopicOrPartitionError
from headrace.group.commits import Commits
from headrace.group.membership import Membership
from headrace.producer.core import ProducerCore
from headrace.producer.identity import ProducerIdentity
from headrace.producer.sender import BrokerLink, Sender
from headrace.producer.transactional import Transactions
from headrace_broker.partition.session import FetchSession
from headrace_core.membership.metadata_watch import MetadataWatch
from headrace_core.records import RecordIterator
from tests.worlds.waiting import until

MIB = 1024 * 1024
PARTITIONS = 3


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_in_use() -> int:
    """Return the bytes that malloc has allocated in this process; unlike RSS, this number does not depend on
    fragmentation."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def fill(bootstrap: str, topic: str) -> None:
    """Write 6 MB to the topic."""
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_partitions({topic: PARTITIONS})
        for number in range(300):
            producer.send_many(topic, [b"x" * 200] * 100, partition=number % PARTITIONS)
        producer.flush(60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is asked with glibc's mallinfo2")
@pytest.mark.timeout(300)
def test_short_lived_clients_leave_no_memory_behind(headrace: Any, headrace_topic: str) -> None:
    """Each consumer closes while answers arrive. gRPC leaks every response whose read was cancelled. Before Headrace
    avoided these cancellations, the leak was 60 to 200 KiB for each consumer."""
    bootstrap = headrace.bootstrap_servers
    fill(bootstrap, headrace_topic)

    def live_for_a_moment() -> None:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.list_topics()
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(headrace_topic, b"hello").result(timeout=60)
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(headrace_topic, number) for number in range(PARTITIONS)])
            assert consumer.poll(60)

    for _ in range(20):  # pools and caches reach their size
        live_for_a_moment()
    gc.collect()
    before = malloc_in_use()
    for _ in range(80):
        live_for_a_moment()
    gc.collect()
    grown = (malloc_in_use() - before) / MIB
    print(f"grew by {grown:.2f} MiB")
    assert grown < 1, f"80 rounds of short-lived clients keep {grown:.2f} MiB"


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.timeout(300)
def test_nothing_of_a_closed_client_waits_for_the_garbage_collector(
    without_collections: None, headrace: Any, headrace_topic: str
) -> None:
    """Regression: a closed consumer was in a reference cycle with its prefetched records (1 MiB or more), until
    Python's next full garbage collection. RSS rose by 30 MiB within an hour and fell again. A closed producer kept 13
    KiB, a group consumer 22 KiB."""
    bootstrap = headrace.bootstrap_servers
    fill(bootstrap, headrace_topic)

    def admin() -> None:
        with Admin(bootstrap_servers=bootstrap) as client:
            client.list_topics()
            with pytest.raises(UnknownTopicOrPartitionError):
                client.delete_topics(["no-such-topic"])

    def consumer() -> None:
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as client:
            client.assign([TopicPartition(headrace_topic, number) for number in range(PARTITIONS)])
            assert client.poll(60)

    def arrow() -> None:
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as client:
            client.assign([TopicPartition(headrace_topic, 0)])
            assert client.fetch_arrow(timeout=60).num_rows

    async def with_asyncio() -> None:
        async with AsyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as client:
            client.assign([TopicPartition(headrace_topic, number) for number in range(PARTITIONS)])
            assert await client.poll(60)

    def group() -> None:
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=headrace_topic) as client:
            client.subscribe([headrace_topic])
            assert client.poll(60)
            client.commit()

    def group_by_hand() -> None:
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id="by-hand") as client:
            client.assign([TopicPartition(headrace_topic, 0)])
            assert client.poll(60)

    def producer() -> None:
        with Producer(bootstrap_servers=bootstrap) as client:
            client.send(headrace_topic, b"x").result(timeout=60)
        with pytest.raises(ClosedError):
            client.send(headrace_topic, b"x")

    def compressing_producer() -> None:
        with Producer(bootstrap_servers=bootstrap, compression_type="zstd") as client:
            client.send_many(headrace_topic, [b"x" * 200] * 1000)

    def transactions() -> None:
        with Producer(bootstrap_servers=bootstrap, transactional_id=headrace_topic) as client, client.transaction():
            client.send(headrace_topic, b"x")

    def unused() -> None:
        Producer(bootstrap_servers=bootstrap)
        Producer(bootstrap_servers=bootstrap, transactional_id="unused").close()
        Consumer(bootstrap_servers=bootstrap).close()

    async def producer_with_asyncio() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap) as client:
            await client.send_and_wait(headrace_topic, b"x")
        with pytest.raises(ClosedError):
            await client.send(headrace_topic, b"x")

    gc.collect()
    others = parts_of_clients()  # of the fixtures, and of clients that an earlier test has not closed
    lives = (
        *(admin, consumer, arrow, group, group_by_hand, producer, compressing_producer, transactions, unused),
        *(lambda: asyncio.run(with_asyncio()), lambda: asyncio.run(producer_with_asyncio())),
    )
    for live in lives:
        live()
        until(
            lambda: not new_ones(parts_of_clients(), others),
            lambda: f"{[type(each).__name__ for each in new_ones(parts_of_clients(), others)]} are left",
            pause_s=0.1,
        )


def new_ones(now: list[object], before: list[object]) -> list[object]:
    """The objects that were not there before. ``before`` refers to its objects, so no new object has the id of one."""
    known = set(map(id, before))
    return [each for each in now if id(each) not in known]


def parts_of_clients() -> list[object]:
    parts = (
        *(Engine, MetadataCache, AdminCalls, Fetcher, Inbox, Reading, Slice),
        *(ProducerCore, Sender, Accumulator, ProducerIdentity, Transactions, BrokerLink),
        *(TopicQueues, PartitionQueue, GroupConsumer, Membership, Commits),
    )
    return [each for each in gc.get_objects() if isinstance(each, parts)]


@pytest.mark.timeout(300)
def test_a_consumer_keeps_no_records_after_its_end(headrace: Any, headrace_topic: str) -> None:
    """The records are freed even while the program still has a reference to the consumer."""
    bootstrap = headrace.bootstrap_servers
    fill(bootstrap, headrace_topic)
    gc.collect()
    others = records_held()  # by clients of earlier tests
    client = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    client.assign([TopicPartition(headrace_topic, number) for number in range(PARTITIONS)])
    (first,) = client.poll(60, max_records=1)
    client.pause(first.topic_partition)  # its fetched records are held
    assert client.poll(60, max_records=1)
    until(lambda: client.metrics()["queued-bytes"] > 0, "records are fetched ahead")
    client.close()
    assert client.metrics()["queued-bytes"] == 0
    # (the I/O thread may refer to the last slice for a moment)
    until(lambda: not new_ones(records_held(), others), lambda: f"{new_ones(records_held(), others)}", pause_s=0.1)


def records_held() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, Slice | RecordIterator)]


@pytest.mark.timeout(300)
def test_nothing_of_a_closed_stream_waits_for_the_brokers_garbage_collector(without_collections: None) -> None:
    """A watch leaks its request, and a fetch stream leaks its partitions."""
    with LocalCluster(brokers=1, controllers=1, mode="inprocess") as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic("streams")])
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send("streams", b"x").result(timeout=60)
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("streams", 0)])
            assert consumer.poll(60)
            # (the client may have its first records before its watch has reached the broker)
            until(
                lambda: parts_of_streams() == {"FetchSession", "MetadataWatch"},
                lambda: f"both streams are there: {parts_of_streams()}",
                pause_s=0.1,
            )
        until(lambda: parts_of_streams() == set(), lambda: f"{parts_of_streams()} are left", pause_s=0.1)


def parts_of_streams() -> set[str]:
    return {type(each).__name__ for each in gc.get_objects() if isinstance(each, FetchSession | MetadataWatch)}
