"""Authorized operations in answers (KIP-430): a bit field with one bit for each number of Kafka's AclOperation.

Without an authorizer every client may do everything, and answers contain all operations of a resource's type, as in
Kafka.
"""

from __future__ import annotations

from headrace_core.security.access import EVERYTHING, NOT_ASKED

from ..access import CLUSTER, CLUSTER_NAME, DESCRIBE, GROUP, TOPIC
from ..call import Call

#: All operations of each resource type.
TOPIC_OPERATIONS, GROUP_OPERATIONS, CLUSTER_OPERATIONS = map(EVERYTHING.operations, (TOPIC, GROUP, CLUSTER))


def cluster_operations(call: Call, *, asked: bool) -> int:
    """The field ``cluster_authorized_operations`` of an answer: 0 for a client that is not authorized to describe the
    cluster."""
    if not asked:
        return NOT_ASKED
    return call.access.operations(CLUSTER) if call.allows(DESCRIBE, CLUSTER, CLUSTER_NAME) else 0


__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "NOT_ASKED", "TOPIC_OPERATIONS", "cluster_operations"]
