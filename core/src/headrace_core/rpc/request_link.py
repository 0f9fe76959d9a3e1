"""A client's stream of requests to one address: many callers share the stream, and a response is matched to its request
by the correlation id. Responses may come in any order.

With ``packed``, the requests that wait at the same moment are sent in one message, because the cost of a message is
higher than the cost of a small request. A server also packs its waiting responses into one message
(``streams.ServerStream``).

When the stream breaks, its pending requests fail, and the next request opens a new stream. A request that was not
written certainly had no effect (``NetworkError.was_sent`` is False).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc.aio

from ..errors import HeadraceError, NetworkError, RequestTimedOutError
from .channel import PLAINTEXT, ChannelPurpose, Channels
from .duplex import Duplex
from .limits import PARTITIONS_MAX

logger = logging.getLogger(__name__)

PACKED_MAX = 100  #: Maximum number of requests in one message.

#: The types of a stream's requests and responses; each message has a field ``correlation_id``.
Request = TypeVar("Request", bound=Any)
Response = TypeVar("Response", bound=Any)


class RequestLink(Generic[Request, Response]):
    """Sends requests to ``address`` over one stream, which opens on first use. Call all methods in one event loop."""

    def __init__(
        self,
        address: str,
        purpose: ChannelPurpose,
        open_call: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall],
        *,
        what: str,
        check: Callable[[Request, Response], None] = lambda request, response: None,
        packed: Callable[..., Any] | None = None,
        channels: Channels = PLAINTEXT,
    ) -> None:
        """``open_call``: begins the call on a channel. ``what``: name of a request in error messages, with its article.
        ``check``: raises a HeadraceError for a response that does not fit the request; the error ends the stream.
        ``packed``: the message that contains several requests in its field ``requests``; a message of the server then
        contains ``responses``. With ``packed``, each request must have the repeated field ``partitions``."""
        self.address = address
        self._purpose = purpose
        self._open_call = open_call
        self._what = what
        self._check = check
        self._packed = packed
        self._channels = channels
        self._correlation = itertools.count(1)
        self._out: deque[Request] = deque()
        self._waiting: dict[int, tuple[Request, asyncio.Future[Response]]] = {}
        self._written: set[int] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, request: Request, timeout_s: float) -> Response:
        """Send ``request`` with a new correlation id, and return the response. Raises RequestTimedOutError, and the
        error that broke the stream; the outcome is then unknown, unless ``was_sent`` is False."""
        if self._closed:
            raise _unsent(self._stops())
        number = request.correlation_id = next(self._correlation)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = request, answer
        self._out.append(request)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"requests to {self.address}")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: no answer to {self._what} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)  # a request that is still queued is not sent after this line
            self._written.discard(number)
            del answer  # drop the answer: the traceback of its error would keep this frame

    async def close(self) -> None:
        """Fail pending requests, and end the stream."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(self._stops())

    async def _run(self) -> None:
        """Run one stream until it breaks; the next request starts a new stream."""
        stream: Duplex[Any, Any] = Duplex(self.address, self._purpose, self._open_call, self._channels)
        try:
            await stream.run(self._read(stream), self._write(stream))
        except HeadraceError as failure:
            error = failure
        except Exception as failure:  # a bug of this node or of the server: pending requests still need an outcome
            logger.exception("the stream to %s: unexpected error; reconnecting", self.address)
            error = NetworkError(f"{self.address}: {type(failure).__name__}: {failure}")
        self._task = None
        self._fail(error)
        del error  # drop the error, because the traceback of the error keeps this frame (see Duplex.run)

    async def _write(self, stream: Duplex[Any, Any]) -> None:
        await stream.connected()
        while True:
            self._wake.clear()
            while self._out:
                requests = self._next()
                if not requests:
                    continue
                if not stream.ended:
                    self._written.update(request.correlation_id for request in requests)
                await stream.write(requests[0] if self._packed is None else self._packed(requests=requests))
            await self._wake.wait()

    def _next(self) -> list[Request]:
        """The requests of the next message; empty if their callers have left."""
        requests: list[Request] = []
        partitions = 0
        while self._out and not (requests and self._packed is None):
            if self._packed is not None:
                partitions += len(self._out[0].partitions)
                if requests and (partitions > PARTITIONS_MAX or len(requests) == PACKED_MAX):
                    break
            request = self._out.popleft()
            if request.correlation_id in self._waiting:
                requests.append(request)
        return requests

    async def _read(self, stream: Duplex[Any, Any]) -> None:
        while True:
            message = await stream.read()
            for response in (message,) if self._packed is None else message.responses:
                request, answer = self._waiting.get(response.correlation_id, (None, None))
                if request is None or answer is None or answer.done():
                    continue
                self._check(request, response)
                answer.set_result(response)

    def _stops(self) -> NetworkError:
        return NetworkError(f"{self.address}: this node is shutting down")

    def _fail(self, error: HeadraceError) -> None:
        """Fail all pending requests."""
        waiting, written = self._waiting, self._written
        self._out.clear()
        if waiting:
            logger.info("%d pending requests to %s failed: %s", len(waiting), self.address, error)
        for number, (_, answer) in waiting.items():
            if answer.done():
                continue
            failure: HeadraceError = NetworkError(error.message) if not error.retriable else error.copy()
            if number not in written:
                failure = _unsent(NetworkError(error.message))
            answer.set_exception(failure)


def _unsent(error: NetworkError) -> NetworkError:
    error.was_sent = False
    return error
