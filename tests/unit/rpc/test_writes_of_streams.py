"""When ``ServerStream`` passes a response to gRPC."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from headrace_core.rpc.streams import LARGE_WRITE_BYTES, ServerStream, StreamHandler
from tests.worlds.waiting import in_loop


class Context:
    """A call that takes each message when the test says so."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.takes: asyncio.Future[None] | None = None
        self.over = asyncio.Event()
        self.read_last: Any = grpc.aio.EOF

    async def read(self) -> Any:
        await self.over.wait()
        return self.read_last

    async def write(self, response: Any) -> None:
        self.takes = asyncio.get_running_loop().create_future()
        await self.takes
        self.taken.append(response)

    async def take(self, error: Exception | None = None) -> None:
        assert self.takes is not None, "nothing is being written"
        takes, self.takes = self.takes, None
        if error is None:
            takes.set_result(None)
        else:
            takes.set_exception(error)
        await passes(1)


class Handler(StreamHandler[Any]):
    def __init__(self) -> None:
        self.written = self.closed = self.requests = 0
        self.fails: Exception | None = None

    def on_written(self) -> None:
        self.written += 1
        if self.fails is not None:
            raise self.fails

    def on_request(self, request: Any) -> None:
        self.requests += 1

    def on_closed(self) -> None:
        self.closed += 1


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def served(**options: Any) -> tuple[Context, ServerStream[Any, Any], Handler, asyncio.Future[None]]:
    context, handler = Context(), Handler()
    stream: ServerStream[Any, Any] = ServerStream(context, **options)  # type: ignore[arg-type]
    return context, stream, handler, asyncio.ensure_future(stream.run(handler))


async def ended(context: Context, serving: asyncio.Future[None]) -> None:
    context.over.set()
    await serving


@in_loop
async def test_a_response_is_with_grpc_when_send_returns() -> None:
    context, stream, handler, serving = served()
    stream.send("a", 10)
    assert context.takes is not None
    assert (stream.queued_bytes, handler.written) == (10, 0)
    await passes(1)
    await context.take()
    assert (context.taken, stream.queued_bytes, handler.written) == (["a"], 0, 1)
    await ended(context, serving)


@in_loop
async def test_responses_wait_in_order_while_grpc_takes_one() -> None:
    context, stream, handler, serving = served()
    await passes(1)
    for each in "abc":
        stream.send(each, 1)
    for left in (2, 1, 0):
        await context.take()
        assert (stream.queued_bytes, handler.written) == (left, 3 - left)
    assert context.taken == ["a", "b", "c"]
    await ended(context, serving)


@pytest.mark.parametrize("size", [LARGE_WRITE_BYTES - 1, LARGE_WRITE_BYTES])
@in_loop
async def test_the_event_loop_runs_once_before_a_large_write(size: int) -> None:
    context, stream, _, serving = served()
    await passes(1)
    stream.send("a", size)
    assert (context.takes is None) is (size == LARGE_WRITE_BYTES)
    await passes(1)
    await context.take()
    assert context.taken == ["a"]
    await ended(context, serving)


@pytest.mark.parametrize("size", [1, LARGE_WRITE_BYTES])
@in_loop
async def test_grpc_has_a_response_before_what_is_scheduled_after_send(size: int) -> None:
    """A leader flushes when its followers' messages are with gRPC."""
    context, stream, _, serving = served()
    await passes(1)
    found: list[bool] = []
    stream.send("a", size)
    asyncio.get_running_loop().call_soon(lambda: found.append(context.takes is not None))
    await passes(1)
    assert found == [True]
    await context.take()
    await ended(context, serving)


@in_loop
async def test_a_large_response_is_not_written_on_a_call_that_is_cancelled_meanwhile() -> None:
    context, stream, handler, serving = served()
    await passes(1)
    serving.cancel()
    stream.send("a", LARGE_WRITE_BYTES)
    await passes(3)
    assert context.takes is None
    assert handler.closed == 1


@in_loop
async def test_responses_of_one_pass_share_a_message() -> None:
    context, stream, handler, serving = served(packed=lambda responses: tuple(each.name for each in responses))
    await passes(1)
    for each in "abc":
        stream.send(SimpleNamespace(name=each, ByteSize=lambda: 1), 5)
    assert context.takes is None
    await passes(1)
    await context.take()
    assert (context.taken, stream.queued_bytes, handler.written) == ([("a", "b", "c")], 0, 1)
    await ended(context, serving)


@in_loop
async def test_a_half_closed_call_ends_after_its_last_response() -> None:
    context, stream, _, serving = served()
    await passes(1)
    stream.send("a")
    stream.send("b")
    context.over.set()
    await passes(3)
    assert not serving.done()
    await context.take()
    await context.take()
    await serving
    assert context.taken == ["a", "b"]


@in_loop
async def test_an_error_of_the_handler_ends_the_call() -> None:
    context, stream, handler, serving = served()
    await passes(1)
    handler.fails = ValueError("planted")
    stream.send("a")
    stream.send("b")
    await context.take()
    with pytest.raises(ValueError, match="planted"):
        await serving
    assert context.takes is None, "nothing follows the error"


@in_loop
async def test_nothing_is_written_after_the_client_has_gone() -> None:
    context, stream, handler, serving = served()
    await passes(1)
    stream.send("a", 1)
    stream.send("b", 1)
    await context.take(grpc.aio.UsageError("RPC already finished."))
    assert context.takes is None
    assert not serving.done(), "gRPC cancels the call itself"
    serving.cancel()
    await passes(2)
    assert (handler.written, handler.closed) == (0, 1)


@in_loop
async def test_a_message_that_grpc_takes_after_the_end_of_the_call_counts_no_more() -> None:
    context, stream, handler, serving = served()
    await passes(1)
    stream.send("a", 1)
    serving.cancel()
    await passes(2)
    await context.take()
    assert (handler.written, handler.closed, stream.queued_bytes) == (0, 1, 0)


@in_loop
async def test_a_request_that_is_read_after_the_end_is_not_handled() -> None:
    context, _stream, handler, serving = served()
    await passes(1)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    context.read_last = "a request"
    context.over.set()
    await passes(3)
    assert (handler.closed, handler.requests) == (1, 0)
