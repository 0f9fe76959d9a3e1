"""The wall clock is changed by less than a check would notice. A small change of the wall clock shortens no grace
period (found by simulation)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace_coordinator.runtime.claims import Claim
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import Shard
from headrace_coordinator.state_machine import ClockSet
from headrace_core.clock import Clock, SystemClock
from headrace_core.testing.clock import ManualClock
from tests.worlds.group_world import GroupShardWorld
from tests.worlds.shard_world import EmptyLog, IdleMachine


@pytest.mark.parametrize("by_ms", [1_000, -1_000])
def test_a_clock_that_is_set_while_a_connection_is_broken_shortens_no_grace_and_lengthens_none(by_ms: int) -> None:
    world = GroupShardWorld()
    one, other = world.join("a", "b")
    grace_ms = world.settings.connection_grace_ms
    one.disconnect()
    world.sleep(grace_ms // 2)
    world.now_ms += by_ms
    world.ask(ClockSet(by_ms))
    world.tick()
    assert {member.member_id for member in world.described().members} == {"a", "b"}
    world.sleep(grace_ms // 2 + 2)
    assert {member.member_id for member in world.described().members} == {"b"}
    world.converge()
    assert len(other.reading) == 4


def a_runner(clock: Clock, state_machine: IdleMachine, serves: asyncio.Event) -> ShardRunner:
    def became(runner: ShardRunner, state: Any, error: Exception | None) -> None:
        if runner.is_serving:
            serves.set()

    return ShardRunner(
        Shard("shard-0", Claim(1, 1, 1), lambda: state_machine),
        EmptyLog(),
        clock=clock,
        replays=asyncio.Semaphore(1),
        tell=lambda pushes: None,
        became=became,
    )


def test_the_state_machine_learns_that_the_clock_was_set_before_any_request_by_the_new_time() -> None:
    async def scenario() -> None:
        clock, state_machine, serves = ManualClock(), IdleMachine(), asyncio.Event()

        runner = a_runner(clock, state_machine, serves)
        runner.start()
        await serves.wait()
        for ms in (3_000, 5, 60_000):  # any amount of time passes
            clock.advance(ms)
            runner.put("noted")
        assert state_machine.asked == ["noted"] * 3
        clock.jump(700)
        runner.put("after")
        clock.jump(-4_000)
        runner.put("at last")
        assert state_machine.asked[3:] == [ClockSet(700), "after", ClockSet(-4_000), "at last"]
        await runner.close()

    asyncio.run(scenario())


def test_a_machine_that_was_suspended_has_set_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock and CLOCK_BOOTTIME have advanced by the same time, so the state machine counts the whole
    advance."""

    async def scenario() -> None:
        state_machine, serves, slept_ns = IdleMachine(), asyncio.Event(), 0
        wall, boot = time.time_ns, time.clock_gettime_ns
        monkeypatch.setattr(time, "time_ns", lambda: wall() + slept_ns)
        monkeypatch.setattr(
            time, "clock_gettime_ns", lambda which: boot(which) + (slept_ns if which == time.CLOCK_BOOTTIME else 0)
        )
        runner = a_runner(SystemClock(), state_machine, serves)
        runner.start()
        await serves.wait()
        runner.put("before")
        slept_ns = 3_600 * 10**9
        runner.put("after")
        assert [each for each in state_machine.asked if not isinstance(each, ClockSet)] == ["before", "after"]
        assert not any(isinstance(each, ClockSet) and abs(each.by_ms) > 1_800_000 for each in state_machine.asked)
        await runner.close()

    asyncio.run(scenario())


class BusyClock(ManualClock):
    """Clocks of a busy machine, on which the thread is often suspended while it reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.put_aside_ms: list[float] = []

    def _pause(self) -> None:
        if self.put_aside_ms:
            self.advance(self.put_aside_ms.pop(0))

    def now_ms(self) -> int:
        self._pause()
        return super().now_ms()

    def monotonic_ms(self) -> float:
        self._pause()
        return super().monotonic_ms()


def test_a_thread_that_is_put_aside_between_two_looks_sets_no_clock() -> None:
    async def scenario() -> None:
        clock, state_machine, serves = BusyClock(), IdleMachine(), asyncio.Event()
        runner = a_runner(clock, state_machine, serves)
        runner.start()
        await serves.wait()
        for put_aside in ([0, 60], [0, 0, 60], [60, 60, 60], [0, 60, 0, 0, 80, 0, 40, 40, 40]):
            clock.put_aside_ms = [float(ms) for ms in put_aside]
            runner.put("noted")
            clock.put_aside_ms = []
            runner.put("noted")
        assert state_machine.asked == ["noted"] * 8
        clock.jump(700)
        clock.put_aside_ms = [0.0, 60.0]
        runner.put("after")
        assert state_machine.asked[8:] == [ClockSet(700), "after"]
        await runner.close()

    asyncio.run(scenario())
