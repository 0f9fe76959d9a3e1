"""Who may make which call: written by hand, not read from the protos. The matrix test compares what clusters answer.

``RIGHTS``: for each call of clients, the rights that together allow it, as "OPERATION TYPE name", and a request that
names just these resources. "any" instead of rights: every authenticated caller. The request's text is protobuf's text
format. Names of topics, groups and so on do not exist, so an allowed call has few effects.

``NODES``: for each call on internal listeners, the roles of nodes that may make it. A call that is in neither table is
a mistake. ``NAMED``: for each of these calls that names its sender, a request of the node with the id 77.
"""

from __future__ import annotations

CLUSTER = "kafka-cluster"
DESCRIBE_CLUSTER, ALTER_CLUSTER = f"DESCRIBE CLUSTER {CLUSTER}", f"ALTER CLUSTER {CLUSTER}"
ANY: tuple[str, ...] = ()

#: Service/Method: (rights, request)
RIGHTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Admin/CreateTopics": (("CREATE TOPIC t",), 'topics {name: "t" replication_factor: 99} validate_only: true'),
    "Admin/DeleteTopics": (("DELETE TOPIC t",), 'topics: "t"'),
    "Admin/CreatePartitions": (("ALTER TOPIC t",), 'topics {topic: "t" total_count: 2}'),
    "Admin/DescribeConfigs": (("DESCRIBE_CONFIGS TOPIC t",), 'resources {type: CONFIG_RESOURCE_TYPE_TOPIC name: "t"}'),
    "Admin/AlterConfigs": (
        (f"ALTER_CONFIGS CLUSTER {CLUSTER}",),
        'resources {resource {type: CONFIG_RESOURCE_TYPE_BROKER name: "77"}}',
    ),
    "Admin/DescribeLogDirs": ((DESCRIBE_CLUSTER,), ""),
    "Admin/AlterReplicaLogDirs": ((ALTER_CLUSTER,), ""),
    "Admin/ElectLeaders": ((ALTER_CLUSTER,), ""),
    "Admin/DescribeQuorum": ((DESCRIBE_CLUSTER,), ""),
    "Admin/AddRaftVoter": ((ALTER_CLUSTER,), 'cluster_id: "x"'),
    "Admin/RemoveRaftVoter": ((ALTER_CLUSTER,), 'cluster_id: "x"'),
    "Admin/TransferLeadership": ((ALTER_CLUSTER,), "voter_id: 77 timeout_ms: 100"),
    "Admin/AlterPartitionReassignments": ((ALTER_CLUSTER,), ""),
    "Admin/ListPartitionReassignments": ((DESCRIBE_CLUSTER,), ""),
    "Admin/DrainBroker": ((ALTER_CLUSTER,), "broker_id: 77"),
    "Admin/UnregisterBroker": ((ALTER_CLUSTER,), "broker_id: 77"),
    "Admin/DescribeFeatures": (ANY, ""),
    "Admin/UpdateFeatures": ((ALTER_CLUSTER,), 'updates {name: "x" level: 1} validate_only: true'),
    "Fetch/Fetch": (("READ TOPIC t",), 'correlation_id: 1 partitions {topic: "t"}'),
    "Groups/Membership": (
        ("READ GROUP g", "DESCRIBE TOPIC t"),
        'correlation_id: 1 heartbeat {group_id: "g" member_id: "m" member_epoch: 7 topics {names: "t"}}',
    ),
    "Groups/Heartbeat": (
        ("READ GROUP g", "DESCRIBE TOPIC t"),
        'heartbeat {group_id: "g" member_id: "m" member_epoch: 7 topics {names: "t"}}',
    ),
    "Groups/JoinGroup": (("READ GROUP g",), 'group_id: "g"'),
    "Groups/SyncGroup": (("READ GROUP g",), 'group_id: "g"'),
    "Groups/ClassicHeartbeat": (("READ GROUP g",), 'group_id: "g"'),
    "Groups/LeaveGroup": (("READ GROUP g",), 'group_id: "g"'),
    "Groups/CommitOffsets": (
        ("READ GROUP g", "READ TOPIC t"),
        'group_id: "g" member_epoch: 7 member_id: "m" offsets {topic: "t"}',
    ),
    "Groups/FetchOffsets": (
        ("DESCRIBE GROUP g", "DESCRIBE TOPIC t"),
        'groups {group_id: "g" partitions {partitions {topic: "t"}}}',
    ),
    "Groups/DeleteOffsets": (("DELETE GROUP g", "READ TOPIC t"), 'group_id: "g" partitions {topic: "t"}'),
    "Groups/ListGroups": (ANY, ""),
    "Groups/DescribeGroups": (("DESCRIBE GROUP g",), 'group_ids: "g"'),
    "Groups/RemoveMembers": (("READ GROUP g",), 'group_id: "g"'),
    "Groups/DeleteGroups": (("DELETE GROUP g",), 'group_ids: "g"'),
    "Groups/ExplainGroup": (("DESCRIBE GROUP g",), 'group_id: "g"'),
    "Groups/DescribeLag": (("DESCRIBE GROUP g",), 'group_ids: "g"'),
    "Metadata/GetMetadata": (("DESCRIBE TOPIC t",), 'topics: "t"'),
    "Metadata/WatchMetadata": (("DESCRIBE TOPIC t",), 'topics: "t"'),
    "Metadata/FindCoordinator": (("DESCRIBE GROUP g",), 'keys: "g"'),
    "Node/DescribeNode": (ANY, ""),
    "Offsets/ListOffsets": (("DESCRIBE TOPIC t",), 'partitions {topic: "t"}'),
    "Offsets/OffsetForLeaderEpoch": (("DESCRIBE TOPIC t",), 'partitions {topic: "t"}'),
    "Offsets/DeleteRecords": (("DELETE TOPIC t",), 'partitions {topic: "t"}'),
    "Produce/Produce": (
        ("WRITE TOPIC t", "WRITE TRANSACTIONAL_ID x"),
        'correlation_id: 1 transactional_id: "x" transaction_version: 2 partitions {topic: "t" records: "r"}',
    ),
    "Produce/InitProducerId": (("WRITE TOPIC any-topic",), ""),
    "Security/DescribeAcls": ((DESCRIBE_CLUSTER,), "filter {}"),
    "Security/CreateAcls": ((ALTER_CLUSTER,), ""),
    "Security/DeleteAcls": ((ALTER_CLUSTER,), ""),
    "Security/DescribeUserScramCredentials": ((DESCRIBE_CLUSTER,), ""),
    "Security/AlterUserScramCredentials": ((ALTER_CLUSTER,), ""),
    "Security/DescribeClientQuotas": ((f"DESCRIBE_CONFIGS CLUSTER {CLUSTER}",), ""),
    "Security/AlterClientQuotas": ((f"ALTER_CONFIGS CLUSTER {CLUSTER}",), ""),
    "Security/CreateDelegationToken": (ANY, ""),
    "Security/RenewDelegationToken": (ANY, ""),
    "Security/ExpireDelegationToken": (ANY, ""),
    "Security/DescribeDelegationTokens": (ANY, ""),
    "Transactions/InitProducer": (
        ("WRITE TRANSACTIONAL_ID x", "TWO_PHASE_COMMIT TRANSACTIONAL_ID x"),
        'transactional_id: "x" transaction_timeout_ms: -1 enable_two_phase_commit: true',
    ),
    "Transactions/EndTransaction": (("WRITE TRANSACTIONAL_ID x",), 'transactional_id: "x"'),
    "Transactions/AddTransactionPartitions": (
        ("WRITE TRANSACTIONAL_ID x", "WRITE TOPIC t"),
        'transactional_id: "x" partitions {topic: "t"}',
    ),
    "Transactions/PrepareTransaction": (
        ("WRITE TRANSACTIONAL_ID x", "TWO_PHASE_COMMIT TRANSACTIONAL_ID x"),
        'transactional_id: "x"',
    ),
    "Transactions/CompleteTransaction": (("WRITE TRANSACTIONAL_ID x",), 'token {transactional_id: "x"}'),
    "Transactions/CommitTransactionOffsets": (
        ("WRITE TRANSACTIONAL_ID x", "READ GROUP g", "READ TOPIC t"),
        'transactional_id: "x" group_id: "g" offsets {topic: "t"}',
    ),
    "Transactions/ListTransactions": (ANY, ""),
    "Transactions/DescribeTransactions": (("DESCRIBE TRANSACTIONAL_ID x",), 'transactional_ids: "x"'),
    "Transactions/AbortTransaction": (("WRITE TRANSACTIONAL_ID x",), 'transactional_id: "x"'),
    "Transactions/CommitSinkBatch": (
        ("WRITE TRANSACTIONAL_ID x", "WRITE TRANSACTIONAL_ID y"),
        'sink_id: "x" tokens {transactional_id: "y"}',
    ),
    "Transactions/AbortSinkBatch": (("WRITE TRANSACTIONAL_ID x",), 'sink_id: "x"'),
    "Transactions/DescribeSink": (("DESCRIBE TRANSACTIONAL_ID x",), 'sink_id: "x"'),
    "Producers/DescribeProducers": (("READ TOPIC t",), 'partitions {topic: "t"}'),
    "Producers/AbortHangingTransaction": ((ALTER_CLUSTER,), 'topic: "t"'),
}

