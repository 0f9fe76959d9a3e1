"""Offsets in transactions, with coordinators as processes: offsets take effect with the transaction, or not at all."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worlds.coordinator_world import LONG_S, GroupsCluster, Member, Producer, Transactions, fetch
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace_protos.v1 import transactions_pb2

_names = itertools.count()
UNSTABLE_OFFSET_COMMIT = 88


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupsCluster]:
    """Two coordinators; a test that ends one starts it again."""
    with GroupsCluster(tmp_path_factory.mktemp("offsets"), coordinators=2) as running:
        until(lambda: Transactions(running).owner_of("any") > 0, "the shards of transactions to have owners", LONG_S)
        yield running
        # (the last test of a part of the tests may have restarted one of them)
        until(lambda: set(running.owners()) == {1, 2}, "both coordinators to own shards", LONG_S)


@pytest.fixture
def transactions(cluster: GroupsCluster) -> Transactions:
    until(lambda: set(cluster.owners()) == {1, 2}, "both coordinators to own shards", LONG_S)
    return Transactions(cluster)


@pytest.fixture
def topic(cluster: GroupsCluster) -> str:
    """Of four partitions."""
    return str(cluster.cluster.topic(f"topic-{next(_names)}", 4).name)


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


def test_offsets_take_effect_with_the_transaction(transactions: Transactions, topic: str) -> None:
    cluster, group = transactions.cluster, transactions.cluster.group_of(1)
    cluster.commit(group, topic, 3)
    producer = Producer(transactions, transactions.name_at(2), topic)
    for commit, offset in ((True, 10), (False, 20), (True, 30)):
        before = stable(cluster, group, topic)
        assert not producer.send(b"%d" % offset).error.code
        producer.send_offsets(producer.offsets(group, topic, offset - 1, sequence=1))
        producer.send_offsets(producer.offsets(group, topic, offset, sequence=2))
        producer.send_offsets(producer.offsets(group, topic, offset - 1, sequence=1))  # delayed and repeated
        assert stable(cluster, group, topic) is None
        assert cluster.committed(group, topic) == before
        (pending,) = cluster.describe(group).pending_offsets
        assert (pending.topic, pending.partition, pending.offset) == (topic, 0, offset)
        assert (pending.transactional_id, pending.producer_id) == (producer.name, producer.identity.producer_id)
        producer.end(commit=commit, wait_for_markers=True)
        assert stable(cluster, group, topic) == (offset if commit else before)
        assert not cluster.describe(group).pending_offsets


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


def test_a_member_that_was_fenced_adds_no_offsets(transactions: Transactions, topic: str) -> None:
    cluster, group = transactions.cluster, transactions.cluster.group_of(1)
    member = Member(cluster, group, [topic])
    member.wait(lambda member: len(member.assignment) == 4, "the member to have all partitions")
    producer = Producer(transactions, transactions.name_at(2), topic)
    with pytest.raises(grpc.RpcError, match="UNKNOWN_MEMBER_ID"):
        producer.send_offsets(producer.offsets(group, topic, 1, member_id="unknown", member_epoch=1))
    with pytest.raises(grpc.RpcError, match="STALE_MEMBER_EPOCH"):
        producer.send_offsets(producer.offsets(group, topic, 1, member_id=member.id, member_epoch=member.epoch - 1))
    producer.send_offsets(producer.offsets(group, topic, 1, member_id=member.id, member_epoch=member.epoch))
    producer.end(commit=True, wait_for_markers=True)
    assert stable(cluster, group, topic) == 1
    epoch = member.epoch
    member.leave()
    until(lambda: not cluster.describe(group).members, "the group to be empty", LONG_S)
    with pytest.raises(grpc.RpcError, match="UNKNOWN_MEMBER_ID"):
        producer.send_offsets(producer.offsets(group, topic, 2, member_id=member.id, member_epoch=epoch))
    producer.end(commit=False)
    assert stable(cluster, group, topic) == 1


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


def test_offsets_of_a_transaction_that_times_out_are_dropped(transactions: Transactions, topic: str) -> None:
    cluster, group = transactions.cluster, transactions.cluster.group_of(2)
    producer = Producer(transactions, transactions.name_at(2), topic, transaction_timeout_ms=500)
    producer.send_offsets(producer.offsets(group, topic, 5))
    until(lambda: stable(cluster, group, topic) == -1, "the time-out", LONG_S)
    with pytest.raises(grpc.RpcError, match="TRANSACTION_ABORTABLE"):
        producer.end(commit=True)


def test_what_clients_send_wrongly_gets_typed_errors(transactions: Transactions, topic: str) -> None:
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
