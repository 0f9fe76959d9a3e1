"""Pending offsets are orphaned if their transaction has ended and a second request still finds them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from headrace.errors import RequestTimedOutError, TransactionalIdNotFoundError
from headrace.group_models import GroupDescription, PendingOffset
from headrace.transaction_models import TransactionDescription, TransactionListing
from headrace_core.types import TopicPartition
from headrace_tools.orphaned_offsets import OrphanedOffset, how_dropped, orphaned_offsets

SHARD, ORDERS = TopicPartition("__consumer_offsets", 3), TopicPartition("orders", 0)


def pending(partition: int, *, producer_id: int = 7, epoch: int = 3) -> PendingOffset:
    return PendingOffset("orders", partition, 42, "payments-7", producer_id, epoch, 1_000)


def group(name: str, *offsets: PendingOffset) -> GroupDescription:
    return GroupDescription(name, "empty", pending_offsets=offsets)


def transaction(state: Any, *partitions: TopicPartition, **more: Any) -> TransactionDescription:
    return TransactionDescription("payments-7", state, 1, 7, 3, partitions=partitions, **more)


class Client:
    """An Admin client. ``known`` are the transactions of the coordinators. ``later`` are the groups at the second
    request."""

    def __init__(self, *known: TransactionDescription, later: Collection[GroupDescription] = ()) -> None:
        self.known = known
        self.later = later
        self.asked = 0

    def list_transactions(
        self, states: Collection[str], *, producer_ids: set[int], timeout: float
    ) -> list[TransactionListing]:
        self.asked += 1
        return [
            TransactionListing(each.transactional_id, 1, each.producer_id, each.state, None)
            for each in self.known
            if each.producer_id in producer_ids and each.state in states
        ]

    def describe_transactions(self, ids: list[str], *, raise_errors: bool, timeout: float) -> list[Any]:
        assert not raise_errors
        return [each for each in self.known if each.transactional_id in ids]

    def describe_groups(self, ids: list[str], *, raise_errors: bool, timeout: float) -> list[GroupDescription]:
        assert not raise_errors
        return [each for each in self.later if each.group_id in ids]


def look(client: Client, *groups: GroupDescription) -> list[OrphanedOffset]:
    return orphaned_offsets(client, groups, timeout_s=1)


def test_groups_without_pending_offsets_cost_no_request() -> None:
    client = Client()
    assert look(client, group("g"), group("h")) == []
    assert client.asked == 0


@pytest.mark.parametrize("state", ["ongoing", "prepared", "prepare-commit", "prepare-abort"])
def test_offsets_that_a_marker_will_end_are_not_orphaned(state: str) -> None:
    now = group("g", pending(0))
    assert look(Client(transaction(state, SHARD, ORDERS), later=[now]), now) == []


@pytest.mark.parametrize(
    "known",
    [
        (),
        (transaction("complete-commit"),),
        (transaction("ongoing", ORDERS),),
        (transaction("ongoing", error=TransactionalIdNotFoundError("expired")),),
    ],
)
def test_offsets_without_a_transaction_are_orphaned(known: tuple[TransactionDescription, ...]) -> None:
    now = group("g", pending(0), pending(1))
    assert look(Client(*known, later=[now]), now, group("h")) == [
        OrphanedOffset("g", pending(0)),
        OrphanedOffset("g", pending(1)),
    ]


def test_offsets_that_end_meanwhile_or_belong_to_the_next_transaction_are_not_orphaned() -> None:
    later = group("g", pending(1), pending(2, epoch=4))
    now = group("g", pending(0), pending(1), pending(2))
    assert look(Client(later=[later]), now) == [OrphanedOffset("g", pending(1))]


def test_a_coordinator_that_does_not_answer_is_no_proof() -> None:
    now = group("g", pending(0))
    with pytest.raises(RequestTimedOutError):
        look(Client(transaction("ongoing", error=RequestTimedOutError("silent")), later=[now]), now)


def test_the_cure_names_the_group_and_the_partition() -> None:
    assert "`headrace groups delete-offsets g --topic orders:2`" in how_dropped("g", pending(2))
