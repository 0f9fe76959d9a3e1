"""Samples of the cluster over time, for the charts. The samples are limited in number and kept only in memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Number of samples kept: they cover 24 minutes while pages are viewed, and three hours of an idle console.
POINTS_MAX = 360
#: Number of groups whose lag is kept; groups with the largest lag are preferred.
GROUPS_MAX = 300


@dataclass(frozen=True, slots=True)
class ClusterPoint:
    """``at_ms``: wall-clock time of the sample; the rates are averages since the previous point."""

    at_ms: int
    records_per_s: float
    bytes_per_s: float
    total_lag: int


@dataclass(frozen=True, slots=True)
class LagPoint:
    """``lag``: number of unread records; ``lag_ms``: age of the oldest unread record, None if unknown."""

    at_ms: int
    lag: int
    lag_ms: int | None


class History:
    """The last POINTS_MAX samples of the cluster and of each group."""

    def __init__(self) -> None:
        self.cluster: deque[ClusterPoint] = deque(maxlen=POINTS_MAX)
        self._groups: dict[str, deque[LagPoint]] = {}

    def add(self, point: ClusterPoint, lags: Mapping[str, LagPoint]) -> None:
        """Add a sample. Groups that are not in ``lags`` are removed; if there are too many groups, those with the
        smallest lags are removed."""
        self.cluster.append(point)
        kept = sorted(lags, key=lambda group: (-lags[group].lag, group))[:GROUPS_MAX]
        self._groups = {group: self._groups.get(group) or deque(maxlen=POINTS_MAX) for group in kept}
        for group in kept:
            self._groups[group].append(lags[group])

    def group(self, group_id: str) -> tuple[LagPoint, ...]:
        return tuple(self._groups.get(group_id, ()))


def grown_since(points: Iterable[LagPoint]) -> int | None:
    """The time at which the present lag began: the wall-clock time of the first sample with a lag after the last sample
    without a lag. The result is None if there is no lag now, or if the lag was never zero in ``points``."""
    since, was_zero = None, False
    for point in points:
        if point.lag == 0:
            since, was_zero = None, True
        elif since is None and was_zero:
            since = point.at_ms
    return since
