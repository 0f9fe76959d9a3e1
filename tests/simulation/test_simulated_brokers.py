"""A few schedules of the brokers' half in every test run; ``make sim`` runs thousands.

A failure names its seed: ``make sim SCHEDULES=1 SEED=...`` (an even seed) repeats it, with its transcript.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.errors import StorageError
from headrace_core.log.producer_state import ProducerTable
from headrace_core.records import BatchBuilder
from tests.simulation import run
from tests.simulation.broker_checks import BrokerChecks
from tests.simulation.broker_coverage import BROKERS_LISTED, brokers_missing
from tests.simulation.broker_plan import KINDS, ON_DEMAND, STORIES, UNCLEAN, BrokerPlan, make_broker_plan
from tests.simulation.broker_sim_world import BrokerWorld
from tests.simulation.broker_stories import STORIES as ALL_STORIES
from tests.simulation.determinism import check_one_history, check_plans
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_plan import REQUIRED, Fault, Period

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 12


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_of_brokers_breaks_a_promise(part: int) -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 500_000_000 * 2
    for seed in range(first + 2 * part, first + 2 * SCHEDULES, 4):
        outcome = run.outcome_of(run.plan_of(seed))
        assert outcome.failure is None, f"{outcome.failure}; again: make sim SCHEDULES=1 SEED={seed}"
        assert outcome.events > 500
        assert outcome.coverage["half", "brokers"] == 1


def test_a_seed_of_brokers_is_one_history_in_every_process_whatever_its_hashes_are() -> None:
    check_one_history((4, 8, 22), "both")


def test_plans_of_brokers_are_what_they_are_said_to_be() -> None:
    def check_unclean(plan: BrokerPlan) -> None:
        assert plan.unclean or not UNCLEAN & {fault.kind for fault in plan.faults}

    assert set(check_plans(make_broker_plan, 400, check_unclean)) == set(KINDS)
    assert set(REQUIRED) <= set(KINDS), "what is counted strikes in both halves"


def test_a_run_of_brokers_that_saw_too_little_proves_nothing() -> None:
    assert brokers_missing(Counter(dict.fromkeys(BROKERS_LISTED, 1))) == []
    assert brokers_missing(Counter()) == list(BROKERS_LISTED)


@pytest.mark.parametrize("name", ["ComparesNoLogs", "TakesDuplicates", "TellsTheLatestTooSoon"])
def test_a_guard_of_brokers_that_is_removed_is_missed(name: str) -> None:
    before = [vars(patch.where)[patch.attribute] for patch in MUTANTS[name].patches]
    _, outcomes = run.do_work(run.Work(name, 1, 40))
    assert outcomes[-1].failure is not None, f"{name} survived"
    assert outcomes[-1].coverage["half", "brokers"] == 1
    assert [vars(patch.where)[patch.attribute] for patch in MUTANTS[name].patches] == before


def test_patches_of_a_schedule_are_gone_when_it_is_over() -> None:
    from headrace_broker import storage
    from headrace_broker.replication.follower_streams import _Stream
    from headrace_core.log.writer import DirectoryWriter

    converse = vars(_Stream)["_converse"]
    run.run_one(run.plan_of(2))
    assert vars(storage)["DirectoryWriter"] is DirectoryWriter
    assert vars(_Stream)["_converse"] is converse


def test_a_bug_in_a_turn_of_the_writer_is_no_failed_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product treats both errors as final, and its broker is started again; in the simulator a bug ends the
    schedule."""
    original, calls = ProducerTable.check, 0

    def raises_once(self: ProducerTable, header: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls != 100, "planted"
        return original(self, header)

    monkeypatch.setattr(ProducerTable, "check", raises_once)
    _, failure = run.run_one(run.plan_of(2))
    assert isinstance(failure, AssertionError)
    assert "planted" in str(failure)


# -- stories -----------------------------------------------------------------------------------------------------------


def plan_with(story: str, seed: int) -> BrokerPlan:
    """A plan in which the story is the only fault."""
    return replace(
        make_broker_plan(seed),
        min_insync=2,
        unclean=story in UNCLEAN,
        deletes=story == "behind_the_start",
        periods=(Period(0.0, 3_000.0, False),),
        faults=(Fault(0, 700.0, story, 400.0, 0.5, seed),),
    )


def test_every_story_has_a_weight() -> None:
    assert {*STORIES, "old_copy"} | ON_DEMAND == set(ALL_STORIES)


@pytest.mark.parametrize("story", sorted({*STORIES, "behind_the_start", "old_copy"}))
def test_a_story_comes_to_its_end_and_breaks_no_promise(story: str) -> None:
    for seed in range(1, 9):
        world, failure = run.run_one(plan_with(story, seed))
        assert failure is None, f"seed {seed}: {failure}"
        assert world.coverage["fault", story] == 1
        if world.coverage["story", story]:
            return
    pytest.fail(f"{story} was never told to its end")


@pytest.mark.parametrize(
    ("story", "mutant"),
    [
        ("page_cache", "LeaderCountsItsPageCache"),
        ("page_cache", "FollowersCountTheirPageCache"),
        ("new_disk_back", "TakesBackFormerLives"),
        ("rotten_follower", "BeginsAnewUntold"),
        ("handed_over_twice", "CutsToTheHighWatermark"),
        ("lonely_leader", "TrustsUnknownEpochs"),
        ("cut_and_back", "RemembersWhatWasCut"),
        ("asked_and_gone", "ForgetsWhomItAskedFor"),
        ("asked_and_gone", "TakesSilenceForNo"),
        ("refused_then_granted", "BelievesAnIneligibleReplica"),
        ("refused_then_granted", "CountsOneAttempt"),
        ("refused_then_granted", "EndsNoPartitionEpoch"),
        ("behind_the_mark", "JoinsBelowTheHighWatermark"),
        ("behind_the_epoch", "JoinsBelowTheEpoch"),
        ("behind_the_start", "RestartsForgetProducers"),
        ("page_cache", "ForgetsProducersAtTheStart"),
        ("page_cache", "CheckpointsTheLogEnd"),
        ("page_cache", "AnswersBeforeItForces"),
        ("flush_then_power", "LogsTrustThePageCache"),
        ("handed_over_twice", "FollowersOvertakeTheMark"),
        ("lonely_leader", "ComparesNoLogs"),
        ("lonely_leader", "CutsKeepTheirEpochs"),
        ("lonely_leader", "EpochsBeginLate"),
        ("lonely_leader", "TellsTheLatestTooSoon"),
        ("behind_the_mark", "FollowersForgetProducers"),
        ("behind_the_epoch", "TakesDuplicates"),
        ("behind_the_start", "LogStartInMemoryOnly"),
        ("behind_the_start", "FollowersDeleteNothing"),
        ("behind_the_start", "DeletesWaitForNobody"),
        ("behind_the_start", "DeletesAboveTheMark"),
        ("behind_the_start", "LowWatermarkForgetsMembers"),
        ("behind_the_start", "LowWatermarkIsTheLeaders"),
        ("reader_overtaken", "FencesNoReader"),
        ("old_copy", "TrustsOlderCopies"),
        ("old_copy", "CutsWhatWasCommitted"),
        ("old_copy", "KeepsLeadersThatLackRecords"),
    ],
)
def test_a_story_misses_the_guard_that_it_is_for(story: str, mutant: str) -> None:
    with MUTANTS[mutant].applied():
        for seed in range(1, 21):
            _, failure = run.run_one(plan_with(story, seed), past_exceptions=True)
            if isinstance(failure, Violation):
                return
    pytest.fail(f"{mutant} survived 20 times")


def test_a_reader_that_goes_on_behind_what_was_cut_off_is_noticed() -> None:
    def batch(value: bytes) -> bytes:
        builder = BatchBuilder(1_000)
        builder.append(1_700_000_000_000, None, value)
        return bytes(builder.build())

    checks = BrokerChecks(BrokerWorld(make_broker_plan(1)))
    consumer: Any = SimpleNamespace(last=(0, 1, batch(b"0/0")))
    has = SimpleNamespace(records=batch(b"0/0") + batch(b"0/1"))
    replica = SimpleNamespace(
        partition="orders-0",
        log=SimpleNamespace(read=lambda offset, size: has),
        leader=SimpleNamespace(leader_epoch=3),
    )
    checks.reads_on(consumer, replica, 1)
    has.records = batch(b"1/7")
    checks.reads_on(consumer, replica, 5)  # the new producer does not continue with that batch's sequence numbers
    with pytest.raises(Violation, match="truncation"):
        checks.reads_on(consumer, replica, 1)


def test_a_truncation_reported_to_a_reader_without_an_unclean_election_is_noticed() -> None:
    checks = BrokerChecks(BrokerWorld(make_broker_plan(1)))
    consumer: Any = SimpleNamespace()
    with pytest.raises(Violation, match="truncation"):
        checks.truncated(consumer, 0, 7, 5)
    checks.truths[0].is_tainted = True
    checks.truncated(consumer, 0, 7, 5)


@pytest.mark.parametrize(("error", "counts"), [(StorageError("all disks failed"), False), (ValueError("a bug"), True)])
def test_a_task_that_fails_in_the_moment_of_a_kill_counts_as_in_the_loops_next_turn(
    error: Exception, counts: bool
) -> None:
    """Seed 20261123222: a broker whose directories have all failed ends without a stop request, even when its power
    fails at that moment. Any error except the failed directories is still a bug."""
    world = BrokerWorld(make_broker_plan(2))
    host = world.hosts[0]
    host.start()
    assert host.loop is not None

    async def fails() -> None:
        raise error

    host.loop.create_task(fails())
    loop = host.loop
    while not any("_task_ended" in repr(ready.callback) for ready in loop._ready):
        assert world.scheduler.run_one(1_000.0)
    host.kill()
    assert (world._failure is error) is counts
    assert world.is_well is not counts
    for each in world.loops:
        each.bury()
