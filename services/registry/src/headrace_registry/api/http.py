"""HTTP around the handlers: media types, bodies, errors as JSON, and limits on what one client or all clients may use.

Errors are ``{"error_code":N,"message":M}``, as Confluent's registry answers them. An error of HTTP itself has the HTTP
status as its code, and a message such as Jersey's ``HTTP 404 Not Found``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from headrace_core.connections import AddressLimits
from headrace_core.metrics.calls import CallTimes
from headrace_core.node.descriptors import connections_with_room
from headrace_core.node.http_bodies import coding_error, has_unread_body, invite
from headrace_core.node.http_connections import HttpConnections
from headrace_core.security.http import CHALLENGE, REFUSAL, HttpGuard
from headrace_core.unexpected import log_fields, request_id_of

from ..state import RegistryError
from ..state.records import dump

logger = logging.getLogger("headrace.registry")

#: Media types of answers, the preferred type first.
MEDIA_TYPES = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
)
#: Media types of requests; a request without the header Content-Type counts as application/octet-stream.
CONSUMED_TYPES = (*MEDIA_TYPES, "application/octet-stream")

_READS = ("GET", "HEAD")
#: Maximum number of connections of a registry; fewer if the process's limit of open files is too low.
CONNECTIONS_MAX = 2_000
#: Number of file descriptors reserved for the registry's own clients and for requests to the writer.
_CLIENTS_FILES = 256
#: Maximum bytes of a request body. The longest legal schema fits, even if every character of its text is escaped.
BODY_BYTES_MAX = 8 << 20
#: Maximum bytes of the bodies of all requests in progress together.
BODIES_BYTES_MAX = 64 << 20
#: Seconds within which a client must send the body of its request.
BODY_S = 15.0
#: Maximum number of requests in progress; the registry refuses further requests at once.
REQUESTS_MAX = 512
#: Maximum bytes of all answers that wait until their clients have read them.
ANSWERS_BYTES_MAX = 64 << 20
#: Seconds within which a client must read its answer.
ANSWER_S = 30.0
#: Maximum number of characters of the header Accept that the registry reads.
ACCEPT_MAX = 1024


class PlainError(RegistryError):
    """An error whose code is the HTTP status."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(status, status, message or f"HTTP {status} {_phrase(status)}")


@dataclass(frozen=True, slots=True)
class Raw:
    """The text of a schema as the whole answer, without JSON around the text."""

    text: str


Handler = Callable[[web.Request], Awaitable[object]]


