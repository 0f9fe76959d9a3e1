"""Writes on any replica: the writer (the elected replica) carries out each write, and the other replicas forward their
writes to the writer over HTTP.

The header ``X-Forward`` marks a forwarded request. A replica that receives a marked request and is not the writer does
not forward the request again, and answers error 50004. If the writer cannot be reached, or answers 50004, or answers
503 because it is stopping, the write had no effect. The forwarding replica then waits for another writer, and forwards
the write again.

The writer's answer names the offset of ``_schemas`` that the writer has applied. The forwarding replica waits until it
has applied the records up to this offset too, so that a client reads its own write.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    TCPConnector,
    web,
)
from yarl import URL

from headrace.errors import HeadraceError, RecordTooLargeError
from headrace_core.security.tls import TlsSource

from ..registry import WriteTimeoutError
from ..state import Decision, Image, errors
from ..state.records import dump
from ..writes import NotWriterError
from .http import response

if TYPE_CHECKING:
    from ..registry import Registry

logger = logging.getLogger("headrace.registry")

T = TypeVar("T")

FORWARD_HEADER = "X-Forward"
OFFSET_HEADER = "X-Headrace-Offset"
#: Headers of a client's request that a replica copies into the request that it forwards to the writer.
_PASSED = ("Accept", "Content-Type", "Authorization")
#: Seconds that a forwarded request may take beyond the writer's own time limit of a write.
EXTRA_S = 1.0
CONNECT_S = 1.0
#: Maximum number of times that a replica forwards one request, each time to a different writer.
FORWARDS_MAX = 3
#: Error code with which a replica refuses a forwarded request because it is not the writer.
NO_WRITER = 50004
#: HTTP status and error code of the answers that show that the answering replica has not written.
_NOT_WRITTEN = ((500, NO_WRITER), (503, 503))
#: Maximum number of connections from a replica to the writer.
CONNECTIONS_MAX = 100
#: Maximum bytes of an answer of the writer. The longest answer is an error that lists incompatibilities.
ANSWER_BYTES_MAX = 1 << 20
#: Maximum seconds that a forwarded answer waits until this replica has applied the write, and seconds between two
#: checks.
SEEN_S, LOOK_S = 1.0, 0.002


@dataclass(frozen=True, slots=True)
class Operation:
    """Confluent's messages for a write that the registry could not carry out."""

    not_forwarded: str
    no_writer: str
    not_stored: str
    timed_out: str


REGISTER = Operation(
    "Error while forwarding register schema request to the leader",
    "Leader not known.",
    "Register schema operation failed while writing to the Kafka store",
    "Register operation timed out",
)
DELETE_VERSION = Operation(
    "Error while forwarding delete schema version request to the leader",
    "Leader not known.",
    "Delete Schema Version operation failed while writing to the Kafka store",
    "Delete Schema Version operation timed out",
)
DELETE_SUBJECT = Operation(
    "Error while forwarding delete subject request to the leader",
    "Leader not known.",
    "Delete subject operation failed while writing to the Kafka store",
    "Delete subject operation timed out",
)
SET_CONFIG = Operation(
    "Error while forwarding update config request to the leader",
    "Failed to update compatibility level",
    "Failed to update compatibility level",
    "Update config operation timed out",
)
DELETE_CONFIG = Operation(
    "Error while forwarding delete config request to the leader",
    "Failed to delete compatibility level",
    "Failed to delete compatibility level",
    "Delete config operation timed out",
)
SET_MODE = Operation(
    "Error while forwarding update mode request to the leader",
    "Failed to update mode",
    "Failed to update mode",
    "Update mode operation timed out",
)
DELETE_MODE = Operation(
    "Error while forwarding delete mode request to the leader",
    "Failed to delete mode",
    "Failed to delete mode",
    "Delete mode operation timed out",
)


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """The outcome of a forwarded request. ``answer`` is None if the writer cannot be reached. ``is_final`` is False if
    the receiver has certainly not written."""

    answer: web.Response | None
    is_final: bool


def _error_code(data: bytes) -> object:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None


