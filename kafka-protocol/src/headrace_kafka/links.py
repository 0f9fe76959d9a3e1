"""A gRPC stream to one broker: requests in order, answers by correlation id, callbacks instead of tasks.

A stream serves one Kafka connection, or several connections of one user and host. A shared stream sends several
requests in one message, because a message costs more than a small request. While requests are in flight, the stream
collects further requests until an answer arrives, for at most LINGER_S (as in Nagle's algorithm, RFC 896). A shared
stream therefore sends a single request at once, and packs many requests into few messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import grpc.aio

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError, UnsupportedVersionError
from headrace_core.rpc.channel import PLAINTEXT, ChannelPurpose, Channels
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX

from .rounds import Rounds

logger = logging.getLogger("headrace.kafka")

#: The callback of a request: it receives the response, or the error that ended the stream before the response. The
#: error's ``was_sent`` is False if the request certainly had no effect.
Done = Callable[[Any, HeadraceError | None], None]

LOOK_S = 1.0  #: Seconds between two checks of the deadlines of a link's requests.
#: A message of a shared stream contains at most PACKED_MAX requests, and gets no further request from PACKED_BYTES on.
#: A broker accepts messages of up to socket.request.max.bytes plus 1 MiB.
PACKED_MAX, PACKED_BYTES = 100, 256 * 1024
#: Maximum number of connections that share a stream. Each connection on a shared stream has at most five requests of
#: SMALL_BYTES in progress. The requests in progress on a shared stream stay below 16 MiB, the size at which a broker
#: stops reading a stream.
USERS_MAX = 128
#: Seconds without any answer after which the gateway closes a shared stream that has an overdue request. A broker may
#: stop reading a stream for 30 s after it has refused requests.
HANGS_S = 35.0
#: Seconds in which a stream of acks=0 requests must deliver its remaining requests after the client has disconnected.
FINISH_S = 10.0
#: Seconds for which a shared stream collects requests into one message while earlier requests are unanswered.
LINGER_S = 0.002


#: Open at most one stream in each iteration of the event loop, because opening a stream takes milliseconds.
_openings_of: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()


def _openings() -> Rounds:
    loop = asyncio.get_running_loop()
    openings = _openings_of.get(loop)
    if openings is None:
        openings = _openings_of[loop] = Rounds(1)
    return openings


class _Asked:
    """A request of a link that has no response yet. ``request`` is None once the link must no longer send the
    request."""

    __slots__ = ("deadline", "done", "has_answer", "is_written", "number", "request", "since")

    def __init__(self, request: Any, done: Done, since: float, timeout_s: float, has_answer: bool) -> None:
        self.request = request
        self.number: int = request.correlation_id
        self.done = done
        self.since = since
        self.deadline = since + timeout_s
        self.has_answer = has_answer
        self.is_written = False

    def end(self, response: Any, error: HeadraceError | None) -> None:
        """Call ``done``. An exception in the callback of one connection is logged, because other connections still need
        their answers."""
        self.request = None
        try:
            self.done(response, error)
        except Exception:
            logger.exception("an unexpected error prevented the answer to a client's request")

    def fail(self, error: HeadraceError) -> None:
        """End the request with ``error``. If the request was not written, it certainly had no effect, and the error
        says so. UnsupportedVersionError is passed on: a broker that does not know the call may return it before the
        request is written."""
        if not self.is_written and not isinstance(error, UnsupportedVersionError):
            error = NetworkError(str(error))
            error.was_sent = False
        self.end(None, error)


class Link:
    """Sends requests to the broker at ``address`` over one stream. When the stream breaks, all requests fail, and the
    link stays unusable (``is_open`` is False)."""

    __slots__ = (
        "_after",
        "_has_silent",
        "_in_flight",
        "_is_due",
        "_is_finishing",
        "_linger",
        "_loop",
        "_next",
        "_open",
        "_out",
        "_packed",
        "_pending",
        "_read_at",
        "_silent_since",
        "_stream",
        "_task",
        "_timer",
        "_wake",
        "_why",
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
        channels: Channels = PLAINTEXT,
    ) -> None:
        """``packed``: the message type with several ``requests`` for a stream that connections share; the broker
        answers with messages that have ``responses``, and each request has ``partitions``. ``after``: send nothing
        before this event is set. ``channels`` opens the channel."""
        self.address = address
        self.is_open = True
        self._packed = packed
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._read_at = -1.0  # when the latest answer arrived
        self._silent_since: float | None = None  # when the first request was sent that failed since the latest answer
        self._in_flight = 0  # requests of a shared stream that were written and have no answer
        self._is_due = False  # True when the requests of a shared stream have gathered long enough
        self._linger: asyncio.TimerHandle | None = None
        self._next = 1
        self._out: deque[_Asked] = deque()
        self._pending: dict[int, _Asked] = {}  # requests that expect an answer, in the order of their numbers
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._open: Callable[[], Duplex[Any, Any]] = partial(Duplex, address, purpose, open_call, channels)
        self._stream: Duplex[Any, Any] | None = None
        self._why: HeadraceError | None = None  # why the stream ended before it opened
        self._has_silent = False  # True after a request that expects no answer
        self._is_finishing = False  # True once no more requests follow; waiting requests are still sent
        self._task = self._loop.create_task(self._run(), name=f"gateway: {purpose} to {address}")

    def send(self, request: Any, timeout_s: float, done: Done, *, has_answer: bool = True) -> None:
        """Send ``request`` with a new correlation id. The link calls ``done`` once, after ``send`` has returned. If
        ``has_answer`` is False, the link calls ``done(None, None)`` when the request is written, and ignores
        ``timeout_s``."""
        number = request.correlation_id = self._next
        self._next += 1
        asked = _Asked(request, done, self._loop.time(), timeout_s, has_answer)
        if has_answer:
            self._pending[number] = asked
            if self._timer is None:
                self._timer = self._loop.call_later(min(LOOK_S, timeout_s), self._look)
        else:
            self._has_silent = True
        self._out.append(asked)
        if self._may_write():
            self._wake_writer()
        else:
            self._gather()

    def give_up(self, why: HeadraceError) -> None:
        """End the stream; all requests that still wait for a response fail with ``why``."""
        self.is_open = False
        if self._stream is None:
            self._why = why
        else:
            self._stream.cancel(why)

    def close(self) -> None:
        """End the stream, and call no callbacks of requests that still wait. If the link has sent acks=0 requests, the
        stream ends when the broker has received all requests, at the latest after FINISH_S."""
        self._stop_timers()
        self._pending.clear()
        if self._has_silent and (self.is_open or self._is_finishing):
            if not self._is_finishing:
                self._is_finishing = True
                self._loop.call_later(FINISH_S, self._task.cancel)
                self._wake_writer()
        else:
            self._out.clear()
            self._task.cancel()
        self.is_open = False

    def _may_write(self) -> bool:
        return self._packed is None or self._in_flight == 0 or self._is_due or len(self._out) >= PACKED_MAX

    def _gather(self) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._gathered)

    def _gathered(self) -> None:
        """Send the collected requests of a shared stream."""
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
        error: HeadraceError = NetworkError(f"{self.address}: the broker ended the stream")
        try:
            await _openings().turn()
            if self._why is not None:
                raise self._why
            stream = self._stream = self._open()
            await stream.run(self._read(stream), self._write(stream))
        except HeadraceError as failure:
            error = failure
        finally:
            self.is_open = False
            self._stop_timers()
            self._fail(error)

    async def _read(self, stream: Duplex[Any, Any]) -> None:
        read, pending, packed, now = stream.read, self._pending, self._packed, self._loop.time
        response = asked = None
        while True:
            message = await read()
            self._read_at, self._silent_since = now(), None
            for response in (message,) if packed is None else message.responses:
                asked = pending.pop(response.correlation_id, None)
                self._in_flight -= 1
                if asked is not None:
                    asked.end(response, None)
            message = response = asked = None
            if packed is not None:
                self._gathered()

    async def _write(self, stream: Duplex[Any, Any]) -> None:
        await stream.connected()
        if self._after is not None:
            await self._after.wait()
        out, write, packed = self._out, stream.write, self._packed
        while True:
            while out and self._may_write():
                self._is_due = False
                asked = self._next_asked()
                if asked:
                    requests = [each.request for each in asked]
                    self._in_flight += len(requests)
                    await write(requests[0] if packed is None else packed(requests=requests))
                    for each in asked:
                        each.request = None
                        if not each.has_answer:
                            each.end(None, None)
                    del requests, each
                del asked
            if out:
                self._gather()
            elif self._is_finishing:
                await stream.done_writing()
                await self._loop.create_future()  # until the broker ends the stream
            self._wake = self._loop.create_future()
            await self._wake

    def _next_asked(self) -> list[_Asked]:
        """The requests for the next message; empty if all waiting requests have failed."""
        out = self._out
        message: list[_Asked] = []
        partitions = size = 0
        while out and size < PACKED_BYTES and len(message) < (1 if self._packed is None else PACKED_MAX):
            asked = out[0]
            if asked.request is not None:
                if self._packed is not None:
                    size += asked.request.ByteSize()
                    partitions += len(asked.request.partitions)
                    if message and partitions > PARTITIONS_MAX:
                        break
                asked.is_written = True
                message.append(asked)
            out.popleft()
        return message

    def _look(self) -> None:
        """Fail the requests whose timeout has passed. If the broker hangs, end the stream, too. A stream of one
        connection ends if no answer has arrived since an overdue request was sent. A shared stream ends only after
        HANGS_S without an answer, so that one client's short timeout does not fail the requests of other clients."""
        self._timer = None
        now = self._loop.time()
        late = [each for each in self._pending.values() if each.deadline <= now]
        error = RequestTimedOutError(f"{self.address}: the broker did not answer within the timeout")
        for each in late:
            if each.since >= self._read_at and self._silent_since is None:
                self._silent_since = each.since
        hangs_s = 0.0 if self._packed is None else HANGS_S
        if late and self._silent_since is not None and now - self._silent_since >= hangs_s:
            self.give_up(error)
            return
        for each in late:
            del self._pending[each.number]
        for each in late:
            each.fail(error)
        if self._pending and self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None

    def _fail(self, error: HeadraceError) -> None:
        failed = [*self._pending.values(), *(each for each in self._out if not each.has_answer)]
        self._pending.clear()
        self._out.clear()
        for asked in failed:
            asked.fail(error)


