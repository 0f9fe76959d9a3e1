"""Kafka's clients find the cluster: brokers, topics, coordinators."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from headrace import Admin, LocalCluster, NewTopic
from headrace_core.errors import InvalidRecordError, NotLeaderOrFollowerError
from headrace_core.records import encode_batch
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.schema import NO_UUID, Message
from tests.worlds.kafka_protocol import read_answer, request_frame
from tests.worlds.waiting import until

COORDINATOR_NOT_AVAILABLE = 15


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, controllers=1, coordinators=1, kafka=True, mode="inprocess") as running:
        yield running


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> str:
    """The address of one broker."""
    return cluster.kafka_bootstrap_servers.split(",")[0]


@pytest.fixture
def topic(cluster: LocalCluster, address: str) -> str:
    """A topic that the broker at ``address`` knows."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        if "orders" not in admin.list_topics():
            admin.create_topics([NewTopic("orders", partitions=3, replication_factor=2)])
    until(
        lambda: (
            not ask(address, Api.METADATA, 12, topics=[{"name": "orders", "topic_id": NO_UUID}]).topics[0].error_code
        )
    )
    return "orders"


def ask(address: str, api: Api, version: int, **fields: object) -> Message:
    """Send one request over a connection of its own, and return the answer."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request_frame(api, version, **fields))
        with connection.makefile("rb") as stream:
            frame = stream.read(int.from_bytes(stream.read(4), "big"))
    return read_answer(api, version, frame)[1]


def is_open_after(address: str, frame: bytearray) -> bool:
    """Whether the broker keeps a connection after a request without an answer."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(frame + request_frame(Api.API_VERSIONS, 0))
        return bool(connection.recv(1))


def find_coordinators(address: str, version: int, key_type: int, **fields: object) -> list[Message]:
    """Look up coordinators; repeat the look-up, as clients do, until the new internal topic's shards have owners."""

    def look_up() -> list[Message] | None:
        answer = ask(address, Api.FIND_COORDINATOR, version, key_type=key_type, **fields)
        found = list(answer.coordinators) if version >= 4 else [answer]
        return None if any(each.error_code == COORDINATOR_NOT_AVAILABLE for each in found) else found

    found: list[Message] = until(look_up)
    return found


