"""Requests that Kafka refuses: a broker refuses them with the same error codes. The expected codes are the answers of
Kafka 4.3 to the same requests."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from headrace import Admin, LocalCluster, NewTopic
from headrace_core.records import encode_batch
from headrace_kafka import produce_path
from headrace_kafka.produce_path import PORTION
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import NO_UUID
from tests.worlds.kafka_protocol import KafkaWire, read_answer, request_frame
from tests.worlds.waiting import until

NONE, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION = 0, 3, 29, 35
CORRUPT_MESSAGE, REQUEST_TIMED_OUT, INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_RECORD = 2, 7, 17, 36, 87
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_REQUEST = 37, 38, 40, 42
ELECTION_NOT_NEEDED = 84
#: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: clients try again.
NOT_READY = {14, 15, 16}
DEFAULT = -1
TOPIC, BROKER = 2, 4  #: Types of resources that have a configuration.
SET, DELETE = 0, 1  #: Operations of IncrementalAlterConfigs.


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=2), NewTopic("stock", partitions=1)])
        yield running


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[KafkaWire]:
    with KafkaWire(cluster.kafka_bootstrap_servers) as connected:
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


def test_a_new_topic_that_is_only_checked_has_the_configuration_it_would_have(wire: KafkaWire) -> None:
    """Kafka's own test of its administration client looks at the configuration of a topic that it only checks."""
    topic = {"name": "checked", "num_partitions": 1, "replication_factor": 1}
    topic["configs"] = [{"name": "retention.ms", "value": "5000"}]
    described = []
    for is_only_checked in (True, False):
        (found,) = wire.ask(Api.CREATE_TOPICS, topics=[topic], timeout=10_000, validate_only=is_only_checked).topics
        assert found.error_code == NONE
        described.append({each.name: (each.value, each.config_source) for each in found.configs})
    assert described[0]["retention.ms"] == ("5000", 1)
    assert described[0] == described[1]


def test_a_refused_topic_has_an_empty_configuration(wire: KafkaWire) -> None:
    topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
    (found,) = wire.ask(Api.CREATE_TOPICS, topics=[topic], timeout=10_000).topics
    assert (found.error_code, found.configs) == (TOPIC_ALREADY_EXISTS, [])


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_without_time_is_no_reason_to_refuse(wire: KafkaWire, timeout: int) -> None:
    """librdkafka sends -1 if a program sets operation_timeout to -1. Kafka may answer before the change, too."""
    name = f"at-once{timeout}"
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    (created,) = wire.ask(Api.CREATE_TOPICS, topics=[topic], timeout=timeout).topics
    (grown,) = wire.ask(Api.CREATE_PARTITIONS, topics=[{"name": name, "count": 2}], timeout=timeout).results
    elected = wire.ask(Api.ELECT_LEADERS, topic_partitions=[{"topic": name, "partitions": [0]}], timeout=timeout)
    moves = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    moved = wire.ask(Api.ALTER_PARTITION_REASSIGNMENTS, topics=moves, timeout=timeout)
    listed = wire.ask(Api.LIST_PARTITION_REASSIGNMENTS, topics=None, timeout=timeout)
    deleted = wire.ask(Api.DELETE_TOPICS, topics=[{"name": name, "topic_id": NO_UUID}], timeout=timeout)
    codes = [created.error_code, grown.error_code, elected.error_code, moved.error_code, listed.error_code]
    assert [*codes, deleted.responses[0].error_code] == [NONE] * 6


def test_records_are_deleted_with_a_timeout_without_time(wire: KafkaWire) -> None:
    deletions = [{"name": "stock", "partitions": [{"partition_index": 0, "offset": 0}]}]
    answer = wire.ask(Api.DELETE_RECORDS, topics=deletions, timeout=-1)
    assert answer.topics[0].partitions[0].error_code in (NONE, REQUEST_TIMED_OUT)


