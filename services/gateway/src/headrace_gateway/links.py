"""A gRPC stream of one Kafka connection to one broker: requests in order, answers by correlation id, callbacks instead
of tasks. Streams are never shared between connections, so one client's requests keep their order, and no client waits
for another's answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc.aio

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc.channel import ChannelPurpose
from headrace_core.rpc.duplex import Duplex

#: Gets the response, or the error that ended the stream before the response. ``was_sent`` of the error is False if the
#: request certainly had no effect.
Done = Callable[[Any, HeadraceError | None], None]

LOOK_S = 1.0  #: Seconds between two looks at the deadlines of a link's requests.


class _Pending:
    __slots__ = ("deadline", "done", "is_written")

    def __init__(self, done: Done, deadline: float) -> None:
        self.done = done
        self.deadline = deadline
        self.is_written = False


class Link:
    """Requests to the broker at ``address``. A broken link fails its requests and stays broken (``is_open``)."""

    __slots__ = ("_loop", "_next", "_out", "_pending", "_stream", "_task", "_timer", "_wake", "address", "is_open")

    def __init__(
        self, address: str, purpose: ChannelPurpose, open_call: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall]
    ) -> None:
        self.address = address
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._out: deque[Any] = deque()
        self._pending: dict[int, _Pending] = {}
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stream: Duplex[Any, Any] = Duplex(address, purpose, open_call)
        self._task = self._loop.create_task(self._run(), name=f"gateway: {purpose} to {address}")

    def send(self, request: Any, timeout_s: float, done: Done | None) -> None:
        """Send ``request`` with a correlation id of its own. ``done`` is called once, later; None: the request has no
        response."""
        number = request.correlation_id = self._next
        self._next += 1
        if done is not None:
            self._pending[number] = _Pending(done, self._loop.time() + timeout_s)
            if self._timer is None:
                self._timer = self._loop.call_later(min(LOOK_S, timeout_s), self._look)
        self._out.append(request)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        """End the stream; requests without an answer are not called back."""
        self.is_open = False
        self._pending.clear()
        self._task.cancel()
        self._stop_looking()

    async def _run(self) -> None:
        error: HeadraceError = NetworkError(f"{self.address}: the stream ended")
        try:
            await self._stream.run(self._read(), self._write())
        except HeadraceError as failure:
            error = failure
        finally:
            self.is_open = False
            self._stop_looking()
            self._fail(error)

    async def _read(self) -> None:
        read, pending = self._stream.read, self._pending
        while True:
            response = await read()
            asked = pending.pop(response.correlation_id, None)
            if asked is not None:
                asked.done(response, None)
            del response, asked

    async def _write(self) -> None:
        await self._stream.connected()
        out, write, pending = self._out, self._stream.write, self._pending
        while True:
            while out:
                request = out.popleft()
                asked = pending.get(request.correlation_id)
                if asked is not None:
                    asked.is_written = True
                await write(request)
                del request, asked
            self._wake = self._loop.create_future()
            await self._wake

    def _look(self) -> None:
        """End the stream if a request has had no answer for its timeout: its broker hangs."""
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        if any(each.deadline <= now for each in self._pending.values()):
            self._stream.cancel(RequestTimedOutError(f"{self.address}: no answer in time"))
            return
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: HeadraceError) -> None:
        pending, self._pending = self._pending, {}
        self._out.clear()
        for asked in pending.values():
            if asked.is_written:
                asked.done(None, error)
            else:
                unsent = NetworkError(str(error))
                unsent.was_sent = False
                asked.done(None, unsent)


class Links:
    """The links of one Kafka connection, by broker. ``open_link`` opens one to an address."""

    __slots__ = ("_links", "_open_link")

    def __init__(self, open_link: Callable[[str], Link]) -> None:
        self._links: dict[int, Link] = {}
        self._open_link = open_link

    def to(self, broker_id: int, address: str) -> Link:
        """The open link to a broker; a broken one, or one to a former address, is replaced."""
        link = self._links.get(broker_id)
        if link is None or not link.is_open or link.address != address:
            if link is not None:
                link.close()
            link = self._links[broker_id] = self._open_link(address)
        return link

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