class Writing:
    """Carries out writes. ``timeout_s``: the time limit of a write on the writer."""

    def __init__(self, registry: Registry, timeout_s: float, tls: TlsSource | None = None) -> None:
        """``tls``: this replica's keys and certificates, for connections to the writer."""
        self._registry = registry
        self._tls = tls
        self._timeout = ClientTimeout(total=timeout_s + EXTRA_S, sock_connect=CONNECT_S)
        self._session: ClientSession | None = None

    async def start(self) -> None:
        self._session = ClientSession(
            timeout=self._timeout,
            connector=TCPConnector(
                limit=CONNECTIONS_MAX, ssl=True if self._tls is None else self._tls.client_context()
            ),
            auto_decompress=False,
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def write(
        self,
        request: web.Request,
        body: bytes,
        operation: Operation,
        decide: Callable[[Image], Decision[T]],
        shape: Callable[[T], object],
    ) -> web.Response:
        """Carry out a write if this replica is the writer, and forward the request otherwise.

        ``shape`` turns the decision's answer into the JSON value of the response. Raises RegistryError.
        """
        for number in range(1, FORWARDS_MAX + 1):
            try:
                return await self._write(request, operation, decide, shape)
            except NotWriterError as error:
                if error.url is None or FORWARD_HEADER in request.headers:
                    logger.warning("write request %s %s is refused: %s", request.method, request.path, error)
                    raise errors.unknown_leader(operation.no_writer) from None
                found = await self._forward(error.url, request, body, operation)
                is_last = found.is_final or number == FORWARDS_MAX
                if is_last or not await self._registry.wait_for_other_writer(error.url):
                    break
        if found.answer is None:
            raise errors.forwarding_failed(operation.not_forwarded)
        return found.answer

    async def _write(
        self,
        request: web.Request,
        operation: Operation,
        decide: Callable[[Image], Decision[T]],
        shape: Callable[[T], object],
    ) -> web.Response:
        """Carry out a write on this replica. Raises NotWriterError, and the RegistryError of a write that fails."""
        try:
            answer = await self._registry.write(decide)
        except WriteTimeoutError as error:
            logger.warning("%s %s: %s", request.method, request.path, error)
            raise errors.operation_timeout(operation.timed_out) from None
        except RecordTooLargeError:
            raise errors.schema_too_large() from None
        except HeadraceError as error:
            logger.warning("%s %s: %s", request.method, request.path, error.message)
            raise errors.store_error(operation.not_stored) from None
        found = response(request, 200, dump(shape(answer)))
        found.headers[OFFSET_HEADER] = str(self._registry.image.offset)
        return found

    async def _forward(self, url: str, request: web.Request, body: bytes, operation: Operation) -> _Forwarded:
        """Forward a request to the writer at ``url``. Raises RegistryError 50003 if the outcome is unknown."""
        assert self._session is not None
        headers = {name: request.headers[name] for name in _PASSED if name in request.headers}
        headers[FORWARD_HEADER] = "true"
        try:
            # Unchanged: a quoted name such as %2E%2E must not become a part of the path.
            target = URL(url.rstrip("/") + str(request.rel_url), encoded=True)
            async with self._session.request(
                request.method, target, data=body, headers=headers, allow_redirects=False
            ) as received:
                data = bytearray()
                async for chunk in received.content.iter_any():
                    data += chunk
                    if len(data) > ANSWER_BYTES_MAX:
                        raise ClientError(f"the writer's answer has more than {ANSWER_BYTES_MAX} bytes")
                status, media_type = received.status, received.headers.get("Content-Type", "application/json")
                offset = received.headers.get(OFFSET_HEADER, "")
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            logger.warning(
                "request %s %s: cannot reach the writer of the registry, %s: %s",
                request.method,
                request.path,
                url,
                error,
            )
            return _Forwarded(None, is_final=False)
        except (ClientError, TimeoutError, OSError, ValueError) as error:
            logger.warning(
                "request %s %s: the writer of the registry, %s, did not answer: %r",
                request.method,
                request.path,
                url,
                error,
            )
            raise errors.forwarding_failed(operation.not_forwarded) from None
        if offset.isdecimal():
            await self._applied(int(offset))
        answer = web.Response(status=status, body=bytes(data), headers={"Content-Type": media_type})
        return _Forwarded(answer, is_final=(status, _error_code(bytes(data))) not in _NOT_WRITTEN)

    async def _applied(self, offset: int) -> None:
        """Wait, at most SEEN_S, until this replica has applied the records up to ``offset``. The write has already
        succeeded, so a timeout is no error."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SEEN_S
        while self._registry.image.offset < offset and loop.time() < end:  # noqa: ASYNC110 - an image has no event
            await asyncio.sleep(LOOK_S)
