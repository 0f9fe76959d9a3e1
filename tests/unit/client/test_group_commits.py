"""Commits of a group: in order, and with the member's identity at the time of the call."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import GroupMetadata
from headrace.group.commits import _IN_FLIGHT, Commits, GroupOffsets, Who
from headrace.models import OffsetAndMetadata
from headrace.producer.sequences import Identity
from headrace.producer.transactional import Transactions
from headrace_core.errors import RequestTimedOutError, TransactionAbortableError
from headrace_core.rpc.limits import limit_of
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2

PAGE = limit_of("Groups/CommitOffsets", "offsets")
OFFSETS = {TopicPartition("orders", 0): OffsetAndMetadata(67)}


class Coordinators:
    """Responds on demand."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.may_answer = asyncio.Event()

    async def call(self, group_id: str, method: str, request: Any, *rest: Any, **more: Any) -> None:
        self.asked.append(request)
        await self.may_answer.wait()


def test_a_commit_is_of_the_epoch_in_which_it_was_asked_for_however_late_it_is_made() -> None:
    """The member was removed and joined again. While the member was removed, another member owned its partitions and
    continued to read them (found by simulation)."""

    async def scenario() -> None:
        coordinators, who = Coordinators(), [Who("m", 5)]
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, coordinators, "payments", lambda: who[0])  # type: ignore[arg-type]
        first = asyncio.create_task(commits.commit(OFFSETS))
        second = asyncio.create_task(commits.commit(OFFSETS))  # waits for the first
        await asyncio.sleep(0)
        who[0] = Who("m", 7)
        third = asyncio.create_task(commits.commit(OFFSETS))
        await asyncio.sleep(0)
        coordinators.may_answer.set()
        await asyncio.gather(first, second, third)
        assert [(asked.member_id, asked.member_epoch) for asked in coordinators.asked] == [("m", 5), ("m", 5), ("m", 7)]
        assert [asked.sequence for asked in coordinators.asked] == [1, 2, 3]

    asyncio.run(scenario())


def test_each_partition_is_committed_under_the_epoch_that_owns_or_owned_it() -> None:
    """The member must release a partition, and has a newer epoch by now. The partitions that it keeps come first: a
    refusal of the other ones must not keep them from being committed."""

    async def scenario() -> None:
        coordinators = Coordinators()
        coordinators.may_answer.set()
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        ended = {TopicPartition("orders", 0): 4, TopicPartition("orders", 3): 5}
        commits = Commits(engine, coordinators, "payments", lambda: Who("m", 7), ended=lambda: ended)  # type: ignore[arg-type]
        await commits.commit({TopicPartition("orders", number): OffsetAndMetadata(67) for number in range(4)})
        assert [(asked.member_epoch, [each.partition for each in asked.offsets]) for asked in coordinators.asked] == [
            (7, [1, 2]),
            (5, [3]),
            (4, [0]),
        ]

    asyncio.run(scenario())


def test_a_commit_of_several_requests_is_whole_before_a_later_one_begins() -> None:
    """A transaction waits for the commits in flight. The second request of an earlier commit, if it arrived after the
    transaction, would set the committed offsets back."""

    async def scenario() -> None:
        coordinators = Coordinators()
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, coordinators, "payments", lambda: Who("m", 5))  # type: ignore[arg-type]
        many = {TopicPartition("t", number): OffsetAndMetadata(1) for number in range(PAGE + 1)}
        earlier = asyncio.create_task(commits.commit(many))
        await asyncio.sleep(0)
        sent_before: list[int] = []

        async def transact() -> None:
            await commits.none_in_flight()
            sent_before.append(len(coordinators.asked))

        transaction = asyncio.create_task(transact())
        later = asyncio.create_task(commits.commit(OFFSETS))
        coordinators.may_answer.set()
        await asyncio.gather(earlier, transaction, later)
        assert sent_before == [2], "the transaction waited for both requests of the earlier commit"
        assert [len(asked.offsets) for asked in coordinators.asked] == [PAGE, 1, 1]
        assert [asked.sequence for asked in coordinators.asked] == [1, 2, 3]

    asyncio.run(scenario())


def open_transaction(engine: Any, coordinators: Coordinators, max_block_ms: int = 60_000) -> Transactions:
    nothing: Any = lambda *_: None  # noqa: E731
    config = {"transactional.id": "pay", "transaction.timeout.ms": 60_000, "max.block.ms": max_block_ms}
    made = Transactions(engine, config, hold=nothing, flush=nothing, drop=nothing, renewed=nothing, traceparent=nothing)
    made._group_coordinators = coordinators  # type: ignore[assignment]
    made.producer.initialized(Identity(4_001, 0), None)
    made.producer.begin()
    return made


