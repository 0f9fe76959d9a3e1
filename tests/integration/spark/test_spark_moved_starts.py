"""The start of a log moves, or a topic is re-created, between planning and reading. The tests use a real cluster
without a Spark session."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace import Admin, NewTopic, TopicPartition
from headrace_spark.errors import DataLossError
from headrace_spark.schema import RECORD
from headrace_spark.source import HeadraceBatchReader
from headrace_spark.stream import HeadraceStreamReader


@pytest.fixture
def admin(headrace: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as made:
        yield made


@pytest.fixture
def query(headrace: Any) -> Any:
    """Options of a query on one topic, with names in lower case as Spark passes them."""

    def options(topic: str, **given: Any) -> dict[str, str]:
        base = {"headrace.bootstrap.servers": headrace.bootstrap_servers, "subscribe": topic, **given}
        return {
            name.lower(): str(value).lower() if isinstance(value, bool) else str(value) for name, value in base.items()
        }

    return options


def offsets_of(reader: Any, tasks: Any) -> list[int]:
    return [offset for task in tasks for batch in reader.read(task) for offset in batch.column("offset").to_pylist()]


def make_anew(admin: Admin, topic: str) -> None:
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, partitions=1, replication_factor=1)])


@pytest.mark.parametrize("fail", [True, False])
def test_a_start_that_moves_between_planning_and_reading(
    fail: bool, query: Any, make_topic: Any, send: Any, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(1)
    send(topic, {0: [b"%d" % n for n in range(20)]})
    reader = HeadraceBatchReader(query(topic, failOnDataLoss=fail), RECORD)
    tasks = reader.partitions()
    admin.delete_records({TopicPartition(topic, 0): 15})
    if fail:
        with pytest.raises(
            DataLossError, match=rf"{topic}-0: offsets 0 to 20 were not read: the log has 15 to 20.*failOnDa"
        ):
            offsets_of(reader, tasks)
    else:
        assert offsets_of(reader, tasks) == list(range(15, 20))
        assert "15 offsets are skipped, continuing at offset 15" in caplog.text


@pytest.mark.parametrize("fail", [True, False])
def test_a_stream_whose_start_moved_and_its_limit(
    fail: bool, query: Any, make_topic: Any, send: Any, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(2)
    send(topic, {p: [b"%d" % n for n in range(100)] for p in (0, 1)})
    given = query(topic, failOnDataLoss=fail, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    reader = HeadraceStreamReader(given, RECORD)
    start = reader.initialOffset()
    admin.delete_records({TopicPartition(topic, 0): 80})
    end = reader.latestOffset(start, ReadMaxRows(40))
    if fail:
        with pytest.raises(DataLossError, match=rf"{topic}-0: offsets 0 to \d+ are missing, the log starts at 80: 80"):
            reader.partitions(start, end)
    else:
        assert len(offsets_of(reader, reader.partitions(start, end))) == 40, "the limit counts what is there"
        assert "80 offsets are deleted" in caplog.text
        rest = reader.latestOffset(end, ReadAllAvailable())
        assert len(offsets_of(reader, reader.partitions(end, rest))) == 80
    reader.stop()


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_made_anew_between_planning_and_reading_gives_none_of_its_rows(
    fail: bool, query: Any, make_topic: Any, send: Any, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """The new topic also has records at the planned offsets. The topic's id alone distinguishes the new records from
    the old records."""
    topic = make_topic(1)
    send(topic, {0: [b"old"] * 5})
    reader = HeadraceBatchReader(query(topic, failOnDataLoss=fail), RECORD)
    tasks = reader.partitions()
    make_anew(admin, topic)
    send(topic, {0: [b"new"] * 9})
    if fail:
        with pytest.raises(DataLossError, match="were not read: the topic was deleted and created again"):
            offsets_of(reader, tasks)
    else:
        assert offsets_of(reader, tasks) == []
        assert "5 offsets are skipped" in caplog.text


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("new_records", [3, 10, 12])
def test_a_stream_whose_topic_was_made_anew(
    fail: bool, new_records: int, query: Any, make_topic: Any, send: Any, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    topic = make_topic(1)
    send(topic, {0: [b"old"] * 10})
    reader = HeadraceStreamReader(query(topic, failOnDataLoss=fail, startingOffsets="earliest"), RECORD)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(offsets_of(reader, reader.partitions(reader.initialOffset(), end))) == 10
    make_anew(admin, topic)
    send(topic, {0: [b"new"] * new_records})
    if fail:
        with pytest.raises(DataLossError, match=rf"{topic}-0: the topic was deleted and created again"):
            reader.latestOffset(end, ReadAllAvailable())
    else:
        renewed = json.loads(json.dumps(reader.latestOffset(end, ReadAllAvailable())))
        assert offsets_of(reader, reader.partitions(end, renewed)) == list(range(new_records))
        assert "the topic was deleted and created again" in caplog.text
        send(topic, {0: [b"more"]})
        more = reader.latestOffset(renewed, ReadAllAvailable())
        assert offsets_of(reader, reader.partitions(renewed, more)) == [new_records]
    reader.stop()
