"""OpenTelemetry traces of a client, with ``otel.traces.enable`` (extra ``otel``; docs/traces.md).

A client makes its spans with the TracerProvider of the application. Span names and attributes follow OpenTelemetry's
conventions for messaging. A client without ``otel.traces.enable`` has no ProducerTraces or ConsumerTraces, and imports
no OpenTelemetry.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError
from headrace_core.records import Record
from headrace_core.tracing.context import TraceContext, context_of, sampled_context_of, with_context
from headrace_core.tracing.spans import SYSTEM, as_parent, link_to, opentelemetry, trace_context

from .accumulator._checks import header_list

if TYPE_CHECKING:
    import pyarrow as pa
    from opentelemetry.trace import Span

KEY = "otel.traces.enable"

#: Maximum number of links of one poll span; each link leads to the producer's span of a polled record.
LINKS_MAX = 64
#: A key longer than this number of bytes does not become an attribute of a span.
KEY_BYTES_MAX = 128
#: A gap so large that no record is traced until the gap is replaced (see ``gap``).
_NEVER = 2**62
#: Seconds between two refills of the budget of traced records (otel.traces.per.second.max).
TICK_S = 0.5
#: Guards the end of spans, because two threads may end the same spans: the I/O thread, and the thread that reads a
#: future's result.
_ENDING = threading.Lock()


class SendTrace:
    """The spans of one send, from the call to its outcome: one span, or one for each traced row of a table.

    ``context``: the first span's trace context, as ``traceparent``. ``headers``: the record's headers with the span's
    trace context. ``rows``: the table whose rows have the contexts of their spans, if each traced row has its own span.
    """

    __slots__ = ("_spans", "context", "headers", "rows")

    def __init__(self, spans: Sequence[Span], headers: list[Any] | None = None, rows: Any = None) -> None:
        self._spans = spans
        self.headers = headers
        self.rows = rows
        self.context = trace_context(spans[0].get_span_context()).traceparent

    def failed(self, error: BaseException) -> None:
        """End the spans of a send that raised ``error``."""
        spans, self._spans = self._spans, ()
        for span in spans:
            _end_with_error(span, error)

    def one_done(self, future: Any) -> None:
        """End the span of a record, whose outcome is known."""
        (span,) = self._spans
        if future.cancelled():
            span.end()
            return
        error = future._failure()
        if error is not None:
            _end_with_error(span, error)
            return
        metadata = future.result()
        span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
        if metadata.offset >= 0:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        span.end()

    def many_done(self, future: Any) -> None:
        """End the spans of a call with many records, whose outcomes are known. Only the first call has an effect."""
        with _ENDING:
            spans, self._spans = self._spans, ()
        if not spans:
            return
        error = future._failure()
        for span in spans:
            if error is None:
                span.end()
            else:
                _end_with_error(span, error)


class ProducerTraces:
    """Decides which records of a producer are traced, and begins their spans."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises MissingDependencyError without OpenTelemetry."""
        self._api = opentelemetry(f"{KEY}=true")
        self._tracer = self._api.get_tracer("headrace", version("headrace"))
        self._client_id: str = config["client.id"]
        self._ratio: float = config["otel.traces.ratio"]
        self._per_tick = max(round(config["otel.traces.per.second.max"] * TICK_S), 1)
        self._left, self._ticked_s = self._per_tick, time.monotonic()

    def gap(self) -> int:
        """The number of records before the next record that is offered to the application's sampler.

        The gaps are random, so that they do not follow a pattern in the records. With otel.traces.ratio below 1, only a
        limited number of records is traced per tick of TICK_S seconds. The limit is a counter, because reading the
        clock for each send would cost more. When the counter reaches its limit, no record is traced until ``ticked``
        begins the next tick.
        """
        if self._ratio >= 1:
            return 0
        if self._ratio <= 0 or self._left <= 0:
            return _NEVER
        self._left -= 1
        return int(math.log(1 - random.random()) / math.log1p(-self._ratio))

    def ticked(self, gap: int) -> int:
        """Begin the next tick if TICK_S seconds have passed since the last tick began. Call this method more often than
        every TICK_S seconds. Returns the number of records until the next traced record, counted from now; ``gap`` is
        the number before the call."""
        now_s = time.monotonic()
        if now_s - self._ticked_s < TICK_S:
            return gap
        self._ticked_s, self._left = now_s, self._per_tick
        return self.gap() if gap > _NEVER // 2 else gap

    def begin(self, topic: str, key: Any, headers: Any) -> SendTrace | None:
        """Begin the span of one record; None if the application's sampler does not sample the record.

        The span's parent is the current span. Without a current span, the parent is the context in the record's
        headers. An application that sends the headers of a consumed record again therefore continues the trace of this
        record.
        """
        try:
            given = [] if headers is None else header_list(headers)
            parent = context_of(given)
        except (HeadraceError, TypeError, ValueError):  # the append itself raises the error
            return None
        attributes = {"messaging.operation.name": "send"}
        text = _key_text(key)
        if text is not None:
            attributes["messaging.kafka.message.key"] = text
        span = self._started(topic, parent, attributes)
        if span is None:
            return None
        return SendTrace([span], with_context(given, trace_context(span.get_span_context())))

    def begin_many(self, topic: str, count: int) -> SendTrace | None:
        """Begin the span of a call with ``count`` records. The headers of the records do not change."""
        span = self._started(topic, None, {"messaging.operation.name": "send", "messaging.batch.message_count": count})
        return None if span is None else SendTrace([span])

    def begin_rows(self, topic: str, table: pa.Table) -> SendTrace | None:
        """Begin a span for each row of a table that has a sampled context in its headers (at most ROWS_MAX rows). Each
        span is a child of the context in its row's headers. Returns None if there is no such row."""
        from .arrow_traces import sampled_rows, with_contexts

        spans = {
            row: span
            for row, parent in sampled_rows(table).items()
            if (span := self._started(topic, parent, {"messaging.operation.name": "send"})) is not None
        }
        if not spans:
            return None
        contexts = {row: trace_context(span.get_span_context()) for row, span in spans.items()}
        return SendTrace(list(spans.values()), rows=with_contexts(table, contexts))

    def current(self) -> str | None:
        """The trace context of the program's current span, as ``traceparent``; None if the span is not sampled. A call
        of the program runs in the program's context on the I/O thread, too, because asyncio copies the context
        variables."""
        return _current(self._api)

    def _started(self, topic: str, parent: TraceContext | None, attributes: dict[str, Any]) -> Span | None:
        api, within = self._api, None
        if parent is not None and not api.get_current_span().get_span_context().is_valid:
            within = as_parent(parent)
        attributes |= {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.client.id": self._client_id,
        }
        span: Span = self._tracer.start_span(
            f"send {topic}", context=within, kind=api.SpanKind.PRODUCER, attributes=attributes
        )
        return span if span.get_span_context().trace_flags.sampled else None


