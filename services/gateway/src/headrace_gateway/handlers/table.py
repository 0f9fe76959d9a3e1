"""Tables with the handler of each request type. ApiVersions does not advertise a type that is in neither table."""

from __future__ import annotations

from ..call import FastHandler, Handler
from ..fetch_path import fetch
from ..produce_path import produce
from ..wire.apis import Api
from . import (
    classic_groups,
    cluster,
    configs,
    consumer_groups,
    coordinators,
    describe_groups,
    log_offsets,
    metadata,
    offsets,
    quorum,
    replicas,
    topics,
    transactions,
    versions,
)

HANDLERS: dict[Api, Handler] = {
    Api.LIST_OFFSETS: log_offsets.list_offsets,
    Api.METADATA: metadata.metadata,
    Api.FIND_COORDINATOR: coordinators.find_coordinator,
    Api.API_VERSIONS: lambda call, request: versions.api_versions(call, request, (*HANDLERS, *FAST)),
    Api.DESCRIBE_CLUSTER: cluster.describe_cluster,
    Api.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    Api.OFFSET_FOR_LEADER_EPOCH: log_offsets.offset_for_leader_epoch,
    Api.DELETE_RECORDS: log_offsets.delete_records,
    Api.DESCRIBE_PRODUCERS: log_offsets.describe_producers,
    Api.CREATE_TOPICS: topics.create_topics,
    Api.DELETE_TOPICS: topics.delete_topics,
    Api.CREATE_PARTITIONS: topics.create_partitions,
    Api.DESCRIBE_CONFIGS: configs.describe_configs,
    Api.ALTER_CONFIGS: configs.alter_configs,
    Api.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    Api.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    Api.ELECT_LEADERS: replicas.elect_leaders,
    Api.ALTER_PARTITION_REASSIGNMENTS: replicas.alter_partition_reassignments,
    Api.LIST_PARTITION_REASSIGNMENTS: replicas.list_partition_reassignments,
    Api.DESCRIBE_LOG_DIRS: replicas.describe_log_dirs,
    Api.ALTER_REPLICA_LOG_DIRS: replicas.alter_replica_log_dirs,
    Api.DESCRIBE_QUORUM: quorum.describe_quorum,
    Api.UPDATE_FEATURES: quorum.update_features,
    Api.UNREGISTER_BROKER: quorum.unregister_broker,
    Api.JOIN_GROUP: classic_groups.join_group,
    Api.SYNC_GROUP: classic_groups.sync_group,
    Api.HEARTBEAT: classic_groups.heartbeat,
    Api.LEAVE_GROUP: classic_groups.leave_group,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: describe_groups.consumer_group_describe,
    Api.DESCRIBE_GROUPS: describe_groups.describe_groups,
    Api.LIST_GROUPS: describe_groups.list_groups,
    Api.DELETE_GROUPS: describe_groups.delete_groups,
    Api.OFFSET_COMMIT: offsets.offset_commit,
    Api.OFFSET_FETCH: offsets.offset_fetch,
    Api.OFFSET_DELETE: offsets.offset_delete,
    Api.INIT_PRODUCER_ID: transactions.init_producer_id,
    Api.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    Api.END_TXN: transactions.end_txn,
    Api.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    Api.WRITE_TXN_MARKERS: transactions.write_txn_markers,
    Api.LIST_TRANSACTIONS: transactions.list_transactions,
    Api.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
}

#: The handlers that need no asyncio task for each request.
FAST: dict[Api, FastHandler] = {Api.PRODUCE: produce, Api.FETCH: fetch}
