"""A few schedules of the simulator in every test run; ``make sim`` runs thousands.

A failure names its seed: ``make sim SCHEDULES=1 SEED=...`` repeats it, with its transcript.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from tests.simulation import run
from tests.simulation.determinism import check_one_history, check_plans
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.seeds import FOUND, Found
from tests.simulation.sim_plan import KINDS, make_plan
from tests.simulation.sim_world import listen_to_the_log

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 24


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    listen_to_the_log()
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    for seed in range(first + part, first + SCHEDULES, 4):
        outcome = run.outcome_of(make_plan(seed))
        assert outcome.failure is None, f"{outcome.failure}; again: make sim SCHEDULES=1 SEED={seed}"
        assert outcome.events > 500


@pytest.mark.parametrize("found", FOUND, ids=lambda found: str(found.seed))
def test_what_was_found_stays_found(found: Found) -> None:
    listen_to_the_log()
    outcome = run.outcome_of(found.plan)
    assert outcome.failure is None, f"{found}: {outcome.failure}"


def test_a_seed_is_one_history_in_every_process_whatever_its_hashes_are() -> None:
    check_one_history((3, 7, 24), "controllers", ("0", "1", "4711"))


def test_plans_are_what_they_are_said_to_be() -> None:
    assert set(check_plans(make_plan, 300)) == set(KINDS)


@pytest.mark.parametrize("name", ["VotesTwice", "AnswersBeforeTheCommit", "any-replica-leads"])
def test_a_removed_guard_is_missed_and_then_back(name: str) -> None:
    mutant = MUTANTS[name]
    before = [vars(patch.where)[patch.attribute] for patch in mutant.patches]
    _, outcomes = run.do_work(run.Work(name, 1, 40))
    assert outcomes[-1].failure is not None, f"{name} survived"
    assert [vars(patch.where)[patch.attribute] for patch in mutant.patches] == before


def test_every_mutant_says_what_it_breaks_and_there_are_enough() -> None:
    assert len(MUTANTS) >= 15
    for mutant in MUTANTS.values():
        assert isinstance(mutant, Mutant)
        assert mutant.breaks
        assert mutant.owner in (5, 6, 7, 17, 20)
        assert mutant.patches
        for patch in mutant.patches:
            assert hasattr(patch.where, patch.attribute), f"{mutant.name}: {patch.attribute} is not there any more"
