"""Which value of a key holds: topic, broker, all brokers, properties file, default."""

from __future__ import annotations

import pytest

from headrace_core.log.config import TOPIC, LogConfig
from headrace_core.metadata import EMPTY_IMAGE, ConfigRecord, MetadataImage, PartitionRecord, TopicRecord
from headrace_core.metadata.configs import (
    ConfigSource,
    broker_topic_defaults,
    describe_broker,
    describe_topic,
    topic_config,
    topic_value,
)
from headrace_core.node.keys import SERVER, TOPIC_DEFAULT_KEYS

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


def test_each_topic_default_has_a_server_key_of_the_same_type_and_default() -> None:
    for topic_key, server_key in TOPIC_DEFAULT_KEYS.items():
        assert SERVER.keys[server_key].kind is TOPIC.keys[topic_key].kind
        assert SERVER.keys[server_key].default == TOPIC.keys[topic_key].default
        assert SERVER.keys[server_key].dynamic
