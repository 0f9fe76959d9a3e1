"""The spans of a gateway: which partitions of a request get one, what it says, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace_core.errors import NetworkError
from headrace_core.records import encode_batch
from headrace_core.tracing.node import NodeTraces, TraceSettings
from headrace_kafka.tracing import KafkaTraces, ending
from headrace_protos.v1 import common_pb2, produce_pb2
from tests.worlds.telemetry_world import Collector, Span, collector

SPAN_ID = "00f067aa0ba902b7"
SAMPLED = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{SPAN_ID}-01"


@pytest.fixture
def collecting() -> Iterator[Collector]:
    with collector() as made:
        yield made


def traces_to(collecting: Collector, spans_per_second_max: int = 10**9) -> KafkaTraces:
    node = NodeTraces("broker", TraceSettings(f"{collecting.url}/v1/traces", {}, 10), spans_per_second_max)
    node.start(5)
    return KafkaTraces(node)


def request_of(*contexts: str | None) -> Any:
    """A request with a partition of the topic t for each context."""
    request = produce_pb2.ProduceRequest()
    for index, context in enumerate(contexts):
        headers: list[tuple[str, bytes | None]] = [] if context is None else [("traceparent", context.encode())]
        request.partitions.add(topic="t", partition=index, records=bytes(encode_batch([(1, b"k", b"v", headers)])))
    return request


def spans_in(collecting: Collector, traces: KafkaTraces) -> list[Span]:
    """The spans, by their begin."""
    traces.node.close()
    return collecting.spans()


def response_of(*codes: int) -> Any:
    results = [
        produce_pb2.ProducePartitionResult(error=common_pb2.Error(code=code, message="no"), base_offset=40 + index)
        for index, code in enumerate(codes)
    ]
    return produce_pb2.ProduceResponse(results=results)


def test_only_traced_partitions_get_a_span_and_the_broker_gets_its_context(collecting: Collector) -> None:
    traces, request, answers = traces_to(collecting), request_of(None, SAMPLED, SAMPLED[:-1] + "0"), []
    spans = traces.produce(request, "till-7")
    ending(spans, lambda *answer: answers.append(answer))(response_of(0, 0, 0), None)
    (span,) = spans_in(collecting, traces)
    assert len(answers) == 1
    assert (span.name, span.service, span.parent) == ("produce t-1", "headrace-broker", SPAN_ID)
    assert [part.traceparent for part in request.partitions] == ["", f"{SAMPLED[:36]}{span.span_id}-01", ""]
    assert span.attributes == {
        "messaging.system": "headrace",
        "headrace.node.role": "broker",
        "headrace.node.id": 5,
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "1",
        "messaging.client.id": "till-7",
        "messaging.kafka.offset": 41,
        "headrace.batch.bytes": len(request.partitions[1].records),
    }


def test_a_refused_partition_and_a_lost_request_end_their_spans_with_the_error(collecting: Collector) -> None:
    traces = traces_to(collecting)
    for response, error in ((response_of(0, 6), None), (None, NetworkError("lost")), (None, None)):
        ending(traces.produce(request_of(SAMPLED, SAMPLED), ""), lambda *_: None)(response, error)
    found = [(span.name, span.attributes.get("error.type"), span.has_error) for span in spans_in(collecting, traces)]
    assert found == [
        ("produce t-0", None, False),
        ("produce t-1", "NOT_LEADER_OR_FOLLOWER", True),
        *[(f"produce t-{index}", NetworkError.code, True) for index in (0, 1)],
        *[(f"produce t-{index}", None, False) for index in (0, 1)],  # acks=0: sent, and no answer
    ]


def test_a_fault_of_the_answer_ends_the_span_and_a_partition_above_the_limit_keeps_its_context(
    collecting: Collector,
) -> None:
    traces, request = traces_to(collecting, spans_per_second_max=0), request_of(SAMPLED)
    assert traces.produce(request, "") == {}
    assert request.partitions[0].traceparent == SAMPLED
    traces = traces_to(collecting)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        ending(traces.produce(request_of(SAMPLED), ""), broken)(response_of(0), None)
    assert [span.name for span in spans_in(collecting, traces)] == ["produce t-0"]
