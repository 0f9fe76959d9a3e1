"""``format("headrace")`` in a real Spark on a real cluster, compared with the Kafka source."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError

KAFKA_COLUMNS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)


def numbers(start: int, end: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, end)]


def positions(frame: Any) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def run_available_now(
    reader: Any, directory: Path, **options: Any
) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Run a stream into Parquet until it ends. Return the progress of the batches with data, and the rows of the
    result."""
    frame = reader.load()
    query = (
        frame.select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(60):
        raise NotInTimeError("the query has not ended within a minute")
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    return batches, positions(frame.sparkSession.read.parquet(str(directory / "out")))


def test_rows_have_the_kafka_sources_columns(source: Any, make_topic: Any, send: Any) -> None:
    topic = make_topic(2)
    send(
        topic,
        {
            0: [
                {"key": b"k", "value": b"v", "timestamp_ms": 1_357_034_400_123, "headers": [("h", b"1"), ("n", None)]},
                {"key": None, "value": None, "timestamp_ms": 0},
            ],
            1: [{"key": b"", "value": b"", "timestamp_ms": 1}],
        },
    )
    frame = source("read", subscribe=topic).load()
    assert frame.schema.simpleString() == KAFKA_COLUMNS
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    first = rows[0, 0]
    assert (bytes(first.key), bytes(first.value), first.topic, first.timestampType) == (b"k", b"v", topic, 0)
    assert first.timestamp == datetime.datetime(2013, 1, 1, 10, 0, 0, 123_000)
    assert (rows[0, 1].key, rows[0, 1].value) == (None, None)
    assert rows[0, 1].timestamp == datetime.datetime(1970, 1, 1)
    assert (bytes(rows[1, 0].key), bytes(rows[1, 0].value)) == (b"", b"")

    with_headers = source("read", subscribe=topic, includeHeaders="true").load()
    assert with_headers.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    headers = {(row.partition, row.offset): row.headers for row in with_headers.collect()}
    assert [(h.key, h.value and bytes(h.value)) for h in headers[0, 0]] == [("h", b"1"), ("n", None)]
    assert headers[0, 1] is None, "no headers are null, as in the Kafka source"


def test_a_query_that_names_fewer_columns_gets_those(source: Any, make_topic: Any, send: Any) -> None:
    topic = make_topic(1)
    send(topic, {0: numbers(0, 3)})
    frame = source("read", subscribe=topic).schema("value BINARY, partition INT").load()
    assert [(bytes(row.value), row.partition) for row in frame.collect()] == [(b"0", 0), (b"1", 0), (b"2", 0)]


def test_a_batch_reads_between_its_offsets(source: Any, make_topic: Any, send: Any) -> None:
    topic = make_topic(2)
    send(topic, {0: numbers(0, 10), 1: numbers(0, 10)})
    given = {
        "startingOffsets": json.dumps({topic: {"0": 3, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 5, "1": -1}}),
    }
    rows = positions(source("read", subscribe=topic, **given).load())
    assert rows == [(0, 3), (0, 4), *((1, offset) for offset in range(10))]
    assert len(positions(source("read", assign=json.dumps({topic: [1]})).load())) == 10


def test_a_batch_reads_between_times(source: Any, make_topic: Any, send: Any) -> None:
    topic = make_topic(2)
    send(topic, {p: [{"value": b"x", "timestamp_ms": 1_000 * n} for n in range(10)] for p in (0, 1)})
    rows = positions(source("read", subscribe=topic, startingTimestamp="2500", endingTimestamp="5000").load())
    assert rows == [(p, offset) for p in (0, 1) for offset in (3, 4)]
    by_partition = json.dumps({topic: {"0": 8_000, "1": 9_000}})
    rows = positions(source("read", subscribe=topic, startingOffsetsByTimestamp=by_partition).load())
    assert rows == [(0, 8), (0, 9), (1, 9)]
    with pytest.raises(Exception, match="partitions have no record at or after their time"):
        source("read", subscribe=topic, startingTimestamp="99000").load().count()
    late = source("read", subscribe=topic, startingTimestamp="99000", startingOffsetsByTimestampStrategy="latest")
    assert late.load().count() == 0


def test_min_partitions_and_max_records_make_more_tasks(source: Any, make_topic: Any, send: Any) -> None:
    topic = make_topic(2)
    send(topic, {0: numbers(0, 90), 1: numbers(0, 10)})
    assert source("read", subscribe=topic).load().rdd.getNumPartitions() == 2
    for option in ({"minPartitions": 5}, {"maxRecordsPerPartition": 20}):
        frame = source("read", subscribe=topic, **option).load()
        assert frame.rdd.getNumPartitions() >= 5
        assert len(positions(frame)) == len(set(positions(frame))) == 100


def test_an_empty_topic_and_a_pattern_without_a_match_give_no_rows(source: Any, make_topic: Any) -> None:
    assert source("read", subscribe=make_topic(2)).load().count() == 0
    assert source("read", subscribePattern="no-such-.*").load().count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a", "assign": "{}"}, "exactly one of the options"),
        ({"subscribe": "a", "kafka.group.id": " "}, "must be the name of a consumer group"),
        ({"subscribe": "no-such-topic", "fetchOffset.numRetries": "1"}, "no topic named no-such-topic"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "a batch query cannot start at the end"),
        ({"subscribe": "a", "headrace.fetch.min.bites": "1"}, "did you mean 'fetch.min.bytes'"),
    ],
)
def test_mistakes_are_reported_where_the_frame_is_made_or_run(
    source: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        source("read", **options).load().count()


def test_a_stream_keeps_its_limit_and_writes_the_kafka_sources_offsets(
    source: Any, make_topic: Any, send: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    send(topic, {0: numbers(0, 30), 1: numbers(0, 10)})
    reader = source("readStream", subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="16")
    batches, rows = run_available_now(reader, tmp_path)
    assert [batch["numInputRows"] for batch in batches] == [16, 16, 8]
    ends = [batch["sources"][0]["endOffset"] for batch in batches]
    assert [json.loads(end) if isinstance(end, str) else end for end in ends] == [
        {topic: {"0": 12, "1": 4}},
        {topic: {"0": 24, "1": 8}},
        {topic: {"0": 30, "1": 10}},
    ]
    assert rows == [(0, offset) for offset in range(30)] + [(1, offset) for offset in range(10)]


def test_a_stream_goes_on_from_its_checkpoint_and_finds_new_partitions(
    source: Any, make_topic: Any, send: Any, headrace: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    send(topic, {0: numbers(0, 5)})
    reader = source("readStream", subscribe=topic, startingOffsets="earliest")
    run_available_now(reader, tmp_path)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.create_partitions({topic: 2})
    send(topic, {0: numbers(5, 7), 1: numbers(0, 3)})
    batches, rows = run_available_now(reader, tmp_path)
    assert sum(batch["numInputRows"] for batch in batches) == 5
    assert rows == [(0, offset) for offset in range(7)] + [(1, offset) for offset in range(3)]


def test_a_streams_progress_shows_in_its_group(
    source: Any, make_topic: Any, send: Any, headrace: Any, tmp_path: Path
) -> None:
    """The group also gets the progress of the last batch. If the group refuses a commit because it has members, the
    query is not affected."""
    topic, other = make_topic(2), make_topic(1)
    send(topic, {0: numbers(0, 30), 1: numbers(0, 10)})
    send(other, {0: numbers(0, 1)})
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    group = f"group-of-{topic}"
    given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "16", "kafka.group.id": group}
    servers = headrace.bootstrap_servers
    with Consumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest") as member:
        batches, _ = run_available_now(source("readStream", **given), tmp_path)
        assert [batch["numInputRows"] for batch in batches] == [16, 16, 8]
        committed = member.committed(partitions)
        assert [each and each.offset for each in committed.values()] == [30, 10]

        member.subscribe([other])
        deadline = time.monotonic() + 60
        while not member.poll(timeout=1.0):
            if time.monotonic() >= deadline:
                raise NotInTimeError("the member was given nothing to read")
        send(topic, {0: numbers(30, 35)})
        batches, rows = run_available_now(source("readStream", **given), tmp_path)
        assert [batch["numInputRows"] for batch in batches] == [5]
        assert len(rows) == 45
        assert member.committed(partitions) == committed, "only members commit to a group that has some"


@pytest.mark.parametrize("fail", [True, False])
def test_offsets_that_are_gone_fail_the_stream_or_are_skipped(
    fail: bool, source: Any, make_topic: Any, send: Any, headrace: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    send(topic, {0: numbers(0, 10)})
    reader = source("readStream", subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fail).lower())
    run_available_now(reader, tmp_path)
    send(topic, {0: numbers(10, 20)})
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): 15})
    if fail:
        with pytest.raises(Exception, match="failOnDataLoss"):
            run_available_now(reader, tmp_path)
    else:
        _, rows = run_available_now(reader, tmp_path)
        assert rows == [(0, offset) for offset in [*range(10), *range(15, 20)]]


