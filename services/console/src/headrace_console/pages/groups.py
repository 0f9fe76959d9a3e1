"""The pages of groups: which group lags, since when, and why a group rebalanced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from headrace.group_models import GroupLag, Rebalance
from headrace_core.errors import HeadraceError
from headrace_tools.top.frames import GroupRow

from ..cluster import REQUEST_S
from ..console import Console, Paged, now_ms, required, text_of
from ..history import grown_since
from ..watching import View

_WORST = {"ERR": 0, "WARN": 1, "OK": 2, None: 3}
_ORDERS: dict[str, Callable[[GroupRow], Any]] = {
    "trouble": lambda row: (_WORST.get(row.status, 3), -(row.lag or 0), row.group),
    "lag": lambda row: (-(row.lag or 0), row.group),
    "name": lambda row: row.group,
}
#: The meaning of each verdict on a group, the worst first (Burrow's rules).
VERDICTS = {
    "STOP": "the group has unread records, but no longer commits: its members have ended, or hang",
    "STALL": "the group commits, but its offset does not move: a record blocks it, or its processing",
    "REWIND": "the committed offset went back: the group reads records again",
    "WARN": "the group makes progress, but its lag grows: it is slower than the producers",
    "OK": "the group keeps up",
}


async def groups(console: Console, request: web.Request) -> web.StreamResponse:
    view = await console.view()
    wanted, order = text_of(request, "q")[:4_096], text_of(request, "sort", "trouble")
    order = order if order in _ORDERS else "trouble"
    rows = [] if view is None else [row for row in view.frame.groups if wanted.lower() in row.group.lower()]
    rows.sort(key=_ORDERS[order])
    paged = Paged(request, rows)
    return console.page(
        request,
        "groups.html",
        section="groups",
        view=view,
        q=wanted,
        sort=order,
        orders=list(_ORDERS),
        paged=paged,
        since={} if view is None else {row.group: view.lags_since_ms(row.group) for row in paged.items},
        verdicts=VERDICTS,
    )


async def group(console: Console, request: web.Request) -> web.StreamResponse:
    group_id = required(request, "id", "group")
    admin = console.cluster.admin
    view = await console.view()
    described = (await admin.describe_groups([group_id], timeout=REQUEST_S))[0]
    lag, rebalances = await asyncio.gather(_lag(console, group_id), _rebalances(console, group_id))
    points = console.watching.history.group(group_id)
    parts = [] if isinstance(lag, HeadraceError) else list(lag.partitions)
    parts.sort(key=lambda each: (-(each.lag or 0), each.topic, each.partition))
    now = now_ms()
    oldest_ms = max((each.lag_ms for each in parts if each.lag_ms is not None and each.lag), default=None)
    owners = {(tp.topic, tp.partition): member for member in described.members for tp in member.assigned}
    return console.page(
        request,
        "group.html",
        section="groups",
        group=described,
        lag=None if isinstance(lag, HeadraceError) else lag,
        lag_error=lag if isinstance(lag, HeadraceError) else None,
        story=_story(described.state, None if isinstance(lag, HeadraceError) else lag, view),
        paged=Paged(request, parts),
        owners=owners,
        since_ms=None if oldest_ms is None else now - oldest_ms,
        zero_ms=grown_since(points),
        last_commit_ms=max((each.commit_timestamp_ms for each in parts), default=None),
        now=now,
        rebalances=None if isinstance(rebalances, HeadraceError) else list(reversed(rebalances)),
        rebalance_error=rebalances if isinstance(rebalances, HeadraceError) else None,
        verdicts=VERDICTS,
        chart_values={
            "x": [point.at_ms / 1_000 for point in points],
            "series": [
                {"label": "unread records", "values": [point.lag for point in points]},
                {
                    "label": "seconds behind",
                    "values": [None if point.lag_ms is None else point.lag_ms / 1_000 for point in points],
                    "scale": "seconds",
                },
            ],
        },
    )


async def _lag(console: Console, group_id: str) -> GroupLag | HeadraceError:
    try:
        return (await console.cluster.admin.describe_lag([group_id], timeout=REQUEST_S))[0]
    except HeadraceError as error:
        return error


async def _rebalances(console: Console, group_id: str) -> list[Rebalance] | HeadraceError:
    try:
        return await console.cluster.admin.explain_group(group_id, timeout=REQUEST_S)
    except HeadraceError as error:
        return error


def _story(state: str, lag: GroupLag | None, view: View | None) -> str:
    """One sentence about the group as a whole."""
    if lag is None:
        return "The lag of this group is not known now."
    statuses = {each.status for each in lag.partitions}
    worst = next((each for each in VERDICTS if each in statuses), "OK")
    if not lag.partitions:
        return "The group has committed no offset yet."
    if lag.total_lag == 0:
        return "The group has read everything."
    if state == "empty" and lag.total_lag:
        return "The group has unread records and no member: start its consumers."
    if worst == "OK":
        return "The group has unread records. Its recent commits are no reason for concern, or too few to judge."
    text = VERDICTS[worst]
    return f"{text[0].upper()}{text[1:]}."
