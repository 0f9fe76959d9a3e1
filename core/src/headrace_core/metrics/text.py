"""The text of a scrape, in the two formats that Prometheus reads. Pure.

OpenMetrics 1.0: the family of a counter has no ``_total``, and the text ends with ``# EOF``. Prometheus 0.0.4: the name
of a counter's family is the name of its samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

from .histogram import Histogram
from .model import Metric, Quantiles, Row

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

END = "# EOF\n"  #: The last line of OpenMetrics.

#: Names with labels that ``_named`` keeps. A scrape makes the same ones each time; without the cache, they are most of
#: its processor time.
NAMES_KEPT = 1 << 16

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def lines_of(row: Row) -> Iterable[str]:
    """The sample lines of one row."""
    metric, values, value = row
    if type(value) is int:  # most rows
        return (f"{_named(metric, values)} {value}",)
    if isinstance(value, Histogram):
        return _histogram(metric.name, _pairs(metric, values), value)
    if isinstance(value, Quantiles):
        return _summary(metric.name, _pairs(metric, values), value)
    return (f"{_named(metric, values)} {_number(value)}",)


def text(families: Mapping[Metric, Iterable[str]], *, openmetrics: bool) -> str:
    """The whole text. ``families``: the sample lines of each metric."""
    parts = [
        head_of(metric, openmetrics=openmetrics) + "".join(f"{line}\n" for line in families[metric])
        for metric in families
    ]
    return "".join(parts) + (END if openmetrics else "")


@functools.cache
def head_of(metric: Metric, *, openmetrics: bool) -> str:
    """The lines in front of a family's samples."""
    name = metric.name if openmetrics else metric.sample_name
    help_text = metric.help.translate(_ESCAPES if openmetrics else _HELP_ESCAPES)
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}\n"


def wants_openmetrics(accept: str | None) -> bool:
    """Whether a client with this header Accept (RFC 9110, 12.5.1) prefers OpenMetrics to Prometheus's text."""
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


@functools.lru_cache(NAMES_KEPT)
def _named(metric: Metric, values: tuple[str | int, ...]) -> str:
    """The name of a sample with its labels."""
    return f"{metric.sample_name}{_braces(_pairs(metric, values))}"


def _pairs(metric: Metric, values: tuple[str | int, ...]) -> list[str]:
    return [f'{name}="{_escaped(given)}"' for name, given in zip(metric.labels, values, strict=bool(values))]


def _histogram(name: str, pairs: list[str], histogram: Histogram) -> Iterator[str]:
    seen = 0
    for bound, count in zip((*histogram.bounds, math.inf), list(histogram.counts), strict=True):
        seen += count
        labels = _braces([*pairs, f'le="{_number(float(bound))}"'])
        yield f"{name}_bucket{labels} {seen}"
    yield f"{name}_sum{_braces(pairs)} {_number(histogram.total)}"
    yield f"{name}_count{_braces(pairs)} {seen}"


def _summary(name: str, pairs: list[str], value: Quantiles) -> Iterator[str]:
    for share, found in value.quantiles:
        if not math.isnan(found):
            labels = _braces([*pairs, f'quantile="{share}"'])
            yield f"{name}{labels} {_number(found * value.scale)}"
    yield f"{name}_sum{_braces(pairs)} {_number(value.histogram.total * value.scale)}"
    yield f"{name}_count{_braces(pairs)} {value.histogram.count}"


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
