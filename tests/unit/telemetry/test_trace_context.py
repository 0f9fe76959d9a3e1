"""W3C Trace Context in the headers of records: what counts as a context, and what hostile headers do."""

from __future__ import annotations

import pytest

from headrace_core.tracing.context import (
    TraceContext,
    context_of,
    parse_traceparent,
    sampled_context_of,
    with_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled=True)


def test_a_traceparent_comes_out_as_it_went_in() -> None:
    for text in (GOOD, GOOD[:-1] + "0"):
        context = parse_traceparent(text)
        assert context is not None
        assert context.traceparent == text
    assert parse_traceparent(GOOD) == parse_traceparent(GOOD.encode()) == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        GOOD.upper(),
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}",
        f"00_{TRACE}_{SPAN}_01",
        f"{GOOD}-more",
        f"{GOOD}\n",
        f" {GOOD}",
        "00-" + "\u0661" * 32 + f"-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 10_000}",
        "\ud800" * 55,
    ],
)
def test_an_invalid_traceparent_is_no_context(text: str) -> None:
    assert parse_traceparent(text) is None
    assert context_of([("traceparent", text.encode("utf-8", "surrogatepass"))]) is None


def test_bytes_that_are_no_text_and_a_missing_value_are_no_context() -> None:
    assert parse_traceparent(b"\xff" * 55) is None
    assert context_of([("traceparent", None)]) is None
    assert context_of(None) is None
    assert context_of([]) is None
    assert context_of([("Traceparent", GOOD.encode())]) is None


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more") == CONTEXT
    assert parse_traceparent(f"fe-{TRACE}-{SPAN}-03") == CONTEXT
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01more") is None


def test_of_several_headers_the_last_one_counts() -> None:
    other = f"00-{'1' * 32}-{SPAN}-00"
    headers = [("traceparent", other.encode())] * 100_000 + [("traceparent", GOOD.encode())]
    assert context_of(headers) == CONTEXT
    assert context_of([("traceparent", GOOD.encode()), ("traceparent", b"damaged")]) is None


def test_only_a_sampled_context_counts_as_sampled() -> None:
    assert sampled_context_of([("traceparent", GOOD.encode())]) == CONTEXT
    assert sampled_context_of([("traceparent", (GOOD[:-1] + "0").encode())]) is None


def test_a_tracestate_is_passed_on_unless_it_is_too_long_or_no_text() -> None:
    def state_of(state: bytes | None) -> str:
        context = context_of([("traceparent", GOOD.encode()), ("tracestate", state)])
        assert context is not None
        return context.state

    assert state_of(b"vendor=a,other=b") == "vendor=a,other=b"
    for wrong in (None, b"x" * 513, b"a=\xff", b"a=\n"):
        assert state_of(wrong) == ""


def test_a_context_takes_the_place_of_the_one_in_the_headers() -> None:
    old = [("a", b"1"), ("traceparent", b"old"), ("tracestate", b"old"), ("b", None), ("traceparent", b"older")]
    assert with_context(old, CONTEXT) == [("a", b"1"), ("b", None), ("traceparent", GOOD.encode())]
    found = with_context(old, CONTEXT._replace(state="v=1"))
    assert found[2:] == [("traceparent", GOOD.encode()), ("tracestate", b"v=1")]
    assert context_of(found) == CONTEXT._replace(state="v=1")
