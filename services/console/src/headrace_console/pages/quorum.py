"""The controller quorum and the cluster's feature levels."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ..cluster import REQUEST_S
from ..console import Console, now_ms


async def quorum(console: Console, request: web.Request) -> web.StreamResponse:
    admin = console.cluster.admin
    info, features = await asyncio.gather(
        admin.describe_quorum(timeout=REQUEST_S), admin.describe_features(timeout=REQUEST_S)
    )
    levels = sorted(features.values(), key=lambda feature: feature.name)
    return console.page(request, "quorum.html", section="quorum", quorum=info, features=levels, now=now_ms())
