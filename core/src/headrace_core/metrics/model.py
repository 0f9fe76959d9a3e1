"""What a metric is, and one row of a scrape."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .histogram import Histogram


class Kind(enum.StrEnum):
    """The types of OpenMetrics that Headrace uses."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Source(enum.StrEnum):
    """The project that gave a metric its name."""

    KAFKA = "Kafka's JMX beans"
    EXPORTER = "kafka_exporter"
    PROMETHEUS = "Prometheus"
    HEADRACE = "Headrace"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric family. ``name`` has no ``_total``; the text adds it to counters. ``labels``: the names of the labels,
    in order. A row without label values is the total of the node. ``bean``: the MBean of Kafka with the same
    meaning."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    roles: tuple[str, ...]
    source: Source
    bean: str = ""

    @property
    def sample_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


class Quantiles(NamedTuple):
    """The value of a summary. ``scale`` multiplies the seconds of the histogram (1,000 for names in ms)."""

    quantiles: list[tuple[str, float]]
    histogram: Histogram
    scale: float = 1.0


class Row(NamedTuple):
    """One value. ``labels``: the values of the metric's labels, or nothing for the total."""

    metric: Metric
    labels: tuple[str | int, ...]
    value: float | Histogram | Quantiles


#: The rows of one part of a node. None is a place where the event loop may do other work, for a collector that computes
#: long without a row.
Rows = Iterator[Row | None]
#: Returns rows. They are read in several turns of the event loop: a collector copies a collection before it iterates
#: over it.
Collector = Callable[[], Rows]
