"""The effective value of a key: topic, broker, all brokers, properties file, default."""

from __future__ import annotations

import pytest

from headrace_core.config import ConfigKey, Kind, Scope
from headrace_core.config.server_keys import SERVER
from headrace_core.config.topic_keys import TOPIC, TOPIC_DEFAULT_KEYS
from headrace_core.log.config import LogConfig
from headrace_core.metadata import EMPTY_IMAGE, ConfigRecord, MetadataImage, PartitionRecord, TopicRecord
from headrace_core.metadata.configs import (
    ConfigSource,
    broker_topic_defaults,
    broker_values,
    describe_broker,
    describe_topic,
    topic_config,
    topic_given,
    topic_value,
)

A = b"a" * 16
STATIC = {"retention.ms": 10}


def image_with(*entries: tuple[int, str, str, str]) -> MetadataImage:
    records = [TopicRecord("t", A), PartitionRecord(A, 0, (1,), (1,), 1, 0, 0)]
    records += [ConfigRecord(*entry) for entry in entries]
    return EMPTY_IMAGE.apply(records, len(records), 1)


LAYERS = [
    (1, "t", "retention.ms", "50"),
    (2, "1", "log.retention.ms", "40"),
    (2, "", "log.retention.ms", "30"),
]


@pytest.mark.parametrize(
    ("entries", "static", "value", "source"),
    [
        (LAYERS, STATIC, 50, ConfigSource.DYNAMIC_TOPIC),
        (LAYERS[1:], STATIC, 40, ConfigSource.DYNAMIC_BROKER),
        (LAYERS[2:], STATIC, 30, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ([], STATIC, 10, ConfigSource.STATIC_BROKER),
        ([], {}, 604_800_000, ConfigSource.DEFAULT),
    ],
)
def test_the_most_special_setting_holds(entries: list, static: dict, value: int, source: ConfigSource) -> None:
    image = image_with(*entries)
    assert topic_config(image, "t", broker_id=1, static=static)["retention.ms"] == value
    assert topic_value(image, "t", "retention.ms", broker_id=1, static=static) == value
    (described,) = (
        entry for entry in describe_topic(image, "t", broker_id=1, static=static) if entry.name == "retention.ms"
    )
    assert (described.value, described.source) == (str(value), source)


def test_another_brokers_setting_does_not_hold_here() -> None:
    image = image_with(LAYERS[1])
    assert topic_value(image, "t", "retention.ms", broker_id=2) == 604_800_000
    assert broker_topic_defaults(image, 2, STATIC) == STATIC


def test_the_logs_settings_follow_from_the_image() -> None:
    image = image_with((1, "t", "segment.bytes", "1000"), (2, "", "log.index.interval.bytes", "17"))
    given = image.configs[(1, "t")]  # type: ignore[index]
    config = LogConfig.from_topic(given, broker_defaults=broker_topic_defaults(image, 1, {"retention.ms": 5}))
    assert (config.segment_bytes, config.index_interval_bytes, config.retention_ms) == (1000, 17, 5)


def test_every_topic_key_is_described_once_with_a_text_that_parses_back() -> None:
    described = describe_topic(image_with(), "t")
    assert [entry.name for entry in described] == sorted(TOPIC.keys)
    for entry in described:
        assert TOPIC.keys[entry.name].parse(entry.value) == TOPIC.keys[entry.name].default


def test_a_brokers_static_values_are_shown_and_read_only_keys_marked() -> None:
    image = image_with((2, "1", "log.retention.ms", "40"))
    described = {entry.name: entry for entry in describe_broker(image, 1, static={"num.partitions": 3})}
    assert (described["num.partitions"].value, described["num.partitions"].source) == ("3", ConfigSource.STATIC_BROKER)
    assert described["num.partitions"].read_only
    assert (described["log.retention.ms"].value, described["log.retention.ms"].read_only) == ("40", False)
    assert [entry.name for entry in describe_broker(image, None)] == []


@pytest.mark.parametrize("static", [{"node.id": 4}, {"broker.id": 4}])
def test_a_brokers_number_is_described_under_both_names(static: dict[str, int]) -> None:
    described = {entry.name: entry for entry in describe_broker(image_with(), 4, static=static)}
    for name in ("node.id", "broker.id"):
        assert (described[name].value, described[name].source) == ("4", ConfigSource.STATIC_BROKER)


def test_each_topic_default_has_a_server_key_of_the_same_type_and_default() -> None:
    for topic_key, server_key in TOPIC_DEFAULT_KEYS.items():
        assert SERVER.keys[server_key].kind is TOPIC.keys[topic_key].kind
        assert SERVER.keys[server_key].default == TOPIC.keys[topic_key].default
        assert SERVER.keys[server_key].dynamic


def test_every_value_that_is_set_is_reported_in_kafkas_order_under_its_own_name() -> None:
    given = {"log.retention.hours": 2, "log.retention.minutes": 3, "num.partitions": 4}
    (entry,) = (
        each
        for each in describe_topic(image_with(*LAYERS), "t", broker_id=1, given=given)
        if each.name == "retention.ms"
    )
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("retention.ms", "50", ConfigSource.DYNAMIC_TOPIC),
        ("log.retention.ms", "40", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "30", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.minutes", "180000", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "7200000", ConfigSource.STATIC_BROKER),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    ]
    assert (entry.kind.value, entry.allowed, entry.sensitive) == ("long", "-1 or more", False)


def test_a_brokers_coarse_spelling_gives_the_key_in_milliseconds_its_value() -> None:
    described = {entry.name: entry for entry in describe_broker(image_with(), 1, static={"log.retention.hours": 1})}
    ms = described["log.retention.ms"]
    assert (ms.value, ms.source) == ("3600000", ConfigSource.STATIC_BROKER)
    assert [each.name for each in ms.synonyms] == ["log.retention.hours", "log.retention.ms"]
    assert described["log.retention.hours"].value == "1"
    assert broker_values(image_with(), 1, {"log.retention.hours": 1})["log.retention.ms"] == 3_600_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.retention.hours", "168"),
        ("log.roll.hours", "168"),
        ("log.roll.jitter.hours", "0"),
        ("log.retention.minutes", ""),
    ],
)
def test_defaults_in_hours_are_described_as_in_kafka(key: str, value: str) -> None:
    for static in ({}, {"log.retention.ms": 5}):
        described = {entry.name: entry for entry in describe_broker(image_with(), 1, static=static)}
        assert (described[key].value, described[key].source) == (value, ConfigSource.DEFAULT)
    described = {entry.name: entry for entry in describe_broker(image_with(), 1, static={key: 3})}
    assert described[key].value == "3"
    assert [each.value for each in described[key].synonyms] == ["3", value]


