"""Convert Headrace's trace contexts to OpenTelemetry's values and back, for the traces of nodes and clients.

Functions import OpenTelemetry when they are called, because it is the optional extra ``otel``.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import MissingDependencyError
from .context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext

#: The value of ``messaging.system`` in spans.
SYSTEM = "headrace"


def opentelemetry(wanted_by: str) -> ModuleType:
    """Import ``opentelemetry.trace``. ``wanted_by``: the configuration key that turns traces on, for the error. Raises
    MissingDependencyError."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise MissingDependencyError(
            f"{wanted_by} needs OpenTelemetry, which is not installed: pip install 'headrace[otel]'"
        ) from None
    return trace


def span_context(context: TraceContext) -> SpanContext:
    """Convert a trace context that came from another process to OpenTelemetry's SpanContext."""
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    state = TraceState.from_header([context.state]) if context.state else TraceState()
    return SpanContext(context.trace_id, context.span_id, True, TraceFlags(int(context.is_sampled)), state)


def as_parent(context: TraceContext) -> Context:
    """The OpenTelemetry context in which a new span is a child of ``context``."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(span_context(context)))


def link_to(context: TraceContext) -> Link:
    from opentelemetry.trace import Link

    return Link(span_context(context))


def trace_context(context: SpanContext) -> TraceContext:
    """Convert an OpenTelemetry SpanContext to Headrace's TraceContext."""
    return TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled, context.trace_state.to_header())
