"""Frames and streams are written into topics with a real Spark and a real cluster. The expected results are those of
the Kafka sink."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin
from headrace.partitioners import key_partition
from headrace_core.testing.verdicts import NotInTimeError

EXAMPLES = Path(__file__).parents[3] / "examples"


def to(writer: Any, headrace: Any, **options: Any) -> Any:
    """A writer with the sink's options, up to save() or start()."""
    return writer.format("headrace").options(**{"headrace.bootstrap.servers": headrace.bootstrap_servers, **options})


def rows_of(source: Any, topic: str) -> list[Any]:
    """Return the records of the topic, in the order of partition and offset."""
    rows = source("read", subscribe=topic, includeHeaders="true").load().collect()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def text(value: bytearray | None) -> str | None:
    return None if value is None else bytes(value).decode()


def test_every_column_arrives_and_keys_find_javas_partition(
    spark: Any, headrace: Any, make_topic: Any, source: Any
) -> None:
    first, second = make_topic(3), make_topic(2)
    frame = spark.sql(
        f"""select if(id % 2 = 0, '{first}', '{second}') topic,
                   if(id % 5 = 0, null, concat('k', id % 7)) key,
                   if(id = 11, null, cast(concat('v', id) as binary)) value,
                   if(id % 3 = 0, int(1), null) partition,
                   if(id % 4 = 0, array(named_struct('key', 'n', 'value', cast(string(id) as binary)),
                                        named_struct('key', 'n', 'value', cast(null as binary))), null) headers,
                   'ignored' colour
            from range(200)"""
    )
    to(frame.write, headrace).mode("append").save()
    for topic, partitions, remainder in ((first, 3, 0), (second, 2, 1)):
        rows = rows_of(source, topic)
        ids = [11 if row.value is None else int(text(row.value)[1:]) for row in rows]  # type: ignore[index]
        assert Counter(ids) == Counter(n for n in range(200) if n % 2 == remainder)
        for number, row in zip(ids, rows, strict=True):
            key = None if number % 5 == 0 else f"k{number % 7}"
            assert text(row.key) == key
            if number % 3 == 0:
                assert row.partition == 1
            elif key is not None:
                assert row.partition == key_partition(key.encode(), partitions)
            headers = [("n", str(number)), ("n", None)] if number % 4 == 0 else None
            assert (row.headers and [(h.key, text(h.value)) for h in row.headers]) == headers


