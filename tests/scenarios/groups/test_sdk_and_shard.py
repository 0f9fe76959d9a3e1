"""The SDK's consumers and a coordinator's shard, both as shipped, over a simulated network in virtual time: no commit
sets a committed offset back (``sdk_group_world.run`` checks it). Each guard is removed in turn, and then its story ends
badly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumer.group import GroupConsumer
from headrace.group import commits
from headrace.group.member import Assign, Member
from headrace_coordinator.group import rebalancing, reconciling
from headrace_coordinator.group.reconciling import advance
from headrace_coordinator.offsets.logic import OffsetsLogic
from headrace_core.errors import HeadraceError, StaleMemberEpochError
from tests.worlds.sdk_group_world import GRACE_S, TOPIC, Program, Scenario, Shard, run, until

Patch = Callable[[pytest.MonkeyPatch], None]


async def one_static(shard: Shard, rng: random.Random) -> Program:
    """A static member that reads both partitions, and has committed something."""
    one = Program(shard, "one", rng, instance_id="static")
    await until(lambda: one.reading == [0, 1] and min(shard.committed.get(each, 0) for each in (0, 1)) > 0)
    return one


async def cut_off(shard: Shard, one: Program, rng: random.Random) -> tuple[Program, int]:
    """The static member is cut off; another member gets one of its partitions, and commits."""
    one.network.cut()
    await asyncio.sleep(GRACE_S + 0.2)
    assert one.reading == []
    two = Program(shard, "two", rng)
    await until(lambda: two.reading)
    (taken,) = two.reading
    before = shard.committed[taken]
    await until(lambda: shard.committed[taken] > before + 10)
    return two, taken


async def a_static_member_is_cut_off(shard: Shard, rng: random.Random) -> None:
    """Another member has one of its partitions meanwhile, and is gone before it is back."""
    one = await one_static(shard, rng)
    two, taken = await cut_off(shard, one, rng)
    await two.close()
    one.events.clear()
    committed = shard.committed[taken]
    one.network.heal()
    await until(lambda: one.reading == [0, 1])
    assert one.events == [("revoked", [taken]), ("assigned", [taken])]
    position = one.position(taken)
    assert position is not None
    assert position >= committed, "it goes on where the other member has committed"
    await until(lambda: shard.committed[taken] > committed)


async def its_caller_is_busy(shard: Shard, rng: random.Random) -> None:
    """It is back while the other member has the partition. That one leaves, and then the caller commits what it has
    processed before, and polls."""
    one = await one_static(shard, rng)
    one.is_busy = True
    two, taken = await cut_off(shard, one, rng)
    one.network.heal()
    await asyncio.sleep(0.5)
    await two.close()
    await asyncio.sleep(0.5)
    committed, epoch = shard.committed[taken], one.group._membership.member.epoch
    with pytest.raises(StaleMemberEpochError):
        await one.commit({taken: 1})
    assert one.core.offsets_for_transaction().group.generation_id < epoch
    one.is_busy = False
    await until(lambda: one.reading == [0, 1])
    await until(lambda: shard.committed[taken] > committed)


async def its_commit_arrives_under_the_next_ownership(shard: Shard, rng: random.Random) -> None:
    """The commit of the busy caller is late. Its timeout is over, the partition is released, and is its own again."""
    one = await one_static(shard, rng)
    one.is_busy = True
    two, taken = await cut_off(shard, one, rng)
    one.network.heal()
    await asyncio.sleep(0.5)
    await two.close()
    await asyncio.sleep(6.0)  # its heartbeats get the newest epoch
    one.network.requests_late_s["CommitOffsets"] = 3.0
    commit = asyncio.ensure_future(one.commit({taken: 1}))
    await asyncio.sleep(0.1)
    one.is_busy = False
    await until(lambda: one.events[-1] == ("assigned", [taken]))
    assert not commit.done()
    await asyncio.wait([commit])
    with pytest.raises(HeadraceError):
        commit.result()


async def its_committed_offsets_come_late(shard: Shard, rng: random.Random) -> None:
    """A partition leaves the member and comes back while the committed offset is on its way."""
    one = Program(shard, "one", rng)
    await until(lambda: one.reading == [0, 1])
    late = Program(shard, "late", rng)
    late.network.answers_late_s["FetchOffsets"] = 1.5
    await until(lambda: shard.assigned().get(late.group._member_id))
    (moved,) = {0, 1} - set(one.reading)
    await asyncio.sleep(0.1)
    late.subscribe("another topic")
    await until(lambda: one.reading == [0, 1])
    before = shard.committed[moved]
    await until(lambda: shard.committed[moved] > before + 3)
    late.subscribe(TOPIC)
    late.network.answers_late_s.clear()
    await until(lambda: late.reading)
    await asyncio.sleep(2.0)


async def its_commit_arrives_after_a_later_one(shard: Shard, rng: random.Random) -> None:
    """Nothing else happens: the first attempt is late, the second one is not, and further commits follow."""
    one = await one_static(shard, rng)
    one.network.requests_late_s["CommitOffsets"] = 3.0
    await asyncio.sleep(0.5)
    one.network.requests_late_s.clear()
    before = shard.committed[0]
    await until(lambda: shard.committed[0] > before)
    await asyncio.sleep(5.0)


async def its_commit_arrives_after_a_transaction(shard: Shard, rng: random.Random) -> None:
    """The second attempt has succeeded, and a transaction commits further offsets, before the first one arrives."""
    one = await one_static(shard, rng)
    one.network.requests_late_s["CommitOffsets"] = 2.5
    commit = asyncio.ensure_future(one.commit({partition: one.position(partition) or 0 for partition in one.reading}))
    await asyncio.sleep(0.1)
    one.network.requests_late_s.clear()
    await commit
    before = shard.committed[0]
    await one.transact(0.01)
    assert shard.committed[0] > before
    await asyncio.sleep(2.0)


async def its_commit_is_given_up_before_any_attempt_arrives(shard: Shard, rng: random.Random) -> None:
    """A transaction commits further offsets; its marker comes before or after the attempt."""
    one = Program(shard, "one", rng, enable_auto_commit=False)
    await until(lambda: one.reading == [0, 1])
    await one.commit_async()
    for marker_after_s in (0.01, 3.0):
        one.network.requests_late_s["CommitOffsets"] = 2.5
        given = {partition: one.position(partition) or 0 for partition in one.reading}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.commit(given), 0.5)
        one.network.requests_late_s.clear()
        before = shard.committed[0]
        await one.transact(marker_after_s)
        assert shard.committed[0] > before
        await asyncio.sleep(3.0)
    committed = shard.committed[0]
    await one.commit_async()
    assert shard.committed[0] > committed, "its own commits go on"


STORIES: tuple[Scenario, ...] = (
    its_commit_is_given_up_before_any_attempt_arrives,
    its_commit_arrives_after_a_transaction,
    its_commit_arrives_after_a_later_one,
    a_static_member_is_cut_off,
    its_caller_is_busy,
    its_commit_arrives_under_the_next_ownership,
    its_committed_offsets_come_late,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_no_commit_sets_an_offset_back(story: Scenario) -> None:
    run(story)


# -- random schedules --------------------------------------------------------------------------------------------------


#: Calls are late by more than the SDK's request timeout (Program), after which it sends a commit again.
LATE_S = 3.0


async def anything(shard: Shard, rng: random.Random) -> None:
    """Static and dynamic members; cuts, busy callers, late calls, joins and leaves; in the end everybody reads."""
    statics = [Program(shard, f"static{number}", rng, instance_id=f"host{number}") for number in range(2)]
    guests: list[Program] = []
    doing: set[asyncio.Future[None]] = set()

    def later(after_s: float, act: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(after_s, act)

    for _ in range(30):
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        one = rng.choice(statics + guests)
        match rng.randrange(9):
            case 0 | 1:
                one.network.cut()
                later(rng.choice([0.5, 3.0, 8.0]) * rng.uniform(0.5, 1.5), one.network.heal)
            case 2:
                one.is_busy = True
                later(rng.uniform(0.3, 4.0), lambda one=one: setattr(one, "is_busy", False))
            case 3 | 4 if len(guests) < 2:
                guests.append(Program(shard, "guest", rng))
            case 5 if guests:
                await guests.pop(0).close()
            case 6:
                late = rng.choice([one.network.answers_late_s, one.network.requests_late_s])
                late[rng.choice(["FetchOffsets", "CommitOffsets"])] = rng.uniform(0.5, LATE_S)
                later(rng.uniform(0.5, 3.0), late.clear)
            case 7:
                doing.add(asyncio.ensure_future(one.transact(rng.choice([0.05, 1.0, 3.0]))))
            case _:
                doing.add(asyncio.ensure_future(one.commit_async()))
    await asyncio.sleep(15.0)
    await asyncio.gather(*doing, return_exceptions=True)
    everybody = statics + guests
    await until(lambda: sorted(each for one in everybody for each in one.reading) == [0, 1, 2])
    before = dict(shard.committed)
    for _ in range(20):
        await asyncio.sleep(0.5)
        await asyncio.gather(*(one.transact(0.1) for one in everybody))
    assert all(shard.committed[each] > before[each] for each in range(3))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_offsets_do_not_go_back_and_everything_is_read_in_the_end(seed: int) -> None:
    run(anything, partitions=3, seed=seed)


# -- without its guard, the story ends badly ---------------------------------------------------------------------------


def what_was_taken_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from = reconciling._taken_from
    monkeypatch.setattr(
        reconciling, "_taken_from", lambda current, target: replace(taken_from(current, target), taken=frozenset())
    )


def neither_side_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """(The SDK alone protects commits at an older coordinator, though not positions.)"""
    what_was_taken_is_forgotten(monkeypatch)
    monkeypatch.setattr(GroupConsumer, "_ended", lambda self: {})


def a_commit_has_the_newest_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the coordinator nor the SDK keeps the epochs of two ownerships apart."""

    def broken(current: Any, target: Any, target_epoch: int, **rest: Any) -> Any:
        after = advance(current, target, target_epoch, **rest)
        return after if after.taken.isdisjoint(target) or after.revoking else replace(after, epoch=target_epoch)

    monkeypatch.setattr(rebalancing, "advance", broken)
    monkeypatch.setattr(GroupConsumer, "_ended", lambda self: {})


