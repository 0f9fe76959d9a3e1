"""Size limits of requests: a table with every call, and the check of a request's bytes against the table.

A listener checks a request before it parses the request (see receiving.py). Parsing 14 MiB of unknown topic names would
block the event loop for seconds, and two encoded bytes can become an object of a hundred bytes. A test fails if the
table lacks a repeated field. The page docs/reference/limits.md describes the table of limits.

The check of a request reads only field headers (https://protobuf.dev/programming-guides/encoding/) and stops at the
first limit that is exceeded. A message may have some more fields than it defines (UNKNOWN_FIELDS_MAX), because a newer
client may send fields that this release does not know. So a request cannot hold up the event loop with millions of
fields that have no limit of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import HeadraceError, InvalidRequestError
from ..sinks import TASKS_MAX
from ._limits import Count, Plan

Item = TypeVar("Item")

KIB, MIB = 1024, 1024 * 1024
ITEMS_MAX = 10_000  #: Maximum number of items of one kind in a request, unless LIMITS has a different maximum.
#: Maximum number of bytes of one name (topic, group, member, host), which is Kafka's maximum length of a string.
NAME_BYTES_MAX = 32_767
REQUEST_BYTES_MAX = 8 * MIB  #: Maximum number of bytes of one request, unless LIMITS has a different maximum.
#: Maximum number of partitions in a request that the event loop handles without a pause: Produce, Fetch, DeleteRecords,
#: and all requests for committed offsets. Kafka limits the bytes of such requests, but not their partitions. 2,000 is
#: Kafka's limit for a response to DescribeTopicPartitions (max.request.partition.size.limit, KIP-966).
PARTITIONS_MAX = 2_000
#: Maximum number of bytes of a request that commits offsets. The records of a commit must fit into one batch, of at
#: most 1,000,000 bytes, and each record is larger than its offset in the request.
COMMIT_BYTES_MAX = 1 * MIB
#: Maximum bytes of records that a producer combines in one Produce request, even if max.request.size is larger; the
#: producer sends a larger batch alone. REQUEST_RECORDS_BYTES is the default of socket.request.max.bytes.
REQUEST_RECORDS_BYTES = 16 * MIB
#: Number of fields that each message of a request may have beyond those that it defines. Repeated fields of the table
#: do not count.
UNKNOWN_FIELDS_MAX = 16
#: Limit for a Produce request, far above socket.request.max.bytes, which the listener enforces (see server.py).
_BULK = 1 << 31


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one call. ``items``: the limit of items in a request, by the dotted path of the repeated field."""

    items: Mapping[str, int] = field(default_factory=dict)
    bytes_max: int = REQUEST_BYTES_MAX


def _items(*paths: str, most: int = ITEMS_MAX, **more: int) -> dict[str, int]:
    return {**dict.fromkeys(paths, most), **more}


_NONE = RequestLimits(bytes_max=64 * KIB)

