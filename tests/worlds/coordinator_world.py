"""Coordinators as real processes beside a controller and a broker; group members and transactional producers that use
the protocol without the SDK."""

from __future__ import annotations

import itertools
import queue
import signal
import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.worlds.broker_world import Cluster, Node, batch, produce_partition, produce_request, produce_stream
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace_core.metadata.shards import OFFSETS_TOPIC, shard_of
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_protos.v1 import (
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)

#: Timeout for a slow machine that runs other tests too.
LONG_S = 90.0
SHARDS = 4
#: A coordinator that is silent for this time loses its shards.
SESSION_MS = 3_000
GRACE_MS = 500

_numbers = itertools.count()


class GroupsCluster:
    """Use the class as ``with GroupsCluster(directory, coordinators=2) as cluster``."""

    def __init__(self, directory: Path, coordinators: int, **keys: str) -> None:
        """``keys`` are configuration keys of the coordinators."""
        self.cluster = Cluster(directory)
        self.cluster.controller.keys |= {
            "offsets.topic.num.partitions": str(SHARDS),
            "transaction.state.log.num.partitions": str(SHARDS),
            "broker.session.timeout.ms": str(SESSION_MS),
        }
        self._directory = directory
        self._count = coordinators
        self._keys = keys
        self.coordinators: dict[int, Node] = {}
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> GroupsCluster:
        try:
            self.cluster.start()
            for number in range(1, self._count + 1):
                self.coordinators[number] = self._node(number)
                self.coordinators[number].launch()
            for node in self.coordinators.values():
                node.wait_serving()
            until(lambda: len(set(self.owners())) == self._count, "every coordinator to own shards", LONG_S)
        except BaseException:
            self.close()
            raise
        return self

    def _node(self, number: int) -> Node:
        keys = {
            "controller.quorum.bootstrap.servers": self.cluster.controller.address("internal"),
            "node.id": str(number),
            "broker.session.timeout.ms": str(SESSION_MS),
            "broker.heartbeat.interval.ms": "300",
            **self._keys,
        }
        return Node("coordinator", self._directory / f"coordinator-{number}", "tests", **keys)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        for node in self.coordinators.values():
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
            node.close()
        self.cluster.close()

    # -- owners of shards ---------------------------------------------------------------------------------------------

    def owners(self) -> list[int]:
        """The coordinator of each shard; the first call also creates the topic of the shards."""
        stub = metadata_pb2_grpc.MetadataStub(self.cluster.channel)
        stub.FindCoordinator(metadata_pb2.FindCoordinatorRequest(keys=["g"]), timeout=LONG_S)
        assignments = stub.GetMetadata(metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]), timeout=LONG_S)
        return [each.coordinator_id for each in assignments.topics[0].partitions]

    def owner_of(self, group: str) -> int:
        """The id of a shard's coordinator; -1 if the shard has none."""
        owners = self.owners()
        return owners[shard_of(group, len(owners))] if owners else -1

    def group_of(self, number: int) -> str:
        """The name of a new group whose coordinator has the id ``number``."""

        def found() -> str | None:
            group = f"group-{next(_numbers)}"
            return group if self.owner_of(group) == number else None

        return str(until(found, f"coordinator {number} to own a shard", LONG_S))

    def wait_owner(self, group: str, *, other_than: int) -> int:
        def found() -> int | None:
            owner = self.owner_of(group)
            return owner if owner not in (-1, other_than) else None

        return int(until(found, f"another coordinator than {other_than} to own {group}", LONG_S))

    def stub(self, number: int) -> Any:
        return groups_pb2_grpc.GroupsStub(self.channel_to(number))

    def channel_to(self, number: int) -> grpc.Channel:
        """The channel to the client listener of coordinator ``number``."""
        address = self.coordinators[number].address()
        channel = self._channels.get(address)
        if channel is None:
            reconnect = ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 20)
            channel = self._channels[address] = grpc.insecure_channel(address, options=[*COMMON_OPTIONS, *reconnect])
        return channel

    # -- calls to the group's owner -----------------------------------------------------------------------------------

    def ask(self, group: str, call: Callable[[Any], Any]) -> Any:
        """Call a group's coordinator and return its answer; failed calls are repeated as a client would repeat them."""
        return _answer(group, self, call)

    def commit(self, group: str, topic: str, offset: int, **who: Any) -> None:
        (result,) = self.ask(
            group, lambda stub: stub.CommitOffsets(commit(group, topic, offset, **who), timeout=20)
        ).results
        assert not result.error.code, result.error

    def committed(self, group: str, topic: str) -> int:
        def found() -> Any:
            (answer,) = self.ask(group, lambda stub: stub.FetchOffsets(fetch(group, topic), timeout=20)).groups
            return None if answer.error.code in (14, 15, 16) else answer

        answer = until(found, f"the offsets of {group}", LONG_S)
        assert not answer.error.code, answer.error
        return int(answer.offsets[0].offset)

    def describe(self, group: str) -> Any:
        (described,) = self.ask(
            group, lambda stub: stub.DescribeGroups(groups_pb2.DescribeGroupsRequest(group_ids=[group]), timeout=20)
        ).groups
        return described


