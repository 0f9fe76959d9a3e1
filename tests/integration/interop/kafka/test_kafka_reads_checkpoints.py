"""Kafka's own classes read Headrace's checkpoints with their checksums. Kafka's classes ignore white space at the end
of a line, and lines and fields that they do not know."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, LogDirectory, RealFileSystem, format_directory
from headrace_core.log.checkpoints import encode_id
from headrace_core.records import encode_batch
from headrace_core.types import TopicPartition
from tests.integration.interop.kafka_peer import jars

pytestmark = pytest.mark.timeout(600)

ORDERS = TopicPartition("orders", 0)
READER = Path(__file__).parents[1] / "ReadCheckpoints.java"


def test_kafka_reads_our_checkpoints(tmp_path: Path) -> None:
    fs, root, topic_id = RealFileSystem(), str(tmp_path / "data"), uuid.UUID(int=7)
    format_directory(fs, root, cluster_id="c", node_id=1)
    directory = LogDirectory.open(fs, root, clock=SystemClock(), config_of=lambda topic, topic_id: LogConfig())
    log = directory.create(ORDERS, topic_id, LogConfig())
    for epoch in (2, 2, 5):
        log.append(encode_batch([(1, None, b"value", [])] * 3), epoch)
    log.flush()
    directory.write_high_watermarks({ORDERS: 9})
    directory.delete_records(log, 4)
    directory.close(broker_epoch=11)

    classpath = f"{tmp_path}:{jars()}/*"
    subprocess.run(["javac", "-cp", classpath, "-d", str(tmp_path), str(READER)], check=True, timeout=120)
    command = ["java", "-Xmx128m", "-cp", classpath, READER.stem, root, str(ORDERS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "recovery-point-offset {orders-0=9}",
        "replication-offset {orders-0=9}",
        "log-start-offset {orders-0=4}",
        "epochs [EpochEntry[epoch=2, startOffset=4], EpochEntry[epoch=5, startOffset=6]]",
        f"id {encode_id(topic_id)}",
        "stop OptionalLong[11]",
    ]