@pytest.mark.parametrize("who", [Who("m", 5), Who()], ids=["member", "no member"])
@pytest.mark.parametrize("names", ["the member", "the group"])
def test_offsets_in_a_transaction_follow_the_commits_of_the_same_consumer(who: Who, names: str) -> None:
    """A commit that waits for an earlier one takes its number when its turn comes. So by its number it would be later
    than the transaction's offsets, and set them back."""

    async def scenario() -> None:
        coordinators = Coordinators()
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, coordinators, "payments", lambda: who)  # type: ignore[arg-type]
        in_flight = asyncio.create_task(commits.commit(OFFSETS))
        waiting = asyncio.create_task(commits.commit(OFFSETS))
        group = (
            GroupMetadata("payments", who.epoch, who.member_id) if names == "the member" else GroupMetadata("payments")
        )
        transaction = open_transaction(engine, coordinators)
        sending = asyncio.create_task(transaction.send_offsets(GroupOffsets(group, OFFSETS)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert [asked.DESCRIPTOR.name for asked in coordinators.asked] == ["CommitOffsetsRequest"]
        coordinators.may_answer.set()
        await asyncio.gather(in_flight, waiting, sending)
        asked = [asked.DESCRIPTOR.name for asked in coordinators.asked]
        assert asked == ["CommitOffsetsRequest", "CommitOffsetsRequest", "CommitTransactionOffsetsRequest"]
        assert not _IN_FLIGHT

    asyncio.run(scenario())


@pytest.mark.parametrize("group", [GroupMetadata("payments", 5, "n"), GroupMetadata("orders")], ids=["member", "group"])
def test_offsets_in_a_transaction_do_not_wait_for_the_commits_of_others(group: GroupMetadata) -> None:
    async def scenario() -> None:
        busy, coordinators = Coordinators(), Coordinators()
        coordinators.may_answer.set()
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, busy, "payments", lambda: Who("m", 5))  # type: ignore[arg-type]
        other = asyncio.create_task(commits.commit(OFFSETS))
        await asyncio.sleep(0)
        await open_transaction(engine, coordinators).send_offsets(GroupOffsets(group, OFFSETS))
        assert not other.done()
        other.cancel()
        await asyncio.wait({other})
        assert not _IN_FLIGHT

    asyncio.run(scenario())


def test_a_commit_without_an_answer_holds_a_transactions_offsets_up_for_max_block_ms() -> None:
    async def scenario() -> None:
        silent, coordinators = Coordinators(), Coordinators()
        coordinators.may_answer.set()
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, silent, "payments", lambda: Who("m", 5))  # type: ignore[arg-type]
        commit = asyncio.create_task(commits.commit(OFFSETS))
        await asyncio.sleep(0)
        transaction = open_transaction(engine, coordinators, max_block_ms=1)
        transaction._engine.io = SimpleNamespace(loop=asyncio.get_running_loop())  # type: ignore[misc]
        group = GroupMetadata("payments", 5, "m")
        for sent in (
            GroupOffsets(group, OFFSETS),
            GroupOffsets(group, OFFSETS, end_auto_commits=commits.none_in_flight),
        ):
            with pytest.raises(
                TransactionAbortableError, match=r"max\.block\.ms waiting for an earlier commit"
            ) as raised:
                await transaction.send_offsets(sent)
            assert isinstance(raised.value.__cause__, RequestTimedOutError)
            assert not coordinators.asked
            transaction = open_transaction(engine, coordinators, max_block_ms=1)
        commit.cancel()
        await asyncio.wait({commit})

    asyncio.run(scenario())


def test_a_committed_offset_of_zero_is_an_offset_and_a_negative_one_is_none() -> None:
    """Without it, auto.offset.reset=latest would skip all records of a group that has read none of them."""

    class Answers:
        async def call(self, group: str, method: str, request: Any, deadline: float, what: str, check: Any) -> Any:
            answer = groups_pb2.FetchOffsetsResponse()
            of_group = answer.groups.add(group_id=group)
            for partition, offset in enumerate((0, -1, 7, -2)):
                of_group.offsets.add(topic="orders", partition=partition, offset=offset, leader_epoch=3)
            check(answer)
            return answer

    async def scenario() -> None:
        engine: Any = SimpleNamespace(deadline=lambda timeout_s: time.monotonic() + 60.0)
        commits = Commits(engine, Answers(), "payments", lambda: Who("m", 5))  # type: ignore[arg-type]
        wanted = [TopicPartition("orders", partition) for partition in range(5)]
        found = await commits.fetch(wanted)
        assert [each if each is None else each.offset for each in found.values()] == [0, None, 7, None, None]
        assert list(found) == wanted

    asyncio.run(scenario())
