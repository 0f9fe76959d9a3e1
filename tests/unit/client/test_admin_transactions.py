"""Admin calls about transactions: which coordinator or leader gets which request, and how its responses are handled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace import Admin, AsyncAdmin, ProducerState, TopicPartition, TransactionListing, TransactionToken
from headrace.errors import (
    InvalidArgumentError,
    InvalidTxnStateError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.worlds.coordinators_standin import StandinTransactionsWorld, serving_transactions

ONGOING, PREPARED = transactions_pb2.TRANSACTION_STATE_ONGOING, transactions_pb2.TRANSACTION_STATE_PREPARED
DONE = transactions_pb2.TRANSACTION_STATE_COMPLETE_COMMIT
O0, O1, C0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0)


@pytest.fixture
def world() -> Iterator[StandinTransactionsWorld]:
    with serving_transactions() as found:
        found.add(
            "apple", ONGOING, producer_id=7, producer_epoch=3, started_at_ms=500, updated_at_ms=501,
            transaction_version=2, partitions=[groups_pb2.PartitionName(topic="orders", partition=1)],
        )  # fmt: skip
        found.add("berry", DONE, producer_id=8, producer_epoch=0, timeout_ms=2**31 - 1)
        yield found


@pytest.fixture
def admin(world: StandinTransactionsWorld) -> Iterator[Admin]:
    with Admin(bootstrap_servers=world.coordinators[0].address, retry_backoff_ms=1, retry_backoff_max_ms=20) as client:
        yield client


def test_all_coordinators_list_their_transactional_ids(world: StandinTransactionsWorld, admin: Admin) -> None:
    assert admin.list_transactions() == [
        TransactionListing("apple", 1, 7, "ongoing", 500),
        TransactionListing("berry", 2, 8, "complete-commit", None),
    ]
    (only,) = admin.list_transactions(["Ongoing", "prepared"], producer_ids=[7, 9], open_for_ms=0, prefix="a")
    assert only.transactional_id == "apple"
    asked = world.asked_of("ListTransactions")[-1]
    assert (list(asked.states), list(asked.producer_ids)) == ([ONGOING, PREPARED], [7, 9])
    assert (asked.open_for_ms, asked.transactional_id_prefix) == (0, "a")
    assert not world.asked_of("ListTransactions")[0].HasField("open_for_ms")


def test_list_has_all_pages(world: StandinTransactionsWorld, admin: Admin) -> None:
    ids = [f"a{number:03}" for number in range(25)]
    for each in ids:
        world.add(each, DONE)
    world.page_size = 10
    assert [each.transactional_id for each in admin.list_transactions()] == [*ids, "apple", "berry"]
    assert len(world.asked_of("ListTransactions")) == 4


def test_list_is_complete_or_fails(world: StandinTransactionsWorld, admin: Admin) -> None:
    world.loading = [1, 0]
    assert len(admin.list_transactions()) == 2
    assert len(world.asked_of("ListTransactions")) == 4
    world.owner = lambda key: 0 if key.startswith("a") else None
    with pytest.raises(RequestTimedOutError, match="1 of 2 transaction shards have no coordinator"):
        admin.list_transactions(timeout=2)
    world.has_shards = False
    assert admin.list_transactions() == []


def test_descriptions_are_in_the_order_of_the_request(world: StandinTransactionsWorld, admin: Admin) -> None:
    world.add("cherry", PREPARED, token=transactions_pb2.TransactionToken(transactional_id="cherry", producer_id=9))
    berry, apple, cherry = admin.describe_transactions(["berry", "apple", "cherry"])
    assert (apple.state, apple.coordinator_id, apple.producer_id, apple.producer_epoch) == ("ongoing", 1, 7, 3)
    assert (apple.timeout_ms, apple.started_at_ms, apple.updated_at_ms) == (60_000, 500, 501)
    assert (apple.transaction_version, apple.partitions, apple.token) == (2, (O1,), None)
    assert (berry.coordinator_id, berry.timeout_ms, berry.started_at_ms) == (2, None, None)
    assert cherry.token == TransactionToken("cherry", 9, 0)
    assert world.counts()["DescribeTransactions"] == 2
    unknown, known = admin.describe_transactions(["avocado", "apple"], raise_errors=False)
    assert isinstance(unknown.error, TransactionalIdNotFoundError)
    assert known.error is None
    with pytest.raises(TransactionalIdNotFoundError, match=r"avocado.*banana"):
        admin.describe_transactions(["avocado", "apple", "banana"])


def test_abort_goes_to_the_coordinator_of_the_id(world: StandinTransactionsWorld, admin: Admin) -> None:
    admin.abort_transaction("apple")
    assert admin.describe_transactions("apple")[0].state == "complete-abort"
    with pytest.raises(InvalidTxnStateError, match="no transaction of 'apple' is open"):
        admin.abort_transaction("apple")
    with pytest.raises(TransactionalIdNotFoundError):
        admin.abort_transaction("avocado")


def test_producers_are_described_by_leaders(world: StandinTransactionsWorld, admin: Admin) -> None:
    active = transactions_pb2.ActiveProducer
    world.producers = {
        tuple(O0): [
            active(
                producer_id=7, producer_epoch=3, last_sequence=4, last_timestamp_ms=90, coordinator_epoch=2,
                transaction_start_offset=0,
            )
        ],
        tuple(O1): [
            active(producer_id=8, producer_epoch=0, last_sequence=-1, last_timestamp_ms=-1, coordinator_epoch=-1)
        ],
    }  # fmt: skip
    assert admin.describe_producers([O1, C0, O0]) == {
        O1: [ProducerState(8, 0, None, None, None, None)],
        C0: [],
        O0: [ProducerState(7, 3, 4, 90, 2, 0)],
    }
    assert admin.describe_producers([]) == {}
    with pytest.raises(UnknownTopicOrPartitionError, match="pears"):
        admin.describe_producers([TopicPartition("pears", 0)])


def test_partitions_without_an_answer_are_asked_for_again(world: StandinTransactionsWorld, admin: Admin) -> None:
    world.room = 1
    assert list(admin.describe_producers([O0, O1, C0])) == [O0, O1, C0]
    assert [len(each.partitions) for each in world.asked_of("DescribeProducers")] == [3, 2, 1]
    world.partition_errors = {tuple(O1): [NotLeaderOrFollowerError("moved")]}
    assert list(admin.describe_producers([O1])) == [O1]
    world.room = 0
    with pytest.raises(Exception, match="no room"):
        admin.describe_producers([O0])


def test_hanging_transaction_is_ended_at_the_leader(world: StandinTransactionsWorld, admin: Admin) -> None:
    producer = transactions_pb2.ActiveProducer(producer_id=7, producer_epoch=3, transaction_start_offset=0)
    world.producers[tuple(O0)] = [producer]
    with pytest.raises(InvalidTxnStateError):
        admin.abort_hanging_transaction(O0, producer_id=7, start_offset=5)
    admin.abort_hanging_transaction(O0, producer_id=7, start_offset=0)
    assert admin.describe_producers([O0])[O0][0].transaction_start_offset is None


def test_wrong_arguments_are_refused_before_a_request(world: StandinTransactionsWorld, admin: Admin) -> None:
    for mistaken in (
        lambda: admin.list_transactions(["asleep"]),  # type: ignore[list-item]
        lambda: admin.list_transactions(producer_ids=[-1]),
        lambda: admin.list_transactions(open_for_ms=-1),
        lambda: admin.describe_transactions([""]),
        lambda: admin.describe_producers(["orders"]),  # type: ignore[list-item]
        lambda: admin.abort_transaction(""),
        lambda: admin.abort_hanging_transaction(O0, producer_id=1, start_offset=-1),
    ):
        with pytest.raises(InvalidArgumentError):
            mistaken()
    assert not world.asked


def test_async_admin_has_the_same_calls(world: StandinTransactionsWorld) -> None:
    async def scene() -> None:
        async with AsyncAdmin(bootstrap_servers=world.coordinators[0].address) as client:
            assert [each.transactional_id for each in await client.list_transactions()] == ["apple", "berry"]
            assert (await client.describe_transactions(["apple"]))[0].state == "ongoing"
            assert await client.describe_producers([O0]) == {O0: []}
            await client.abort_transaction("apple")
            with pytest.raises(InvalidTxnStateError):
                await client.abort_hanging_transaction(O0, producer_id=1, start_offset=0)

    asyncio.run(scene())