#: Further requests of calls, and their rights: with another resource, another alternative, or without a part.
VARIANTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "Admin/CreateTopics",
        (f"CREATE CLUSTER {CLUSTER}",),
        'topics {name: "t2" replication_factor: 99} validate_only: true',
    ),
    ("Admin/DeleteTopics", (f"DELETE CLUSTER {CLUSTER}",), 'topics: "t"'),
    (
        "Admin/AlterConfigs",
        ("ALTER_CONFIGS TOPIC t",),
        'resources {resource {type: CONFIG_RESOURCE_TYPE_TOPIC name: "t"}}',
    ),
    (
        "Admin/DescribeConfigs",
        (f"DESCRIBE_CONFIGS CLUSTER {CLUSTER}",),
        'resources {type: CONFIG_RESOURCE_TYPE_BROKER name: "77"}',
    ),
    ("Groups/Membership", ("READ GROUP g",), 'correlation_id: 1 leave {group_id: "g" member_id: "m"}'),
    ("Groups/FetchOffsets", ("DESCRIBE GROUP g",), 'groups {group_id: "g"}'),
    (
        "Metadata/FindCoordinator",
        ("DESCRIBE TRANSACTIONAL_ID x",),
        'type: COORDINATOR_TYPE_TRANSACTION keys: "x"',
    ),
    ("Offsets/OffsetForLeaderEpoch", (f"CLUSTER_ACTION CLUSTER {CLUSTER}",), 'partitions {topic: "t"}'),
    ("Produce/Produce", ("WRITE TOPIC t",), 'correlation_id: 1 partitions {topic: "t" records: "r"}'),
    ("Produce/InitProducerId", (f"IDEMPOTENT_WRITE CLUSTER {CLUSTER}",), "producer_id: -7 producer_epoch: 0"),
    ("Transactions/InitProducer", ("WRITE TRANSACTIONAL_ID x",), 'transactional_id: "x" transaction_timeout_ms: 1000'),
    (
        "Transactions/AddTransactionPartitions",
        ("WRITE TRANSACTIONAL_ID x", "READ GROUP g"),
        'transactional_id: "x" partitions {topic: "__consumer_offsets"}',
    ),
    (
        "Transactions/AddTransactionPartitions",
        ("WRITE TRANSACTIONAL_ID x", "WRITE TOPIC t", "READ GROUP g"),
        'transactional_id: "x" partitions {topic: "__consumer_offsets"} partitions {topic: "t"}',
    ),
)

