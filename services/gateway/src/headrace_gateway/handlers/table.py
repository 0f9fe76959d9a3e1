"""The handler of each request type. A type that is in neither table is not advertised."""

from __future__ import annotations

from ..call import FastHandler, Handler
from ..fetch_path import fetch
from ..produce_path import produce
from ..wire.apis import Api
from . import (
    classic_groups,
    cluster,
    consumer_groups,
    coordinators,
    describe_groups,
    log_offsets,
    metadata,
    offsets,
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

#: Handlers without a task for each request.
FAST: dict[Api, FastHandler] = {Api.PRODUCE: produce, Api.FETCH: fetch}
