"""Ownership of shards by the metadata, changes of topics for their groups, and the shell around a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace_coordinator.group.messages import TopicsChanged
from headrace_coordinator.group.subscriptions import Subscription, Topics
from headrace_coordinator.runtime.claims import Claim, is_claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.runtime.shards import Shards
from headrace_coordinator.runtime.topics import TopicsView
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.clock import SystemClock
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedShardEpochError,
    InvalidRequestError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    UnknownMemberIdError,
)
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    ImageBuilder,
    MetadataDelta,
    MetadataImage,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterCoordinatorRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_core.metadata import ShardRecord as OwnedShard
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from headrace_core.security.access import Authorization
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import IdleMachine

SHARDS = 4
OFFSETS_ID, TOPIC_ID, OTHER_ID, TRANSACTIONS_ID = (bytes([number]) * 16 for number in (1, 2, 3, 4))
ENDPOINTS = (BrokerEndpoint("client", "h", 1), BrokerEndpoint("internal", "h", 2))
ME = 1, 100


class GrowingImageWorld:
    """An image that grows."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE

    def apply(self, *records: Any) -> tuple[MetadataImage, MetadataDelta]:
        builder = ImageBuilder(self.image)
        for record in records:
            builder.replay(record)
        self.image, delta = builder.finish(self.image.next_offset + len(records))
        return self.image, delta


def broker(broker_id: int, rack: str | None = None) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id, broker_id, bytes([broker_id]) * 16, (bytes([broker_id]) * 16,), ENDPOINTS, rack
    )


def topic(name: str, topic_id: bytes, partitions: int, first: int = 0) -> list[Any]:
    made: list[Any] = [] if first else [TopicRecord(name, topic_id)]
    return made + [
        PartitionRecord(topic_id, number, (1,), (1,), 1, 1, 1, (b"\x01" * 16,)) for number in range(first, partitions)
    ]


def coordinator(coordinator_id: int, epoch: int) -> RegisterCoordinatorRecord:
    return RegisterCoordinatorRecord(coordinator_id, epoch, bytes([epoch]) * 16, ENDPOINTS)


def owned(number: int, coordinator_id: int, epoch: int, topic_id: bytes = OFFSETS_ID) -> OwnedShard:
    return OwnedShard(topic_id, number, coordinator_id, epoch)


class Machine(IdleMachine):
    def __init__(self) -> None:
        super().__init__()
        self.replayed: list[bytes] = []

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        self.replayed.append(key)

    def handle(self, request: Any, now_ms: int) -> Decision:
        self.asked.append(request)
        if request == "refuse":
            raise UnknownMemberIdError("no")
        if isinstance(request, str):
            return Decision((ShardRecord(request.encode(), b""),), reply=request)
        return Decision()


class Log:
    """A shard's log in memory; ``gate`` holds appends, ``error`` fails the next append."""

    def __init__(self) -> None:
        self.records: list[ShardRecord] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def append(self, batches: Sequence[Sequence[ShardRecord]], expected_end: int) -> int:
        await self.gate.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        base = len(self.records)
        assert expected_end in (-1, base)
        self.records += [record for batch in batches for record in batch]
        return base

    async def read(self, end: int, take: Any) -> None:
        take([(record.key, record.value, 0) for record in self.records[:end]])


