"""The spans of a coordinator's calls: which calls have one, and what an untraced call does not do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_coordinator.handlers.groups import GroupsService
from headrace_coordinator.handlers.transactions import TransactionsService
from headrace_coordinator.offsets.messages import OffsetsCommitted, PartitionResult
from headrace_core.errors import HeadraceError, InvalidGroupIdError, NotCoordinatorError, OffsetMetadataTooLargeError
from headrace_core.tracing import node
from headrace_core.tracing.node import NodeSpan, NodeTraces, TraceSettings
from headrace_core.unexpected import request_id_of
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.worlds.telemetry_world import Span, collector

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Context:
    """The context of a call with some metadata."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


class Groups:
    """Shards that give each commit the same outcome: an error of the call, or of its partition."""

    def __init__(self, failure: Exception | None = None, refusal: HeadraceError | None = None) -> None:
        self._failure, self._refusal = failure, refusal

    def of_group(self, group_id: str) -> Groups:
        return self

    async def ask(self, request: Any, *, is_fenced: bool = False) -> Any:
        if self._failure is not None:
            raise self._failure
        return OffsetsCommitted((PartitionResult("t", 0, self._refusal),))


def spans_of(*contexts: Any, shards: Groups | None = None, group_id: str = "g", most: int = 500) -> list[Span]:
    """The spans of one commit of offsets for each context."""
    request = groups_pb2.CommitOffsetsRequest(group_id=group_id)
    request.offsets.add(topic="t", partition=0, offset=1)
    found = shards or Groups()
    with collector() as collecting:
        traces = NodeTraces(
            "coordinator", TraceSettings(collecting.url + "/v1/traces", {}, 10.0), spans_per_second_max=most
        )
        traces.start(7)
        service = GroupsService(lambda: cast(Any, found), cast(Any, None), cast(Any, None), traces)
        for context in contexts:
            with contextlib.suppress(HeadraceError, ZeroDivisionError):
                asyncio.run(service.CommitOffsets(request, context))
        traces.close()
        return collecting.spans()


def test_only_a_call_with_a_sampled_context_has_a_span() -> None:
    untraced = [
        Context(),
        Context(("user-agent", "x")),
        Context(("traceparent", PARENT[:-1] + "0")),
        Context(("traceparent", "damaged")),
        Context(("traceparent", PARENT.encode())),
    ]
    (span,) = spans_of(*untraced, Context(("user-agent", "x"), ("traceparent", PARENT)))
    assert (span.name, span.parent, span.service) == ("commit offsets g", "00f067aa0ba902b7", "headrace-coordinator")
    assert (span.attributes["headrace.node.id"], span.attributes["messaging.operation.name"]) == (7, "commit offsets")


def test_a_coordinator_without_traces_does_not_read_the_metadata() -> None:
    service = GroupsService(lambda: cast(Any, Groups()), cast(Any, None), cast(Any, None))
    request = groups_pb2.CommitOffsetsRequest(group_id="g")
    assert asyncio.run(service.CommitOffsets(request, None)).results


@pytest.mark.parametrize(
    ("shards", "code"),
    [
        (Groups(failure=NotCoordinatorError()), "NOT_COORDINATOR"),
        (Groups(refusal=OffsetMetadataTooLargeError()), "OFFSET_METADATA_TOO_LARGE"),
    ],
)
def test_the_span_of_a_failed_call_has_the_error(shards: Groups, code: str) -> None:
    (span,) = spans_of(Context(("traceparent", PARENT)), shards=shards)
    assert (span.has_error, span.attributes["error.type"]) == (True, code)


def test_the_span_of_a_call_that_failed_unexpectedly_has_the_id_of_the_request() -> None:
    failure = ZeroDivisionError("a planted bug")
    (span,) = spans_of(Context(("traceparent", PARENT)), shards=Groups(failure=failure))
    assert (span.has_error, span.attributes["error.type"]) == (True, "UNKNOWN_SERVER_ERROR")
    assert span.error == f"CommitOffsets: ZeroDivisionError: a planted bug (request id {request_id_of(failure)})"


def test_the_spans_of_a_second_and_their_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def time_ns() -> int:
        """All calls are within two seconds."""
        return (1_700_000_000 + (next(calls) > 200)) * 1_000_000_000

    monkeypatch.setattr(node, "time", SimpleNamespace(time_ns=time_ns))
    contexts = [Context(("traceparent", PARENT))] * 300
    spans = spans_of(*contexts, group_id="g" * 30_000, most=2)
    assert len(spans) == 4, "two in each second"
    assert {len(span.name) for span in spans} == {len("commit offsets ") + 255}


def test_the_spans_of_transactions_say_what_the_call_does() -> None:
    class Refusing:
        async def ask(self, request: Any, within_s: float, *, wait_for_markers: bool = False) -> Any:
            raise InvalidGroupIdError("refused by the test")

    class Timed(Context):
        def time_remaining(self) -> float:
            return 1.0

    token = transactions_pb2.TransactionToken(transactional_id="id", producer_id=1, producer_epoch=0)
    calls = [
        ("InitProducer", transactions_pb2.InitProducerRequest(transactional_id="id"), "init producer id"),
        (
            "PrepareTransaction",
            transactions_pb2.PrepareTransactionRequest(transactional_id="id"),
            "prepare transaction id",
        ),
        ("CompleteTransaction", transactions_pb2.CompleteTransactionRequest(token=token), "abort transaction id"),
        (
            "EndTransaction",
            transactions_pb2.EndTransactionRequest(transactional_id="id", commit=True, transaction_version=2),
            "commit transaction id",
        ),
    ]
    with collector() as collecting:
        traces = NodeTraces("coordinator", TraceSettings(collecting.url + "/v1/traces", {}, 10.0))
        traces.start(7)
        service = TransactionsService(cast(Any, None), cast(Any, Refusing()), cast(Any, None), cast(Any, None), traces)
        for method, request, _ in calls:
            with pytest.raises(InvalidGroupIdError):
                asyncio.run(getattr(service, method)(request, Timed(("traceparent", PARENT))))
        traces.close()
        spans = collecting.spans()
    assert [span.name for span in spans] == [name for _, _, name in calls]
    assert {span.attributes["headrace.transactional.id"] for span in spans} == {"id"}


def test_a_node_that_registers_again_makes_spans_with_its_new_id() -> None:
    with collector() as collecting:
        traces = NodeTraces("coordinator", TraceSettings(collecting.url + "/v1/traces", {}, 10.0))
        for node_id in (7, 8):
            traces.start(node_id)
            span = traces.begin("span", PARENT, {})
            assert span is not None
            span.end()
        traces.close()
        assert [span.attributes["headrace.node.id"] for span in collecting.spans()] == [7, 8]


def test_a_fault_of_a_span_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def end(self: NodeSpan, error: HeadraceError | None = None) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(NodeSpan, "end", end)
    traces = NodeTraces("coordinator", TraceSettings("http://127.0.0.1:9/v1/traces", {}, 0.1))
    traces.start(7)
    service = GroupsService(lambda: cast(Any, Groups()), cast(Any, None), cast(Any, None), traces)
    request = groups_pb2.CommitOffsetsRequest(group_id="g")
    request.offsets.add(topic="t", partition=0, offset=1)
    try:
        answer = asyncio.run(service.CommitOffsets(request, Context(("traceparent", PARENT))))
    finally:
        traces.close()
    assert [each.topic for each in answer.results] == ["t"]
    assert "a span of a request could not be recorded" in caplog.text
