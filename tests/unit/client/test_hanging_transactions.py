"""Find hanging transactions: open in a partition, unknown to their coordinator, and still open when the leader is asked
again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster_models import TopicDescription
from headrace.errors import RequestTimedOutError, TransactionalIdNotFoundError
from headrace.transaction_models import ProducerState, TransactionDescription, TransactionListing
from headrace_core.types import TopicPartition
from headrace_tools.hanging import hanging_transactions, may_have_hanging

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class Client:
    """An Admin client. ``open``: partition -> (producer id, first offset). ``ends_on_second_look``: partitions whose
    transactions end between the two requests to the leader. ``known``: transactions that coordinators know."""

    def __init__(self, opened: Mapping[TopicPartition, tuple[int, int]], *known: TransactionDescription) -> None:
        self.opened = dict(opened)
        self.known = known
        self.ends_on_second_look: set[TopicPartition] = set()
        self.silent: set[TopicPartition] = set()
        self.described: list[set[TopicPartition]] = []

    def describe_topics(self, topics: list[str], *, timeout: float) -> list[Any]:
        parts = [SimpleNamespace(partition=number, leader=number) for number in range(3)]
        return [SimpleNamespace(name=topic, partitions=parts) for topic in topics]

    def list_offsets(self, wanted: Iterable[TopicPartition], *, isolation_level: str, timeout: float) -> dict[Any, Any]:
        if self.silent & set(wanted):
            raise RequestTimedOutError("silent")
        stable = {part: first for part, (_, first) in self.opened.items() if isolation_level == "read_committed"}
        return {part: SimpleNamespace(offset=stable.get(part, 100)) for part in wanted}

    def describe_producers(self, partitions: Iterable[TopicPartition], *, timeout: float) -> dict[Any, Any]:
        self.described.append(set(partitions))
        ended = self.ends_on_second_look if len(self.described) > 1 else set()
        return {
            part: [
                ProducerState(99, 0, 1, 1, None, None),
                ProducerState(self.opened[part][0], 3, 1, 55, 2, None if part in ended else self.opened[part][1]),
            ]
            for part in partitions
        }

    def list_transactions(self, *, producer_ids: set[int], timeout: float) -> list[TransactionListing]:
        return [
            TransactionListing(each.transactional_id, 1, each.producer_id, each.state, None)
            for each in self.known
            if each.producer_id in producer_ids
        ]

    def describe_transactions(self, ids: list[str], *, raise_errors: bool, timeout: float) -> list[Any]:
        assert not raise_errors
        return [each for each in self.known if each.transactional_id in ids]


def known(state: Any, *partitions: TopicPartition, producer_id: int = 7, **more: Any) -> TransactionDescription:
    return TransactionDescription("a", state, 1, producer_id, 3, partitions=partitions, **more)


def look(client: Client) -> list[tuple[TopicPartition, int, int, str | None]]:
    found, gap = hanging_transactions(client, [P0, P1, P2], timeout_s=1)
    assert gap is None
    return [
        (TopicPartition(each.topic, each.partition), each.producer_id, each.start_offset, each.transactional_id)
        for each in found
    ]


def test_without_open_transactions_no_producer_is_described() -> None:
    client = Client({})
    assert look(client) == []
    assert client.described == []


@pytest.mark.parametrize("state", ["ongoing", "prepared", "prepare-commit", "prepare-abort"])
def test_transaction_of_which_the_coordinator_has_the_partition_does_not_hang(state: str) -> None:
    client = Client({P0: (7, 10)}, known(state, P0, P1))
    assert look(client) == []
    assert client.described == [{P0}]


def test_producer_that_no_coordinator_knows_hangs() -> None:
    assert look(Client({P0: (7, 10), P2: (8, 0)}, known("ongoing", P0))) == [(P2, 8, 0, None)]


@pytest.mark.parametrize(
    "description",
    [
        known("ongoing", P1),
        known("empty"),
        known("complete-commit"),
        known("ongoing", error=TransactionalIdNotFoundError("expired")),
    ],
)
def test_partition_that_the_open_transaction_lacks_hangs(description: TransactionDescription) -> None:
    assert look(Client({P0: (7, 10)}, description)) == [(P0, 7, 10, "a")]


def test_transaction_that_ends_meanwhile_does_not_hang() -> None:
    client = Client({P0: (7, 10), P1: (8, 4)})
    client.ends_on_second_look = {P0}
    assert look(client) == [(P1, 8, 4, None)]


def test_coordinator_that_does_not_answer_is_no_proof() -> None:
    with pytest.raises(RequestTimedOutError):
        look(Client({P0: (7, 10)}, known("ongoing", error=RequestTimedOutError("silent"))))


def test_leader_that_does_not_answer_hides_only_its_partitions() -> None:
    client = Client({P0: (7, 10)})
    client.silent = {P1}
    found, gap = hanging_transactions(client, [P0, P1], timeout_s=1)
    assert [each.partition for each in found] == [0]
    assert gap == ("log ends of 1 partition (t-1)", "silent [REQUEST_TIMED_OUT]")


def test_of_internal_topics_only_the_offsets_can_have_hanging_transactions() -> None:
    topics = [
        TopicDescription(name, bytes(16), internal, ())
        for name, internal in (("orders", False), ("__consumer_offsets", True), ("__transaction_state", True))
    ]
    assert [may_have_hanging(each) for each in topics] == [True, True, False]