@pytest.mark.parametrize("fail", [True, False])
def test_a_deleted_topic_fails_the_stream_or_is_left_out(
    fail: bool, source: Any, make_topic: Callable[..., str], send: Any, headrace: Any, tmp_path: Path
) -> None:
    stays, goes = make_topic(1), make_topic(1)
    send(stays, {0: numbers(0, 3)})
    send(goes, {0: numbers(0, 4)})
    both = f"{stays}|{goes}"
    reader = source("readStream", subscribePattern=both, startingOffsets="earliest", failOnDataLoss=str(fail).lower())
    run_available_now(reader, tmp_path)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.delete_topics([goes])
    send(stays, {0: numbers(3, 5)})
    if fail:
        with pytest.raises(Exception, match=f"{goes}-0 is gone"):
            run_available_now(reader, tmp_path)
    else:
        batches, _ = run_available_now(reader, tmp_path)
        assert sum(batch["numInputRows"] for batch in batches) == 2


def test_a_batch_larger_than_one_arrow_batch_is_whole(source: Any, make_topic: Any, headrace: Any) -> None:
    from headrace import Producer

    topic = make_topic(1)
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        producer.send_many(topic, numbers(0, 250_000), partition=0).result(timeout=60)
    row = source("read", subscribe=topic).load().selectExpr("count(*) n", "sum(int(string(value))) s", "max(offset) m")
    assert tuple(row.collect()[0]) == (250_000, 250_000 * 249_999 // 2, 249_999)
