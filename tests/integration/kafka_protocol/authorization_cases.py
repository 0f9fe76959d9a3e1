"""Requests and principals, for a comparison of a broker with Kafka's authorizer. Both systems get the same requests in
the same order, and ``outline`` keeps of an answer what must be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import NO_UUID, Message

TOPIC, ABSENT, GROUP, TRANSACTION = "orders", "absent", "readers", "payments"
CLUSTER = "kafka-cluster"
PASSWORD = "secret"
ROOT = "root"
UNKNOWN_ID = bytes(range(16))
NEW_TOPIC = "orders-new"


@dataclass(frozen=True)
class Right:
    """An access control entry that allows (or denies) an operation."""

    operation: Operation
    kind: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL
    permission: Permission = Permission.ALLOW
    host: str = "*"


def rights(kind: ResourceType, name: str, *operations: Operation, prefixed: bool = False) -> list[Right]:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return [Right(operation, kind, name, pattern) for operation in operations]


_T, _G, _C, _X = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_O = Operation

#: The users besides ROOT, who is a super user, and their rights.
USERS: Mapping[str, list[Right]] = {
    "nobody": [],
    "reader": rights(_T, TOPIC, _O.READ) + rights(_G, GROUP, _O.READ),
    "writer": rights(_T, TOPIC, _O.WRITE) + rights(_X, TRANSACTION, _O.WRITE),
    "worker": rights(_T, "*", _O.READ, _O.WRITE) + rights(_G, "*", _O.READ) + rights(_X, "*", _O.WRITE),
    "watcher": rights(_T, "*", _O.DESCRIBE, _O.DESCRIBE_CONFIGS)
    + rights(_G, "*", _O.DESCRIBE)
    + rights(_X, "*", _O.DESCRIBE)
    + rights(_C, CLUSTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS),
    "maker": rights(_T, TOPIC, _O.CREATE, _O.ALTER, _O.DELETE, _O.ALTER_CONFIGS, prefixed=True),
    "cleaner": rights(_G, GROUP, _O.DELETE) + rights(_T, TOPIC, _O.DELETE, _O.READ),
    "owner": rights(_C, CLUSTER, _O.ALL),
    "altering": rights(_C, CLUSTER, _O.ALTER),
    "configuring": rights(_C, CLUSTER, _O.ALTER_CONFIGS),
    "creating": rights(_C, CLUSTER, _O.CREATE, _O.DELETE, _O.IDEMPOTENT_WRITE),
    "acting": rights(_C, CLUSTER, _O.CLUSTER_ACTION),
    "denied": [
        *rights(_T, "*", _O.ALL),
        *rights(_G, "*", _O.ALL),
        *rights(_X, "*", _O.ALL),
        Right(_O.DESCRIBE, _T, TOPIC, permission=Permission.DENY),
        Right(_O.READ, _G, "read", PatternType.PREFIXED, Permission.DENY),
        Right(_O.WRITE, _X, TRANSACTION, permission=Permission.DENY),
    ],
    "elsewhere": [Right(_O.ALL, _T, "*", host="10.9.8.7"), Right(_O.ALL, _G, "*", host="10.0.0.0/8")],
}


@dataclass(frozen=True)
class Case:
    """A request. ``fields`` gets the topic ids by name. ``keep`` may drop parts of the answer."""

    name: str
    api: Api
    version: int | None
    fields: Callable[[Mapping[str, bytes]], dict[str, Any]]
    keep: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda answer: answer)


def batch(*, transactional: bool = False) -> bytes:
    """A batch of one record."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=7 if transactional else -1,
        producer_epoch=0 if transactional else -1,
        base_sequence=0 if transactional else -1,
        batch_size=1_024,
    )
    builder.append(0, 1_700_000_000_000, b"k", b"v", [])
    return bytes(builder.build())


def _partitions(name: str, index: str = "partition_index", **more: Any) -> list[dict[str, Any]]:
    return [{name: topic, "partitions": [{index: 0, **more}]} for topic in (TOPIC, ABSENT)]


def _produced(key: str, values: list[Any], **more: Any) -> dict[str, Any]:
    transactional = "transactional_id" in more
    records = batch(transactional=transactional)
    return {
        "acks": -1,
        "timeout": 5_000,
        "topic_data": [{key: value, "partition_data": [{"index": 0, "records": records}]} for value in values],
        **more,
    }


