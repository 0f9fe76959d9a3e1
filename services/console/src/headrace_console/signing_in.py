"""Find the user of each request and this user's console, and serve the sign-in page and the sign-out.

    GET  /sign-in    the form; ``next`` is the page to which the browser returns
    POST /sign-in    name and password ──> the cluster (SASL, a new connection) ──> a session with a new random id
    POST /sign-out   ends the session

Only the cluster checks names and passwords: the console stores none, and gives the password only to the session's
clients of the cluster. An unknown name and a wrong password get the same answer.

* The console creates a session's id at the sign-in, so an id that an attacker planted in the browser earlier is useless
  (session fixation).
* The sign-in form has a token that belongs to the browser's cookie, so another site cannot sign the browser in.
* attempts.py limits wrong passwords, sessions.py limits sessions.
* After a failed sign-in the console does not log the user name, because people type passwords into the wrong field.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from headrace import AsyncAdmin
from headrace_core.errors import HeadraceError, InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.visible import escaped

from .attempts import Attempts, browser_address, network_of
from .cluster import Cluster, client_config, prove
from .console import Console, Site
from .display import duration
from .gate import PARAMETER_MAX, STRANGERS_REQUESTS_MAX, Refused, form_of
from .sessions import SIGNED_OUT, Session, Sessions

logger = logging.getLogger("headrace.console")

#: Maximum characters of a user name and of a password.
NAME_MAX, PASSWORD_MAX = 1_024, 4_096
#: Maximum number of sign-ins that the cluster checks at the same time; further sign-ins wait, at most WAIT_S.
AT_ONCE_MAX, WAIT_S = 8, 15.0
#: Maximum number of sign-ins in progress from one address (IPv6: a /64 network). The number includes sign-ins
#: whose form is still arriving. The limit leaves room for the sign-ins of other addresses.
IN_PROGRESS_MAX = 16
#: Seconds between two checks for expired sessions.
_SWEEP_S = 1.0
#: The challenge of a 401 answer: HTTP has no standard name for authentication by form and cookie.
_CHALLENGE = 'Cookie realm="headrace"'
#: The HTML id of the part of a page that refreshes itself. htmx sends the id as HX-Trigger; a request with this id is
#: not an action of the user.
_REFRESHED = "live"

WRONG = "The cluster refuses this user name and password."
#: This visitor is not signed in, so the page does not show the error's text, which contains paths of the console's
#: machine.
MISCONFIGURED = "The console cannot reach the cluster with its own configuration; its log says why."


class SignInNeeded(Exception):
    """A request without a session. ``why``: why the session ended, "" if there was none."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Users:
    """Finds the console of a request: its session's console, or without a sign-in the console of all visitors.
    ``clock``: seconds."""

    def __init__(self, site: Site, *, clock: Callable[[], float] = time.monotonic) -> None:
        settings = site.settings
        self._site, self._settings = site, settings
        self.sessions: Sessions[Console] = Sessions(
            idle_s=settings.session_idle_s, life_s=settings.session_life_s, on_end=self._ended, clock=clock
        )
        self._attempts = Attempts(clock)
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._in_progress: Counter[str] = Counter()
        self._shared = None if settings.has_sign_in else Console(site, Cluster(settings))
        self._sweeper: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._shared is not None:
            self._shared.start()
        else:
            self._sweeper = asyncio.create_task(self._sweep(), name="console-sessions")

    async def close(self) -> None:
        """End all sessions, and the clients of the console."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        for session in self.sessions:
            self.sessions.end(session, "The console stopped. Sign in again.")
        if self._shared is not None:
            await self._shared.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]]:
        """The methods, paths and handlers of sign-in and sign-out; none without a sign-in."""
        if self._shared is not None:
            return []
        return [
            ("GET", "/sign-in", self._show),
            ("POST", "/sign-in", self._sign_in),
            ("POST", "/sign-out", self._sign_out),
        ]

    # -- requests

    def console_of(self, request: web.Request, *, is_use: bool = True) -> Console:
        """The console of the user who sends the request. ``is_use``: the request may be an action of the user, so that
        the idle time of the session begins again. Raises SignInNeeded."""
        if self._shared is not None:
            return self._shared
        session_id = self._site.cookie(request)
        is_use = is_use and request.headers.get("HX-Trigger") != _REFRESHED
        session = self.sessions.find(session_id, is_use=is_use) if session_id else None
        if session is None:
            raise SignInNeeded(self.sessions.why(session_id))
        return session.payload

    async def ask(self, request: web.Request, why: str) -> web.StreamResponse:
        """The answer to a request that needs a sign-in: a browser goes to the form and returns afterwards, a script
        gets 401. If the request was a submitted form, the console does not execute it after the sign-in; the answer
        says that nothing was changed."""
        wants_page = "text/html" in request.headers.get("Accept", "")
        # a refresh of a part of a page: make the browser load the whole page, which leads to the form
        if request.headers.get("HX-Request"):
            return _unauthorized("sign in\n", {"HX-Refresh": "true"})
        if request.method == "POST" and wants_page:
            why = f"{why or 'You are not signed in.'} Nothing was changed."
            return self._form(request, status=401, why=why, then=self._referring(request))
        if not wants_page:
            return _unauthorized(f"{why or 'Sign in first'}: {self._site.url('sign-in')}\n", {})
        # the user followed a link on another site, so the browser sent no cookie
        if request.headers.get("Sec-Fetch-Site") == "cross-site":
            return web.Response(text="The page follows.\n", headers={"Refresh": f"0; url={self._site.here(request)}"})
        where = self._site.url("sign-in", next=self._site.here(request)[:PARAMETER_MAX])
        return web.Response(status=303, headers={"Location": where})

    def _turn_away(self, session: Session[Console]) -> str:
        """End a session whose user the cluster now refuses; returns a sentence with the reason."""
        self.sessions.end(
            session,
            f"The cluster does not accept the password of {session.user} any more: it was changed, or the user was "
            "removed. Sign in again.",
        )
        return session.why

    # -- the form

    async def _show(self, request: web.Request) -> web.StreamResponse:
        then = self._local(request.query.get("next", ""))
        session_id = self._site.cookie(request)
        if session_id and self.sessions.find(session_id) is not None:
            return web.Response(status=303, headers={"Location": then})
        return self._form(request, why=self.sessions.why(session_id), then=then)

    def _form(
        self, request: web.Request, *, then: str, status: int = 200, why: str = "", wrong: str = "", name: str = ""
    ) -> web.Response:
        answer = self._site.bare(request, "sign_in.html", status=status, why=why, wrong=wrong, typed=name, then=then)
        if status == 401:
            answer.headers["WWW-Authenticate"] = _CHALLENGE
        return answer

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        self._site.gate.count_user(request, "", STRANGERS_REQUESTS_MAX)
        # A proxy may add another header line after the browser's lines, as HAProxy does.
        forwarded = ",".join(request.headers.getall("X-Forwarded-For", ()))
        address = browser_address(request.remote or "", forwarded, self._settings.proxies)
        place = network_of(address)
        if self._in_progress[place] >= IN_PROGRESS_MAX:
            raise Refused(
                429, f"{IN_PROGRESS_MAX} sign-ins from your address are in progress; repeat the request later"
            )
        self._in_progress[place] += 1
        try:
            return await self._entered(request, address)
        finally:
            self._in_progress[place] -= 1
            if not self._in_progress[place]:
                del self._in_progress[place]

    async def _entered(self, request: web.Request, address: str) -> web.StreamResponse:
        form = await form_of(request)
        then, name, password = self._local(form.get("next", "")), form.get("user", ""), form.get("password", "")
        if not self._site.is_own_form(request, form):
            return self._form(request, status=403, wrong="The form has expired. Sign in again.", then=then)
        if not name or not password or len(name) > NAME_MAX or len(password) > PASSWORD_MAX:
            wrong = f"Fill in a user name of at most {NAME_MAX:,} characters, and a password."
            return self._form(request, status=400, wrong=wrong, then=then, name=name[:NAME_MAX])
        attempt = self._attempts.begin(name, address)
        if isinstance(attempt, float):
            wrong = f"Too many wrong passwords. Wait {duration(max(1.0, attempt) * 1_000)}, then sign in again."
            answer = self._form(request, status=429, wrong=wrong, then=then, name=name)
            answer.headers["Retry-After"] = str(int(attempt) + 1)
            return answer
        try:
            console = await self._judged(name, password)
        except SaslAuthenticationFailedError as error:
            logger.warning("a sign-in from %s failed", escaped(address))
            wrong = error.message if "${" in error.message else WRONG
            return self._form(request, status=401, wrong=wrong, then=then, name=name)
        except InvalidConfigError as error:
            self._attempts.untried(attempt)
            logger.error("no user can sign in: %s", error.message)
            return self._form(request, status=503, wrong=MISCONFIGURED, then=then, name=name)
        except (HeadraceError, TimeoutError) as error:
            self._attempts.untried(attempt)
            # Show only the error's code, because its text contains addresses of nodes.
            why = error.code if isinstance(error, HeadraceError) else "no answer in time"
            logger.warning("the cluster cannot check a sign-in: %s", str(error) or why)
            wrong = (
                f"The cluster cannot check the password now ({why}). Send the form again later; see the console's log."
            )
            return self._form(request, status=503, wrong=wrong, then=then, name=name)
        except BaseException:
            self._attempts.untried(attempt)
            raise
        self._attempts.worked(attempt)
        return self._begun(request, name, console, then, address)

    async def _judged(self, name: str, password: str) -> Console:
        """Return a console whose clients use ``name`` and ``password``, after the cluster has accepted both. Raises
        SaslAuthenticationFailedError if the cluster refuses the password, InvalidConfigError if the console's own keys
        are not valid for a client, and other errors if the cluster does not answer."""
        async with asyncio.timeout(WAIT_S), self._at_once:
            try:
                await prove(client_config(self._settings, (name, password)))
            except InvalidConfigError:
                AsyncAdmin(client_config(self._settings, ("name", "password")))  # raises if no user can have a client
                raise SaslAuthenticationFailedError(WRONG) from None
        return Console(self._site, Cluster(self._settings, (name, password)), name)

    def _begun(self, request: web.Request, name: str, console: Console, then: str, address: str) -> web.Response:
        before = self.sessions.find(self._site.cookie(request), is_use=False)
        if before is not None:
            self.sessions.end(before, SIGNED_OUT)
        session_id, session = self.sessions.begin(name, console)
        console.token = session.token
        console.turn_away = lambda: self._turn_away(session)
        console.start()
        logger.info("%s signed in from %s", escaped(name), escaped(address))
        answer = web.Response(status=303, headers={"Location": then})
        self._site.set_cookie(request, answer, session_id)
        return answer

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        session_id = self._site.cookie(request)
        session = self.sessions.find(session_id) if session_id else None
        if session is not None:
            session.payload.check_form(request, await form_of(request))
            self.sessions.end(session, SIGNED_OUT)
        return web.Response(status=303, headers={"Location": self._site.url("sign-in")})

    # -- the end of sessions

    def _ended(self, session: Session[Console]) -> None:
        session.payload.tailing.end(session.why)
        task = asyncio.create_task(session.payload.close(), name="console-session-end")
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the clients of a session did not close: %s", type(task.exception()).__name__)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.sweep()

    # -- where to go

    def _local(self, url: str) -> str:
        """``url`` if it is a page of this console, else the first page, so that a sign-in never redirects to another
        site."""
        home = self._site.url()
        path = url.partition("?")[0].partition("#")[0]
        is_ours = url.startswith(home) and not url.startswith("//") and "\\" not in url and url.isprintable()
        is_ours = is_ours and ".." not in path.split("/")
        is_form = path in (self._site.url("sign-in"), self._site.url("sign-out"))
        return url if is_ours and not is_form and " " not in url else home

    def _referring(self, request: web.Request) -> str:
        """The URL of the console page that contained the submitted form, from the Referer header; the first page if
        that header names no page of this console."""
        try:
            parts = urlsplit(request.headers.get("Referer", ""))
        except ValueError:
            return self._site.url()
        if parts.netloc != request.headers.get("Host"):
            return self._site.url()
        return self._local(f"{parts.path}{'?' if parts.query else ''}{parts.query}")


def _unauthorized(text: str, headers: dict[str, str]) -> web.Response:
    return web.Response(status=401, text=text, headers={"WWW-Authenticate": _CHALLENGE, **headers})
