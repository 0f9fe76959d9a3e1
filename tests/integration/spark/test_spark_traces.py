"""One trace from a producer's send over three brokers and Spark's tasks to the record that the sink writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace_core.tracing.context import context_of
from tests.worlds.trace_collector import collector, own_spans
from tests.worlds.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

DRIVER = Path(__file__).with_name("trace_driver.py")


def test_one_trace_goes_from_the_send_to_the_record_of_the_sink() -> None:
    own = own_spans()
    with collector() as collecting:
        config = {"otel.exporter.otlp.endpoint": collecting.url}
        with LocalCluster(controllers=1, brokers=3, coordinators=1, config=config) as cluster:
            servers = cluster.bootstrap_servers
            with Admin(bootstrap_servers=servers) as admin:
                admin.create_topics([NewTopic(name, 1, replication_factor=3) for name in ("orders", "paid")])
            with Producer(bootstrap_servers=servers) as untraced:
                untraced.send_many("orders", [b"untraced"] * 1_000).result(60)
            with Producer(bootstrap_servers=servers, otel_traces_enable=True) as producer:
                producer.send("orders", b"traced", headers={"shop": b"7"}).result(60)
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url}
            done = subprocess.run(
                [sys.executable, str(DRIVER), servers], env=environment, capture_output=True, text=True, timeout=200
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (sent,) = own.named("send orders")
            until(lambda: len(collecting.spans(sent.trace_id)) >= 8, lambda: str(collecting.spans()))
            spans = collecting.spans(sent.trace_id)
            records = list(read(servers, "paid"))

    by_name: dict[str, list[Any]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    ((read_in_spark,), (written,)) = by_name["spark read orders"], by_name["send paid"]
    assert {name: len(found) for name, found in by_name.items()} == {
        "append orders-0": 1,
        "replicate orders-0": 2,
        "spark read orders": 1,
        "send paid": 1,
        "append paid-0": 1,
        "replicate paid-0": 2,
    }
    assert read_in_spark.parent == written.parent == sent.span_id
    assert read_in_spark.service == written.service == "headrace-spark"
    assert read_in_spark.attributes["messaging.kafka.offset"] == 1_000
    assert by_name["append paid-0"][0].parent == written.span_id
    assert {span.parent for span in by_name["replicate paid-0"]} == {by_name["append paid-0"][0].span_id}
    traced = [record for record in records if record.headers]
    assert (len(records), len(traced)) == (1_001, 1)
    context = context_of(traced[0].headers)
    assert context is not None
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (sent.trace_id, written.span_id)
    assert traced[0].headers[0] == ("shop", b"7")


def read(servers: str, topic: str) -> Any:
    """All records of the topic."""
    from headrace import Consumer, TopicPartition

    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        left = consumer.end_offsets([partition])[partition]
        while left:
            for record in until(lambda: consumer.poll(1.0)):
                left -= 1
                yield record
