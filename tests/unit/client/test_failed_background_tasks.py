"""A client whose background task has failed raises an error at the next call, instead of waiting for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from headrace.accumulator import TopicQueues
from headrace.engine.metadata import MetadataCache
from headrace.errors import IllegalStateError
from tests.worlds.waiting import until_async

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
T0 = TopicPartition("t", 0)


def fail_task(core: Any) -> None:
    """Let one of the client's background tasks fail, and wait until the client has noticed."""

    async def bug() -> None:
        raise KeyError("a bug")

    async def fail() -> None:
        await asyncio.wait({core.engine.spawn(bug(), "headrace-expiry")})

    core.engine.io.run(fail())


FAILED = r"background task headrace-expiry failed with KeyError: 'a bug'\. Close the client and open a new one"


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("t", b"value"),
        lambda producer: producer.send_many("t", [b"value"]),
        lambda producer: producer.flush(),
        lambda producer: producer.partitions_for("t"),
    ],
)
def test_a_producer_says_at_the_next_call_that_it_cannot_go_on(call: Callable[[Producer], Any]) -> None:
    with Producer(NOWHERE) as producer:
        fail_task(producer._core)
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=FAILED):
                call(producer)


def test_records_without_an_outcome_fail_and_no_record_is_queued_behind_them() -> None:
    with Producer(NOWHERE) as producer:
        core = producer._core
        core.accumulator.topics["t"] = TopicQueues(core.accumulator, "t", 1, 1 << 20)
        sent = producer.send("t", b"value")
        fail_task(core)
        with pytest.raises(IllegalStateError, match=FAILED):
            sent.result(60)
        with pytest.raises(IllegalStateError, match=FAILED):
            producer.send("t", b"value")
        assert not core.accumulator.snapshot_unfinished()


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(60),
        lambda consumer: next(iter(consumer)),
        lambda consumer: consumer.seek(T0, 0),
        lambda consumer: consumer.fetch_arrow(timeout=60),
        lambda consumer: next(consumer.batches()),
    ],
)
def test_a_consumer_says_at_the_next_call_that_it_cannot_go_on(call: Callable[[Consumer], Any]) -> None:
    with Consumer(NOWHERE) as consumer:
        consumer.assign([T0])
        fail_task(consumer._core)
        with pytest.raises(IllegalStateError, match=FAILED):
            call(consumer)


def test_a_poll_that_waits_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    is_assigned = threading.Event()

    async def broken(self: MetadataCache) -> None:
        await until_async(is_assigned.is_set, "the consumer to have partitions")
        await asyncio.sleep(0.05)
        raise KeyError("a bug")

    monkeypatch.setattr(MetadataCache, "keep_fresh", broken)
    with Consumer(NOWHERE) as consumer:
        consumer.assign([T0])
        is_assigned.set()
        with pytest.raises(IllegalStateError, match="background task headrace-metadata failed"):
            consumer.poll(600)


def test_an_admin_client_says_at_the_next_call_that_it_cannot_go_on() -> None:
    with Admin(NOWHERE) as admin:
        fail_task(admin._calls)
        with pytest.raises(IllegalStateError, match=FAILED):
            admin.list_topics()


def test_asyncio_clients_say_so_too() -> None:
    async def run() -> None:
        async with AsyncProducer(NOWHERE) as producer, AsyncConsumer(NOWHERE) as consumer:
            await asyncio.to_thread(fail_task, producer._core)
            await asyncio.to_thread(fail_task, consumer._core)
            consumer_call, producer_call = consumer.poll(60), producer.send("t", b"value")
            for call in (consumer_call, producer_call):
                with pytest.raises(IllegalStateError, match=FAILED):
                    await call

    asyncio.run(run())
