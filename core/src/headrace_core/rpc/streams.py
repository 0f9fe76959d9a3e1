"""The server's side of a stream: one task reads, callbacks write, and the task that runs the handler only waits.

``ServerStream`` is a bidirectional call. ``ServerPush`` is a call with a response stream, to which only the server
writes.

grpc.aio (1.85) leaks native memory in two cases (gRPC issue 43360): when a task that awaits a gRPC operation is
cancelled (0.12 KiB for each dropped stream that waited in ``read()``), and when a message is written on a call that the
client has already cancelled (75 KiB on average for each stream dropped during 1-MiB writes). gRPC cancels the task that
runs the handler, so that task awaits a plain future and no gRPC operation. A separate task, which is never cancelled,
reads; the pending read ends together with the call. Before a large write, the event loop runs once, so that a
cancellation that has already arrived is seen.

A callback handles requests, so that a request needs no task. ``send`` passes a response to gRPC at once if gRPC has
taken all earlier responses; else the response is queued. gRPC's ``write`` is a coroutine, and ``ServerStream`` resumes
it without a task: to wake a task for each message would cost 8 to 10 µs.
Back-pressure: ``pause`` and ``resume`` control reading, and ``queued_bytes`` is the size of the responses that are not
written yet.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..errors import InvalidRequestError
from ..security.session import end_with_session
from .receiving import Arrival, Penalties

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")

#: Size in bytes of a response from which the event loop runs once before the write (see the module's docstring).
LARGE_WRITE_BYTES = 16 * 1024
#: Maximum number of responses in one message, and bytes from which a message takes no further response.
PACKED_MAX, PACKED_BYTES = 100, 64 * 1024


class StreamHandler(Generic[Request]):
    """Handles the requests of a stream. All methods are called in the event loop and must not block."""

    def on_request(self, request: Request) -> None:
        """Handle a request. An exception raised in ``on_request`` ends the call with that error."""
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Whether every request has its response. After the client has closed its side, the call ends when ``is_idle``
        returns True."""
        return True

    def on_written(self) -> None:
        """Called after a response has left the queue, so that the handler can queue further responses."""

    def on_closed(self) -> None:
        """Release all resources of the handler, because the call has ended, for any reason. Called exactly once."""