def endpoint(handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Make an aiohttp handler of a handler that returns a value for JSON, a Raw text, or a whole response."""

    async def answer(request: web.Request) -> web.StreamResponse:
        found = await handler(request)
        if isinstance(found, web.StreamResponse):
            return found
        data = found.text.encode() if isinstance(found, Raw) else dump(found)
        return response(request, 200, data)

    return answer


def response(request: web.Request, status: int, data: bytes) -> web.Response:
    media_type = negotiated(request.headers.get("Accept")) or MEDIA_TYPES[0]
    return web.Response(status=status, body=data, headers={"Content-Type": media_type})


class Gate:
    """The middleware of all requests: limits, and errors as JSON.

    ``is_ready``: whether this replica may answer. ``catch_up``: returns whether the replica's state is current; after a
    suspension of the process, it first waits until the state is current. ``addresses``: the limits of connections of
    one address.
    """

    def __init__(
        self,
        is_ready: Callable[[], bool],
        catch_up: Callable[[], Awaitable[bool]],
        addresses: AddressLimits | None = None,
    ) -> None:
        self.connections = HttpConnections(connections_with_room(CONNECTIONS_MAX, _CLIENTS_FILES), logger, addresses)
        self._catch_up = catch_up
        self._is_ready = is_ready
        self._requests = 0
        self._body_bytes = 0
        self._answer_bytes = 0
        self.guard = HttpGuard()  #: Decides which requests are admitted.
        self.calls: CallTimes | None = None  #: Gets the times of requests, for the metrics.

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.connections.is_busy(request.protocol)
        self._requests += 1
        started_s = time.perf_counter()
        try:
            answer = await self._sent(request, await self._answer(request, handler))
            self._count(request, answer, time.perf_counter() - started_s)
            return answer
        finally:
            self._requests -= 1
            self.connections.is_idle(request.protocol, request.remote or "")

    def _count(self, request: web.Request, answer: web.StreamResponse, seconds: float) -> None:
        """Count a request by its route, which no client chooses, and an error by its status."""
        if self.calls is None:
            return
        resource = request.match_info.route.resource
        name = f"{request.method} {resource.canonical}" if resource is not None else "unknown"
        self.calls.of(name).observe(seconds)
        if answer.status >= 400:
            self.calls.failed(name, str(answer.status))

    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            self._check(request)
            if not await self._catch_up():
                raise PlainError(503, "This replica of the registry was suspended; send the request again")
            if request.method not in ("POST", "PUT") and request.body_exists:
                await self.body(request)  # has no meaning, but unread it would end the connection with the answer
            return await handler(request)
        except RegistryError as error:
            return _error(request, error)
        except web.HTTPException as error:
            found = _error(request, PlainError(error.status))
            if "Allow" in error.headers:
                found.headers["Allow"] = error.headers["Allow"]
            return found
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path, extra=log_fields(error))
            return _error(request, PlainError(500, f"Internal Server Error (request id {request_id_of(error)})"))

    async def _sent(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Send an answer within the middleware, where a limit covers clients that do not read their answers. aiohttp
        would send the answer after the middleware."""
        if has_unread_body(request):
            answer.force_close()
        size = answer.content_length or 0
        if self._answer_bytes and self._answer_bytes + size > ANSWERS_BYTES_MAX:
            answer = _error(
                request,
                PlainError(
                    429,
                    f"The answers that clients have not yet read exceed {ANSWERS_BYTES_MAX} bytes; send the request "
                    "again later",
                ),
            )
            size = answer.content_length or 0
        self._answer_bytes += size
        try:
            async with asyncio.timeout(ANSWER_S):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            logger.warning(
                "request %s %s: the client did not read %d bytes of the answer within %g s",
                request.method,
                request.path,
                size,
                ANSWER_S,
            )
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the client has disconnected, and aiohttp ends the connection
        finally:
            self._answer_bytes -= size
        return answer

    def _check(self, request: web.Request) -> None:
        if not self.guard.is_open:
            transport = request.transport
            certificate = None if transport is None else transport.get_extra_info("peercert")
            if not self.guard.admits(request.headers.get("Authorization"), certificate):
                raise PlainError(401, REFUSAL)
        # A browser sends a POST without a Content-Type for a page of any site, also to a registry on localhost.
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and request.method not in _READS:
            raise PlainError(403, "A page of another site sent this request; the registry accepts only its own clients")
        if error := coding_error(request):
            status, message = error
            raise PlainError(status, f"{message[0].upper()}{message[1:]}")
        if self._requests > REQUESTS_MAX:
            raise PlainError(429, f"The registry has {REQUESTS_MAX} requests in progress; send the request again later")
        if not self._is_ready():
            raise PlainError(503, "This replica of the registry is starting or stopping; send the request again")
        if negotiated(request.headers.get("Accept")) is None:
            raise PlainError(406)
        if request.body_exists and _content_type(request) not in CONSUMED_TYPES:
            raise PlainError(415)

    async def body(self, request: web.Request) -> bytes:
        """Read the body of a request. Raises RegistryError if the body is too long or arrives too slowly."""
        reserved = request.content_length
        if reserved is None:  # chunked, or no body
            reserved = BODY_BYTES_MAX if request.body_exists else 0
        if reserved > BODY_BYTES_MAX:
            raise _too_long()
        if self._body_bytes + reserved > BODIES_BYTES_MAX:
            raise PlainError(
                429,
                f"The bodies of the requests in progress have more than {BODIES_BYTES_MAX} bytes together; send the "
                "request again later",
            )
        self._body_bytes += reserved
        try:
            async with asyncio.timeout(BODY_S):
                await invite(request)
                data = bytearray()
                async for chunk in request.content.iter_any():
                    data += chunk
                    if len(data) > BODY_BYTES_MAX:
                        raise _too_long()
                return bytes(data)
        except TimeoutError:
            raise PlainError(408, f"The body of the request did not arrive within {BODY_S:g} seconds") from None
        finally:
            self._body_bytes -= reserved


def negotiated(accept: str | None) -> str | None:
    """The answer's media type for an Accept header (RFC 9110, 12.5.1); None if the client accepts none of
    MEDIA_TYPES."""
    if not accept:
        return MEDIA_TYPES[0]
    weights: dict[str, float] = {}
    for item in accept[:ACCEPT_MAX].split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                weight = _weight(value.strip())
        weights[name.lower()] = weight
    rated = [(_rating(weights, each), -index, each) for index, each in enumerate(MEDIA_TYPES)]
    best, _, found = max(rated)
    return found if best > 0 else None


def _rating(weights: dict[str, float], media_type: str) -> float:
    """The weight of the most specific media range that includes ``media_type``; 0 if none does."""
    for name in (media_type, "application/*", "*/*", "*"):
        if name in weights:
            return weights[name]
    return 0.0


def _weight(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0 <= found <= 1 else 0.0


def _content_type(request: web.Request) -> str:
    # aiohttp's content_type names application/octet-stream when the header is missing, as Jersey does.
    return request.content_type.lower()


def _too_long() -> PlainError:
    return PlainError(413, f"The body of the request has more than {BODY_BYTES_MAX} bytes; send a shorter schema")


def _error(request: web.Request, error: RegistryError) -> web.Response:
    found = response(request, error.status, dump({"error_code": error.code, "message": error.message}))
    if error.status == 401:
        found.headers["WWW-Authenticate"] = CHALLENGE
    if error.status in (401, 408, 413, 429, 503):
        found.force_close()
    return found


def _phrase(status: int) -> str:
    # Confluent's registry uses the reason phrases of RFC 7231; newer versions of Python have different phrases.
    return {413: "Request Entity Too Large", 422: "Unprocessable Entity"}.get(status) or HTTPStatus(status).phrase
