"""OpenTelemetry traces on a real cluster: one trace from a send over three brokers to the record's handler."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from opentelemetry import trace

from headrace import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    LocalCluster,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from headrace.errors import OffsetMetadataTooLargeError, RecordTooLargeError
from headrace_core.records import Record
from tests.worlds.telemetry_world import Collector, Span, collector, own_spans
from tests.worlds.waiting import until

_names = itertools.count()


@pytest.fixture(scope="module")
def collecting() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(collecting: Collector) -> Iterator[LocalCluster]:
    config = {
        "otel.exporter.otlp.endpoint": collecting.url,
        "otel.exporter.otlp.headers": "x-tenant=tests, authorization=Bearer secret",
        "group.consumer.assignment.interval.ms": 0,
    }
    with LocalCluster(controllers=1, brokers=3, coordinators=1, kafka=True, config=config) as made:
        yield made


def make_topic(cluster: LocalCluster, **config: Any) -> str:
    topic = f"traced-{os.getpid()}-{next(_names)}"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1, replication_factor=3, config=config)])
    return topic


def producer_of(cluster: LocalCluster, **more: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, otel_traces_enable=True, **more)


def process_one(cluster: LocalCluster, topic: str, handler: Any) -> None:
    """Process one record of the topic."""
    stop = threading.Event()

    def handle(record: Record) -> None:
        handler(record)
        stop.set()

    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        otel_traces_enable=True,
    ) as consumer:
        consumer.subscribe([topic])
        consumer.process(handle, stop=stop)


def broker_spans(collecting: Collector, trace_id: str) -> list[Span]:
    """The leader's span and both followers' spans of a trace, once all three have arrived."""

    def found() -> list[Span]:
        return [span for span in collecting.spans(trace_id) if span.service == "headrace-broker"]

    until(lambda: len(found()) >= 3, f"three spans of trace {trace_id}: {collecting.spans()}")
    return found()


def test_one_trace_has_the_send_the_append_both_replications_and_the_processing(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic, own = make_topic(cluster), own_spans()
    with producer_of(cluster) as producer:
        producer.send(topic, b"one", key=b"order-7", headers=[("mine", b"1")]).result(30)
        metadata = producer.send(topic, b"two", key=b"order-7").result(30)
    seen: list[Any] = []
    process_one(
        cluster, topic, lambda record: seen.append((record, trace.get_current_span().get_span_context().trace_id))
    )

    sent, later = own.named(f"send {topic}")
    (processed, *_) = own.named(f"process {topic}")
    append, *replications = broker_spans(collecting, sent.trace_id)
    assert later.trace_id != sent.trace_id
    assert (sent.parent, append.parent, processed.parent) == ("", sent.span_id, sent.span_id)
    assert append.name == f"append {topic}-0"
    assert [(span.name, span.parent) for span in replications] == [(f"replicate {topic}-0", append.span_id)] * 2
    assert processed.trace_id == sent.trace_id
    nodes = [span.attributes["headrace.node.id"] for span in (append, *replications)]
    assert len(set(nodes)) == 3, nodes
    assert {span.service for span in (append, *replications)} == {"headrace-broker"}
    assert {span.attributes["headrace.leader.id"] for span in replications} == {nodes[0]}
    assert (
        later.attributes
        | {
            "messaging.system": "headrace",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": "0",
            "messaging.kafka.offset": metadata.offset,
            "messaging.kafka.message.key": "order-7",
        }
        == later.attributes
    )
    assert append.attributes["messaging.kafka.offset"] == 0
    assert append.attributes["messaging.batch.message_count"] == 1
    assert append.attributes["headrace.append.flush_ms"] > 0
    assert [span.attributes["messaging.kafka.offset"] for span in replications] == [0, 0]

    record, trace_id = seen[0]
    assert f"{trace_id:032x}" == sent.trace_id
    assert record.headers == [("mine", b"1"), ("traceparent", f"00-{sent.trace_id}-{sent.span_id}-01".encode())]
    polls = own.named(f"poll {topic}")
    assert sent.trace_id in {link for span in polls for link in span.links}
    assert {headers["x-tenant"] for headers in collecting.headers} == {"tests"}
    assert {headers["authorization"] for headers in collecting.headers} == {"Bearer secret"}


def test_a_batch_that_the_log_writes_again_is_in_the_trace_too(cluster: LocalCluster, collecting: Collector) -> None:
    topic = make_topic(cluster, **{"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"})
    own = own_spans()
    with producer_of(cluster, compression_type="lz4") as producer:
        producer.send_many(topic, [b"x" * 50] * 20).result(30)
    (sent,) = own.named(f"send {topic}")
    append, *replications = broker_spans(collecting, sent.trace_id)
    assert sent.attributes["messaging.batch.message_count"] == 20
    assert append.attributes["messaging.batch.message_count"] == 20
    assert [span.parent for span in replications] == [append.span_id] * 2


def test_a_batch_without_an_idempotent_producer_is_in_the_trace_too(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic, own = make_topic(cluster), own_spans()
    with producer_of(cluster, enable_idempotence=False) as producer:
        producer.send(topic, b"x").result(30)
    (sent,) = own.named(f"send {topic}")
    append, *replications = broker_spans(collecting, sent.trace_id)
    assert [span.parent for span in replications] == [append.span_id] * 2


def test_a_send_in_a_handler_continues_the_trace(cluster: LocalCluster) -> None:
    first, second, own = make_topic(cluster), make_topic(cluster), own_spans()
    with producer_of(cluster) as producer:
        producer.send(first, b"x").result(30)
        process_one(
            cluster, first, lambda record: producer.send(second, record.value, headers=record.headers).result(30)
        )
    (sent,), (processed,), (sent_again,) = (
        own.named(name) for name in (f"send {first}", f"process {first}", f"send {second}")
    )
    assert {span.trace_id for span in (sent, processed, sent_again)} == {sent.trace_id}
    assert sent_again.parent == processed.span_id
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=second, auto_offset_reset="earliest") as reader:
        reader.subscribe([second])
        (record,) = until(lambda: reader.poll(1.0))
    assert record.headers == [("traceparent", f"00-{sent.trace_id}-{sent_again.span_id}-01".encode())]


def test_the_async_clients_make_the_same_spans(cluster: LocalCluster, collecting: Collector) -> None:
    topic, own = make_topic(cluster), own_spans()

    async def run() -> None:
        servers = cluster.bootstrap_servers
        async with AsyncProducer(bootstrap_servers=servers, otel_traces_enable=True) as producer:
            await producer.send_and_wait(topic, b"one")
            await (await producer.send_many(topic, [b"two", b"three"]))
        stop = asyncio.Event()

        async def handle(record: Record) -> None:
            with own.tracer.start_as_current_span("inner"):
                await asyncio.sleep(0)
            if record.offset == 2:
                stop.set()

        consumer = AsyncConsumer(
            bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", otel_traces_enable=True
        )
        async with consumer:
            consumer.subscribe([topic])
            await consumer.process(handle, stop=stop)

    asyncio.run(run())
    one, many = own.named(f"send {topic}")
    (processed,) = own.named(f"process {topic}")
    assert processed.parent == one.span_id
    assert [span.parent for span in own.named("inner") if span.trace_id == one.trace_id] == [processed.span_id]
    for sent in (one, many):
        assert len(broker_spans(collecting, sent.trace_id)) == 3


def test_a_send_without_an_active_span_continues_the_trace_of_its_headers(cluster: LocalCluster) -> None:
    topic, own = make_topic(cluster), own_spans()
    parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with producer_of(cluster) as producer:
        producer.send(topic, b"x", headers={"traceparent": parent, "tracestate": b"vendor=1"}).result(30)
    (sent,) = own.named(f"send {topic}")
    assert (sent.trace_id, sent.parent) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


def test_the_brokers_spans_of_a_kafka_clients_batch_are_in_the_trace_of_its_header(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic = make_topic(cluster)
    ids = [f"{next(_names) + 1:032x}" for _ in range(3)]
    unsampled, sampled, compressed = (
        f"00-{trace_id}-00f067aa0ba902b7-{flags}".encode()
        for trace_id, flags in zip(ids, ("00", "01", "01"), strict=True)
    )
    for codec, contexts in ((None, (unsampled, sampled)), ("gzip", (compressed,))):
        producer = KafkaProducer(
            bootstrap_servers=cluster.kafka_bootstrap_servers.split(","), linger_ms=60_000, compression_type=codec
        )
        for context in contexts:  # close() sends them as one batch
            producer.send(topic, b"x", headers=[("a", b"1"), ("traceparent", context)])
        producer.close(timeout=60)
    append, *replications = broker_spans(collecting, ids[1])
    assert (append.name, append.parent) == (f"append {topic}-0", "00f067aa0ba902b7")
    assert append.attributes["messaging.kafka.offset"] == 0
    assert [span.parent for span in replications] == [append.span_id] * 2
    assert [collecting.spans(trace_id) for trace_id in (ids[0], ids[2])] == [[], []]


def test_a_failed_send_ends_its_span_with_the_error(cluster: LocalCluster, collecting: Collector) -> None:
    topic, own = make_topic(cluster, **{"max.message.bytes": 1_000}), own_spans()
    with producer_of(cluster) as producer, pytest.raises(RecordTooLargeError):
        producer.send(topic, b"x" * 5_000).result(30)
    (sent,) = own.named(f"send {topic}")
    assert sent.has_error
    assert sent.attributes["error.type"] == "MESSAGE_TOO_LARGE"


def coordinator_spans(collecting: Collector, trace_id: str, count: int, *, error: str | None = None) -> list[Span]:
    """The coordinator's spans with this outcome in a trace, once ``count`` have arrived. (A client repeats a call while
    the shard has no coordinator, and each attempt has a span.)"""

    def found() -> list[Span]:
        spans = [span for span in collecting.spans(trace_id) if span.service == "headrace-coordinator"]
        return [span for span in spans if span.attributes.get("error.type") == error]

    until(lambda: len(found()) >= count, f"{count} spans of the coordinator: {collecting.spans(trace_id)}")
    return found()


def test_a_transaction_within_a_span_has_the_coordinators_spans_in_its_trace(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic, own = make_topic(cluster), own_spans()
    consumer = Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic)
    with producer_of(cluster, transactional_id=topic) as producer, consumer:
        with own.tracer.start_as_current_span("order"), producer.transaction():
            producer.send(topic, b"x")
            producer.send_offsets({TopicPartition(topic, 0): 1}, group=consumer.group_metadata())
        with own.tracer.start_as_current_span("refund"), producer.transaction():
            producer.send(topic, b"x")
            producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"without a current span")
    (order,), (refund,) = own.named("order"), own.named("refund")
    spans = coordinator_spans(collecting, order.trace_id, 3)
    assert [span.name for span in spans] == [
        f"init producer {topic}",
        f"send offsets {topic}",
        f"commit transaction {topic}",
    ]
    assert {span.parent for span in spans} == {order.span_id}
    assert {span.attributes["headrace.transactional.id"] for span in spans} == {topic}
    assert [span.attributes.get("messaging.consumer.group.name") for span in spans] == [None, topic, None]
    assert order.begin_ns <= spans[0].begin_ns <= spans[-1].end_ns <= order.end_ns
    (aborted,) = coordinator_spans(collecting, refund.trace_id, 1)
    assert (aborted.name, aborted.parent) == (f"abort transaction {topic}", refund.span_id)
    ended = [span for span in collecting.spans() if span.name == f"commit transaction {topic}" and not span.has_error]
    assert [span.trace_id for span in ended] == [order.trace_id]


def test_a_commit_within_a_span_has_the_coordinators_span_in_its_trace(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic, own = make_topic(cluster), own_spans()
    offsets = {TopicPartition(topic, 0): 0}

    async def run() -> None:
        async with AsyncConsumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id=topic, otel_traces_enable=True
        ) as consumer:
            with own.tracer.start_as_current_span("async"):
                await consumer.commit(offsets)

    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic, otel_traces_enable=True) as consumer:
        with own.tracer.start_as_current_span("blocking"):
            consumer.commit(offsets)
        consumer.commit(offsets)
    untraced = Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic)
    with untraced, own.tracer.start_as_current_span("untraced"):
        untraced.commit(offsets)
    asyncio.run(run())
    parents = [*own.named("blocking"), *own.named("async")]
    for parent in parents:
        (span,) = coordinator_spans(collecting, parent.trace_id, 1)
        assert (span.name, span.parent, span.has_error) == (f"commit offsets {topic}", parent.span_id, False)
        assert span.attributes["messaging.consumer.group.name"] == topic
        assert span.attributes["headrace.offsets"] == 1
    commits = [span for span in collecting.spans() if span.name == f"commit offsets {topic}" and not span.has_error]
    assert [span.trace_id for span in commits] == [parent.trace_id for parent in parents]


def test_a_refused_commit_ends_the_coordinators_span_with_the_error(
    cluster: LocalCluster, collecting: Collector
) -> None:
    topic, own = make_topic(cluster), own_spans()
    consumer = Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic, otel_traces_enable=True)
    with consumer, own.tracer.start_as_current_span("refused"), pytest.raises(OffsetMetadataTooLargeError):
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "x" * 5_000)})
    (refused,) = own.named("refused")
    (span,) = coordinator_spans(collecting, refused.trace_id, 1, error="OFFSET_METADATA_TOO_LARGE")
    assert span.has_error


def test_records_that_are_not_sampled_cost_the_brokers_no_span(cluster: LocalCluster, collecting: Collector) -> None:
    topic, own = make_topic(cluster), own_spans()
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as untraced:
        untraced.send(topic, b"x").result(30)
    with producer_of(cluster, otel_traces_ratio=0.0) as never:
        never.send(topic, b"x").result(30)
        never.send_many(topic, [b"x"]).result(30)
    with producer_of(cluster) as producer:
        producer.send(topic, b"last").result(30)
    (sent,) = own.named(f"send {topic}")
    assert len(broker_spans(collecting, sent.trace_id)) == 3
    assert {span.trace_id for span in collecting.spans() if topic in span.name} == {sent.trace_id}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=topic, auto_offset_reset="earliest") as reader:
        reader.subscribe([topic])
        records: list[Record] = []
        until(lambda: len(records.extend(reader.poll(1.0)) or records) == 4)  # type: ignore[func-returns-value]
    assert [bool(record.headers) for record in records] == [False, False, False, True]


def test_a_producer_that_samples_goes_on_tracing_some_records_of_each_second(cluster: LocalCluster) -> None:
    topic, own = make_topic(cluster), own_spans()
    with producer_of(cluster, otel_traces_ratio=0.5, otel_traces_per_second_max=2) as producer:

        def traced_and_sent() -> tuple[int, int]:
            # (so many at once that a slow machine sends enough of them in a second)
            offsets = [future.result(30).offset for future in [producer.send(topic, b"x") for _ in range(50)]]
            return len(own.named(f"send {topic}")), max(offsets) + 1

        traced, sent = until(lambda: found if (found := traced_and_sent())[0] >= 4 else None)
    assert sent > 4 * traced


def test_a_collector_that_refuses_spans_costs_no_acknowledgement(cluster: LocalCluster, collecting: Collector) -> None:
    topic, own = make_topic(cluster), own_spans()
    collecting.refusing = True
    try:
        with producer_of(cluster) as producer:
            for _ in range(20):
                producer.send(topic, b"x").result(30)
            until(lambda: collecting.refused >= 3)
            collecting.refusing = False
            own = own_spans()
            producer.send(topic, b"x").result(30)
    finally:
        collecting.refusing = False
    (sent,) = own.named(f"send {topic}")
    assert len(broker_spans(collecting, sent.trace_id)) == 3
