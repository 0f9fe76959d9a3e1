"""The spans of a coordinator: one for each call that commits offsets or changes a transaction, if the caller is traced.

The gRPC metadata of the call has the context of the caller's span, as ``traceparent``. A coordinator without
``otel.exporter.otlp.endpoint`` has no NodeTraces, and does not read the metadata.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_of
from headrace_core.tracing.context import traceparent_in
from headrace_core.tracing.node import NodeSpan, NodeTraces
from headrace_core.unexpected import answer_to

logger = logging.getLogger("headrace.coordinator")

#: Maximum length that the id of a group or a producer has in a span.
ID_CHARS_MAX = 255

Handler = Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]


class Described(NamedTuple):
    """The data in the span of a request. ``operation`` and ``id`` are the span's name."""

    operation: str
    id: str
    attributes: dict[str, str | int]


def traced(describe: Callable[[Any], Described]) -> Callable[[Handler], Handler]:
    """Decorate a unary handler of a service that has the attribute ``traces: NodeTraces | None``."""

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def call(self: Any, request: Any, context: Any) -> Any:
            traces: NodeTraces | None = self.traces
            span = None if traces is None else _begun(traces, describe, request, context)
            if span is None:
                return await handler(self, request, context)
            failure: HeadraceError | None = None
            try:
                response = await handler(self, request, context)
                failure = _first_error(response)
                return response
            except HeadraceError as error:
                failure = error
                raise
            except Exception as error:
                failure = answer_to(error, handler.__name__)
                raise
            finally:
                _end(span, failure)
                del failure  # the error's traceback keeps this frame

        return call

    return decorate


def offsets_committed(request: Any) -> Described:
    return Described("commit offsets", request.group_id, _of_group(request))


def offsets_sent(request: Any) -> Described:
    return Described("send offsets", request.group_id, _of_group(request) | _of_producer(request.transactional_id))


def producer_initialized(request: Any) -> Described:
    return Described("init producer", request.transactional_id, _of_producer(request.transactional_id))


def transaction_ended(request: Any) -> Described:
    operation = "commit transaction" if request.commit else "abort transaction"
    return Described(operation, request.transactional_id, _of_producer(request.transactional_id))


def transaction_prepared(request: Any) -> Described:
    return Described("prepare transaction", request.transactional_id, _of_producer(request.transactional_id))


def transaction_completed(request: Any) -> Described:
    transactional_id = request.token.transactional_id
    operation = "commit transaction" if request.commit else "abort transaction"
    return Described(operation, transactional_id, _of_producer(transactional_id))


def _of_group(request: Any) -> dict[str, str | int]:
    return {
        "messaging.consumer.group.name": request.group_id[:ID_CHARS_MAX],
        "headrace.offsets": len(request.offsets),
    }


def _of_producer(transactional_id: str) -> dict[str, str | int]:
    return {"headrace.transactional.id": transactional_id[:ID_CHARS_MAX]}


def _begun(traces: NodeTraces, describe: Callable[[Any], Described], request: Any, context: Any) -> NodeSpan | None:
    traceparent = traceparent_in(context.invocation_metadata())
    if traceparent is None:
        return None
    operation, subject, attributes = describe(request)
    attributes["messaging.operation.name"] = operation
    return traces.begin(f"{operation} {subject[:ID_CHARS_MAX]}", traceparent, attributes)


def _end(span: NodeSpan, failure: HeadraceError | None) -> None:
    """End the span. A fault of the span must not prevent the answer, because the transaction may already be decided."""
    try:
        span.end(failure)
    except Exception:
        logger.exception("a span of a request could not be recorded")


def _first_error(response: Any) -> HeadraceError | None:
    """The first error of a partition in the response to a commit of offsets."""
    return next((error_of(each.error) for each in getattr(response, "results", ()) if each.error.code), None)
