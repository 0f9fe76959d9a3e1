"""The keeper requests changes of in-sync sets. The keeper adds a replica that caught up at once, removes a lagging
replica after a time, and requests nothing for idle partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace_broker.controller_link import IsrAnswer, IsrRequest, ReplicaKey
from headrace_broker.partition import PartitionLeader
from headrace_broker.replication.isr_keeper import CALL_PARTITIONS_MAX, LOOK_MS, OVERTAKEN_MAX, IsrKeeper
from headrace_core import errors
from headrace_core.clock import SystemClock
from headrace_core.telemetry import Counter, Emitter, Event, IsrExpanded, IsrShrunk
from headrace_core.testing.clock import ManualClock
from headrace_core.types import TopicPartition
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

LEADER, FOLLOWER = 1, 2
CLOCK = SystemClock()
#: A replica lag time that is so long that no replica falls behind by accident.
LONG_MS = 3_600_000


class Controllers:
    """Answers as controllers do, unless ``says`` has a result or an exception for the call."""

    def __init__(self) -> None:
        self.calls: list[list[IsrRequest]] = []
        self.says: list[Callable[[list[IsrRequest]], Any]] = []
        self.hold: asyncio.Event | None = None
        self.under_way = self.most_under_way = 0

    async def __call__(self, asked: list[IsrRequest]) -> dict[ReplicaKey, IsrAnswer | errors.HeadraceError]:
        self.calls.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hold is not None:
                await self.hold.wait()
            if self.says:
                return self.says.pop(0)(asked)
            return {
                (each.topic_id, each.partition): IsrAnswer(
                    LEADER, each.leader_epoch, each.partition_epoch + 1, tuple(member for member, _ in each.isr), False
                )
                for each in asked
            }
        finally:
            self.under_way -= 1


class IsrKeeperWorld:
    """``async with IsrKeeperWorld() as world`` starts a keeper, which knows some leaders."""

    def __init__(self, *, lag_time_max_ms: int = LONG_MS) -> None:
        self.lag_time_max_ms = lag_time_max_ms
        self.controllers = Controllers()
        self.events: list[Event] = []
        emitter = Emitter()
        emitter.subscribe(self.events.append)
        self.broker_epochs: dict[int, int] = {LEADER: 10, FOLLOWER: 20, 3: 30}
        self.failures = Counter()
        self.keeper = IsrKeeper(
            self.controllers,
            self.broker_epochs.get,
            clock=CLOCK,
            events=emitter,
            lag_time_max_ms=lag_time_max_ms,
            failures=self.failures,
        )

    async def __aenter__(self) -> IsrKeeperWorld:
        self._task = asyncio.create_task(self.keeper.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def leader(self, name: str = "orders", *, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> PartitionLeader:
        def due() -> None:
            self.keeper.due(leader)

        leader = PartitionLeader(
            TopicPartition(name, 0),
            topic_id=name.encode().ljust(16, b"."),
            leader_id=LEADER,
            leader_epoch=1,
            log_start=0,
            log_end=0,
            flushed_end=0,
            replicas=(LEADER, FOLLOWER),
            isr=isr,
            lag_time_max_ms=self.lag_time_max_ms,
            on_isr_due=due,
        )
        self.keeper.due(leader)
        return leader


def now_ms() -> int:
    return int(CLOCK.monotonic_ms())


def join(leader: PartitionLeader, *, durable_end: int = 0) -> None:
    leader.follower_joined(FOLLOWER, 20, log_end=durable_end, durable_end=durable_end, log_start=0, now_ms=now_ms())


def ack(leader: PartitionLeader, end: int) -> None:
    leader.follower_acked(FOLLOWER, 20, durable_end=end, log_end=end, log_start=0, now_ms=now_ms())


@in_loop
async def test_a_follower_that_caught_up_is_asked_for_at_once_and_joins():
    async with IsrKeeperWorld() as world:
        leader = world.leader(isr=(LEADER,))
        leader.advanced(5, 5, 50)
        join(leader)
        await until(lambda: not leader._is_stirred)
        assert world.controllers.calls == []  # it lacks five records
        ack(leader, 5)
        await until(lambda: leader.isr == (LEADER, FOLLOWER))
        ((request,),) = world.controllers.calls
        assert request.isr == ((LEADER, 10), (FOLLOWER, 20))
        assert [event for event in world.events if isinstance(event, IsrExpanded)] == [
            IsrExpanded(partition=leader.partition, added=(FOLLOWER,), isr=(LEADER, FOLLOWER))
        ]


@in_loop
async def test_a_follower_that_fell_behind_for_too_long_is_taken_out():
    async with IsrKeeperWorld(lag_time_max_ms=50) as world:
        leader = world.leader()
        join(leader)
        started = CLOCK.monotonic_ms()
        leader.advanced(1, 1, 10)
        await until(lambda: leader.isr == (LEADER,))
        assert CLOCK.monotonic_ms() - started >= 50
        assert leader.high_watermark == 1
        assert [type(event) for event in world.events] == [IsrShrunk]


@in_loop
async def test_idle_partitions_whose_replicas_are_in_sync_are_not_watched():
    async with IsrKeeperWorld() as world:
        leaders = [world.leader(f"topic-{number}") for number in range(100)]
        for leader in leaders:
            join(leader)
        await until(lambda: world.keeper.watched == 0)
        leaders[7].advanced(1, 1, 10)
        await until(lambda: world.keeper.watched == 1)
        assert world.controllers.calls == []


def test_a_busy_partition_is_not_looked_at_for_each_append():
    async def scenario() -> None:
        async with IsrKeeperWorld() as world:
            leader = world.leader()
            join(leader)
            await until(lambda: world.keeper.watched == 0)
            looks = 0

            class Counting(PartitionLeader):
                __slots__ = ()

                def isr_change(self, *args: Any) -> Any:
                    nonlocal looks
                    looks += 1
                    return super().isr_change(*args)

            leader.__class__ = Counting
            for end in range(1, 500):
                leader.advanced(end, end, 10)
                await asyncio.sleep(0)
                ack(leader, end)
                await asyncio.sleep(0)
            assert looks < 50

    asyncio.run(scenario())


@in_loop
async def test_one_call_at_a_time_and_what_comes_meanwhile_goes_into_the_next():
    async with IsrKeeperWorld() as world:
        world.controllers.hold = asyncio.Event()
        leaders = [world.leader(f"topic-{number}", isr=(LEADER,)) for number in range(60)]
        join(leaders[0])
        await until(lambda: len(world.controllers.calls) == 1)
        for leader in leaders[1:]:
            join(leader)
        await asyncio.sleep(0)
        world.controllers.hold.set()
        await until(lambda: all(len(leader.isr) == 2 for leader in leaders))
        assert world.controllers.most_under_way == 1
        assert [len(call) for call in world.controllers.calls] == [1, 59]


@in_loop
async def test_calls_have_a_bounded_size():
    async with IsrKeeperWorld() as world:
        leaders = [world.leader(f"topic-{number}", isr=(LEADER,)) for number in range(CALL_PARTITIONS_MAX + 5)]
        for leader in leaders:
            join(leader)
        await until(lambda: all(len(leader.isr) == 2 for leader in leaders))
        assert max(len(call) for call in world.controllers.calls) <= CALL_PARTITIONS_MAX


def test_a_lost_answer_is_asked_for_again_unchanged():
    def lost(asked: list[IsrRequest]) -> Any:
        raise errors.RequestTimedOutError("no controller answered")

    async def scenario() -> None:
        async with IsrKeeperWorld() as world:
            leader = world.leader(isr=(LEADER,))
            world.controllers.says = [lost, lost]
            join(leader)
            await until(lambda: leader.isr == (LEADER, FOLLOWER))
            first, second, third = (
                [each._replace(uncertain=False) for each in call] for call in world.controllers.calls
            )
            assert first == second == third
            assert [each.uncertain for (each,) in world.controllers.calls] == [False, True, True]
            assert world.failures.value == 2

    asyncio.run(scenario())


def test_after_a_lost_answer_an_ineligible_replica_counts_until_the_partition_epoch_has_moved_on():
    """The lost attempt may still be granted; the refusal of the later attempt makes the controllers end the epoch."""

    def lost(asked: list[IsrRequest]) -> Any:
        raise errors.NetworkError("the connection broke")

    def ineligible(asked: list[IsrRequest]) -> Any:
        return {(each.topic_id, each.partition): errors.IneligibleReplicaError("broker 2 is fenced") for each in asked}

    async def scenario() -> None:
        async with IsrKeeperWorld() as world:
            leader = world.leader(isr=(LEADER,))
            world.controllers.says = [lost, ineligible, lost]
            join(leader)
            await until(lambda: len(world.controllers.calls) == 3)
            assert leader.maximal_isr == {LEADER, FOLLOWER}
            leader.metadata_changed(isr=(LEADER,), partition_epoch=1, replicas=(LEADER, FOLLOWER), min_insync=1)
            assert leader.maximal_isr == {LEADER}
            await until(lambda: len(leader.isr) == 2)
            assert world.controllers.calls[-1][0].partition_epoch == 1
            assert not world.controllers.calls[-1][0].uncertain

    asyncio.run(scenario())


@in_loop
async def test_an_answer_that_leaves_a_partition_out_is_asked_for_again():
    async with IsrKeeperWorld() as world:
        leader = world.leader(isr=(LEADER,))
        world.controllers.says = [lambda asked: {}]
        join(leader)
        await until(lambda: leader.isr == (LEADER, FOLLOWER))
        assert world.failures.value == 1


def test_a_leader_whose_epoch_is_over_asks_no_more():
    def fenced(asked: list[IsrRequest]) -> Any:
        return {(each.topic_id, each.partition): errors.FencedLeaderEpochError("epoch 1 is over") for each in asked}

    async def scenario() -> None:
        async with IsrKeeperWorld() as world:
            leader, other = world.leader(isr=(LEADER,)), world.leader("payments", isr=(LEADER,))
            world.controllers.says = [fenced]
            join(leader)
            await until(lambda: len(world.controllers.calls) == 1)
            join(other)
            await until(lambda: len(other.isr) == 2)
            ack(leader, 0)
            await until(lambda: world.keeper.watched == 0)
            assert [[each.topic_id for each in call] for call in world.controllers.calls] == [
                [leader.topic_id],
                [other.topic_id],
            ]
            leader.metadata_changed(isr=(LEADER,), partition_epoch=7, replicas=(LEADER, FOLLOWER), min_insync=1)
            await until(lambda: len(leader.isr) == 2)  # the metadata decides, and then the keeper continues
            assert world.controllers.calls[-1][0].partition_epoch == 7

    asyncio.run(scenario())


@in_loop
async def test_a_broker_that_is_unfenced_joins_when_the_metadata_says_so():
    async with IsrKeeperWorld() as world:
        del world.broker_epochs[FOLLOWER]
        leader = world.leader(isr=(LEADER,))
        join(leader)
        await until(lambda: not leader._is_stirred)
        assert world.controllers.calls == []
        world.broker_epochs[FOLLOWER] = 20
        world.keeper.metadata_changed([leader])
        await until(lambda: len(leader.isr) == 2)


@in_loop
async def test_a_former_life_of_a_broker_does_not_join():
    async with IsrKeeperWorld() as world:
        leader, other = world.leader(isr=(LEADER,)), world.leader("payments", isr=(LEADER,))
        world.broker_epochs[FOLLOWER] = 21
        join(leader)
        other.follower_joined(FOLLOWER, 21, log_end=0, durable_end=0, log_start=0, now_ms=now_ms())
        await until(lambda: len(other.isr) == 2)
        await until(lambda: not leader._is_stirred)
        assert [each.topic_id for call in world.controllers.calls for each in call] == [other.topic_id]


@in_loop
async def test_a_leader_that_resigned_is_forgotten():
    async with IsrKeeperWorld() as world:
        leader = world.leader(isr=(LEADER,))
        world.controllers.hold = asyncio.Event()
        join(leader)
        await until(lambda: len(world.controllers.calls) == 1)
        leader.resign(errors.NotLeaderOrFollowerError("broker 3 leads it"))
        world.controllers.hold.set()
        await until(lambda: world.keeper.watched == 0)


def test_a_partition_that_stirs_all_the_time_leaves_nothing_behind():
    clock = ManualClock()
    world = IsrKeeperWorld()  # the keeper does not run: the test calls its check
    keeper = world.keeper = IsrKeeper(world.controllers, {LEADER: 10}.get, clock=clock, events=Emitter())
    leader = world.leader(isr=(LEADER,))
    join(leader)
    for _ in range(5 * OVERTAKEN_MAX):  # its broker is fenced, so each check sets a late time for the next one
        clock.advance(2 * LOOK_MS)
        assert keeper._gather() == []
        ack(leader, 0)
    assert keeper.watched == 1
    assert len(keeper._heap) <= OVERTAKEN_MAX + 2
