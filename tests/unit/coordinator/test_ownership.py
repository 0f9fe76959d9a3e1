"""A coordinator that may have been deposed removes no member, because members may continue to read by the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_coordinator.classic.messages import Answered, Join, Waiting
from headrace_coordinator.classic.settings import ClassicSettings
from headrace_coordinator.group.messages import DescribeGroup, Disconnected, Heartbeat, TopicsChanged
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.handlers.membership import Members, MembershipStream
from headrace_coordinator.runtime import runner as runner_module
from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard, ShardState
from headrace_coordinator.state_machine import Decision, OwnershipAsked, OwnershipProven
from headrace_core.clock import SystemClock
from headrace_core.errors import NotCoordinatorError, UnreleasedInstanceIdError
from headrace_core.testing.clock import ManualClock
from headrace_protos.v1 import groups_pb2
from tests.worlds.group_world import GroupShardWorld, topics
from tests.worlds.shard_world import EmptyLog, GrowingLog, IdleMachine


@pytest.fixture
def world() -> GroupShardWorld:
    return GroupShardWorld(awaits_proof=True)


def members(world: GroupShardWorld) -> set[str]:
    return {each.member_id for each in world.described().members}


def test_who_was_cut_off_is_gone_once_the_shard_is_proven_to_be_ours_and_not_before(world: GroupShardWorld) -> None:
    one, other = world.join("a", "b")
    world.is_proven = False
    one.disconnect()
    world.sleep(world.settings.connection_grace_ms + 1)
    world._done(world.groups.tick(world.now_ms))
    assert members(world) == {"a", "b"}
    world.is_proven = True
    world.tick()
    assert members(world) == {"b"}
    world.converge()
    assert len(other.reading) == 4


def test_a_proof_of_a_moment_within_the_grace_is_none_of_what_comes_after(world: GroupShardWorld) -> None:
    one, _ = world.join("a", "b")
    one.disconnect()
    world.sleep(world.settings.connection_grace_ms - 1)
    world.ask(OwnershipAsked(1_000))
    world.is_proven = False
    world.sleep(5_000)
    world.ask(OwnershipProven(1_000))  # the response took this long
    world._done(world.groups.tick(world.now_ms))
    assert members(world) == {"a", "b"}


def test_the_answer_to_a_question_of_an_earlier_state_machine_proves_nothing(world: GroupShardWorld) -> None:
    one, _ = world.join("a", "b")
    one.disconnect()
    world.is_proven = False
    world.sleep(world.settings.connection_grace_ms + 1)
    world.ask(OwnershipAsked(7))
    world.ask(OwnershipProven(6))
    world._done(world.groups.tick(world.now_ms))
    assert members(world) == {"a", "b"}


def test_a_static_member_is_replaced_only_by_who_certainly_has_the_shard(world: GroupShardWorld) -> None:
    one = _static(world, "a")
    world.converge()
    world.is_proven = False
    one.disconnect()
    world.sleep(world.settings.connection_grace_ms + 1)
    assert isinstance(_static(world, "a2").error, UnreleasedInstanceIdError)
    world.is_proven = True
    world.tick()
    assert _static(world, "a2").error is None
    assert members(world) == {"a2"}


def _static(world: GroupShardWorld, name: str) -> Any:
    (found,) = world.join(name, instance_id="host-1")
    return found


# -- who asks for the proof --------------------------------------------------------------------------------------------


class Machine(IdleMachine):
    """Work is due at once, until a tick after a proof."""

    is_due = True

    def tick(self, now_ms: int) -> Decision:
        if any(isinstance(each, OwnershipProven) for each in self.asked):
            self.asked.append("tick")
            self.is_due = False
        return Decision()

    def next_due_ms(self) -> int | None:
        return 0 if self.is_due else None


def proving_runner(state_machine: Machine, prove: Callable[[ShardRunner], Awaitable[bool]]) -> ShardRunner:
    return ShardRunner(
        Shard("shard-0", Claim(1, 1, 1), lambda: state_machine),
        EmptyLog(),
        clock=ManualClock(),
        replays=asyncio.Semaphore(1),
        tell=lambda pushes: None,
        became=lambda runner, state, error: None,
        is_ours=prove,
    )


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_tick_comes_after_the_proof_and_without_it_there_is_none(is_ours: bool) -> None:
    async def scenario() -> None:
        state_machine, asked, answer = Machine(), asyncio.Event(), asyncio.Event()

        async def prove(runner: ShardRunner) -> bool:
            asked.set()
            await answer.wait()
            if not is_ours:
                state_machine.is_due = False  # (the runner is about to be closed)
            answered.set()
            return is_ours

        answered = asyncio.Event()
        runner = proving_runner(state_machine, prove)
        runner.start()
        await asked.wait()
        runner.put("meanwhile")
        assert state_machine.asked == [OwnershipAsked(1), "meanwhile"], "it waits, and others do not"
        answer.set()
        await answered.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        after = [OwnershipProven(1), "tick"] if is_ours else []
        assert state_machine.asked == [OwnershipAsked(1), "meanwhile", *after]
        await runner.close()

    asyncio.run(scenario())


def test_a_proof_that_fails_is_reported_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "TICK_MS_MAX", 1)

    async def scenario() -> None:
        state_machine, times, ticked = Machine(), [0], asyncio.Event()

        async def prove(runner: ShardRunner) -> bool:
            times[0] += 1
            if times[0] == 1:
                raise RuntimeError("a bug")
            ticked.set()
            return True

        runner = proving_runner(state_machine, prove)
        runner.start()
        async with asyncio.timeout(60):
            await ticked.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert "tick" in state_machine.asked
        await runner.close()
        assert times == [2]

    asyncio.run(scenario())
    assert "cannot prove that" in caplog.text
    assert "a bug" in caplog.text


def test_a_classic_group_rebalances_while_no_proof_comes() -> None:
    """The controllers may have no leader for long, and no proof comes without them."""

    async def scenario() -> None:
        serving, proving, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        answers: dict[int, asyncio.Future[Any]] = {1: asyncio.get_running_loop().create_future()}

        async def prove(runner: ShardRunner) -> bool:
            proving.set()
            await gone.wait()
            return True

        def tell(pushes: Any) -> None:
            for push in pushes:
                if isinstance(push, Answered):
                    answers[push.ticket].set_result(push.outcome)

        settings = GroupSettings(connection_grace_ms=1), ClassicSettings(initial_delay_ms=1)
        runner = ShardRunner(
            Shard("shard-0", Claim(1, 1, 1), lambda: GroupsOfBothTypes(*settings, awaits_proof=True)),
            GrowingLog(),
            clock=SystemClock(),
            replays=asyncio.Semaphore(1),
            tell=tell,
            became=lambda runner, state, error: serving.set() if state is ShardState.SERVING else None,
            is_ours=prove,
        )
        runner.start()
        await serving.wait()
        runner.put(TopicsChanged(topics(orders=1)))
        await runner.ask(Heartbeat("new", "m", 0, 1, topics=("orders",), rebalance_timeout_ms=60_000))
        runner.put(Disconnected("new", "m", 1))
        await proving.wait()
        join = Join("classic", "", "c", 10_000, 60_000, "consumer", (("range", b""),), 1)
        assert isinstance(await runner.ask(join), Waiting)
        async with asyncio.timeout(60):
            joined = await answers[1]
        assert (joined.member_id, joined.generation) == ("c", 1)
        assert (await runner.ask(DescribeGroup("new"))).members, "the removal of a member waits for the proof"
        gone.set()
        async with asyncio.timeout(60):
            while (await runner.ask(DescribeGroup("new"))).members:
                pass
        await runner.close()

    asyncio.run(scenario())


# -- the members' notices ----------------------------------------------------------------------------------------------


class Stream:
    queued_bytes, paused = 0, False

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended: list[Any] = []

    def send(self, response: Any, size: int) -> None:
        self.sent.append(response)

    def finish(self, error: Any = None) -> None:
        self.ended.append(error)


def runner_of(epoch: int) -> Any:
    found: Any = SimpleNamespace(shard=SimpleNamespace(name="shard-0", claim=Claim(epoch, 1, 1)), is_serving=True)
    found.put = lambda asked, done=None: done and done(RuntimeError)
    return found


def heartbeat(number: int) -> Any:
    request = groups_pb2.MembershipRequest(correlation_id=number)
    request.heartbeat.group_id, request.heartbeat.member_id = "g", "m"
    return request


def test_a_stream_is_of_one_owner_and_ends_when_another_one_would_answer() -> None:
    runners: Iterator[Any] = iter([first := runner_of(3), first, runner_of(5)])
    answered: list[Any] = []
    stream = Stream()
    members = Members(lambda _: next(runners), lambda: 12.3)
    member = MembershipStream(members, stream, 1, "host")  # type: ignore[arg-type]
    member._answer = lambda number, outcome, runner=None: answered.append((number, runner))  # type: ignore[method-assign]
    for number in (1, 2, 3):
        member.on_request(heartbeat(number))
    assert answered == [(1, first), (2, first)]
    (error,) = stream.ended
    assert isinstance(error, NotCoordinatorError)
    assert "another shard epoch" in error.message
