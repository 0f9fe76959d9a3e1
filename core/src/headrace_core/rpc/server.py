"""A listener: one gRPC server on one port, with health checking and reflection, errors mapped, a clean stop.

What is clean about it. gRPC's own stop says good-bye (GOAWAY) at once and closes a connection as soon as its last call
has ended. A client that is still sending then has its connection reset, for there are bytes that nobody will read, and
a reset takes what the client has not read yet: the status that says why its call was ended. So ``stop`` waits for the
calls first. Their statuses are on their way then, and the good-bye, which gRPC sends with a ping, comes behind them:
the ping's answer, upon which the connection is closed, says that the client has read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..errors import HeadraceError, InvalidRequestError, UnknownServerError
from .channel import COMMON_OPTIONS, UNMEASURED_OPTIONS
from .status import status_of

logger = logging.getLogger(__name__)


class CallsUnderWay:
    """How many calls of our own handlers have not sent their status yet."""

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
        """Until there are none, or ``within_s`` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over.wait()


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Turns a HeadraceError that leaves a handler into its status; anything else is logged: UNKNOWN_SERVER_ERROR."""

    def __init__(self, calls: CallsUnderWay) -> None:
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if handler is None:
            return handler
        method, calls = details.method, self._calls
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _guard(handler.stream_stream, method, calls), handler.request_deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guard(handler.unary_stream, method, calls), _tolerant(handler), handler.response_serializer
            )
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                _guard(handler.stream_unary, method, calls), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard(handler.unary_unary, method, calls), _tolerant(handler), handler.response_serializer
        )


class _Undecodable:
    """Stands for a request that is no valid message: gRPC itself would answer UNKNOWN, and log a stack trace."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


def _tolerant(handler: grpc.RpcMethodHandler) -> Callable[[bytes], Any]:
    deserialize = handler.request_deserializer

    def tolerant(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Undecodable(error)

    return tolerant


def _guard(behaviour: Any, method: str, calls: CallsUnderWay) -> Any:
    """``behaviour`` counted, and with errors mapped. Our own handlers of streams never ``yield`` (see streams.py)."""
    if inspect.isasyncgenfunction(behaviour):  # health and reflection come from libraries, which yield
        return behaviour
    if not inspect.iscoroutinefunction(behaviour):
        return behaviour

    async def mapped(request: Any, context: Any) -> Any:
        failure: HeadraceError
        try:
            if isinstance(request, _Undecodable):
                raise InvalidRequestError(f"{method}: the request is not a valid protobuf message: {request.error}")
            return await behaviour(request, context)
        except HeadraceError as error:
            failure = error
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            logger.exception("%s failed", method)
            failure = UnknownServerError(f"{method}: {type(error).__name__}: {error}")
        status, text, metadata = status_of(failure)
        return await context.abort(status, text, metadata)

    async def guarded(request: Any, context: Any) -> Any:
        with calls:
            return await mapped(request, context)

    return guarded


class Listener:
    """One port. ``add(registrar, servicer)`` before ``start``; ``serving`` flips the health answer.

    ``registrar`` is a generated ``add_XServicer_to_server``; service names for reflection are read from the servers'
    own tables, so that nothing has to be listed twice.
    """

    def __init__(self, name: str, host: str = "127.0.0.1", port: int = 0, *, takes_bulk: bool = True) -> None:
        """``takes_bulk``: False when those who call here send little; see ``UNMEASURED_OPTIONS``."""
        self.name = name
        self.host = host
        self.port = port
        self._takes_bulk = takes_bulk
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
        """Bind and serve; returns the port. OSError when the address cannot be bound."""
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor(self._calls)],
            options=[
                *COMMON_OPTIONS,
                *(() if self._takes_bulk else UNMEASURED_OPTIONS),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ],
        )
        for registrar, servicer, full_name in self._registrations:
            registrar(servicer, server)
            self._services.append(full_name)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        await self.serving(False)
        try:
            bound = server.add_insecure_port(f"{self.host}:{self.port}")
        except RuntimeError as error:
            raise OSError(f"{self.name} listener cannot bind {self.host}:{self.port}: {error}") from None
        if bound == 0:
            raise OSError(f"{self.name} listener cannot bind {self.host}:{self.port}: the address is in use")
        self.port = int(bound)
        await server.start()
        self._server = server
        return self.port

    async def serving(self, yes: bool) -> None:
        """What health checks answer, for the whole server ("") and for each service."""
        state = health_pb2.HealthCheckResponse.SERVING if yes else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, state)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Let calls under way end within ``grace_s``; then take no new ones and have clients read, within ``grace_s``,
        what they were told. What is not over then is cut. ``grace_s`` 0: all is cut at once."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._calls.over(grace_s)
            await self._server.stop(grace_s)
            self._server = None

    def services(self) -> Iterable[str]:
        return tuple(self._services)
