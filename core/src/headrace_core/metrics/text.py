"""The text of a scrape, in the two formats that Prometheus reads. Pure.

OpenMetrics 1.0: the family of a counter has no ``_total``, and the text ends with ``# EOF``. Prometheus 0.0.4: the name
of a counter's family is the name of its samples.
"""

from __future__ import annotations

import functools
import math
from itertools import accumulate
from typing import Any, cast

from .histogram import Histogram
from .model import Column, Metric, Quantiles, Row

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

END = b"# EOF\n"  #: The last line of OpenMetrics.

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Labels = tuple[str | int, ...]


class Writer:
    """Writes the sample lines of rows. Names with labels are the same in each scrape, and building them again would
    take most of a scrape's processor time. The writer therefore caches names with their labels, and the text of
    unchanged values, for the next scrape. ``end_scrape`` drops entries that the scrape did not use, such as the names
    of a deleted topic."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._used: dict[Any, Any] = {}

    def lines_of(self, row: Row | Column) -> bytes:
        """The lines of one row or column, in UTF-8, each with its line break."""
        if isinstance(row, Column):
            return self._column(row)
        metric, labels, value = row
        if isinstance(value, Histogram):
            return self._histogram(metric, labels, value)
        if isinstance(value, Quantiles):
            return self._summary(metric, labels, value)
        key = metric, labels
        name = self._used[key] = self._kept.get(key) or _name(metric, labels)
        return f"{name} {value if type(value) is int else _number(value)}\n".encode()

    def end_scrape(self) -> None:
        self._kept, self._used = self._used, {}

    def _column(self, column: Column) -> bytes:
        metric, labels, values = column
        if not labels:
            return b""
        key = metric, labels[0], Column
        before, template, text = cast("tuple[Column | None, bytes, bytes]", self._kept.get(key, _NOTHING))
        if before is not column:
            if before is None or before.labels != labels:
                template = "".join(f"{_literal(_name(metric, each))} %d\n" for each in labels).encode()
            text = template % tuple(values)  # bytes, because formatting bytes takes half as long as formatting str
        self._used[key] = column, template, text
        return text

    def _histogram(self, metric: Metric, labels: Labels, histogram: Histogram) -> bytes:
        key = metric, labels
        counts, total = list(histogram.counts), histogram.total
        before, template, text = cast("tuple[Any, str, bytes]", self._kept.get(key, _NOTHING))
        if before != (counts, total):
            template = template or _template(metric, labels, histogram)
            seen = list(accumulate(counts))
            text = (template % (*seen, _number(total), seen[-1])).encode()
        self._used[key] = (counts, total), template, text
        return text

    def _summary(self, metric: Metric, labels: Labels, value: Quantiles) -> bytes:
        key = metric, labels
        now = value.quantiles, value.scale, value.histogram.total, value.histogram.count
        before, _, text = cast("tuple[Any, str, bytes]", self._kept.get(key, _NOTHING))
        if before != now:
            text = _summary(metric.name, _pairs(metric, labels), value).encode()
        self._used[key] = now, "", text
        return text


#: The cache entry of a new row: no value, no template, no text.
_NOTHING = (None, "", b"")


@functools.cache
def heads_of(metric: Metric) -> tuple[bytes, bytes]:
    """The lines # HELP and # TYPE in front of a metric's samples, in OpenMetrics and in Prometheus's text."""
    return _head(metric, metric.name, _ESCAPES), _head(metric, metric.sample_name, _HELP_ESCAPES)


def _head(metric: Metric, name: str, escapes: dict[int, str]) -> bytes:
    return f"# HELP {name} {metric.help.translate(escapes)}\n# TYPE {name} {metric.kind}\n".encode()


def wants_openmetrics(accept: str | None) -> bool:
    """Whether a client with this Accept header (RFC 9110, 12.5.1) prefers OpenMetrics to Prometheus's text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0, "*/*": 0.0}
    for item in (accept or "").lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        if name in weights:
            given = dict(part.partition("=")[::2] for part in parameters)
            weights[name] = max(weights[name], _weight(given.get("q", "1")))
    return weights["application/openmetrics-text"] > 0 and (
        weights["application/openmetrics-text"] >= weights["text/plain"]
    )


def _weight(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        return 0.0
    return found if 0 <= found <= 1 else 0.0


def _name(metric: Metric, labels: Labels) -> str:
    """The name of a sample with its labels."""
    return f"{metric.sample_name}{_braces(_pairs(metric, labels))}"


def _literal(text: str) -> str:
    """Escape the text for use in a template of the operator %."""
    return text.replace("%", "%%")


def _pairs(metric: Metric, labels: Labels) -> list[str]:
    return [f'{name}="{_escaped(given)}"' for name, given in zip(metric.labels, labels, strict=bool(labels))]


def _template(metric: Metric, labels: Labels, histogram: Histogram) -> str:
    """The template of a histogram's lines."""
    name, pairs = metric.name, _pairs(metric, labels)
    buckets = [_braces([*pairs, f'le="{_number(float(bound))}"']) for bound in (*histogram.bounds, math.inf)]
    own = _literal(_braces(pairs))
    lines = [f"{name}_bucket{_literal(each)} %d\n" for each in buckets]
    return "".join([*lines, f"{name}_sum{own} %s\n", f"{name}_count{own} %d\n"])


def _summary(name: str, pairs: list[str], value: Quantiles) -> str:
    lines = []
    for share, found in value.quantiles:
        if not math.isnan(found):
            labels = _braces([*pairs, f'quantile="{share}"'])
            lines.append(f"{name}{labels} {_number(found * value.scale)}\n")
    lines.append(f"{name}_sum{_braces(pairs)} {_number(value.histogram.total * value.scale)}\n")
    lines.append(f"{name}_count{_braces(pairs)} {value.histogram.count}\n")
    return "".join(lines)


def _braces(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str | int) -> str:
    return value.translate(_ESCAPES) if isinstance(value, str) else str(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
