"""One controller and several brokers as real processes, and topics with replicas on these brokers."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc

from headrace_core.errors import NotLeaderOrFollowerError
from headrace_core.node.meta_properties import format_directories
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    fetch_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)
from tests.worlds.broker_world import (
    Node,
    Stream,
    batch,
    fetch_partition,
    fetch_request,
    produce_partition,
    produce_request,
)
from tests.worlds.broker_world import values_of as values_in
from tests.worlds.waiting import until

#: Timeout for a slow machine that runs other tests too.
LONG_S = 90.0

_names = itertools.count()


class Fleet:
    """Use the class as ``with Fleet(directory) as fleet``. The brokers have the ids 1, 2, 3, ...; ``keys`` are their
    configuration keys."""

    def __init__(self, directory: Path, brokers: int = 3, **keys: str) -> None:
        self.directory = directory
        self.controller = Node("controller", directory / "controller", "tests", **{"node.id": "1"})
        self._count = brokers
        self._keys = keys
        self.brokers: dict[int, Node] = {}
        self.loads: list[Load] = []
        self._channels: dict[int, grpc.Channel] = {}

    def __enter__(self) -> Fleet:
        try:
            self.controller.start()
            for broker_id in range(1, self._count + 1):
                self.brokers[broker_id] = self._node(broker_id)
                self.brokers[broker_id].launch()
            for node in self.brokers.values():
                node.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def _node(self, broker_id: int) -> Node:
        keys = {
            "controller.quorum.bootstrap.servers": self.controller.address("internal"),
            "node.id": str(broker_id),
            # A broker that is suspended is noticed soon; a broker that is only slow does not count as dead.
            "broker.session.timeout.ms": "9000",
            "replica.lag.time.max.ms": "3000",
            **self._keys,
        }
        return Node("broker", self.directory / f"broker-{broker_id}", "tests", **keys)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for load in self.loads:  # stop them before the resources that they use are removed
            load.stop()
        for channel in self._channels.values():
            channel.close()
        for node in (*self.brokers.values(), self.controller):
            node.close()

    # -- brokers -----------------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """kill -9."""
        self.brokers[broker_id].kill()

    def restart(self, broker_id: int) -> None:
        """Start a broker again; return when it serves."""
        self.brokers[broker_id].start()

    def replace_disk(self, broker_id: int) -> None:
        """Replace the broker's only disk by a new disk, which is formatted and empty."""
        data = self.brokers[broker_id].data
        shutil.rmtree(data)
        format_directories([str(data)], cluster_id="tests", node_id=broker_id)

    def is_up(self, broker_id: int) -> bool:
        process = self.brokers[broker_id].process
        return process is not None and process.poll() is None

    def channel(self, broker_id: int) -> grpc.Channel:
        found = self._channels.get(broker_id)
        if found is None:
            own = ("headrace.test.connection", os.urandom(4).hex())
            reconnect = ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 20)
            found = self._channels[broker_id] = grpc.insecure_channel(
                self.brokers[broker_id].address(), options=[*COMMON_OPTIONS, *reconnect, own]
            )
        return found

    def some_broker(self) -> int:
        return next(broker_id for broker_id in self.brokers if self.is_up(broker_id))

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminStub(self.channel(self.some_broker()))

    # -- topics ------------------------------------------------------------------------------------------------------

    def topic(
        self, partitions: int = 1, *, on: Iterable[int] | None = None, replicas: int = 3, **configs: str
    ) -> ReplicatedTopic:
        """A new topic. ``on``: the brokers of each partition's replicas, leader first; None: the controllers choose."""
        name = f"topic-{next(_names)}"
        new = admin_pb2.NewTopic(name=name, configs={key.replace("_", "."): value for key, value in configs.items()})
        if on is None:
            new.partitions, new.replication_factor = partitions, replicas
        else:
            where = list(on)
            for number in range(partitions):
                new.assignments.add(partition=number, broker_ids=where)
        (result,) = self.admin.CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[new]), timeout=LONG_S, wait_for_ready=True
        ).results
        assert not result.error.code, result.error
        topic = ReplicatedTopic(self, name, partitions)
        until(lambda: all(topic.leader(each) > 0 for each in range(partitions)), f"{name} to be led", LONG_S)
        return topic