def test_a_topic_that_a_request_names_twice_is_not_deleted(wire: KafkaWire) -> None:
    assert create(wire, "kept", 1, 1) == NONE
    by_name = {"name": "kept", "topic_id": NO_UUID}
    (found,) = wire.ask(Api.METADATA, topics=[by_name]).topics
    by_id = {"name": None, "topic_id": found.topic_id}
    for topics in ([by_name, by_name], [by_id, by_id], [by_name, by_id], [{"name": None, "topic_id": NO_UUID}]):
        answer = wire.ask(Api.DELETE_TOPICS, topics=topics, timeout=10_000)
        assert {each.error_code for each in answer.responses} == {INVALID_REQUEST}
    (still,) = wire.ask(Api.METADATA, topics=[by_name], allow_auto_topic_creation=False).topics
    assert still.topic_id == found.topic_id


def test_an_unknown_key_can_be_deleted_but_not_set(wire: KafkaWire) -> None:
    for kind, name, refusal in ((TOPIC, "orders", INVALID_CONFIG), (BROKER, "1", INVALID_REQUEST)):
        for operation, value, code in ((DELETE, None, NONE), (SET, "1", refusal)):
            configs = [{"name": "no.such.key", "value": value, "config_operation": operation}]
            resource = {"resource_type": kind, "resource_name": name, "configs": configs}
            (found,) = wire.ask(Api.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False).responses
            assert found.error_code == code


def test_an_invalid_name_of_a_topic_has_no_configuration(wire: KafkaWire) -> None:
    resource = {"resource_type": TOPIC, "resource_name": "a b"}
    (described,) = wire.ask(Api.DESCRIBE_CONFIGS, resources=[{**resource, "configuration_keys": None}]).results
    change = {"name": "retention.ms", "value": "1", "config_operation": SET}
    (altered,) = wire.ask(Api.INCREMENTAL_ALTER_CONFIGS, resources=[{**resource, "configs": [change]}]).responses
    assert described.error_code == altered.error_code == INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("component", "code"),
    [
        ({"entity_type": "user", "match_type": 2, "match": None}, NONE),
        ({"entity_type": "other", "match_type": 2, "match": None}, UNSUPPORTED_VERSION),
        ({"entity_type": "user", "match_type": 1, "match": "ann"}, INVALID_REQUEST),
        ({"entity_type": "user", "match_type": 2, "match": "ann"}, INVALID_REQUEST),
    ],
)
def test_a_filter_of_quotas_that_matches_nothing_is_refused(
    wire: KafkaWire, component: dict[str, Any], code: int
) -> None:
    assert wire.ask(Api.DESCRIBE_CLIENT_QUOTAS, components=[component], strict=False).error_code == code


def test_the_start_of_an_empty_partition_has_the_leaders_epoch(wire: KafkaWire) -> None:
    partition = {"partition_index": 1, "current_leader_epoch": -1, "timestamp": -2}
    answer = wire.ask(Api.LIST_OFFSETS, replica_id=-1, topics=[{"name": "orders", "partitions": [partition]}])
    (found,) = answer.topics[0].partitions
    assert (found.offset, found.leader_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("field", "position", "value", "is_sealed", "code"),
    [
        (">i", 57, 2, True, INVALID_RECORD),  # more records than offsets
        (">i", 57, -1, True, INVALID_RECORD),  # less than no record
        (">i", 23, -1, True, INVALID_RECORD),  # a last offset below the first
        (">h", 21, 7, True, INVALID_RECORD),  # an unknown codec
        (">i", 57, 2, False, CORRUPT_MESSAGE),
        (">h", 21, 7, False, CORRUPT_MESSAGE),
    ],
)
def test_clients_do_not_repeat_a_batch_that_they_built_wrong(
    wire: KafkaWire, field: str, position: int, value: int, is_sealed: bool, code: int
) -> None:
    """Clients send a batch again after CORRUPT_MESSAGE, which helps only against damage on the way. Kafka answers
    INVALID_RECORD (UNKNOWN_SERVER_ERROR for the codec), which ends the delivery at once."""
    batch = bytearray(encode_batch([(1_700_000_000_000, b"key", b"value", ())]))
    struct.pack_into(field, batch, position, value)
    if is_sealed:
        struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    topics = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(batch)}]}]
    ((answered,),) = (
        each.partition_responses
        for each in wire.ask(Api.PRODUCE, 12, acks=-1, timeout=10_000, topic_data=topics).responses
    )
    assert answered.error_code == code


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

    def codes() -> set[int]:
        answer = wire.ask(Api.OFFSET_COMMIT, 9, group_id=group, topics=[{"name": topic, "partitions": offsets}])
        return {each.error_code for each in answer.topics[0].partitions}

    found = until(lambda: not (codes_now := codes()) & NOT_READY and codes_now, "the group has a coordinator")
    assert found == {NONE}


