"""Stories that are each written for a guard of the controllers (sim_directed): with the guard they break no promise,
without it one schedule shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_controller.raft import Message, VoteResponse
from headrace_core.testing.network import GOOD
from tests.simulation import run
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_copies import REACHED_MS, Copy, Restored, witnesses_of
from tests.simulation.sim_directed import DIRECTED
from tests.simulation.sim_plan import Fault, Period, Plan, make_plan
from tests.simulation.sim_world import ControllersWorld, listen_to_the_log

#: Schedules in which a mutant must be found; all but one story find theirs in the first.
SEEDS = range(1, 7)


def plan_with(story: str, seed: int) -> Plan:
    """A plan in which the story is the only fault, and nothing else is slow or lost."""
    plan = make_plan(seed)
    return replace(
        plan,
        voters=3,
        rest_ms=100.0,
        quality=GOOD,
        disk_ms=(0.05, 0.3),
        loop_ms=(0.05, 0.3),
        spread=1.0,
        snapshot_bytes=6_000,
        snapshot_chunk_bytes=4_000,
        message_bytes_max=1 << 20,
        in_flight_messages_max=64,
        segment_bytes=min(plan.segment_bytes, 4_000),
        periods=(Period(0.0, 5_000.0, False),),
        faults=(Fault(0, 900.0, story, 400.0, 0.5, seed),),
    )


@pytest.mark.parametrize("story", sorted(DIRECTED))
def test_a_story_comes_to_its_end_and_breaks_no_promise(story: str) -> None:
    listen_to_the_log()
    for seed in SEEDS:
        world, failure = run.run_one(plan_with(story, seed))
        assert failure is None, f"seed {seed}: {failure}"
        assert world.coverage["fault", story] == 1
        if world.coverage["story", story]:
            return
    pytest.fail(f"{story} was never told to its end")


@pytest.mark.parametrize(
    ("story", "mutant"),
    [
        ("power_loss", "AnswersBeforeTheDisk"),
        ("power_loss", "VoteInThePageCache"),
        ("power_loss", "SnapshotInThePageCache"),
        ("cut_leader", "TruncationForgotten"),
        ("cut_leader", "SpeculationSurvives"),
        ("cut_leader", "AppliesWhatIsNotCommitted"),
        ("full_start", "RawErrorAtAFullStart"),
        ("refused_term", "RefusedTermStaysInItsFile"),
        ("unheard_commit", "LeadsBeforeItKnows"),
        ("unheard_acknowledgements", "RefusesWhatMayHappen"),
        ("older_copy", "RemembersNobody"),
        ("older_copy", "VotesBeforeItIsTold"),
    ],
)
def test_a_story_misses_the_guard_that_it_is_for(story: str, mutant: str) -> None:
    """A broken promise, or an assertion of the product that ends a controller."""
    listen_to_the_log()
    with MUTANTS[mutant].applied():
        for seed in SEEDS:
            _, failure = run.run_one(plan_with(story, seed))
            if failure is not None:
                assert not isinstance(failure, TypeError | AttributeError | LookupError), repr(failure)
                return
    pytest.fail(f"{mutant} survived")


def test_a_copy_of_which_nobody_remembers_more_is_not_restored() -> None:
    listen_to_the_log()
    world = ControllersWorld(replace(plan_with("older_copy", 1), faults=()))
    host = world.hosts[1]
    found = Copy.of(host, host.rng)
    for each in world.hosts.values():
        each.start()
    assert witnesses_of(found, world.up()) == []
    assert not host.restore(found)
    assert world.coverage["state", "older copy that nobody remembers"] == 1
    assert host.restored is None


def test_a_copy_whose_witness_ends_may_vote_and_is_counted_apart() -> None:
    listen_to_the_log()
    world = ControllersWorld(replace(plan_with("older_copy", 1), faults=()))
    for each in world.hosts.values():
        each.start()
    host, witness = world.hosts[1], world.hosts[2]
    vote = Message(host.key, witness.key, VoteResponse(5, 5, is_granted=True))
    restored = Restored(host, [(witness, witness.life)])
    restored.look()
    world.scheduler.run(REACHED_MS)
    with pytest.raises(Violation, match="controller 2 remembers more and could be reached"):
        restored.promises(vote)
    witness.stop_process()
    assert restored.promises(vote)
    assert not restored.promises(Message(host.key, witness.key, VoteResponse(5, 5, is_granted=False)))
