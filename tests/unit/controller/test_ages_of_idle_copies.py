"""The ages of an idle quorum's metadata copies: the ReadIndexBarriers of a leader and of another controller, and
followers that ask them as MetadataFollower does. The quorum is a model, in which a deferred barrier ends with the next
heartbeat. Time is simulated too: when no work is left, it jumps to the next event.
"""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from headrace_controller.handlers import read_index
from headrace_controller.handlers.read_index import RECENT_MS, ReadIndex, ReadIndexBarriers
from headrace_controller.quorum_controller import DEFERRED_MS_MAX
from headrace_core.errors import HeadraceError
from headrace_core.membership import metadata_follower
from headrace_core.metadata import MetadataImage

END = 10
LEADER, OTHER = 1, 2


class SimulatedTime(selectors.SelectSelector):
    """A selector for an event loop that does not wait. The selector is also a Clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0)
        return ready

    def monotonic_ms(self) -> float:
        return self.now_s * 1_000

    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.SelectorEventLoop(self)
        loop.time = lambda: self.now_s  # type: ignore[method-assign]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(work)


class Quorum:
    """One controller's view of an idle quorum."""

    cluster_id = "cluster"
    leader_id = LEADER
    term = 1

    def __init__(self, node_id: int, time: SimulatedTime, heartbeat_s: float) -> None:
        self.node_id = node_id
        self.image = MetadataImage(next_offset=END)
        self._time = time
        self._heartbeat_s = heartbeat_s

    def controller_addresses(self) -> dict[int, str]:
        return {LEADER: "leader:1", OTHER: "other:1"}

    def subscribe(self, _: Any) -> Callable[[], None]:
        return lambda: None

    async def barrier(self, *, is_deferred: bool = False) -> int:
        if is_deferred and self._heartbeat_s * 1_000 <= DEFERRED_MS_MAX:
            await asyncio.sleep(self._heartbeat_s - self._time.now_s % self._heartbeat_s)
        await asyncio.sleep(0.002)
        return END


class Follower(ReadIndexBarriers):
    """Asks the leader's barriers directly. (A patch would not work instead of a subclass. A cluster of another test may
    run in a thread of this process, and its controllers would call the patched method.)"""

    def __init__(self, leader: ReadIndexBarriers, quorum: Quorum, time: SimulatedTime) -> None:
        super().__init__(quorum, time)
        self._leader = leader

    async def _barrier(self, queue: Any) -> ReadIndex:
        await asyncio.sleep(0.0005)
        index = await asyncio.wait_for(self._leader.read(is_deferred=queue.is_deferred), read_index.BARRIER_TIMEOUT_S)
        await asyncio.sleep(0.0005)
        return index


class Idle:
    """A leader, another controller that asks the leader, and copies that follow one of the two."""

    def __init__(self, heartbeat_ms: float) -> None:
        self.time = SimulatedTime()
        self.leader = ReadIndexBarriers(Quorum(LEADER, self.time, heartbeat_ms / 1_000), self.time)
        self.other = Follower(self.leader, Quorum(OTHER, self.time, heartbeat_ms / 1_000), self.time)
        self.oldest_s = 0.0
        self.failures = 0
        self.answers = 0

    def run(self, copies: int, for_s: float) -> None:
        self.time.run(self._run(copies, for_s))

    async def _run(self, copies: int, for_s: float) -> None:
        rng = random.Random(copies)
        self.leader.start()
        self.other.start()
        following = [self._follow(self.other if number % 3 else self.leader, rng) for number in range(copies)]
        await _for_so_long(following, for_s)
        await self.leader.close()
        await self.other.close()

    async def _follow(self, asked: ReadIndexBarriers, rng: random.Random) -> None:
        """MetadataFollower._keep_confirming."""
        as_of_s: float | None = None
        await asyncio.sleep(2 * rng.random())
        while True:
            began_s, every_s = self.time.now_s, metadata_follower.READ_INDEX_EVERY_S
            try:
                index = await asyncio.wait_for(asked.recent(), metadata_follower._READ_INDEX_TIMEOUT_S)
            except (HeadraceError, TimeoutError):
                self.failures += 1
                every_s = metadata_follower._READ_INDEX_AGAIN_S
            else:
                self.answers += 1
                if as_of_s is not None:
                    self.oldest_s = max(self.oldest_s, self.time.now_s - as_of_s)
                as_of_s = max(as_of_s or 0.0, began_s - math.ceil(index.age_ms) / 1_000)
            await asyncio.sleep(max(every_s - (self.time.now_s - began_s), every_s / 10) + 0.01 * rng.random())


async def _for_so_long(work: Iterable[Coroutine[Any, Any, None]], seconds: float) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, timeout=seconds)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("copies", [5, 9])
@pytest.mark.parametrize(("heartbeat_ms", "oldest_s"), [(300, 2.0), (600, 3.2), (900, 1.7), (6_000, 1.7)])
def test_idle_copies_look_no_older_than_is_said(heartbeat_ms: float, oldest_s: float, copies: int) -> None:
    """The bound of docs/invariants.md holds, and no node switches away from a healthy controller because of the age."""
    idle = Idle(heartbeat_ms)
    idle.run(copies, for_s=200)
    assert idle.answers > 100 * copies
    assert idle.failures == 0
    assert 0.8 < idle.oldest_s <= oldest_s < metadata_follower._UNCONFIRMED_S - 1.5


def test_who_asks_while_a_deferred_barrier_is_under_way_has_its_answer_and_how_long_ago_it_began() -> None:
    """All records that were committed before the barrier began are below its offset. Records that are committed later
    may be above the offset."""
    idle = Idle(400)
    leader, time = idle.leader, idle.time

    async def work() -> None:
        await leader.read()
        await asyncio.sleep((RECENT_MS + 100) / 1_000)
        under_way = asyncio.ensure_future(leader.read(is_deferred=True))
        await asyncio.sleep(0)
        began_s = time.now_s
        await asyncio.sleep(0.1)
        assert not under_way.done()
        asked_s = time.now_s
        of_late = await leader.recent()
        assert (await under_way).age_ms == 0
        assert of_late.age_ms == pytest.approx((asked_s - began_s) * 1_000)
        assert of_late.age_ms >= 100
        assert leader._queues[True].next is None, "nothing more was asked for"
        assert leader._queues[True].under_way is None

    time.run(work())


def test_a_read_while_a_deferred_barrier_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(400)
    leader = idle.leader

    async def fails(queue: Any) -> ReadIndex:
        await asyncio.sleep(0.2)
        raise leader.not_leading()

    async def work() -> None:
        await leader.read()
        await asyncio.sleep((RECENT_MS + 100) / 1_000)
        monkeypatch.setattr(leader, "_barrier", fails)
        under_way = asyncio.ensure_future(leader.read(is_deferred=True))
        await asyncio.sleep(0.1)
        for asked in (leader.recent(), under_way):
            with pytest.raises(HeadraceError, match="no controller is leader now"):
                await asked

    idle.time.run(work())


def test_reads_that_share_a_failed_barrier_raise_errors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(400)
    leader = idle.leader

    async def fails(queue: Any) -> ReadIndex:
        await asyncio.sleep(0.2)
        raise leader.not_leading()

    async def work() -> None:
        monkeypatch.setattr(leader, "_barrier", fails)
        reads = [leader.read() for _ in range(5)]
        failures = await asyncio.gather(*reads, return_exceptions=True)
        assert {str(each) for each in failures} == {str(leader.not_leading())}
        assert len(set(map(id, failures))) == len(reads)

    idle.time.run(work())
