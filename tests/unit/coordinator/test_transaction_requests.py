"""Requests to a shard of transactions, over a log in memory: which requests wait for markers, until when, and which
responses they get."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, cast

import pytest

from headrace_coordinator.handlers import transactions as handlers
from headrace_coordinator.handlers.transactions import AddPartitionsStream
from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.runtime.shards import Shards
from headrace_coordinator.runtime.transactions import Transactions
from headrace_coordinator.state_machine import ShardRecord
from headrace_coordinator.transaction.codec import decode_value
from headrace_coordinator.transaction.messages import (
    AbortTransaction,
    AddPartitions,
    CompleteTransaction,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import ProducerIdentity, TransactionState
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedShardEpochError,
    HeadraceError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    RequestTimedOutError,
)
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2

ONE, TWO = TopicPartition("orders", 1), TopicPartition("orders", 2)
LONG_S = 60.0
INVALID_TOPIC, INVALID_REQUEST, PRODUCER_FENCED = 17, 42, 90


class Stream:
    """Stands for ServerStream."""

    def __init__(self) -> None:
        self.paused = False
        self.answers: list[tuple[int, int]] = []
        self.answered = asyncio.Event()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def send(self, response: Any) -> None:
        self.answers.append((response.correlation_id, response.error.code))
        self.answered.set()


class Log:
    """A shard's log in memory; ``error`` fails the next append."""

    def __init__(self) -> None:
        self.records: list[ShardRecord] = []
        self.appends: list[list[ShardRecord]] = []
        self.error: HeadraceError | None = None

    async def append(self, batches: Sequence[Sequence[ShardRecord]], expected_end: int) -> int:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        base = len(self.records)
        assert expected_end in (-1, base)
        self.appends.append([record for batch in batches for record in batch])
        self.records += self.appends[-1]
        return base

    async def read(self, end: int, take: Any) -> None:
        take([(record.key, record.value, 0) for record in self.records[:end]])


class World:
    """One shard, and all requests to the marker sender."""

    def __init__(self, **settings: int) -> None:
        self.log = Log()
        self.orders: list[WriteMarkers] = []
        self.news = asyncio.Event()
        self.transactions = Transactions(lambda: cast(Shards, self), self._send, **settings)
        ids = count(1_000)
        self.runner = ShardRunner(
            Shard("__transaction_state-0", Claim(1, 1, 1), lambda: TransactionsStateMachine(lambda: next(ids))),
            self.log,
            clock=SystemClock(),
            replays=asyncio.Semaphore(1),
            tell=lambda pushes: self.transactions.tell(self.runner, pushes),
            became=self._became,
        )
        self.runner.start()

    def of_transactional_id(self, transactional_id: str) -> ShardRunner:
        return self.runner

    def _send(self, runner: ShardRunner, order: WriteMarkers) -> None:
        self.orders.append(order)
        self.news.set()

    def _became(self, runner: ShardRunner, state: ShardState, error: Exception | None) -> None:
        if state is not ShardState.SERVING:
            self.transactions.shard_left(runner)
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def ask(self, request: Any, within_s: float = LONG_S, **more: Any) -> Any:
        return await self.transactions.ask(request, within_s, **more)

    def later(self, request: Any, within_s: float = LONG_S, **more: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.ask(request, within_s, **more))

    async def producer(self) -> ProducerIdentity:
        return cast(ProducerIdentity, (await self.ask(InitProducerId("t", 60_000))).identity)

    async def ended(self, *partitions: TopicPartition) -> ProducerIdentity:
        """The identity after a transaction that is committed and has no marker yet."""
        producer = await self.producer()
        await self.ask(AddPartitions("t", producer, frozenset(partitions)))
        owner = await self.ask(EndTransaction("t", producer, commit=True))
        await self.until(lambda: self.orders)
        return cast(ProducerIdentity, owner)

    def mark(self, *partitions: TopicPartition) -> None:
        (order, *_) = self.orders
        self.transactions.markers_written(self.runner, MarkersWritten("t", order.identity, frozenset(partitions)))

    async def state(self) -> TransactionState:
        return cast(TransactionState, (await self.ask(DescribeTransaction("t"))).state)


def scenario(test: Callable[[World], Awaitable[None]], **settings: int) -> None:
    async def run() -> None:
        async with asyncio.timeout(LONG_S):
            world = World(**settings)
            await world.until(lambda: world.runner.is_serving)
            try:
                await test(world)
            finally:
                await world.runner.close()

    asyncio.run(run())


async def waits(*tasks: asyncio.Task[Any]) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not any(task.done() for task in tasks)


