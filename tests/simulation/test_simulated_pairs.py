"""A new leading controller, a dead broker and living ones: stories, each with its guard and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import run
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_pair_stories import PAIR_STORIES
from tests.simulation.sim_plan import Plan, make_plan

SEEDS = range(4, 7)
#: Each story, with the event that it must reach, and the mutant that it finds.
STORIES = {
    "pair_dies": ("a broker died with the leader", "new-leader-awaits-the-dead-for-a-session"),
    "deaf_leader_at_first": ("a new leader was deaf at first", "new-leader-counts-before-it-serves"),
    "leader_that_stops_after_its_first_contact": (
        "a new leader stopped after its first contact",
        "new-leader-counts-through-its-pause",
    ),
}


def plan_of(story: str, seed: int) -> Plan:
    """A schedule of three stories, with messages that are large enough for its clients."""
    return replace(make_plan(seed, hard_on=(story,)), message_bytes_max=1 << 20, in_flight_messages_max=64)


def test_every_story_is_here() -> None:
    assert set(STORIES) == set(PAIR_STORIES)


@pytest.mark.parametrize("story", STORIES)
def test_nobody_who_lives_is_fenced_and_the_dead_are_in_time(story: str) -> None:
    outcomes = [run.outcome_of(plan_of(story, seed), ("world",)) for seed in SEEDS]
    assert [each.failure for each in outcomes if each.failure] == []
    event, _ = STORIES[story]
    assert sum(each.coverage["state", event] for each in outcomes) >= len(SEEDS), "the story seldom comes to its end"


@pytest.mark.parametrize("story", STORIES)
def test_the_guard_of_a_story_is_missed(story: str) -> None:
    with MUTANTS[STORIES[story][1]].applied():
        found = [outcome for seed in SEEDS if (outcome := run.outcome_of(plan_of(story, seed), ("world",))).failure]
    assert found, f"nothing missed the guard in {len(SEEDS)} schedules"
    print(found[0].failure)
