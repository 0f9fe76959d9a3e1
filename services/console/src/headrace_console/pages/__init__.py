"""The pages of the console, and the path of each page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from headrace_core.errors import SaslAuthenticationFailedError
from headrace_core.node.http_bodies import expected, invite

from ..console import STATIC, Console
from ..gate import PAGE_S, Refused
from ..signing_in import SignInNeeded, Users
from . import brokers, changing, groups, messages, overview, quorum, schemas, topics, transactions

Page = Callable[[Console, web.Request], Awaitable[web.StreamResponse]]

PAGES: dict[str, Page] = {
    "/": overview.overview,
    "/findings": overview.findings,
    "/brokers": brokers.brokers,
    "/broker": brokers.broker,
    "/topics": topics.topics,
    "/topic": topics.topic,
    "/messages": messages.messages,
    "/record": messages.record,
    "/raw": messages.raw,
    "/live": messages.live,
    "/groups": groups.groups,
    "/group": groups.group,
    "/transactions": transactions.transactions,
    "/transaction": transactions.transaction,
    "/quorum": quorum.quorum,
    "/schemas": schemas.schemas,
    "/subject": schemas.subject,
}
CHANGES: dict[str, Page] = {"/review": changing.review, "/apply": changing.apply}
#: Maps the suffix of a static file to the file's media type.
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}


def add_routes(app: web.Application, users: Users) -> None:
    """Add the pages to an application, which is mounted below the prefix."""
    for path, page in PAGES.items():
        app.router.add_get(path, _of_user(users, page))
    for path, page in CHANGES.items():
        app.router.add_post(path, _of_user(users, page), expect_handler=expected)
    app.router.add_get("/events", _of_user(users, messages.events, page_s=None, is_use=False))
    app.router.add_get("/static/{name}", _static)
    for method, path, handler in users.routes():
        app.router.add_route(method, path, handler)


def _of_user(
    users: Users, page: Page, *, page_s: float | None = PAGE_S, is_use: bool = True
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that shows ``page`` with the console of the request's user, or asks for a sign-in. ``page_s``: time
    limit in seconds; None: no limit. ``is_use``: whether the request is an action of the user."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            console = users.console_of(request, is_use=is_use)
        except SignInNeeded as needed:
            return await users.ask(request, needed.why)

        async def show(request: web.Request) -> web.StreamResponse:
            console.gate.count_user(request, console.user)
            try:
                async with asyncio.timeout(page_s):
                    await console.proven()
                    await invite(request)
                    return await page(console, request)
            except SaslAuthenticationFailedError:
                if console.user is None:  # the credentials of the console itself
                    raise
                return await users.ask(request, console.turn_away())

        return await console.gate.guarded(request, show, console.show_error)

    return answer


_files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix.lstrip(".") in _TYPES}


async def _static(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    data = _files.get(name)
    if data is None:
        raise Refused(404, "the console has no such file")
    return web.Response(
        body=data,
        content_type=_TYPES[name.rpartition(".")[2]],
        charset="utf-8",
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )
