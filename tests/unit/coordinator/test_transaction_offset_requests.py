"""Requests with offsets of a transaction, which pass between two shards; and the stream of markers for groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_coordinator.group.messages import ListGroups, Topic, TopicsChanged
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.handlers.transactions import MarkersStream, TransactionsService
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    EndOffsets,
    OffsetsCommitted,
    OffsetToCommit,
    VerificationFailed,
)
from headrace_coordinator.offsets.pending import Verifications
from headrace_coordinator.runtime import transaction_offsets
from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.runtime.shards import Shards
from headrace_coordinator.runtime.transaction_offsets import TransactionOffsets
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    HeadraceError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTopicError,
    NotCoordinatorError,
    ServerBusyError,
)
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.worlds.shard_world import GrowingLog

SHARD = TopicPartition("__consumer_offsets", 3)
REQUEST = CommitTransactionOffsets(CommitOffsets("g", (OffsetToCommit("t", 0, 5),)), "payments", 7, 3)


class OneShard:
    """Replaces the shards of a coordinator that owns one group shard, and the shard's runner."""

    has_moved = False

    def __init__(self) -> None:
        self.verification = Verifications().begin(7, 3)
        self.asked: list[object] = []
        self.updates: list[object] = []
        self.markers: list[tuple[EndOffsets, Callable[[object], None]]] = []

    def of_group(self, group_id: str) -> OneShard:
        if self.has_moved:
            raise NotCoordinatorError("it has moved")
        return self

    def shard_of_group(self, group_id: str) -> TopicPartition:
        return SHARD

    def of_shard(self, shard: TopicPartition) -> OneShard:
        if shard != SHARD:
            raise NotCoordinatorError(f"{shard} belongs to another coordinator")
        return self

    async def ask(self, request: CommitTransactionOffsets) -> object:
        self.asked.append(request)
        return OffsetsCommitted(())

    def put(self, request: object, done: Any = None, *, is_fenced: bool = False) -> None:
        if isinstance(request, CommitTransactionOffsets):
            self.asked.append(request)
            done(self.verification)
        elif isinstance(request, EndOffsets):
            assert is_fenced
            self.markers.append((request, done))
        else:
            self.updates.append(request)


def offsets_of(shard: OneShard, verify: Any) -> TransactionOffsets:
    return TransactionOffsets(lambda: cast(Shards, shard), verify)


def test_a_confirmed_request_carries_its_verification_and_the_coordinators_epoch() -> None:
    shard = OneShard()

    async def verify(producer: Any, partitions: Any) -> int:
        assert (*producer, *partitions) == ("payments", 7, 3, 2, SHARD)
        return 9

    assert asyncio.run(offsets_of(shard, verify).commit(REQUEST, 2, 100)) == OffsetsCommitted(())
    assert shard.asked == [REQUEST, REQUEST._replace(verification=shard.verification, coordinator_epoch=9)]


def test_the_numbers_of_a_request_arrive() -> None:
    shard = OneShard()

    async def verify(producer: Any, partitions: Any) -> int:
        return 9

    service = TransactionsService(None, None, offsets_of(shard, verify), None)  # type: ignore[arg-type]
    request = transactions_pb2.CommitTransactionOffsetsRequest(
        transactional_id="payments", producer_id=7, producer_epoch=3, transaction_version=2, group_id="g"
    )
    request.sequence, request.commit_sequence = 4, 6
    asyncio.run(service.CommitTransactionOffsets(request, None))
    assert {(each.sequence, each.commit.sequence) for each in shard.asked} == {(4, 6)}  # type: ignore[attr-defined]


def test_a_refused_request_gives_its_verification_up() -> None:
    shard = OneShard()

    async def verify(producer: Any, partitions: Any) -> int:
        raise InvalidProducerEpochError("fenced")

    with pytest.raises(InvalidProducerEpochError):
        asyncio.run(offsets_of(shard, verify).commit(REQUEST, 2, 100))
    assert (shard.asked, shard.updates) == ([REQUEST], [VerificationFailed(shard.verification)])


def test_a_request_whose_shard_moves_meanwhile_gets_an_answer() -> None:
    """The runner of a shard that has moved does not answer."""
    shard = OneShard()

    async def verify(producer: Any, partitions: Any) -> int:
        shard.has_moved = True
        return 9

    with pytest.raises(NotCoordinatorError):
        asyncio.run(offsets_of(shard, verify).commit(REQUEST, 2, 100))
    assert shard.asked == [REQUEST]