def test_the_option_wins_over_the_column_and_a_topic_can_be_copied_as_it_stands(
    spark: Any, headrace: Any, make_topic: Any, source: Any, send: Any
) -> None:
    origin, copy = make_topic(2), make_topic(2)
    send(origin, {p: [{"value": b"%d:%d" % (p, n), "timestamp_ms": 5} for n in range(50)] for p in (0, 1)})
    to(source("read", subscribe=origin).load().write, headrace, topic=copy).mode("append").save()
    copied = rows_of(source, copy)
    assert [(row.partition, text(row.value)) for row in copied] == [(p, f"{p}:{n}") for p in (0, 1) for n in range(50)]
    assert min(row.timestamp.year for row in copied) > 2000, "the time is that of the write, as in the Kafka sink"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id value", {"topic": "t"}, "INVALID_SINK_SCHEMA|column 'value' is bigint, but must be string or binary"),
        ("'x' value", {}, "no topic: set the option topic"),
        ("'x' key", {"topic": "t"}, "no column value, which is required"),
        (
            "'x' value",
            {"topic": "t", "kafka.key.serializer": "s"},
            "'key.serializer' is not supported by the Spark sink",
        ),
        ("'x' value", {"topic": "t", "headrace.lingr.ms": "1"}, "did you mean 'linger.ms'"),
    ],
)
def test_mistakes_are_reported_before_a_task_runs(
    spark: Any, headrace: Any, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        to(spark.range(3).selectExpr(columns).write, headrace, **options).mode("append").save()
    assert "Job aborted" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("overwrite", 'appends to topics and deletes nothing. Use mode."append".'),
        ("ignore", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("errorifexists", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    ],
)
def test_only_appending_is_possible(spark: Any, headrace: Any, mode: str, message: str) -> None:
    """Spark itself refuses all modes except append and overwrite for every Python sink. The test of refused modes fails
    when a Spark version accepts one of these modes."""
    with pytest.raises(Exception, match=message):
        to(spark.sql("select 'x' value").write, headrace, topic="t").mode(mode).save()


def test_rows_that_cannot_be_written_fail_the_write_with_their_facts(
    spark: Any, headrace: Any, make_topic: Any, source: Any
) -> None:
    topic = make_topic(2)
    frame = spark.sql(f"select stack(2, '{topic}', 'k', 'u', null, 'k', 'v') as (topic, key, value)")
    with pytest.raises(Exception, match=r"the column topic is null in row 1 of this task \(key='k', value='v'\)"):
        to(frame.write, headrace).mode("append").save()
    with pytest.raises(Exception, match=rf"topic '{topic}' has 2 partitions \(0 to 1\); partition 2 does not exist"):
        to(spark.sql("select 'v' value, int(2) partition").write, headrace, topic=topic).mode("append").save()
    options = {"topic": "no-such-topic", "kafka.allow.auto.create.topics": "false", "kafka.max.block.ms": "1000"}
    says = r"SinkWriteError: .*no-such-topic.*No row was acknowledged.* one attempt per task on local\[2\] "
    with pytest.raises(Exception, match=says):
        to(spark.sql("select 'v' value").write, headrace, **options).mode("append").save()
    assert rows_of(source, topic) == []
    to(spark.sql("select 'after' value").write, headrace, topic=topic).mode("append").save()
    assert [text(row.value) for row in rows_of(source, topic)] == ["after"], "the worker has made a new producer"


def test_a_stream_appends_its_rows_and_complete_mode_its_whole_result_each_time(
    spark: Any, headrace: Any, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    topic, appended, completed = make_topic(2), make_topic(2), make_topic(1)
    send(topic, {p: [b"%d" % (n % 2) for n in range(20)] for p in (0, 1)})

    def run(frame: Any, mode: str, to_topic: str) -> None:
        writer = to(frame.writeStream.outputMode(mode), headrace, topic=to_topic)
        query = writer.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True).start()
        if not query.awaitTermination(60):
            raise NotInTimeError("the query has not ended within a minute")

    frame = source("readStream", subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20").load()
    run(frame, "append", appended)
    run(frame, "append", appended)  # continues from the checkpoint, without new rows
    assert [row.partition for row in rows_of(source, appended)] == [0] * 20 + [1] * 20, "partition came with the rows"
    counts = frame.groupBy(frame.value.alias("key")).count().selectExpr("key", "string(count) value")
    run(counts, "complete", completed)
    found = [(text(row.key), text(row.value)) for row in rows_of(source, completed)]
    assert Counter(found[:2]) == Counter([("0", "10"), ("1", "10")])
    assert Counter(found[2:]) == Counter([("0", "20"), ("1", "20")])


def test_in_update_mode_a_query_starts_and_fails_before_it_writes(spark: Any, tmp_path: Path) -> None:
    """Spark itself refuses every Python sink the mode; if a Spark version accepts the mode, the test of the mode
    fails."""
    rows = spark.readStream.format("rate").load().selectExpr("string(value) value")
    for number, frame in enumerate((rows, rows.groupBy("value").count())):
        writer = frame.writeStream.outputMode("update").format("headrace").option("topic", "t")
        writer = writer.option("headrace.bootstrap.servers", "127.0.0.1:1")  # no task runs
        query = writer.option("checkpointLocation", str(tmp_path / f"{number}")).start()
        with pytest.raises(Exception, match="headrace does not support Update mode"):
            query.awaitTermination(60)


def example(name: str) -> Any:
    """An example, imported without running."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sinks_example_runs(spark: Any, headrace: Any, source: Any, tmp_path: Path) -> None:
    hot = [n for n in range(1_000) if n % 40 - 5 > 30]
    assert example("spark_sink").main(spark, headrace.bootstrap_servers, tmp_path) == len(hot)
    values = [json.loads(text(row.value) or "") for row in rows_of(source, "alarms")]
    assert sorted(value["reading"] for value in values) == hot


def test_the_foreach_batch_example_applies_a_repeated_batch_once(
    spark: Any, headrace: Any, source: Any, tmp_path: Path
) -> None:
    module = example("spark_foreach_batch")
    expected = {
        f"customer-{c}": (20, sum(n for n in range(100) if n % 5 == c)) for c in range(5)
    }  # fmt: skip
    assert module.main(spark, headrace.bootstrap_servers, tmp_path) == expected
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(commits) >= 3
    commits[-1].unlink()  # as if the driver had died after the batch, before Spark recorded that the batch is done
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    totals = module.Totals(headrace.bootstrap_servers, tmp_path / "totals.sqlite")
    module.run(spark, headrace.bootstrap_servers, totals, tmp_path / "checkpoint")
    assert commits[-1].exists(), "the batch was repeated"
    with sqlite3.connect(tmp_path / "totals.sqlite") as connection:
        rows = connection.execute("select * from totals").fetchall()
    assert {name: (orders, cents) for name, orders, cents in rows} == expected
    published = rows_of(source, "totals")
    latest = {text(row.key): json.loads(text(row.value) or "") for row in published}
    assert len(published) == 5 * len(commits), "the repeated batch published nothing"
    assert {name: (total["orders"], total["cents"]) for name, total in latest.items()} == expected
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.delete_topics(["orders-to-total", "totals"])