def test_a_transaction_contains_no_partition_of_an_internal_topic(wire: KafkaWire) -> None:
    wire.ask(Api.FIND_COORDINATOR, key_type=0, coordinator_keys=["payers"])
    wire.ask(Api.FIND_COORDINATOR, key_type=1, coordinator_keys=["payments"])

    def initialized() -> Any:
        answer = wire.ask(Api.INIT_PRODUCER_ID, 4, transactional_id="payments", transaction_timeout=60_000)
        return None if answer.error_code in NOT_READY else answer

    producer = until(initialized, "the transactional id has a coordinator")
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


# -- names, limits and ids, with the answers of Kafka 4.3


@pytest.mark.parametrize("is_only_checked", [True, False])
def test_a_topic_that_collides_with_an_existing_one_is_refused(wire: KafkaWire, is_only_checked: bool) -> None:
    def created(name: str) -> int:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        (found,) = wire.ask(Api.CREATE_TOPICS, topics=[topic], timeout=10_000, validate_only=is_only_checked).topics
        return int(found.error_code)

    wire.ask(
        Api.CREATE_TOPICS,
        topics=[{"name": "in.all_metrics", "num_partitions": 1, "replication_factor": 1}],
        timeout=10_000,
    )
    assert [created(name) for name in ("in_all.metrics", "in.all.metrics", "in_all_metrics")] == [17, 17, 17]
    assert created("in.all_metrics") == TOPIC_ALREADY_EXISTS
    assert created(f"in-all-metrics{is_only_checked}") == NONE
    assert created("__cluster_metadata") == INVALID_REQUEST


def committed(wire: KafkaWire, group: str, version: int = 9, **more: Any) -> int:
    """The error code of a commit of orders-0."""
    member = {"member_id": more.pop("member_id", ""), "generation_id_or_member_epoch": more.pop("generation", -1)}
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "", **more}

    def answer() -> int | None:
        topics = [{"name": "orders", "partitions": [partition]}]
        found = wire.ask(Api.OFFSET_COMMIT, version, group_id=group, topics=topics, **member)
        code: int = found.topics[0].partitions[0].error_code
        return None if code in NOT_READY else code + 1

    wire.ask(Api.FIND_COORDINATOR, 3, key=group, key_type=0)
    return int(until(answer, "the coordinator to answer", 30.0)) - 1  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("a" * 4096, NONE),
        ("a" * 4097, 12),
        ("ä" * 4096, NONE),
        ("ä" * 4097, 12),
        ("€" * 4096, NONE),
        ("😀" * 2048, NONE),
        ("😀" * 2049, 12),
        (None, NONE),
    ],
    ids=range(8),
)
def test_metadata_of_a_commit_is_limited_in_javas_characters(wire: KafkaWire, metadata: str | None, code: int) -> None:
    assert committed(wire, "limits", committed_metadata=metadata) == code