def commit(group: str, topic: str, offset: int, member: str = "", epoch: int = -1) -> Any:
    one = groups_pb2.OffsetToCommit(topic=topic, partition=0, offset=offset, leader_epoch=-1)
    return groups_pb2.CommitOffsetsRequest(group_id=group, member_id=member, member_epoch=epoch, offsets=[one])


def fetch(group: str, topic: str) -> Any:
    wanted = groups_pb2.PartitionNames(partitions=[groups_pb2.PartitionName(topic=topic, partition=0)])
    one = groups_pb2.OffsetsOfGroup(group_id=group, member_epoch=-1, partitions=wanted)
    return groups_pb2.FetchOffsetsRequest(groups=[one])


class Member:
    """A group member with its own stream. The member reports at once that it reads the assigned partitions and has
    released all others."""

    def __init__(self, cluster: GroupsCluster, group: str, topics: Iterable[str], instance: str | None = None) -> None:
        self.cluster, self.group, self.instance = cluster, group, instance
        self.id = str(uuid.uuid4())
        self.topics = list(topics)
        self.epoch = self.revision = 0
        self.assignment: frozenset[tuple[str, int]] = frozenset()
        #: The assignments that the member received, in order.
        self.assignments: list[frozenset[tuple[str, int]]] = []
        self.ended: grpc.RpcError | None = None
        self._partitions: Any = groups_pb2.GroupPartitions()
        self._lock = threading.Lock()
        self._has_left = False
        self.connect()

    def connect(self) -> None:
        """Open a new stream to the group's coordinator, on which the member continues."""
        self.ended = None
        #: The number of responses without an error on the current stream.
        self.answers = 0
        self._correlation = itertools.count(1)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests = self._requests
        number = until(lambda: max(self.cluster.owner_of(self.group), 0), "an owner", LONG_S)
        self.call = self.cluster.stub(number).Membership(iter(requests.get, None))
        threading.Thread(target=self._read, args=(self.call,), daemon=True).start()
        self.heartbeat(everything=True)

    def heartbeat(self, *, everything: bool = False) -> None:
        with self._lock:
            beat = groups_pb2.MemberHeartbeat(
                group_id=self.group, member_id=self.id, member_epoch=self.epoch, revision=self.revision
            )
            beat.owned.CopyFrom(self._partitions)
            if self.instance is not None:
                beat.instance_id = self.instance
            if everything:
                beat.topics.names.extend(self.topics)
                beat.rebalance_timeout_ms = 60_000
                beat.client_id = "by hand"
            self._requests.put(groups_pb2.MembershipRequest(correlation_id=next(self._correlation), heartbeat=beat))

    def leave(self) -> None:
        self._has_left = True
        leaving = groups_pb2.MemberLeave(group_id=self.group, member_id=self.id)
        self._requests.put(groups_pb2.MembershipRequest(correlation_id=next(self._correlation), leave=leaving))

    def hang_up(self) -> None:
        """Close the stream without a leave request, as the end of a process does."""
        self.call.cancel()

    def wait(self, condition: Callable[[Member], Any], what: str) -> None:
        until(lambda: condition(self), f"{what}; it has {sorted(self.assignment)}, {self.ended}", LONG_S)

    def _read(self, call: Any) -> None:
        try:
            for response in call:
                self._take(response)
        except grpc.RpcError as error:
            if call is self.call:
                self.ended = error

    def _take(self, response: Any) -> None:
        if self._has_left:
            return
        if response.error.code in (14, 15, 16):  # the shard is being loaded, or moves
            threading.Timer(0.1, self.heartbeat, kwargs={"everything": True}).start()
            return
        assert not response.error.code, response.error
        with self._lock:
            self.answers += 1
            self.epoch = response.member_epoch
            if not response.HasField("assignment"):
                return
            self.revision = response.revision
            self._partitions = response.assignment
            self.assignment = frozenset(
                (topic.topic, partition) for topic in response.assignment.topics for partition in topic.partitions
            )
            self.assignments.append(self.assignment)
        self.heartbeat()


_names = itertools.count()


def _answer(name: str, calls: GroupsCluster | Transactions, call: Callable[[Any], Any]) -> Any:
    def answer() -> Any:
        owner = calls.owner_of(name)
        if owner < 0:
            return None
        try:
            return call(calls.stub(owner))
        except grpc.RpcError as error:
            # these are the retriable errors, and a missing connection
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return None

    return until(answer, f"the coordinator of {name} to answer", LONG_S)


