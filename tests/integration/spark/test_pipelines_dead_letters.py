"""Dead letters through a real cluster: one exactly-once write with the good records, and their replay."""

from __future__ import annotations

import json
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import Admin, ConfigResource, Consumer, Producer, Record
from headrace_pipelines import cli
from headrace_pipelines.dead_letters import (
    LARGE_RECORDS,
    PREFIX,
    create_dead_letter_topics,
    dead_letters,
    good,
    routed,
)
from headrace_pipelines.errors import InvalidColumnsError, ReplayError
from headrace_pipelines.expectations import Expectation, Expectations, time_within
from headrace_pipelines.json_parsing import parse_json
from headrace_pipelines.registry import Pipeline
from headrace_pipelines.replays import DeadLetter, Replayed, replay
from headrace_pipelines.topics import await_markers, records_in_topic
from tests.worlds.waiting import until

SCHEMA = "user STRING NOT NULL, amount DOUBLE"
RULES = Expectations(Expectation("amount is positive", "data.amount IS NULL OR data.amount > 0", "quarantine"))


def records_of(headrace: Any, topic: str) -> list[Record]:
    await_markers(headrace.bootstrap_servers)
    with Consumer(
        bootstrap_servers=headrace.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        found = [record for records in records_in_topic(consumer, topic) for record in records]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def letters_of(headrace: Any, topic: str) -> list[DeadLetter]:
    letters = [DeadLetter.of(record) for record in records_of(headrace, topic)]
    return sorted((letter for letter in letters if letter), key=lambda letter: letter.position)


@pytest.fixture
def admin(headrace: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as made:
        yield made


def run(frame: DataFrame, headrace: Any, checkpoint: Path, **options: str) -> None:
    query = (
        frame.writeStream.format("headrace")
        .option("headrace.bootstrap.servers", headrace.bootstrap_servers)
        .option("headrace.delivery", "exactly-once")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def pipeline(source: Any, topic: str, clean: str, **options: str) -> DataFrame:
    stream = source("readStream", subscribe=topic, startingOffsets="earliest", includeHeaders="true", **options).load()
    judged = RULES.apply(parse_json(stream, SCHEMA))
    return routed(judged, topic=clean, key=F.col("key"), value=F.to_json("data"))


def test_bad_records_keep_their_bytes_and_say_where_they_were(
    headrace: Any, admin: Admin, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    topic, clean = make_topic(2), make_topic(1)
    assert create_dead_letter_topics(admin, [topic]) == [f"{topic}.dead-letters"]
    assert create_dead_letter_topics(admin, [topic]) == []
    malformed = {"value": b"\xff\x00{", "key": b"\xfe", "timestamp_ms": 1_700_000_000_000}
    send(
        topic,
        {
            0: [b'{"user":"ann","amount":1}', malformed | {"headers": [("trace", b"\x01"), ("empty", None)]}],
            1: [b'{"amount":1}', b'{"user":"bob","amount":-1}', b'{"user":"eve"}', {"value": None, "key": b"k"}],
        },
    )
    frame = pipeline(source, topic, clean, maxOffsetsPerTrigger="4")
    run(frame, headrace, tmp_path)
    (tmp_path / "commits" / "1").unlink()  # as if the driver had died between the decision and Spark's commit log
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    run(frame, headrace, tmp_path)

    assert Counter(json.loads(record.value or b"")["user"] for record in records_of(headrace, clean)) == {
        "ann": 1,
        "eve": 1,
    }
    letters = letters_of(headrace, f"{topic}.dead-letters")
    assert [(letter.position, letter.reason) for letter in letters] == [
        ((topic, 0, 1), "value: not UTF-8"),
        ((topic, 1, 0), "user: missing"),
        ((topic, 1, 1), "expectation: amount is positive"),
        ((topic, 1, 3), "value: null"),
    ]
    first = letters[0]
    assert (first.key, first.value, first.timestamp_ms, first.tries) == (b"\xfe", b"\xff\x00{", 1_700_000_000_000, 0)
    assert first.headers == (("trace", b"\x01"), ("empty", None))
    assert (letters[3].key, letters[3].value) == (b"k", None)


@pytest.mark.long
def test_a_replay_sends_each_record_again_once_and_gives_up_after_its_tries(
    headrace: Any, admin: Admin, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    topic, clean = make_topic(2), make_topic(1)
    dead = f"{topic}.dead-letters"
    create_dead_letter_topics(admin, [topic], partitions=2)
    bad = {"value": b'{"user":7}', "key": b"k", "timestamp_ms": 1_700_000_000_000, "headers": [("trace", b"\x01")]}
    send(topic, {0: [b'{"user":"ann"}'], 1: [bad]})
    frame = pipeline(source, topic, clean)
    run(frame, headrace, tmp_path)
    (letter,) = records_of(headrace, dead)
    send(dead, {1: [{"value": letter.value, "key": letter.key, "headers": list(letter.headers)}]})  # an older sink's
    send(dead, {0: [b"no dead letter"]})

    def again(**options: Any) -> Replayed:
        return replay(dead, bootstrap_servers=headrace.bootstrap_servers, **options)

    assert again(only=lambda each: "amount" in each.reason, tries_max=2) == Replayed(skipped=1, repeated=1, foreign=1)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as made:
        made.delete_groups([f"{dead}.replay"])
    assert again(tries_max=2) == Replayed(sent=1, repeated=1, foreign=1)
    assert again(tries_max=2) == Replayed(), "a repeat sends nothing"
    replayed = records_of(headrace, topic)[-1]
    assert (replayed.partition, replayed.value, replayed.key) == (1, b'{"user":7}', b"k")
    assert replayed.timestamp_ms == 1_700_000_000_000
    assert list(replayed.headers) == [("trace", b"\x01"), (f"{PREFIX}tries", b"1")]

    for tries, outcome in [(1, Replayed(sent=1)), (2, Replayed(exhausted=1))]:
        run(frame, headrace, tmp_path)
        assert max(letter.tries for letter in letters_of(headrace, dead)) == tries
        assert again(tries_max=2) == outcome
    assert len(records_of(headrace, topic)) == 4, "two records, and two replays of one of them"


def test_a_replay_into_a_topic_that_is_gone_names_the_record(headrace: Any, admin: Admin, make_topic: Any) -> None:
    dead = make_topic(1)
    headers = {"reason": "x", "topic": "never-created", "partition": "0", "offset": "7", "timestamp": "1", "tries": "0"}
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        producer.send(dead, b"x", headers=[(PREFIX + name, text.encode()) for name, text in headers.items()]).result(60)
    admin.list_topics()
    with pytest.raises(ReplayError, match=r"never-created-0 at offset 7.*does not exist"):
        replay(dead, bootstrap_servers=headrace.bootstrap_servers)
    assert "never-created" not in admin.list_topics()


def test_a_replay_refuses_a_record_that_retention_would_delete(headrace: Any, admin: Admin, make_topic: Any) -> None:
    topic, dead = make_topic(1), make_topic(1)
    hour_ms = 3_600_000
    now_ms = int(time.time() * 1_000)
    own = {"reason": "x", "topic": topic, "partition": 0, "offset": 7, "timestamp": now_ms - 2 * hour_ms, "tries": 0}
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        headers = [(PREFIX + name, str(text).encode()) for name, text in own.items()]
        producer.send(dead, b"old", headers=headers).result(60)

    def keep(**config: str) -> None:
        admin.alter_configs({ConfigResource("topic", topic): {name.replace("_", "."): config[name] for name in config}})

    def again() -> Replayed:
        return replay(dead, bootstrap_servers=headrace.bootstrap_servers)

    keep(retention_ms=str(hour_ms))
    with pytest.raises(
        ReplayError, match=rf"{topic}-0 at offset 7: the record is 7\d\d\d s old, and retention.ms=3600"
    ):
        again()
    assert records_of(headrace, topic) == []
    keep(retention_ms=str(2 * hour_ms))
    with pytest.raises(ReplayError, match="before the pipeline reads it"):
        again()
    keep(retention_ms=str(3 * hour_ms))
    assert again() == Replayed(sent=1), "the refused replays have handled nothing"
    own |= {"offset": 8, "timestamp": int(time.time() * 1_000)}
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        headers = [(PREFIX + name, str(text).encode()) for name, text in own.items()]
        producer.send(dead, b"new", headers=headers).result(60)
    keep(retention_ms="300000")
    assert again() == Replayed(sent=1), "a new record, although the topic keeps records only for a short time"


def test_dead_letters_of_a_topic_that_was_created_again_are_no_repeats(headrace: Any, make_topic: Any) -> None:
    topic, dead = make_topic(1), make_topic(1)
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        for timestamp_ms in (1, 2, 2):
            own = {"reason": "x", "topic": topic, "partition": 0, "offset": 7, "timestamp": timestamp_ms, "tries": 0}
            headers = [(PREFIX + name, str(text).encode()) for name, text in own.items()]
            producer.send(dead, b"%d" % timestamp_ms, headers=headers).result(60)
    assert replay(dead, bootstrap_servers=headrace.bootstrap_servers) == Replayed(sent=2, repeated=1)
    # (a commit is visible once its markers are written)
    until(lambda: [record.value for record in records_of(headrace, topic)] == [b"1", b"2"], "two records", 60)


def test_a_dead_letter_that_is_repeated_in_another_partition_is_replayed_once(headrace: Any, make_topic: Any) -> None:
    """A dead letter without a key may be in any partition. The replay of the repetition finds it in the first fetch,
    before it has read the megabytes of the other partition."""
    topic, dead = make_topic(1), make_topic(2)

    def bad(partition: int, *offsets: int) -> None:
        with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
            for offset in offsets:
                own = {"reason": "x", "topic": topic, "partition": 0, "offset": offset, "timestamp": 1, "tries": 0}
                headers = [(PREFIX + name, str(text).encode()) for name, text in own.items()]
                producer.send(dead, bytes(20_000), headers=headers, partition=partition)

    bad(0, *range(200))
    assert replay(dead, bootstrap_servers=headrace.bootstrap_servers) == Replayed(sent=200)
    bad(1, 198, 199, 200)
    assert replay(dead, bootstrap_servers=headrace.bootstrap_servers) == Replayed(sent=1, repeated=2)
    assert replay(dead, bootstrap_servers=headrace.bootstrap_servers) == Replayed()


def test_the_command_replays_dead_letters_since_a_time(
    headrace: Any, make_topic: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic(1)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as made:
        create_dead_letter_topics(made, [topic])
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        for offset, written_ms in enumerate([1_700_000_000_000, 1_700_000_001_000]):
            own = {"reason": "x", "topic": topic, "partition": 0, "offset": offset, "timestamp": 1, "tries": 0}
            headers = [(PREFIX + name, str(text).encode()) for name, text in own.items()]
            value = b"%d" % offset
            producer.send(f"{topic}.dead-letters", value, headers=headers, timestamp_ms=written_ms).result(60)
    module: Any = types.ModuleType("small_job")
    module.SOURCES = (topic, "never-created")
    monkeypatch.setitem(sys.modules, "small_job", module)
    monkeypatch.setattr(cli, "pipelines", lambda: {"small": Pipeline("small", "a small one", "small_job")})
    where = ["replay", "small", "--bootstrap-servers", headrace.bootstrap_servers]
    since = [*where, "--from", "2023-11-14T22:13:21", "-o", "json"]
    assert cli.main(since) == 1
    assert "1 dead letters from before --from are not replayed yet" in capsys.readouterr().err
    assert records_of(headrace, topic) == []
    assert cli.main([*since, "--skip-older"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        f"{topic}.dead-letters": {"sent": 1, "repeated": 0, "exhausted": 0, "skipped": 1, "foreign": 0}
    }
    assert [record.value for record in records_of(headrace, topic)] == [b"1"]
    assert cli.main(since) == 0
    assert cli.main(where) == 0
    said = "".join(capsys.readouterr().out.splitlines(keepends=True)[1:])
    assert said == (
        f"{topic}.dead-letters: 0 sent, 0 repeated, 0 exhausted, 0 skipped, 0 foreign\n"
        "never-created.dead-letters: no such topic\n"
    )


@pytest.mark.long
def test_a_record_of_five_megabytes(headrace: Any, admin: Admin, make_topic: Any, source: Any, tmp_path: Path) -> None:
    """A dead letter that the sink or its topic refuses fails the query. With both limits raised, all bytes arrive."""
    topic, clean = make_topic(1), make_topic(1)
    admin.alter_configs({ConfigResource("topic", topic): {"max.message.bytes": "6000000"}})
    huge = b'{"user":[' + b"7," * 2_500_000 + b"7]}"
    with Producer(bootstrap_servers=headrace.bootstrap_servers, max_request_size=8_000_000) as producer:
        producer.send(topic, huge).result(60)
        producer.send(topic, b'{"user":"ann"}').result(60)
    frame = pipeline(source, topic, clean)
    create_dead_letter_topics(admin, [topic])
    with pytest.raises(Exception, match="more than 1048576 bytes, the limit of a batch"):
        run(frame, headrace, tmp_path)
    dead = ConfigResource("topic", f"{topic}.dead-letters")
    admin.alter_configs({dead: {"max.message.bytes": "1000000"}})
    with pytest.raises(Exception, match=r"RECORD_TOO_LARGE|MESSAGE_TOO_LARGE"):
        run(frame, headrace, tmp_path, **LARGE_RECORDS)
    assert records_of(headrace, clean) == [], "and no other record of the batch is visible"
    admin.alter_configs({dead: {"max.message.bytes": "6016384"}})
    run(frame, headrace, tmp_path, **LARGE_RECORDS)
    (letter,) = letters_of(headrace, dead.name)
    assert (letter.value, letter.reason[:30]) == (huge, "user: expected string, found a")
    assert len(records_of(headrace, clean)) == 1


@pytest.mark.long
def test_a_clock_fifty_years_off_closes_no_window(
    spark: Any, headrace: Any, admin: Admin, make_topic: Any, source: Any, send: Any, tmp_path: Path
) -> None:
    """The record with the wrong clock is a dead letter; the records after it are not late."""
    topic = make_topic(1)
    now = spark.sql("SELECT unix_seconds(current_timestamp())").collect()[0][0]
    times = [now - 600, now + 50 * 365 * 86_400, now - 590, now - 50 * 365 * 86_400, now - 580]
    send(topic, {0: [b'{"user":"u","at":%d}' % each for each in times]})
    stream = source(
        "readStream", subscribe=topic, startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="1"
    ).load()
    parsed = parse_json(stream, "user STRING, at BIGINT").withColumn("at", F.timestamp_seconds("data.at"))
    judged = Expectations(time_within("time is plausible", "at", past="7 days", future="1 hour")).apply(parsed)
    counts = good(judged).withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour")).count()
    query = (
        counts.writeStream.format("memory")
        .queryName("windows")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "windows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.sql("SELECT sum(count) FROM windows").collect()[0][0] == 3
    late = sum(state.numRowsDroppedByWatermark for each in query.recentProgress for state in each.stateOperators)
    assert late == 0
    watermarks = {each.eventTime.get("watermark", "")[:4] for each in query.recentProgress}
    assert "2076" not in watermarks
    create_dead_letter_topics(admin, [topic])
    run(dead_letters(judged), headrace, tmp_path / "letters")
    assert [letter.offset for letter in letters_of(headrace, f"{topic}.dead-letters")] == [1, 3]


def test_frames_without_the_sources_columns_are_refused(spark: Any, source: Any, make_topic: Any) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")
    with pytest.raises(InvalidColumnsError, match="no column reason: "):
        good(frame)
    plain = source("readStream", subscribe=make_topic(1)).load()
    with pytest.raises(InvalidColumnsError, match=r'no column headers: read the source with .option\("includeHeaders"'):
        dead_letters(parse_json(plain, SCHEMA))
    with pytest.raises(InvalidColumnsError, match="keep the source's columns"):
        routed(
            parse_json(plain.withColumn("headers", F.lit(None)), SCHEMA).drop("offset"),
            topic="t",
            value=F.to_json("data"),
        )
