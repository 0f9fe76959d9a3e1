"""A node's export of spans: a collector that is away, silent or refusing costs spans, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace_core.config.server_keys import SERVER
from headrace_core.errors import InvalidConfigError
from headrace_core.tracing.export import QUEUE_MAX, SpanExport
from headrace_core.tracing.node import SPANS_PER_SECOND_MAX, NodeTraces, TraceSettings
from tests.worlds.telemetry_world import collector
from tests.worlds.waiting import check_in_time, until

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"


def traces_to(url: str, timeout_s: float = 0.2) -> NodeTraces:
    made = NodeTraces("broker", TraceSettings(url, {}, timeout_s), spans_per_second_max=10**9)
    made.start(7)
    return made


def export_of(traces: NodeTraces) -> SpanExport:
    found = traces.export
    assert found is not None
    return found


def make(traces: NodeTraces, count: int) -> None:
    for number in range(count):
        span = traces.begin(f"span {number}", PARENT, {})
        assert span is not None
        span.end()


def test_spans_arrive_with_the_node_that_made_them() -> None:
    with collector() as found:
        traces = traces_to(found.url + "/v1/traces", timeout_s=10)
        make(traces, 700)
        traces.close()
        spans = found.spans()
    assert [span.name for span in spans] == [f"span {number}" for number in range(700)]
    assert {span.parent for span in spans} == {"00f067aa0ba902b7"}
    assert {(span.service, span.attributes["headrace.node.id"]) for span in spans} == {("headrace-broker", 7)}


def test_the_last_spans_are_sent_though_the_thread_looks_only_after_the_shutdown_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine the thread may get no processor between the span and the shutdown."""
    run = SpanExport._run

    def late(export: SpanExport) -> None:
        until(lambda: export._is_over)
        run(export)

    monkeypatch.setattr(SpanExport, "_run", late)
    with collector() as found:
        traces = traces_to(found.url + "/v1/traces", timeout_s=60)
        make(traces, 3)
        traces.close()
        assert [span.name for span in found.spans()] == ["span 0", "span 1", "span 2"]


def test_a_request_without_a_sampled_context_gets_no_span() -> None:
    traces = traces_to("http://127.0.0.1:1/v1/traces")
    for parent in ("", "garbage", UNSAMPLED):
        assert traces.begin("span", parent, {}) is None
    traces.close()
    assert traces.begin("span", PARENT, {}) is None, "a closed node makes no spans"


def test_the_spans_of_a_second_are_bounded_whatever_producers_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = NodeTraces("broker", TraceSettings("http://127.0.0.1:1/v1/traces", {}, 0.2))
    traces.start(7)
    now_ns = 5_000_000_000
    monkeypatch.setattr("headrace_core.tracing.node.time.time_ns", lambda: now_ns)
    assert sum(traces.begin("span", PARENT, {}) is not None for _ in range(2_000)) == SPANS_PER_SECOND_MAX
    now_ns += 1_000_000_000
    assert sum(traces.begin("span", PARENT, {}) is not None for _ in range(2_000)) == SPANS_PER_SECOND_MAX
    traces.close()


def test_a_silent_collector_holds_up_neither_the_spans_nor_the_stop(silent: str) -> None:
    traces = traces_to(silent, timeout_s=0.5)
    export = export_of(traces)
    begun = time.monotonic()
    make(traces, 3 * QUEUE_MAX)
    assert export.dropped > 0
    check_in_time(begun, 30)
    begun = time.monotonic()
    traces.close()
    check_in_time(begun, 5)


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a collector that calls ``answer`` with each connection whose request it has read."""

    def serve() -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):  # the node has ended the connection
                    while b"\r\n\r\n" not in connection.recv(65_536):
                        pass
                    answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX: "], ids=["nothing", "status", "headers"])
def test_an_answer_byte_by_byte_has_failed_at_the_time_limit(begin: bytes, caplog: pytest.LogCaptureFixture) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(b"x")
            ended.wait(0.05)

    ended = threading.Event()
    with answering(drip) as url:
        traces = traces_to(url, timeout_s=0.5)
        export = export_of(traces)
        make(traces, 1)
        until(lambda: export.dropped == 1, within_s=20)
        traces.close()
    assert "no answer within 0.5 s" in caplog.text
    assert export.sent == 0


def test_an_answer_without_an_end_is_not_read() -> None:
    written = 0

    def flood(connection: socket.socket) -> None:
        nonlocal written
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            written += connection.send(bytes(1 << 20))

    with answering(flood) as url:
        traces = traces_to(url, timeout_s=10)
        export = export_of(traces)
        make(traces, 1)
        until(lambda: export.sent == 1)
        traces.close()
    assert written < 64 << 20, "no more than the buffers of the sockets hold"


def test_an_unreachable_collector_is_reported_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.traces")
    with collector() as found:
        found.refusing = True
        traces = traces_to(found.url + "/v1/traces", timeout_s=10)
        export = export_of(traces)
        make(traces, 1)
        until(lambda: export.dropped == 1)
        make(traces, 1)
        until(lambda: export.dropped == 2)
        found.refusing = False
        make(traces, 1)
        until(lambda: export.sent == 1)
        traces.close()
    lines = [record.getMessage() for record in caplog.records if record.name == "headrace.traces"]
    assert len(lines) == 2, lines
    assert "cannot send spans to the trace collector" in lines[0]
    assert "503" in lines[0]
    assert "accepts spans again" in lines[1]


def test_a_redirect_does_not_carry_the_headers_to_another_host(caplog: pytest.LogCaptureFixture) -> None:
    with collector() as other, collector() as found:
        found.moved_to = other.url + "/v1/traces"
        traces = traces_to(found.url + "/v1/traces", timeout_s=10)
        export = export_of(traces)
        make(traces, 1)
        until(lambda: export.dropped == 1)
        traces.close()
        assert other.gets == 0
    assert "status 302" in caplog.text


def test_the_keys_say_where_the_spans_go() -> None:
    def settings(**given: str) -> TraceSettings | None:
        return TraceSettings.of(SERVER.parse({f"otel.exporter.otlp.{name}": value for name, value in given.items()}))

    assert settings() is None
    found = settings(endpoint="http://collector:4318/", headers="a=1, b = x=y")
    assert found == TraceSettings("http://collector:4318/v1/traces", {"a": "1", "b": "x=y"}, 5.0)
    whole = settings(endpoint="https://collector/v1/traces")
    assert whole is not None
    assert whole.url == "https://collector/v1/traces"
    with pytest.raises(InvalidConfigError, match="write the URL of a collector"):
        settings(endpoint="collector:4318")
    for wrong in ("hidden", "=hidden", "hidden=b\r\nc=d"):
        with pytest.raises(InvalidConfigError, match="name=value pairs") as raised:
            settings(endpoint="http://c", headers=wrong)
        assert "hidden" not in str(raised.value), "headers are secrets"
