"""A traced record that Spark copies from one topic to another, on three brokers: the spans of its trace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.records import Record
from tests.worlds.trace_collector import Collector, Span, collector, own_spans
from tests.worlds.waiting import until

DRIVER = Path(__file__).parents[1] / "integration" / "spark" / "trace_driver.py"
UNTRACED = 1_000  #: Number of records before the traced record.
#: Number of spans besides the producer's span: one append and two replications for each topic, one of the source, one
#: of the sink.
REMOTE_SPANS = 8


@dataclass(frozen=True, slots=True)
class TracedCopy:
    """``sent``: the producer's span. ``spans``: the trace's other spans. ``written``: the records of the copy."""

    sent: Span
    spans: list[Span]
    written: list[Record]


def traced_copy() -> TracedCopy:
    """Send a traced record to ``orders``, let Spark copy the topic to ``paid``, and wait for the trace."""
    own = own_spans()
    with collector() as collecting:
        config = {"otel.exporter.otlp.endpoint": collecting.url}
        with LocalCluster(controllers=1, brokers=3, coordinators=1, config=config) as cluster:
            servers = cluster.bootstrap_servers
            with Admin(bootstrap_servers=servers) as admin:
                admin.create_topics([NewTopic(name, 1, replication_factor=3) for name in ("orders", "paid")])
            with Producer(bootstrap_servers=servers) as untraced:
                untraced.send_many("orders", [b"untraced"] * UNTRACED).result(60)
            with Producer(bootstrap_servers=servers, otel_traces_enable=True) as producer:
                producer.send("orders", b"traced", headers={"shop": b"7"}).result(60)
            _copy(servers, collecting)
            (sent,) = own.named("send orders")
            until(lambda: len(collecting.spans(sent.trace_id)) >= REMOTE_SPANS, lambda: str(collecting.spans()))
            return TracedCopy(
                replace(sent, service="the producer's program"),
                collecting.spans(sent.trace_id),
                list(_records(servers, TopicPartition("paid", 0))),
            )


def _copy(servers: str, collecting: Collector) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collecting.url}
    done = subprocess.run(
        [sys.executable, str(DRIVER), servers], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _records(servers: str, partition: TopicPartition) -> Iterator[Record]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        left = consumer.end_offsets([partition])[partition]
        while left:
            for record in until(lambda: consumer.poll(1.0)):
                left -= 1
                yield record
