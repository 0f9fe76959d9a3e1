"""Kafka connections: frames in, answers out in the order of the requests.

A connection processes one request after another, as Kafka's brokers do. Only Produce requests overlap: up to
``PIPELINE`` requests, because a client may send this number before the first answer. A handler runs as an asyncio task;
a handler in FAST gets a callback and needs no task. An idle connection has no task and no timer. One sweep per second
closes connections that are idle or stalled, or whose client does not read its answers.

Only a few requests other than Produce and Fetch start in each iteration of the event loop (rounds.py). A thread decodes
and encodes long messages, one after another, so that they do not block the event loop.

A connection stops reading while

* enough frames wait (QUEUED_BYTES),
* its client has not read WRITE_BYTES of answers (and it starts no request meanwhile),
* the budget of all connections is used up, and its own frame is large (budget.py). Clients that have not authenticated
  have a separate budget.

The broker closes a connection at once if the bytes are not a valid request, as Kafka does. A client over its quota
learns the ``throttle_time_ms``, and the connection starts no further request for that time (KIP-219).

The client of a secured listener must first authenticate, by TLS, by SASL, or both, within AUTHENTICATES_S seconds. A
failed authentication is answered after ``connection.failed.authentication.delay.ms``, and ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

from headrace_core.errors import (
    HeadraceError,
)
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.unexpected import log_fields

from .answers import count_items, failed, login_error, unknown_version
from .budget import SMALL_FRAME_BYTES
from .call import AnswerParts, Call, Handler, LongRequestError
from .client import Client
from .connections import OPEN, Connections, ListenerSecurity
from .handlers.sasl import step
from .produce_path import PlainProduce
from .quotas import ClientQuotas
from .sasl import Authentication, State, now_ms
from .wire._plain import read_plain
from .wire.apis import Api, title
from .wire.frames import LENGTH_BYTES, REQUEST_BYTES_MAX, RequestHeader, finish, read_header, response_start
from .wire.primitives import WireError
from .wire.schema import has_response_field, prepare, request_body, response_body

logger = logging.getLogger("headrace.kafka")

#: Maximum number of Produce requests in progress on one connection: Kafka's limit of
#: max.in.flight.requests.per.connection for idempotent producers.
PIPELINE = 5
QUEUED_BYTES = 64 * 1024  #: A connection stops reading when this number of bytes of requests is waiting.
#: Size in bytes of a connection's send buffer in the kernel (SO_SNDBUF; Linux doubles the value). Without a limit the
#: kernel may buffer megabytes of answers.
SEND_BUFFER_BYTES = 256 * 1024
WRITE_BYTES = 64 * 1024  #: A connection reads and starts no more requests when this number of answer bytes is unsent.
#: A thread decodes requests above LONG_BYTES bytes (except Produce), and encodes answers above LONG_ITEMS items.
LONG_BYTES, LONG_ITEMS = 32 * 1024, 500
#: Maximum number of frames that a connection takes from its buffer at a time: one read may return 13,000 small
#: requests.
FRAMES_MAX = 64
HEADER_BYTES_MIN = 8  #: Size in bytes of the shortest request: request type, version and correlation id.

#: The broker disconnects a client that reads none of its waiting answers for this number of seconds.
STALLED_WRITE_S = 30
#: While memory is short, the broker disconnects a client that sends no more bytes of an unfinished frame for this
#: number of seconds.
STALLED_READ_S = 5
#: While memory for answers is short, a client that leaves answers unread for STALLED_READ_S must read this many bytes
#: per second.
ANSWER_BYTES_PER_S_MIN = 64 * 1024
#: If the broker reads a frame although its memory budget is used up, the frame may take STALLED_READ_S seconds plus
#: its size divided by this number of bytes per second. The broker disconnects a slower client.
BYTES_PER_S_MIN = 256 * 1024
#: Seconds within which a client of a secured listener must authenticate.
AUTHENTICATES_S = 60
#: The broker disconnects a client that authenticates if other clients wait and it has sent nothing for SILENT_ROUNDS,
#: or has not finished within CROWDED_ROUNDS. In each round the event loop reads all that has arrived, so a busy broker
#: is not mistaken for silent clients.
SILENT_ROUNDS, CROWDED_ROUNDS = 30, 100
CLOSING_S = 5  #: Seconds that a connection has to send its last answers when the broker closes it.
#: Seconds that a client has to read why its authentication failed. kafka-python reports only a lost connection when the
#: end comes together with the answer.
REFUSED_S = 0.5
FINISH_S = 10  #: Seconds that a connection whose client has closed its side has for the client's acks=0 requests.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 15, 4

_PRODUCE = Api.PRODUCE.to_bytes(2, "big")
_ENDED_BY_PEER = (7, 8)  #: TCP states (CLOSE, CLOSE_WAIT) of a connection after the peer has sent RST or FIN.


class _Request:
    """A request in progress. ``answer``: parts of the answer's frame once ``is_done`` is True; None if the request gets
    no answer."""

    __slots__ = ("answer", "api", "is_done", "is_produce", "size", "started_s", "task")

    def __init__(self, size: int, is_produce: bool, api: Api) -> None:
        self.api = api
        self.started_s = 0.0 if is_produce or api is Api.FETCH else time.perf_counter()
        self.size = size
        self.is_produce = is_produce
        self.is_done = False
        self.answer: AnswerParts | None = None
        self.task: asyncio.Task[None] | None = None


class Connection(asyncio.Protocol):
    """One client's connection to a Kafka listener."""

    __slots__ = (
        "_active",
        "_admitted",
        "_budget",
        "_buffer",
        "_closing_since",
        "_frame_since",
        "_frames",
        "_has_more",
        "_held",
        "_is_draining",
        "_is_ending",
        "_is_held",
        "_is_muted",
        "_is_reading",
        "_is_stalled",
        "_is_starting",
        "_is_waiting",
        "_muted_until",
        "_paused_since",
        "_paused_size",
        "_queued",
        "_quotas",
        "_received",
        "_requests",
        "_security",
        "_shared",
        "_since",
        "_stalled_since",
        "_stalled_size",
        "_transport",
        "_unread",
        "client",
        "is_authenticated",
    )  # fmt: skip

    def __init__(self, shared: Connections, listener: str, security: ListenerSecurity = OPEN) -> None:
        protocol = security.protocol
        self.client = Client(host="", listener=listener, protocol=protocol, answers=shared.answers)
        self.client.hang_up = self.end
        self.client.mute = self.mute
        self.client.hold = self.hold
        self._quotas = None if shared.quotas is None else ClientQuotas(shared.quotas)
        self._security = security
        self._since = shared.now  # when the client connected
        self.is_authenticated = protocol is SecurityProtocol.PLAINTEXT  #: Whether the client has authenticated.
        if security.sasl is not None:
            self.client.authentication = Authentication(security.sasl, max_reauth_ms=security.max_reauth_ms)
            self.client.slow_steps = shared.slow_steps
        if not self.is_authenticated:
            self.client.on_authenticated = self._authenticated
        self._shared = shared
        self._budget = shared.budget if self.is_authenticated else shared.strangers
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()  # the bytes of one unfinished frame with its length; whole frames may precede it
        self._has_more = False  # True while the buffer may begin with whole frames
        self._frames: deque[bytes] = deque()  # waiting frames, without their length field
        self._queued = 0  # bytes in _frames
        self._requests: deque[_Request] = deque()  # requests in progress or with an unwritten answer, in order
        self._held = 0  # this connection's bytes in its memory budget
        self._is_reading = True
        self._is_stalled = False  # True while the client leaves WRITE_BYTES of answers unread
        self._is_draining = self._is_starting = False
        self._is_held = False  # True while flow control holds the client's requests
        self._is_muted = False  # True while a client over its quota must wait
        self._muted_until = 0.0  # on the event loop's clock
        self._is_ending = False  # True after the client has closed its side, while acks=0 requests are still handled
        self._active = self._frame_since = self._stalled_since = shared.now
        self._stalled_size = 0
        self._paused_since = self._paused_size = 0  # the time and the unread bytes when the client became stalled
        self._unread = 0  # bytes of unread answers, as counted in the answers of all connections
        self._closing_since = -1
        self._is_waiting = False  # True while too many other clients authenticate
        # the rounds of the entrance when the client began to authenticate, and when its latest bytes arrived
        self._admitted = self._received = 0

    # -- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.client.host = str(peer[0]) if peer else "unknown"
        if not self._shared.add(self, self.client.host):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        if self._quotas is not None:
            self.mute(self._quotas.connected_ms(self.client.host))
        self._active = self._shared.now
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            if hasattr(socket, "TCP_KEEPIDLE"):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)

    def secured(self, certificate: bytes | None) -> None:
        """Called when the TLS handshake is complete. With the security protocol SSL, the client's certificate
        determines the client's principal."""
        tls = self._security.tls
        self._received = self._shared.entrance.round
        if self._security.protocol is not SecurityProtocol.SSL or tls is None:
            return
        try:
            principal = tls.principal_of(certificate)
        except HeadraceError as error:
            self.unsecured(str(error))
            self.end()
            return
        self.client.authenticated(principal)

    def unsecured(self, why: str) -> None:
        """Report why the TLS handshake failed."""
        shared, client = self._shared, self.client
        shared.log("TLS handshake of %s failed: %s", client.host, why[:200])
        shared.failed_authentications += 1
        if shared.audit is not None:
            shared.audit.handshake_failed(client.host, client.listener, why)

    def data_received(self, data: bytes) -> None:
        if self._closing_since >= 0:
            return
        self._active = self._shared.now
        if not self.is_authenticated:
            self._received = self._shared.entrance.round
        self._held += len(data)
        self._shared.bytes_in += len(data)
        self._budget.used += len(data)
        buffer = self._buffer
        if not buffer and len(data) >= LENGTH_BYTES and int.from_bytes(data[:4], "big") == len(data) - LENGTH_BYTES:
            if not self._is_acceptable(data):
                return
            frame = data[LENGTH_BYTES:]
            if not self._frames and not self._is_blocked and self._has_place(frame) and self._joins(frame):
                return
            self._frames.append(frame)
            self._queued += len(data)
        else:
            if not buffer:
                self._frame_since = self._shared.now
            buffer += data
            if not self._split():
                return
        self._start()

    def eof_received(self) -> bool:
        """Close the connection of a client that has closed its sending side, as Kafka does. First handle the acks=0
        requests that the client has sent."""
        self._is_ending = self.client.sends_silently and bool(self._frames or self._requests)
        self._active = self._shared.now
        return self._is_ending

    def pause_writing(self) -> None:
        self._is_stalled = True
        self._stalled_since = self._paused_since = self._shared.now
        self._stalled_size = self._paused_size = self._unsent()
        self._set_reading()

    def resume_writing(self) -> None:
        self._is_stalled = False
        self._count_unread()
        self._start()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing_since = self._shared.now
        self._transport = None
        self._count_unread()
        self._shared.remove(self, self.client.host)
        self._frames.clear()
        self._buffer = bytearray()
        self._budget.finished(self)
        self._budget.release(self._held)
        self._held = 0
        requests, self._requests = self._requests, deque()
        for request in requests:
            if request.task is not None:
                request.task.cancel()
        self.client.closed()

    # -- frames -------------------------------------------------------------------------------------------------------

    def _is_acceptable(self, start: bytes | bytearray, position: int = 0) -> bool:
        """Check the length and, if they have arrived, the first bytes of a frame. An illegal frame ends the
        connection."""
        size = int.from_bytes(start[position : position + 4], "big", signed=True)
        most, least = self._shared.settings.request_bytes_max, HEADER_BYTES_MIN
        key = "socket.request.max.bytes"
        if not self.is_authenticated:
            most, key = min(most, self._security.receive_bytes_max), "sasl.server.max.receive.size"
            authentication = self.client.authentication
            if authentication is not None and authentication.state is State.TOKENS:
                least = 0
        if size < least or size > most:
            self._refuse(f"a frame of {size} bytes; between {least} and {key}={most}")
            return False
        kind = start[position + 4 : position + 6]
        if size > REQUEST_BYTES_MAX and len(kind) == len(_PRODUCE) and kind != _PRODUCE:
            self._refuse(f"a request of {size} bytes; at most {REQUEST_BYTES_MAX}, unless it is a Produce request")
            return False
        return True

    def _split(self) -> bool:
        """Move complete frames from the buffer to the queue, up to FRAMES_MAX; False if the connection ends."""
        buffer, position = self._buffer, 0
        self._has_more = False
        while len(buffer) - position >= LENGTH_BYTES:
            if len(self._frames) >= FRAMES_MAX:
                self._has_more = True
                break
            if not self._is_acceptable(buffer, position):
                return False
            end = position + LENGTH_BYTES + int.from_bytes(buffer[position : position + 4], "big")
            if end > len(buffer):
                break
            self._frames.append(bytes(memoryview(buffer)[position + LENGTH_BYTES : end]))
            self._queued += end - position
            position = end
        if position:
            del buffer[:position]
            self._frame_since = self._shared.now
            self._budget.finished(self)
        return True

    def read_on(self) -> None:
        """Continue to read after the memory budget paused the connection."""
        self._frame_since = self._active = self._shared.now
        self._set_reading()

    def _set_reading(self) -> None:
        """Pause or resume reading from the client."""
        transport = self._transport
        if transport is None or self._closing_since >= 0:
            return
        is_reading = not (self._is_stalled or self._is_muted or self._is_held or self._is_waiting)
        if is_reading and self._frames:
            is_reading = not self._has_more and self._queued < QUEUED_BYTES and not self._budget.is_short
        if is_reading and len(self._buffer) > SMALL_FRAME_BYTES:
            is_reading = self._budget.may_read(self)
        if is_reading is not self._is_reading:
            self._is_reading = is_reading
            if is_reading:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start as many waiting requests as may run now."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            self._start_waiting()
        finally:
            self._is_starting = False
        self._set_reading()

    def _start_waiting(self) -> None:
        frames = self._frames
        while not self._is_blocked:
            if not frames and (not self._has_more or not self._split() or not frames):
                break
            if not self._has_place(frames[0]):
                break
            frame = frames.popleft()
            self._queued -= len(frame) + LENGTH_BYTES
            try:
                if not self._joins(frame):
                    self._begin(frame)
            except WireError as error:
                self._refuse(str(error))
                return
            except Exception as error:
                logger.exception(
                    "a request failed unexpectedly; the broker closes the connection to %s",
                    self.client.host,
                    extra=log_fields(error),
                )
                self.end()
                return

    @property
    def _is_blocked(self) -> bool:
        """Whether the client may start no request, whatever is in progress."""
        is_closing = self._closing_since >= 0
        return self._is_stalled or self._is_draining or self._is_muted or self._is_held or is_closing

    def _has_place(self, frame: bytes) -> bool:
        """Whether the request may start beside the client's requests in progress."""
        requests = self._requests
        return not requests or (len(requests) < PIPELINE and requests[-1].is_produce and frame.startswith(_PRODUCE))

    def _begin(self, frame: bytes) -> None:
        """Start a request. Raises WireError if the broker does not serve the request, or the bytes are not a
        request."""
        shared, authentication = self._shared, self.client.authentication
        is_produce = frame.startswith(_PRODUCE)
        if authentication is not None and authentication.state is State.TOKENS:
            request = _Request(len(frame) + LENGTH_BYTES, False, Api.SASL_AUTHENTICATE)
            self._requests.append(request)
            shared.starts.start(functools.partial(self._run_task, request, self._handle_token, frame))
            return
        header = read_header(frame)
        api, version = header.api, header.version
        if authentication is not None and not authentication.permits(api, now_ms()):
            raise WireError(
                f"{title(api)} before the client has authenticated"
                if authentication.identity is None
                else f"{title(api)} after the end of the session of {authentication.principal}"
            )
        request = _Request(len(frame) + LENGTH_BYTES, is_produce, api)
        if not header.is_supported:
            if api is not Api.API_VERSIONS:
                raise WireError(f"the broker does not serve {title(api)} version {version}")
            self._requests.append(request)
            self._answered(request, (unknown_version(header.correlation_id),))
            return
        if api not in shared.fast and api not in shared.handlers:
            raise WireError(f"the broker does not serve {title(api)}")
        self.client.client_id = header.client_id
        call = Call(self.client, api, version, header.client_id, shared.cluster, shared.upstream, shared.settings)
        is_long = len(frame) > LONG_BYTES and not is_produce
        if api not in shared.prepared:
            request.is_produce = False  # the next request waits, so that the order stays
            self._requests.append(request)
            shared.starts.start(
                functools.partial(self._run_task, request, self._handle_first, call, header, frame, is_long)
            )
            return
        fast = shared.fast.get(api)
        if fast is not None and not is_long:
            self._requests.append(request)
            reply = functools.partial(self._answered, request)
            try:
                fast(call, header, frame, reply)
            except LongRequestError as error:
                request.is_produce = False  # the next request waits, so that the order stays
                work = functools.partial(self._handle, handler=error.handler)
                shared.starts.start(functools.partial(self._run_task, request, work, call, header, frame, True))
            return
        self._requests.append(request)
        shared.starts.start(functools.partial(self._run_task, request, self._handle, call, header, frame, is_long))

    def _joins(self, frame: bytes) -> bool:
        """Start a plain Produce request; False if the request is not plain, or must be checked further."""
        shared, client = self._shared, self.client
        fields = read_plain(frame) if Api.PRODUCE in shared.prepared else None
        if fields is None:
            return False
        if client.authentication is not None and not client.authentication.permits(Api.PRODUCE, now_ms()):
            return False
        request = _Request(len(frame) + LENGTH_BYTES, True, Api.PRODUCE)
        reply = functools.partial(self._answered, request)
        plain = PlainProduce(client, shared.cluster, fields, request.size, reply)
        if not plain.start(shared.join, shared.upstream.has_traces):
            return False
        self._requests.append(request)
        return True

    @contextlib.contextmanager
    def _timed(self, call: Call) -> Iterator[None]:
        """Count the time of a part of the client's request against its request_percentage. A client over this quota
        waits after the answer."""
        client, quotas = self.client, self._quotas
        if quotas is None or not quotas.measures_work:
            yield
            return
        started_s = time.perf_counter()
        yield
        spent_s = time.perf_counter() - started_s
        wait_ms = quotas.worked_ms(client.principal.name, client.client_id, spent_s)
        call.throttle_ms = max(call.throttle_ms, wait_ms)

    def _run_task(self, request: _Request, handle: Callable[..., Coroutine[Any, Any, None]], *values: Any) -> None:
        """Run the handler of a request in a task, unless the connection has ended."""
        if self._transport is None or self._closing_since >= 0:
            return
        request.task = asyncio.get_running_loop().create_task(handle(request, *values))

    async def _handle_first(
        self, request: _Request, call: Call, header: RequestHeader, frame: bytes, is_long: bool
    ) -> None:
        """Handle a request whose type's codecs are not compiled yet: a thread compiles them, which takes up to 0.3
        seconds. A broker without Kafka's clients compiles none."""
        shared, api = self._shared, call.api
        await self._on_thread(prepare, [api])
        shared.prepared.add(api)
        fast, handler = shared.fast.get(api), None
        if fast is not None and not is_long:
            try:
                fast(call, header, frame, functools.partial(self._answered, request))
                return
            except LongRequestError as error:
                handler, is_long = error.handler, True
            except WireError as error:
                self._refuse(str(error))
                return
        await self._handle(request, call, header, frame, is_long, handler)

    async def _handle_token(self, request: _Request, token: bytes) -> None:
        """Handle a frame of an exchange that SaslHandshake version 0 began: the mechanism's bytes without a header. The
        broker's answer to such a frame has no header either, and the broker does not answer a failed exchange."""
        try:
            data, _ = await step(self.client, token)
        except HeadraceError as error:
            await self._fail_authentication(error)
            self.end()
            return
        self._answered(request, (len(data).to_bytes(LENGTH_BYTES, "big") + data,))

    async def _fail_authentication(self, error: HeadraceError) -> None:
        """Report a failed authentication, and wait before its answer, so that guessing takes time."""
        client, audit = self.client, self._shared.audit
        self._shared.log("authentication of %s failed: %s", client.host, str(error)[:200])
        self._shared.failed_authentications += 1
        if audit is not None and client.authentication is not None:
            audit.login_refused(client.host, client.client_id, client.listener, client.authentication.mechanism, error)
        await asyncio.sleep(self._security.failure_delay_ms / 1_000)

    def _authenticated(self) -> None:
        """Called when the client has authenticated."""
        self.is_authenticated = True
        self._shared.entrance.leave(self)
        before, self._budget = self._budget, self._shared.budget
        if before is not self._budget:
            self._budget.used += self._held
            before.finished(self)
            before.release(self._held)
            self._set_reading()

    def wait(self) -> None:
        """Read nothing from the client until ``admitted``."""
        self._is_waiting = True
        self._set_reading()

    def admitted(self) -> None:
        """Let the client authenticate."""
        self._is_waiting = False
        self._admitted = self._received = self._shared.entrance.round
        self._set_reading()

    def authenticates_slowly(self, now: int) -> bool:
        """Whether a client that authenticates must give its place to a waiting client; ``now``: the entrance's
        round."""
        is_silent = not self._requests and now - self._received >= SILENT_ROUNDS
        return is_silent or now - self._admitted >= CROWDED_ROUNDS

    def mute(self, throttle_ms: int) -> None:
        """Start no further request for ``throttle_ms``, because the client is over its quota."""
        if throttle_ms <= 0 or self._transport is None:
            return
        loop = asyncio.get_running_loop()
        self._muted_until = max(self._muted_until, loop.time() + throttle_ms / 1_000)
        if not self._is_muted:
            self._is_muted = True
            loop.call_at(self._muted_until, self._unmute)
            self._set_reading()

    def hold(self, is_held: bool) -> None:
        """Start no further request while ``is_held``, because flow control holds the client's requests."""
        self._is_held = is_held
        if self._transport is None or self._closing_since >= 0:
            return
        if is_held:
            self._set_reading()
        else:
            self._active = self._shared.now
            self._start()

    def _unmute(self) -> None:
        loop = asyncio.get_running_loop()
        if self._transport is not None and loop.time() < self._muted_until:
            loop.call_at(self._muted_until, self._unmute)
            return
        self._is_muted = False
        if self._transport is not None and self._closing_since < 0:
            self._active = self._shared.now
            self._start()

    async def _handle(
        self,
        request: _Request,
        call: Call,
        header: RequestHeader,
        frame: bytes,
        is_long: bool,
        handler: Handler | None = None,
    ) -> None:
        """Handle a request in a task; ``handler``: in place of the one for its type."""
        api, version, shared = call.api, call.version, self._shared
        try:
            read = request_body(api, version).read
            with self._timed(call):
                message = await self._on_thread(read, frame, header.body) if is_long else read(frame, header.body)
            del frame
            fast = shared.fast.get(api)
            if fast is not None and handler is None:
                call.message = message
                fast(call, header, b"", functools.partial(self._answered, request))
                return
            try:
                fields = await (handler or shared.handlers[api])(call, message)
            except HeadraceError as error:
                shared.calls.failed(title(api), error.code)
                fields = failed(call, error)
            del message
            out = None
            if fields is not None:
                if call.throttle_ms and has_response_field(api, version, "throttle_time"):
                    fields["throttle_time"] = call.throttle_ms
                out = response_start(api, version, header.correlation_id)
                write = response_body(api, version).write
                if is_long or count_items(fields) > LONG_ITEMS:
                    await self._on_thread(write, fields, out)
                else:
                    with self._timed(call):
                        write(fields, out)
                finish(out)
        except WireError as error:
            self._refuse(str(error))
            return
        except Exception as error:
            logger.exception(
                "%s version %d with correlation id %d failed unexpectedly; the broker closes the connection to %s",
                title(api),
                version,
                header.correlation_id,
                self.client.host,
                extra=log_fields(error),
            )
            self.end()
            return
        authentication = self.client.authentication
        if authentication is not None and authentication.state is State.FAILED:
            await self._fail_authentication(login_error(fields or {}))
            self._closing_since = self._shared.now  # the connection takes no further request
            self._answered(request, None if out is None else (out,))
            asyncio.get_running_loop().call_later(REFUSED_S, self.end)
            return
        self.mute(call.throttle_ms)
        self._answered(request, None if out is None else (out,))

    async def _on_thread(self, work: Callable[..., Any], *values: Any) -> Any:
        """Decode or encode a long message on the thread, after all earlier long messages. Raises CancelledError when
        the broker ends."""
        if self._shared.has_ended:
            raise asyncio.CancelledError
        return await asyncio.get_running_loop().run_in_executor(self._shared.long_messages, work, *values)

    def _answered(self, request: _Request, parts: AnswerParts | None) -> None:
        """Store the answer of a request, and write all answers that are next in the order of the requests. ``parts``
        are a whole frame."""
        request.answer = parts
        request.is_done = True
        request.task = None
        if request.started_s:
            self._shared.calls.of(title(request.api)).observe(time.perf_counter() - request.started_s)
        transport, requests = self._transport, self._requests
        if transport is None:
            return
        while requests and requests[0].is_done:
            done = requests.popleft()
            self._held -= done.size
            self._budget.release(done.size)
            if done.answer is not None and not transport.is_closing():
                if len(done.answer) == 1:
                    self._shared.bytes_out += len(done.answer[0])
                    transport.write(done.answer[0])
                else:
                    self._shared.bytes_out += sum(map(len, done.answer))
                    transport.writelines(done.answer)
        self._count_unread()
        self._active = self._shared.now
        if (self._is_draining or (self._is_ending and not self._frames and not self._has_more)) and not requests:
            self.end()
        elif self._frames or self._has_more:
            self._start()
        elif not self._is_reading:
            self._set_reading()

    # -- the end ------------------------------------------------------------------------------------------------------

    def check(self, now: int, idle: int | None) -> None:
        """Close the connection if it is idle or stalled, has not authenticated in time, or has authenticated with a
        token that was removed or has expired. ``now``: seconds; ``idle``: limit in seconds, None: none."""
        transport, budget = self._transport, self._budget
        if transport is None:
            return
        size = self._count_unread()
        if self._closing_since >= 0:
            if now - self._closing_since >= CLOSING_S:
                transport.abort()
        elif not self.is_authenticated and now - self._since >= AUTHENTICATES_S:
            self._shared.log("%s did not authenticate within %d s; closed", self.client.host, AUTHENTICATES_S)
            transport.abort()
        elif self.client.authentication is not None and self.client.authentication.is_revoked:
            self._shared.log("the delegation token of %s has been removed or has expired; closed", self.client.host)
            transport.abort()
        elif self._is_stalled:
            if self._shared.answers.is_short and self._reads_slowly(now, size):
                self._shared.log("%s reads its answers too slowly while memory is short; closed", self.client.host)
                transport.abort()
            elif size < self._stalled_size:
                self._stalled_size, self._stalled_since = size, now
            elif now - self._stalled_since >= STALLED_WRITE_S:
                self._shared.log("%s does not read its answers; the connection is closed", self.client.host)
                transport.abort()
        elif self._is_ending and now - self._active >= FINISH_S:
            transport.abort()  # the broker does not accept the client's acks=0 requests
        elif self._buffer and self._is_reading and budget.is_short and self._is_slow(now):
            self._shared.log("%s sends a request too slowly while memory is short; closed", self.client.host)
            transport.abort()
        elif not (self._is_reading or self.client.sends_silently) and self._requests and self._has_peer_ended():
            transport.abort()  # the client's end follows bytes that the broker does not read now
        elif idle is not None and not self._requests and now - self._active >= idle:
            self.end()

    def _reads_slowly(self, now: int, size: int) -> bool:
        """Whether the client reads its answers too slowly; ``size``: bytes of answers that the client has still not
        read since it stalled."""
        seconds = now - self._paused_since
        return seconds >= STALLED_READ_S and self._paused_size - size < seconds * ANSWER_BYTES_PER_S_MIN

    def _has_peer_ended(self) -> bool:
        """Whether the TCP state shows that the client has closed the connection (Linux only)."""
        assert self._transport is not None
        connected = self._transport.get_extra_info("socket")
        if connected is None or not hasattr(socket, "TCP_INFO"):
            return False
        return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ENDED_BY_PEER

    def _is_slow(self, now: int) -> bool:
        """Whether the client sends an unfinished frame so slowly that other clients wait for memory."""
        if now - self._active >= STALLED_READ_S:
            return True
        size = int.from_bytes(self._buffer[:4], "big")
        allowed_s = STALLED_READ_S + size // BYTES_PER_S_MIN
        return self._budget.ahead is self and now - self._frame_since >= allowed_s

    def drain(self) -> None:
        """Start no more requests, and close the connection after the answers to the requests in progress."""
        self._is_draining = True
        if not self._requests:
            self.end()

    def _count_unread(self) -> int:
        """Add this connection's unread answer bytes to the count of all connections, and return this connection's
        bytes."""
        size = self._unsent()
        if size != self._unread:
            self._shared.answers.unread += size - self._unread
            self._unread = size
        return size

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _refuse(self, what: str) -> None:
        """End the connection because its client has sent bytes that are not a valid request."""
        self._shared.log("%s sent no legal request (%s); the connection is closed", self.client.host, what[:200])
        self.end()

    def end(self, *, at_once: bool = False) -> None:
        """Close the connection. Requests in progress are cancelled. Answers that are already written still reach the
        client, unless ``at_once`` is True."""
        transport = self._transport
        if transport is None:
            return
        if self._closing_since < 0:
            self._closing_since = self._shared.now
        if at_once:
            transport.abort()
        else:
            transport.close()
