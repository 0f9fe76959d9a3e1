"""W3C Trace Context in the headers of records, without OpenTelemetry.

A record's context is in its headers ``traceparent`` and ``tracestate``, as text in ASCII. Any producer may write these
headers, so an invalid value means that the record has no context; it is never an error.

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version, trace id, span id, flags (bit 0: sampled)

Source: https://www.w3.org/TR/trace-context/, section 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

#: Maximum length of a ``tracestate``; a longer one is left out, as the W3C specification allows.
STATE_MAX = 512
#: Maximum length of a ``traceparent`` of a later version, which may have more fields than version 00.
PARENT_MAX = 256

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1

Header = tuple[str, bytes | None]


class TraceContext(NamedTuple):
    """The position of a span in its trace. ``state``: the ``tracestate``; "" if there is none."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.is_sampled else 0:02x}"


def parse_traceparent(value: str | bytes | None, state: str = "") -> TraceContext | None:
    """Return the context in a ``traceparent``; None for an invalid one."""
    if value is None or len(value) > PARENT_MAX:
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode("ascii")
        except UnicodeDecodeError:
            return None
    found = _PARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), state)
    return context if context.trace_id and context.span_id else None


def context_of(headers: Iterable[Header] | None) -> TraceContext | None:
    """Return the context in a record's headers; None if there is none. If a record has several headers with one name,
    the last header applies, as in Kafka's clients."""
    parent: bytes | None = None
    state: bytes | None = None
    for name, value in headers or ():
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    return None if parent is None else parse_traceparent(parent, _state_of(state))


def sampled_context_of(headers: Iterable[Header] | None) -> TraceContext | None:
    """Return the context in a record's headers if the trace is sampled, else None."""
    context = context_of(headers)
    return context if context is not None and context.is_sampled else None


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Return the ``traceparent`` in the metadata of a gRPC call; None if there is none. The value may be invalid."""
    for name, value in metadata or ():
        if name == TRACEPARENT and isinstance(value, str):
            return value
    return None


def with_context(headers: Iterable[Header], context: TraceContext) -> list[Header]:
    """Return the headers with ``context`` in place of their present context."""
    kept = [header for header in headers if header[0] not in (TRACEPARENT, TRACESTATE)]
    kept.append((TRACEPARENT, context.traceparent.encode()))
    if context.state:
        kept.append((TRACESTATE, context.state.encode()))
    return kept


def _state_of(value: bytes | None) -> str:
    if value is None or len(value) > STATE_MAX or not value.isascii():
        return ""
    text = value.decode()
    return text if text.isprintable() else ""
