"""The handler of each request type. A type that is in neither table is not advertised."""

from __future__ import annotations

from ..call import FastHandler, Handler
from ..fetch_path import fetch
from ..produce_path import produce
from ..wire.apis import Api
from . import cluster, coordinators, log_offsets, metadata, versions

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
}

#: Handlers without a task for each request.
FAST: dict[Api, FastHandler] = {Api.PRODUCE: produce, Api.FETCH: fetch}
