"""The two steps of every change: review (what it does, the command that does the same), and apply."""

from __future__ import annotations

from aiohttp import web

from headrace_core.errors import HeadraceError

from ..changes import from_form, refusal
from ..console import Console
from ..gate import form_of


async def review(console: Console, request: web.Request) -> web.StreamResponse:
    form = await form_of(request)
    console.check_token(request, form)
    try:
        change = from_form(form)
        found = await change.review(console.cluster.admin)
    except HeadraceError as error:
        return console.page(request, "error.html", status=400, message=refusal(error), status_code=400)
    return console.page(
        request,
        "review.html",
        review=found,
        fields=change.fields(),
        kind=change.kind,
        command_line=console.command_of(change),
        back=console.url(change.page()[0], **change.page()[1]),
    )


async def apply(console: Console, request: web.Request) -> web.StreamResponse:
    form = await form_of(request)
    console.check_token(request, form)
    try:
        change = from_form(form)
        message = await change.apply(console.cluster.admin)
    except HeadraceError as error:
        return console.page(request, "error.html", status=400, message=refusal(error), status_code=400)
    await console.settle()
    page, parameters = change.page()
    return console.to(page, parameters | {"done": console.done(message)})
