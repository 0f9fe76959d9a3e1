"""Traces of the clients: which records are traced, what it costs not to trace, and a missing OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace import Consumer, Producer, accumulator
from headrace.arrow_traces import ROWS_MAX, sampled_rows
from headrace.errors import MissingDependencyError
from headrace.settings import CONSUMER, PRODUCER, resolve
from headrace.tracing import LINKS_MAX, ConsumerTraces, ProducerTraces
from headrace_core.records import Record
from tests.unit.client.test_accumulator import Harness
from tests.worlds.telemetry_world import own_spans

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def traces(**settings: Any) -> ProducerTraces:
    return ProducerTraces(resolve(PRODUCER, None, settings))


def record(offset: int, *headers: tuple[str, bytes | None], topic: str = "t") -> Record:
    return Record(topic, 0, offset, 0, None, b"v", list(headers), -1)


def test_a_client_without_traces_imports_no_opentelemetry() -> None:
    code = (
        "import sys; from headrace import Producer, Consumer\n"
        "Producer().close(); Consumer().close()\n"
        "assert not [name for name in sys.modules if 'opentelemetry' in name]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_traces_without_opentelemetry_are_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for client in (Producer, Consumer):
        with pytest.raises(MissingDependencyError, match=r"otel\.traces\.enable=true.*headrace\[otel\]"):
            client(otel_traces_enable=True)


def test_the_ratio_is_the_share_of_records_that_are_offered_to_the_sampler() -> None:
    assert {traces().gap() for _ in range(10)} == {0}
    assert traces(otel_traces_ratio=0.0).gap() > 10**15
    one_percent = traces(otel_traces_ratio=0.01, otel_traces_per_second_max=10**6)
    gaps = [one_percent.gap() for _ in range(10_000)]
    assert 90 < sum(gaps) / len(gaps) < 108
    assert min(gaps) == 0
    assert len(set(gaps)) > 100


def test_the_traced_records_of_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 50.0
    monkeypatch.setattr("headrace.tracing.time.monotonic", lambda: now_s)
    found = traces(otel_traces_ratio=0.01, otel_traces_per_second_max=20)
    gap, traced = found.gap(), 0
    for _ in range(100):  # ten seconds with 10,000 records in each tenth of a second
        now_s += 0.1
        gap, left = found.ticked(gap), 10_000
        while gap < left:
            left -= gap + 1
            traced += 1
            gap = found.gap()
        gap -= left
    assert 180 <= traced <= 220


def test_a_producer_that_becomes_slow_is_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 50.0
    monkeypatch.setattr("headrace.tracing.time.monotonic", lambda: now_s)
    found = traces(otel_traces_ratio=0.5, otel_traces_per_second_max=2)
    assert found.gap() < 10**6
    assert found.gap() > 10**15, "the records of this tick are used up"
    assert found.ticked(10**17) == 10**17
    now_s += 0.6
    assert found.ticked(2**62 - 5) < 10**6
    now_s += 0.6
    assert found.ticked(7) == 7, "a gap that has an end stays"
    assert traces(otel_traces_ratio=0.0).ticked(2**62) > 10**15


def test_the_compiled_send_counts_down_to_the_next_traced_record() -> None:
    for send in ("send", "send_async"):
        h = Harness()
        h.acc.untraced = 2
        for _ in range(3):
            getattr(h, send)("t", b"v", b"k")
        assert [call[1:3] for call in h.slow] == [(b"v", b"k")]
        assert (h.take().count, h.acc.untraced) == (2, 0)


def test_a_batch_has_the_context_of_its_first_traced_record() -> None:
    h = Harness()
    for trace in (None, "first", "second"):
        h.acc.append(lambda *_: True, "t", b"v", None, None, None, None, trace)
    assert h.take().trace == "first"
    h.acc.append_many("t", [b"v"] * 3, 0, None, 0, [], "many")
    assert h.take().trace == "many"
    h.acc.append_encoded("t", 0, b"x" * 61, 1, "encoded")
    assert h.take().trace == "encoded"
    h.send("t", b"v")
    assert h.take().trace is None


def test_a_batch_has_its_context_before_the_sender_wakes() -> None:
    seen: list[Any] = []
    acc = accumulator.Accumulator(
        batch_bytes=1_000, buffer_bytes=100_000, wake=lambda: seen.append(topic.queues[0].open.trace), slow=print
    )
    acc.topics["t"] = topic = accumulator.TopicQueues(acc, "t", 1, 1_000)
    acc.append(lambda *_: True, "t", b"v", None, None, None, None, "first")
    assert seen == ["first"]


def test_headers_in_a_wrong_form_are_left_to_the_append() -> None:
    found = traces()
    for wrong in (7, ["x"], [("a",)], [None]):
        assert found.begin("t", None, wrong) is None


def test_a_key_is_an_attribute_only_if_it_is_a_short_text() -> None:
    own, found = own_spans(), traces()
    for key in (b"text", "text", b"\xff", b"x" * 129, None, 7):
        trace = found.begin("keys", key, None)
        assert trace is not None
        trace.failed(ValueError("ended by the test"))
    spans = own.named("send keys")
    assert [span.attributes.get("messaging.kafka.message.key") for span in spans] == ["text", "text", *[None] * 4]
    assert {span.attributes["error.type"] for span in spans} == {"ValueError"}


def test_a_poll_links_a_bounded_number_of_sampled_records() -> None:
    own = own_spans()
    found = ConsumerTraces(resolve(CONSUMER, None, {"group_id": "g"}))
    found.polled([record(0), record(1, ("traceparent", b"damaged"))], 1)
    assert own.all() == []
    found.polled([record(0), *(record(each, ("traceparent", PARENT)) for each in range(1, 200))], 1)
    found.polled([record(0, ("traceparent", PARENT)), record(0, ("traceparent", PARENT), topic="u")], 1)
    one, two = own.all()
    assert (one.name, len(one.links), one.attributes["messaging.batch.message_count"]) == ("poll t", LINKS_MAX, 200)
    assert (two.name, len(two.links)) == ("poll", 2)
    assert one.attributes["messaging.consumer.group.name"] == "g"


def test_the_span_of_a_handler_that_fails_has_the_error() -> None:
    own = own_spans()
    found = ConsumerTraces(resolve(CONSUMER, None, {}))
    with pytest.raises(ZeroDivisionError), found.processing(record(3, ("traceparent", PARENT))):
        _ = 1 / 0
    with found.processing(record(4)):
        pass
    (span,) = own.all()
    assert (span.name, span.has_error, span.parent) == ("process t", True, "00f067aa0ba902b7")
    assert span.attributes["messaging.kafka.offset"] == 3


def test_only_rows_with_a_sampled_context_get_a_span_and_keep_their_other_headers() -> None:
    own, found = own_spans(), traces()
    unsampled = PARENT[:-1] + b"0"
    rows: list[Any] = [
        None,
        [{"key": "a", "value": b"1"}, {"key": "traceparent", "value": PARENT}],
        [{"key": "traceparent", "value": unsampled}],
        [{"key": "traceparent", "value": b"damaged"}],
        [],
        [{"key": "traceparent", "value": PARENT}, {"key": "b", "value": None}],
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    whole = pa.table({"value": [b"%d" % n for n in range(6)], "headers": pa.array(rows, kind)})
    for table in (whole, pa.concat_tables([whole.slice(0, 2), whole.slice(2)])):
        trace = found.begin_rows("arrow", table)
        assert trace is not None
        trace.failed(ValueError("ended by the test"))
        spans = own.named("send arrow")[-2:]
        assert {span.parent for span in spans} == {"00f067aa0ba902b7"}
        one, two = (f"00-{span.trace_id}-{span.span_id}-01".encode() for span in spans)
        assert trace.context.encode() == one
        assert trace.rows["value"].to_pylist() == whole["value"].to_pylist()
        assert trace.rows["headers"].to_pylist() == [
            None,
            [{"key": "a", "value": b"1"}, {"key": "traceparent", "value": one}],
            *rows[2:5],
            [{"key": "b", "value": None}, {"key": "traceparent", "value": two}],
        ]


def test_the_traced_rows_of_a_call_are_bounded() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "traceparent", "value": PARENT}]] * 1_000, kind)
    table = pa.table({"value": [b"x"] * 1_000, "headers": headers})
    assert len(sampled_rows(table)) == ROWS_MAX
    assert sampled_rows(table.drop_columns("headers")) == {}
    text = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    three = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("more", pa.int32())]))
    of_text = pa.array([[{"key": "traceparent", "value": PARENT.decode()}]] * 1_000, text)
    of_three = pa.array([[{"key": "traceparent", "value": PARENT, "more": 1}]] * 1_000, three)
    for strange in (pa.array(["x"] * 1_000), pa.array([[1]] * 1_000), pa.nulls(1_000), of_text, of_three):
        assert sampled_rows(table.set_column(1, "headers", strange)) == {}