class ReplicatedTopic:
    """A topic, with requests to any live broker."""

    def __init__(self, fleet: Fleet, name: str, partitions: int) -> None:
        self.fleet = fleet
        self.name = name
        self.partitions = partitions

    # -- metadata ----------------------------------------------------------------------------------------------------

    def state(self, partition: int = 0) -> Any:
        """The partition's metadata on a live broker."""
        return until(lambda: self._described(), f"a broker to describe {self.name}", LONG_S).partitions[partition]

    def _described(self) -> Any:
        request = metadata_pb2.MetadataRequest(topics=[self.name])
        for broker_id in self.fleet.brokers:
            if not self.fleet.is_up(broker_id):
                continue
            try:
                answer = metadata_pb2_grpc.MetadataStub(self.fleet.channel(broker_id)).GetMetadata(request, timeout=60)
            except grpc.RpcError:  # the broker is starting or stopping
                continue
            (topic,) = answer.topics
            assert not topic.error.code, topic.error
            return topic
        return None

    def leader(self, partition: int = 0) -> int:
        return int(self.state(partition).leader_id)

    def isr(self, partition: int = 0) -> set[int]:
        return set(self.state(partition).isr)

    def wait_isr(self, *members: int, partition: int = 0) -> None:
        until(
            lambda: self.isr(partition) == set(members),
            f"the ISR of {self.name}-{partition} to be {sorted(members)}, not {sorted(self.isr(partition))}",
            LONG_S,
        )

    def wait_leader(self, wanted: Callable[[int], bool], partition: int = 0) -> int:
        def found() -> int | None:
            leader = self.leader(partition)
            return leader if leader > 0 and wanted(leader) else None

        return int(until(found, f"another leader of {self.name}-{partition}", LONG_S))

    # -- records -----------------------------------------------------------------------------------------------------

    def try_append(self, records: bytes, partition: int = 0, *, acks: Any = produce_pb2.ACKS_ALL) -> Any:
        """Try once to append at the current leader; return the result, or None without a live leader. Raises
        grpc.RpcError when the leader dies meanwhile."""
        leader = self.leader(partition)
        # gRPC may not know yet that the connection to a killed broker has ended, and fails as if the request was sent
        if leader < 0 or not self.fleet.is_up(leader):
            return None
        with Stream(produce_pb2_grpc.ProduceStub(self.fleet.channel(leader)).Produce) as stream:
            stream.send(produce_request(1, produce_partition(self.name, records, partition), acks=acks))
            (result,) = stream.receive().results
            return result

    def append(self, *values: bytes, partition: int = 0, acks: Any = produce_pb2.ACKS_ALL) -> int:
        """Append one batch and return its base offset; retry as long as certainly nothing was written."""
        records = batch(*values)

        def appended() -> Any:
            try:
                result = self.try_append(records, partition, acks=acks)
            # the leader is dead, and the controllers have not noticed it yet; nothing was sent
            except grpc.RpcError as error:
                if "failed to connect" not in (error.details() or ""):
                    raise
                return None
            return result if result is not None and not result.error.code else None

        return int(until(appended, f"an append to {self.name}-{partition}", LONG_S).base_offset)

    def try_read(self, offset: int, partition: int = 0) -> bool:
        """Fetch once from the current leader; return False for an error response."""
        leader = self.wait_leader(lambda _: True, partition)
        with Stream(fetch_pb2_grpc.FetchStub(self.fleet.channel(leader)).Fetch) as stream:
            stream.send(fetch_request(1, fetch_partition(self.name, offset, partition), max_wait_ms=0))
            (result,) = stream.receive().results
            return not result.error.code

    def delete_records(self, before: int, partition: int = 0) -> int:
        """Delete the records before an offset; return the new log start offset."""
        item = offsets_pb2.DeleteRecordsPartition(topic=self.name, partition=partition, before_offset=before)
        stub = offsets_pb2_grpc.OffsetsStub(self.fleet.channel(self.leader(partition)))
        request = offsets_pb2.DeleteRecordsRequest(partitions=[item], timeout_ms=int(LONG_S * 1000))
        (result,) = stub.DeleteRecords(request, timeout=LONG_S).results
        assert not result.error.code, result.error
        return int(result.low_watermark)

    def read(self, partition: int = 0) -> list[bytes | None]:
        """All values that a consumer can read from the leader now. If the leadership moves meanwhile, the read begins
        again, as a consumer goes on at the next leader."""
        (found,) = until(lambda: self._try_read_all(partition), f"a leader of {self.name}-{partition} to read", LONG_S)
        return list(found)

    def _try_read_all(self, partition: int) -> tuple[list[bytes | None]] | None:
        leader = self.wait_leader(lambda _: True, partition)
        channel = self.fleet.channel(leader)
        offset, end = self.offset(partition, earliest=True), self.offset(partition)
        found: list[bytes | None] = []
        with Stream(fetch_pb2_grpc.FetchStub(channel).Fetch) as stream:
            request = fetch_request(1, fetch_partition(self.name, offset, partition))
            while offset < end:
                stream.send(request)
                for result in stream.receive().results:
                    if result.error.code == NotLeaderOrFollowerError.number:
                        return None
                    assert not result.error.code, result.error
                    found += values_in(result.records, offset)
                    offset = result.next_offset
                request = fetch_request(1)
        return (found,)

    def offset(self, partition: int = 0, *, earliest: bool = False) -> int:
        """The high watermark according to the leader; with ``earliest``, the log start offset."""

        def asked() -> Any:
            leader = self.leader(partition)
            if leader < 0:
                return None
            request = offsets_pb2.ListOffsetsRequest(
                partitions=[
                    offsets_pb2.ListOffsetsPartition(
                        topic=self.name,
                        partition=partition,
                        timestamp_ms=-2 if earliest else -1,
                        current_leader_epoch=-1,
                    )
                ]
            )
            stub = offsets_pb2_grpc.OffsetsStub(self.fleet.channel(leader))
            (result,) = stub.ListOffsets(request, timeout=LONG_S, wait_for_ready=True).results
            return None if result.error.code else result

        return int(until(asked, f"an offset of {self.name}-{partition}", LONG_S).offset)

    # -- files -------------------------------------------------------------------------------------------------------

    def path(self, broker_id: int, partition: int = 0) -> Path:
        return self.fleet.brokers[broker_id].data / f"{self.name}-{partition}"

    def bytes_on(self, broker_id: int, partition: int = 0) -> bytes:
        """All batches of one replica, in order, from all segments."""
        return b"".join(
            each.read_bytes().rstrip(b"\0") for each in sorted(self.path(broker_id, partition).glob("*.log"))
        )

    def wait_same_bytes(self, *brokers: int, partition: int = 0) -> bytes:
        """Wait until the replicas on the given brokers have the same bytes, at least one byte; return these bytes."""

        def same() -> bytes | None:
            found = {self.bytes_on(broker_id, partition) for broker_id in brokers}
            return found.pop() if len(found) == 1 else None

        return bytes(until(same, f"the replicas of {self.name}-{partition} on {brokers} to be equal", LONG_S))


