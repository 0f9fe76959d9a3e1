"""A user's own tests, as in a project that uses Headrace: only pytest and the SDK.

    pytest examples/test_orders.py            # one cluster for all tests, within pytest's process
    pytest -n 2 examples/test_orders.py       # with pytest-xdist: one per worker

``take_orders`` and ``totals`` stand for the project's own code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from headrace import (
    Admin,
    AsyncProducer,
    Consumer,
    LocalCluster,
    NewTopic,
    Producer,
    Record,
    TopicPartition,
)
from headrace.errors import TopicAlreadyExistsError

# -- the code under test: orders in, totals by customer out
# --------------------------------------------------------------


def take_orders(producer: Producer, topic: str, orders: Iterable[tuple[str, int]]) -> None:
    """Send all orders; returns when each is on disk."""
    sent = [
        producer.send(topic, json.dumps({"crates": crates}).encode(), key=customer.encode())
        for customer, crates in orders
    ]
    for future in sent:
        future.result(timeout=30)


def totals(records: Iterable[Record]) -> dict[str, int]:
    """Crates by customer."""
    sums: dict[str, int] = {}
    for record in records:
        assert record.key is not None
        assert record.value is not None
        customer = bytes(record.key).decode()
        sums[customer] = sums.get(customer, 0) + json.loads(record.value)["crates"]
    return sums


# -- fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bootstrap(headrace: LocalCluster) -> str:
    return headrace.bootstrap_servers


@pytest.fixture
def producer(bootstrap: str) -> Iterable[Producer]:
    with Producer(bootstrap_servers=bootstrap) as made:
        yield made


def read(bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[Record]:
    """At least ``count`` records of a topic, from its start or the group's position; commits for the group."""
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        if group is None:
            consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for(topic)])
        else:
            consumer.subscribe([topic])
        records: list[Record] = []
        while len(records) < count:
            found = consumer.poll(timeout=30)
            assert found, f"{len(records)} of {count} records came"
            records += found
        if group is not None:
            consumer.commit()
        return records


# -- tests -------------------------------------------------------------------------------------------------------------


def test_an_order_arrives_as_it_was_sent(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    metadata = producer.send(headrace_topic, b"one crate", key=b"ann", headers=[("by", b"phone")]).result(timeout=30)
    (record,) = read(bootstrap, headrace_topic, 1)
    assert (record.offset, record.key, record.value) == (metadata.offset, b"ann", b"one crate")
    assert record.headers == [("by", b"phone")]


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([("ann", 1)], {"ann": 1}),
        ([("ann", 1), ("ann", 2)], {"ann": 3}),
        ([("ann", 1), ("bob", 2)], {"ann": 1, "bob": 2}),
        ([("ann", 1), ("bob", 2), ("ann", 3), ("bob", 4)], {"ann": 4, "bob": 6}),
        ([(f"customer {number % 7}", 1) for number in range(70)], {f"customer {number}": 10 for number in range(7)}),
    ],
)
def test_totals_are_right(
    bootstrap: str,
    producer: Producer,
    headrace_topic: str,
    orders: list[tuple[str, int]],
    expected: dict[str, int],
) -> None:
    take_orders(producer, headrace_topic, orders)
    assert totals(read(bootstrap, headrace_topic, len(orders))) == expected


@pytest.mark.parametrize("partitions", [1, 3, 6])
def test_a_customers_orders_stay_in_order(bootstrap: str, producer: Producer, partitions: int) -> None:
    topic = f"ordered-{partitions}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=partitions)])
    take_orders(producer, topic, [("ann", crates) for crates in range(20)])
    records = read(bootstrap, topic, 20)
    assert [json.loads(record.value or b"")["crates"] for record in records] == list(range(20))
    assert len({record.partition for record in records}) == 1


def test_a_topic_is_made_by_the_first_order(bootstrap: str, producer: Producer) -> None:
    take_orders(producer, "made-on-the-way", [("ann", 1)])
    assert len(read(bootstrap, "made-on-the-way", 1)) == 1


def test_a_topic_is_made_once(bootstrap: str, headrace_topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin, pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([headrace_topic])


def test_orders_go_with_their_topic(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    take_orders(producer, headrace_topic, [("ann", 1)])
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topics([headrace_topic])
        assert headrace_topic not in admin.list_topics()


def test_the_end_is_behind_the_last_order(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    take_orders(producer, headrace_topic, [("ann", 1)] * 5)
    partition = TopicPartition(headrace_topic, 0)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 5}


def test_reading_begins_where_it_is_asked_to(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    take_orders(producer, headrace_topic, [("ann", crates) for crates in range(10)])
    partition = TopicPartition(headrace_topic, 0)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 7)
        assert consumer.poll(timeout=30)[0].offset == 7


def test_a_group_goes_on_where_it_stopped(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    take_orders(producer, headrace_topic, [("ann", 1)] * 3)
    assert len(read(bootstrap, headrace_topic, 3, group=f"totals of {headrace_topic}")) == 3
    take_orders(producer, headrace_topic, [("bob", 2)])
    assert totals(read(bootstrap, headrace_topic, 1, group=f"totals of {headrace_topic}")) == {"bob": 2}


def test_two_groups_read_everything_each(bootstrap: str, producer: Producer, headrace_topic: str) -> None:
    take_orders(producer, headrace_topic, [("ann", 1)] * 3)
    for group in (f"totals of {headrace_topic}", f"audit of {headrace_topic}"):
        assert len(read(bootstrap, headrace_topic, 3, group=group)) == 3


def test_compressed_orders_are_read_like_others(bootstrap: str, headrace_topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, compression_type="lz4", linger_ms=20) as producer:
        take_orders(producer, headrace_topic, [("ann", 1)] * 100)
    assert totals(read(bootstrap, headrace_topic, 100)) == {"ann": 100}


def test_asyncio_sends_the_same_orders(bootstrap: str, headrace_topic: str) -> None:
    async def send() -> None:
        async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
            await (await producer.send(headrace_topic, b'{"crates": 4}', key=b"ann"))

    asyncio.run(send())
    assert totals(read(bootstrap, headrace_topic, 1)) == {"ann": 4}


def test_orders_are_taken_while_a_coordinator_is_away(
    headrace: LocalCluster, bootstrap: str, producer: Producer, headrace_topic: str
) -> None:
    with headrace.killed("coordinator", 1):
        take_orders(producer, headrace_topic, [("ann", 1)])
    assert len(read(bootstrap, headrace_topic, 1, group=f"totals of {headrace_topic}")) == 1


@pytest.mark.headrace_cluster(mode="inprocess")
def test_no_order_is_lost_with_its_broker(headrace_cluster: LocalCluster) -> None:
    bootstrap = headrace_cluster.bootstrap_servers
    with Producer(bootstrap_servers=bootstrap) as producer:
        take_orders(producer, "orders", [("ann", 1)] * 10)
        headrace_cluster.kill("broker", 1)
        waiting = producer.send("orders", b'{"crates": 1}', key=b"bob")
        headrace_cluster.restart("broker", 1)
        waiting.result(timeout=60)
    assert totals(read(bootstrap, "orders", 11)) == {"ann": 10, "bob": 1}