class Transactions:
    """Calls to the coordinators of transactional ids."""

    def __init__(self, cluster: GroupsCluster) -> None:
        self.cluster = cluster

    def owner_of(self, name: str) -> int:
        """Return the id of the coordinator of a transactional id; -1: none. The call also creates the topic of the
        shards."""
        stub = metadata_pb2_grpc.MetadataStub(self.cluster.cluster.channel)
        request = metadata_pb2.FindCoordinatorRequest(type=metadata_pb2.COORDINATOR_TYPE_TRANSACTION, keys=[name])
        return int(stub.FindCoordinator(request, timeout=LONG_S).coordinators[0].coordinator_id)

    def name_at(self, number: int) -> str:
        """Return a new transactional id that belongs to coordinator ``number``."""

        def found() -> str | None:
            name = f"transaction-{next(_names)}"
            return name if self.owner_of(name) == number else None

        # (a coordinator that has just started gets its shards soon)
        return str(until(found, f"coordinator {number} to own a shard", LONG_S))

    def stub(self, number: int) -> Any:
        return transactions_pb2_grpc.TransactionsStub(self.cluster.channel_to(number))

    def ask(self, name: str, call: Callable[[Any], Any]) -> Any:
        """Call the coordinator of ``name``; repeat retriable errors, as a client does."""
        return _answer(name, self, call)

    def init(self, name: str, **fields: Any) -> Any:
        request = transactions_pb2.InitProducerRequest(
            **{"transactional_id": name, "transaction_timeout_ms": 60_000, **fields}
        )
        return self.ask(name, lambda stub: stub.InitProducer(request, timeout=20))

    def end(self, name: str, producer: Any, *, commit: bool, **fields: Any) -> Any:
        request = transactions_pb2.EndTransactionRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commit=commit,
            transaction_version=2,
            **fields,
        )
        return self.ask(name, lambda stub: stub.EndTransaction(request, timeout=20))

    def described(self, name: str) -> Any:
        request = transactions_pb2.DescribeTransactionsRequest(transactional_ids=[name])

        def describe(stub: Any) -> Any:
            (found,) = stub.DescribeTransactions(request, timeout=20).transactions
            return None if found.error.code in (14, 15, 16) else found

        return self.ask(name, describe)


class Producer:
    """A transactional producer without the SDK."""

    def __init__(self, transactions: Transactions, name: str, topic: str, **fields: Any) -> None:
        self.transactions = transactions
        self.name = name
        self.topic = topic
        self.identity = transactions.init(name, **fields)
        self._sequences: dict[int, int] = {}

    def send(self, value: bytes, partition: int = 0) -> Any:
        """Append one record; repeat retriable errors. Returns the result."""
        sequence = self._sequences.get(partition, 0)
        records = batch(
            value,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_request(1, produce_partition(self.topic, records, partition))
        request.transactional_id, request.transaction_version = self.name, 2

        def sent() -> Any:
            with produce_stream(self.transactions.cluster.cluster) as stream:
                stream.send(request)
                try:
                    (result,) = stream.receive().results
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    return None
            return None if result.error.code in RETRIABLE else result

        result = until(sent, "an answer to the append", LONG_S)
        if not result.error.code:
            self._sequences[partition] = sequence + 1
        return result

    def offsets(self, group: str, topic: str, offset: int, **fields: Any) -> Any:
        """Build a request that adds the offset of partition 0 to the transaction."""
        one = groups_pb2.OffsetToCommit(topic=topic, partition=0, offset=offset, leader_epoch=-1)
        return transactions_pb2.CommitTransactionOffsetsRequest(
            **{
                "transactional_id": self.name,
                "producer_id": self.identity.producer_id,
                "producer_epoch": self.identity.producer_epoch,
                "transaction_version": 2,
                "group_id": group,
                "member_epoch": -1,
                "offsets": [one],
                **fields,
            }
        )

    def send_offsets(self, request: Any) -> None:
        """Send a request of ``offsets`` to the group's coordinator; repeat retriable errors."""
        cluster = self.transactions.cluster

        def answer() -> Any:
            owner = cluster.owner_of(request.group_id)
            if owner < 0:
                return None
            stub = transactions_pb2_grpc.TransactionsStub(cluster.channel_to(owner))
            try:
                return stub.CommitTransactionOffsets(request, timeout=20)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return None

        (result,) = until(answer, f"the coordinator of {request.group_id} to answer", LONG_S).results
        assert not result.error.code, result.error

    def end(self, *, commit: bool, **fields: Any) -> None:
        self.identity = self.transactions.end(self.name, self.identity, commit=commit, **fields)
        self._sequences.clear()


#: NOT_LEADER_OR_FOLLOWER, LEADER_NOT_AVAILABLE, COORDINATOR_*, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS.
RETRIABLE = (5, 6, 14, 15, 16, 51)
INVALID_PRODUCER_EPOCH = 47
