"""Coordinators of transactions as processes: identities and decisions survive a coordinator's failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.worlds.coordinator_world import LONG_S, GroupsCluster
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, transactions_pb2, transactions_pb2_grpc

_names = itertools.count()


class Transactions:
    """Calls to the coordinators of transactional ids."""

    def __init__(self, cluster: GroupsCluster) -> None:
        self.cluster = cluster

    def owner_of(self, name: str) -> int:
        """The id of the coordinator of a transactional id; -1: none. Creates the topic of the shards."""
        stub = metadata_pb2_grpc.MetadataStub(self.cluster.cluster.channel)
        request = metadata_pb2.FindCoordinatorRequest(type=metadata_pb2.COORDINATOR_TYPE_TRANSACTION, keys=[name])
        return int(stub.FindCoordinator(request, timeout=LONG_S).coordinators[0].coordinator_id)

    def name_at(self, number: int) -> str:
        """A new transactional id of coordinator ``number``."""
        names = (f"transaction-{next(_names)}" for _ in range(1_000))
        return next(
            name for name in names if until(lambda name=name: self.owner_of(name), "an owner", LONG_S) == number
        )

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupsCluster]:
    with GroupsCluster(tmp_path_factory.mktemp("transactions"), coordinators=2) as running:
        yield running


@pytest.fixture
def transactions(cluster: GroupsCluster) -> Transactions:
    return Transactions(cluster)


def test_identities_and_prepared_transactions_outlive_their_coordinator(transactions: Transactions) -> None:
    name = transactions.name_at(1)
    first = transactions.init(name)
    second = transactions.init(name)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
    with pytest.raises(grpc.RpcError, match="PRODUCER_FENCED"):
        transactions.end(name, first, commit=True)
    prepare = transactions_pb2.PrepareTransactionRequest(
        transactional_id=name, producer_id=second.producer_id, producer_epoch=second.producer_epoch
    )
    token = transactions.ask(name, lambda stub: stub.PrepareTransaction(prepare, timeout=20)).token
    node = transactions.cluster.coordinators[1]
    node.kill()
    try:
        until(lambda: transactions.owner_of(name) == 2, "the other coordinator to own the shard", LONG_S)
        described = transactions.described(name)
        assert described.state == transactions_pb2.TRANSACTION_STATE_PREPARED
        assert described.token == token
        kept = transactions.init(name, keep_prepared=True)
        assert kept.prepared == token
        complete = transactions_pb2.CompleteTransactionRequest(token=token, commit=True, wait_for_markers=True)
        for _ in range(2):
            transactions.ask(name, lambda stub: stub.CompleteTransaction(complete, timeout=20))
        assert transactions.described(name).state == transactions_pb2.TRANSACTION_STATE_COMPLETE_COMMIT
        other = transactions.init(f"{name}-other")
        assert other.producer_id != second.producer_id
    finally:
        node.start()


def test_what_clients_send_wrongly_gets_typed_errors(transactions: Transactions) -> None:
    name = transactions.name_at(1)
    with pytest.raises(grpc.RpcError, match="INVALID_TRANSACTION_TIMEOUT"):
        transactions.init(name, transaction_timeout_ms=900_001)
    with pytest.raises(grpc.RpcError, match=r"POLICY_VIOLATION.*two\.phase\.commit"):
        transactions.init(name, enable_two_phase_commit=True)
    with pytest.raises(grpc.RpcError, match=r"INVALID_REQUEST.*belong together"):
        transactions.init(name, producer_id=5)
    producer = transactions.init(name)
    with pytest.raises(grpc.RpcError, match=r"INVALID_TXN_STATE.*send a record first"):
        transactions.end(name, producer, commit=True)
    owner = transactions.owner_of(name)
    stub, wrong = transactions.stub(owner), transactions.stub(3 - owner)
    empty = transactions_pb2.InitProducerRequest(transaction_timeout_ms=60_000)
    with pytest.raises(grpc.RpcError, match=r"INVALID_REQUEST.*transactional\.id"):
        stub.InitProducer(empty, timeout=20)
    request = transactions_pb2.InitProducerRequest(transactional_id=name, transaction_timeout_ms=60_000)
    with pytest.raises(grpc.RpcError, match="NOT_COORDINATOR"):
        wrong.InitProducer(request, timeout=20)
    with pytest.raises(grpc.RpcError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        transactions.ask(
            "nothing",
            lambda stub: stub.AbortTransaction(
                transactions_pb2.AbortTransactionRequest(transactional_id="nothing"), timeout=20
            ),
        )
    with pytest.raises(grpc.RpcError) as unserved:
        stub.CommitTransactionOffsets(transactions_pb2.CommitTransactionOffsetsRequest(), timeout=20)
    assert unserved.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_lists_are_filtered_and_paged_by_name(transactions: Transactions) -> None:
    prefix = f"listed-{next(_names)}-"
    names = sorted(f"{prefix}{number}" for number in range(6))
    for name in names:
        transactions.init(name)

    def listed(**fields: Any) -> list[str]:
        request = transactions_pb2.ListTransactionsRequest(transactional_id_prefix=prefix, **fields)
        found = [transactions.stub(number).ListTransactions(request, timeout=20) for number in (1, 2)]
        assert not any(each.has_more for each in found)
        return sorted(each.transactional_id for page in found for each in page.transactions)

    until(lambda: listed() == names, "all shards to serve", LONG_S)
    assert listed(after=names[2]) == names[3:]
    assert listed(states=[transactions_pb2.TRANSACTION_STATE_EMPTY]) == names
    assert listed(states=[transactions_pb2.TRANSACTION_STATE_ONGOING]) == []
    with pytest.raises(grpc.RpcError, match=r"INVALID_REQUEST.*state 99"):
        listed(states=[99])
