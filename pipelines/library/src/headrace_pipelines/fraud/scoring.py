"""Precision and recall of the alerts against the planted truth, and percentiles of the latency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .planting import Fraud
from .schema import KINDS, Alert

#: Upper limit, in milliseconds, of the time between two payments of one incident. An incident has alerts of one kind
#: for one customer.
INCIDENT_MS = 3_600_000


def scores(alerts: Iterable[Alert], truth: Mapping[int, Fraud]) -> dict[str, dict[str, Any]]:
    """The scores of each kind of fraud. ``truth`` maps payments to their planted fraud.

    An alert is right if the alert's payment belongs to a planted fraud of the alert's kind. A long fraud has many
    alerts and one incident; an incident is right if one of its alerts is right. ``precision``: the share of right
    incidents among all incidents. ``precision_of_alerts``: the share of right alerts among all alerts. ``recall``: the
    share of planted frauds with a right alert among all planted frauds. A score is None if there is nothing to divide
    by.
    """
    by_kind: dict[str, list[Alert]] = {kind: [] for kind in KINDS}
    for alert in alerts:
        by_kind[alert.kind].append(alert)
    result = {}
    for kind, of_kind in by_kind.items():
        planted = {fraud.number for fraud in truth.values() if fraud.kind == kind}
        right = {alert.payment for alert in of_kind if alert.payment in truth and truth[alert.payment].kind == kind}
        found = {truth[payment].number for payment in right}
        incidents = _incidents(of_kind)
        result[kind] = {
            "planted": len(planted),
            "found": len(found),
            "alerts": len(of_kind),
            "incidents": len(incidents),
            "precision": _ratio(sum(not right.isdisjoint(each) for each in incidents), len(incidents)),
            "precision_of_alerts": _ratio(len(right), len(of_kind)),
            "recall": _ratio(len(found), len(planted)),
        }
    return result


def _incidents(alerts: Iterable[Alert]) -> list[list[int]]:
    """The payments of each incident."""
    incidents: list[list[int]] = []
    last: Alert | None = None
    for alert in sorted(alerts, key=lambda each: (each.customer, each.time_ms)):
        if last is None or alert.customer != last.customer or alert.time_ms - last.time_ms >= INCIDENT_MS:
            incidents.append([])
        incidents[-1].append(alert.payment)
        last = alert
    return incidents


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile: the smallest value such that at least ``percent`` % of the values are at most as large. None
    without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latencies(milliseconds: Sequence[float]) -> dict[str, float | None]:
    """The percentiles of a list of latencies (None without any), and the length of the list."""
    found = {f"p{percent}": percentile(milliseconds, percent) for percent in (50, 99)}
    rounded = {name: value if value is None else round(value) for name, value in found.items()}
    return {**rounded, "samples": len(milliseconds)}
