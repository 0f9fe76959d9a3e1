"""Histograms with fixed buckets, and quantiles of the last minutes. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

#: Upper bounds, in seconds, of the buckets of every duration.
DURATION_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
#: Upper bounds of the buckets for group sizes, such as the appends of one group commit.
COUNT_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

#: The quantiles of Kafka's JMX beans: 50thPercentile to 999thPercentile, as the JMX exporter writes them.
QUANTILES = ((0.5, "0.50"), (0.75, "0.75"), (0.95, "0.95"), (0.98, "0.98"), (0.99, "0.99"), (0.999, "0.999"))


class Histogram:
    """Counts of values by bucket. ``counts`` has one more item than ``bounds``: the values above the last bound. One
    thread observes; ``observe`` costs less than a microsecond."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  #: The sum of all observed values.

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the quantile ``share`` (0 to 1) of the counted values, interpolated linearly within its bucket, as
    Prometheus's histogram_quantile does. A value above the last bound counts as the last bound. Returns nan if there
    are no values."""
    total = sum(counts)
    if not total:
        return float("nan")
    wanted, seen = share * total, 0
    for index, count in enumerate(counts):
        if count and seen + count >= wanted:
            if index == len(bounds):
                return bounds[-1]
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * max(0.0, wanted - seen) / count
        seen += count
    return bounds[-1]


class RecentQuantiles:
    """Quantiles of a histogram over the last ``window_s`` seconds or longer, for metrics that have the names of Kafka's
    JMX beans. (The quantiles of Kafka's beans favour the last five minutes.) RecentQuantiles needs no timer: each read
    may store the counts at the time of the read."""

    __slots__ = ("_found", "_histogram", "_of", "_snapshots", "_step_s", "_window_s")

    def __init__(self, histogram: Histogram, *, window_s: float = 300.0) -> None:
        self._histogram = histogram
        self._window_s = window_s
        self._step_s = window_s / 5
        self._snapshots: deque[tuple[float, list[int]]] = deque()
        self._of: list[int] = []  # the counts from which ``_found`` was computed
        self._found: list[tuple[str, float]] = []

    def read(self, now_s: float) -> list[tuple[str, float]]:
        """The quantiles as pairs (text of the label, value): the same object as before if no count has changed.
        ``now_s``: any steady clock."""
        snapshots, counts = self._snapshots, list(self._histogram.counts)
        while len(snapshots) > 1 and snapshots[1][0] <= now_s - self._window_s:
            snapshots.popleft()
        recent = counts
        if snapshots and snapshots[0][0] <= now_s - self._window_s:
            recent = [now - before for now, before in zip(counts, snapshots[0][1], strict=True)]
        if not snapshots or snapshots[-1][0] <= now_s - self._step_s:
            snapshots.append((now_s, counts))
        if recent != self._of:
            self._of = recent
            self._found = [(text, quantile(self._histogram.bounds, recent, share)) for share, text in QUANTILES]
        return self._found