#: Limits by "Service/Method", for every call of every listener, also of internal listeners.
LIMITS: Mapping[str, RequestLimits] = {
    "Metadata/GetMetadata": RequestLimits(_items("topics")),
    "Metadata/WatchMetadata": RequestLimits(_items("topics")),
    "Metadata/FindCoordinator": RequestLimits(_items("keys", most=1_000)),
    "Produce/Produce": RequestLimits(_items("partitions", most=PARTITIONS_MAX), _BULK),
    "Produce/InitProducerId": _NONE,
    "Fetch/Fetch": RequestLimits(_items("partitions", "forgotten", most=PARTITIONS_MAX), 1 * MIB),
    "Offsets/ListOffsets": RequestLimits(_items("partitions")),
    "Offsets/OffsetForLeaderEpoch": RequestLimits(_items("partitions")),
    "Offsets/DeleteRecords": RequestLimits(_items("partitions", most=PARTITIONS_MAX)),
    "Groups/Membership": RequestLimits(
        {
            "heartbeat.topics.names": 10_000,
            "heartbeat.owned.topics": 10_000,
            "heartbeat.owned.topics.partitions": 100_000,
        }
    ),
    "Groups/Heartbeat": RequestLimits(
        {
            "heartbeat.topics.names": 10_000,
            "heartbeat.owned.topics": 10_000,
            "heartbeat.owned.topics.partitions": 100_000,
        }
    ),
    "Groups/JoinGroup": RequestLimits({"protocols": 100}, 1 * MIB),
    "Groups/SyncGroup": RequestLimits({"assignments": ITEMS_MAX}),
    "Groups/ClassicHeartbeat": _NONE,
    "Groups/LeaveGroup": RequestLimits({"members": ITEMS_MAX}),
    "Groups/CommitOffsets": RequestLimits(_items("offsets", most=PARTITIONS_MAX), COMMIT_BYTES_MAX),
    "Groups/FetchOffsets": RequestLimits({"groups": 1_000, "groups.partitions.partitions": PARTITIONS_MAX}),
    "Groups/DeleteOffsets": RequestLimits(_items("partitions", most=PARTITIONS_MAX)),
    "Groups/ListGroups": RequestLimits({"states": 100}),
    "Groups/DescribeGroups": RequestLimits({"group_ids": 1_000}),
    "Groups/DescribeLag": RequestLimits({"group_ids": 1_000}),
    "Groups/DeleteGroups": RequestLimits({"group_ids": 1_000}),
    "Groups/RemoveMembers": RequestLimits({"member_ids": ITEMS_MAX}),
    "Groups/ExplainGroup": _NONE,
    "Transactions/InitProducer": _NONE,
    "Transactions/AddTransactionPartitions": RequestLimits(_items("partitions")),
    "Transactions/EndTransaction": _NONE,
    "Transactions/PrepareTransaction": _NONE,
    "Transactions/CompleteTransaction": _NONE,
    "Transactions/CommitTransactionOffsets": RequestLimits(_items("offsets", most=PARTITIONS_MAX), COMMIT_BYTES_MAX),
    "Transactions/ListTransactions": RequestLimits({"states": 100, "producer_ids": ITEMS_MAX}),
    "Transactions/DescribeTransactions": RequestLimits({"transactional_ids": 1_000}),
    "Transactions/AbortTransaction": _NONE,
    "Transactions/CommitSinkBatch": RequestLimits(_items("tokens", most=TASKS_MAX)),
    "Transactions/AbortSinkBatch": _NONE,
    "Transactions/DescribeSink": _NONE,
    "Producers/DescribeProducers": RequestLimits(_items("partitions", most=PARTITIONS_MAX)),
    "Producers/AbortHangingTransaction": _NONE,
    "TransactionPartitions/AddPartitions": RequestLimits(
        _items("requests", "requests.partitions", most=PARTITIONS_MAX)
    ),
    "TransactionMarkers/WriteMarkers": RequestLimits(_items("requests", "requests.partitions", most=PARTITIONS_MAX)),
    "Admin/CreateTopics": RequestLimits(
        {
            "topics": ITEMS_MAX,
            "topics.configs": 100_000,
            "topics.assignments": 100_000,
            "topics.assignments.broker_ids": 500_000,
        }
    ),
    "Admin/DeleteTopics": RequestLimits(_items("topics")),
    "Admin/CreatePartitions": RequestLimits(
        {"topics": ITEMS_MAX, "topics.assignments": 100_000, "topics.assignments.broker_ids": 500_000}
    ),
    "Admin/DescribeConfigs": RequestLimits(_items("resources", most=1_000)),
    "Admin/AlterConfigs": RequestLimits({"resources": ITEMS_MAX, "resources.ops": 100_000}),
    "Admin/DescribeLogDirs": RequestLimits({"topics": ITEMS_MAX, "topics.partitions": 100_000}),
    "Admin/AlterReplicaLogDirs": RequestLimits(
        _items("directories", "directories.topics", "directories.topics.partitions")
    ),
    "Admin/ElectLeaders": RequestLimits(_items("partitions", "partitions.partitions")),
    "Admin/AlterPartitionReassignments": RequestLimits({"reassignments": ITEMS_MAX, "reassignments.replicas": 500_000}),
    "Admin/ListPartitionReassignments": RequestLimits(_items("partitions", "partitions.partitions")),
    "Admin/UpdateFeatures": RequestLimits({"updates": 100}),
    "Admin/DrainBroker": _NONE,
    "Admin/UnregisterBroker": _NONE,
    "Admin/DescribeFeatures": _NONE,
    "Admin/DescribeQuorum": _NONE,
    "Admin/AddRaftVoter": _NONE,
    "Admin/RemoveRaftVoter": _NONE,
    "Admin/TransferLeadership": _NONE,
    "Authentication/Authenticate": _NONE,
    "Security/DescribeAcls": _NONE,
    "Security/CreateAcls": RequestLimits(_items("entries")),
    "Security/DeleteAcls": RequestLimits(_items("filters", most=1_000)),
    "Security/DescribeUserScramCredentials": RequestLimits(_items("users")),
    "Security/AlterUserScramCredentials": RequestLimits(_items("upsertions", "deletions", most=1_000)),
    "Security/DescribeClientQuotas": RequestLimits({"parts": 10}, 64 * KIB),
    "Security/AlterClientQuotas": RequestLimits(
        {"alterations": 1_000, "alterations.entity": 3_000, "alterations.operations": 5_000}
    ),
    "Security/CreateDelegationToken": RequestLimits({"renewers": 1_000}, 1 * MIB),
    "Security/RenewDelegationToken": _NONE,
    "Security/ExpireDelegationToken": _NONE,
    "Security/DescribeDelegationTokens": RequestLimits(_items("owners")),
    "Cluster/RegisterBroker": RequestLimits(
        {"directory_ids": 1_000, "endpoints": 100, "features": 100, "directory_epochs": 1_000}, 1 * MIB
    ),
    "Cluster/BrokerHeartbeat": RequestLimits(
        {"offline_log_dirs": 1_000, "cannot_lead": 1_001, "lacking_leaders": 1_000}, 1 * MIB
    ),
    "Cluster/AssignReplicasToDirs": RequestLimits(
        {"directories": 1_000, "directories.topics": ITEMS_MAX, "directories.topics.partitions": 100_000}
    ),
    "Cluster/AlterPartition": RequestLimits(
        {"topics": ITEMS_MAX, "topics.partitions": ITEMS_MAX, "topics.partitions.isr": 100_000}
    ),
    "Cluster/CreateInternalTopic": _NONE,
    "Cluster/FollowMetadata": _NONE,
    "Cluster/ReadIndex": _NONE,
    "Cluster/VouchMetadata": _NONE,
    "Cluster/AllocateProducerIds": _NONE,
    "Cluster/RegisterController": RequestLimits({"features": 100}, 1 * MIB),
    "Cluster/RegisterCoordinator": RequestLimits({"endpoints": 100}, 1 * MIB),
    "Cluster/CoordinatorHeartbeat": _NONE,
    "Raft/Exchange": RequestLimits(
        {
            "messages": 100_000,
            "messages.append_request.entries": 100_000,
            "messages.append_request.entries.voters": 100_000,
            "messages.snapshot_request.voters": 100_000,
            "later_messages": 100_000,
            "later_messages.append_request.entries": 100_000,
            "later_messages.append_request.entries.voters": 100_000,
            "later_messages.snapshot_request.voters": 100_000,
        },
        _BULK,
    ),
    "Replication/Follow": RequestLimits(_items("joins", "leaves", "acks", "cannot_append", most=200_000), 32 * MIB),
    "Node/DescribeNode": _NONE,
}