def test_a_value_of_a_family_is_described_when_it_is_set() -> None:
    described = {entry.name: entry for entry in describe_broker(image_with(), 1, static={"confluent.x.y": "z"})}
    assert (described["confluent.x.y"].value, described["confluent.x.y"].source) == ("z", ConfigSource.STATIC_BROKER)
    assert not any(name.endswith("*") for name in described)


def test_what_is_not_legal_any_more_counts_as_not_set_and_is_still_shown(caplog: pytest.LogCaptureFixture) -> None:
    image = image_with(
        (1, "t", "retention.ms", "soon"),
        (1, "t", "an.old.key", "1"),
        (2, "", "log.retention.ms", "never"),
        (2, "1", "log.segment.bytes", "3"),
        (2, "", "another.old.key", "1"),
    )
    assert topic_value(image, "t", "retention.ms", broker_id=1, static=STATIC) == STATIC["retention.ms"]
    config = topic_config(image, "t", broker_id=1, static=STATIC)
    assert (config["retention.ms"], config["segment.bytes"]) == (10, 1_073_741_824)
    assert topic_given(image, "t") == {}
    assert "retention.ms='soon'" in caplog.text
    described = {entry.name: entry for entry in describe_topic(image, "t", broker_id=1)}
    assert described["retention.ms"].value == "soon"
    assert "another.old.key" not in {entry.name for entry in describe_broker(image, None)}


def test_a_secret_is_described_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ConfigKey(name="a.secret", kind=Kind.PASSWORD, default=None, doc="Secret.", scope=Scope.CLUSTER_WIDE)
    monkeypatch.setitem(SERVER.keys, "a.secret", secret)
    image = image_with((2, "", "a.secret", "hunter2"))
    (entry,) = (each for each in describe_broker(image, 1, static={"a.secret": "hunter3"}) if each.name == "a.secret")
    assert entry.sensitive
    assert "hunter" not in repr(entry)
    assert [each.source for each in entry.synonyms] == [
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
        ConfigSource.STATIC_BROKER,
        ConfigSource.DEFAULT,
    ]
