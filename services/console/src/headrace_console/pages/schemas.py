"""Schemas: the registry's subjects, and the versions of one."""

from __future__ import annotations

import json

from aiohttp import web

from headrace.schemas import RegisteredSchema, SchemaRegistry, SchemaType

from ..console import Console, Paged, required, text_of
from ..display import WHOLE_MAX, shown
from ..gate import Refused

#: Versions of a subject on its page, the newest first.
_VERSIONS_MAX = 50


async def schemas(console: Console, request: web.Request) -> web.StreamResponse:
    registry = console.decoding.registry
    await _check(console)
    wanted = text_of(request, "q")[:4_096]
    names = [] if registry is None else await console.cluster.in_thread(registry.subjects)
    found = sorted(name for name in names if wanted.lower() in name.lower())
    return console.page(request, "schemas.html", section="schemas", q=wanted, paged=Paged(request, found))


async def subject(console: Console, request: web.Request) -> web.StreamResponse:
    name = required(request, "name", "subject")
    registry = console.decoding.registry
    if registry is None:
        raise Refused(404, "no schema registry is configured; start the console with --registry-url")
    await _check(console)
    versions, level = await console.cluster.in_thread(lambda: _asked(registry, name))
    texts = {each.version: shown(_formatted(each).encode(), limit=WHOLE_MAX, pretty=True).text for each in versions}
    return console.page(
        request, "subject.html", section="schemas", subject=name, versions=versions, level=level, texts=texts
    )


async def _check(console: Console) -> None:
    """Raises Refused for a user who may not see the schemas."""
    if refusal := await console.decoding.refusal():
        raise Refused(403, refusal)


def _asked(registry: SchemaRegistry, name: str) -> tuple[list[RegisteredSchema], str]:
    numbers = sorted(registry.versions(name), reverse=True)[:_VERSIONS_MAX]
    return [registry.version(name, number) for number in numbers], str(registry.compatibility(name))


def _formatted(version: RegisteredSchema) -> str:
    if version.schema.type is SchemaType.PROTOBUF:
        return version.schema.text
    try:
        return json.dumps(json.loads(version.schema.text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return version.schema.text