class Links:
    """Links to brokers, by broker id. ``open_link`` opens a link to an address."""

    __slots__ = ("_links", "_open_link")

    def __init__(self, open_link: Callable[[str], Link]) -> None:
        self._links: dict[int, Link] = {}
        self._open_link = open_link

    def to(self, broker_id: int, address: str) -> Link:
        """The open link to a broker. Replaces a link that is broken, or that leads to a former address of the
        broker."""
        link = self._links.get(broker_id)
        if link is None or not link.is_open or link.address != address:
            if link is not None and link.is_open:
                link.give_up(
                    NetworkError(
                        f"{link.address}: the stream was closed, because broker {broker_id} now has the address "
                        f"{address}"
                    )
                )
            link = self._links[broker_id] = self._open_link(address)
        return link

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


class SharedLinks:
    """Links that up to USERS_MAX connections with the same key share. The links close when the last of these
    connections ends."""

    __slots__ = ("_groups", "_open_links")

    def __init__(self, open_links: Callable[[Hashable], Links]) -> None:
        self._open_links = open_links
        self._groups: dict[Hashable, list[_Group]] = {}

    def join(self, key: Hashable) -> tuple[Links, Callable[[], None]]:
        """Return links for one more connection, and a function that the connection must call once when it ends."""
        groups = self._groups.setdefault(key, [])
        group = next((each for each in groups if each.users < USERS_MAX), None)
        if group is None:
            group = _Group(self._open_links(key))
            groups.append(group)
        group.users += 1
        return group.links, partial(self._leave, key, group)

    def _leave(self, key: Hashable, group: _Group) -> None:
        group.users -= 1
        if group.users:
            return
        group.links.close()
        self._groups[key].remove(group)
        if not self._groups[key]:
            del self._groups[key]


class _Group:
    """Links, and the number of connections that share them."""

    __slots__ = ("links", "users")

    def __init__(self, links: Links) -> None:
        self.links = links
        self.users = 0
