"""Coordinators of transactions as processes: identities, decisions and the offsets in transactions survive a
coordinator's failure."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worlds.coordinator_world import INVALID_PRODUCER_EPOCH, LONG_S, GroupsCluster, Producer, Transactions, fetch
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace import Consumer, TopicPartition
from headrace_protos.v1 import transactions_pb2

_names = itertools.count()
UNSTABLE_OFFSET_COMMIT = 88


def read_committed(cluster: GroupsCluster, topic: str, count: int, partitions: int = 4) -> list[bytes | None]:
    """The first ``count`` values that a read_committed consumer returns, sorted."""
    bootstrap = cluster.cluster.broker.address()
    found: list[bytes | None] = []
    with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        until(
            lambda: found.extend(record.value for record in consumer.poll(0.1)) or len(found) >= count,
            "records",
            LONG_S,
        )
        found += [record.value for record in consumer.poll(0.3)]
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupsCluster]:
    with GroupsCluster(tmp_path_factory.mktemp("transactions"), coordinators=2) as running:
        yield running


@pytest.fixture
def transactions(cluster: GroupsCluster) -> Transactions:
    until(lambda: set(cluster.owners()) == {1, 2}, "both coordinators to own shards", LONG_S)
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


@pytest.fixture
def topic(cluster: GroupsCluster) -> str:
    """Of four partitions."""
    return str(cluster.cluster.topic(f"topic-{next(_names)}", 4).name)


def test_readers_see_the_committed_transactions_of_two_producers_and_no_other(
    transactions: Transactions, topic: str
) -> None:
    """Each transaction writes to all partitions, and ends before the markers of the previous transaction are
    written."""
    producers = [Producer(transactions, transactions.name_at(number), topic) for number in (1, 2)]
    expected = []
    for number in range(12):
        for which, producer in enumerate(producers):
            is_commit = (number + which) % 3 != 0
            for partition in range(4):
                value = f"{which}-{number}-{partition}".encode()
                result = producer.send(value, partition)
                assert not result.error.code, result.error
                expected += [value] * is_commit
            producer.end(commit=is_commit)
    assert read_committed(transactions.cluster, topic, len(expected)) == sorted(expected, key=str)
    for producer in producers:
        producer.end(commit=False, wait_for_markers=True)  # without records: nothing to wait for
        assert transactions.described(producer.name).state == transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT


def test_open_and_decided_transactions_survive_their_coordinator(transactions: Transactions, topic: str) -> None:
    producers = [Producer(transactions, transactions.name_at(1), topic) for _ in range(6)]
    for number, producer in enumerate(producers):
        assert not producer.send(b"%d" % number, number % 4).error.code
    for producer in producers[:3]:
        producer.end(commit=True)
    node = transactions.cluster.coordinators[1]
    node.kill()
    try:
        for producer in producers[3:5]:
            producer.end(commit=True, wait_for_markers=True)
        producers[5].end(commit=False, wait_for_markers=True)
        assert read_committed(transactions.cluster, topic, 5) == [b"%d" % number for number in range(5)]
        for producer in producers:
            assert not producer.send(b"next").error.code
            producer.end(commit=False, wait_for_markers=True)
    finally:
        node.start()


def test_a_transaction_that_timed_out_is_aborted_and_its_producer_is_refused(
    transactions: Transactions, topic: str
) -> None:
    slow = Producer(transactions, transactions.name_at(2), topic, transaction_timeout_ms=3_000)
    assert not slow.send(b"late").error.code
    other = Producer(transactions, transactions.name_at(1), topic)
    assert not other.send(b"well").error.code
    other.end(commit=True)
    assert read_committed(transactions.cluster, topic, 1) == [b"well"], "after the time-out"
    # (readers see the marker before the coordinator has written that all markers are written)
    complete = transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT
    until(lambda: transactions.described(slow.name).state == complete, "the abort to be complete", LONG_S)
    assert slow.send(b"too late").error.code == INVALID_PRODUCER_EPOCH
    with pytest.raises(grpc.RpcError, match="TRANSACTION_ABORTABLE"):
        slow.end(commit=True)
    slow.end(commit=False)
    assert not slow.send(b"again").error.code
    slow.end(commit=True, wait_for_markers=True)
    assert read_committed(transactions.cluster, topic, 2) == [b"again", b"well"]


def test_a_new_producer_of_the_same_id_aborts_the_former_ones_transaction(
    transactions: Transactions, topic: str
) -> None:
    name = transactions.name_at(1)
    zombie = Producer(transactions, name, topic)
    for partition in range(4):
        assert not zombie.send(b"zombie", partition).error.code
    successor = Producer(transactions, name, topic)
    assert successor.identity.producer_epoch > zombie.identity.producer_epoch
    for partition in range(4):
        assert zombie.send(b"zombie", partition).error.code == INVALID_PRODUCER_EPOCH
    with pytest.raises(grpc.RpcError, match="PRODUCER_FENCED"):
        zombie.end(commit=True)
    assert not successor.send(b"successor").error.code
    successor.end(commit=True)
    assert read_committed(transactions.cluster, topic, 1) == [b"successor"]


def test_markers_wait_for_a_broker_that_is_down(transactions: Transactions, topic: str) -> None:
    producer = Producer(transactions, transactions.name_at(2), topic)
    for partition in range(4):
        assert not producer.send(b"%d" % partition, partition).error.code
    transactions.cluster.cluster.broker.kill()
    transactions.cluster.cluster.restart()
    producer.end(commit=True, wait_for_markers=True)
    assert read_committed(transactions.cluster, topic, 4) == [b"0", b"1", b"2", b"3"]


def stable(cluster: GroupsCluster, group: str, topic: str) -> int | None:
    """Return the committed offset of partition 0, or None while a transaction may change it."""
    request = fetch(group, topic)
    request.require_stable = True

    def found() -> Any:
        (answer,) = cluster.ask(group, lambda stub: stub.FetchOffsets(request, timeout=20)).groups
        return None if answer.error.code in (14, 15, 16) else answer

    answer = until(found, f"the offsets of {group}", LONG_S)
    assert not answer.error.code, answer.error
    (offset,) = answer.offsets
    assert offset.error.code in (0, UNSTABLE_OFFSET_COMMIT), offset.error
    return None if offset.error.code else int(offset.offset)


def test_pending_offsets_outlive_the_owner_of_the_groups_shard(transactions: Transactions, topic: str) -> None:
    cluster = transactions.cluster
    groups = [cluster.group_of(1) for _ in range(2)]
    producers = [Producer(transactions, transactions.name_at(2), topic) for _ in groups]
    for group, producer in zip(groups, producers, strict=True):
        producer.send_offsets(producer.offsets(group, topic, 7))
    node = cluster.coordinators[1]
    node.kill()
    try:
        producers[0].end(commit=True)  # the marker has no receiver yet
        assert cluster.wait_owner(groups[1], other_than=1) == 2
        assert stable(cluster, groups[1], topic) is None, "the new owner knows the pending offset"
        producers[1].end(commit=False, wait_for_markers=True)
        assert stable(cluster, groups[1], topic) == -1
        until(lambda: stable(cluster, groups[0], topic) == 7, "the marker to reach the new owner", LONG_S)
    finally:
        node.start()


def test_a_decided_transaction_outlives_its_coordinator(transactions: Transactions, topic: str) -> None:
    """The coordinator of the transaction dies between the decision and the marker."""
    cluster, group = transactions.cluster, transactions.cluster.group_of(1)
    producer = Producer(transactions, transactions.name_at(2), topic)
    producer.send_offsets(producer.offsets(group, topic, 7))
    owner, decider = cluster.coordinators[1], cluster.coordinators[2]
    assert owner.process is not None
    owner.process.send_signal(signal.SIGSTOP)
    try:
        producer.end(commit=True)
        decider.kill()
    finally:
        owner.process.send_signal(signal.SIGCONT)
    try:
        until(lambda: stable(cluster, group, topic) == 7, "the next coordinator to send the marker", LONG_S)
        producer.send_offsets(producer.offsets(group, topic, 8))
        producer.end(commit=True, wait_for_markers=True)
        assert stable(cluster, group, topic) == 8
    finally:
        decider.start()


def test_late_offsets_of_a_zombie_are_refused(transactions: Transactions, topic: str) -> None:
    cluster, group = transactions.cluster, transactions.cluster.group_of(1)
    name = transactions.name_at(2)
    zombie = Producer(transactions, name, topic)
    zombie.send_offsets(zombie.offsets(group, topic, 5))
    successor = Producer(transactions, name, topic)
    for _ in range(2):
        with pytest.raises(grpc.RpcError, match="INVALID_PRODUCER_EPOCH"):
            zombie.send_offsets(zombie.offsets(group, topic, 6))
        assert stable(cluster, group, topic) == -1, "the successor has aborted the transaction"
    late = successor.offsets(group, topic, 7)
    successor.send_offsets(late)
    successor.end(commit=True, wait_for_markers=True)  # (before that, the late offsets get CONCURRENT_TRANSACTIONS)
    with pytest.raises(grpc.RpcError, match="INVALID_PRODUCER_EPOCH"):
        successor.send_offsets(late)
    successor.send_offsets(successor.offsets(group, topic, 8))
    prepare = transactions_pb2.PrepareTransactionRequest(
        transactional_id=name,
        producer_id=successor.identity.producer_id,
        producer_epoch=successor.identity.producer_epoch,
    )
    token = transactions.ask(name, lambda stub: stub.PrepareTransaction(prepare, timeout=20)).token
    with pytest.raises(grpc.RpcError, match="INVALID_TXN_STATE"):
        successor.send_offsets(successor.offsets(group, topic, 9))
    complete = transactions_pb2.CompleteTransactionRequest(token=token, commit=True, wait_for_markers=True)
    transactions.ask(name, lambda stub: stub.CompleteTransaction(complete, timeout=20))
    assert stable(cluster, group, topic) == 8


def test_offsets_that_clients_send_wrongly_get_typed_errors(transactions: Transactions, topic: str) -> None:
    cluster, group = transactions.cluster, transactions.cluster.group_of(1)
    producer = Producer(transactions, transactions.name_at(1), topic)
    for fields, error in (
        ({"transaction_version": 3}, "INVALID_REQUEST.*must be 1 or 2"),
        ({"transactional_id": ""}, r"INVALID_REQUEST.*transactional\.id"),
        ({"producer_epoch": 40_000}, "INVALID_REQUEST.*at most 32767"),
        ({"sequence": -1}, "INVALID_REQUEST.*must not be negative"),
        ({"member_id": "m", "member_epoch": 3}, "GROUP_ID_NOT_FOUND"),
        ({"producer_id": 1 << 40}, "INVALID_PRODUCER_ID_MAPPING"),
        ({"transactional_id": f"{producer.name}-other"}, "INVALID_PRODUCER_ID_MAPPING"),
        ({"transaction_version": 1}, "INVALID_TXN_STATE.*not in the open transaction"),
    ):
        with pytest.raises(grpc.RpcError, match=error):
            producer.send_offsets(producer.offsets(group, topic, 1, **fields))
    with pytest.raises(grpc.RpcError, match="INVALID_GROUP_ID"):
        producer.send_offsets(producer.offsets("", topic, 1))
    assert stable(cluster, group, topic) == -1