def test_the_next_transactions_requests_wait_for_the_last_marker() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE, TWO)
        adds = [world.later(AddPartitions("t", owner, frozenset({each}))) for each in (ONE, TWO)]
        world.mark(ONE)
        assert await waits(*adds), "one marker is still missing"
        world.mark(TWO)
        assert await asyncio.gather(*adds) == [None, None]
        described = await world.ask(DescribeTransaction("t"))
        assert (described.state, described.partitions) == (TransactionState.ONGOING, frozenset({ONE, TWO}))

    scenario(test)


def test_the_end_of_a_transaction_and_the_begin_of_the_next_share_an_append() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        add = world.later(AddPartitions("t", owner, frozenset({TWO})))
        assert await waits(add)
        appends = len(world.log.appends)
        world.mark(ONE)
        await add
        [records] = world.log.appends[appends:]
        assert [decode_value(record.value).state for record in records if record.value] == [
            TransactionState.COMPLETE_COMMIT,
            TransactionState.ONGOING,
        ]

    scenario(test)


def test_a_request_that_waits_too_long_gets_the_retriable_error() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        with pytest.raises(ConcurrentTransactionsError):
            await world.ask(AddPartitions("t", owner, frozenset({ONE})), within_s=0.5)
        world.mark(ONE)
        await world.ask(AddPartitions("t", owner, frozenset({ONE})))

    scenario(test)


class Watched:
    """A request object; a test can check that it is freed."""

    def __init__(self, asked: Any) -> None:
        self.asked, self.transactional_id = asked, asked.transactional_id


@pytest.mark.parametrize("is_refused", [False, True])
def test_no_request_waits_for_the_garbage_collector(is_refused: bool) -> None:
    """A large request in a reference cycle would keep its memory until Python's next full collection."""

    async def test(world: World) -> None:
        await world.producer()
        handle = cast(Any, world.runner.state_machine).handle
        monkeypatch.setattr(world.runner.state_machine, "handle", lambda asked, now_ms: handle(asked.asked, now_ms))

        async def ask(through: Callable[[Any], Awaitable[Any]]) -> weakref.ref[Watched]:
            watched = Watched(AbortTransaction("unknown") if is_refused else DescribeTransaction("t"))
            with contextlib.suppress(HeadraceError):
                await through(watched)
            return weakref.ref(watched)

        gc.disable()
        try:
            for through in (world.runner.ask, world.ask):
                gone = await ask(through)
                await asyncio.sleep(0)  # the callback that woke this task keeps the reply
                assert gone() is None, through
        finally:
            gc.enable()

    with pytest.MonkeyPatch.context() as monkeypatch:
        scenario(test)


def test_requests_above_the_limit_of_waiting_ones_are_refused_at_once() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        adds = [world.later(AddPartitions("t", owner, frozenset({ONE}))) for _ in range(2)]
        assert await waits(*adds)
        with pytest.raises(ConcurrentTransactionsError):
            await world.ask(AddPartitions("t", owner, frozenset({ONE})))
        world.mark(ONE)
        await asyncio.gather(*adds)
        (waiting,) = [await world.later(AddPartitions("t", owner, frozenset({TWO})))]
        assert waiting is None, "those that were answered no longer count"

    scenario(test, parked_max=2)


def test_one_transactional_id_leaves_room_for_the_requests_of_the_others() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        adds = [world.later(AddPartitions("t", owner, frozenset({ONE}))) for _ in range(2)]
        assert await waits(*adds)
        with pytest.raises(ConcurrentTransactionsError):
            await world.ask(AddPartitions("t", owner, frozenset({ONE})))
        other = (await world.ask(InitProducerId("other", 60_000))).identity
        await world.ask(AddPartitions("other", other, frozenset({TWO})))
        end = world.later(EndTransaction("other", other, commit=True), wait_for_markers=True)
        assert await waits(end), "it has room to wait"
        world.mark(ONE)
        await asyncio.gather(*adds)
        end.cancel()

    scenario(test, parked_max=4, parked_of_id_max=2)


def test_a_repeated_request_for_an_identity_is_not_fenced_by_the_one_whose_caller_has_left() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        left = world.later(InitProducerId("t", 60_000))
        assert await waits(left)
        left.cancel()
        again = world.later(InitProducerId("t", 60_000))
        assert await waits(again)
        world.mark(ONE)
        assert (await again).identity == (owner.producer_id, owner.epoch + 1), "one identity was assigned"

    scenario(test)