class Owner:
    """Shards over logs in memory."""

    def __init__(self, *, is_believed: Callable[[], bool] = lambda: True) -> None:
        self.world = GrowingImageWorld()
        self.logs: dict[tuple[int, int], Log] = {}
        self.state_machines: dict[tuple[int, int], list[Machine]] = {}
        self.left: list[tuple[str, ShardState]] = []
        self._news = asyncio.Event()
        self.shards = Shards(*ME, self._new_runner, Authorization())
        self._is_believed = is_believed

    def _new_runner(self, partition: TopicPartition, topic_id: bytes, epoch: int) -> ShardRunner:
        which = partition.partition + (100 if partition.topic == TRANSACTIONS_TOPIC else 0), epoch
        log = self.logs[which] = Log()
        state_machines = self.state_machines[which] = []

        def new_state_machine() -> Machine:
            state_machines.append(Machine())
            return state_machines[-1]

        return ShardRunner(
            Shard(str(partition), Claim(epoch, *ME), new_state_machine),
            log,
            clock=SystemClock(),
            replays=asyncio.Semaphore(2),
            tell=lambda pushes: None,
            became=self._became,
            is_believed=self._is_believed,
        )

    def _became(self, runner: ShardRunner, state: ShardState, error: Exception | None) -> None:
        if state in (ShardState.FENCED, ShardState.RESIGNED):
            self.left.append((runner.shard.name, state))
        self.shards.began(runner, state)
        self._news.set()

    def change(self, *records: Any) -> None:
        self.shards.metadata_changed(*self.world.apply(*records))

    async def serving(self, count: int) -> list[ShardRunner]:
        async with asyncio.timeout(60):
            while sum(runner.is_serving for runner in self.shards) < count:
                self._news.clear()
                await self._news.wait()
        return list(self.shards)

    def group_of(self, number: int) -> str:
        return next(group for group in map(str, range(1_000)) if shard_of(group, SHARDS) == number)


def scenario(test: Callable[[Owner], Awaitable[None]], *, is_believed: Callable[[], bool] = lambda: True) -> None:
    async def run() -> None:
        owner = Owner(is_believed=is_believed)
        owner.world.apply(broker(1), *topic(OFFSETS_TOPIC, OFFSETS_ID, SHARDS), coordinator(*ME), coordinator(2, 101))
        owner.world.apply(owned(0, 1, 1), owned(1, 1, 1), owned(2, 2, 1))
        owner.shards.begin(owner.world.image)
        try:
            await test(owner)
        finally:
            await owner.shards.close()

    asyncio.run(run())


def test_it_serves_the_shards_that_the_metadata_gives_it_and_no_other() -> None:
    async def test(owner: Owner) -> None:
        runners = await owner.serving(2)
        assert sorted(runner.shard.name for runner in runners) == [f"{OFFSETS_TOPIC}-0", f"{OFFSETS_TOPIC}-1"]
        assert await owner.shards.of_group(owner.group_of(0)).ask("hello") == "hello"
        for number in (2, 3):  # another coordinator's, and unowned
            with pytest.raises(NotCoordinatorError, match=f"{OFFSETS_TOPIC}-{number}"):
                owner.shards.of_group(owner.group_of(number))

    scenario(test)


def test_shards_come_and_go_and_a_new_epoch_is_another_shard() -> None:
    async def test(owner: Owner) -> None:
        await owner.serving(2)
        first = owner.shards.of_group(owner.group_of(0))
        owner.logs[0, 1].gate.clear()
        waiting = asyncio.ensure_future(first.ask("on its way"))
        await asyncio.sleep(0)
        owner.change(owned(0, 2, 2), owned(2, 1, 2))
        with pytest.raises(NotCoordinatorError):
            await waiting
        assert owner.left == [(f"{OFFSETS_TOPIC}-0", ShardState.RESIGNED)]
        await owner.serving(2)
        assert (2, 2) in owner.logs
        owner.change(owned(0, 1, 3))
        await owner.serving(3)
        again = owner.shards.of_group(owner.group_of(0))
        assert again is not first
        assert again.shard.claim.shard_epoch == 3

    scenario(test)


def test_shards_of_another_life_are_not_ours() -> None:
    async def test(owner: Owner) -> None:
        await owner.serving(2)
        owner.change(coordinator(1, 150))
        assert list(owner.shards) == []

    scenario(test)


def test_a_group_without_shards_has_no_coordinator_yet() -> None:
    async def run() -> None:
        with pytest.raises(CoordinatorNotAvailableError, match="does not exist yet"):
            Owner().shards.of_group("g")

    asyncio.run(run())


