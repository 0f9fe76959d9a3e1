"""Check every request, and set the security headers of every answer.

* The Host header must be localhost, an IP address or an allowed name. Without the check of the Host header, a page of
  an attacker's site could reach the console under the site's own name (DNS rebinding).
* A change must come from a page of this console. The request must have the same origin (Origin, Sec-Fetch-Site), and
  its form must have a token that belongs to a cookie with SameSite=Strict.
* The Content-Security-Policy allows only the console's own files: no inline script, no inline style, no frame.
* The size, the number and the duration of requests are limited.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from headrace_core.errors import HeadraceError
from headrace_core.node.http_bodies import coding_error, has_unread_body
from headrace_core.node.http_connections import HttpConnections
from headrace_core.security.http import CHALLENGE, REFUSAL, HttpGuard
from headrace_core.unexpected import log_fields, request_id_of

logger = logging.getLogger("headrace.console")

#: Maximum number of connections; fewer if the process's limit of open files is too low.
CONNECTIONS_MAX = 1_000

ShowError = Callable[[web.Request, int, str], web.Response]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with the console's own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: Maximum number of requests in progress, live views not counted; further requests are refused at once.
REQUESTS_MAX = 128
#: Maximum number of requests in progress of one signed-in user, and of all visitors who are signing in.
USER_REQUESTS_MAX, STRANGERS_REQUESTS_MAX = 32, 64
#: Maximum characters of a query, and of one parameter.
QUERY_MAX, PARAMETER_MAX = 6_144, 4_096
#: Maximum bytes of a form, and seconds within which it must arrive.
FORM_BYTES_MAX, FORM_S = 32_768, 10.0
#: Maximum bytes of answers that wait until their clients have read them: of all users, and of one signed-in user.
ANSWERS_BYTES_MAX, USER_ANSWERS_BYTES_MAX = 64 << 20, 16 << 20
#: Seconds within which a client must have read one answer.
ANSWER_S = 30.0
#: Seconds that a page may take: a page of a broken cluster waits for several requests.
PAGE_S = 25.0


class Refused(Exception):
    """A request that the console refuses, with the status and a sentence that says what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Tokens:
    """Tokens in forms against forged requests (CSRF): a token is an HMAC of the session's cookie, with a key of this
    process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    @staticmethod
    def new_session() -> str:
        return secrets.token_urlsafe(24)

    def token(self, session: str) -> str:
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def is_valid(self, session: str, token: str) -> bool:
        return bool(session) and hmac.compare_digest(self.token(session).encode(), token.encode(errors="replace"))


def is_allowed_host(host: str, allowed: frozenset[str]) -> bool:
    """Whether a Host header may address the console: localhost, an IP address, or a name in ``allowed``."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        _ = urlsplit(f"//{host}").port
    except ValueError:
        return False
    if "@" in host or "/" in host:
        return False
    if name == "localhost" or name.rstrip(".") in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(request: web.Request, allowed: frozenset[str]) -> bool:
    """Whether a page of this console sent the request, according to the browser's headers."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("Origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
        name = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    # Behind a proxy, the Host header may differ from the host that the browser uses.
    return parts.netloc == request.headers.get("Host") or name in allowed


def is_refusal(error: HeadraceError) -> bool:
    """Whether the error is a refusal by the cluster's ACLs."""
    return error.code.endswith("_AUTHORIZATION_FAILED")


