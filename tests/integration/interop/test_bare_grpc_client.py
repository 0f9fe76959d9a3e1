"""Clients without Headrace's packages: generated code alone, server reflection, health checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import proto_tool
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headrace import LocalCluster

STRANGER = Path(__file__).parent / "stranger.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as running:
        yield running


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """Code that is generated from the .proto files, in a separate folder."""
    files = proto_tool.generate_into(tmp_path)
    assert Path("headrace_protos/v1/produce_pb2_grpc.py") in files
    return tmp_path


def test_a_client_made_of_grpcio_and_generated_code_creates_produces_and_consumes(
    cluster: LocalCluster, generated: Path
) -> None:
    site_packages = Path(grpc.__file__).parents[1]
    # -S: no site module, so Python reads no .pth file of an editable install, and cannot import Headrace's packages.
    done = subprocess.run(
        [sys.executable, "-S", str(STRANGER), cluster.bootstrap_servers, "from-a-stranger"],
        env={**os.environ, "PYTHONPATH": f"{generated}{os.pathsep}{site_packages}"},
        cwd=generated,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "created": [0],
        "partitions": 2,
        "produced": [7, 0, 0],
        "durability": "DURABILITY_COMMIT",
        "offsets": [0, 3],
        "fetched": [8, 0, 3],
        "records": [[0, 0, "k1", "one"], [1, 1, None, "two"], [2, 2, "k3", None]],
    }


def test_reflection_lists_what_the_client_listener_serves_and_nothing_internal(cluster: LocalCluster) -> None:
    with grpc.insecure_channel(cluster.bootstrap_servers) as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert services >= {f"headrace.v1.{name}" for name in ("Produce", "Fetch", "Offsets", "Metadata", "Admin")}
    assert services >= {"grpc.health.v1.Health"}
    assert not services & {f"headrace.v1.{name}" for name in ("Cluster", "Raft", "Replication")}


def test_an_internal_call_does_not_exist_on_the_client_listener(cluster: LocalCluster) -> None:
    with grpc.insecure_channel(cluster.bootstrap_servers) as channel:
        call = channel.unary_unary("/headrace.v1.Cluster/RegisterBroker")
        with pytest.raises(grpc.RpcError) as failure:
            call(b"", timeout=60)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_health_checks_answer_for_the_server_and_for_each_service(cluster: LocalCluster) -> None:
    with grpc.insecure_channel(cluster.bootstrap_servers) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for service in ("", "headrace.v1.Produce", "headrace.v1.Fetch"):
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
        with pytest.raises(grpc.RpcError) as failure:
            check(health_pb2.HealthCheckRequest(service="headrace.v1.Nothing"), timeout=60)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]