class ConsumerTraces:
    """Makes the spans of a consumer, for records whose producer was sampled."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises MissingDependencyError without OpenTelemetry."""
        self._api = opentelemetry(f"{KEY}=true")
        self._tracer = self._api.get_tracer("headrace", version("headrace"))
        self._attributes = {"messaging.system": SYSTEM, "messaging.client.id": config["client.id"]}
        if config["group.id"]:
            self._attributes["messaging.consumer.group.name"] = config["group.id"]

    def current(self) -> str | None:
        """The trace context of the program's current span, as ``traceparent``; None if the span is not sampled."""
        return _current(self._api)

    def polled(self, records: Sequence[Record], began_ns: int) -> None:
        """Make the span of one poll, with a link to the producer's span of each sampled record (at most LINKS_MAX). A
        poll without a sampled record has no span. ``began_ns``: time.time_ns() at the beginning of the poll."""
        links: list[Any] = []
        topics: set[str] = set()
        for record in records:
            context = sampled_context_of(record.headers) if record.headers else None
            if context is not None:
                topics.add(record.topic)
                links.append(link_to(context))
                if len(links) == LINKS_MAX:
                    break
        if not links:
            return
        attributes: dict[str, Any] = self._attributes | {
            "messaging.operation.name": "poll",
            "messaging.operation.type": "receive",
            "messaging.batch.message_count": len(records),
        }
        name = "poll"
        if len(topics) == 1:
            attributes["messaging.destination.name"] = topic = topics.pop()
            name = f"poll {topic}"
        span = self._tracer.start_span(
            name, kind=self._api.SpanKind.CLIENT, attributes=attributes, links=links, start_time=began_ns
        )
        span.end(max(time.time_ns(), began_ns))

    @contextmanager
    def processing(self, record: Record) -> Iterator[None]:
        """Make the span of the block that processes ``record``, as a child of the producer's span. The span is current
        in the block. A record that is not sampled has no span."""
        context = sampled_context_of(record.headers) if record.headers else None
        if context is None:
            yield
            return
        attributes = self._attributes | {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=as_parent(context),
            kind=self._api.SpanKind.CONSUMER,
            attributes=attributes,
        ):
            yield


def _current(api: ModuleType) -> str | None:
    context = api.get_current_span().get_span_context()
    sampled = context.is_valid and context.trace_flags.sampled
    return trace_context(context).traceparent if sampled else None


def _key_text(key: Any) -> str | None:
    """A record's key as a span attribute; None for a key that is not a short text."""
    if isinstance(key, str):
        return key if len(key) <= KEY_BYTES_MAX else None
    if not isinstance(key, bytes) or len(key) > KEY_BYTES_MAX:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _end_with_error(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    code = error.code if isinstance(error, HeadraceError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(StatusCode.ERROR, str(error))
    span.end()
