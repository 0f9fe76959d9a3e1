"""The client's side of a bidirectional call (streams.py has the server's side). One task reads and one task writes, and
neither task is cancelled while it awaits a gRPC operation.

    stream = Duplex(address, ChannelPurpose.PRODUCE, lambda channel: ProduceStub(channel).Produce())
    await stream.run(read_answers(stream), write_requests(stream))      # until the stream ends; raises its error

``run`` runs each part (a coroutine of the caller) in a task. The gRPC call ends with the first part that ends, with
``cancel``, or when the caller is cancelled. When the call ends, a part of ``run`` that is reading or writing ends too;
any other part is cancelled. ``run`` returns when all tasks, the call and the connection have ended, so the caller may
start the next stream at once.

Each stream has a separate connection, which ends with the stream. After failed attempts, a reused channel would fail
calls for up to a second without trying to connect, although the server may be available again.

Duplex works around the following behaviour of grpc.aio (1.85):

* grpc.aio leaks the native memory of an operation whose awaiting task is cancelled (gRPC issue 43360). A task that
  awaits a gRPC operation is therefore never cancelled.
* A write that waits for a connection does not learn that its call was cancelled. Because a waiting write misses the
  cancellation, a part awaits ``connected`` first, which ``run`` may cancel.
* ``wait_for_connection`` may return after a failed attempt to connect, so ``connected`` also checks the channel's
  state.
* A write after the end of the stream hides the server's status; ``CallEnd`` finds it, so ``read`` and ``write`` raise
  the server's error.
* When the call is cancelled or the channel closed, gRPC raises CancelledError in the tasks that read or write, although
  the tasks were not cancelled. Duplex raises NetworkError in place of gRPC's CancelledError, so that CancelledError
  always means that the task was cancelled.
* A message that is no valid protobuf message is read as None. For an invalid message, the class raises NetworkError and
  ends the call.

The parts of ``run`` match responses to requests themselves. A write returns when gRPC has taken the message, and waits
while the server does not read (flow control), so unsent messages wait in the writing part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from ..errors import HeadraceError, NetworkError
from .call_end import CALL_ENDED, CallEnd, is_cancelled
from .channel import PLAINTEXT, ChannelPurpose, Channels

Request = TypeVar("Request")
Response = TypeVar("Response")


async def read_message(call: Any) -> Any:
    """Return the next message on a client's side of a stream, or grpc.aio.EOF. For an invalid message, for which gRPC
    returns None, cancels the call and raises NetworkError."""
    message = await call.read()
    if message is None:
        call.cancel()
        raise NetworkError("the server sent a message that is not a valid protobuf message")
    return message


class Duplex(Generic[Request, Response]):
    """One bidirectional call. Only the parts of ``run`` may call methods other than ``cancel``. Methods other than
    ``cancel`` raise a HeadraceError when the stream is over. At most one part reads, and at most one part writes."""

    __slots__ = ("_call", "_call_end", "_cancelled", "_channel", "_reader", "_why", "_writer", "address")

    def __init__(
        self,
        address: str,
        purpose: ChannelPurpose,
        open_call: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall],
        channels: Channels = PLAINTEXT,
    ) -> None:
        """Connect to ``address`` (``host:port``) and begin the call that ``open_call`` makes on the channel.
        ``channels`` opens the channel."""
        self.address = address
        self._channel = channels.open(address, purpose)
        self._call = open_call(self._channel)
        self._call_end = CallEnd(self._call, address)
        self._why: HeadraceError | None = None
        self._cancelled = asyncio.get_running_loop().create_future()
        #: The tasks that wait for a gRPC operation; the stream must not cancel them.
        self._reader: asyncio.Task[Any] | None = None
        self._writer: asyncio.Task[Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the call has ended; the stream then sends nothing more."""
        return self._call_end.is_over

    def cancel(self, why: HeadraceError | None = None) -> None:
        """End the call; ``run`` then raises ``why`` (default: a NetworkError). ``cancel`` has no effect after the end
        of the call."""
        if not self._cancelled.done():
            self._why = why or self._given_up()
            self._cancelled.set_result(None)
            self._call_end.cancel()

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run the parts until one part ends; return if that part returned, or raise its error."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait([*tasks, self._cancelled], return_when=asyncio.FIRST_COMPLETED)
            why = self._why or self._error_of(next((task for task in tasks if task.done()), None))
        finally:  # clean up in a separate task, so that a second cancellation does not interrupt the clean-up
            await asyncio.shield(asyncio.create_task(self._end(tasks)))
        # Delete ``tasks`` and ``why``, because the traceback of an error keeps the stack frame of this function. The
        # reference cycle would keep the call alive until the next full garbage collection, perhaps for minutes.
        del tasks
        try:
            if why is not None:
                raise why
        finally:
            del why

    def _error_of(self, first: asyncio.Task[None] | None) -> BaseException | None:
        """The error of the part that ended first; None if that part returned."""
        assert first is not None
        return self._given_up() if first.cancelled() else first.exception()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self.cancel()
        for task in tasks:
            if task is not self._reader and task is not self._writer:
                task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # mark the exception as retrieved; ``run`` raises the first exception
        self._why = None
        await self._channel.close()
        del self._call, self._call_end, self._channel

    async def connected(self) -> None:
        """Wait for the connection; await the method before the first write. If the wait fails, no request was sent."""
        try:
            await self._call.wait_for_connection()
        except CALL_ENDED:
            pass
        except asyncio.CancelledError:
            if is_cancelled():
                raise
        if self.ended:
            raise await self._call_end.error()
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            raise NetworkError(f"{self.address}: the connection failed")

    async def write(self, request: Request | None) -> None:
        """Send ``request`` (None: no more requests follow); waits while the server does not read. After an error of
        ``write`` the server may still have received the request."""
        self._writer = asyncio.current_task()
        try:
            await (self._call.done_writing() if request is None else self._call.write(request))
            if not self._cancelled.done():
                return
        except CALL_ENDED:
            pass
        except asyncio.CancelledError:
            if is_cancelled():
                raise
        finally:
            self._writer = None
        # Raised here, because gRPC's exceptions, as a context, would keep the call's objects.
        raise await self._call_end.error()

    async def read(self) -> Response:
        """Return the next message from the server."""
        message: Any = grpc.aio.EOF
        self._reader = asyncio.current_task()
        try:
            message = await self._call.read()
        except CALL_ENDED:
            pass
        except asyncio.CancelledError:
            if is_cancelled():
                raise
        finally:
            self._reader = None
        if message is grpc.aio.EOF or self._cancelled.done():
            raise await self._call_end.error()
        if message is None:
            raise NetworkError(f"{self.address}: the server sent a message that is not a valid protobuf message")
        return message  # type: ignore[no-any-return]

    async def done_writing(self) -> None:
        """Tell the server that no more requests follow on the stream. The caller of ``done_writing`` must still read
        until the server ends the stream."""
        await self.write(None)

    def _given_up(self) -> NetworkError:
        return NetworkError(f"{self.address}: the stream was cancelled")
