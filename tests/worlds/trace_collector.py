"""A collector of OTLP over HTTP, and the spans of this process, for the tests of traces."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True, slots=True)
class Span:
    """One span, as a collector received it. Ids are hex; ``parent`` is "" for the first span of a trace."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent: str
    attributes: dict[str, Any]
    links: tuple[str, ...]  #: Trace ids.
    begin_ns: int
    end_ns: int
    has_error: bool
    error: str = ""  #: The text of the span's status.


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    found = []
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            found += [
                Span(
                    span.name,
                    str(resource.get("service.name", "")),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _values(span.attributes),
                    tuple(link.trace_id.hex() for link in span.links),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,
                    span.status.message,
                )
                for span in of_scope.spans
            ]
    return found


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in attributes}


class Collector:
    """A real HTTP server that accepts ``POST /v1/traces``. ``refusing``: answer 503 instead. ``moved_to``: redirect
    to this URL instead. ``gets``: number of GET requests, which come here only after a redirect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.refusing = False
        self.refused = 0
        self.moved_to = ""
        self.gets = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = owner._take(self.path, body, {name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", owner.moved_to)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                owner.gets += 1
                self.send_error(404)

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        with self._lock:
            if path != "/v1/traces":
                return 404
            if self.refusing:
                self.refused += 1
                return 503
            if self.moved_to:
                return 302
            self.headers.append(headers)
            self._spans += spans_of(ExportTraceServiceRequest.FromString(body))
            return 200

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """The spans received so far, of one trace or of all traces, sorted by start time."""
        with self._lock:
            found = [span for span in self._spans if trace_id in (None, span.trace_id)]
        return sorted(found, key=lambda span: span.begin_ns)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collector() -> Iterator[Collector]:
    made = Collector()
    try:
        yield made
    finally:
        made.close()


@functools.cache
def _exporter() -> InMemorySpanExporter:
    """The exporter of this process's TracerProvider, which a process can set only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


class OwnSpans:
    """The ended spans of this process since ``own_spans`` was called."""

    def __init__(self) -> None:
        _exporter().clear()
        self.tracer = trace.get_tracer("tests")

    def all(self) -> list[Span]:
        return spans_of(encode_spans(_exporter().get_finished_spans()))

    def named(self, name: str) -> list[Span]:
        return [span for span in self.all() if span.name == name]


def own_spans() -> OwnSpans:
    """Install a TracerProvider that samples everything and keeps the spans, and forget earlier spans."""
    return OwnSpans()
