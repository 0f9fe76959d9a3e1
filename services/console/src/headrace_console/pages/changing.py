"""The two steps of every change: review (its effects and the equivalent command), and apply."""

from __future__ import annotations

from aiohttp import web

from headrace_core.errors import HeadraceError, SaslAuthenticationFailedError

from ..changes import from_form, refusal
from ..console import Console
from ..gate import form_of, is_refusal


async def review(console: Console, request: web.Request) -> web.StreamResponse:
    form = await form_of(request)
    console.check_token(request, form)
    try:
        change = from_form(form)
        found = await change.review(console.cluster.admin)
    except SaslAuthenticationFailedError:
        raise
    except HeadraceError as error:
        return _refused(console, request, error)
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
    except SaslAuthenticationFailedError:
        raise
    except HeadraceError as error:
        return _refused(console, request, error)
    await console.settle()
    page, parameters = change.page()
    return console.to(page, parameters | {"done": console.done(message)})


def _refused(console: Console, request: web.Request, error: HeadraceError) -> web.Response:
    """The error page for an invalid change (400), or for a change that this user is not authorized to make (403)."""
    status, message = (403, error.message) if is_refusal(error) else (400, refusal(error))
    return console.show_error(request, status, message)
