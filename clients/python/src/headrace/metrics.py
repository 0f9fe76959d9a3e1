"""Client metrics under the names of Kafka's client metrics. A metric is updated per request, never per record, so
metrics are always on."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Any

from headrace_core.types import TopicPartition


class Samples:
    """Sum, count and maximum of a metric over the last windows (``metrics.sample.window.ms`` x
    ``metrics.num.samples``)."""

    __slots__ = ("_span_s", "started_s", "total", "windows")

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s  # of all windows
        self.windows: deque[list[float]] = deque()  # windows as [begin, sum, count, max]
        self.started_s = time.monotonic()
        self.total = 0.0

    def _recent(self) -> list[list[float]]:
        oldest = time.monotonic() - self._span_s
        # Iterate over a copy, because another thread records values.
        return [window for window in list(self.windows) if window[0] >= oldest]

    def rate(self) -> float:
        """The sum per second over the last windows."""
        recent = self._recent()
        if not recent:
            return 0.0
        span = max(time.monotonic() - max(recent[0][0], self.started_s), 1e-3)
        return sum(window[1] for window in recent) / span

    def average(self) -> float:
        """The mean value of an event; nan without events."""
        recent = self._recent()
        count = sum(window[2] for window in recent)
        return sum(window[1] for window in recent) / count if count else float("nan")

    def maximum(self) -> float:
        """The largest value in the last windows; nan without events."""
        return max((window[3] for window in self._recent()), default=float("nan"))


class PartitionCounts:
    """Counters by partition and metric name. One thread adds; any thread reads."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[TopicPartition, dict[str, float]] = {}

    def of(self, topic: str, partition: int) -> dict[str, float]:
        """The counts of one partition, to add to."""
        return self._counts.setdefault(TopicPartition(topic, partition), defaultdict(float))

    def values(self) -> dict[TopicPartition, dict[str, float]]:
        """A copy of all counts."""
        return {key: dict(counts) for key, counts in list(self._counts.items()) if counts}


class Metrics(dict[str, Samples]):
    """Samples by metric name; a name's samples are created at first use. ``record`` adds all values of a request."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self._width_s = config["metrics.sample.window.ms"] / 1000
        self._windows = config["metrics.num.samples"]

    def __missing__(self, name: str) -> Samples:
        found = self[name] = Samples(self._width_s * self._windows)
        return found

    def record(self, now: float, *values: tuple[str, float, int]) -> None:
        """Add the sum of the values of a number of events to each metric, at the time ``now`` (time.monotonic())."""
        for name, value, count in values:
            samples = self[name]
            windows = samples.windows
            if not windows or now - windows[-1][0] >= self._width_s:
                windows.append([now, 0.0, 0, value])
                if len(windows) > self._windows:
                    windows.popleft()
            last = windows[-1]
            last[1] += value
            last[2] += count
            if value > last[3]:
                last[3] = value
            samples.total += value
