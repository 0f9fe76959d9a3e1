"""Kafka's request types: number, name, versions, and the version from which a type is flexible.

Numbers and versions come from kio's schema classes, which are generated from Kafka's own message definitions
(``clients/src/main/resources/common/message``), except for versions that Kafka marks as unstable.
"""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple


class Api(enum.IntEnum):
    """Request types of clients and tools, by Kafka's number; the name in lower case is kio's module."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81


class Versions(NamedTuple):
    """``low`` and ``high`` are the lowest and the highest version that Kafka 4.3 serves to clients; ``flexible``: the
    first version with compact lengths and tagged fields (KIP-482)."""

    low: int
    high: int
    flexible: int


_NEVER = 1 << 15

#: Leave out InitProducerId version 6 (KIP-939), because Kafka marks this version as unstable.
VERSIONS: dict[Api, Versions] = {
    Api.PRODUCE: Versions(3, 13, 9),
    Api.FETCH: Versions(4, 18, 12),
    Api.LIST_OFFSETS: Versions(1, 11, 6),
    Api.METADATA: Versions(0, 13, 9),
    Api.OFFSET_COMMIT: Versions(2, 10, 8),
    Api.OFFSET_FETCH: Versions(1, 10, 6),
    Api.FIND_COORDINATOR: Versions(0, 6, 3),
    Api.JOIN_GROUP: Versions(0, 9, 6),
    Api.HEARTBEAT: Versions(0, 4, 4),
    Api.LEAVE_GROUP: Versions(0, 5, 4),
    Api.SYNC_GROUP: Versions(0, 5, 4),
    Api.DESCRIBE_GROUPS: Versions(0, 6, 5),
    Api.LIST_GROUPS: Versions(0, 5, 3),
    Api.SASL_HANDSHAKE: Versions(0, 1, _NEVER),
    Api.API_VERSIONS: Versions(0, 4, 3),
    Api.CREATE_TOPICS: Versions(2, 7, 5),
    Api.DELETE_TOPICS: Versions(1, 6, 4),
    Api.DELETE_RECORDS: Versions(0, 2, 2),
    Api.INIT_PRODUCER_ID: Versions(0, 5, 2),
    Api.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4, 4),
    Api.ADD_PARTITIONS_TO_TXN: Versions(0, 5, 3),
    Api.ADD_OFFSETS_TO_TXN: Versions(0, 4, 3),
    Api.END_TXN: Versions(0, 5, 3),
    Api.WRITE_TXN_MARKERS: Versions(1, 2, 1),
    Api.TXN_OFFSET_COMMIT: Versions(0, 5, 3),
    Api.DESCRIBE_ACLS: Versions(1, 3, 2),
    Api.CREATE_ACLS: Versions(1, 3, 2),
    Api.DELETE_ACLS: Versions(1, 3, 2),
    Api.DESCRIBE_CONFIGS: Versions(1, 4, 4),
    Api.ALTER_CONFIGS: Versions(0, 2, 2),
    Api.ALTER_REPLICA_LOG_DIRS: Versions(1, 2, 2),
    Api.DESCRIBE_LOG_DIRS: Versions(1, 5, 2),
    Api.SASL_AUTHENTICATE: Versions(0, 2, 2),
    Api.CREATE_PARTITIONS: Versions(0, 3, 2),
    Api.CREATE_DELEGATION_TOKEN: Versions(1, 3, 2),
    Api.RENEW_DELEGATION_TOKEN: Versions(1, 2, 2),
    Api.EXPIRE_DELEGATION_TOKEN: Versions(1, 2, 2),
    Api.DESCRIBE_DELEGATION_TOKEN: Versions(1, 3, 2),
    Api.DELETE_GROUPS: Versions(0, 2, 2),
    Api.ELECT_LEADERS: Versions(0, 2, 2),
    Api.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1, 1),
    Api.ALTER_PARTITION_REASSIGNMENTS: Versions(0, 1, 0),
    Api.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0, 0),
    Api.OFFSET_DELETE: Versions(0, 0, _NEVER),
    Api.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1, 1),
    Api.ALTER_CLIENT_QUOTAS: Versions(0, 1, 1),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    Api.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    Api.DESCRIBE_QUORUM: Versions(0, 2, 0),
    Api.UPDATE_FEATURES: Versions(0, 2, 0),
    Api.DESCRIBE_CLUSTER: Versions(0, 2, 0),
    Api.DESCRIBE_PRODUCERS: Versions(0, 0, 0),
    Api.UNREGISTER_BROKER: Versions(0, 0, 0),
    Api.DESCRIBE_TRANSACTIONS: Versions(0, 0, 0),
    Api.LIST_TRANSACTIONS: Versions(0, 2, 0),
    Api.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1, 0),
    Api.CONSUMER_GROUP_DESCRIBE: Versions(0, 1, 0),
    Api.GET_TELEMETRY_SUBSCRIPTIONS: Versions(0, 0, 0),
    Api.PUSH_TELEMETRY: Versions(0, 0, 0),
    Api.LIST_CONFIG_RESOURCES: Versions(0, 1, 0),
    Api.DESCRIBE_TOPIC_PARTITIONS: Versions(0, 0, 0),
    Api.ADD_RAFT_VOTER: Versions(0, 1, 0),
    Api.REMOVE_RAFT_VOTER: Versions(0, 0, 0),
}


def is_flexible(api: Api, version: int) -> bool:
    """Whether messages of this version have compact lengths and tagged fields (KIP-482)."""
    return version >= VERSIONS[api].flexible


@functools.cache
def title(api: Api) -> str:
    """Kafka's name of a request type, such as ``ListOffsets`` for LIST_OFFSETS."""
    return "".join(word.capitalize() for word in api.name.split("_"))