def test_without_the_controllers_every_answer_waits_for_an_append_until_a_successor_has_claimed() -> None:
    is_believed = True

    async def test(owner: Owner) -> None:
        nonlocal is_believed
        await owner.serving(2)
        runner, log = owner.shards.of_group(owner.group_of(0)), owner.logs[0, 1]
        before = len(log.records)
        await runner.ask(("a question",))
        assert len(log.records) == before, "the controllers vouch for it"
        is_believed = False
        await runner.ask(("a question",))
        assert [is_claim(record.key) for record in log.records[before:]] == [True]
        await runner.ask("an append")
        assert not is_claim(log.records[-1].key), "what is written anyway is proof enough"
        log.error = FencedShardEpochError("a larger epoch has claimed")
        with pytest.raises(NotCoordinatorError):
            await runner.ask(("a question",))
        assert owner.left == [(f"{OFFSETS_TOPIC}-0", ShardState.FENCED)]

    scenario(test, is_believed=lambda: is_believed)


def test_a_shard_begins_with_the_topics_there_are_and_hears_of_changes() -> None:
    async def test(owner: Owner) -> None:
        owner.change(*topic("t", TOPIC_ID, 2))
        await owner.serving(2)
        (state_machine,) = owner.state_machines[0, 1]
        assert isinstance(state_machine.asked[0], TopicsChanged)
        assert state_machine.asked[-1].topics["t"].partitions == 2
        owner.change(*topic("t", TOPIC_ID, 5, first=2))
        assert state_machine.asked[-1].topics["t"].partitions == 5
        assert state_machine.asked[-1].changed == frozenset({"t"})

    scenario(test)


def test_shards_of_transactions_are_found_by_transactional_id_and_hear_of_no_topics() -> None:
    async def test(owner: Owner) -> None:
        with pytest.raises(CoordinatorNotAvailableError, match=f"{TRANSACTIONS_TOPIC} does not exist"):
            owner.shards.of_transactional_id("t")
        owner.change(*topic(TRANSACTIONS_TOPIC, TRANSACTIONS_ID, 2))
        owner.change(owned(0, 1, 1, TRANSACTIONS_ID), owned(1, 2, 1, TRANSACTIONS_ID))
        await owner.serving(3)
        mine, others = (next(each for each in "abc" if shard_of(each, 2) == number) for number in (0, 1))
        runner = owner.shards.of_transactional_id(mine)
        assert runner.shard.name == f"{TRANSACTIONS_TOPIC}-0"
        assert owner.shards.of_topic(TRANSACTIONS_TOPIC) == [runner]
        with pytest.raises(NotCoordinatorError, match=f"{TRANSACTIONS_TOPIC}-1"):
            owner.shards.of_transactional_id(others)
        with pytest.raises(InvalidRequestError, match=r"set transactional\.id"):
            owner.shards.of_transactional_id("")
        assert len(owner.shards.of_topic(OFFSETS_TOPIC)) == 2
        owner.change(*topic("t", TOPIC_ID, 1))
        (state_machine,) = owner.state_machines[100, 1]
        assert state_machine.asked == []
        assert len(owner.state_machines[0, 1][0].asked) == 2
        owner.change(owned(0, 1, 2, TRANSACTIONS_ID))
        assert owner.shards.of_transactional_id(mine) is not runner, "another epoch is another owner"

    scenario(test)


def test_a_failed_append_is_reported_and_the_shard_comes_back_with_a_new_state_machine() -> None:
    async def test(owner: Owner) -> None:
        await owner.serving(2)
        runner = owner.shards.of_group(owner.group_of(0))
        for request in "abc":
            await runner.ask(request)
        owner.logs[0, 1].error = NotEnoughReplicasError("two are away")
        with pytest.raises(CoordinatorNotAvailableError, match="two are away"):
            await runner.ask("x")
        with pytest.raises(CoordinatorLoadInProgressError):
            await runner.ask("y")
        await owner.serving(2)
        assert len(owner.state_machines[0, 1]) == 2
        assert owner.state_machines[0, 1][1].replayed == [b"a", b"b", b"c"]
        assert await runner.ask("z") == "z"
        with pytest.raises(UnknownMemberIdError):
            await runner.ask("refuse")

    scenario(test)


