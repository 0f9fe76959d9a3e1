"""``headrace_spark.QueryMetrics`` of a real query: its rows, its positions, and the records that it has not read."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

import headrace_spark
from headrace import Admin, NewTopic, Producer, PrometheusCollector, TopicPartition
from headrace.observing import Statistics
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(180)


def test_positions_and_lag_of_a_query_equal_what_was_sent(headrace: Any, spark: Any, tmp_path: Path) -> None:
    servers, topic = headrace.bootstrap_servers, f"measured-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(topic, partitions=2)])
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(100):
            producer.send(topic, value=b"x", partition=0 if number < 60 else 1)
    options = {
        "headrace.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "50",
    }  # fmt: skip
    rows = spark.readStream.format("headrace").options(**options).load()
    held = spark.readStream.format("rate").load().selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    both = rows.select("value").union(held)  # another source, whose offsets are none of a topic
    writer = both.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="1 second").start()
    try:
        measured = headrace_spark.QueryMetrics(query)
        first = until(measured.partition_metrics, "a first batch")
        assert sum(each["position"] + each["records-lag"] for each in first.values()) == 100
        until(lambda: sum(each["position"] for each in measured.partition_metrics().values()) == 100)
        found = Statistics.of(measured)
        assert found.partitions == {
            TopicPartition(topic, 0): {"position": 60.0, "records-lag": 0.0},
            TopicPartition(topic, 1): {"position": 40.0, "records-lag": 0.0},
        }
        assert found.metrics["records-lag-max"] == 0
        assert found.metrics["assigned-partitions"] == 2
        assert found.metrics["batches-total"] >= 2
        assert found.metrics["batch-duration-ms"] > 0
    finally:
        query.stop()
    registry: Any = prometheus_client.CollectorRegistry()
    PrometheusCollector(measured, client_id="hourly").register(registry)
    labels = {"client_id": "hourly", "topic": topic, "partition": "0"}
    assert registry.get_sample_value("kafka_consumer_position_by_partition", labels) == 60
