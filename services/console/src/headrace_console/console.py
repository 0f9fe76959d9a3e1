"""What all pages share: the clients, the samples, the templates and the URLs."""

from __future__ import annotations

import hashlib
import secrets
import shlex
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from headrace import __version__

from . import display
from .changes import Change
from .cluster import Cluster
from .decoding import Decoding
from .gate import Gate, Refused, Tokens
from .settings import ConsoleSettings
from .tailing import Tailing
from .watching import View, Watching

STATIC = Path(__file__).parent / "static"
#: Seconds that a page waits for the first sample of a console that has just started.
FIRST_S = 0.4
#: Seconds between two refreshes of a page's live part.
REFRESH_S = 5
#: Messages about changes that were made, until their page shows them.
_DONE_MAX = 100
PER_PAGE = 50


class Console:
    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.cluster = Cluster(settings)
        self.watching = Watching(self.cluster)
        self.decoding = Decoding(self.cluster)
        self.tailing = Tailing(self.cluster, self.decoding)
        self.tokens = Tokens()
        self.gate = Gate(settings.allowed_hosts, self.show_error)
        self._done: OrderedDict[str, str] = OrderedDict()
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
            size=display.size,
            duration=display.duration,
            when=display.when,
            visible=display.escaped,
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
        )

    # -- URLs and commands

    def url(self, page: str = "", /, **parameters: object) -> str:
        """The URL of a page, below the prefix. Parameters of None or "" are left out."""
        query = urlencode({name: value for name, value in parameters.items() if value not in (None, "")})
        return f"{self.settings.path_prefix}/{page}{'?' if query else ''}{query}"

    def static(self, name: str) -> str:
        """The URL of a file, which changes with the file's contents."""
        return f"{self.settings.path_prefix}/static/{name}?{self._digests[name]}"

    def command(self, *words: object) -> str:
        """A command line for this cluster, to paste."""
        return shlex.join(self.cluster.command(*map(str, words)))

    # -- answers

    def page(self, request: web.Request, name: str, *, status: int = 200, **values: Any) -> web.Response:
        """Render a template. Sets the session's cookie, to which the tokens of the page's forms belong."""
        session = request.cookies.get(self._cookie, "")
        is_new = not 20 <= len(session) <= 64
        if is_new:
            session = self.tokens.new_session()
        last = self.watching.view.last
        text = self._templates.get_template(name).render(
            token=self.tokens.token(session),
            done=self._done.pop(request.query.get("done", ""), None),
            cluster_id=None if last is None else last.value.sample.cluster_id,
            age_s=None if last is None else last.age_s,
            trouble=self.watching.view.error,
            here=self.here(request),
            section=values.pop("section", ""),
            **values,
        )
        answer = web.Response(status=status, text=text, content_type="text/html")
        if is_new:
            answer.set_cookie(
                self._cookie, session, path=f"{self.settings.path_prefix}/", httponly=True, samesite="Strict"
            )
        return answer

    def here(self, request: web.Request) -> str:
        """The URL of this page, without the message about a change."""
        query = urlencode([(name, value) for name, value in request.query.items() if name != "done"])
        return f"{request.path}{'?' if query else ''}{query}"

    def show_error(self, request: web.Request, status: int, message: str) -> web.Response:
        return self.page(request, "error.html", status=status, message=message, status_code=status)

    def to(self, page: str, parameters: Mapping[str, str]) -> web.Response:
        """Send the browser to a page, after a change."""
        return web.Response(status=303, headers={"Location": self.url(page, **parameters)})

    def done(self, message: str) -> str:
        """Keep a message for the page that is shown next; returns the value of its parameter ``done``."""
        key = secrets.token_urlsafe(12)
        self._done[key] = message
        while len(self._done) > _DONE_MAX:
            self._done.popitem(last=False)
        return key

    def check_token(self, request: web.Request, form: Mapping[str, str]) -> None:
        """Raises Refused unless the form comes from a page of this session, and changes are allowed."""
        if self.settings.is_read_only:
            raise Refused(403, "this console is read-only: it refuses every change; use the command line")
        if not self.tokens.is_valid(request.cookies.get(self._cookie, ""), form.get("token", "")):
            raise Refused(403, "the form has expired: go back, load the page again, and send the form again")

    def command_of(self, change: Change) -> str:
        return self.command(*change.words())

    # -- samples

    async def view(self, wait_s: float = FIRST_S) -> View | None:
        """The last sample of the cluster; None before the first."""
        found = await self.watching.view.viewed(wait_s)
        return None if found is None else found.value

    async def settle(self) -> None:
        """After a change: take a sample that shows it."""
        await self.watching.view.again(3.0)
        self.watching.diagnosis.view()


def text_of(request: web.Request, name: str, default: str = "") -> str:
    """A parameter of the query, without the white space around it."""
    return request.query.get(name, default).strip()


def required(request: web.Request, name: str, what: str) -> str:
    """A parameter that the page needs. Raises Refused."""
    found = request.query.get(name, "")
    if not found:
        raise Refused(400, f"the address names no {what}; choose one from its list")
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