class Load(threading.Thread):
    """Appends numbered batches with acks=all to the current leader, one after the other. If an append fails, or its
    outcome is unknown, its number is not used again."""

    def __init__(self, topic: ReplicatedTopic, partition: int = 0) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.refused = 0
        self._topic = topic
        self._partition = partition
        self._stopping = threading.Event()
        topic.fleet.loads.append(self)
        self.start()

    def run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                return
            try:
                result = self._topic.try_append(batch(b"%d" % number), self._partition)
            except (grpc.RpcError, StopIteration):
                result = None
            if result is not None and not result.error.code:
                self.acknowledged.append(number)
            else:
                self.refused += 1
                self._stopping.wait(0.02)

    def wait_for(self, more: int) -> None:
        """Wait until ``more`` additional appends are acknowledged."""
        wanted = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= wanted, f"{more} more acknowledged appends", LONG_S)

    def stop(self) -> list[int]:
        self._stopping.set()
        self.join(LONG_S)
        assert not self.is_alive()
        return self.acknowledged


def check_nothing_lost(topic: ReplicatedTopic, acknowledged: list[int], partition: int = 0) -> None:
    """Check that the log has every acknowledged number once, in order."""
    found = [int(value) for value in topic.read(partition) if value is not None]
    assert found == sorted(set(found)), f"{topic.name}-{partition}: twice, or out of order"
    missing = sorted(set(acknowledged) - set(found))
    assert not missing, f"{topic.name}-{partition}: {len(missing)} acknowledged records are lost: {missing[:5]}"


def wait_gone(path: Path) -> None:
    until(lambda: not path.exists(), f"{path} to go", LONG_S)


def now_s() -> float:
    return time.monotonic()
