"""``start`` says at once why a client cannot reach its cluster; ``close.timeout.ms`` bounds a close, all steps
together."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
from headrace import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from headrace.engine import connections
from headrace.errors import BootstrapError, ClosedError, IllegalStateError
from tests.scenarios.client.test_interrupted_closes import Coordinator, silent

__all__ = ["silent"]

CLIENTS = ["Producer", "Consumer", "Admin", "AsyncProducer", "AsyncConsumer", "AsyncAdmin"]


def call(client: Any, *methods: str) -> None:
    async def run() -> None:
        for method in methods:
            found = getattr(client, method)()
            if inspect.isawaitable(found):
                await found

    asyncio.run(run())


@pytest.mark.parametrize("kind", CLIENTS)
def test_start_connects_once(fake: Any, kind: str) -> None:
    client = getattr(headrace, kind)(bootstrap_servers=fake.bootstrap_servers)
    call(client, "start", "start")
    assert len(fake.metadata_asked) == 1
    call(client, "close")
    with pytest.raises(ClosedError):
        call(client, "start")


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", CLIENTS)
def test_start_names_each_address_and_its_failure(nobody: str, kind: str) -> None:
    client = getattr(headrace, kind)(bootstrap_servers=f"127.0.0.1:1,{nobody}", bootstrap_timeout_ms=100)
    with pytest.raises(BootstrapError) as failed:
        call(client, "start")
    assert "127.0.0.1:1: connection refused (nothing listens there; is the cluster up?)" in failed.value.message
    assert f"{nobody}: the address accepts connections" in failed.value.message
    call(client, "close")


@pytest.mark.parametrize("off_s", [-3_600, 90_000])
def test_a_clock_that_a_test_has_set_is_named_instead_of_the_address(
    nobody: str, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    real = time.time
    monkeypatch.setattr(connections, "time", SimpleNamespace(time=lambda: real() + off_s, monotonic=time.monotonic))
    with Consumer(bootstrap_servers=nobody, bootstrap_timeout_ms=60_000, request_timeout_ms=50) as consumer:
        with pytest.raises(IllegalStateError, match=rf"differs from the machine's clock by {off_s} s, as under freeze"):
            consumer.start()
        consumer.assign([TopicPartition("t", 0)])
        with pytest.raises(IllegalStateError, match="extend_ignore_list"):
            consumer.poll(30)


def test_start_that_failed_may_be_repeated(fake: Any) -> None:
    fake.metadata_held = True
    with Producer(bootstrap_servers=fake.bootstrap_servers, bootstrap_timeout_ms=100) as out:
        with pytest.raises(BootstrapError):
            out.start()
        fake.metadata_held = False
        out._core.engine.bootstrap_timeout_s = 30.0
        out.start()
        assert out.send("t", b"v").result(30).offset == 0


@pytest.mark.parametrize("end", ["with", "close"])
def test_close_timeout_ms_bounds_a_producer_that_gets_no_answer(fake: Any, end: str) -> None:
    fake.hold_answers(True)
    out = Producer(bootstrap_servers=fake.bootstrap_servers, close_timeout_ms=50)
    out.send("t", b"v")
    text = r"topics t\) was closed with 1 record unacknowledged, because its timeout of 0.05 s is over"
    with pytest.warns(RuntimeWarning, match=text):
        out.__exit__(None, None, None) if end == "with" else out.close()


def test_close_timeout_ms_bounds_an_async_producer_that_gets_no_answer(fake: Any) -> None:
    async def scenario() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, close_timeout_ms=50) as out:
            await out.send("t", b"v")

    fake.hold_answers(True)
    with pytest.warns(RuntimeWarning, match="1 record unacknowledged, because its timeout of 0.05 s is over"):
        asyncio.run(scenario())


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_the_abort_and_the_flush_of_a_close_share_its_timeout(
    fake: Any,
    silent: Coordinator,
    face: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flushes: list[float] = []
    where = {"bootstrap_servers": fake.bootstrap_servers, "transactional_id": "payments", "close_timeout_ms": 200}
    if face == "blocking":
        out = Producer(**where)
        out.begin_transaction()
        out.send("t", b"v").result(30)
        monkeypatch.setattr(out._core, "flush", flushes.append)
        out.close()
    else:

        async def scenario() -> None:
            out = AsyncProducer(**where)
            await out.begin_transaction()
            await out.send_and_wait("t", b"v")

            async def flush(timeout_s: float) -> None:
                flushes.append(timeout_s)

            monkeypatch.setattr(out._core, "flush_async", flush)
            await out.close()

        asyncio.run(scenario())
    assert flushes == [0], "the abort has taken all of the time"
    assert "the open transaction of 'payments' could not be ended within the timeout of close()" in caplog.text


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("method", ["close", "exit"])
def test_close_timeout_ms_bounds_the_steps_of_a_consumer(
    kind: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, seen = kind(bootstrap_servers="127.0.0.1:1", group_id="g", close_timeout_ms=1_500), []
    group = consumer._core.in_group("test")

    def steps(timeout_s: float | None, *, commits: bool) -> Iterator[Any]:
        seen.append(timeout_s)
        yield from ()

    monkeypatch.setattr(group, "leave_steps", steps)

    async def run() -> None:
        ended = consumer.close() if method == "close" else consumer.__aexit__(None, None, None)
        await ended

    if kind is AsyncConsumer:
        asyncio.run(run())
    elif method == "close":
        consumer.close()
    else:
        consumer.__exit__(None, None, None)
    assert seen == [1.5]