class Gate:
    """The middleware that checks all requests. ``show_error`` renders the error page. ``guard``: for listeners without
    a sign-in, admits only requests with a certificate or a token."""

    def __init__(
        self,
        allowed_hosts: frozenset[str],
        show_error: ShowError,
        guard: HttpGuard | None = None,
        connections: HttpConnections | None = None,
    ) -> None:
        self._allowed = allowed_hosts
        self._connections = connections or HttpConnections(CONNECTIONS_MAX, logger)
        self._guard = guard or HttpGuard()
        self._show_error = show_error
        self._requests = 0
        self._answer_bytes = 0
        #: The user of each request in progress, by the id of the request. ``_user_requests`` and ``_user_bytes``: the
        #: number of requests and the bytes of answers of each user.
        self._users: dict[int, str] = {}
        self._user_requests: Counter[str] = Counter()
        self._user_bytes: Counter[str] = Counter()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._requests += 1
        self._connections.is_busy(request.protocol)
        try:
            answer = await self._answer(request, handler)
            if answer.prepared:  # a live view has sent its answer itself
                return answer
            answer.headers.update({name: value for name, value in HEADERS.items() if name not in answer.headers})
            answer.headers.setdefault("Cache-Control", "no-store")
            if answer.status == 401 and not self._guard.is_open:
                answer.headers["WWW-Authenticate"] = CHALLENGE
            return await self._sent(request, answer)
        finally:
            self._requests -= 1
            self._forget_user(request)
            self._connections.is_idle(request.protocol, request.remote or "")

    def count_user(self, request: web.Request, user: str | None, most: int = USER_REQUESTS_MAX) -> None:
        """Count a request for its user until its answer is sent, so that one user's slow requests do not block other
        users' requests. ``user``: "" for requests of the sign-in itself, which all visitors share; None: the request is
        not counted. Raises Refused."""
        if user is None:
            return
        if self._user_requests[user] >= most:
            who = f"user {user}" if user else "visitors who sign in"
            raise Refused(429, f"{most} requests of {who} are in progress; repeat the request later")
        self._users[id(request)] = user
        self._user_requests[user] += 1

    def _forget_user(self, request: web.Request) -> None:
        user = self._users.pop(id(request), None)
        if user is not None:
            self._user_requests -= Counter({user: 1})  # without entries of 0

    def leave(self, request: web.Request) -> None:
        """Called when a live view begins: the limit on requests in progress does not count the view's request until
        ``come_back``."""
        self._requests -= 1
        self._forget_user(request)

    def come_back(self) -> None:
        self._requests += 1

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        async def checked(request: web.Request) -> web.StreamResponse:
            self._check(request)
            return await handler(request)

        return await self.guarded(request, checked, self._show_error)

    async def guarded(self, request: web.Request, handler: Handler, show_error: ShowError) -> web.StreamResponse:
        """Return the answer of ``handler``; if ``handler`` raises an exception, return the error page of
        ``show_error``."""
        try:
            return await handler(request)
        except Refused as refused:
            return show_error(request, refused.status, refused.message)
        except TimeoutError:
            return show_error(
                request,
                504,
                f"the cluster did not answer within {PAGE_S:g} s; see the page Cluster, then load this page again",
            )
        except HeadraceError as error:
            if is_refusal(error):
                return show_error(request, 403, error.message)
            status = 404 if error.code.startswith(("UNKNOWN_TOPIC", "GROUP_ID_NOT_FOUND", "TRANSACTIONAL_ID")) else 502
            return show_error(request, status, f"{error.message} [{error.code}]")
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return show_error(request, error.status, error.reason)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path, extra=log_fields(error))
            found = f"the console failed; its log says why, at request id {request_id_of(error)}"
            return show_error(request, 500, found)

    def _check(self, request: web.Request) -> None:
        if not is_allowed_host(request.headers.get("Host", ""), self._allowed):
            raise Refused(
                421,
                "this host name is not allowed; use an IP address or localhost, or name the host in "
                "console.allowed.hosts (headrace console --allowed-host)",
            )
        if not self._guard.is_open and not self._is_admitted(request):
            raise Refused(401, REFUSAL)
        if request.method not in ("GET", "HEAD", "POST"):
            raise Refused(405, "the console accepts only the methods GET, HEAD and POST")
        if error := coding_error(request):
            raise Refused(*error)
        if request.method == "POST" and not is_same_origin(request, self._allowed):
            raise Refused(403, "a change must come from a page of this console")
        if len(request.query_string) > QUERY_MAX:
            raise Refused(414, f"the query has more than {QUERY_MAX:,} characters")
        if any(len(value) > PARAMETER_MAX for value in request.query.values()):
            raise Refused(414, f"a parameter has more than {PARAMETER_MAX:,} characters")
        if self._requests > REQUESTS_MAX:
            raise Refused(429, f"the console has {REQUESTS_MAX} requests in progress; repeat the request later")

    def _is_admitted(self, request: web.Request) -> bool:
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        return self._guard.admits(request.headers.get("Authorization"), certificate)

    async def _sent(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        size = answer.content_length or 0
        user = self._users.get(id(request), "")
        is_much = bool(self._answer_bytes) and self._answer_bytes + size > ANSWERS_BYTES_MAX
        if user and self._user_bytes[user]:
            is_much = is_much or self._user_bytes[user] + size > USER_ANSWERS_BYTES_MAX
        if is_much:
            answer = web.Response(
                status=429, text="too many answers are unread; repeat the request later\n", headers=HEADERS
            )
            size = 0
        if has_unread_body(request) or answer.status == 401:
            answer.force_close()
        self._answer_bytes += size
        self._user_bytes[user] += size
        try:
            async with asyncio.timeout(ANSWER_S):
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the client has disconnected, and aiohttp ends the connection
        finally:
            self._answer_bytes -= size
            self._user_bytes -= Counter({user: size})
        return answer


async def form_of(request: web.Request) -> dict[str, str]:
    """The fields of a form. Raises Refused for another content type, a form that is too long, or a slow client."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refused(415, "a change is sent as a form (application/x-www-form-urlencoded)")
    if (request.content_length or 0) > FORM_BYTES_MAX:
        raise Refused(413, f"the form has more than {FORM_BYTES_MAX:,} bytes")
    try:
        async with asyncio.timeout(FORM_S):
            fields = await request.post()
    except TimeoutError:
        raise Refused(408, f"the form did not arrive within {FORM_S:g} s") from None
    except ConnectionError:
        raise Refused(400, "the connection ended before the form had arrived") from None
    except (ValueError, LookupError, web.RequestPayloadError):  # bytes or a charset that no browser sends
        raise Refused(400, "the form cannot be read; send it as UTF-8") from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}
