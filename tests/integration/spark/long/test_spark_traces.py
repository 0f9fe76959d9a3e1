"""One trace from a producer's send over three brokers and Spark's tasks to the record that the sink writes."""

from __future__ import annotations

import pytest

from headrace_core.tracing.context import context_of
from tests.worlds.telemetry_world import UNTRACED, Span, traced_copy

pytestmark = pytest.mark.timeout(300)


def test_one_trace_goes_from_the_send_to_the_record_of_the_sink() -> None:
    found = traced_copy()
    sent, by_name = found.sent, dict[str, list[Span]]()
    for span in found.spans:
        by_name.setdefault(span.name, []).append(span)
    assert {name: len(spans) for name, spans in by_name.items()} == {
        "append orders-0": 1,
        "replicate orders-0": 2,
        "spark read orders": 1,
        "send paid": 1,
        "append paid-0": 1,
        "replicate paid-0": 2,
    }
    ((read,), (written,), (appended,)) = (by_name[name] for name in ("spark read orders", "send paid", "append paid-0"))
    assert read.parent == written.parent == sent.span_id
    assert read.service == written.service == "headrace-spark"
    assert read.attributes["messaging.kafka.offset"] == UNTRACED
    assert appended.parent == written.span_id
    assert {span.parent for span in by_name["replicate paid-0"]} == {appended.span_id}

    traced = [record for record in found.written if record.headers]
    assert (len(found.written), len(traced)) == (UNTRACED + 1, 1)
    context = context_of(traced[0].headers)
    assert context is not None
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (sent.trace_id, written.span_id)
    assert traced[0].headers[0] == ("shop", b"7")
