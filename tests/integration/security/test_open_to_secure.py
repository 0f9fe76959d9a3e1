"""From an open to a secured cluster without downtime: three rolls with internal.tls.mode, under load."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace.errors import HeadraceError
from headrace_tools.local import nodes, security
from tests.worlds.waiting import until


@pytest.mark.long
def test_nodes_change_to_tls_one_by_one_and_no_send_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = ["open"]
    properties = nodes.properties

    def of_phase(state: Any, node: Any, directory: Any) -> dict[str, str]:
        values = properties(state, node, directory)
        if mode[0] == "open":
            return values
        security.prepare(directory, state.nodes, state.bootstrap_servers)
        keys = security.node_keys(directory, state, node)
        del keys["authorizer.class.name"]  # the clients stay anonymous
        keys["listener.security.protocol.map"] = "client:PLAINTEXT,internal:SSL"
        return values | keys | {"internal.tls.mode": mode[0]}

    monkeypatch.setattr(nodes, "properties", of_phase)
    stop, failures, acknowledged = threading.Event(), [], [0]
    with LocalCluster(brokers=3, controllers=3, coordinators=1, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=3, replication_factor=3)])

        def send() -> None:
            with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                while not stop.is_set():
                    try:
                        for future in [producer.send("orders", b"x") for _ in range(10)]:
                            future.result(timeout=60)
                            acknowledged[0] += 1
                    except HeadraceError as error:
                        failures.append(error)
                        return

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for mode[0] in ("allow", "prefer", "require"):
                for node in cluster.ps():
                    cluster.restart(node["role"], node["id"])
                    _wait_healthy(cluster)
                before = acknowledged[0]
                until(lambda before=before: failures or acknowledged[0] > before + 100, f"sends after {mode[0]}")
            assert not failures
            state = nodes_of(cluster)
            for node in state:
                with grpc.insecure_channel(node.internal_address) as channel, pytest.raises(grpc.RpcError):
                    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)  # type: ignore[no-untyped-call]
        finally:
            stop.set()
            thread.join(60)
    assert not failures


def test_a_stopped_open_cluster_becomes_secure_with_its_users_and_topics(tmp_path: Path) -> None:
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 0, "mode": "inprocess", "data": tmp_path}
    with LocalCluster(**few) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics(["orders"])
    with (
        LocalCluster(**few, secure=True) as cluster,
        Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        assert admin.list_topics() == ["orders"]
        assert sorted(admin.describe_user_scram_credentials()) == ["admin", "schema-registry"]


def nodes_of(cluster: LocalCluster) -> Any:
    return cluster._running().state().nodes


def _wait_healthy(cluster: LocalCluster) -> None:
    """Wait until every replica is in sync, as `headrace cluster roll` does before it restarts the next node."""

    def is_whole() -> bool:
        try:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                (topic,) = admin.describe_topics(["orders"])
                quorum = admin.describe_quorum()
            return all(len(each.isr) == 3 for each in topic.partitions) and quorum.leader_id >= 0
        except HeadraceError:
            return False

    until(is_whole, "replicas in sync", pause_s=0.1)
