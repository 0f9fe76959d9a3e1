"""The source's options against the Kafka source's rules."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.errors import InvalidConfigError, InvalidTopicError
from headrace_core.types import TopicPartition
from headrace_spark.options import Limit, parse_duration_ms, parse_options
from headrace_spark.sink_options import parse_sink_options
from tests.unit.spark.spark_fakes import options


def test_defaults_are_the_kafka_sources() -> None:
    stream = parse_options(options(), streaming=True)
    batch = parse_options(options(), streaming=False)
    assert stream.starting.kind is Limit.LATEST
    assert batch.starting.kind is Limit.EARLIEST
    assert batch.ending.kind is Limit.LATEST
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert not stream.latest_when_no_match
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert (stream.max_offsets_per_trigger, stream.min_offsets_per_trigger) == (None, None)
    assert (stream.min_partitions, stream.max_records_per_partition) == (None, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "exactly one"),
        ({"subscribe": "a", "subscribePattern": "a.*"}, "subscribe and subscribePattern"),
        ({"subscribe": " , "}, "must name at least one topic"),
        ({"subscribePattern": "  "}, "pattern is empty"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"assign": "a"}, "assign"),
        ({"assign": "{}"}, "must name at least one partition"),
        ({"assign": '{"a":{"0":1}}'}, "must be JSON such as"),
    ],
)
def test_exactly_one_strategy_that_names_something(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_options(options(**given), streaming=True)


def test_no_strategy_at_all_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="exactly one of the options subscribe, subscribePattern, assign"):
        parse_options({"headrace.bootstrap.servers": "x:1"}, streaming=True)


def test_a_topic_name_that_climbs_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        parse_options(options(subscribe="../etc"), streaming=True)


def test_subscribe_takes_a_list_and_assign_takes_json() -> None:
    assert parse_options(options(subscribe=" a , b,a "), streaming=True).topics == ("a", "b")
    assigned = parse_options(options(assign='{"b":[1,0],"a":[2]}'), streaming=True).assigned
    assert assigned == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


def test_timestamp_wins_over_offsets_by_timestamp_wins_over_offsets() -> None:
    every = {
        "startingOffsets": '{"t":{"0":5}}',
        "startingOffsetsByTimestamp": '{"t":{"0":1000}}',
        "startingTimestamp": "2000",
        "endingOffsets": '{"t":{"0":9}}',
        "endingOffsetsByTimestamp": '{"t":{"0":3000}}',
        "endingTimestamp": " 4000 ",
    }
    parsed = parse_options(options(**every), streaming=False)
    assert (parsed.starting.kind, parsed.starting.timestamp_ms) == (Limit.TIMESTAMP, 2000)
    assert (parsed.ending.kind, parsed.ending.timestamp_ms) == (Limit.TIMESTAMP, 4000)
    del every["startingTimestamp"], every["endingTimestamp"]
    parsed = parse_options(options(**every), streaming=False)
    assert (parsed.starting.kind, dict(parsed.starting.values)) == (Limit.TIMESTAMPS, {TopicPartition("t", 0): 1000})
    assert (parsed.ending.kind, dict(parsed.ending.values)) == (Limit.TIMESTAMPS, {TopicPartition("t", 0): 3000})
    del every["startingOffsetsByTimestamp"], every["endingOffsetsByTimestamp"]
    parsed = parse_options(options(**every), streaming=False)
    assert (parsed.starting.kind, dict(parsed.starting.values)) == (Limit.OFFSETS, {TopicPartition("t", 0): 5})
    assert (parsed.ending.kind, dict(parsed.ending.values)) == (Limit.OFFSETS, {TopicPartition("t", 0): 9})


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_ending(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name}.*batch"):
        parse_options(options(**{name: "1"}), streaming=True)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
        {"endingOffsets": "EARLIEST"},
        {"endingOffsets": '{"t":{"0":-2}}'},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":9}}'},
        {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":4}}'},
    ],
)
def test_a_batch_cannot_start_at_the_end_nor_end_at_the_start(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        parse_options(options(**given), streaming=False)


def test_special_offsets_in_a_batch_where_they_make_sense() -> None:
    given = {"startingOffsets": '{"t":{"0":-2,"1":7}}', "endingOffsets": '{"t":{"0":-1,"1":9}}'}
    parsed = parse_options(options(**given), streaming=False)
    assert dict(parsed.starting.values) == {TopicPartition("t", 0): -2, TopicPartition("t", 1): 7}


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "noon"},
        {"startingTimestamp": "-1"},
        {"startingTimestamp": "-2"},
        {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'},
        {"startingOffsets": "somewhere"},
        {"startingOffsets": '{"t":5}'},
        {"startingOffsets": '{"t":{"0":true}}'},
        {"startingOffsets": '{"t":{"zero":1}}'},
        {"startingOffsetsByTimestamp": "[1]"},
        {"startingOffsetsByTimestampStrategy": "earliest"},
        {"failOnDataLoss": "yes"},
        {"includeHeaders": "1"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxOffsetsPerTrigger": "many"},
        {"minPartitions": "-1"},
        {"maxRecordsPerPartition": "0"},
        {"maxTriggerDelay": "soon"},
        {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
    ],
)
def test_a_value_that_does_not_fit_is_named(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_options(options(**given), streaming=True)
    assert next(iter(given)) in str(caught.value)


@pytest.mark.parametrize("key", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit"])
@pytest.mark.parametrize("prefix", ["kafka.", "headrace."])
def test_client_keys_that_the_source_owns_are_refused_with_the_reason(prefix: str, key: str) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        parse_options({**options(), prefix + key: "x"}, streaming=True)


@pytest.mark.parametrize("name", ["kafka.group.id", "headrace.group.id"])
def test_a_streams_group_is_the_drivers_and_not_the_tasks(name: str) -> None:
    parsed = parse_options({**options(), name: "g"}, streaming=True)
    assert (parsed.group_id, parsed.group_id_prefix) == ("g", None)
    assert "group.id" not in parsed.client
    assert parsed.notes == ()
    assert parse_options(options(), streaming=True).group_id is None
    ours = parse_options({**options(), "kafka.group.id": "theirs", "headrace.group.id": "ours"}, streaming=True)
    assert ours.group_id == "ours"


def test_a_groups_prefix_counts_where_no_group_is_given() -> None:
    assert parse_options(options(groupIdPrefix="p"), streaming=True).group_id_prefix == "p"
    both = parse_options({**options(groupIdPrefix="p"), "kafka.group.id": "g"}, streaming=True)
    assert (both.group_id, both.group_id_prefix) == ("g", None)
    assert any("groupIdPrefix is ignored" in note for note in both.notes)


@pytest.mark.parametrize("name", ["kafka.group.id", "groupIdPrefix"])
def test_a_group_without_a_name_is_refused_and_a_batch_commits_nothing(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        parse_options({**options(), name.lower(): " "}, streaming=True)
    notes = parse_options({**options(), name.lower(): "g"}, streaming=False).notes
    assert any(f"{name} is ignored in batch queries" in note for note in notes)


def test_client_keys_are_passed_through_and_ours_win() -> None:
    given = {
        "kafka.bootstrap.servers": "kafka:9092",
        "headrace.bootstrap.servers": "ours:9095",
        "kafka.fetch.min.bytes": "7",
        "subscribe": "t",
    }
    assert parse_options(given, streaming=True).client == {"bootstrap.servers": "ours:9095", "fetch.min.bytes": "7"}
    del given["headrace.bootstrap.servers"]
    assert parse_options(given, streaming=True).client["bootstrap.servers"] == "kafka:9092"
    del given["kafka.bootstrap.servers"]
    with pytest.raises(InvalidConfigError, match=r"kafka\.bootstrap\.servers"):
        parse_options(given, streaming=True)


def test_names_match_in_any_case() -> None:
    parsed = parse_options(
        {"SUBSCRIBE": "t", "Kafka.Bootstrap.Servers": "x:1", "MAXOFFSETSPERTRIGGER": "5"}, streaming=True
    )
    assert (parsed.topics, parsed.max_offsets_per_trigger) == (("t",), 5)


def test_what_is_ignored_is_said() -> None:
    notes = parse_options(options(maxOffsetsPerTrigger=5, startingOffset="earliest", path="x"), streaming=False).notes
    assert any("maxOffsetsPerTrigger is ignored in batch" in note for note in notes)
    assert any("did you mean startingOffsets" in note for note in notes)
    assert any("'path'" in note for note in notes)
    assert parse_options(options(maxOffsetsPerTrigger=5), streaming=True).notes == ()


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("500ms", 500), ("30 s", 30_000), ("2h", 7_200_000), ("1d", 86_400_000), ("7", 7)],
)
def test_durations_are_sparks(text: str, ms: int) -> None:
    assert parse_duration_ms("maxTriggerDelay", text) == ms


@pytest.mark.parametrize("parse", [lambda: parse_options({}, streaming=False), lambda: parse_sink_options({})])
def test_without_any_option_the_error_names_the_sql_forms_that_work(parse: Any) -> None:
    """Spark passes no options when it reads or writes a table."""
    with pytest.raises(InvalidConfigError, match=r"FROM t WITH .*INSERT INTO t WITH .*TEMPORARY VIEW v USING headrace"):
        parse()


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "2000", "endingTimestamp": "1000"},
        {"startingTimestamp": "2000", "endingOffsetsByTimestamp": '{"t":{"0":3000,"1":1999}}'},
        {"startingOffsetsByTimestamp": '{"t":{"0":1000,"1":2000}}', "endingTimestamp": "1999"},
    ],
)
def test_times_that_are_swapped_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match=r"the starting time 2000 is after the ending time 1\d+ "):
        parse_options(options(**given), streaming=False)


def test_a_batch_may_end_at_the_time_at_which_it_starts() -> None:
    for given in ({"endingTimestamp": "2000"}, {"endingOffsets": '{"t":{"0":5}}'}, {}):
        parse_options(options(startingTimestamp="2000", **given), streaming=False)
