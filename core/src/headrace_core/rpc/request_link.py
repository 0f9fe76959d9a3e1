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
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic

import grpc.aio

from ..errors import HeadraceError, NetworkError, RequestTimedOutError
from .channel import PLAINTEXT, ChannelPurpose, Channels
from .duplex import Duplex
from .limits import PARTITIONS_MAX
from .stream import Request, Response, Stream

PACKED_MAX = 100  #: Maximum number of requests in one message.


class RequestLink(Stream[Any, Any], Generic[Request, Response]):
    """Sends requests to ``address`` over one stream, which opens on first use. Call all methods in one event loop."""

    what = "requests"

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
        super().__init__(address, f"requests to {address}", _spawn, lambda failures: 0.0)
        self._purpose = purpose
        self._open_call = open_call
        self._asked = what
        self._check = check
        self._packed = packed
        self._channels = channels
        self._out: deque[Request] = deque()
        self._waiting: dict[int, tuple[Request, asyncio.Future[Response]]] = {}
        self._written: set[int] = set()

    async def ask(self, request: Request, timeout_s: float) -> Response:
        """Send ``request`` with a new correlation id, and return the response. Raises RequestTimedOutError, and the
        error that broke the stream; the outcome is then unknown, unless ``was_sent`` is False."""
        if self._is_closed:
            raise _unsent(self._stops())
        self.correlation += 1
        number = request.correlation_id = self.correlation
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = request, answer
        self._out.append(request)
        self.nudge()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: no answer to {self._asked} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)  # a request that is still queued is not sent after this line
            self._written.discard(number)
            del answer  # drop the answer: the traceback of its error would keep this frame

    async def close(self) -> None:
        """Fail pending requests, and end the stream."""
        await super().close()
        self.lost(self._stops())

    def open(self) -> Duplex[Any, Any]:
        return Duplex(self.address, self._purpose, self._open_call, self._channels)

    def has_work(self) -> bool:
        return bool(self._out)

    async def next_request(self) -> Any:
        while self._out:
            if requests := self._next():
                if self.duplex is not None and not self.duplex.ended:
                    self._written.update(request.correlation_id for request in requests)
                return requests[0] if self._packed is None else self._packed(requests=requests)
        return None

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

    def received(self, message: Any) -> None:
        for response in (message,) if self._packed is None else message.responses:
            request, answer = self._waiting.get(response.correlation_id, (None, None))
            if request is None or answer is None or answer.done():
                continue
            self._check(request, response)
            answer.set_result(response)

    def _stops(self) -> NetworkError:
        return NetworkError(f"{self.address}: this node is shutting down")

    def lost(self, error: HeadraceError) -> None:
        """Fail all pending requests."""
        written = self._written
        self._out.clear()
        for number, (_, answer) in self._waiting.items():
            if answer.done():
                continue
            failure: HeadraceError = NetworkError(error.message) if not error.retriable else error.copy()
            if number not in written:
                failure = _unsent(NetworkError(error.message))
            answer.set_exception(failure)


def _spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=name)


def _unsent(error: NetworkError) -> NetworkError:
    error.was_sent = False
    return error
