"""Configuration: Kafka's keys, dotted or snake_case, and their effect."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from headrace import Consumer, RangeReader
from headrace.errors import InvalidConfigError
from headrace.settings import ADMIN, CONSUMER, PRODUCER, resolve
from headrace_core.config.topic_keys import TOPIC
from tests.worlds.this_process import logged

#: The client keys that users paste in (the ecosystem's list).
KAFKA_KEYS = [
    "bootstrap.servers",
    "acks",
    "linger.ms",
    "batch.size",
    "buffer.memory",
    "compression.type",
    "enable.idempotence",
    "transactional.id",
    "max.in.flight.requests.per.connection",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "retries",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "isolation.level",
    "max.poll.interval.ms",
    "max.poll.records",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "fetch.min.bytes",
    "fetch.max.wait.ms",
    "client.rack",
    "security.protocol",
    "sasl.mechanism",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "partitioner.class",
    "interceptor.classes",
    "client.id",
    "client.dns.lookup",
    "max.request.size",
    "max.block.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "allow.auto.create.topics",
    "exclude.internal.topics",
    "check.crcs",
    "group.remote.assignor",
]


def test_every_key_of_the_ecosystem_is_declared_by_a_client() -> None:
    missing = [name for name in KAFKA_KEYS if name not in {*PRODUCER.keys, *CONSUMER.keys, *ADMIN.keys}]
    assert missing == []


def test_defaults_are_kafkas_unless_their_documentation_says_so() -> None:
    producer, consumer = resolve(PRODUCER, None, {}), resolve(CONSUMER, None, {})
    assert producer["acks"] == "all"
    assert producer["max.in.flight.requests.per.connection"] == 5
    assert producer["delivery.timeout.ms"] == 120_000
    assert producer["buffer.memory"] == 32 * 1024 * 1024
    assert producer["max.request.size"] == 1_048_576
    assert consumer["auto.offset.reset"] == "latest"
    assert consumer["fetch.max.bytes"] == 50 * 1024 * 1024
    assert consumer["max.poll.records"] == 500
    assert "in Kafka 4 is 5" in PRODUCER.keys["linger.ms"].doc
    assert "in Kafka is 16384" in PRODUCER.keys["batch.size"].doc


def test_dotted_dict_and_snake_case_keywords_mean_the_same() -> None:
    dotted = resolve(PRODUCER, {"bootstrap.servers": "a:1, b:2", "linger.ms": "5"}, {})
    snake = resolve(PRODUCER, None, {"bootstrap_servers": ["a:1", "b:2"], "linger_ms": 5})
    assert dotted == snake
    assert dotted["bootstrap.servers"] == ["a:1", "b:2"]


def test_key_given_twice_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="'acks' is given twice"):
        resolve(PRODUCER, {"acks": "all"}, {"acks": "1"})
    with pytest.raises(InvalidConfigError, match=r"'linger\.ms' is given twice"):
        resolve(PRODUCER, {"linger.ms": 1, "linger_ms": 2}, {})


def test_unknown_key_gets_did_you_mean() -> None:
    with pytest.raises(InvalidConfigError, match=r"unknown producer .* 'liner_ms'; did you mean 'linger\.ms'"):
        resolve(PRODUCER, None, {"liner_ms": 1})
    with pytest.raises(InvalidConfigError, match=r"unknown consumer .*'auto\.offset\.rest'"):
        resolve(CONSUMER, {"auto.offset.rest": "earliest"}, {})


@pytest.mark.parametrize("name", [5, None, ("acks",), b"acks"])
def test_key_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(InvalidConfigError, match=f"key {re.escape(repr(name))}: must be a string"):
        resolve(PRODUCER, {name: "all"}, {})


def test_range_reader_takes_a_configuration_as_a_consumer_does() -> None:
    where = {"bootstrap.servers": "127.0.0.1:1"}
    for config in (5, "acks", [("acks", "all")], {5: 5}):
        with pytest.raises(InvalidConfigError):
            RangeReader([], config)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="given twice"):
        RangeReader([], where, bootstrap_servers="127.0.0.1:2")
    with RangeReader([], where, auto_offset_reset="earliest", max_partition_fetch_bytes=None) as reader:
        values = reader._core.config
    assert (values["auto.offset.reset"], values["max.partition.fetch.bytes"]) == ("earliest", 4 << 20)


def test_path_of_properties_that_is_no_path_is_refused() -> None:
    for path in (None, 5, b"client.properties"):
        with pytest.raises(InvalidConfigError, match="path="):
            Consumer.from_properties(path)  # type: ignore[arg-type]


def test_environment_gives_the_bootstrap_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    assert resolve(ADMIN, None, {})["bootstrap.servers"] == ["127.0.0.1:9095"]
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "h1:1,h2:2")
    assert resolve(ADMIN, None, {})["bootstrap.servers"] == ["h1:1", "h2:2"]
    assert resolve(ADMIN, None, {"bootstrap_servers": "mine:3"})["bootstrap.servers"] == ["mine:3"]


@pytest.mark.parametrize("address", ["localhost", ":9095", "host:", "host:port", "host:0", "host:70000", ""])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"bootstrap\.servers"):
        resolve(ADMIN, {"bootstrap.servers": [address] if address else " , "}, {})


def test_a_delivery_timeout_that_follows_a_long_linger_is_one_that_could_be_given() -> None:
    made = resolve(PRODUCER, {"linger.ms": 2.0**40}, {})["delivery.timeout.ms"]
    assert resolve(PRODUCER, {"linger.ms": 2.0**40, "delivery.timeout.ms": made}, {})["delivery.timeout.ms"] == made


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"transactional_id": ""}, r"transactional\.id is empty"),
        ({"transactional_id": "tx", "acks": 1}, r"transactional\.id='tx' needs idempotence"),
        ({"transactional_id": "tx", "enable_idempotence": False}, r"transactional\.id='tx' needs idempotence"),
    ],
)
def test_transactional_id_needs_a_name_and_idempotence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        resolve(PRODUCER, None, settings)


@pytest.mark.parametrize(
    ("definition", "settings", "words"),
    [
        (PRODUCER, {"acks": "2"}, "must be one of all, -1, 1, 0"),
        (PRODUCER, {"linger_ms": -1}, "must be between"),
        (PRODUCER, {"linger_ms": float("inf")}, "must be between"),
        (PRODUCER, {"batch_size": "many"}, "whole number"),
        (PRODUCER, {"compression_type": "lzma"}, "must be one of"),
        (PRODUCER, {"interceptor_classes": ["x"]}, "interceptors are not supported"),
        (PRODUCER, {"delivery_timeout_ms": 10, "linger_ms": 5}, "at least linger.ms"),
        (PRODUCER, {"security_protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        (CONSUMER, {"auto_offset_reset": "newest"}, "must be one of earliest, latest, none"),
        (CONSUMER, {"check_crcs": "yes"}, "must be true or false"),
    ],
)
def test_value_that_does_not_fit_is_named_with_what_would(definition: Any, settings: Any, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        resolve(definition, None, settings)


def test_null_is_no_legal_value_of_a_list() -> None:
    with pytest.raises(InvalidConfigError, match="must be one of commit, interval, os"):
        TOPIC.parse({"log_flush": None})
    assert resolve(PRODUCER, None, {"compression_type": None})["compression.type"] == "none"  # as if not given


def test_delivery_timeout_grows_with_the_request_timeout_when_it_is_not_given() -> None:
    assert resolve(PRODUCER, None, {"request_timeout_ms": 300_000})["delivery.timeout.ms"] == 300_000


def test_accepted_key_is_noted_when_it_is_set(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        resolve(CONSUMER, {"session.timeout.ms": 10_000}, {})
    assert "session.timeout.ms: the coordinator's" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="headrace"):
        resolve(CONSUMER, None, {})
    assert logged(caplog) == []


def test_none_means_the_default() -> None:
    assert resolve(CONSUMER, {"group.id": None}, {"fetch_min_bytes": None})["fetch.min.bytes"] == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "1"}, r"acks=1 \(must be all\)"),
        ({"acks": "0"}, "acks=0"),
        ({"retries": 0}, "retries=0"),
        ({"max_in_flight_requests_per_connection": 6}, "connection=6"),
    ],
)
def test_idempotence_gives_way_to_other_keys_unless_it_was_asked_for(settings: dict[str, Any], words: str) -> None:
    """The default of acks and idempotence follows KIP-679, as in Kafka's ProducerConfig."""
    assert resolve(PRODUCER, None, {})["enable.idempotence"] is True
    assert resolve(PRODUCER, None, settings)["enable.idempotence"] is False
    assert resolve(PRODUCER, None, {"enable_idempotence": False, **settings})["enable.idempotence"] is False
    with pytest.raises(InvalidConfigError, match=words):
        resolve(PRODUCER, None, {"enable_idempotence": True, **settings})


@pytest.mark.parametrize("acks", ["all", "-1"])
def test_idempotence_that_was_asked_for_is_on(acks: str) -> None:
    assert resolve(PRODUCER, None, {"enable_idempotence": True, "acks": acks})["enable.idempotence"] is True
