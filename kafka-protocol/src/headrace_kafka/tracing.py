"""The spans of Kafka's clients: ``produce`` for each traced partition of a Kafka client's Produce request.

Of Kafka's requests only Produce has a place for the context of a trace: the headers of its records. The span is a child
of the first sampled ``traceparent`` in an uncompressed batch, and the broker's ``append`` is a child of the span. A
broker without ``otel.exporter.otlp.endpoint`` has no KafkaTraces, and does not search batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_of
from headrace_core.tracing.batches import sampled_traceparent_in
from headrace_core.tracing.node import NodeSpan, NodeTraces

#: The callback of a request: it receives the response, or the error that ended the request.
Done = Callable[[Any, HeadraceError | None], None]
#: Maximum length that a client id has in a span.
CLIENT_ID_CHARS_MAX = 255

#: Spans of a request to a broker; the key is the position of the span's partition in the request.
Spans = dict[int, NodeSpan]


class KafkaTraces:
    """Makes the spans of one broker's Kafka clients. Call all methods in the event loop."""

    def __init__(self, node: NodeTraces) -> None:
        self.node = node

    def produce(self, request: Any, client_id: str) -> Spans:
        """Begin the spans of a produce request, and write their contexts into the request. A traced
        partition without a span, because of the limit of spans in a second, keeps the client's context."""
        found: Spans = {}
        for index, part in enumerate(request.partitions):
            records = part.records
            traceparent = sampled_traceparent_in(records)
            if traceparent is None:
                continue
            span = self.node.begin(
                f"produce {part.topic}-{part.partition}",
                traceparent,
                {
                    "messaging.destination.name": part.topic,
                    "messaging.destination.partition.id": str(part.partition),
                    "messaging.client.id": client_id[:CLIENT_ID_CHARS_MAX],
                    "headrace.batch.bytes": len(records),
                },
            )
            part.traceparent = traceparent if span is None else span.traceparent
            if span is not None:
                found[index] = span
        return found


def ending(spans: Spans, done: Done) -> Done:
    """Wrap ``done``, which gets a broker's response, so that the spans end after the call of ``done``. (A fault of a
    span must not prevent the answer.)"""

    def end(response: Any, error: HeadraceError | None) -> None:
        try:
            done(response, error)
        finally:
            for index, span in spans.items():
                _end(span, None if response is None else response.results[index], error)

    return end


def _end(span: NodeSpan, result: Any | None, error: HeadraceError | None) -> None:
    failure = error if error is not None or result is None else error_of(result.error)
    if failure is None and result is not None:
        span.set({"messaging.kafka.offset": result.base_offset})
    span.end(failure)
