"""The objects that the pages use: the Site, which all users share, and the Console of one user (clients, samples,
answers).

On an open cluster there is one console for all visitors. With a sign-in each session has a separate console, whose
clients have the user's credentials. The cluster's ACLs therefore decide what the user may see and do, and no sample,
chart or finding of one user reaches another user. With a sign-in, the console itself has no user in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import shlex
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from headrace import __version__
from headrace_core.errors import HeadraceError, SaslAuthenticationFailedError
from headrace_core.node.descriptors import connections_with_room
from headrace_core.node.http_connections import HttpConnections
from headrace_core.visible import escaped

from . import display
from .changes import Change
from .cluster import Cluster, command
from .decoding import Decoding
from .gate import CONNECTIONS_MAX, Gate, Refused, Tokens, is_refusal
from .settings import ConsoleSettings
from .tailing import Tailing, Watchers
from .watching import View, Watching

STATIC = Path(__file__).parent / "static"
#: Seconds that a page waits for the first sample of a console that has just started.
FIRST_S = 0.4
#: Seconds between two refreshes of a page's live part.
REFRESH_S = 5
#: Number of file descriptors that are reserved for the sessions' clients of the cluster.
_CLIENTS_FILES = 256
#: Maximum number of messages about completed changes that are kept until a page shows them.
_DONE_MAX = 100
PER_PAGE = 50
#: Seconds for which a check of the user's password is valid.
PROOF_S = 20.0


class Site:
    """The data that all users share: the templates, the URLs, and the checks of requests."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.tokens = Tokens()
        self.watchers = Watchers()
        most = connections_with_room(CONNECTIONS_MAX, _CLIENTS_FILES)
        self.connections = HttpConnections(most, logging.getLogger("headrace.console"), settings.addresses)
        self.gate = Gate(
            settings.allowed_hosts,
            self.show_error,
            None if settings.has_sign_in else settings.guard,
            self.connections,
        )
        place = f"{settings.listeners[0].port}{settings.path_prefix}"
        self._cookie = "headrace_console_" + hashlib.sha256(place.encode()).hexdigest()[:8]
        self._digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in STATIC.iterdir() if path.is_file()
        }
        self._templates = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            number=display.number,
            noun=display.noun,
            size=display.size,
            duration=display.duration,
            when=display.when,
            visible=escaped,
        )
        self._templates.globals.update(
            url=self.url,
            static=self.static,
            command=self.command,
            version=__version__,
            settings=settings,
            has_registry=bool(settings.registry_urls),
            refresh_s=REFRESH_S,
            config_words=display.config_words,
            is_refusal=is_refusal,
        )

    # -- URLs and commands

    def url(self, page: str = "", /, **parameters: object) -> str:
        """The URL of a page, below the prefix. Parameters with the value None or "" are left out."""
        query = urlencode({name: value for name, value in parameters.items() if value not in (None, "")})
        return f"{self.settings.path_prefix}/{page}{'?' if query else ''}{query}"

    def static(self, name: str) -> str:
        """The URL of a static file; the URL changes when the file's contents change."""
        return f"{self.settings.path_prefix}/static/{name}?{self._digests[name]}"

    def command(self, *words: object) -> str:
        """A command line for this cluster, which the user can paste into a shell."""
        return shlex.join(command(self.settings, *map(str, words)))

    def here(self, request: web.Request) -> str:
        """The URL of the requested page, without the parameter for the message about a completed change."""
        query = urlencode([(name, value) for name, value in request.query.items() if name != "done"])
        return f"{request.path}{'?' if query else ''}{query}"

    # -- the browser's cookie

    def cookie(self, request: web.Request) -> str:
        """The id of the browser's session; "" without one."""
        found = request.cookies.get(self._cookie, "")
        return found if 20 <= len(found) <= 64 else ""

    def set_cookie(self, request: web.Request, answer: web.Response, session_id: str) -> None:
        """Send the browser a session's id in a cookie. The cookie is Secure if the console encrypts, or if the
        request's Origin header shows that the browser uses https (at a proxy)."""
        answer.set_cookie(
            self._cookie,
            session_id,
            path=self.url(),
            httponly=True,
            samesite="Strict",
            secure=self.settings.encrypts or request.headers.get("Origin", "").startswith("https://"),
        )

    def bare(self, request: web.Request, name: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a template that needs no user and shows no data of the cluster. The token in the page's forms belongs
        to the browser's cookie."""
        session_id = self.cookie(request)
        is_new = not session_id
        if is_new:
            session_id = self.tokens.new_session()
        given: dict[str, Any] = {"has_pages": not self.settings.has_sign_in}
        given |= {"done": None, "cluster_id": None, "age_s": None, "trouble": None, "user": None}
        text = self.render(request, name, given | {"token": self.tokens.token(session_id)} | values)
        answer = web.Response(status=status, text=text, content_type="text/html")
        if is_new:
            self.set_cookie(request, answer, session_id)
        return answer

    def is_own_form(self, request: web.Request, form: Mapping[str, str]) -> bool:
        """Whether the form comes from a page that ``bare`` made for this browser."""
        return self.tokens.is_valid(self.cookie(request), form.get("token", ""))

    def render(self, request: web.Request, name: str, values: Mapping[str, Any]) -> str:
        return self._templates.get_template(name).render({"here": self.here(request), "section": ""} | dict(values))

    def show_error(self, request: web.Request, status: int, message: str) -> web.Response:
        return self.bare(request, "error.html", **_error(request, status, message))


class Console:
    """The data of one user that the pages use: the clients, the samples and the answers. If ``user`` is None, the
    console has no sign-in, and all visitors share one Console."""

    def __init__(self, site: Site, cluster: Cluster, user: str | None = None) -> None:
        self.site, self.settings, self.cluster, self.user = site, site.settings, cluster, user
        self.gate = site.gate
        self.watching = Watching(cluster, is_shared=user is None)
        self.decoding = Decoding(cluster)
        self.tailing = Tailing(cluster, self.decoding, site.watchers, user)
        #: The token of the forms of a signed-in user's session; None if the token belongs to the browser's cookie.
        self.token: str | None = None
        #: Callback that ends the user's session, because the cluster refuses the password; returns the sentence that
        #: explains this to the user.
        self.turn_away: Callable[[], str] = lambda: "the cluster refuses the credentials of the console"
        self.url, self.command = site.url, site.command
        self._done: OrderedDict[str, str] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._proven_s = time.monotonic()
        self._proving = asyncio.Lock()

    def start(self) -> None:
        """Begin to take samples, in the background."""
        self._tasks = [
            asyncio.create_task(each.run(), name=f"console-{name}")
            for name, each in (("view", self.watching.view), ("diagnosis", self.watching.diagnosis))
        ]

    async def close(self) -> None:
        """End the background work and the clients."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.decoding.close()
        await self.cluster.close()

    async def proven(self) -> None:
        """Check the user's password again, if the last check is older than PROOF_S. An open connection would not notice
        that the password was changed or removed. Raises SaslAuthenticationFailedError."""
        if self.user is None:
            return
        # a sample has found that the cluster refuses the password
        if isinstance(self.watching.view.error, SaslAuthenticationFailedError):
            raise self.watching.view.error
        if time.monotonic() - self._proven_s < PROOF_S:
            return
        async with self._proving:
            if time.monotonic() - self._proven_s < PROOF_S:
                return
            try:
                await self.cluster.prove()
            except SaslAuthenticationFailedError:
                raise
            except HeadraceError:  # the cluster does not answer, so the page says that
                return
            self._proven_s = time.monotonic()

    # -- answers

    def page(self, request: web.Request, name: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a template with the values that every page shows, in addition to ``values``. Without a sign-in, sets
        the cookie to which the tokens of the page's forms belong."""
        last = self.watching.view.last
        shared = {
            "done": self._done.pop(request.query.get("done", ""), None),
            "cluster_id": None if last is None else last.value.sample.cluster_id,
            "age_s": None if last is None else last.age_s,
            "trouble": self.watching.view.error,
            "user": self.user,
            "may_describe_cluster": self.user is None or (last is not None and last.value.may_describe_cluster),
            "has_pages": True,
        }
        if self.token is None:
            return self.site.bare(request, name, status=status, **shared | values)
        text = self.site.render(request, name, {"token": self.token} | shared | values)
        return web.Response(status=status, text=text, content_type="text/html")

    def show_error(self, request: web.Request, status: int, message: str) -> web.Response:
        return self.page(request, "error.html", **_error(request, status, message))

    def to(self, page: str, parameters: Mapping[str, str]) -> web.Response:
        """Send the browser to a page, after a change."""
        return web.Response(status=303, headers={"Location": self.url(page, **parameters)})

    def done(self, message: str) -> str:
        """Keep a message for the next page that the browser loads; returns the value for the parameter ``done`` of that
        page's URL."""
        key = secrets.token_urlsafe(12)
        self._done[key] = message
        while len(self._done) > _DONE_MAX:
            self._done.popitem(last=False)
        return key

    def check_token(self, request: web.Request, form: Mapping[str, str]) -> None:
        """Raises Refused if the form does not come from a page of this session, or if the console is read-only."""
        if self.settings.is_read_only:
            raise Refused(403, "this console is read-only: it refuses every change; use the command line")
        self.check_form(request, form)

    def check_form(self, request: web.Request, form: Mapping[str, str]) -> None:
        """Raises Refused if the form does not come from a page of this session."""
        if self.token is None:
            is_own = self.site.is_own_form(request, form)
        else:
            is_own = hmac.compare_digest(self.token.encode(), form.get("token", "").encode(errors="replace"))
        if not is_own:
            raise Refused(403, "the form has expired: go back, load the page again, and send the form again")

    def command_of(self, change: Change) -> str:
        return self.command(*change.words())

    # -- samples

    async def view(self, wait_s: float = FIRST_S) -> View | None:
        """The last sample of the cluster; None before the first sample."""
        found = await self.watching.view.viewed(wait_s)
        return None if found is None else found.value

    async def settle(self) -> None:
        """Take a new sample, so that the next page shows a change that was just made."""
        await self.watching.view.again(3.0)
        self.watching.diagnosis.view()


def _error(request: web.Request, status: int, message: str) -> dict[str, Any]:
    """The template values of an error page."""
    return {"status": status, "status_code": status, "message": message, "is_change": request.method == "POST"}


def text_of(request: web.Request, name: str, default: str = "") -> str:
    """A parameter of the query, without the white space around it."""
    return request.query.get(name, default).strip()


def required(request: web.Request, name: str, what: str) -> str:
    """Return a query parameter that the page needs. Raises Refused."""
    found = request.query.get(name, "")
    if not found:
        raise Refused(400, f"the URL names no {what}; choose one from the list")
    return found


def whole_of(request: web.Request, name: str, default: int, *, high: int = (1 << 63) - 1) -> int:
    """A whole number from the query, from 0 to ``high``. Raises Refused."""
    text = text_of(request, name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= high):
        raise Refused(400, f"{name} must be a whole number from 0 to {high:,}")
    return int(text)


class Paged:
    """One page of a list: ``items``, ``number`` (from 1), ``pages`` and ``total``."""

    def __init__(self, request: web.Request, items: list[Any], *, per_page: int = PER_PAGE) -> None:
        self.total = len(items)
        self.pages = max(1, -(-self.total // per_page))
        self.number = min(max(1, whole_of(request, "page", 1, high=1_000_000)), self.pages)
        first = (self.number - 1) * per_page
        self.items = items[first : first + per_page]
        self.first = first + 1 if self.items else 0
        self.last = first + len(self.items)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
