"""The exactly-once sink with real Spark and a real cluster, read with read_committed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from headrace import Admin, Consumer, TopicPartition

EXACTLY_ONCE = {"headrace.delivery": "exactly-once"}


def to(writer: Any, headrace: Any, topic: str, **options: Any) -> Any:
    """Return a writer with the sink's options; the caller calls save() or start()."""
    given = {"headrace.bootstrap.servers": headrace.bootstrap_servers, "topic": topic, **options}
    return writer.format("headrace").options(**given)


def committed(source: Any, topic: str) -> Counter[str]:
    rows = source("read", subscribe=topic, **{"isolation.level": "read_committed"}).load().collect()
    return Counter(bytes(row.value).decode() for row in rows)


def uncommitted(source: Any, topic: str) -> Counter[str]:
    return Counter(bytes(row.value).decode() for row in source("read", subscribe=topic).load().collect())


def open_transactions(headrace: Any, topic: str, partitions: int = 2) -> int:
    """Return the number of records after the last stable offset."""
    everywhere = [TopicPartition(topic, number) for number in range(partitions)]
    ends = []
    for level in ("read_committed", "read_uncommitted"):
        with Consumer(bootstrap_servers=headrace.bootstrap_servers, isolation_level=level) as consumer:
            ends.append(sum(consumer.end_offsets(everywhere).values()))
    return ends[1] - ends[0]


def test_all_rows_of_a_frame_become_visible_or_none(spark: Any, headrace: Any, make_topic: Any, source: Any) -> None:
    topic = make_topic(2)
    frame = spark.range(0, 200, 1, 4).selectExpr("cast(id as string) value")
    to(frame.write, headrace, topic, **EXACTLY_ONCE).mode("append").save()
    expected = Counter(map(str, range(200)))
    assert committed(source, topic) == expected

    fails = spark.range(0, 200, 1, 4).selectExpr(
        "if(id = 190, cast(raise_error('bad row') as string), concat('x', id)) value"
    )
    with pytest.raises(Exception, match="bad row"):
        to(fails.write, headrace, topic, **EXACTLY_ONCE).mode("append").save()
    assert committed(source, topic) == expected
    assert sum(uncommitted(source, topic).values()) > 200, "tasks of the failed write have written rows"
    assert open_transactions(headrace, topic) == 0, "and their transactions are aborted"

    to(frame.limit(0).write, headrace, topic, **EXACTLY_ONCE).mode("append").save()
    assert committed(source, topic) == expected


def test_a_stream_writes_each_row_once(
    spark: Any, headrace: Any, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    origin, copy = make_topic(2), make_topic(2)
    send(origin, {p: [b"%d:%d" % (p, n) for n in range(100)] for p in (0, 1)})
    expected = Counter(f"{p}:{n}" for p in (0, 1) for n in range(100))

    def run() -> str:
        frame = source("readStream", subscribe=origin, startingOffsets="earliest", maxOffsetsPerTrigger="60").load()
        writer = to(frame.select("value").writeStream, headrace, copy, **EXACTLY_ONCE)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    query_id = run()
    assert committed(source, copy) == expected
    last = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdigit())
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        assert admin.describe_sink(f"__headrace_sink/{query_id}/{copy}").batch == last >= 3

    (tmp_path / "commits" / str(last)).unlink()  # as if the driver had died between its decision and Spark's commit log
    (tmp_path / "commits" / f".{last}.crc").unlink(missing_ok=True)
    assert run() == query_id
    assert committed(source, copy) == expected
    assert uncommitted(source, copy) == expected, "the repeated batch reads the decision, and writes nothing"
    assert open_transactions(headrace, copy) == 0


def test_a_repeated_version_of_an_application_writes_nothing(
    spark: Any, headrace: Any, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    origin, copy = make_topic(2), make_topic(2)
    send(origin, {0: [b"%d" % n for n in range(40)]})
    written = []

    def write(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            options = {"headrace.txn.app.id": "copies/1", "headrace.txn.version": batch_id}
            to(batch.select("value").write, headrace, copy, **options).mode("append").save()
        written.append(batch_id)

    frame = source("readStream", subscribe=origin, startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    query = (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert written == [0, 1]
    assert committed(source, copy) == Counter(map(str, range(40)))
