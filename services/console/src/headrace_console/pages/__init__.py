"""The pages: which path shows what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from ..console import STATIC, Console
from ..gate import PAGE_S, Refused
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
#: Suffix of a file -> its media type.
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}


def add_routes(app: web.Application, console: Console) -> None:
    """Add the pages to an application, which is mounted below the prefix."""
    for path, page in PAGES.items():
        app.router.add_get(path, _bounded(console, page))
    for path, page in CHANGES.items():
        app.router.add_post(path, _bounded(console, page))
    app.router.add_get("/events", partial(messages.events, console))
    app.router.add_get("/static/{name}", _static)


def _bounded(console: Console, page: Page) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        async with asyncio.timeout(PAGE_S):
            return await page(console, request)

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