def test_librdkafka_lists_topics_and_brokers(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_topics(timeout=20)
    assert sorted(listed.brokers) == [1, 2]
    assert listed.controller_id == 1
    assert sorted(listed.topics[topic].partitions) == [0, 1, 2]
    assert sorted(listed.topics[topic].partitions[0].replicas) == [1, 2]
    described = admin.describe_cluster(request_timeout=20).result(20)
    assert described.cluster_id == listed.cluster_id
    assert sorted(node.id for node in described.nodes) == [1, 2]


def test_kafka_python_lists_topics_and_describes_the_cluster(address: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        assert topic in admin.list_topics()
        assert sorted(each["broker_id"] for each in admin.describe_cluster()["brokers"]) == [1, 2]
    finally:
        admin.close()


@pytest.mark.parametrize("version", range(VERSIONS[Api.METADATA].low, VERSIONS[Api.METADATA].high + 1))
def test_every_version_of_metadata_names_the_topic(address: str, topic: str, version: int) -> None:
    answer = ask(address, Api.METADATA, version, topics=[{"name": topic, "topic_id": NO_UUID}])
    (found,) = answer.topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, topic, 3)
    assert {each.leader_id for each in found.partitions} <= {1, 2}
    assert {each.node_id for each in answer.brokers} == {1, 2}


def test_each_broker_has_an_address_of_its_own_and_names_the_others(cluster: LocalCluster, topic: str) -> None:
    addresses = dict(enumerate(cluster.kafka_bootstrap_servers.split(","), start=1))
    assert len(addresses) == 2
    for each in addresses.values():
        answer = ask(each, Api.METADATA, 12, topics=[])
        assert {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers} == addresses


def test_metadata_finds_topics_by_id(address: str, topic: str) -> None:
    by_name = ask(address, Api.METADATA, 12, topics=[{"name": topic, "topic_id": NO_UUID}])
    topic_id = by_name.topics[0].topic_id
    wanted = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": b"\1" * 16}]
    found = ask(address, Api.METADATA, 12, topics=wanted).topics
    assert [(each.error_code, each.name) for each in found] == [(0, topic), (100, None)]
    old = ask(address, Api.METADATA, 11, topics=[{"name": topic, "topic_id": topic_id}])
    assert [each.error_code for each in old.topics] == [42]


def test_a_missing_topic_is_created_if_the_client_asks_for_it(address: str) -> None:
    wanted = [{"name": "made-by-metadata", "topic_id": NO_UUID}, {"name": "no/topic", "topic_id": NO_UUID}]
    refused = ask(address, Api.METADATA, 12, topics=wanted, allow_auto_topic_creation=False)
    assert [each.error_code for each in refused.topics] == [3, 17]
    made = ask(address, Api.METADATA, 12, topics=wanted, allow_auto_topic_creation=True)
    assert [(each.error_code, bool(each.partitions)) for each in made.topics] == [(0, True), (17, False)]


def test_topic_partitions_are_described_in_pages(address: str, topic: str) -> None:
    first = ask(address, Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": topic}], response_partition_limit=2)
    assert [each.partition_index for each in first.topics[0].partitions] == [0, 1]
    cursor = {"topic_name": first.next_cursor.topic_name, "partition_index": first.next_cursor.partition_index}
    rest = ask(address, Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": topic}], cursor=cursor)
    assert [each.partition_index for each in rest.topics[0].partitions] == [2]
    assert rest.next_cursor is None


@pytest.mark.parametrize("version", range(VERSIONS[Api.FIND_COORDINATOR].low, VERSIONS[Api.FIND_COORDINATOR].high + 1))
def test_a_coordinator_is_a_broker_of_the_metadata(address: str, version: int) -> None:
    fields = {"coordinator_keys": ["group-1", "group-2"]} if version >= 4 else {"key": "group-1"}
    answers = find_coordinators(address, version, 0, **fields)
    nodes = {(each.node_id, each.host, each.port) for each in ask(address, Api.METADATA, 1).brokers}
    assert len(answers) == (2 if version >= 4 else 1)
    assert all(each.error_code == 0 and (each.node_id, each.host, each.port) in nodes for each in answers)


def test_transactional_ids_have_a_coordinator_and_share_groups_have_none(address: str) -> None:
    found = find_coordinators(address, 6, 1, coordinator_keys=["payments"])
    assert [each.error_code for each in found] == [0]
    shared = ask(address, Api.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=["payments"]).coordinators
    assert [each.error_code for each in shared] == [42]


def test_a_producer_without_acknowledgements_learns_of_a_wrong_leader_by_the_end_of_its_connection(
    address: str, topic: str
) -> None:
    (found,) = ask(address, Api.METADATA, 12, topics=[{"name": topic}]).topics
    partition = next(each for each in found.partitions if each.partition_index == 0)
    brokers = {each.node_id: each for each in ask(address, Api.METADATA, 12, topics=[]).brokers}
    data = [{"index": 0, "records": encode_batch([(5, None, b"x", None)])}]
    frame = request_frame(Api.PRODUCE, 9, acks=0, topic_data=[{"name": topic, "partition_data": data}])
    outcomes = {node_id: is_open_after(f"{each.host}:{each.port}", frame) for node_id, each in brokers.items()}
    assert outcomes == {node_id: node_id == partition.leader_id for node_id in brokers}


BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2
INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST = 17, 40, 42


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code"),
    [
        (BROKER_RESOURCE, "1", "broker.rack", "a", INVALID_REQUEST),  # a read-only key
        (BROKER_RESOURCE, "", "message.max.bytes", "-1", INVALID_REQUEST),
        (BROKER_RESOURCE, "1", "min.insync.replicas", "1", INVALID_CONFIG),
        (BROKER_RESOURCE, "9" * 5_000, "log.retention.ms", "1", INVALID_REQUEST),
        (TOPIC_RESOURCE, "orders", "max.message.bytes", "-1", INVALID_CONFIG),
        (TOPIC_RESOURCE, "orders", "retention.ms", None, INVALID_REQUEST),
        (TOPIC_RESOURCE, "", "retention.ms", "1", INVALID_REQUEST),
    ],
)
@pytest.mark.usefixtures("topic")
def test_a_wrong_change_of_a_configuration_has_kafkas_error(
    address: str, kind: int, name: str, key: str, value: str | None, code: int
) -> None:
    """tests/integration/kafka_protocol/kafka/test_configs_beside_kafka.py compares more changes with Kafka."""
    configs = [{"name": key, "value": value, "config_operation": 0}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = ask(address, Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    assert answer.responses[0].error_code == code, answer.responses[0].error_message
    resource["configs"] = [{"name": key, "value": value}]
    answer = ask(address, Api.ALTER_CONFIGS, 2, resources=[resource])
    assert answer.responses[0].error_code == code, answer.responses[0].error_message


def test_alter_configs_refuses_a_key_that_is_set_twice(address: str, topic: str) -> None:
    configs = [{"name": "retention.ms", "value": text} for text in ("1000", "2000")]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": configs}
    answer = ask(address, Api.ALTER_CONFIGS, 2, resources=[resource])
    assert answer.responses[0].error_code == INVALID_REQUEST


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (BROKER_RESOURCE, "9", INVALID_REQUEST),
        (BROKER_RESOURCE, "9" * 5_000, INVALID_REQUEST),
        (TOPIC_RESOURCE, "", INVALID_TOPIC),
    ],
)
def test_configurations_of_resources_that_cannot_be_are_not_described(
    address: str, kind: int, name: str, code: int
) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = ask(address, Api.DESCRIBE_CONFIGS, 4, resources=[resource])
    assert answer.results[0].error_code == code


def test_the_records_for_which_a_batch_was_refused_are_named(cluster: LocalCluster, address: str) -> None:
    """KIP-467: clients fail only these records as invalid, and the others of the batch for another reason."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("keyed", assignments={0: [1]}, config={"cleanup.policy": "compact"})])
    records = encode_batch([(1_000, None if at == 2 else b"key", b"value", []) for at in range(4)])
    asked = {"acks": -1, "timeout": 20_000, "topic_data": [
        {"name": "keyed", "partition_data": [{"index": 0, "records": records}]}]}  # fmt: skip
    until(lambda: ask(address, Api.METADATA, 12, topics=[{"name": "keyed", "topic_id": NO_UUID}])
          .topics[0].error_code == 0)  # fmt: skip

    def answer() -> Any:
        ((only,),) = (each.partition_responses for each in ask(
            address, Api.PRODUCE, 12, **asked).responses)  # fmt: skip
        # The broker may answer Metadata before it leads the new partition: clients try again.
        return only if only.error_code != NotLeaderOrFollowerError.number else None

    refused = until(answer, "the broker leads the new partition")
    assert refused.error_code == InvalidRecordError.number
    assert [each.batch_index for each in refused.record_errors] == [2]
    assert "key" in refused.record_errors[0].batch_index_error_message
