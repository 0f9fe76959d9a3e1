"""The first page: the cluster at a glance, what is wrong, and what to do about it."""

from __future__ import annotations

from aiohttp import web

from ..console import Console
from ..watching import finding_rows


async def overview(console: Console, request: web.Request) -> web.StreamResponse:
    view = await console.view()
    diagnosis = console.watching.diagnosis.view()
    points = list(console.watching.history.cluster)
    chart = {
        "x": [point.at_ms / 1_000 for point in points],
        "series": [
            {"label": "records/s", "values": [round(point.records_per_s, 1) for point in points]},
            {"label": "unread records of all groups", "values": [point.total_lag for point in points], "scale": "lag"},
        ],
    }
    return console.page(
        request,
        "overview.html",
        section="cluster",
        view=view,
        behind=[] if view is None else _behind(view.frame.groups),
        diagnosis=None if diagnosis is None else diagnosis.value,
        diagnosis_age_s=None if diagnosis is None else diagnosis.age_s,
        findings=[] if diagnosis is None else finding_rows(diagnosis.value),
        chart_values=chart,
    )


async def findings(console: Console, request: web.Request) -> web.StreamResponse:
    """Only the doctor's findings, which the first page loads when they are ready."""
    diagnosis = await console.watching.diagnosis.viewed(20.0)
    return console.page(
        request,
        "findings.html",
        section="cluster",
        diagnosis=None if diagnosis is None else diagnosis.value,
        diagnosis_age_s=None if diagnosis is None else diagnosis.age_s,
        findings=[] if diagnosis is None else finding_rows(diagnosis.value),
    )


def _behind(groups: tuple[object, ...]) -> list[object]:
    return [row for row in groups if getattr(row, "status", None) in ("WARN", "ERR")]
