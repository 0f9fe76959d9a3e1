"""OpenTelemetry spans of Spark tasks, with the option ``headrace.otel.traces.enable`` (extra ``otel``).

A worker takes its exporter from the standard variables, such as OTEL_EXPORTER_OTLP_ENDPOINT, unless the program has
set a TracerProvider. Spark may end a worker with a signal at any time, so each task sends its spans at its end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace_core.errors import MissingDependencyError
from headrace_core.tracing.spans import SYSTEM, as_parent, opentelemetry

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.trace import Tracer

KEY = "otel.traces.enable"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

#: Maximum number of rows of one task that get a span of the source.
ROWS_MAX = 64
#: Seconds that the end of a task waits until its spans are sent. If the collector is not reachable, each task takes
#: longer by FLUSH_S.
FLUSH_S = 2.0

#: The id of the process that has set the TracerProvider; a forked worker has another process id.
_set_in = 0


def task_tracer(config: Mapping[str, str]) -> Tracer | None:
    """The tracer of this worker; None if the client configuration enables no traces. Raises MissingDependencyError."""
    if config.get(KEY, "false").strip().lower() != "true":
        return None
    api = opentelemetry(f"headrace.{KEY}=true")
    _set_provider()
    tracer: Tracer = api.get_tracer("headrace")
    return tracer


def _set_provider() -> None:
    """Set the global TracerProvider from the environment, unless the program has set a provider."""
    global _set_in
    from opentelemetry import trace

    is_set = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    if is_set or not any(os.environ.get(name) for name in ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingDependencyError(
            f"headrace.{KEY}=true with {ENDPOINTS[1]} needs OpenTelemetry's exporter, which is not installed: "
            "pip install 'headrace-spark[otel]'"
        ) from None
    os.environ.setdefault("OTEL_SERVICE_NAME", "headrace-spark")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _set_in = os.getpid()


def flush_spans() -> None:
    """Send the spans of the task that ends, for at most FLUSH_S. Does nothing in a process without traces."""
    if _set_in != os.getpid():
        return
    from opentelemetry import trace

    provider: Any = trace.get_tracer_provider()
    flushing = threading.Thread(target=provider.force_flush, name="headrace-traces", daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)


class ReadTraces:
    """Makes the spans of one task of the source: one for each row whose producer was sampled, at most ROWS_MAX."""

    def __init__(self, tracer: Tracer, topic: str, partition: int) -> None:
        self._tracer = tracer
        self._topic, self._partition = topic, partition
        self._left = ROWS_MAX
        self._began_ns = time.time_ns()

    def read(self, batch: pa.RecordBatch) -> None:
        """Make the spans of the batch's rows, from the beginning of its read until now."""
        from opentelemetry.trace import SpanKind

        from headrace.arrow_traces import sampled_rows

        began_ns, self._began_ns = self._began_ns, time.time_ns()
        if not self._left:
            return
        for row, context in sampled_rows(batch, self._left).items():
            self._left -= 1
            self._tracer.start_span(
                f"spark read {self._topic}",
                context=as_parent(context),
                kind=SpanKind.CONSUMER,
                start_time=began_ns,
                attributes={
                    "messaging.system": SYSTEM,
                    "messaging.operation.name": "spark read",
                    "messaging.operation.type": "receive",
                    "messaging.destination.name": self._topic,
                    "messaging.destination.partition.id": str(self._partition),
                    "messaging.kafka.offset": batch.column("offset")[row].as_py(),
                    **_task(),
                },
            ).end()


def _task() -> dict[str, int]:
    """The span attributes that name the running Spark task; empty on the driver."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return {}
    return {
        "headrace.spark.stage": task.stageId(),
        "headrace.spark.partition": task.partitionId(),
        "headrace.spark.attempt": task.attemptNumber(),
    }
