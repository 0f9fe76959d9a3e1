"""Real nodes: the counters equal what clients sent and read, to the record; promtool accepts the text."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.metrics.catalog import METRICS
from headrace_core.metrics.text import OPENMETRICS_TYPE
from tests.worlds.telemetry_world import Scrape, scrape, text_of
from tests.worlds.waiting import until

_IN = "kafka_server_brokertopicmetrics_messagesin_total"
_OUT = "headrace_broker_records_out_total"


def _until(look: Callable[[], Scrape], is_there: Callable[[Scrape], bool]) -> Scrape:
    found = until(lambda: seen if is_there(seen := look()) else None, "the metrics to get there", pause_s=0.1)
    assert isinstance(found, Scrape)
    return found


@pytest.fixture
def topic(headrace: LocalCluster) -> str:
    name = f"counted-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=2)])
    return name


def test_counters_equal_what_a_workload_sent_and_read(headrace: LocalCluster, topic: str) -> None:
    before = scrape(headrace.ps())
    with Producer(bootstrap_servers=headrace.bootstrap_servers, acks="all") as producer:
        for number in range(1_000):
            producer.send(topic, value=b"%d" % number, partition=number % 2)
        producer.send_arrow(topic, pa.table({"value": pa.array([b"x"] * 500, pa.binary())}))
        producer.flush(timeout=30)
        sent_by = producer.partition_metrics()
        assert sum(each["record-send-total"] for each in sent_by.values()) == 1_500
        assert sent_by[TopicPartition(topic, 1)]["record-send-total"] >= 500
    with Producer(bootstrap_servers=headrace.bootstrap_servers, transactional_id=f"t-{topic}") as producer:
        for is_committed in (True, True, False):
            try:
                with producer.transaction():
                    for _ in range(20):
                        producer.send(topic, value=b"in a transaction", partition=0)
                    if not is_committed:
                        producer.flush(timeout=30)  # so that the aborted records are in the log
                        raise LookupError
            except LookupError:
                assert not is_committed
    sent, markers = 1_000 + 500 + 3 * 20, 3  # each transaction has a marker in partition 0
    # A record counts when it is appended, and it is in the offset when it is committed.
    found = _until(
        lambda: scrape(headrace.ps()),
        lambda seen: all(
            total >= sent + markers
            for total in (
                seen.total(_IN, topic=topic),
                seen.total("kafka_topic_partition_current_offset", topic=topic, partition="*"),
            )
        ),
    )
    assert found.total(_IN, topic=topic) == sent + markers
    assert found.total("kafka_topic_partition_current_offset", topic=topic, partition="*") == sent + markers
    assert found.total(_IN) - before.total(_IN) >= sent + markers

    with Consumer(bootstrap_servers=headrace.bootstrap_servers, group_id=topic, auto_offset_reset="earliest",
                  enable_auto_commit=False, isolation_level="read_committed") as consumer:  # fmt: skip
        consumer.subscribe([topic])
        read = 0
        while read < sent - 20:
            read += len(consumer.poll(timeout=10, max_records=500))
        assert read == sent - 20  # without the aborted records
        read_by = consumer.partition_metrics()
        assert sum(each["records-consumed-total"] for each in read_by.values()) == sent + markers
        assert {each["records-lag"] for each in read_by.values()} == {0}
        consumer.commit({TopicPartition(topic, 0): 100, TopicPartition(topic, 1): 200})
        found = _until(
            lambda: scrape(headrace.ps()),
            lambda seen: (
                len(seen.of("kafka_consumergroup_lag", consumergroup=topic, topic=topic, partition="*")) == 2
                and seen.total(_OUT, topic=topic) >= sent + markers  # a broker's text may be some seconds old
            ),
        )
        ends = {each.labels["partition"]: each.value for each in found.of(
            "kafka_topic_partition_current_offset", topic=topic, partition="*")}  # fmt: skip
        lags = {each.labels["partition"]: each.value for each in found.of(
            "kafka_consumergroup_lag", consumergroup=topic, topic=topic, partition="*")}  # fmt: skip
        assert lags == {"0": ends["0"] - 100, "1": ends["1"] - 200}
        assert found.total("kafka_consumergroup_current_offset_sum", consumergroup=topic, topic=topic) == 300
        assert found.total("kafka_consumergroup_members", consumergroup=topic) == 1
        assert found.total("headrace_group_status", consumergroup=topic, status="*") == 1
    # All offsets were sent to the consumer once: records, aborted ones too, and markers.
    assert found.total(_OUT, topic=topic) == sent + markers
    assert found.total("kafka_server_brokertopicmetrics_bytesout_total", topic=topic) >= 1_560 * 2


def test_a_retry_that_the_log_knows_does_not_count(headrace: LocalCluster, topic: str) -> None:
    """The same batch of an idempotent producer, sent twice by the wire."""
    import grpc

    from headrace_core.testing.batches import batch_of
    from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        leader = admin.describe_topics([topic])[0].partitions[0].leader
        address = next(each.address for each in admin.describe_cluster().brokers if each.broker_id == leader)
    producer_id = 4_711_000 + uuid.uuid4().int % 1_000_000
    now_ms = time.time_ns() // 1_000_000
    data = batch_of(
        [0, 1],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
    )
    request = produce_pb2.ProduceRequest(acks=produce_pb2.ACKS_ALL, timeout_ms=10_000, correlation_id=1)
    request.partitions.add(topic=topic, partition=0, records=data)
    with grpc.insecure_channel(address) as channel:
        answers = list(produce_pb2_grpc.ProduceStub(channel).Produce(iter([request, request])))
    assert [each.results[0].base_offset for each in answers] == [0, 0]
    found = _until(lambda: scrape(headrace.ps()), lambda seen: seen.total(_IN, topic=topic) > 0)
    assert found.total(_IN, topic=topic) == 2


def test_every_row_is_in_the_catalog_and_every_role_has_its_rows(headrace: LocalCluster) -> None:
    found = scrape(headrace.ps())
    families = {name for metric in METRICS.values() for name in (metric.sample_name, *(
        f"{metric.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")))}  # fmt: skip
    assert found.names() <= families
    assert found.total("headrace_metrics_collector_errors_total") == 0
    assert found.total("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert found.total("kafka_brokers") == sum(each["role"] == "broker" for each in headrace.ps())
    roles = {each.labels["role"] for each in found.of("headrace_build_info", role="*", node_id="*", version="*")}
    assert roles == {each["role"] for each in headrace.ps()}
    for sample in found.samples:
        name = sample.name.removesuffix("_total")
        metric = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        assert sample.node[0] in metric.roles, sample


def test_openmetrics_ends_and_promtool_accepts_the_text(headrace: LocalCluster) -> None:
    for node in headrace.ps():
        text = text_of(node["metrics"], OPENMETRICS_TYPE)
        assert text.endswith("\n# EOF\n")
        assert text.count("# TYPE ") == len(
            {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
        )
        if shutil.which("promtool"):  # of Debian's package prometheus; CI has it
            done = subprocess.run(
                ["promtool", "check", "metrics"], input=text_of(node["metrics"]), text=True, capture_output=True
            )
            assert "error while linting" not in done.stderr, done.stderr
