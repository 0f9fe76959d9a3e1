"""A listener: one gRPC server on one port, with health checks, reflection, typed errors and a clean stop.

gRPC's stop sends GOAWAY at once and closes a connection as soon as its last call has ended. When gRPC closes the
connection of a client that is still sending, unread bytes reset the connection. A reset discards data that the client
has not read yet, such as the status with the reason. Before gRPC's stop begins, ``stop`` waits for the calls, so that
no connection is closed early. When a listener stops, the statuses of the ended calls are sent before the GOAWAY and its
ping. A stopping listener closes a connection after the client's response to the ping, which shows that the client has
read the statuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..connections import OVERRIDES, PER_IP, AddressCounts, AddressLimits
from ..errors import (
    HeadraceError,
    InvalidRequestError,
    ServerBusyError,
    ServerShuttingDownError,
)
from ..metrics.calls import CallTimes
from ..security.acl_types import host_of
from ..tracing.context import parse_traceparent, traceparent_in
from ..unexpected import answer_to, log_fields
from .both import BothProtocols
from .channel import COMMON_OPTIONS, MAX_MESSAGE_BYTES, UNMEASURED_OPTIONS
from .receiving import Penalties, arrivals_of
from .responses import RESPONSE_BYTES_MAX
from .status import status_of

if TYPE_CHECKING:
    from ..security.gate import Gate

logger = logging.getLogger(__name__)

#: Maximum bytes of single requests (of calls without a request stream) in progress on one listener; see RequestBytes.
UNARY_BYTES_MAX = 64 * 1024 * 1024
SMALL_REQUEST_BYTES = 16 * 1024
#: Bytes by which a message may exceed its limit before gRPC refuses it, so that a small excess gets a typed error.
OVERHEAD_BYTES = 1024 * 1024
#: Maximum number of connections of one listener (max.connections), and of calls on one connection. Listeners for
#: clients have a low maximum of calls. If a client constantly begins and resets calls, gRPC passes only the maximum
#: number of concurrent calls of a connection to Python, and refuses all further calls. With a maximum of 100 calls,
#: Python got 800 calls in a second, which cost a broker 0.14 cores. With a maximum of 32, Python got 300 calls, which
#: cost 0.05 cores.
CONNECTIONS_MAX = 10_000
STREAMS_PER_CONNECTION_MAX = 1_000
STREAMS_PER_CLIENT_CONNECTION_MAX = 32
#: Maximum number of health watches of one listener. Watches need no authentication, and last as long as the client
#: wants. (A health check that is no watch ends at once.)
HEALTH_WATCHES_MAX = 1_000
_HEALTH_CHECK, _HEALTH_WATCH = f"/{health.SERVICE_NAME}/Check", f"/{health.SERVICE_NAME}/Watch"
CLEAN_UP_S = 1.0  #: Seconds that the stop of a listener waits for the clean-up of cancelled handlers.
#: Limits of the bytes of a call's headers: gRPC may refuse headers above the first limit, and always refuses headers
#: above the second.
HEADER_BYTES_MAX, HEADER_BYTES_REFUSED = 8 * 1024, 16 * 1024


class CallsUnderWay:
    """Counts calls of Headrace's handlers that have not sent their status yet."""

    def __init__(self) -> None:
        self._count = 0
        self._over = asyncio.Event()
        self._over.set()

    def __enter__(self) -> None:
        self._count += 1
        self._over.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._over.set()

    async def over(self, within_s: float) -> None:
        """Wait until no call is in progress, at most ``within_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over.wait()


class RequestBytes:
    """Bytes of single requests (of calls without a request stream) in progress on a listener, over all connections. A
    stream's requests are counted where the stream is handled. Calls with a response stream have a separate budget,
    because a call with a stream lasts as long as the client wants."""

    def __init__(self, most: int = UNARY_BYTES_MAX) -> None:
        self._most = most
        self.used = 0

    @contextlib.contextmanager
    def held(self, size: int, method: str) -> Iterator[None]:
        """Reserve ``size`` bytes of the budget while the context is open. Raises ServerBusyError when too many bytes
        are in progress; small requests are always accepted."""
        if size > SMALL_REQUEST_BYTES and self.used + size > self._most:
            raise ServerBusyError(
                f"{method}: requests of {self.used} bytes are in progress, at most {self._most} are accepted; retry"
            )
        self.used += size
        try:
            yield
        finally:
            self.used -= size


class AnswerBytes:
    """Bytes of single answers (of calls without a response stream) that their clients have not read yet. A stream
    counts its answers itself (streams.py). Answers up to ``SMALL_REQUEST_BYTES`` are not counted, because the limits of
    connections and calls bound them."""

    def __init__(self, most: int = UNARY_BYTES_MAX, most_of_connection: int = RESPONSE_BYTES_MAX) -> None:
        self._most, self._most_of_connection = most, most_of_connection
        self._of_connection: Counter[str] = Counter()
        self.used = 0

    def check(self, context: Any, method: str, size: int = 1) -> None:
        """Check that the client may get ``size`` more bytes. Raises ServerBusyError if its connection, or all
        connections together, leave too many answers unread. A connection without unread answers is always served, so
        connections that read nothing cannot block other connections."""
        of_connection = self._of_connection.get(context.peer(), 0)
        for used, most, whose in (
            (of_connection, self._most_of_connection, "this connection"),
            (self.used, self._most, "all connections"),
        ):
            if of_connection and used + size > most:
                raise ServerBusyError(
                    f"{method}: {used} bytes of responses on {whose} are unread, and {size} more would exceed the "
                    f"limit of {most}; read the responses, then retry"
                )

    def hold(self, size: int, context: Any, method: str) -> None:
        """Count the answer of the current task's call until the client has read the answer or the call has ended; gRPC
        then ends the task. Raises ServerBusyError like ``check``."""
        if size <= SMALL_REQUEST_BYTES:
            return
        self.check(context, method, size)
        peer = context.peer()
        self._add(peer, size)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._add(peer, -size))

    def _add(self, peer: str, size: int) -> None:
        self.used += size
        self._of_connection[peer] += size
        if not self._of_connection[peer]:
            del self._of_connection[peer]


class BusyConnections:
    """The connections with a call in progress, limited for each address. gRPC accepts connections before Headrace's
    code runs, so a connection counts from its first call in progress to the end of its last."""

    def __init__(self, limits: AddressLimits) -> None:
        self._limits = limits
        self._addresses = AddressCounts(limits)
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """Count a call of the connection ``peer`` while the context is open. Raises ServerBusyError if the connection
        would be above the limit of its address."""
        host = host_of(peer)
        if host and not self._calls[peer] and not self._addresses.begin(host):
            del self._calls[peer]
            raise ServerBusyError(
                f"{host} has {self._limits.most(host)} connections with calls in progress, which is its limit "
                f"({PER_IP} or {OVERRIDES}); close some of its clients, or raise the limit"
            )
        self._calls[peer] += 1
        try:
            yield
        finally:
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]
                if host:
                    self._addresses.end(host)


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Converts a handler's HeadraceError to a gRPC status. An exception other than HeadraceError is logged and becomes
    UNKNOWN_SERVER_ERROR."""

    def __init__(
        self,
        calls: CallsUnderWay,
        requests: RequestBytes,
        watches: RequestBytes,
        answers: AnswerBytes,
        times: CallTimes,
        gate: Gate | None = None,
        addresses: AddressLimits | None = None,
    ) -> None:
        self._busy = BusyConnections(addresses) if addresses is not None and addresses.are_set else None
        self._gate = None if gate is None or gate.is_open else gate
        self._calls = calls
        self._penalties = Penalties()
        self._requests, self._watches, self._answers = requests, watches, answers
        self._times = times
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = self._handlers.get(details.method)
        if handler is None:
            handler = await continuation(details)
            if handler is not None:  # cache only methods that are served: their number is small
                handler = self._handlers[details.method] = self._guarded(handler, details.method)
        return handler

    def _guarded(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        behaviour = next(
            each
            for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if each is not None
        )
        gate = self._gate
        # The handlers of health and reflection come from libraries: they may be generators, and are not wrapped.
        if not inspect.iscoroutinefunction(behaviour):
            if gate is None or not inspect.isasyncgenfunction(behaviour):
                return handler
            return grpc.stream_stream_rpc_method_handler(
                _gated_generator(behaviour, gate, method), handler.request_deserializer, handler.response_serializer
            )
        if gate is not None:
            behaviour = gate.guarded(behaviour, method, has_request=not handler.request_streaming)
        if method == _HEALTH_WATCH:
            behaviour = _at_once(behaviour, method, HEALTH_WATCHES_MAX)
        # Serve every call as a stream of requests, so that the read of a single request can be delayed after refused
        # requests.
        parse, serialize = arrivals_of(handler, method, self._penalties), handler.response_serializer
        budget = self._watches if handler.response_streaming else self._requests
        requests = None if handler.request_streaming else budget
        if handler.response_streaming:
            guarded = _guard(behaviour, method, self._calls, self._penalties, requests, self._times, gate=gate)
            guarded = guarded if self._busy is None else _counted(guarded, method, self._busy)
            return grpc.stream_stream_rpc_method_handler(guarded, parse, serialize)

        async def answered(request: Any, context: Any) -> bytes:
            self._answers.check(context, method)  # check the size of unread answers before the call has an effect
            data: bytes = serialize(await behaviour(request, context))
            self._answers.hold(len(data), context, method)
            return data

        guarded = _guard(
            answered, method, self._calls, self._penalties, requests, self._times, is_timed=True, gate=gate
        )
        guarded = guarded if self._busy is None else _counted(guarded, method, self._busy)
        return grpc.stream_unary_rpc_method_handler(guarded, parse, None)


def _counted(guarded: Any, method: str, busy: BusyConnections) -> Any:
    """Wrap a guarded handler: count the connections of each address. Health checks are always answered."""
    if method in (_HEALTH_CHECK, _HEALTH_WATCH):
        return guarded

    async def counted(request: Any, context: Any) -> Any:
        try:
            with busy.call(context.peer()):
                return await guarded(request, context)
        except ServerBusyError as error:  # of ``busy``: the guarded handler raises no HeadraceError
            status, text, metadata = status_of(error)
            return await context.abort(status, text, metadata)

    return counted


def _guard(
    behaviour: Any,
    method: str,
    calls: CallsUnderWay,
    penalties: Penalties,
    requests: RequestBytes | None,
    times: CallTimes,
    *,
    is_timed: bool = False,
    gate: Gate | None = None,
) -> Any:
    """Wrap a handler: count its calls, and convert its errors. ``requests``: the budget to which the call's single
    request is charged; None if the handler reads a stream of requests (streams.py).
    ``is_timed``: whether the metrics get the time of each call. ``gate`` refuses callers before their requests are
    read."""
    name = method.rpartition("/")[2]

    async def single(arrival: Any, context: Any) -> Any:
        if arrival is grpc.aio.EOF:
            await asyncio.sleep(0)  # a cancelled call also reads EOF; let its cancellation arrive first
            raise InvalidRequestError(f"{method}: the client ended the call without a request")
        if arrival.error is not None:
            await arrival.punish(context)
            raise arrival.error
        assert requests is not None
        with requests.held(arrival.size, method):
            return await behaviour(arrival.message, context)

    async def mapped(request: Any, context: Any) -> Any:
        failure: HeadraceError
        try:
            return await (behaviour if requests is None else single)(request, context)
        except HeadraceError as error:
            failure = error
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            traced = parse_traceparent(traceparent_in(context.invocation_metadata()))
            logger.exception("%s failed", method, extra=log_fields(error, traced))
            failure = answer_to(error, method)
        times.failed(name, failure.code)
        status, text, metadata = status_of(failure)
        return await context.abort(status, text, metadata)

    async def guarded(request: Any, context: Any) -> Any:
        await penalties.over(context)
        if gate is not None:
            try:
                gate.admit(method, context)
            except HeadraceError as error:
                times.failed(name, error.code)
                status, text, metadata = status_of(error)
                return await context.abort(status, text, metadata)
        if requests is not None:
            request = await context.read()
        with calls:
            if not is_timed:
                return await mapped(request, context)
            started_s = time.perf_counter()
            try:
                return await mapped(request, context)
            finally:
                times.of(name).observe(time.perf_counter() - started_s)

    return guarded


def _at_once(behaviour: Any, method: str, most: int) -> Any:
    """Wrap a handler: refuse calls above ``most`` at a time with ServerBusyError."""
    count = 0

    async def limited(request: Any, context: Any) -> Any:
        nonlocal count
        if count >= most:
            raise ServerBusyError(f"{method}: {count} calls are in progress at this listener; retry")
        count += 1
        try:
            return await behaviour(request, context)
        finally:
            count -= 1

    return limited


def _gated_generator(behaviour: Any, gate: Gate, method: str) -> Any:
    """Wrap a handler that is an asynchronous generator: the gate admits its callers."""

    async def gated(requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            gate.admit(method, context)
        except HeadraceError as error:
            status, text, metadata = status_of(error)
            await context.abort(status, text, metadata)
        async for response in behaviour(requests, context):
            yield response

    return gated


class Listener:
    """A gRPC server on one port. Call ``add(registrar, servicer)`` before ``start``; ``serving`` sets the health
    status.

    ``registrar`` is a generated ``add_XServicer_to_server`` function.
    """

    def __init__(
        self,
        name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        takes_bulk: bool = True,
        message_bytes_max: int = MAX_MESSAGE_BYTES,
        connections_max: int = CONNECTIONS_MAX,
        streams_max: int = STREAMS_PER_CONNECTION_MAX,
        credentials: grpc.ServerCredentials | None = None,
        takes_plaintext: bool = False,
        gate: Gate | None = None,
        addresses: AddressLimits | None = None,
    ) -> None:
        """``takes_bulk``: False when callers send little data; see ``UNMEASURED_OPTIONS``. ``message_bytes_max``: a
        larger message is refused by its announced length, before it is received. ``connections_max``: limit of
        connections; further connections are closed when accepted. ``streams_max``: limit of calls on one connection; a
        gRPC client delays further calls until an earlier call ends. ``credentials``: keys and certificates of an
        encrypted port; None: unencrypted. ``takes_plaintext``: take unencrypted connections in addition to encrypted
        connections. ``gate``: the check of callers; None: every caller may call everything. ``addresses``: the limits
        of connections of one address."""
        self.name = name
        self.host = host
        self.port = port
        self._takes_bulk = takes_bulk
        self._message_bytes_max = message_bytes_max
        self._connections_max = connections_max
        self._streams_max = streams_max
        self._credentials = credentials
        self._both = BothProtocols() if takes_plaintext and credentials is not None else None
        self._gate = gate
        self._addresses = addresses
        #: Bytes of the single requests in progress: of calls with a single response, and of calls with a response
        #: stream.
        self.requests, self.watches = RequestBytes(), RequestBytes()
        self.calls = CallTimes(name)  #: Times and errors of calls, for the metrics.
        #: Bytes of single answers (of calls without a response stream) that clients have not read yet.
        self.answers = AnswerBytes()
        self._services: list[str] = []
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._calls = CallsUnderWay()
        self._registrations: list[tuple[Callable[[Any, grpc.aio.Server], None], Any, str]] = []

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def add(self, registrar: Callable[[Any, grpc.aio.Server], None], servicer: Any, full_name: str) -> None:
        """Serve ``servicer``; ``full_name`` such as "headrace.v1.Produce"."""
        self._registrations.append((registrar, servicer, full_name))

    async def start(self) -> int:
        """Bind and serve; returns the port. Raises OSError when the address cannot be bound."""
        server = grpc.aio.server(
            interceptors=[
                ErrorInterceptor(
                    self._calls, self.requests, self.watches, self.answers, self.calls, self._gate, self._addresses
                )
            ],
            options=[
                *(option for option in COMMON_OPTIONS if option[0] != "grpc.max_receive_message_length"),
                ("grpc.max_receive_message_length", self._message_bytes_max),
                # Accept only uncompressed messages; a compressed message is refused unread (UNIMPLEMENTED). A
                # compressed message of 94 KiB could become 95 MiB, and record batches have their own compression.
                ("grpc.compression_enabled_algorithms_bitset", 1),
                ("grpc.max_allowed_incoming_connections", self._connections_max),
                ("grpc.max_concurrent_streams", self._streams_max),
                ("grpc.max_metadata_size", HEADER_BYTES_MAX),
                ("grpc.absolute_max_metadata_size", HEADER_BYTES_REFUSED),
                *(() if self._takes_bulk else UNMEASURED_OPTIONS),
                # Let gRPC also ping client connections without calls. gRPC's poller misses a reset that arrives
                # together with data, and only a later write detects the reset. A machine that failed sends no TCP reset
                # at all. Without pings, a dead client connection would keep its descriptor.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ],
        )
        sessions = None if self._gate is None else self._gate.sessions
        if sessions is not None:
            sessions.register(self)
        for registrar, servicer, full_name in self._registrations:
            registrar(servicer, server)
            self._services.append(full_name)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        await self.serving(False)
        try:
            where = f"{self.host}:{self.port}"
            if self._both is not None and self._credentials is not None:
                self._both.add_ports(server, self._credentials)
                bound = await self._both.start(self.host, self.port)
            elif self._credentials is None:
                bound = server.add_insecure_port(where)
            else:
                bound = server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise OSError(f"{self.name} listener cannot bind {self.host}:{self.port}: {error}") from None
        if bound == 0:
            raise OSError(f"{self.name} listener cannot bind {self.host}:{self.port}: the address is in use")
        self.port = int(bound)
        await server.start()
        if sessions is not None:
            sessions.start()
        self._server = server
        return self.port

    async def serving(self, yes: bool) -> None:
        """Set the health status, for the whole server ("") and for each service."""
        state = health_pb2.HealthCheckResponse.SERVING if yes else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, state)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Let calls in progress end within ``grace_s``; then refuse new calls and let clients read the statuses within
        ``grace_s``; then cancel the remaining calls. With ``grace_s`` 0, cancel all calls at once. Cancelled handlers
        have ended when ``stop`` returns, unless their clean-up takes longer than ``CLEAN_UP_S``."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            if self._gate is not None and self._gate.sessions is not None:
                self._gate.sessions.close(ServerShuttingDownError("the server is shutting down; connect again"))
            await self._calls.over(grace_s)
            await self._server.stop(grace_s)
            if self._both is not None:
                self._both.stop()
            await self._calls.over(CLEAN_UP_S)  # gRPC cancels handlers without waiting for their clean-up
            self._server = None

    def services(self) -> Iterable[str]:
        return tuple(self._services)
