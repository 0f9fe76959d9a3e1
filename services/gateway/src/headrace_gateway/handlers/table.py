"""The handler of each request type. A type that is in neither table is not advertised."""

from __future__ import annotations

from ..call import FastHandler, Handler
from ..wire.apis import Api
from . import cluster, coordinators, metadata, versions

HANDLERS: dict[Api, Handler] = {
    Api.METADATA: metadata.metadata,
    Api.FIND_COORDINATOR: coordinators.find_coordinator,
    Api.API_VERSIONS: lambda call, request: versions.api_versions(call, request, (*HANDLERS, *FAST)),
    Api.DESCRIBE_CLUSTER: cluster.describe_cluster,
    Api.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
}

#: Handlers without a task for each request.
FAST: dict[Api, FastHandler] = {}
