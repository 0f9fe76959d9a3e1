"""The declaration of a metric, and one row of a scrape."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from .histogram import Histogram

T = TypeVar("T")


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


#: Maximum number of labels of one Column, so that a turn of the event loop stays short.
COLUMN_MAX = 128


class Column(NamedTuple):
    """Whole numbers of one metric: one row for each of ``labels``. The text of all rows is made in one step, from a
    template that the next scrape uses again if the labels are the same. If a collector yields the same Column object
    again, its text is used again, too."""

    metric: Metric
    labels: Sequence[tuple[str | int, ...]]
    values: Sequence[int]


def in_columns(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split ``items`` into slices that are short enough for a Column each."""
    return (items[begin : begin + COLUMN_MAX] for begin in range(0, len(items), COLUMN_MAX))


#: The rows of one part of a node. A collector that computes for a long time yields None where the event loop may do
#: other work.
Rows = Iterator[Row | Column | None]
#: Returns rows. The rows are read in several turns of the event loop, so a collector must copy a list or dict before it
#: iterates over it.
Collector = Callable[[], Rows]
