"""A gRPC stream to one broker: requests in order, answers by correlation id, callbacks instead of tasks.

A stream belongs to one Kafka connection, or connections of one user and host share it. Several requests of a shared
stream leave in one message, because a message costs more than a small request. While earlier requests are unanswered,
the next ones gather until an answer comes, for LINGER_S at most (as in Nagle's algorithm, RFC 896). So a single request
leaves at once, and many requests share few messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import grpc.aio

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc.channel import ChannelPurpose
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX

#: Gets the response, or the error that ended the stream before the response. ``was_sent`` of the error is False if the
#: request certainly had no effect.
Done = Callable[[Any, HeadraceError | None], None]

LOOK_S = 1.0  #: Seconds between two looks at the deadlines of a link's requests.
#: Maximum number of requests in one message of a shared stream, and bytes from which a message takes no more requests.
#: A broker takes messages of 1 MiB above its socket.request.max.bytes.
PACKED_MAX, PACKED_BYTES = 100, 256 * 1024
LINGER_S = 0.002  #: How long requests of a shared stream gather while earlier ones are unanswered.


class _Pending:
    """A request with an answer. ``is_over``: the request has failed, and must not be sent any more."""

    __slots__ = ("deadline", "done", "is_over", "is_written", "since")

    def __init__(self, done: Done, since: float, timeout_s: float) -> None:
        self.done = done
        self.since = since
        self.deadline = since + timeout_s
        self.is_written = self.is_over = False


class Link:
    """Requests to the broker at ``address``. A broken link fails its requests and stays broken (``is_open``)."""

    __slots__ = (
        "_after",
        "_in_flight",
        "_is_due",
        "_linger",
        "_loop",
        "_next",
        "_out",
        "_packed",
        "_pending",
        "_read_at",
        "_stream",
        "_task",
        "_timer",
        "_wake",
        "address",
        "is_open",
    )

    def __init__(
        self,
        address: str,
        purpose: ChannelPurpose,
        open_call: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamCall],
        *,
        packed: Callable[..., Any] | None = None,
        after: asyncio.Event | None = None,
    ) -> None:
        """``packed``: the message that carries several requests in its field ``requests``; a message of the broker then
        carries ``responses``. The requests name ``partitions``. ``after``: send nothing before."""
        self.address = address
        self.is_open = True
        self._packed = packed
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._read_at = -1.0  # when the latest answer came
        self._in_flight = 0  # requests of a shared stream that were written and have no answer
        self._is_due = False  # True when the requests of a shared stream have gathered long enough
        self._linger: asyncio.TimerHandle | None = None
        self._next = 1
        self._out: deque[tuple[Any, _Pending | None]] = deque()
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
        asked: _Pending | None = None
        if done is not None:
            asked = self._pending[number] = _Pending(done, self._loop.time(), timeout_s)
            if self._timer is None:
                self._timer = self._loop.call_later(min(LOOK_S, timeout_s), self._look)
        self._out.append((request, asked))
        if self._may_write():
            self._wake_writer()
        else:
            self._gather()

    def give_up(self, why: HeadraceError) -> None:
        """End the stream; requests without an answer fail with ``why``."""
        self.is_open = False
        self._stream.cancel(why)

    def close(self) -> None:
        """End the stream; requests without an answer are not called back."""
        self.is_open = False
        self._pending.clear()
        self._task.cancel()
        self._stop_timers()

    def _may_write(self) -> bool:
        return self._packed is None or self._in_flight == 0 or self._is_due or len(self._out) >= PACKED_MAX

    def _gather(self) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._gathered)

    def _gathered(self) -> None:
        """Send what has gathered on a shared stream."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._out:
            self._is_due = True
            self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        error: HeadraceError = NetworkError(f"{self.address}: the stream ended")
        try:
            await self._stream.run(self._read(), self._write())
        except HeadraceError as failure:
            error = failure
        finally:
            self.is_open = False
            self._stop_timers()
            self._fail(error)

    async def _read(self) -> None:
        read, pending, packed, now = self._stream.read, self._pending, self._packed, self._loop.time
        while True:
            message = await read()
            self._read_at = now()
            for response in (message,) if packed is None else message.responses:
                asked = pending.pop(response.correlation_id, None)
                self._in_flight -= 1
                if asked is not None:
                    asked.done(response, None)
            del message, response, asked
            if packed is not None:
                self._gathered()

    async def _write(self) -> None:
        await self._stream.connected()
        if self._after is not None:
            await self._after.wait()
        out, write, packed = self._out, self._stream.write, self._packed
        while True:
            while out and self._may_write():
                self._is_due = False
                requests = self._next_requests()
                self._in_flight += len(requests)
                if requests:
                    await write(requests[0] if packed is None else packed(requests=requests))
                del requests
            if out:
                self._gather()
            self._wake = self._loop.create_future()
            await self._wake

    def _next_requests(self) -> list[Any]:
        """The requests of the next message; empty if all that waited have failed."""
        out = self._out
        requests: list[Any] = []
        partitions = size = 0
        while out and size < PACKED_BYTES and len(requests) < (1 if self._packed is None else PACKED_MAX):
            request, asked = out[0]
            if asked is None or not asked.is_over:
                if self._packed is not None:
                    size += request.ByteSize()
                    partitions += len(request.partitions)
                    if requests and partitions > PARTITIONS_MAX:
                        break
                requests.append(request)
                if asked is not None:
                    asked.is_written = True
            out.popleft()
        return requests

    def _look(self) -> None:
        """Fail the requests that have had no answer for their timeout. If nothing at all was read meanwhile, the broker
        hangs, and the stream ends."""
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        late = {number: each for number, each in self._pending.items() if each.deadline <= now}
        error = RequestTimedOutError(f"{self.address}: no answer in time")
        if any(each.since >= self._read_at for each in late.values()):
            self._stream.cancel(error)
            return
        for number, each in late.items():
            del self._pending[number]
            each.is_over = True
            each.done(None, error)
        if self._pending:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None

    def _fail(self, error: HeadraceError) -> None:
        failed = list(self._pending.values())
        self._pending.clear()
        self._out.clear()
        for asked in failed:
            if asked.is_written:
                asked.done(None, error)
            else:
                unsent = NetworkError(str(error))
                unsent.was_sent = False
                asked.done(None, unsent)


