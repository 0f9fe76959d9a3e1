"""Reading a compacted topic: gaps do not count as data loss, and a query can end at an offset without a record."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace_core.testing.verdicts import NotInTimeError
from headrace_spark.schema import RECORD
from headrace_spark.source import HeadraceBatchReader
from headrace_spark.stream import HeadraceStreamReader

TOPIC = "latest"
RECORDS, KEYS = 4_000, 10


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A cluster whose cleaner runs almost without pauses, with one compacted topic. Compaction has removed most records
    of each key."""
    quick = {"log.cleaner.backoff.ms": 50, "log.initial.task.delay.ms": 0}
    with LocalCluster(brokers=1, controllers=1, coordinators=0, config=quick) as cluster:
        compacted = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=1, config=compacted)])
        small = {"batch.size": 2_048}
        with Producer(small, bootstrap_servers=cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send(TOPIC, b"%d" % number, key=b"key-%d" % (number % KEYS), partition=0)
        deadline = time.monotonic() + 60
        while len(left := offsets(HeadraceBatchReader(options(cluster.bootstrap_servers), RECORD))) > RECORDS // 4:
            if time.monotonic() >= deadline:
                raise NotInTimeError(f"{len(left)} of {RECORDS} records are left, nothing cleans")
            time.sleep(0.05)
        yield cluster.bootstrap_servers


def options(servers: str, **given: Any) -> dict[str, str]:
    base = {"headrace.bootstrap.servers": servers, "subscribe": TOPIC, "failOnDataLoss": "true", **given}
    return {name.lower(): str(value) for name, value in base.items()}


def offsets(reader: HeadraceBatchReader) -> list[int]:
    return rows(reader, reader.partitions())


def rows(reader: Any, tasks: Any) -> list[int]:
    """The offsets that the tasks return. Each record must be the one that was written at its offset."""
    found = []
    for task in tasks:
        for batch in reader.read(task):
            offset, value, key = (batch.column(name).to_pylist() for name in ("offset", "value", "key"))
            assert value == [b"%d" % number for number in offset]
            assert key == [b"key-%d" % (number % KEYS) for number in offset]
            found += offset
    assert found == sorted(set(found))
    return found


def test_what_is_left_is_read_whole_and_has_the_latest_of_each_key(servers: str) -> None:
    left = offsets(HeadraceBatchReader(options(servers), RECORD))
    assert set(range(RECORDS - KEYS, RECORDS)) <= set(left)
    assert left[0] > 0, "the first record is gone, and that is no loss"


def test_a_query_that_starts_and_ends_where_nothing_is_left_ends(servers: str) -> None:
    left = offsets(HeadraceBatchReader(options(servers), RECORD))
    gap_end = left[0]
    assert gap_end > 100
    for start, end in ((0, gap_end), (10, 50), (gap_end - 1, gap_end + 1), (0, left[-1])):
        given = {
            "startingOffsets": json.dumps({TOPIC: {"0": start}}),
            "endingOffsets": json.dumps({TOPIC: {"0": end}}),
            "minPartitions": 3,
        }
        found = offsets(HeadraceBatchReader(options(servers, **given), RECORD))
        assert set(found) <= set(range(start, end))
        now = offsets(HeadraceBatchReader(options(servers), RECORD))
        assert {offset for offset in now if start <= offset < end} <= set(found), "cleaning may go on meanwhile"


def test_a_stream_with_a_limit_passes_over_the_gaps(servers: str) -> None:
    reader = HeadraceStreamReader(options(servers, startingOffsets="earliest", maxOffsetsPerTrigger=700), RECORD)
    reader.prepareForTriggerAvailableNow()
    at, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(at, ReadMaxRows(700))) != at:
        found += rows(reader, reader.partitions(at, end))
        at, batches = end, batches + 1
    reader.stop()
    assert batches == -(-RECORDS // 700)
    assert set(offsets(HeadraceBatchReader(options(servers), RECORD))) <= set(found)
    assert found == sorted(set(found))
