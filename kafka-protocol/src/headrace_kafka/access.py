"""The authorization of Kafka clients: the operations and resources of Kafka's ACLs, and the rules for requests about
the whole cluster.

The handlers check in the order of Kafka 4.3's KafkaApis and ControllerApis, so that a refusal has Kafka's error code at
Kafka's level of the response. The broker answers many requests from its own metadata image, so it must check before it
looks up a name: a refused client must not learn whether a topic exists. Brokers and coordinators check again, because
the broker's metadata image may be older than their images.
"""

from __future__ import annotations

from headrace_core.security.acl_types import CLUSTER_NAME as CLUSTER_NAME
from headrace_core.security.acl_types import Operation, ResourceType

from .wire.apis import Api

READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
)
DESCRIBE, CLUSTER_ACTION, IDEMPOTENT_WRITE = (
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
)
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

#: Request types that need an operation on the cluster as a whole, each with this operation. The handlers of these
#: request types refuse clients that are not authorized for the operation.
CLUSTER_RULES: dict[Api, Operation] = {
    Api.DESCRIBE_ACLS: DESCRIBE,
    Api.CREATE_ACLS: ALTER,
    Api.DELETE_ACLS: ALTER,
    Api.ALTER_REPLICA_LOG_DIRS: ALTER,
    Api.ELECT_LEADERS: ALTER,
    Api.ALTER_PARTITION_REASSIGNMENTS: ALTER,
    Api.LIST_PARTITION_REASSIGNMENTS: DESCRIBE,
    Api.DESCRIBE_CLIENT_QUOTAS: DESCRIBE_CONFIGS,
    Api.ALTER_CLIENT_QUOTAS: ALTER_CONFIGS,
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: DESCRIBE,
    Api.ALTER_USER_SCRAM_CREDENTIALS: ALTER,
    Api.DESCRIBE_QUORUM: DESCRIBE,
    Api.UPDATE_FEATURES: ALTER,
    Api.UNREGISTER_BROKER: ALTER,
    Api.LIST_CONFIG_RESOURCES: DESCRIBE_CONFIGS,
}
