"""A controller and a broker as real processes, which tests call through raw gRPC stubs, without the client library;
and real disks that a test may fill, break and remove."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace_core.rpc import environment  # noqa: F401  (first: it sets what grpc reads when it is imported)

import grpc  # isort: skip
import pytest

from headrace_core.node.meta_properties import format_directories
from headrace_core.node.state_file import RuntimeState, read_state
from headrace_core.records import decode_batch, encode_batch, split_batches
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    fetch_pb2,
    fetch_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)
from tests.system.soak.soak_samples import thread_names
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until

WAIT_S = 60.0


def batch(*values: bytes, timestamp_ms: int | None = None, **fields: Any) -> bytes:
    """One record batch."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return encode_batch([(now, None, value, []) for value in values], **fields)


def values_of(records: bytes, start_offset: int = 0) -> list[bytes | None]:
    """The values of the records in a slice of a log, from ``start_offset`` on."""
    found: list[bytes | None] = []
    for span in split_batches(records):
        found += [record.value for record in decode_batch(records, span.position, start_offset=start_offset)]
    return found


class Node:
    """A server process with a directory and ports of its own."""

    def __init__(self, role: str, directory: Path, cluster_id: str | None, **keys: str) -> None:
        """``cluster_id`` is None if the directories are already formatted."""
        self.role = role
        self.directory = directory
        self.data = directory / "data"
        self.keys = {
            "listeners": f"client://127.0.0.1:{free_port()},internal://127.0.0.1:{free_port()}",
            "log.dirs": str(self.data),
            "runtime.state.file": str(directory / "node.json"),
            # The records of tests have old timestamps, so retention is off. Upkeep stays on, so that its thread exists
            # from the start.
            "log.retention.ms": "-1",
            "log.initial.task.delay.ms": "0",
            **keys,
        }
        directory.mkdir(parents=True, exist_ok=True)
        if cluster_id is not None:
            node_id = int(self.keys.get("node.id", "-1"))
            format_directories(self.keys["log.dirs"].split(","), cluster_id=cluster_id, node_id=node_id)
        self.process: subprocess.Popen[bytes] | None = None
        self.state: RuntimeState | None = None

    def launch(self) -> None:
        """Start the process, and return without waiting until it serves."""
        properties = self.directory / "node.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.keys.items()))
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"headrace_{self.role}", "--config", str(properties)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> None:
        """Start the process; return when it serves."""
        self.launch()
        self.wait_serving()

    def wait_serving(self) -> None:
        process = self.process
        assert process is not None

        def serving() -> RuntimeState | None:
            assert process.poll() is None, f"the {self.role} ended:\n{self.log()}"
            state = read_state(self.keys["runtime.state.file"])
            return state if state is not None and state.pid == process.pid else None

        self.state = until(serving, f"the {self.role} to serve")

    def address(self, listener: str = "client") -> str:
        assert self.state is not None
        return self.state.listeners[listener]

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def terminate(self) -> int:
        """Stop the process with SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)


class Cluster:
    """A cluster of one controller and one broker. ``keys`` are configuration keys of the broker."""

    def __init__(self, directory: Path, **keys: str) -> None:
        self.directory = directory
        self.controller = Node("controller", directory / "controller", "tests", **{"node.id": "1"})
        self._keys = keys
        self._broker: Node | None = None
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.controller.start()
        keys = {"controller.quorum.bootstrap.servers": self.controller.address("internal"), **self._keys}
        self._broker = Node("broker", self.directory / "broker", "tests", **keys)
        self._broker.start()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        for node in (self._broker, self.controller):
            if node is not None:
                node.close()

    def restart(self) -> None:
        """Start the broker again after its process has ended; return when it serves and leads its partitions."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self.broker.start()

    @property
    def broker(self) -> Node:
        assert self._broker is not None
        return self._broker

    @property
    def channel(self) -> grpc.Channel:
        """The gRPC channel to the broker's client listener."""
        if self._channel is None:
            self._channel = self.connect()
        return self._channel

    def connect(self, listener: str = "client") -> grpc.Channel:
        """Open a new connection to one of the broker's listeners."""
        own = ("headrace.test.connection", os.urandom(4).hex())
        reconnect = ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 20)
        return grpc.insecure_channel(self.broker.address(listener), options=[*COMMON_OPTIONS, *reconnect, own])

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminStub(self.channel)

    @property
    def metadata(self) -> Any:
        return metadata_pb2_grpc.MetadataStub(self.channel)

    @property
    def offsets(self) -> Any:
        return offsets_pb2_grpc.OffsetsStub(self.channel)

    def topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; a keyword such as ``max_message_bytes="100"`` sets the configuration key
        max.message.bytes."""
        new = admin_pb2.NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=1,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        (result,) = self.admin.CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[new]), timeout=WAIT_S, wait_for_ready=True
        ).results
        assert not result.error.code, result.error
        return Topic(self, name, result.topic_id)

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        """The number of the broker's threads, without gRPC's timer threads, whose number varies between one and two."""
        return sum(not name.startswith("grpc_global_tim") for name in thread_names(self.pid))

    @property
    def pid(self) -> int:
        assert self.broker.process is not None
        return self.broker.process.pid


class Topic:
    """A topic, with methods that make whole requests."""

    def __init__(self, cluster: Cluster, name: str, topic_id: bytes) -> None:
        self.cluster = cluster
        self.name = name
        self.topic_id = topic_id

    def produce(self, *values: bytes, partition: int = 0) -> Any:
        """Append one batch; return its result."""
        with Stream(produce_pb2_grpc.ProduceStub(self.cluster.channel).Produce) as stream:
            stream.send(produce_request(1, produce_partition(self.name, batch(*values), partition)))
            (result,) = stream.receive().results
            return result

    def append(self, records: bytes, partition: int = 0) -> Any:
        """Append the given bytes unchanged; return the result."""
        with Stream(produce_pb2_grpc.ProduceStub(self.cluster.channel).Produce) as stream:
            stream.send(produce_request(1, produce_partition(self.name, records, partition)))
            (result,) = stream.receive().results
            return result

    def read(self, offset: int = 0, partition: int = 0) -> list[bytes | None]:
        """Read all values from ``offset`` to the current log end."""
        end = self.end(partition)
        found: list[bytes | None] = []
        with Stream(fetch_pb2_grpc.FetchStub(self.cluster.channel).Fetch) as stream:
            request = fetch_request(1, fetch_partition(self.name, offset, partition))
            while offset < end:
                stream.send(request)
                for result in stream.receive().results:
                    assert not result.error.code, result.error
                    found += values_of(result.records, offset)
                    offset = result.next_offset
                request = fetch_request(1)
        return found

    def end(self, partition: int = 0) -> int:
        return self.offset_of(-1, partition).offset

    def offset_of(self, timestamp_ms: int, partition: int = 0) -> Any:
        request = offsets_pb2.ListOffsetsRequest(
            partitions=[
                offsets_pb2.ListOffsetsPartition(
                    topic=self.name, partition=partition, timestamp_ms=timestamp_ms, current_leader_epoch=-1
                )
            ]
        )
        (result,) = self.cluster.offsets.ListOffsets(request, timeout=WAIT_S, wait_for_ready=True).results
        return result

    def leader_epoch(self, partition: int = 0) -> int:
        answer = self.cluster.metadata.GetMetadata(metadata_pb2.MetadataRequest(topics=[self.name]), timeout=WAIT_S)
        return int(answer.topics[0].partitions[partition].leader_epoch)


class Stream:
    """A bidirectional gRPC call: requests may be sent at any time, responses are received in order."""

    def __init__(self, method: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(self._outgoing(), timeout=60)

    def _outgoing(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._requests.put(None)

    def send(self, *requests: Any) -> None:
        for request in requests:
            self._requests.put(request)

    def receive(self) -> Any:
        return next(self.call)

    def half_close(self) -> list[Any]:
        """Send no more requests (half-close); return the remaining responses."""
        self._requests.put(None)
        return list(self.call)


def produce_stream(cluster: Cluster) -> Stream:
    return Stream(produce_pb2_grpc.ProduceStub(cluster.channel).Produce)


def fetch_stream(cluster: Cluster, channel: grpc.Channel | None = None) -> Stream:
    return Stream(fetch_pb2_grpc.FetchStub(channel or cluster.channel).Fetch)


def produce_partition(topic: str, records: bytes, partition: int = 0, topic_id: bytes = b"") -> Any:
    return produce_pb2.ProducePartition(topic=topic, partition=partition, records=records, topic_id=topic_id)


def produce_request(
    correlation_id: int, *partitions: Any, acks: int = produce_pb2.ACKS_ALL, timeout_ms: int = 0
) -> Any:
    return produce_pb2.ProduceRequest(
        correlation_id=correlation_id,
        acks=acks,
        timeout_ms=timeout_ms,
        partitions=partitions,  # type: ignore[arg-type]
    )


def fetch_partition(topic: str, offset: int = 0, partition: int = 0, *, epoch: int = -1, **more: Any) -> Any:
    return fetch_pb2.FetchPartition(
        topic=topic,
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=more.pop("last_fetched_epoch", -1),
        **more,
    )


def fetch_request(
    correlation_id: int,
    *partitions: Any,
    max_wait_ms: int = 10_000,
    min_bytes: int = 1,
    max_bytes: int = 0,
    forgotten: Iterable[tuple[str, int]] = (),
) -> Any:
    return fetch_pb2.FetchRequest(
        correlation_id=correlation_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partitions=partitions,
        forgotten=[fetch_pb2.ForgottenPartition(topic=topic, partition=number) for topic, number in forgotten],
    )


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