def test_clients_without_a_group_id_keep_offsets_under_the_empty_one(wire: KafkaWire) -> None:
    """Clients of before KIP-289 did so. No member can join the group."""
    unknown_member, invalid_group_id = 25, 24
    for version in (2, 5, 8, 9):
        assert committed(wire, "", version) == NONE
        assert committed(wire, "", version, member_id="x", generation=1) == unknown_member
    fetched = [{"name": "orders", "partition_indexes": [0]}]
    for version in (1, 5, 7):
        answer = wire.ask(Api.OFFSET_FETCH, version, group_id="", topics=fetched)
        (found,) = answer.topics[0].partitions
        assert (getattr(answer, "error_code", 0), found.error_code, found.committed_offset) == (NONE, NONE, 5)
    for version in (8, 9):
        (group,) = wire.ask(Api.OFFSET_FETCH, version, groups=[{"group_id": "", "topics": fetched}]).groups
        assert (group.error_code, group.topics[0].partitions[0].committed_offset) == (NONE, 5)
    for version in (0, 3):
        assert (
            wire.ask(Api.FIND_COORDINATOR, version, key="", **({"key_type": 0} if version else {})).error_code == NONE
        )
    (described,) = wire.ask(Api.DESCRIBE_GROUPS, groups=[""]).groups
    assert (described.error_code, described.group_state) == (NONE, "Empty")
    assert ("", "Empty") in [(each.group_id, each.group_state) for each in wire.ask(Api.LIST_GROUPS).groups]
    joining = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer", "member_id": ""}
    protocols = [{"name": "range", "metadata": b""}]
    assert wire.ask(Api.JOIN_GROUP, 5, group_id="", protocols=protocols, **joining).error_code == invalid_group_id
    assert wire.ask(Api.HEARTBEAT, group_id="", generation_id=1, member_id="x").error_code == invalid_group_id
    assert wire.ask(Api.LEAVE_GROUP, group_id="", members=[{"member_id": "x"}]).error_code == invalid_group_id
    named = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    assert wire.ask(Api.OFFSET_DELETE, group_id="", topics=named).error_code == invalid_group_id
    (found,) = wire.ask(Api.CONSUMER_GROUP_DESCRIBE, group_ids=[""]).groups
    assert found.error_code == invalid_group_id
    heartbeat = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    answer = wire.ask(Api.CONSUMER_GROUP_HEARTBEAT, group_id="", rebalance_timeout=1_000, **heartbeat)
    assert answer.error_code == INVALID_REQUEST
    assert [each.error_code for each in wire.ask(Api.DELETE_GROUPS, groups_names=[""]).results] == [NONE]
    assert "" not in [each.group_id for each in wire.ask(Api.LIST_GROUPS).groups]


# -- transactions: the other answers are in tests/unit/kafka_protocol/test_transaction_answers.py


class Transaction:
    """A producer of Kafka's protocol with the transactional id ``name``."""

    def __init__(self, wire: KafkaWire, name: str, timeout_ms: int = 60_000) -> None:
        self._wire, self.name = wire, name
        wire.ask(Api.FIND_COORDINATOR, 3, key=name, key_type=1)

        def begun() -> Any:
            answer = wire.ask(Api.INIT_PRODUCER_ID, 5, transactional_id=name, transaction_timeout=timeout_ms)
            return None if answer.error_code in NOT_READY else answer

        answer: Any = until(begun, "the coordinator to answer", 30.0)
        assert answer.error_code == NONE
        self.fields = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

    def add(self) -> None:
        (topic,) = self._wire.ask(
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.fields["producer_id"],
            v3_and_below_producer_epoch=self.fields["producer_epoch"],
            v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
        ).results_by_topic_v3_and_below
        assert [each.partition_error_code for each in topic.results_by_partition] == [NONE]

    def end(self, version: int, *, commit: bool) -> int:
        answer = self._wire.ask(Api.END_TXN, version, transactional_id=self.name, committed=commit, **self.fields)
        return int(answer.error_code)

    def state(self) -> str:
        (found,) = self._wire.ask(Api.DESCRIBE_TRANSACTIONS, transactional_ids=[self.name]).transaction_states
        return str(found.transaction_state)

    def commit_offsets(self, version: int, **changed: int) -> int:
        partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
        fields = self.fields | changed | {"generation_id": -1, "member_id": ""}

        def answer() -> int | None:
            topics = self._wire.ask(
                Api.TXN_OFFSET_COMMIT,
                version,
                transactional_id=self.name,
                group_id="in-transactions",
                topics=[{"name": "orders", "partitions": partitions}],
                **fields,
            ).topics
            code: int = topics[0].partitions[0].error_code
            return None if code in NOT_READY else code + 1

        self._wire.ask(Api.FIND_COORDINATOR, 3, key="in-transactions", key_type=0)
        return int(until(answer, "the group's coordinator to answer", 30.0)) - 1  # type: ignore[call-overload]


def test_the_commit_of_a_transaction_that_timed_out_is_an_invalid_state(wire: KafkaWire) -> None:
    """Flink's committer goes on after INVALID_TXN_STATE, and fails its job after TRANSACTION_ABORTABLE, for ever."""
    invalid_txn_state, fenced = 48, 90
    late = Transaction(wire, "late", timeout_ms=100)
    late.add()
    until(lambda: late.state() == "CompleteAbort", "the transaction to time out", 30.0)
    assert late.end(5, commit=True) == invalid_txn_state
    assert late.end(4, commit=True) == fenced
    assert late.end(5, commit=False) == NONE


