"""Requests that Kafka refuses: a gateway refuses them with the same error codes. The expected codes are the answers of
Kafka 4.3 to the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic
from headrace_gateway.app import Gateway
from headrace_gateway.wire.apis import Api
from tests.worlds.gateways import running_gateway
from tests.worlds.kafka_wire import KafkaWire

NONE, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION = 0, 3, 29, 35
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_REQUEST = 37, 38, 40, 42
ELECTION_NOT_NEEDED = 84
DEFAULT = -1


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=2), NewTopic("stock", partitions=1)])
        yield running


@pytest.fixture(scope="module")
def gateway(cluster: LocalCluster) -> Iterator[Gateway]:
    with running_gateway(cluster) as running:
        yield running


@pytest.fixture
def wire(gateway: Gateway) -> Iterator[KafkaWire]:
    with KafkaWire(gateway.bootstrap_servers) as connected:
        yield connected


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, 1, INVALID_PARTITIONS),
        (0, DEFAULT, INVALID_PARTITIONS),
        (1, 0, INVALID_REPLICATION_FACTOR),
        (DEFAULT, 0, INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_topic_without_partitions_or_replicas_is_not_created(
    wire: KafkaWire, partitions: int, replicas: int, code: int
) -> None:
    assert create(wire, "empty", partitions, replicas) == code
    (found,) = wire.ask(Api.METADATA, topics=[{"name": "empty"}], allow_auto_topic_creation=False).topics
    assert found.error_code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("partitions", "replicas"), [(0, DEFAULT), (DEFAULT, 0), (1, DEFAULT)])
def test_assignments_of_a_new_topic_exclude_numbers(wire: KafkaWire, partitions: int, replicas: int) -> None:
    assignments = [{"partition_index": 0, "broker_ids": [1]}]
    assert create(wire, "assigned", partitions, replicas, assignments=assignments) == INVALID_REQUEST


def test_a_new_topic_has_no_null_in_its_configuration(wire: KafkaWire) -> None:
    configs = [{"name": "retention.ms", "value": None}]
    assert create(wire, "configured", 1, 1, configs=configs) == INVALID_CONFIG


def create(wire: KafkaWire, name: str, partitions: int, replicas: int, **more: Any) -> int:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}
    (created,) = wire.ask(Api.CREATE_TOPICS, topics=[topic], timeout=10_000, validate_only=False).topics
    return int(created.error_code)


@pytest.mark.parametrize(
    ("timestamp", "version", "code"),
    [
        (-3, 6, UNSUPPORTED_VERSION),
        (-3, 7, NONE),
        (-4, 7, UNSUPPORTED_VERSION),
        (-4, 8, NONE),
        (-5, 8, UNSUPPORTED_VERSION),
        (-5, 9, NONE),
        (-6, 10, UNSUPPORTED_VERSION),
        (-6, 11, NONE),
        (-7, 11, UNSUPPORTED_VERSION),
        (-(2**63), 11, UNSUPPORTED_VERSION),
    ],
)
def test_a_special_timestamp_needs_the_version_of_list_offsets_that_has_it(
    wire: KafkaWire, timestamp: int, version: int, code: int
) -> None:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer = wire.ask(Api.LIST_OFFSETS, version, replica_id=-1, topics=[{"name": "orders", "partitions": [partition]}])
    assert answer.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_election_in_no_partition_succeeds(wire: KafkaWire, version: int) -> None:
    for topics in ([], [{"topic": "orders", "partitions": []}]):
        answer = wire.ask(Api.ELECT_LEADERS, version, topic_partitions=topics, timeout=10_000)
        assert answer.error_code == NONE
        assert answer.replica_election_results == []


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_failed_election_has_an_error_at_each_partition(wire: KafkaWire, version: int) -> None:
    """The request has more partitions than a broker accepts. An answer of version 0 has errors only at partitions."""
    topics = [{"topic": "orders", "partitions": list(range(10_001))}]
    answer = wire.ask(Api.ELECT_LEADERS, version, topic_partitions=topics, timeout=10_000)
    (orders,) = answer.replica_election_results
    assert {each.error_code for each in orders.partition_result} == {INVALID_REQUEST}
    assert len(orders.partition_result) == 10_001


def test_an_unknown_type_of_election_elects_no_leader(wire: KafkaWire) -> None:
    topics = [{"topic": "orders", "partitions": [0]}]
    for election_type, codes in ((0, (NONE, ELECTION_NOT_NEEDED)), (2, (INVALID_REQUEST, INVALID_REQUEST))):
        answer = wire.ask(Api.ELECT_LEADERS, election_type=election_type, topic_partitions=topics, timeout=10_000)
        (orders,) = answer.replica_election_results
        assert (answer.error_code, orders.partition_result[0].error_code) == codes


def test_offsets_of_missing_partitions_are_not_deleted(wire: KafkaWire) -> None:
    commit(wire, "deleters", "orders", 0)
    asked = [("orders", 0), ("orders", 7), ("missing", 0)]
    topics = [{"name": name, "partitions": [{"partition_index": index}]} for name, index in asked]
    answer = wire.ask(Api.OFFSET_DELETE, group_id="deleters", topics=topics)
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert codes == [NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]


def test_a_topic_that_a_request_names_twice_has_its_offsets_in_one_place(wire: KafkaWire) -> None:
    commit(wire, "twice", "orders", 0, 1)
    topics = [
        {"name": name, "partition_indexes": [index]} for name, index in (("orders", 0), ("stock", 0), ("orders", 1))
    ]
    (group,) = wire.ask(Api.OFFSET_FETCH, 9, groups=[{"group_id": "twice", "topics": topics}]).groups
    found = {topic.name: [(each.partition_index, each.committed_offset) for each in topic.partitions]
             for topic in group.topics}  # fmt: skip
    assert len(group.topics) == 2
    assert found == {"orders": [(0, 5), (1, 5)], "stock": [(0, -1)]}


def commit(wire: KafkaWire, group: str, topic: str, *partitions: int) -> None:
    wire.ask(Api.FIND_COORDINATOR, key_type=0, coordinator_keys=[group])
    offsets = [{"partition_index": index, "committed_offset": 5, "committed_metadata": ""} for index in partitions]
    answer = wire.ask(Api.OFFSET_COMMIT, 9, group_id=group, topics=[{"name": topic, "partitions": offsets}])
    assert {each.error_code for each in answer.topics[0].partitions} == {NONE}


def test_a_transaction_contains_no_partition_of_an_internal_topic(wire: KafkaWire) -> None:
    wire.ask(Api.FIND_COORDINATOR, key_type=0, coordinator_keys=["payers"])
    wire.ask(Api.FIND_COORDINATOR, key_type=1, coordinator_keys=["payments"])
    producer = wire.ask(Api.INIT_PRODUCER_ID, 4, transactional_id="payments", transaction_timeout=60_000)
    answer = wire.ask(
        Api.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="payments",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": "__consumer_offsets", "partitions": [0]}],
    )
    (topic,) = answer.results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == TOPIC_AUTHORIZATION_FAILED
