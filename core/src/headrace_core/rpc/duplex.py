"""The client's side of a bidirectional call, the twin of streams.py: one task reads, one task writes, and neither is
cancelled while gRPC holds what it awaits.

    stream = Duplex(address, ChannelPurpose.PRODUCE, lambda channel: ProduceStub(channel).Produce())
    await stream.run(read_answers(stream), write_requests(stream))      # until the stream ends; raises why

``run`` gives each of its parts a task. The first part that ends, ``cancel``, and the caller's cancellation end the
call. A part that reads or writes then ends with the call; any other part is cancelled where it waits. ``run`` returns
when no task, call or connection is left, so the caller may start the next stream at once.

A stream has a connection of its own, which ends with the stream. A channel that was kept would answer from memory for
up to a second after failed attempts, though the server may be back.

Behaviour of grpc.aio (1.85), and what this class does about it:

* It leaks the native memory of an operation whose awaiter is cancelled (gRPC issue 43360): the reason for the rule
  above.
* A write that waits for a connection does not learn that its call was cancelled. ``connected`` waits instead: it holds
  nothing of gRPC's, so ``run`` may cancel it.
* ``wait_for_connection`` may return after a failed attempt. ``connected`` checks the channel's state, too.
* A write that meets the end of the stream replaces the server's status by INTERNAL. When the status came first, the
  call's done callback records it. When it comes after the write has failed, gRPC does not report it, so ``read`` and
  ``write`` poll for it. Either way they raise the server's error.
* A cancelled call raises CancelledError in the tasks that read or write, though they were not cancelled; so does a
  closed channel. Here this is a NetworkError; a CancelledError always means that the task was cancelled.
* A message that is no valid protobuf message is read as None. Here this is a NetworkError, and ends the call.

The parts order and match the answers. A write returns when gRPC has taken the message, and waits while the server does
not read (flow control), so unsent messages wait in the writing part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from ..errors import HeadraceError, NetworkError
from .channel import ChannelPurpose, open_channel
from .status import error_from_rpc

Request = TypeVar("Request")
Response = TypeVar("Response")

_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)

#: The status details after a failed write. gRPC fails a write when the stream has ended, so the server's own status is
#: on its way. The stream polls for it every so many seconds, so many times.
_FAILED_WRITE = "Internal error from Core"
_LOOK_S, _LOOKS = 0.01, 100


class Duplex(Generic[Request, Response]):
    """One call. All methods but ``cancel`` and ``run`` are for the parts of ``run``, and raise a HeadraceError when the
    stream is over. At most one part reads, at most one writes."""

    __slots__ = ("_busy", "_call", "_cancelled", "_channel", "_status", "_why", "address", "ended")

    def __init__(
        self, address: str, purpose: ChannelPurpose, open_call: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall]
    ) -> None:
        """Dial ``address`` (``host:port``) and begin the call that ``open_call`` makes on the channel."""
        self.address = address
        self.ended = False  #: The call is over: later writes are surely not sent.
        self._channel = open_channel(address, purpose)
        self._call = open_call(self._channel)
        self._call.add_done_callback(self._note_status)
        self._status: grpc.aio.AioRpcError | None = None
        self._why: HeadraceError | None = None
        self._cancelled = asyncio.get_running_loop().create_future()
        self._busy: set[asyncio.Task[Any] | None] = set()  #: Tasks that await a gRPC operation.

    def cancel(self, why: HeadraceError | None = None) -> None:
        """End the call; ``run`` raises ``why`` (default: a NetworkError). No effect after its end."""
        if not self._cancelled.done():
            self.ended = True
            self._why = why or self._given_up()
            self._cancelled.set_result(None)
            self._call.cancel()

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run the parts until one of them ends; returns when it returned, raises its error."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait([*tasks, self._cancelled], return_when=asyncio.FIRST_COMPLETED)
            first = next((task for task in tasks if task.done()), None)
            why, self._why = self._why, None
        finally:  # in a task of its own, so that a second cancellation leaves nothing behind
            await asyncio.shield(asyncio.create_task(self._end(tasks)))
        # The traceback of an error raised here keeps this frame, which would keep the tasks and their exceptions.
        del tasks
        if why is not None:
            raise why
        assert first is not None
        if first.cancelled():
            raise self._given_up()
        first.result()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self.cancel()
        for task in tasks:
            if task not in self._busy:
                task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieved; ``run`` raises the first one
        self._why = None
        await self._channel.close()
        del self._call, self._channel

    async def connected(self) -> None:
        """Wait for the connection; await it before the first write. A failure here had no effect."""
        try:
            await self._call.wait_for_connection()
        except _ENDED:
            pass
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
        if self.ended:
            raise await self._ended()
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            raise NetworkError(f"{self.address}: the connection failed")

    async def write(self, request: Request) -> None:
        """Send ``request``; waits while the server does not read. When it raises, the server may have it."""
        await self._unless_ended(self._call.write(request))

    async def read(self) -> Response:
        """The next message."""
        message = await self._unless_ended(self._call.read())
        if message is None:
            raise NetworkError(f"{self.address}: the server sent a message that is not a valid protobuf message")
        if message is grpc.aio.EOF:
            raise await self._ended()
        return message  # type: ignore[no-any-return]

    async def done_writing(self) -> None:
        """Tell the server that no more requests follow. The server's end of the stream still has to be read."""
        await self._unless_ended(self._call.done_writing())

    async def _unless_ended(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """The result of gRPC's ``operation``. Its exceptions are not chained: their frames would keep the call."""
        task = asyncio.current_task()
        self._busy.add(task)
        try:
            result = await operation
            failed = self._cancelled.done()
        except _ENDED:
            failed = True
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            failed = True
        finally:
            self._busy.discard(task)
        if failed:
            raise await self._ended()
        return result

    def _note_status(self, call: grpc.aio.Call) -> None:
        """The call is over, and its status is known: gRPC's coroutines return at once."""
        self.ended = True
        self._status = grpc.aio.AioRpcError(
            _now(call.code()), grpc.aio.Metadata(), _now(call.trailing_metadata()), _now(call.details())
        )

    async def _ended(self) -> HeadraceError:
        """Why the call is over."""
        for _ in range(_LOOKS):
            if self._cancelled.done() or self._status is None or self._status.details() != _FAILED_WRITE:
                break
            await asyncio.sleep(_LOOK_S)
            self._note_status(self._call)
        status = self._status
        if self._cancelled.done() or status is None:
            return self._given_up()
        if status.code() is grpc.StatusCode.OK:
            return NetworkError(f"{self.address}: the server ended the stream")
        return error_from_rpc(status, self.address)

    def _given_up(self) -> NetworkError:
        return NetworkError(f"{self.address}: the stream was cancelled")


def _is_cancelled() -> bool:
    """Whether a CancelledError means that this task was cancelled, not only the call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("gRPC has called back before the call had a status")
