"""The spans of a node, which exports them to a collector (``otel.exporter.otlp.endpoint``).

A node never begins a trace: it makes spans only for requests that carry the context of a sampled span. Without an
endpoint a node has no NodeTraces, and imports no OpenTelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ..errors import HeadraceError, InvalidConfigError, MissingDependencyError
from .context import parse_traceparent
from .spans import SYSTEM, as_parent, opentelemetry, trace_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from .export import SpanExport

ENDPOINT, HEADERS, TIMEOUT = (
    "otel.exporter.otlp.endpoint",
    "otel.exporter.otlp.headers",
    "otel.exporter.otlp.timeout.ms",
)
#: Maximum number of spans that a node makes in a second, because producers decide what is traced. A span takes about
#: 100 us.
SPANS_PER_SECOND_MAX = 500
#: The path of traces, which OTLP adds to the endpoint.
_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The collector to which a node sends its spans, with the settings of the requests. ``url`` includes the path of
    OTLP's traces."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TraceSettings | None:
        """Create the object from a node's configuration; None if the node exports no traces. Raises
        InvalidConfigError."""
        endpoint: str = values[ENDPOINT]
        if not endpoint:
            return None
        if not endpoint.startswith(("http://", "https://")):
            raise InvalidConfigError(
                f"{ENDPOINT}={endpoint}: write the URL of a collector that accepts OTLP over HTTP, such as "
                "http://127.0.0.1:4318"
            )
        url = endpoint.rstrip("/")
        return cls(url if url.endswith(_PATH) else url + _PATH, _headers(values[HEADERS] or ""), values[TIMEOUT] / 1000)


def _headers(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = item.partition("=")
        if not equals or not name.strip() or not (name + value).isprintable():
            raise InvalidConfigError(f"{HEADERS}: write name=value pairs, with commas between them")
        found[name.strip()] = value.strip()
    return found


class NodeSpan:
    """One span of a node, from its creation to ``end``. ``traceparent``: the span's context, for requests to other
    nodes."""

    __slots__ = ("_span", "began_ns", "traceparent")

    def __init__(self, span: Span, began_ns: int) -> None:
        self._span = span
        self.began_ns = began_ns
        self.traceparent = trace_context(span.get_span_context()).traceparent

    def set(self, attributes: Mapping[str, str | int | float | bool]) -> None:
        self._span.set_attributes(attributes)

    def passed_ms(self) -> float:
        """Milliseconds since the beginning of the span."""
        return (time.time_ns() - self.began_ns) / 1e6

    def end(self, error: HeadraceError | None = None) -> None:
        """End the span. ``error``: why the work that the span describes failed; None if it succeeded."""
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", error.code)
            self._span.set_status(StatusCode.ERROR, error.message)
        self._span.end()


class NodeTraces:
    """Makes the spans of one node, between ``start`` and ``close``."""

    def __init__(self, role: str, settings: TraceSettings, spans_per_second_max: int = SPANS_PER_SECOND_MAX) -> None:
        """Raises MissingDependencyError without OpenTelemetry's SDK."""
        self._api = opentelemetry(ENDPOINT)
        try:
            from . import export
        except ImportError:
            raise MissingDependencyError(
                f"{ENDPOINT} needs OpenTelemetry's SDK, which is not installed: pip install 'headrace-core[otel]'"
            ) from None
        self._module = export
        self._role, self._settings = role, settings
        self._common: dict[str, str | int] = {}
        self._most = spans_per_second_max
        self._second, self._made = 0, 0  # the present second since 1970, and the spans that were made in it
        self.export: SpanExport | None = None  #: Set by ``start``.
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None

    @classmethod
    def of(cls, role: str, values: Mapping[str, Any]) -> NodeTraces | None:
        """Create the object from a node's configuration; None if the node exports no traces. Raises InvalidConfigError,
        MissingDependencyError."""
        settings = TraceSettings.of(values)
        return None if settings is None else cls(role, settings)

    def start(self, node_id: int) -> None:
        """Start the thread that exports. Call ``start`` again when the node has another id."""
        settings, export = self._settings, self.export
        if self._provider is None or export is None:
            export = self.export = self._module.SpanExport(settings.url, settings.headers, settings.timeout_s)
        self._provider = self._module.provider_of(self._role, node_id, export)
        self._tracer = self._provider.get_tracer("headrace", version("headrace-core"))
        self._common = {"messaging.system": SYSTEM, "headrace.node.role": self._role, "headrace.node.id": node_id}

    def begin(self, name: str, traceparent: str, attributes: Mapping[str, str | int]) -> NodeSpan | None:
        """Begin a span as a child of ``traceparent``. Returns None if ``traceparent`` is invalid or not sampled, if
        SPANS_PER_SECOND_MAX is reached, or before ``start``."""
        parent = parse_traceparent(traceparent)
        if parent is None or not parent.is_sampled or self._tracer is None:
            return None
        began_ns = time.time_ns()
        if began_ns // 1_000_000_000 != self._second:
            self._second, self._made = began_ns // 1_000_000_000, 0
        if self._made >= self._most:
            return None
        self._made += 1
        span = self._tracer.start_span(
            name,
            context=as_parent(parent),
            kind=self._api.SpanKind.SERVER,
            attributes={**self._common, **attributes},
            start_time=began_ns,
        )
        return NodeSpan(span, began_ns)

    def close(self) -> None:
        """Send the last spans, within otel.exporter.otlp.timeout.ms. Blocks: call it on a thread. Idempotent."""
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is not None:
            provider.shutdown()
