"""A node names only itself in its requests to other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_core.errors import ClusterAuthorizationFailedError
from headrace_core.security.access import Access, Authorization, set_access
from headrace_core.security.acl_types import Operation
from headrace_core.security.caller import Caller, set_caller
from headrace_core.security.certificates import NODE_ROLES, NodeIdentity
from headrace_core.security.gate import INTERNAL, Gate
from headrace_core.security.node_ids import CLAIMS, check_claim
from headrace_core.security.principal import Principal
from headrace_core.security.rules import access_of
from headrace_protos.v1 import cluster_pb2, raft_pb2, replication_pb2, transactions_pb2

_FILES = (cluster_pb2, raft_pb2, replication_pb2, transactions_pb2)
_IDS = ("broker_id", "coordinator_id", "controller_id", "wanted_broker_id", "wanted_coordinator_id", "hello")


def ask(method: str, request: Any, role: str | None, node_id: int | None) -> list[Any]:
    """Check a request of a node, and return what was audited."""
    audited: list[Any] = []

    async def run() -> None:
        caller = Caller(Principal("Node", f"{role}:{node_id}"), "10.0.0.2", "", INTERNAL, role, node_id)
        set_caller(caller)
        reporting = Authorization(observe=lambda *decision: audited.append(decision))
        set_access(Access(caller, None, method, reporting=reporting))
        check_claim(method, request)

    try:
        asyncio.run(run())
    finally:
        assert all((each[1], each[4], each[5]) == (Operation.CLUSTER_ACTION, False, method) for each in audited)
    return audited


def claims() -> Iterator[tuple[str, Any]]:
    """A request of node 1 for each call, with the role of the node."""
    yield "broker", ("Cluster/RegisterBroker", cluster_pb2.RegisterBrokerRequest(wanted_broker_id=1))
    yield "broker", ("Cluster/BrokerHeartbeat", cluster_pb2.BrokerHeartbeatRequest(broker_id=1))
    yield "broker", ("Cluster/AssignReplicasToDirs", cluster_pb2.AssignReplicasToDirsRequest(broker_id=1))
    yield "broker", ("Cluster/AlterPartition", cluster_pb2.AlterPartitionRequest(broker_id=1))
    yield "broker", ("Cluster/AllocateProducerIds", cluster_pb2.AllocateProducerIdsRequest(broker_id=1))
    asked = cluster_pb2.AllocateProducerIdsRequest(broker_id=-1, coordinator_id=1)
    yield "coordinator", ("Cluster/AllocateProducerIds", asked)
    yield "controller", ("Cluster/RegisterController", cluster_pb2.RegisterControllerRequest(controller_id=1))
    registered = cluster_pb2.RegisterCoordinatorRequest(wanted_coordinator_id=1)
    yield "coordinator", ("Cluster/RegisterCoordinator", registered)
    yield "coordinator", ("Cluster/CoordinatorHeartbeat", cluster_pb2.CoordinatorHeartbeatRequest(coordinator_id=1))
    sender = raft_pb2.RaftReplicaKey(node_id=1)
    yield "controller", ("Raft/Exchange", raft_pb2.RaftEnvelope(hello=raft_pb2.RaftHello(sender=sender)))
    hello = replication_pb2.FollowHello(broker_id=1)
    yield "broker", ("Replication/Follow", replication_pb2.FollowRequest(hello=hello))


@pytest.mark.parametrize(("role", "call"), list(claims()), ids=lambda each: each if isinstance(each, str) else each[0])
def test_only_the_certificate_of_the_named_node_is_taken(role: str, call: tuple[str, Any]) -> None:
    method, request = call
    assert ask(method, request, role, 1) == []
    assert ask(method, request, role, None) == [], "a certificate without an id is good for every node of the role"
    assert ask(method, request, None, None) == [], "without TLS a node has no identity"
    others = {(role, 2), *((each, 1) for each in NODE_ROLES if each != role), *((each, None) for each in NODE_ROLES)}
    for other, node_id in others - {(role, None)}:
        with pytest.raises(ClusterAuthorizationFailedError, match=f"is not for {role} 1; issue one with"):
            ask(method, request, other, node_id)


def test_a_broker_gets_no_producer_ids_in_the_name_of_a_coordinator() -> None:
    request = cluster_pb2.AllocateProducerIdsRequest(broker_id=2, coordinator_id=1)
    with pytest.raises(ClusterAuthorizationFailedError, match="headrace:broker:2 is not for coordinator 1"):
        ask("Cluster/AllocateProducerIds", request, "broker", 2)


def test_a_node_with_an_id_in_its_certificate_registers_with_it() -> None:
    request = cluster_pb2.RegisterBrokerRequest(wanted_broker_id=-1)
    assert ask("Cluster/RegisterBroker", request, "broker", None) == []
    with pytest.raises(ClusterAuthorizationFailedError, match=r"headrace:broker:2 is not for broker; set node\.id=2"):
        ask("Cluster/RegisterBroker", request, "broker", 2)


def test_every_call_between_nodes_that_names_a_node_is_checked() -> None:
    naming = set()
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                found = access_of(f"/{service.full_name}/{method.name}")
                if found is not None and found.roles and any(each in method.input_type.fields_by_name for each in _IDS):
                    naming.add(found.method)
    assert naming | {"Raft/Exchange", "Replication/Follow"} == set(CLAIMS)


def test_the_gate_checks_single_requests_and_audits_the_refusal() -> None:
    audited: list[tuple[Any, ...]] = []
    gate = Gate(
        INTERNAL,
        "SSL",
        Authorization(observe=lambda *decision: audited.append(decision)),
        node_identity=lambda pem: NodeIdentity("broker", 2),
    )
    path = "/headrace.v1.Cluster/AlterPartition"

    class Context:
        def peer(self) -> str:
            return "ipv4:10.0.0.2:1"

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_pem_cert": [b"pem"]}

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return ()

    async def run() -> Any:
        async def handled(request: Any, context: Any) -> int:
            return int(request.broker_id)

        guarded = gate.guarded(handled, path, has_request=True)
        gate.admit(path, Context())
        assert await guarded(cluster_pb2.AlterPartitionRequest(broker_id=2), None) == 2
        with pytest.raises(ClusterAuthorizationFailedError, match="headrace:broker:2 is not for broker 1"):
            await guarded(cluster_pb2.AlterPartitionRequest(broker_id=1), None)

    asyncio.run(run())
    assert [(str(each[0].principal), each[1], each[5]) for each in audited] == [
        ("Node:broker:2", Operation.CLUSTER_ACTION, "Cluster/AlterPartition")
    ]
