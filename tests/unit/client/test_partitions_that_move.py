"""The sender assigns the queue of a partition to the link of its leader. Links, metadata and queues are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.producer import sender as module
from headrace.producer.sender import QueueNotes, Sender
from headrace.settings import PRODUCER, resolve


class Link:
    def __init__(self, sender: Sender, broker_id: int, address: str) -> None:
        self.broker_id, self.address = broker_id, address
        self.pending: dict[Any, None] = {}
        self.nudged = 0

    def has_news(self) -> None:
        """Called when the partition has a newer leader epoch."""

    def nudge(self) -> None:
        self.nudged += 1


class Metadata:
    """The topic "orders" with one partition."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.invalidated = 0
        self.leads(1)

    def leads(self, leader: int) -> None:
        part = SimpleNamespace(partition=0, leader=leader, leader_epoch=leader)
        info = SimpleNamespace(partitions=[part], topic_id=b"", max_message_bytes=0)
        brokers = {each: SimpleNamespace(address=f"broker-{each}:9095") for each in (1, 2)}
        self.snapshot = SimpleNamespace(topics={"orders": info}, brokers=brokers)

    def invalidate(self) -> None:
        self.invalidated += 1


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setattr(module, "BrokerLink", Link)
    engine: Any = SimpleNamespace(metadata=Metadata())
    return Sender(engine, resolve(PRODUCER, {"enable.idempotence": False}, {}), SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture
def queue() -> Any:
    class Queue:
        topic, partition, sender = SimpleNamespace(name="orders"), 0, QueueNotes(None, {})

    return Queue()


def test_the_new_leader_gets_nothing_before_the_former_one_has_answered(sender: Sender, queue: Any) -> None:
    """A record in flight that fails is sent again, and would come behind the records that went to the new leader."""
    first = sender._route(queue)
    assert first is not None
    assert (first.broker_id, list(first.pending)) == (1, [queue])
    queue.sender.in_flight = 1
    sender.engine.metadata.leads(2)  # type: ignore[attr-defined]
    assert sender._route(queue) is None
    sender.route_again()
    assert list(sender.links[2].pending) == []
    queue.sender.in_flight = 0
    sender.route_again()
    assert list(sender.links[2].pending) == [queue]
    assert sender.links[2].nudged == 1  # type: ignore[attr-defined]


def test_a_partition_without_a_leader_asks_for_metadata_and_waits_for_it(sender: Sender, queue: Any) -> None:
    metadata: Any = sender.engine.metadata
    metadata.leads(-1)
    assert sender._route(queue) is None
    assert metadata.invalidated == 1
    metadata.leads(2)
    sender.route_again()
    assert list(sender.links[2].pending) == [queue]
