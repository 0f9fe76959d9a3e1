"""The sink's options: accepted options, refused options with the reasons, and notes about ignored options."""

from __future__ import annotations

import pytest

from headrace_core.errors import HeadraceError, InvalidConfigError
from headrace_spark.sink_options import parse_sink_options
from tests.unit.spark.spark_fakes import options


def sink(**given: object) -> dict[str, str]:
    found = options(**given)
    del found["subscribe"]
    return found


def test_a_topic_and_the_producers_keys_are_taken() -> None:
    given = sink(topic="out", kafka__acks="1", kafka__linger__ms="20", headrace__acks="all", headrace__batch__size="99")
    parsed = parse_sink_options(given)
    assert parsed.topic == "out"
    assert parsed.client == {
        "bootstrap.servers": "127.0.0.1:9095", "acks": "all", "linger.ms": "20", "batch.size": "99"
    }, "where both prefixes give a key, ours wins"  # fmt: skip
    assert parsed.notes == ()


def test_without_the_option_the_column_says_the_topic() -> None:
    assert parse_sink_options(sink()).topic is None


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ({"kafka__key__serializer": "x"}, "INVALID_CONFIG", "'key.serializer' is not supported by the Spark sink"),
        ({"headrace__value__serializer": "x"}, "INVALID_CONFIG", "use DataFrame functions to encode"),
        ({"kafka__partitioner__class": "x"}, "INVALID_CONFIG", "partition column"),
        ({"kafka__transactional__id": "x"}, "INVALID_CONFIG", "set headrace.delivery to exactly-once"),
        ({"headrace__delivery": "at-most-once"}, "INVALID_CONFIG", "must be at-least-once or exactly-once"),
        ({"headrace__delivery": "exactly-once", "kafka__acks": "1"}, "INVALID_CONFIG", "acks"),
        ({"headrace__delivery": "exactly-once", "headrace__enable__idempotence": "false"}, "INVALID_CONFIG", "idempot"),
        ({"headrace__txn__app__id": "x"}, "INVALID_CONFIG", "belong together"),
        ({"headrace__txn__version": "1"}, "INVALID_CONFIG", "belong together"),
        ({"headrace__txn__app__id": " ", "headrace__txn__version": "1"}, "INVALID_CONFIG", "app.id is empty"),
        ({"headrace__txn__app__id": "x", "headrace__txn__version": "-1"}, "INVALID_CONFIG", "whole number from 0"),
        (
            {"headrace__txn__app__id": "x", "headrace__txn__version": "1", "headrace__delivery": "at-least-once"},
            "INVALID_CONFIG",
            "skipped only with headrace.delivery=exactly-once",
        ),
        (
            {"headrace__txn__app__id": "ü" * 90, "headrace__txn__version": "1", "topic": "out"},
            "INVALID_CONFIG",
            r"headrace\.txn\.app\.id='ü.* is 48 characters longer than 512",
        ),
        ({"kafka__enable__idempotence": "true", "kafka__acks": "1"}, "INVALID_CONFIG", "must be all"),
        ({"kafka__lingr__ms": "1"}, "INVALID_CONFIG", "did you mean 'linger.ms'"),
        ({"kafka__acks": "2"}, "INVALID_CONFIG", "acks"),
        ({"kafka__fetch__min__bytes": "1"}, "INVALID_CONFIG", "key of the consumer"),
        ({"topic": " "}, "INVALID_CONFIG", "topic is empty"),
        ({"topic": "a/b"}, "INVALID_TOPIC", "'a/b' is not legal"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(given: dict[str, str], code: str, message: str) -> None:
    with pytest.raises(HeadraceError, match=message) as caught:
        parse_sink_options(sink(**given))
    assert caught.value.code.startswith(code)


def test_without_servers_there_is_no_sink() -> None:
    with pytest.raises(InvalidConfigError, match=r"headrace\.bootstrap\.servers"):
        parse_sink_options({"topic": "out"})


def test_an_unknown_option_is_reported_and_the_sources_options_are_not() -> None:
    parsed = parse_sink_options(sink(topik="out", checkpointLocation="/c", subscribe="in", includeHeaders="true"))
    assert parsed.notes == (
        "option 'topik' is not known to the headrace sink and is ignored; did you mean topic?",
    )  # fmt: skip


def test_acks_of_none_is_reported_to_break_the_sinks_promise() -> None:
    assert "rows may be lost" in parse_sink_options(sink(kafka__acks="0")).notes[0]


def test_the_guarantee_is_at_least_once_unless_the_user_says_otherwise() -> None:
    for given in ({}, {"headrace__delivery": "at-least-once"}):
        parsed = parse_sink_options(sink(topic="out", **given))
        assert (parsed.is_exactly_once, parsed.application) == (False, None)
        assert set(parsed.client) == {"bootstrap.servers"}
    parsed = parse_sink_options(sink(topic="out", headrace__delivery="exactly-once"))
    assert (parsed.is_exactly_once, parsed.application, parsed.target) == (True, None, "out")
    assert parsed.client == {"bootstrap.servers": "127.0.0.1:9095", "transaction.timeout.ms": "900000"}
    given = {"headrace__txn__app__id": "totals", "headrace__txn__version": "7", "kafka__transaction__timeout__ms": "5"}
    parsed = parse_sink_options(sink(**given))
    assert (parsed.is_exactly_once, parsed.application, parsed.target) == (True, ("totals", 7), "*")
    assert parsed.client["transaction.timeout.ms"] == "5"


def test_exactly_once_needs_the_progress_of_each_batch() -> None:
    """With asynchronous progress, a restarted query gives the number of a decided batch to other rows, which the sink
    would skip."""
    given = sink(topic="out", asyncProgressTrackingEnabled="true")
    assert not parse_sink_options(given).is_exactly_once
    with pytest.raises(InvalidConfigError, match="asyncProgressTrackingEnabled=true: a restarted query gives a batch"):
        parse_sink_options({**given, "headrace.delivery": "exactly-once"})