def limit_of(method: str, path: str) -> int:
    """Return how many items at ``path`` one request of ``method`` may have."""
    return LIMITS[method].items[path]


def pages(items: Sequence[Item], most: int = ITEMS_MAX) -> Iterator[Sequence[Item]]:
    """Split ``items`` into parts that fit into a request each; without items, yield one empty part."""
    for start in range(0, max(len(items), 1), most):
        yield items[start : start + most]


class RequestCheck:
    """Checks the bytes of one call's requests against the call's limits. ``descriptor``: descriptor of the request
    message."""

    def __init__(self, method: str, descriptor: Any) -> None:
        """``method``: "Service/Method". Raises LookupError for a call that is not in the table, because such a call
        must not be served."""
        if method not in LIMITS:
            raise LookupError(f"{method} has no limits: add its row to LIMITS, run tools/limits_docs.py generate")
        self._method = method
        self._limits = LIMITS[method]
        self._paths = tuple(self._limits.items)
        self._most = tuple(self._limits.items.values())
        self._plan = _plan_of(descriptor, "", {path: index for index, path in enumerate(self._paths)})
        self._fields = len(descriptor.fields) + UNKNOWN_FIELDS_MAX
        #: A request of at most this size is within all limits, because each of its items has at least one byte.
        self.unchecked_bytes = min(*self._most, NAME_BYTES_MAX, self._limits.bytes_max)

    def __call__(self, data: bytes) -> HeadraceError | None:
        """Return the error of a request with the bytes ``data``; None if no error is visible without parsing."""
        limits, size = self._limits, len(data)
        if size > limits.bytes_max:
            return InvalidRequestError(
                f"{self._method}: the request has {size} bytes, at most {limits.bytes_max} are accepted; "
                "split the request"
            )
        if size <= self.unchecked_bytes:
            return None
        found = Count(data, self._plan, self._most, self._fields)
        if not found.wrong:
            return None
        index = found.number
        match found.wrong:
            case "items":
                what = f"the request has more than {self._most[index]} {self._paths[index]}; split the request"
            case "fields":
                what = "the request has more fields than its messages define; send each field that is not repeated once"
            case "name":
                what = f"a {found.name} has {index} bytes, at most {NAME_BYTES_MAX} are accepted; shorten it"
            case _:
                what = f"the request is not a valid protobuf message: a field of wire type {index}"
        return InvalidRequestError(f"{self._method}: {what}")