def test_requests_whose_callers_have_left_take_no_room() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        left = [world.later(AddPartitions("t", owner, frozenset({ONE}))) for _ in range(2)]
        assert await waits(*left)
        for task in left:
            task.cancel()
        add = world.later(AddPartitions("t", owner, frozenset({TWO})))
        assert await waits(add)
        world.mark(ONE)
        await add

    scenario(test, parked_max=2)


def test_a_new_producer_gets_its_identity_when_the_open_transaction_is_aborted_everywhere() -> None:
    async def test(world: World) -> None:
        zombie = await world.producer()
        await world.ask(AddPartitions("t", zombie, frozenset({ONE})))
        init = world.later(InitProducerId("t", 60_000))
        await world.until(lambda: world.orders)
        assert not world.orders[0].commit
        assert await waits(init)
        world.mark(ONE)
        identity = (await init).identity
        assert identity.producer_id == zombie.producer_id
        assert identity.epoch > world.orders[0].identity.epoch > zombie.epoch

    scenario(test)


def test_an_end_that_waits_for_markers_is_answered_when_readers_see_the_result() -> None:
    async def test(world: World) -> None:
        producer = await world.producer()
        await world.ask(AddPartitions("t", producer, frozenset({ONE})))
        end = world.later(EndTransaction("t", producer, commit=True), wait_for_markers=True)
        await world.until(lambda: world.orders)
        assert await waits(end)
        world.mark(ONE)
        assert await end == (producer.producer_id, producer.epoch + 1)
        again = await world.ask(EndTransaction("t", producer, commit=True), wait_for_markers=True)
        assert again == await end, "a repeated request finds all markers written"

    scenario(test)


def test_a_token_is_completed_although_the_next_transaction_begins_at_once() -> None:
    """If the request were sent again with the token, the coordinator would refuse it as fenced."""

    async def test(world: World) -> None:
        producer = await world.producer()
        await world.ask(AddPartitions("t", producer, frozenset({ONE})))
        token = await world.ask(PrepareTransaction("t", producer))
        complete = world.later(CompleteTransaction("t", token, commit=True), wait_for_markers=True)
        await world.until(lambda: world.orders)
        next_one = ProducerIdentity(token.producer_id, token.epoch + 1)
        add = world.later(AddPartitions("t", next_one, frozenset({ONE})))
        assert await waits(complete, add)
        world.mark(ONE)
        assert await complete is None
        assert await add is None
        assert await world.state() is TransactionState.ONGOING

    scenario(test)


def test_an_end_whose_markers_take_too_long_says_that_it_is_decided() -> None:
    async def test(world: World) -> None:
        producer = await world.producer()
        await world.ask(AddPartitions("t", producer, frozenset({ONE})))
        with pytest.raises(RequestTimedOutError, match="is recorded"):
            await world.ask(EndTransaction("t", producer, commit=True), within_s=0.5, wait_for_markers=True)
        assert await world.state() is TransactionState.PREPARE_COMMIT

    scenario(test)


def test_when_the_shard_is_loaded_again_nobody_waits_and_all_missing_markers_are_asked_for() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE, TWO)
        world.mark(ONE)
        add = world.later(AddPartitions("t", owner, frozenset({ONE})))
        end = world.later(
            EndTransaction("t", ProducerIdentity(owner.producer_id, owner.epoch - 1), commit=True),
            wait_for_markers=True,
        )
        assert await waits(add, end)
        world.orders.clear()
        world.log.error = NotEnoughReplicasError("two are away")
        with pytest.raises(CoordinatorNotAvailableError, match="two are away"):
            await world.ask(InitProducerId("another", 60_000))
        for task in (add, end):
            with pytest.raises(CoordinatorLoadInProgressError):
                await task
        await world.until(lambda: world.orders)
        assert [each.partitions for each in world.orders] == [frozenset({ONE, TWO})]
        world.mark(ONE, TWO)
        await world.ask(AddPartitions("t", owner, frozenset({ONE})))

    scenario(test)


def adding(number: int, producer: ProducerIdentity, *partitions: int, **fields: Any) -> Any:
    return transactions_pb2.AddPartitionsRequest(
        correlation_id=number,
        **{
            "transactional_id": "t",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_version": 2,
            "partitions": [groups_pb2.PartitionName(topic="orders", partition=each) for each in partitions],
            **fields,
        },
    )


def message(*requests: Any) -> Any:
    return transactions_pb2.AddPartitionsRequests(requests=requests)


