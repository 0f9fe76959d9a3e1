"""Authorized operations in answers (KIP-430): a bit field with one bit for each code of Kafka's AclOperation.

Headrace has no authorizer, so every client may do everything. Answers therefore contain all operations of a resource,
as the answers of a Kafka cluster that has no authorizer.
"""

from __future__ import annotations

NOT_ASKED = -(1 << 31)  #: Integer.MIN_VALUE means that the client did not ask for the authorized operations.

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


#: The operations of each resource type, as in Kafka's AclEntry.supportedOperations.
TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