def test_a_fenced_shard_says_so_and_stays_silent() -> None:
    async def test(owner: Owner) -> None:
        await owner.serving(2)
        runner = owner.shards.of_group(owner.group_of(0))
        owner.logs[0, 1].error = FencedShardEpochError("epoch 2 was there")
        with pytest.raises(NotCoordinatorError):
            await runner.ask("x")
        assert owner.left == [(f"{OFFSETS_TOPIC}-0", ShardState.FENCED)]
        with pytest.raises(NotCoordinatorError):
            await runner.ask("y")

    scenario(test)


def test_a_request_to_a_runner_that_was_closed_meanwhile_is_answered() -> None:
    """A caller may look up the runner, and ask it after the shard has moved."""

    async def test(owner: Owner) -> None:
        await owner.serving(2)
        runner = owner.shards.of_group(owner.group_of(0))
        owner.change(owned(0, 2, 2))
        await owner.shards.close()
        with pytest.raises(NotCoordinatorError, match="another coordinator"):
            await asyncio.wait_for(runner.ask("x"), 60)

    scenario(test)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_groups_hear_of_internal_topics_which_members_may_subscribe_to_by_name() -> None:
    world, view, topics = GrowingImageWorld(), TopicsView(Authorization()), Topics()
    world.apply(broker(1, "r1"), *topic("a", TOPIC_ID, 1))
    view.begin(world.image)
    advanced = view.advance(*world.apply(*topic(OFFSETS_TOPIC, OFFSETS_ID, 2)))
    assert advanced is not None
    assert set(view.begin(world.image).topics) == set(advanced.topics) == {"a", OFFSETS_TOPIC}
    topics.replace(advanced.topics, None)
    assert topics.resolve(Subscription((OFFSETS_TOPIC,))) == {OFFSETS_ID}
    assert topics.resolve(Subscription((), ".*")) == {TOPIC_ID}


def test_groups_hear_of_topics_that_come_grow_and_go_but_not_of_leaders() -> None:
    world, view = GrowingImageWorld(), TopicsView(Authorization())
    world.apply(broker(1, "r1"), broker(2, "r2"), *topic("a", TOPIC_ID, 1))
    assert set(view.begin(world.image).topics) == {"a"}
    assert view.current.topics["a"].racks == (frozenset({"r1"}),)
    moved = PartitionRecord(TOPIC_ID, 0, (1,), (), -1, 2, 2, (b"\x01" * 16,))
    assert view.advance(*world.apply(moved)) is None
    before = view.current.topics
    advanced = view.advance(*world.apply(*topic("b", OTHER_ID, 3)))
    assert advanced is not None
    assert advanced.changed == frozenset({"b"})
    assert "b" not in before, "what was told does not change afterwards"
    replaced = view.advance(*world.apply(RemoveTopicRecord(OTHER_ID), *topic("b", b"\x09" * 16, 3)))
    assert replaced is not None
    assert replaced.topics["b"].topic_id == b"\x09" * 16
    gone = view.advance(*world.apply(RemoveTopicRecord(b"\x09" * 16)))
    assert gone is not None
    assert gone.changed == frozenset({"b"})
    assert set(gone.topics) == {"a"}


def test_a_broker_that_comes_back_in_another_rack_is_news_and_one_in_the_same_is_not() -> None:
    world, view = GrowingImageWorld(), TopicsView(Authorization())
    world.apply(broker(1, "r1"), *topic("a", TOPIC_ID, 1))
    view.begin(world.image)
    assert view.advance(*world.apply(broker(1, "r1"))) is None
    advanced = view.advance(*world.apply(broker(1, "r7")))
    assert advanced is not None
    assert advanced.changed == frozenset({"a"})
    assert advanced.topics["a"].racks == (frozenset({"r7"}),)