def test_a_brokers_stream_gets_an_answer_for_each_request_and_a_wrong_one_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "UNANSWERED_MAX", 2)

    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        zombie = owner._replace(epoch=owner.epoch - 1)
        stream = Stream()
        handler = AddPartitionsStream(world.transactions, cast(Any, stream))
        handler.on_request(message(adding(1, owner)))
        handler.on_request(message(adding(2, owner, -1)))
        handler.on_request(message(adding(3, owner, 1, transaction_version=3)))
        handler.on_request(message(adding(4, owner, 1, transactional_id="")))
        assert stream.answers == [(number, INVALID_REQUEST) for number in (1, 2, 3)]
        handler.on_request(message(adding(5, zombie, 1)))
        while len(stream.answers) < 5:
            stream.answered.clear()
            await stream.answered.wait()
        assert stream.answers[3:] == [(4, INVALID_REQUEST), (5, PRODUCER_FENCED)]
        assert handler.is_idle()
        handler.on_request(message(adding(6, owner, 1)))
        assert not stream.paused
        handler.on_request(message(adding(7, owner, 2)))
        assert stream.paused, "two requests wait for the marker"
        world.mark(ONE)
        while len(stream.answers) < 7:
            stream.answered.clear()
            await stream.answered.wait()
        assert stream.answers[5:] == [(6, 0), (7, 0)]
        assert not stream.paused
        assert handler.is_idle()

    scenario(test)


def test_a_former_owner_does_not_confirm_offsets_of_a_transaction_that_may_have_ended() -> None:
    """If a former owner confirmed offsets, the group's shard would accept offsets after the marker, and they would stay
    pending forever."""
    shard = TopicPartition("__consumer_offsets", 3)

    async def test(world: World) -> None:
        producer = await world.producer()
        add = AddPartitions("t", producer, frozenset({ONE, shard}))
        await world.ask(add)
        await world.ask(add)  # a repeated one
        world.log.error = FencedShardEpochError("another coordinator has claimed the shard")
        with pytest.raises(NotCoordinatorError):
            await world.ask(add)

    scenario(test)


@pytest.mark.parametrize("verify_only", [True, False])
def test_a_former_owner_does_not_confirm_a_partition_to_an_old_client(verify_only: bool) -> None:
    """Under version 1 a marker has the epoch of the batches. If the transaction has ended, the partition's leader would
    append the batch behind the marker, and no marker would follow."""

    async def test(world: World) -> None:
        producer = await world.producer()
        await world.ask(AddPartitions("t", producer, frozenset({ONE}), 1))
        again = AddPartitions("t", producer, frozenset({ONE}), 1, verify_only)
        await world.ask(again)
        world.log.error = FencedShardEpochError("another coordinator has claimed the shard")
        with pytest.raises(NotCoordinatorError):
            await world.ask(again)

    scenario(test)


def test_the_topic_of_transactions_is_not_part_of_one() -> None:
    async def test(world: World) -> None:
        owner = await world.ended(ONE)
        stream = Stream()
        handler = AddPartitionsStream(world.transactions, cast(Any, stream))
        request = adding(1, owner, 1)
        request.partitions[0].topic = "__transaction_state"
        handler.on_request(message(request))
        assert stream.answers == [(1, INVALID_TOPIC)]

    scenario(test)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_former_owner_does_not_confirm_that_a_transaction_has_ended(version: int, commit: bool) -> None:
    """Under version 1 the producer's next transaction has the same epoch. A former owner does not know the next
    transaction. The former owner took the request to end the next transaction for a repeated request to end the
    previous transaction (simulator, seed 20261123102)."""

    async def test(world: World) -> None:
        producer = await world.producer()
        await world.ask(AddPartitions("t", producer, frozenset({ONE}), version))
        end = EndTransaction("t", producer, commit=commit, version=version)
        await world.ask(end)
        await world.until(lambda: world.orders)
        world.mark(ONE)
        assert await world.ask(end), "the owner of the shard confirms a repeated request"
        world.log.error = FencedShardEpochError("another coordinator has claimed the shard")
        with pytest.raises(NotCoordinatorError):
            await world.ask(end)

    scenario(test)


def test_a_former_owner_fences_no_producer() -> None:
    async def test(world: World) -> None:
        producer = await world.producer()
        await world.producer()
        with pytest.raises(HeadraceError, match="epoch") as refused:
            await world.ask(EndTransaction("t", producer, commit=True))
        assert not isinstance(refused.value, NotCoordinatorError)
        world.log.error = FencedShardEpochError("another coordinator has claimed the shard")
        with pytest.raises(NotCoordinatorError):
            await world.ask(EndTransaction("t", producer, commit=True))

    scenario(test)
