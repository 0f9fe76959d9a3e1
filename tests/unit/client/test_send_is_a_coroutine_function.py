"""``AsyncProducer.send`` is a coroutine function for the standard library and the frameworks that ask it, without a
Python frame for each record."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace import AsyncProducer, accumulator
from headrace.accumulator import Accumulator, AsyncRecordFuture, NativeAsyncProducer, NativeProducer, TopicQueues


class Sending:
    """A compiled producer whose sender is the test. The topic "slow" needs the slow path."""

    def __init__(self) -> None:
        self.acc = Accumulator(batch_bytes=1_000, buffer_bytes=1 << 20, wake=lambda: None, slow=self._slow)
        self.acc.topics["t"] = TopicQueues(self.acc, "t", 1, 1 << 20)
        self.out = NativeAsyncProducer(self.acc)

    async def _slow(self, topic: str, *given: Any) -> Any:
        await asyncio.sleep(0)
        return await self.out.send("t", *given[:-1])

    def finish(self) -> None:
        from headrace.producer.sender import finish

        for batch in self.acc.seal_all():
            finish(batch, 0, -1, None)


@pytest.fixture
def sending() -> Sending:
    return Sending()


def test_inspect_and_asyncio_call_it_a_coroutine_function() -> None:
    producer = AsyncProducer(bootstrap_servers="127.0.0.1:1")
    for each in (AsyncProducer.send, producer.send, functools.partial(producer.send, "t")):
        assert inspect.iscoroutinefunction(each)
        assert asyncio.iscoroutinefunction(each)
    assert not inspect.iscoroutinefunction(NativeProducer.send)
    assert inspect.signature(producer.send).return_annotation == "Coroutine[Any, Any, AsyncRecordFuture]"
    assert list(inspect.signature(producer.send).parameters)[:3] == ["topic", "value", "key"]


def test_type_checkers_see_a_coroutine_and_a_future() -> None:
    """A call whose result is a Coroutine is what mypy's unused-coroutine and pyright's reportUnusedCoroutine report."""
    stub = ast.parse((Path(accumulator.__file__).parent / "_native.pyi").read_text())
    classes = {each.name: each for each in stub.body if isinstance(each, ast.ClassDef)}
    (send,) = [each for each in classes["NativeAsyncProducer"].body if getattr(each, "name", "") == "send"]
    assert isinstance(send, ast.FunctionDef)
    assert send.returns is not None
    assert ast.unparse(send.returns) == "Coroutine[Any, Any, AsyncRecordFuture]"
    assert [ast.unparse(each) for each in classes["AsyncRecordFuture"].bases] == ["asyncio.Future[RecordMetadata]"]


def test_mocks_of_the_producer_await_it() -> None:
    async def main() -> None:
        for out in (
            mock.create_autospec(AsyncProducer, instance=True),
            mock.create_autospec(AsyncProducer).return_value,
            mock.create_autospec(AsyncProducer(bootstrap_servers="127.0.0.1:1")),
            mock.AsyncMock(spec=AsyncProducer),
            mock.MagicMock(spec=AsyncProducer),
        ):
            out.send.return_value = "queued"
            assert await out.send("t", b"v") == "queued"
            out.send.assert_awaited_once_with("t", b"v")

    asyncio.run(main())


async def background_tasks(function: Callable[..., Any], *arguments: Any) -> None:
    """What Starlette's BackgroundTask does: it runs a function that is no coroutine function in a thread, and drops the
    result."""
    if asyncio.iscoroutinefunction(function):
        await function(*arguments)
    else:
        await asyncio.to_thread(function, *arguments)


async def task_group(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(function(*arguments))


async def create_task(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    await asyncio.create_task(function(*arguments))


async def gather(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    await asyncio.gather(function(*arguments))


async def wait_for(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    await asyncio.wait_for(function(*arguments), 10)


async def run_in_a_loop(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    await asyncio.to_thread(lambda: asyncio.run(function(*arguments)))


async def run_coroutine_threadsafe(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    running = asyncio.run_coroutine_threadsafe(function(*arguments), asyncio.get_running_loop())
    await asyncio.wrap_future(running)


async def from_a_coroutine(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    @types.coroutine
    def stepping() -> Any:
        return (yield from function(*arguments).__await__())

    await stepping()


CALLERS: list[Callable[..., Awaitable[None]]] = [
    *(background_tasks, task_group, create_task, gather, wait_for, run_in_a_loop, run_coroutine_threadsafe),
    from_a_coroutine,
]


@pytest.mark.parametrize("topic", ["t", "slow"])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.__name__)
def test_whoever_runs_coroutines_sends_the_record(sending: Sending, topic: str, caller: Any) -> None:
    for count in range(1, 4):
        asyncio.run(caller(sending.out.send, topic, b"v"))
        assert sending.acc.records_appended == count


def test_batch_that_became_full_takes_the_slow_path_and_is_sent(sending: Sending) -> None:
    sending.acc.breathe = True
    asyncio.run(background_tasks(sending.out.send, "t", b"v"))
    assert sending.acc.records_appended == 1


def test_future_is_one_of_asyncio(sending: Sending) -> None:
    async def main() -> None:
        futures = [await sending.out.send("t", b"v") for _ in range(6)]
        assert all(isinstance(each, asyncio.Future | AsyncRecordFuture) for each in futures)
        assert isinstance(futures[0], asyncio.Future)
        assert asyncio.isfuture(futures[0])
        waiting = asyncio.create_task(asyncio.wait(futures))
        gathering = asyncio.gather(*futures)
        shielded = asyncio.shield(futures[0])
        bounded = asyncio.create_task(asyncio.wait_for(futures[1], 10))
        await asyncio.sleep(0)
        sending.finish()
        done, pending = await waiting
        assert (len(done), len(pending)) == (6, 0)
        assert [each.offset for each in await gathering] == list(range(6))
        assert (await shielded).offset == 0
        assert (await bounded).offset == 1

    asyncio.run(main())