def commits_have_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetsLogic, "_left_of", lambda self, request: None)


def transactions_have_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "next_number", lambda member_id: 0)


def an_assign_in_progress_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begin = Member._go_on, Member.begin

    def broken(self: Member) -> None:
        change = self._change
        if not isinstance(change, Assign) or self._excess or change.parts <= (self._target or frozenset()):
            go_on(self)

    def begun(self: Member, ticket: int, now: float) -> Any:
        if isinstance(self._change, Assign):
            self._change = self._change._replace(parts=self._change.parts & (self._target or frozenset()))
        return begin(self, ticket, now)

    monkeypatch.setattr(Member, "_go_on", broken)
    monkeypatch.setattr(Member, "begin", begun)


@pytest.mark.parametrize(
    ("fault", "story"),
    [
        (what_was_taken_is_forgotten, a_static_member_is_cut_off),
        (neither_side_remembers, its_caller_is_busy),
        (a_commit_has_the_newest_epoch, its_commit_arrives_under_the_next_ownership),
        (commits_have_no_numbers, its_commit_arrives_after_a_later_one),
        (commits_have_no_numbers, its_commit_arrives_after_a_transaction),
        (commits_have_no_numbers, its_commit_is_given_up_before_any_attempt_arrives),
        (transactions_have_no_numbers, its_commit_is_given_up_before_any_attempt_arrives),
        (an_assign_in_progress_goes_on, its_committed_offsets_come_late),
    ],
    ids=lambda each: each.__name__,
)
def test_a_fault_that_is_put_back_is_found(fault: Patch, story: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(story)
