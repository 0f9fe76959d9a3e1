"""Compare the ids that nodes name in their requests with the ids in their certificates.

A node's certificate is for one role, and usually for one id (certificates.py). Some calls name the node that makes
them, such as the broker that sends heartbeats. A broker must not make such a call in another broker's name: it could
take over the other broker's registration, or remove that broker from in-sync sets.

The gate checks single requests. Handlers of streams call ``check_claim`` for each message that names a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import ClusterAuthorizationFailedError
from .access import current_access
from .acl_types import CLUSTER_NAME, Operation, ResourceType
from .caller import current_caller


class Claim(NamedTuple):
    """The node that a request names as its sender. A negative ``node_id``: the sender has no id yet."""

    role: str
    node_id: int

    def __str__(self) -> str:
        return self.role if self.node_id < 0 else f"{self.role} {self.node_id}"


def _broker(request: Any) -> Claim:
    return Claim("broker", request.broker_id)


def _coordinator(request: Any) -> Claim:
    return Claim("coordinator", request.coordinator_id)


def _gets_producer_ids(request: Any) -> Claim:
    return _coordinator(request) if request.HasField("coordinator_id") else _broker(request)


#: For each call: the function that returns which node the request claims to come from. In the streams Exchange and
#: Follow, the first message names the sender.
CLAIMS: Mapping[str, Callable[[Any], Claim]] = {
    "Cluster/RegisterBroker": lambda request: Claim("broker", request.wanted_broker_id),
    "Cluster/BrokerHeartbeat": _broker,
    "Cluster/AssignReplicasToDirs": _broker,
    "Cluster/AlterPartition": _broker,
    "Cluster/AllocateProducerIds": _gets_producer_ids,
    "Cluster/RegisterController": lambda request: Claim("controller", request.controller_id),
    "Cluster/RegisterCoordinator": lambda request: Claim("coordinator", request.wanted_coordinator_id),
    "Cluster/CoordinatorHeartbeat": _coordinator,
    "Raft/Exchange": lambda request: Claim("controller", request.hello.sender.node_id),
    "Replication/Follow": lambda request: Claim("broker", request.hello.broker_id),
}


def check_claim(method: str, request: Any) -> None:
    """Check that the node that ``request`` names is the current caller. Callers without a certificate of a node, on
    listeners without TLS, may name any node. Audits a refusal, and raises ClusterAuthorizationFailedError."""
    caller = current_caller()
    if caller.role is None:
        return
    claim = CLAIMS[method](request)
    if caller.role == claim.role and caller.node_id in (None, claim.node_id):
        return
    current_access().note_refusal(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    own = f"headrace:{caller.role}" + ("" if caller.node_id is None else f":{caller.node_id}")
    if claim.node_id < 0:
        cure = f"set node.id={caller.node_id}, or use a certificate without an id"
    else:
        cure = f"issue one with `headrace certs issue {claim}`"
    raise ClusterAuthorizationFailedError(f"{method}: the certificate {own} is not for {claim}; {cure}")