class ServerStream(Generic[Request, Response]):
    """The server's side of one bidirectional call. ``await stream.run(handler)`` is the whole body of a servicer's
    stream-stream method."""

    __slots__ = (
        "_context",
        "_ending",
        "_failure",
        "_half_closed",
        "_handler",
        "_has_looked",
        "_is_writing",
        "_loop",
        "_out",
        "_over",
        "_packed",
        "_penalties",
        "_resumed",
        "_variables",
        "_writing",
        "_writing_bytes",
        "closed",
        "paused",
        "queued_bytes",
        "request_bytes",
    )

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], packed: Callable[..., Any] | None = None) -> None:
        """``packed``: the message that contains several responses in its field ``responses``. Responses that wait at
        the same moment then share a message."""
        self._context = context
        self._packed = packed
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._out: deque[tuple[Response, int]] = deque()
        self._is_writing = False  # whether ``_write`` runs, is scheduled, or waits for gRPC
        self._writing: Coroutine[Any, Any, None] | None = None  # the write of the present message
        self._writing_bytes = 0
        self._has_looked = False  # whether the event loop ran before the next message, which is large
        self._variables = contextvars.copy_context()  # those of the call, not those of a caller of ``send``
        self._resumed: asyncio.Future[None] | None = None
        self._half_closed = False
        self._ending = False
        self._failure: BaseException | None = None
        self._handler: StreamHandler[Request] = StreamHandler()
        self._penalties: Penalties | None = None
        self.closed = False  #: Whether the call of this stream has ended; ``send`` then has no effect.
        self.paused = False  #: Whether the stream reads nothing until ``resume``.
        self.queued_bytes = 0  #: Number of bytes of responses that the stream has not written yet.
        self.request_bytes = 0  #: Size in bytes of the request that ``on_request`` handles.

    def send(self, response: Response, size: int = 0) -> None:
        """Queue a response of about ``size`` bytes. Responses are sent in the order of the calls to ``send``. If
        none is queued, gRPC has the response before callbacks run that are scheduled after ``send``."""
        if self.closed:
            return
        self._out.append((response, size))
        self.queued_bytes += size
        if not self._is_writing:
            if self._packed is None:
                self._is_writing = True
                self._write()
            else:  # the responses of this pass of the event loop share a message
                self._write_soon()

    def punish(self, size: int) -> None:
        """Delay the next request of the stream's connection, because a request of ``size`` bytes was refused."""
        if self._penalties is not None and not self.closed:
            self._penalties.add(self._context.peer(), size)

    def pause(self) -> None:
        """Stop reading requests until ``resume``; further requests stay in gRPC's flow-control window."""
        if self._resumed is None:
            self.paused, self._resumed = True, self._loop.create_future()

    def resume(self) -> None:
        if self._resumed is not None:
            if not self._resumed.done():
                self._resumed.set_result(None)
            self.paused, self._resumed = False, None

    def finish(self, error: BaseException | None = None) -> None:
        """Write all queued responses, then end the call with OK or with ``error``."""
        if not self._ending:
            self._ending, self._failure = True, error
            self.resume()
            self._write_soon()

    def check_idle(self) -> None:
        """Check whether a half-closed call is over; call the method when a request has ended without a response, or
        after its response."""
        if self._half_closed:
            self._write_soon()

    async def run(self, handler: StreamHandler[Request]) -> None:
        """Serve until the client has closed its side and has all responses, or until it disconnects; raises the error
        given to ``finish``."""
        self._handler = handler
        reader = self._loop.create_task(self._read())
        forget = end_with_session(self.finish)
        try:
            await self._over
        finally:
            forget()
            self.closed = True
            self._out.clear()
            self.resume()
            handler.on_closed()
            # Break the reference cycle: the handler keeps the stream, and without a cycle both are freed at once.
            self._handler = StreamHandler()
            del reader  # delete the local name, which would keep the task in memory after its end

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.call_soon(self._write, context=self._variables)

    def _end(self) -> None:
        if not self._over.done():
            if self._failure is not None:
                self._over.set_exception(self._failure)
            else:
                self._over.set_result(None)

    async def _read(self) -> None:
        read, handle = self._context.read, self._handler.on_request
        try:
            if self._resumed is not None:  # the handler paused the stream before its first request
                await self._resumed
            while not (self.closed or self._ending):
                request = await read()
                if request is grpc.aio.EOF:
                    # The read of a cancelled call also returns EOF. The handler's task must get the call's cancellation
                    # before the stream ends, because a status sent on a cancelled call leaks memory.
                    await asyncio.sleep(0)
                    break
                if self.closed:  # during the read
                    break
                if isinstance(request, Arrival):
                    if request.error is not None:
                        await request.punish(self._context)
                        raise request.error
                    self._penalties = request.penalties
                    self.request_bytes, request = request.size, request.message
                elif request is None:  # gRPC could not deserialize the request
                    raise InvalidRequestError("the request is not a valid protobuf message")
                handle(request)
                del request
                if self._resumed is not None:
                    await self._resumed
                if self._penalties is not None and self._penalties.until_s:
                    await self._penalties.over(self._context)
        except grpc.aio.BaseError:  # the call has ended during the read
            pass
        except DecodeError as error:
            self.finish(InvalidRequestError(f"the request is not a valid protobuf message: {error}"))
        except Exception as error:  # noqa: BLE001  (handed to the call's own task, which reports it)
            self.finish(error)
        self._half_closed = True
        self._write_soon()

    def _pack(self, packed: Callable[..., Any]) -> tuple[Any, int]:
        """The next message, which contains several queued responses, and the sum of their sizes as given to
        ``send``."""
        responses: list[Any] = []
        queued_bytes = wire_bytes = 0
        while self._out and len(responses) < PACKED_MAX and wire_bytes < PACKED_BYTES:
            response, size = self._out.popleft()
            responses.append(response)
            queued_bytes += size
            wire_bytes += response.ByteSize()  # type: ignore[attr-defined]
        return packed(responses=responses), queued_bytes

    def _write(self, _: object = None) -> None:
        """Pass the queued responses to gRPC, one after the other, until gRPC takes no further one now. Ends the call
        after the last response."""
        out, handler = self._out, self._handler
        try:
            while not (self.closed and self._writing is None):
                if self._writing is None:
                    if not out:
                        self._is_writing = False
                        if self._ending or (self._half_closed and handler.is_idle()):
                            self._end()
                        return
                    if out[0][1] >= LARGE_WRITE_BYTES and not self._has_looked:
                        self._has_looked = True
                        self._loop.call_soon(self._write, context=self._variables)
                        return
                    self._has_looked = False
                    response, self._writing_bytes = out.popleft() if self._packed is None else self._pack(self._packed)
                    self._writing = self._context.write(response)
                    del response
                assert self._writing is not None
                try:
                    waits_for = self._writing.send(None)
                except StopIteration:
                    self._writing = None
                    self.queued_bytes -= self._writing_bytes
                    if not self.closed:
                        handler.on_written()
                    continue
                if waits_for is None:
                    self._loop.call_soon(self._write, context=self._variables)
                else:
                    waits_for.add_done_callback(self._write, context=self._variables)
                return
        except (grpc.aio.BaseError, asyncio.CancelledError):
            self._writing = None  # the client has disconnected; gRPC cancels the call's own task
        except Exception as error:  # noqa: BLE001  (handed to the call's own task, which reports it)
            self._writing, self._failure = None, error
            if not self.closed:
                self._end()