@pytest.mark.parametrize(("version", "code"), [(3, 48), (4, 120), (5, NONE)])
def test_offsets_without_a_transaction_are_refused_as_the_clients_version_knows(
    wire: KafkaWire, version: int, code: int
) -> None:
    """From version 5 on, the commit of offsets begins or joins the transaction (KIP-890)."""
    invalid_producer_epoch, invalid_producer_id_mapping = 47, 49
    empty, open_ = Transaction(wire, f"empty-{version}"), Transaction(wire, f"open-{version}")
    open_.add()
    for transaction in (empty, open_):
        epoch, stranger = transaction.fields["producer_epoch"], transaction.fields["producer_id"] + 100_000
        assert transaction.commit_offsets(version, producer_epoch=epoch + 1) == invalid_producer_epoch
        assert transaction.commit_offsets(version, producer_id=stranger) == invalid_producer_id_mapping
        assert transaction.commit_offsets(version) == code


def batches(count: int) -> bytes:
    return encode_batch([(1_700_000_000_000, None, b"x", [])]) * count


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_a_partition_gets_one_batch_of_a_produce_request(wire: KafkaWire, version: int) -> None:
    """Kafka answers 87 for a partition with several batches, and appends to the others of the request."""
    (described,) = wire.ask(Api.METADATA, topics=[{"name": "orders"}]).topics
    topic = {"name": "orders", "topic_id": described.topic_id}
    if version < 13:
        del topic["topic_id"]
    else:
        del topic["name"]
    parts = [{"index": 0, "records": batches(2)}, {"index": 1, "records": batches(1)}]
    answer = wire.ask(Api.PRODUCE, version, acks=-1, timeout=30_000, topic_data=[{**topic, "partition_data": parts}])
    (found,) = answer.responses
    assert [each.error_code for each in found.partition_responses] == [INVALID_RECORD, NONE]
    if version >= 8:
        assert "exactly one batch" in found.partition_responses[0].error_message


@pytest.mark.parametrize("count", [2, 10_000])
def test_an_unbatched_request_with_several_batches_is_refused_as_well(wire: KafkaWire, count: int) -> None:
    parts = [{"index": 0, "records": batches(count)}]
    topics = [{"name": "stock", "partition_data": parts}]
    (found,) = wire.ask(Api.PRODUCE, 12, acks=-1, timeout=30_000, topic_data=topics).responses
    assert found.partition_responses[0].error_code == INVALID_RECORD
    assert found.partition_responses[0].base_offset == -1


@pytest.mark.parametrize("acks", [1, -1])
def test_a_request_of_thousands_of_partitions_is_handled_in_portions(
    wire: KafkaWire, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker decoded and appended up to 30,000 partitions in one go. The next request of the connection still
    waits."""
    count, name = 3 * PORTION + 1, f"wide{acks}"
    assert create(wire, name, 1, 1) == NONE
    portions: list[int] = []
    sending = produce_path._Produce._send

    def counted(*arguments: Any) -> None:
        portions.append(len(arguments[-1]))
        sending(*arguments)

    monkeypatch.setattr(produce_path._Produce, "_send", counted)
    parts = [{"index": 0, "records": batches(1)} for _ in range(count)]
    frames = [
        request_frame(Api.PRODUCE, 9, number, acks=acks, timeout=30_000, topic_data=[{"name": name, **data}])
        for number, data in ((1, {"partition_data": parts}), (2, {"partition_data": parts[:1]}))
    ]
    wire._socket.sendall(b"".join(frames))
    answers = [read_answer(Api.PRODUCE, 9, wire._read(int.from_bytes(wire._read(4), "big"))) for _ in frames]
    assert [number for number, _ in answers] == [1, 2]
    found = [[each for topic in answer.responses for each in topic.partition_responses] for _, answer in answers]
    assert [each.error_code for each in found[0]] == [NONE] * count
    assert [each.base_offset for each in found[0]] == list(range(count))
    assert found[1][0].base_offset == count
    assert portions == [PORTION, PORTION, PORTION, 1], "the second request is plain"
