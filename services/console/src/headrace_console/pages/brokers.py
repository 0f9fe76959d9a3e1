"""The pages of brokers: the list, and the impact of a broker's loss."""

from __future__ import annotations

import asyncio

from aiohttp import web

from headrace.cluster_models import ConfigResource
from headrace_core.errors import HeadraceError

from ..cluster import REQUEST_S
from ..console import Console, Paged, whole_of
from ..gate import Refused
from ..impact import MEANING, impact_of
from ..watching import finding_rows


async def brokers(console: Console, request: web.Request) -> web.StreamResponse:
    view = await console.view()
    return console.page(request, "brokers.html", section="brokers", view=view)


async def broker(console: Console, request: web.Request) -> web.StreamResponse:
    broker_id = whole_of(request, "id", -1, high=(1 << 31) - 1)
    view = await console.view()
    if view is None:
        return console.page(request, "waiting.html", section="brokers")
    info = view.broker(broker_id)
    if info is None:
        raise Refused(404, f"the cluster has no broker {broker_id}; the list of brokers shows all")
    diagnosis = await console.watching.diagnosis.viewed(2.0)
    minimum = {} if diagnosis is None else diagnosis.value.facts.min_insync
    impact = impact_of(broker_id, view.sample.topics, is_alive=not info.fenced, min_insync=minimum)
    name = f"broker {broker_id} "
    findings = [] if diagnosis is None else finding_rows(diagnosis.value)
    log_dirs, configs = await asyncio.gather(_log_dirs(console, broker_id), _configs(console, broker_id))
    return console.page(
        request,
        "broker.html",
        section="brokers",
        broker=info,
        row=next(row for row in view.frame.brokers if row.id == broker_id),
        impact=impact,
        counts=impact.counts(),
        meaning=MEANING,
        paged=Paged(request, list(impact.partitions)),
        findings=[each for each in findings if name in f"{each['what']} {each['where']} "],
        log_dirs=log_dirs,
        configs=configs,
    )


async def _log_dirs(console: Console, broker_id: int) -> list[object] | HeadraceError:
    try:
        found = await console.cluster.admin.describe_log_dirs([broker_id], timeout=REQUEST_S)
    except HeadraceError as error:
        return error
    return list(found.get(broker_id, []))


async def _configs(console: Console, broker_id: int) -> list[object] | HeadraceError:
    """The configuration keys of the broker with values that differ from the defaults."""
    resource = ConfigResource("broker", str(broker_id))
    try:
        entries = (await console.cluster.admin.describe_configs([resource], timeout=REQUEST_S))[resource]
    except HeadraceError as error:
        return error
    return [entry for _, entry in sorted(entries.items()) if entry.source != "default"]