class PushHandler(Generic[Response]):
    """Source of the messages of a ``ServerPush``. The handler's methods are called in the event loop and must not
    block."""

    def next(self, is_due: bool) -> tuple[Response, int] | Awaitable[tuple[Response, int]] | None:
        """Return the next message and its approximate size in bytes. If making the message takes long, return an
        awaitable of the pair (message, size). Return None if the handler has no message now; the method is called again
        after ``wake``. ``is_due``: no message was written for ``idle_s``, so a message should be sent; if ``next``
        returns None, the stream calls ``next`` again after ``idle_s``. An exception raised in ``next`` ends the call
        with that error."""
        raise NotImplementedError

    def on_closed(self) -> None:
        """Release all resources of the handler, because the call has ended, for any reason. Called exactly once."""


class ServerPush(Generic[Response]):
    """The server's side of a call with a response stream. ``await push.run(handler)`` is the whole body of a servicer's
    unary-stream method. ``run`` asks the handler for a message only after the previous message was written, so no
    messages queue up."""

    __slots__ = ("_context", "_ending", "_failure", "_loop", "_over", "_wake", "closed")

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._wake: asyncio.Future[None] | None = None
        self._ending = False
        self._failure: BaseException | None = None
        self.closed = False  #: Whether the call of this stream has ended.

    def wake(self, *_: object) -> None:
        """Ask the handler again for a message, because it may have one now. The arguments of ``wake`` are ignored, so
        that the method can be a subscriber."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def finish(self, error: BaseException | None = None) -> None:
        """End the call after the present message, with OK or with ``error``."""
        if not self._ending:
            self._ending, self._failure = True, error
            self.wake()

    async def run(self, handler: PushHandler[Response], *, idle_s: float | None = None) -> None:
        """Serve until the client disconnects or ``finish`` is called; raises the error given to ``finish``. ``idle_s``:
        time without a message after which a message is due."""
        writer = self._loop.create_task(self._write(handler, idle_s))
        forget = end_with_session(self.finish)
        try:
            await self._over
        finally:
            forget()
            self.closed = True
            self.wake()
            handler.on_closed()
            del writer  # delete the name, which keeps the task in memory; the task ends by itself

    async def _write(self, handler: PushHandler[Response], idle_s: float | None) -> None:
        write, last_s = self._context.write, self._loop.time()
        try:
            while not (self.closed or self._ending):
                due_s = None if idle_s is None else last_s + idle_s
                is_due = due_s is not None and self._loop.time() >= due_s
                message = handler.next(is_due=is_due)
                if message is None:
                    if is_due:  # the handler had no message: ask again after the next ``idle_s``
                        last_s, due_s = self._loop.time(), self._loop.time() + (idle_s or 0)
                    await self._sleep(due_s)
                    continue
                if not isinstance(message, tuple):
                    message = await message
                    if self.closed:
                        return
                response, size = message
                if size >= LARGE_WRITE_BYTES:
                    await asyncio.sleep(0)
                    if self.closed:
                        return
                await write(response)
                del response, message
                last_s = self._loop.time()
        except grpc.aio.BaseError:  # the client has disconnected; gRPC cancels the call's own task
            return
        except Exception as error:  # noqa: BLE001  (handed to the call's own task, which reports it)
            self._failure = error
        if not (self.closed or self._over.done()):
            if self._failure is not None:
                self._over.set_exception(self._failure)
            else:
                self._over.set_result(None)

    async def _sleep(self, until_s: float | None) -> None:
        self._wake = self._loop.create_future()
        timer = None if until_s is None else self._loop.call_at(until_s, self.wake)
        await self._wake
        self._wake = None
        if timer is not None:
            timer.cancel()