#: String fields to which NAME_BYTES_MAX does not apply: configuration values, metadata of commits, paths, messages.
_NOT_NAMES = ("value", "metadata", "path", "message")
#: The numbers of protobuf's FieldDescriptor.TYPE_STRING and TYPE_BYTES.
_TYPE_STRING, _TYPE_BYTES = 9, 12


def _plan_of(descriptor: Any, prefix: str, paths: Mapping[str, int]) -> Plan | None:
    """Plan the check of a message: the fields that are counted, and the fields that are names; None if it has no
    counted fields. Names in inner messages without counted fields may be as long as ``bytes_max`` allows, because a
    check would visit every field of every item."""
    steps = {}
    is_counted = False
    for each in descriptor.fields:
        path = f"{prefix}{each.name}"
        count = paths.get(path, -1)
        inner = None if each.message_type is None else _plan_of(each.message_type, f"{path}.", paths)
        is_name = each.type == _TYPE_STRING and each.name not in _NOT_NAMES
        is_counted = is_counted or count >= 0 or inner is not None
        if count >= 0 or inner is not None or is_name:
            fields = UNKNOWN_FIELDS_MAX + (0 if each.message_type is None else len(each.message_type.fields))
            is_packed = each.is_repeated and each.message_type is None and each.type not in (_TYPE_STRING, _TYPE_BYTES)
            steps[each.number] = (each.name, count, is_packed, NAME_BYTES_MAX if is_name else -1, inner, fields)
    return Plan(steps) if is_counted or not prefix else None