#: Calls that need no authentication.
OPEN = {"Authentication/Authenticate"}

_FORWARDING = {"broker", "coordinator", "controller"}
_FOLLOWING = {"broker", "coordinator", "controller"}
NODES: dict[str, set[str]] = {
    **{method: _FORWARDING for method in RIGHTS if method.startswith(("Admin/", "Security/"))},
    "Cluster/RegisterBroker": {"broker"},
    "Cluster/BrokerHeartbeat": {"broker"},
    "Cluster/AssignReplicasToDirs": {"broker"},
    "Cluster/AlterPartition": {"broker"},
    "Cluster/CreateInternalTopic": {"broker"},
    "Cluster/FollowMetadata": _FOLLOWING,
    "Cluster/ReadIndex": _FOLLOWING,
    "Cluster/VouchMetadata": _FOLLOWING,
    "Cluster/AllocateProducerIds": {"broker", "coordinator"},
    "Cluster/RegisterController": {"controller"},
    "Cluster/RegisterCoordinator": {"coordinator"},
    "Cluster/CoordinatorHeartbeat": {"coordinator"},
    "Raft/Exchange": {"controller"},
    "Replication/Follow": {"broker"},
    "TransactionPartitions/AddPartitions": {"broker", "coordinator"},
    "TransactionMarkers/WriteMarkers": {"coordinator"},
    "Produce/Produce": {"coordinator"},
    "Fetch/Fetch": {"coordinator"},
    "Offsets/ListOffsets": {"coordinator"},
    "Node/DescribeNode": _FOLLOWING,
}

NAMED: dict[str, str] = {
    "Cluster/RegisterBroker": "wanted_broker_id: 77",
    "Cluster/BrokerHeartbeat": "broker_id: 77",
    "Cluster/AssignReplicasToDirs": "broker_id: 77",
    "Cluster/AlterPartition": "broker_id: 77",
    "Cluster/RegisterController": "controller_id: 77",
    "Cluster/RegisterCoordinator": "wanted_coordinator_id: 77",
    "Cluster/CoordinatorHeartbeat": "coordinator_id: 77",
    "Raft/Exchange": "hello {sender {node_id: 77}}",
    "Replication/Follow": "hello {broker_id: 77}",
}
#: Service/Method: request by role.
NAMED_BY_ROLE: dict[str, dict[str, str]] = {
    "Cluster/AllocateProducerIds": {"broker": "broker_id: 77", "coordinator": "broker_id: -1 coordinator_id: 77"},
}
