"""Metrics and traces of nodes: a scrape that reads as Prometheus does, a collector of OTLP over HTTP, the spans of
this process, and the trace of a record that Spark copies."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.records import Record
from tests.worlds.waiting import until

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)\Z")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of a scrape. ``node``: (role, id) of the node."""

    node: tuple[str, int]
    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """The samples of one scrape of all nodes."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    def of(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a name with exactly these labels; a label "*" may have any value."""
        return [
            each
            for each in self.samples
            if each.name == name
            and each.labels.keys() == labels.keys()
            and all(value in ("*", each.labels[label]) for label, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all nodes."""
        return sum(each.value for each in self.of(name, **labels))

    def names(self) -> set[str]:
        return {each.name for each in self.samples}


def text_of(url: str, accept: str = "") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def scrape(nodes: Iterable[Mapping[str, Any]]) -> Scrape:
    """Scrape the nodes, which are rows of ``ps``; dead nodes are left out."""
    return Scrape(
        sample
        for node in nodes
        if node["pid"] is not None
        for sample in samples_of(text_of(node["metrics"]), (node["role"], node["id"]))
    )


def samples_of(text: str, node: tuple[str, int] = ("", 0)) -> Iterator[Sample]:
    """Parse a text. Raises AssertionError for a line that is neither a sample nor a comment."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = _LINE.match(line)
            assert match is not None, line
            yield Sample(node, match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"]))


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


DRIVER = Path(__file__).parents[1] / "integration" / "spark" / "trace_driver.py"
UNTRACED = 1_000  #: Number of records before the traced record.
#: Number of spans besides the producer's span: one append and two replications for each topic, one of the source, one
#: of the sink.
REMOTE_SPANS = 8


@dataclass(frozen=True, slots=True)
class TracedCopy:
    """``sent``: the producer's span. ``spans``: the trace's other spans. ``written``: the records of the copy."""

    sent: Span
    spans: list[Span]
    written: list[Record]


def traced_copy() -> TracedCopy:
    """Send a traced record to ``orders``, let Spark copy the topic to ``paid``, and wait for the trace."""
    own = own_spans()
    with collector() as collecting:
        config = {"otel.exporter.otlp.endpoint": collecting.url}
        with LocalCluster(controllers=1, brokers=3, coordinators=1, config=config) as cluster:
            servers = cluster.bootstrap_servers
            with Admin(bootstrap_servers=servers) as admin:
                admin.create_topics([NewTopic(name, 1, replication_factor=3) for name in ("orders", "paid")])
            with Producer(bootstrap_servers=servers) as untraced:
                untraced.send_many("orders", [b"untraced"] * UNTRACED).result(60)
            with Producer(bootstrap_servers=servers, otel_traces_enable=True) as producer:
                producer.send("orders", b"traced", headers={"shop": b"7"}).result(60)
            _copy(servers, collecting)
            (sent,) = own.named("send orders")
            until(lambda: len(collecting.spans(sent.trace_id)) >= REMOTE_SPANS, lambda: str(collecting.spans()))
            return TracedCopy(
                replace(sent, service="the producer's program"),
                collecting.spans(sent.trace_id),
                list(_records(servers, TopicPartition("paid", 0))),
            )


def _copy(servers: str, collecting: Collector) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url}
    done = subprocess.run(
        [sys.executable, str(DRIVER), servers], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _records(servers: str, partition: TopicPartition) -> Iterator[Record]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        left = consumer.end_offsets([partition])[partition]
        while left:
            for record in until(lambda: consumer.poll(1.0)):
                left -= 1
                yield record
