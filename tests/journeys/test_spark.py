"""One batch written by Spark and read back as a stream, on real processes; skipped where Java is missing."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="process") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("numbers", partitions=3)])
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import headrace_spark

    handler = signal.getsignal(signal.SIGINT)
    session = headrace_spark.session(
        "journey", master="local[2]", spark_sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse"))
    )
    session.sparkContext.setLogLevel("OFF")
    signal.signal(signal.SIGINT, handler)  # a SparkContext takes the signal
    yield session
    session.stop()


def test_a_frame_written_to_a_topic_is_read_back_as_a_stream(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    address = {"headrace.bootstrap.servers": cluster.bootstrap_servers}
    frame = spark.range(1_000).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
    frame.write.format("headrace").options(**address, topic="numbers").mode("append").save()
    stream = (
        spark.readStream.format("headrace").options(**address, subscribe="numbers", startingOffsets="earliest").load()
    )
    query = (
        stream.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.number for row in rows) == list(range(1_000))