def _fetched(key: str, values: list[Any]) -> dict[str, Any]:
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1_000,
        "session_epoch": -1,
        "topics": [
            {
                key: value,
                "partitions": [
                    {
                        "partition": 0,
                        "fetch_offset": 0,
                        "partition_max_bytes": 1_000,
                        "current_leader_epoch": -1,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                    }
                ],
            }
            for value in values
        ],
    }


def _committed(**more: Any) -> list[dict[str, Any]]:
    return _partitions("name", committed_offset=0, committed_leader_epoch=-1, committed_metadata="", **more)


#: The filter of the entry that the case "create acls" creates.
EXTRA_ENTRY = {
    "resource_type_filter": 2,
    "resource_name_filter": "extra",
    "pattern_type_filter": 3,
    "principal_filter": "User:zoe",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def cases(user: str) -> Iterator[Case]:
    """All requests of one user, in order."""

    def case(name: str, api: Api, version: int | None = None, /, **fields: Any) -> Case:
        return Case(name, api, version, lambda ids: fields)

    def by_id(
        name: str, api: Api, version: int | None, fields: Callable[[Mapping[str, bytes]], dict[str, Any]]
    ) -> Case:
        return Case(name, api, version, fields)

    names = [{"name": name, "topic_id": NO_UUID} for name in (TOPIC, ABSENT)]
    with_operations = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
    yield case("metadata by name", Api.METADATA, topics=names, **with_operations)
    yield case("metadata of all", Api.METADATA, topics=None, **with_operations)
    yield case("metadata v0", Api.METADATA, 0, topics=[])
    yield by_id(
        "metadata by id",
        Api.METADATA,
        13,
        lambda ids: {
            "topics": [{"name": None, "topic_id": each} for each in (ids[TOPIC], UNKNOWN_ID)],
            "allow_auto_topic_creation": False,
        },
    )
    yield case(
        "metadata creates",
        Api.METADATA,
        topics=[{"name": "a new one", "topic_id": NO_UUID}],
        allow_auto_topic_creation=True,
    )
    yield case("metadata v10", Api.METADATA, 10, topics=[], include_cluster_authorized_operations=True)
    yield case("describe cluster", Api.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1)
    some = [{"name": TOPIC}, {"name": ABSENT}]
    yield case("topic partitions", Api.DESCRIBE_TOPIC_PARTITIONS, topics=some, response_partition_limit=2_000)
    yield case("topic partitions of all", Api.DESCRIBE_TOPIC_PARTITIONS, topics=[], response_partition_limit=2_000)
    for kind, key in ((0, GROUP), (1, TRANSACTION)):
        yield case(f"coordinators {kind}", Api.FIND_COORDINATOR, 6, key_type=kind, coordinator_keys=[key, "other"])
        yield case(f"coordinator {kind}", Api.FIND_COORDINATOR, 3, key_type=kind, key=key)
    yield case(
        "list offsets",
        Api.LIST_OFFSETS,
        replica_id=-1,
        topics=_partitions("name", timestamp=-1, current_leader_epoch=-1),
    )
    yield case(
        "end of epoch",
        Api.OFFSET_FOR_LEADER_EPOCH,
        replica_id=-1,
        topics=_partitions("topic", "partition", leader_epoch=0, current_leader_epoch=-1),
    )
    yield Case("produce by name", Api.PRODUCE, 12, lambda ids: _produced("name", [TOPIC, ABSENT]))
    yield Case("produce by id", Api.PRODUCE, 13, lambda ids: _produced("topic_id", [ids[TOPIC], UNKNOWN_ID]))
    if user not in (ROOT, "writer", "worker"):  # its sequence numbers end the transaction's other requests
        yield Case(
            "produce in a transaction",
            Api.PRODUCE,
            12,
            lambda ids: _produced("name", [TOPIC], transactional_id=TRANSACTION),
        )
    yield Case("fetch by name", Api.FETCH, 12, lambda ids: _fetched("topic", [TOPIC, ABSENT]))
    yield Case("fetch by id", Api.FETCH, None, lambda ids: _fetched("topic_id", [ids[TOPIC], UNKNOWN_ID]))
    yield case(
        "init producer",
        Api.INIT_PRODUCER_ID,
        transactional_id=None,
        transaction_timeout=1_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    yield case(
        "init transaction",
        Api.INIT_PRODUCER_ID,
        transactional_id=TRANSACTION,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    for topics in ([TOPIC], [TOPIC, ABSENT], ["__consumer_offsets"]):
        yield case(
            f"add partitions {topics}",
            Api.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=99,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in topics],
        )
    yield case(
        "add offsets",
        Api.ADD_OFFSETS_TO_TXN,
        transactional_id=TRANSACTION,
        producer_id=99,
        producer_epoch=0,
        group_id=GROUP,
    )
    yield case(
        "end transaction", Api.END_TXN, transactional_id=TRANSACTION, producer_id=99, producer_epoch=0, committed=False
    )
    yield case(
        "commit in a transaction",
        Api.TXN_OFFSET_COMMIT,
        transactional_id=TRANSACTION,
        group_id=GROUP,
        producer_id=99,
        producer_epoch=0,
        generation_id=3,
        member_id="stranger",
        topics=_committed(),
    )
    yield case(
        "commit",
        Api.OFFSET_COMMIT,
        9,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=_committed(),
    )
    yield by_id(
        "commit by id",
        Api.OFFSET_COMMIT,
        10,
        lambda ids: {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "topic_id": each,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 0,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
                for each in (ids[TOPIC], UNKNOWN_ID)
            ],
        },
    )
    wanted = [{"name": topic, "partition_indexes": [0]} for topic in (TOPIC, ABSENT)]
    yield case(
        "offsets",
        Api.OFFSET_FETCH,
        9,
        groups=[{"group_id": GROUP, "topics": wanted}, {"group_id": "other", "topics": wanted}],
    )
    yield by_id(
        "offsets by id",
        Api.OFFSET_FETCH,
        10,
        lambda ids: {
            "groups": [
                {
                    "group_id": GROUP,
                    "topics": [{"topic_id": each, "partition_indexes": [0]} for each in (ids[TOPIC], UNKNOWN_ID)],
                }
            ]
        },
    )
    yield case("all offsets", Api.OFFSET_FETCH, 8, groups=[{"group_id": GROUP, "topics": None}])
    yield case("offsets v1", Api.OFFSET_FETCH, 1, group_id=GROUP, topics=wanted)
    yield case("offsets v5", Api.OFFSET_FETCH, 5, group_id=GROUP, topics=wanted)
    yield case("delete offsets", Api.OFFSET_DELETE, group_id="none", topics=_partitions("name"))
    member = {"group_id": GROUP, "member_id": "stranger"}
    yield case(
        "join",
        Api.JOIN_GROUP,
        **member,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    yield case(
        "sync",
        Api.SYNC_GROUP,
        **member,
        generation_id=3,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    yield case("heartbeat", Api.HEARTBEAT, **member, generation_id=3)
    yield case("leave", Api.LEAVE_GROUP, group_id=GROUP, members=[{"member_id": "stranger"}])
    some_topics: list[str] | None
    for some_topics in (None, [TOPIC, ABSENT]):
        yield case(
            f"KIP-848 heartbeat {some_topics}",
            Api.CONSUMER_GROUP_HEARTBEAT,
            group_id=GROUP,
            member_id="stranger",
            member_epoch=5,
            rebalance_timeout=-1,
            subscribed_topic_names=some_topics,
            topic_partitions=None,
        )
    yield case("describe groups", Api.DESCRIBE_GROUPS, groups=[GROUP, "other"], include_authorized_operations=True)
    yield case(
        "describe KIP-848 groups",
        Api.CONSUMER_GROUP_DESCRIBE,
        group_ids=[GROUP, "other"],
        include_authorized_operations=True,
    )
    yield case("list groups", Api.LIST_GROUPS, states_filter=[], types_filter=[])
    yield case("delete groups", Api.DELETE_GROUPS, groups_names=["none", "readers-gone"])
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    yield case(
        "create topics",
        Api.CREATE_TOPICS,
        validate_only=True,
        timeout=5_000,
        topics=[{"name": NEW_TOPIC, **new}, {"name": "other", **new}, {"name": TOPIC, **new}],
    )
    yield case(
        "create partitions",
        Api.CREATE_PARTITIONS,
        validate_only=True,
        timeout=5_000,
        topics=[{"name": TOPIC, "count": 5, "assignments": None}, {"name": ABSENT, "count": 5, "assignments": None}],
    )
    kinds = ((2, TOPIC), (2, ABSENT), (4, "1"))
    yield case(
        "describe configs",
        Api.DESCRIBE_CONFIGS,
        include_synonyms=False,
        include_documentation=False,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": ["none"]} for kind, name in kinds
        ],
    )
    yield case(
        "alter configs",
        Api.INCREMENTAL_ALTER_CONFIGS,
        validate_only=True,
        resources=[
            {
                "resource_type": 2,
                "resource_name": name,
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}],
            }
            for name in (TOPIC, ABSENT)
        ],
    )
    yield case(
        "alter a broker's configs",
        Api.INCREMENTAL_ALTER_CONFIGS,
        validate_only=True,
        resources=[
            {
                "resource_type": 4,
                "resource_name": "",
                "configs": [{"name": "message.max.bytes", "config_operation": 0, "value": "200000"}],
            }
        ],
    )
    yield case(
        "replace configs",
        Api.ALTER_CONFIGS,
        validate_only=True,
        resources=[
            {"resource_type": 2, "resource_name": name, "configs": [{"name": "retention.ms", "value": "1000"}]}
            for name in (TOPIC, ABSENT)
        ],
    )
    yield case("config resources", Api.LIST_CONFIG_RESOURCES, resource_types=[2])
    yield case(
        "elect",
        Api.ELECT_LEADERS,
        election_type=0,
        timeout=5_000,
        topic_partitions=[{"topic": TOPIC, "partitions": [0]}],
    )
    yield case(
        "reassign",
        Api.ALTER_PARTITION_REASSIGNMENTS,
        timeout=5_000,
        topics=[{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
    )
    yield case("reassignments", Api.LIST_PARTITION_REASSIGNMENTS, timeout=5_000, topics=None)
    yield case("log dirs", Api.DESCRIBE_LOG_DIRS, 3, topics=[])
    yield case(
        "move replicas",
        Api.ALTER_REPLICA_LOG_DIRS,
        dirs=[{"path": "/none", "topics": [{"name": TOPIC, "partitions": [0]}]}],
    )
    yield case(
        "quorum",
        Api.DESCRIBE_QUORUM,
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    )
    yield case("unregister", Api.UNREGISTER_BROKER, broker_id=99)
    yield case(
        "write markers",
        Api.WRITE_TXN_MARKERS,
        1,
        markers=[
            {
                "producer_id": 99,
                "producer_epoch": 0,
                "transaction_result": False,
                "coordinator_epoch": 0,
                "topics": [{"name": ABSENT, "partition_indexes": [0]}],
            }
        ],
    )
    yield case(
        "producers",
        Api.DESCRIBE_PRODUCERS,
        topics=[{"name": topic, "partition_indexes": [0]} for topic in (TOPIC, ABSENT)],
    )
    yield case("transactions", Api.DESCRIBE_TRANSACTIONS, transactional_ids=[TRANSACTION, "other"])
    yield case("list transactions", Api.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[], duration_filter=-1)
    yield case("delete records", Api.DELETE_RECORDS, timeout=5_000, topics=_partitions("name", offset=0))
    entry = {
        "resource_type": 2,
        "resource_name": "extra",
        "resource_pattern_type": 3,
        "principal": "User:zoe",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    yield case("create acls", Api.CREATE_ACLS, creations=[entry, {**entry, "principal": "no colon"}])
    yield case("describe acls", Api.DESCRIBE_ACLS, **EXTRA_ENTRY)
    yield case("delete acls", Api.DELETE_ACLS, filters=[EXTRA_ENTRY])
    yield case("describe users", Api.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "ghost"}])
    yield case(
        "alter users", Api.ALTER_USER_SCRAM_CREDENTIALS, upsertions=[], deletions=[{"name": "ghost", "mechanism": 1}]
    )
    yield case(
        "describe quotas",
        Api.DESCRIBE_CLIENT_QUOTAS,
        strict=False,
        components=[{"entity_type": "user", "match_type": 0, "match": "ghost"}],
    )
    yield case(
        "alter quotas",
        Api.ALTER_CLIENT_QUOTAS,
        validate_only=True,
        entries=[
            {
                "entity": [{"entity_type": "user", "entity_name": "ghost"}],
                "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
            }
        ],
    )
    yield case(
        "create a token",
        Api.CREATE_DELEGATION_TOKEN,
        owner_principal_type="",
        owner_principal_name="",
        renewers=[],
        max_lifetime=-1,
    )
    yield case(
        "create another's token",
        Api.CREATE_DELEGATION_TOKEN,
        owner_principal_type="User",
        owner_principal_name="zoe",
        renewers=[],
        max_lifetime=-1,
    )
    yield case("renew a token", Api.RENEW_DELEGATION_TOKEN, hmac=b"none", renew_period=-1)
    yield case("expire a token", Api.EXPIRE_DELEGATION_TOKEN, hmac=b"none", expiry_time_period=-1)
    yield case("describe no tokens", Api.DESCRIBE_DELEGATION_TOKEN, owners=[])
    yield case(
        "update features",
        Api.UPDATE_FEATURES,
        timeout=5_000,
        validate_only=True,
        feature_updates=[{"feature": "none.version", "max_version_level": 1, "upgrade_type": 1}],
    )
    yield case(
        "delete topics",
        Api.DELETE_TOPICS,
        timeout=5_000,
        topics=[
            {"name": f"{TOPIC}-doomed-{user}", "topic_id": NO_UUID},
            {"name": ABSENT, "topic_id": NO_UUID},
            {"name": f"{TOPIC}-absent", "topic_id": NO_UUID},
        ],
    )
    yield by_id(
        "delete topics by id",
        Api.DELETE_TOPICS,
        6,
        lambda ids: {
            "timeout": 5_000,
            "topics": [{"name": None, "topic_id": ids[f"{TOPIC}-lost-{user}"]}, {"name": None, "topic_id": UNKNOWN_ID}],
        },
    )
    yield case("handshake again", Api.SASL_HANDSHAKE, mechanism="PLAIN")
    yield case("authenticate again", Api.SASL_AUTHENTICATE, auth_bytes=b"")


#: Fields that name an item or judge it. All others are counts, ids, times and texts of one system.
_KEPT = frozenset(
    [
        "name",
        "topic",
        "topics",
        "group_id",
        "groups",
        "transactional_id",
        "transaction_states",
        "key",
        "coordinators",
        "index",
        "partition_index",
        "partition",
        "partition_id",
        "partitions",
        "partition_responses",
        "responses",
        "results",
        "results_by_topic_v3_and_below",
        "results_by_partition",
        "topic_authorized_operations",
        "cluster_authorized_operations",
        "authorized_operations",
        "user",
        "resource_type",
        "resource_name",
        "resources",
        "config_resources",
        "acls",
        "principal",
        "operation",
        "host",
        "filter_results",
        "matching_acls",
        "entries",
        "entity",
        "entity_type",
        "entity_name",
        "mechanisms",
        "replica_election_results",
        "partition_result",
        "markers",
        "topic_name",
        "group_state",
        "members",
        "member_id",
    ]
)


def outline(answer: Message) -> Any:
    """What of an answer must be equal: names, authorized operations, and error codes at each level. Lists are sorted;
    internal topics without an error are left out, because each system creates its own at its own time."""
    return _outline(answer)


def _outline(value: Any) -> Any:
    if isinstance(value, Message):
        value = vars(value)
    if isinstance(value, dict):
        return {
            name: _outline(each)
            for name, each in sorted(value.items())
            if name in _KEPT or name.endswith("error_code") or name == "error_code"
        }
    if isinstance(value, list):
        found = [_outline(each) for each in value]
        shown = [each for each in found if not (isinstance(each, dict) and _is_internal(each)) or any(codes(each))]
        return sorted(shown, key=repr)
    return value


def _is_internal(item: dict[str, Any]) -> bool:
    return any(str(item.get(name, "")).startswith("__") for name in ("name", "topic", "resource_name", "topic_name"))


def codes(value: Any) -> Iterator[int]:
    """All error codes of an outline."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("error_code"):
                yield each
            else:
                yield from codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from codes(each)
