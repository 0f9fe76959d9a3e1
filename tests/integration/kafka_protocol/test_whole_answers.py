"""Answers about many things at once name all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import LocalCluster
from headrace_kafka.wire.apis import Api
from tests.worlds.kafka_protocol import KafkaWire

MANY = 130  # more than are described by one call, and more than once were described at all


@pytest.fixture(scope="module")
def wire() -> Iterator[KafkaWire]:
    with (
        LocalCluster(brokers=1, controllers=1, coordinators=0, kafka=True, mode="inprocess") as cluster,
        KafkaWire(cluster.kafka_bootstrap_servers) as connected,
    ):
        yield connected


@pytest.mark.parametrize("is_only_checked", [True, False])
def test_create_topics_answers_with_the_configuration_of_each_topic(wire: KafkaWire, is_only_checked: bool) -> None:
    """KIP-525."""
    given = {f"created-{number}": str(1_000 * (number % 3 + 1)) for number in range(MANY)}
    topics = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": "retention.ms", "value": retention}],
        }
        for name, retention in given.items()
    ]
    answer = wire.ask(Api.CREATE_TOPICS, topics=topics, timeout=30_000, validate_only=is_only_checked)
    assert {(each.error_code, each.topic_config_error_code) for each in answer.topics} == {(0, 0)}
    found = {each.name: {entry.name: entry.value for entry in each.configs} for each in answer.topics}
    assert {name: entries.get("retention.ms") for name, entries in found.items()} == given
    assert {len(entries) for entries in found.values()} == {len(found["created-0"])}
