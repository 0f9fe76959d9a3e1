"""kafka.isolation.level=read_committed: queries end at the last stable offset and skip aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace_core.records import COMMIT
from headrace_spark.schema import RECORD
from headrace_spark.source import HeadraceBatchReader
from headrace_spark.stream import HeadraceStreamReader
from tests.worlds.transactional_log import Row, TransactionalLog, serving


def open_at_the_end(seed: int) -> TransactionalLog:
    """Random transactions that are all committed, then an open transaction; records of another producer follow its
    first record."""
    log = TransactionalLog.random(seed, steps=120)
    for producer_id in range(4):
        log.end(producer_id, COMMIT)
    log.write(3, producer_id=50)
    log.write(3)
    return log


LOGS = {"open": open_at_the_end(11), "ended": TransactionalLog.random(12, steps=120)}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("transactions"), LOGS) as cluster:
        yield cluster.broker.address()


def options(servers: str, topic: str, **given: Any) -> dict[str, str]:
    base = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.isolation.level": "read_committed", **given}
    return {name.lower(): str(value) for name, value in base.items()}


def rows(reader: Any, tasks: Any) -> list[Row]:
    found = []
    for task in tasks:
        for batch in reader.read(task):
            columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            found += [Row(*each) for each in zip(*columns, strict=True)]
    return found


@pytest.mark.parametrize("topic", LOGS)
@pytest.mark.parametrize("tasks", [1, 7])
def test_a_batch_query_reads_the_committed_records(servers: str, topic: str, tasks: int) -> None:
    reader = HeadraceBatchReader(options(servers, topic, minPartitions=tasks), RECORD)
    planned = reader.partitions()
    assert len(planned) == tasks
    assert planned[-1].wanted.end == LOGS[topic].last_stable_offset
    assert rows(reader, planned) == LOGS[topic].committed


def test_read_uncommitted_is_the_default_and_reads_everything(servers: str) -> None:
    given = options(servers, "open")
    del given["kafka.isolation.level"]
    reader = HeadraceBatchReader(given, RECORD)
    assert rows(reader, reader.partitions()) == LOGS["open"].rows


@pytest.mark.parametrize("topic", LOGS)
def test_a_stream_reads_the_committed_records_once_and_stops_at_the_open_transaction(servers: str, topic: str) -> None:
    reader = HeadraceStreamReader(options(servers, topic, startingOffsets="earliest", maxOffsetsPerTrigger=11), RECORD)
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxRows(11))) != at:
        found += rows(reader, reader.partitions(at, end))
        at = end
    reader.stop()
    assert found == LOGS[topic].committed
