"""A controller process on a small disk that another program fills. The test runs only as root, because it mounts a
tmpfs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace_core.errors import DiskFullError
from headrace_core.metadata import METADATA_VERSION
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from tests.worlds.waiting import until

DISK_BYTES = 8 * 1024 * 1024
RESERVE_BYTES = DISK_BYTES // 20
WAIT_S = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk of its own")
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"mount: {getattr(error, 'stderr', error)}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def fill(disk: Path, leave_bytes: int) -> Path:
    """A file that takes all of the disk except ``leave_bytes``."""
    stat = os.statvfs(disk)
    brim = disk / "brim"
    with brim.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        file.write(bytes(max(stat.f_bavail * stat.f_frsize - leave_bytes, 0)))
        while not leave_bytes and file.write(bytes(4096)):
            pass
    return brim


class Client:
    """Sends the calls of a broker without running a broker, and the calls of a client."""

    def __init__(self, controller: Any) -> None:
        self.channel = grpc.insecure_channel(controller.internal)
        self.admin: Any = admin_pb2_grpc.AdminStub(self.channel)
        self.cluster: Any = cluster_pb2_grpc.ClusterStub(self.channel)
        self.registered: Any = None

    def register(self) -> None:
        request = cluster_pb2.RegisterBrokerRequest(
            cluster_id="scenario", incarnation_id=os.urandom(16), directory_ids=[os.urandom(16)], wanted_broker_id=-1
        )
        request.endpoints.add(listener="client", host="127.0.0.1", port=9)
        request.features.add(name="metadata.version", min_level=1, max_level=METADATA_VERSION)
        self.registered = self.cluster.RegisterBroker(request, timeout=WAIT_S, wait_for_ready=True)
        assert not self.beat()

    def beat(self) -> bool:
        """Send one heartbeat; returns whether the broker is fenced."""
        request = cluster_pb2.BrokerHeartbeatRequest(
            broker_id=self.registered.broker_id,
            broker_epoch=self.registered.broker_epoch,
            metadata_offset=self.registered.metadata_offset + 1_000,
        )
        return bool(next(self.cluster.BrokerHeartbeat(iter([request]), timeout=WAIT_S)).fenced)

    def create(self, name: str) -> str:
        """The error's name, "" when the topic was created."""
        new = admin_pb2.NewTopic(name=name, partitions=1, replication_factor=1)
        request = admin_pb2.CreateTopicsRequest(topics=[new])
        try:
            (result,) = self.admin.CreateTopics(request, timeout=WAIT_S, wait_for_ready=True).results
        except grpc.RpcError as error:
            return str(error.details()).partition(":")[0]
        return str(result.error.message)

    def is_refused(self, why: str) -> bool:
        """Whether a new topic is refused with the given error code. (One topic may still be created, because the last
        measurement of the disk is older.)"""
        return self.create(f"passing-{os.urandom(4).hex()}") == why

    def topics(self, controller: Any) -> list[str]:
        with grpc.insecure_channel(controller.client) as channel:
            stub: Any = metadata_pb2_grpc.MetadataStub(channel)
            request = metadata_pb2.MetadataRequest(all_topics=True)
            found = stub.GetMetadata(request, timeout=WAIT_S, wait_for_ready=True).topics
            return [topic.name for topic in found if not topic.name.startswith("passing-")]


def test_a_controllers_disk_is_filled_to_the_brim_and_heals(disk: Path, make_controller: Callable[..., Any]) -> None:
    state_file = str(disk.with_name("node.json"))
    controller = make_controller(**{"log.dirs": str(disk / "data"), "runtime.state.file": state_file})
    controller.start()
    client = Client(controller)
    client.register()
    assert client.create("before") == ""

    brim = fill(disk, leave_bytes=RESERVE_BYTES // 2)
    until(lambda: client.is_refused(DiskFullError.code), "growth to be refused")
    assert not client.beat(), "heartbeats go on in the reserve"
    deleted = client.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=["before"]), timeout=WAIT_S)
    assert not deleted.results[0].error.code
    brim.unlink()
    until(lambda: client.create("after") == "", "growth to be taken again")

    brim = fill(disk, leave_bytes=0)
    until(lambda: client.is_refused(DiskFullError.code), "everything to be refused")
    for end in (signal.SIGKILL, signal.SIGTERM):
        controller.signal(end)
        assert controller.process.wait(WAIT_S) == (-signal.SIGKILL if end is signal.SIGKILL else 0)
        controller.start()
        client = Client(controller)
        assert client.topics(controller) == ["after"], "what it has is served"
        assert client.is_refused(DiskFullError.code)
    brim.unlink()
    until(lambda: client.create("last") == "", "the disk to have room again")
    assert client.topics(controller) == ["after", "last"]
