"""Calls to the coordinators of transactions, and transactional producers, without the SDK."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.worlds.broker_world import batch, produce_partition, produce_request, produce_stream
from tests.worlds.coordinator_world import LONG_S, GroupsCluster
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace_protos.v1 import groups_pb2, metadata_pb2, metadata_pb2_grpc, transactions_pb2, transactions_pb2_grpc

_names = itertools.count()


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

        def answer() -> Any:
            owner = self.owner_of(name)
            if owner < 0:
                return None
            try:
                return call(self.stub(owner))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return None

        return until(answer, f"the coordinator of {name} to answer", LONG_S)

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