class HeldLog(GrowingLog):
    """``gate`` holds each append after the claim."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def append(self, batches: Any, expected_end: int) -> int:
        if expected_end >= 0:
            await self.gate.wait()
        return await super().append(batches, expected_end)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_caller_that_leaves_before_the_verification_has_begun_leaves_none_behind(is_answered: bool) -> None:
    async def run() -> None:
        serving, log = asyncio.Event(), HeldLog()
        runner = ShardRunner(
            Shard(str(SHARD), Claim(1, 1, 1), lambda: ShardStateMachine(GroupsOfBothTypes())),
            log,
            clock=SystemClock(),
            replays=asyncio.Semaphore(1),
            tell=lambda pushes: None,
            became=lambda runner, state, error: serving.set() if state is ShardState.SERVING else None,
        )
        shards = SimpleNamespace(of_group=lambda group_id: runner, shard_of_group=lambda group_id: SHARD)

        async def verify(producer: Any, partitions: Any) -> int:
            raise AssertionError("the caller has left")

        runner.start()
        await serving.wait()
        runner.put(TopicsChanged({"t": Topic("t", bytes(range(16)), 1)}))
        earlier = asyncio.create_task(runner.ask(CommitOffsets("g", (OffsetToCommit("t", 0, 1),))))
        waits = asyncio.create_task(TransactionOffsets(lambda: cast(Shards, shards), verify).commit(REQUEST, 2, 100))
        await asyncio.sleep(0)
        machine = cast(ShardStateMachine, runner.state_machine)
        assert machine._offsets._verifications._of, "it waits for the earlier commit"
        if is_answered:  # the reply and the end of the caller come in one turn of the event loop
            runner.put(ListGroups(), lambda reply: cast(None, waits.cancel()))
        else:
            waits.cancel()
        log.gate.set()
        await earlier
        await asyncio.wait([waits])
        assert waits.cancelled()
        assert not machine._offsets._verifications._of
        await runner.close()

    asyncio.run(run())


def test_waiting_requests_are_limited_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_offsets, "WAITING_MAX", 3)
    monkeypatch.setattr(transaction_offsets, "WAITING_BYTES_MAX", 1_000)

    async def run() -> None:
        answer = asyncio.Event()

        async def verify(producer: Any, partitions: Any) -> int:
            await answer.wait()
            return 1

        offsets = offsets_of(OneShard(), verify)
        waiting = [asyncio.create_task(offsets.commit(REQUEST, 2, 2_000))]  # a single one may be larger
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError):
            await offsets.commit(REQUEST, 2, 1)
        waiting[0].cancel()
        await asyncio.wait(waiting)
        waiting = [asyncio.create_task(offsets.commit(REQUEST, 2, 10)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError):
            await offsets.commit(REQUEST, 2, 10)
        answer.set()
        assert await asyncio.gather(*waiting) == [OffsetsCommitted(())] * 3
        await offsets.commit(REQUEST, 2, 10)

    asyncio.run(run())


def test_one_producer_leaves_room_for_the_requests_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_offsets, "WAITING_OF_PRODUCER_MAX", 2)
    monkeypatch.setattr(transaction_offsets, "WAITING_BYTES_OF_PRODUCER_MAX", 1_000)

    async def run() -> None:
        answer = asyncio.Event()

        async def verify(producer: Any, partitions: Any) -> int:
            await answer.wait()
            return 1

        offsets, other = offsets_of(OneShard(), verify), REQUEST._replace(producer_id=8)
        waiting = [asyncio.create_task(offsets.commit(REQUEST, 2, 10)) for _ in range(2)]
        waiting.append(asyncio.create_task(offsets.commit(other, 2, 900)))
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError, match=r"producer 7 has too many requests \(2,"):
            await offsets.commit(REQUEST, 2, 10)
        with pytest.raises(ServerBusyError, match="producer 8"):
            await offsets.commit(other, 2, 200)
        answer.set()
        assert await asyncio.gather(*waiting) == [OffsetsCommitted(())] * 3
        await offsets.commit(REQUEST, 2, 10)

    asyncio.run(run())


class Stream:
    """Stands for ServerStream."""

    paused = False

    def __init__(self) -> None:
        self.answers: dict[int, list[int]] = {}

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def send(self, response: Any) -> None:
        self.answers[response.correlation_id] = [each.error.code for each in response.results]


def marker(number: int, *partitions: TopicPartition, **fields: int) -> Any:
    request = transactions_pb2.WriteMarkersRequest(
        **{"producer_id": 7, "producer_epoch": 4, "commit": True, "transaction_version": 2, "coordinator_epoch": 5}
        | fields,
        correlation_id=number,
        partitions=[groups_pb2.PartitionName(topic=topic, partition=partition) for topic, partition in partitions],
    )
    return transactions_pb2.WriteMarkersRequests(requests=[request])


def test_a_marker_is_answered_when_each_of_its_shards_has_answered() -> None:
    shard, answers = OneShard(), Stream()
    stream = MarkersStream(lambda: cast(Shards, shard), cast(Any, answers))
    stream.on_request(marker(1, SHARD, TopicPartition("orders", 0), TopicPartition("__consumer_offsets", 4)))
    stream.on_request(marker(2, SHARD))
    stream.on_request(marker(3, SHARD, transaction_version=3))
    stream.on_request(marker(4, SHARD, producer_epoch=40_000))
    stream.on_request(marker(5))
    refused = {number: [InvalidRequestError.number] for number in (3, 4)}
    assert answers.answers == {**refused, 5: []}
    assert not stream.is_idle()
    (first, first_done), (_, second_done) = shard.markers
    assert first == EndOffsets(7, 4, True, 2, 5)
    second_done(InvalidProducerEpochError("late"))
    first_done(None)
    assert answers.answers[1] == [0, InvalidTopicError.number, NotCoordinatorError.number]
    assert answers.answers[2] == [InvalidProducerEpochError.number]
    assert stream.is_idle()


def test_a_stream_of_markers_is_not_read_while_too_many_are_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_coordinator.handlers.transactions.UNANSWERED_MAX", 4)
    shard, answers = OneShard(), Stream()
    stream = MarkersStream(lambda: cast(Shards, shard), cast(Any, answers))
    for number in range(4):
        stream.on_request(marker(number, SHARD))
    assert answers.paused
    for _, done in shard.markers[:2]:
        done(HeadraceError("no"))
    assert not answers.paused
