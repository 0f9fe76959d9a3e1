"""Schemas: the registry's subjects, and the versions of one subject."""

from __future__ import annotations

from aiohttp import web

from headrace.schemas import RegisteredSchema, SchemaRegistry

from ..console import Console, Paged, required, text_of
from ..display import WHOLE_MAX, shown
from ..gate import Refused

#: Maximum number of versions that the page of a subject shows, the newest first.
_VERSIONS_MAX = 50


async def schemas(console: Console, request: web.Request) -> web.StreamResponse:
    registry = console.decoding.registry
    await _check(console)
    wanted = text_of(request, "q")[:4_096]
    names = [] if registry is None else await console.cluster.ask_registry(registry.subjects)
    found = sorted(name for name in names if wanted.lower() in name.lower())
    return console.page(request, "schemas.html", section="schemas", q=wanted, paged=Paged(request, found))


async def subject(console: Console, request: web.Request) -> web.StreamResponse:
    name = required(request, "name", "subject")
    registry = console.decoding.registry
    if registry is None:
        raise Refused(404, "no schema registry is configured; start the console with --registry-url")
    await _check(console)
    count, versions, level, texts = await console.cluster.ask_registry(lambda: _asked(registry, name))
    return console.page(
        request,
        "subject.html",
        section="schemas",
        subject=name,
        count=count,
        versions=versions,
        level=level,
        texts=texts,
    )


async def _check(console: Console) -> None:
    """Raises Refused for a user who is not authorized to see the schemas."""
    if refusal := await console.decoding.refusal():
        raise Refused(403, refusal)


def _asked(registry: SchemaRegistry, name: str) -> tuple[int, list[RegisteredSchema], str, dict[int, str]]:
    """The number of versions of a subject, the newest versions, its compatibility level, and the text of each of these
    versions."""
    numbers = sorted(registry.versions(name), reverse=True)
    found = [registry.version(name, number) for number in numbers[:_VERSIONS_MAX]]
    texts = {each.version: shown(each.schema.text.encode(), limit=WHOLE_MAX, pretty=True).text for each in found}
    return len(numbers), found, str(registry.compatibility(name)), texts
