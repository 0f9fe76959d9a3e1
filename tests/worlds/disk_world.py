"""Real disks that a test may fill, break and remove, and producers that retry failed appends."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from pathlib import Path

import grpc
import pytest

from headrace_protos.v1 import admin_pb2, produce_pb2_grpc
from tests.worlds.broker_world import Cluster, Stream, Topic, batch, produce_partition, produce_request


def run(*command: str) -> None:
    """Run a command; raise CalledProcessError, with the command's output, if it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def mount(*arguments: str) -> None:
    """Mount a disk; skip the test where mounting is not allowed. (In CI the tests run as root, so mounting is
    allowed.)"""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk of its own")
    try:
        run("mount", *arguments)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"mount {' '.join(arguments)}: {getattr(error, 'stderr', error)}")


def free_bytes(path: Path) -> int:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def directory_of(cluster: Cluster, topic: Topic) -> dict[int, str]:
    """The name of the directory of each partition; partitions in an offline directory are missing."""
    answer = cluster.admin.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(), timeout=20)
    return {
        item.partition: Path(directory.path).name
        for directory in answer.directories
        for item in directory.partitions
        if item.topic == topic.name and not item.is_future
    }


def offline(cluster: Cluster) -> list[str]:
    """The names of the offline directories."""
    answer = cluster.admin.DescribeLogDirs(admin_pb2.DescribeLogDirsRequest(), timeout=20)
    return [Path(directory.path).name for directory in answer.directories if directory.error.code]


class Load(threading.Thread):
    """Appends numbered batches to one partition, one after the other, until it is stopped. A number whose append failed
    is never used again. If the log has a number twice, or out of order, the broker has caused the error."""

    def __init__(self, topic: Topic, partition: int, *, value_bytes: int, first: int = 0) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.errors: Counter[int] = Counter()
        self.failure: BaseException | None = None
        self.partition = partition
        self._topic = topic
        self._padding = os.urandom(value_bytes - 8)
        self._number = first
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with Stream(produce_pb2_grpc.ProduceStub(self._topic.cluster.channel).Produce) as stream:
                while not self._stopping.is_set():
                    number, self._number = self._number, self._number + 1
                    value = number.to_bytes(8, "big") + self._padding
                    stream.send(produce_request(1, produce_partition(self._topic.name, batch(value), self.partition)))
                    (result,) = stream.receive().results
                    if result.error.code:
                        self.errors[result.error.code] += 1
                        self._stopping.wait(0.02)  # like a client between two attempts
                    else:
                        self.acknowledged.append(number)
        except grpc.RpcError as error:  # the broker was killed
            self.failure = error

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive()

    @property
    def next_number(self) -> int:
        return self._number


def numbers_in(topic: Topic, partition: int) -> list[int]:
    """The numbers of all values that a ``Load`` has written, in log order."""
    return [int.from_bytes(value[:8], "big") for value in topic.read(0, partition) if value is not None and value[8:]]


def check_nothing_lost(topic: Topic, partition: int, acknowledged: list[int]) -> None:
    """Check that the log has every acknowledged number once, in order; it may also have numbers that were refused or
    not answered."""
    found = numbers_in(topic, partition)
    assert found == sorted(set(found)), f"{topic.name}-{partition}: twice, or out of order"
    missing = sorted(set(acknowledged) - set(found))
    assert not missing, (
        f"{topic.name}-{partition}: {len(missing)} acknowledged batches are lost, the first {missing[:5]}"
    )
