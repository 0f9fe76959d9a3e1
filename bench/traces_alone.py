"""Measure the cost of each path of traces alone: the processor time of this process, with its threads, for many
repetitions.

``*.span`` is the time of one span from its beginning until a collector has it. A producer with a ratio below 1 traces
at most ``per_second`` records a second, and a traced record makes one span of the producer, one of the leader and one
of each of two followers. ``nodes.traced`` and ``client.traced`` are the times of these spans in a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from measure import Samples
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from headrace.tracing import ProducerTraces
from headrace_broker.partition.messages import PushTrace
from headrace_broker.tracing import BrokerTraces
from headrace_core.log import AppendInfo
from headrace_core.records import encode_batch, iterate_headers
from headrace_core.tracing.node import NodeTraces, TraceSettings
from headrace_core.types import TopicPartition
from headrace_gateway.tracing import GatewayTraces
from headrace_protos.v1 import produce_pb2

_ROUNDS, _SPANS = 7, 1_000  #: Number of spans of one round, which fit into the queues of the exporters.
_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_PARTITION = TopicPartition("orders", 0)


def measured(url: str, per_second: int) -> Samples:
    """Measure all paths. ``url``: a collector in another process."""
    samples = Samples()
    batch = bytes(encode_batch([(1, None, b"x" * 100, [])] * 140))  # about 16 KiB
    _node_spans(samples, url, batch)
    _client_spans(samples, url)
    _looks(samples, batch)
    median = samples.median
    append, replicate, sent = median("append.span"), median("replicate.span"), median("send.span")
    assert append is not None
    assert replicate is not None
    assert sent is not None
    samples.add("nodes.traced", per_second * (append + 2 * replicate) / 1_000, "ms/s")
    samples.add("client.traced", per_second * sent / 1_000, "ms/s")
    return samples


def _time(
    samples: Samples, name: str, count: int, work: Callable[[], Any], end: Callable[[], Any] | None = None
) -> None:
    for _ in range(_ROUNDS):
        begun_s = time.process_time()
        for _ in range(count):
            work()
        if end is not None:
            end()
        samples.add(name, 1e6 * (time.process_time() - begun_s) / count, "us")


def _node(url: str) -> NodeTraces:
    node = NodeTraces("broker", TraceSettings(f"{url}/v1/traces", {}, 10), spans_per_second_max=10**9)
    node.start(1)
    return node


def _node_spans(samples: Samples, url: str, batch: bytes) -> None:
    node = _node(url)
    traces = BrokerTraces(node)
    headers = [header for _, header in iterate_headers(batch)]
    outcome: Any = SimpleNamespace(base_offset=7, next_offset=147)
    assert {"base_offset", "next_offset"} <= set(dir(AppendInfo))

    def append() -> None:
        span = traces.append(_PARTITION, _PARENT, len(batch))
        assert span is not None
        span.submitted(headers, 2)
        span.written()
        span.end(outcome)

    def replicate() -> None:
        traces.replicate(_PARTITION, 1, [PushTrace(7, _PARENT)])(outcome)

    def sent() -> None:
        node.close()
        node.start(1)

    _time(samples, "append.span", _SPANS, append, sent)
    _time(samples, "replicate.span", _SPANS, replicate, sent)
    node.close()


def _client_spans(samples: Samples, url: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    trace.set_tracer_provider(provider)
    traces = ProducerTraces({"client.id": "till", "otel.traces.ratio": 0.01, "otel.traces.per.second.max": 10})
    metadata = SimpleNamespace(partition=0, offset=7)
    future = SimpleNamespace(cancelled=lambda: False, exception=lambda: None, result=lambda: metadata)

    def send() -> None:
        span = traces.begin("orders", b"order-7", None)
        assert span is not None
        span.one_done(future)

    _time(samples, "send.span", _SPANS, send, provider.force_flush)
    provider.shutdown()


def _looks(samples: Samples, batch: bytes) -> None:
    """The cost of batches without a trace: the checks of a broker and a gateway, with and without traces."""
    request = produce_pb2.ProduceRequest()
    part = request.partitions.add(topic="orders", partition=0, records=batch)
    gateway = GatewayTraces(None)  # type: ignore[arg-type]  # no batch has a context, so no span begins

    def broker(traces: object | None) -> bool:
        return traces is not None and bool(part.traceparent)

    _time(samples, "broker.batch.off", 100_000, lambda: broker(None))
    _time(samples, "broker.batch.on", 100_000, lambda: broker(gateway))
    _time(samples, "gateway.batch.on", 20_000, lambda: gateway.produce(request, "till"))