class Links:
    """Links by broker. ``open_link`` opens one to an address."""

    __slots__ = ("_links", "_open_link")

    def __init__(self, open_link: Callable[[str], Link]) -> None:
        self._links: dict[int, Link] = {}
        self._open_link = open_link

    def to(self, broker_id: int, address: str) -> Link:
        """The open link to a broker; a broken one, or one to a former address, is replaced."""
        link = self._links.get(broker_id)
        if link is None or not link.is_open or link.address != address:
            if link is not None and link.is_open:
                link.give_up(NetworkError(f"{link.address}: broker {broker_id} has the address {address} now"))
            link = self._links[broker_id] = self._open_link(address)
        return link

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


class SharedLinks:
    """Links that connections with the same key share. They are open while at least one of these connections is."""

    __slots__ = ("_open_links", "_users")

    def __init__(self, open_links: Callable[[Hashable], Links]) -> None:
        self._open_links = open_links
        self._users: dict[Hashable, tuple[Links, int]] = {}

    def join(self, key: Hashable) -> Links:
        """The links of ``key`` for one more connection, which calls ``leave`` at its end."""
        links, users = self._users.get(key) or (self._open_links(key), 0)
        self._users[key] = links, users + 1
        return links

    def leave(self, key: Hashable) -> None:
        links, users = self._users.pop(key)
        if users > 1:
            self._users[key] = links, users - 1
        else:
            links.close()
