"""A few schedules of the brokers' half in every run of the suite; ``make sim`` has thousands.

A failure names its seed: ``make sim SCHEDULES=1 SEED=...`` (an even one) repeats it, with its story.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
import run
from broker_coverage import BROKERS_LISTED, brokers_missing
from broker_plan import KINDS, make_broker_plan
from scoreboard import MUTANTS
from sim_plan import FAULTS_MAX, FAULTS_MIN, REQUIRED

HERE = Path(__file__).resolve().parent
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
    script = (
        "import logging, run; logging.disable(logging.CRITICAL)\n"
        "for seed in (4, 8, 22): world, error = run.run_one(run.plan_of(seed)); "
        "print(world.digest, world.scheduler.events, error)"
    )
    path = [str(HERE), str(HERE / "mutants"), str(HERE.parent / "unit" / "controller")]
    path += [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    told = set()
    for hashes in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(path)}
        told.add(
            subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True).stdout
        )
    assert len(told) == 1, told


def test_plans_of_brokers_are_what_they_are_said_to_be() -> None:
    quiet = noisy = 0
    kinds: Counter[str] = Counter()
    for seed in range(400):
        plan = make_broker_plan(seed)
        assert plan == make_broker_plan(seed)
        assert FAULTS_MIN <= len(plan.faults) <= FAULTS_MAX
        quiet += sum(period.is_quiet for period in plan.periods)
        noisy += sum(not period.is_quiet for period in plan.periods)
        for fault in plan.faults:
            kinds[fault.kind] += 1
            assert any(p.from_ms <= fault.at_ms <= p.to_ms and not p.is_quiet for p in plan.periods)
            assert plan.unclean or fault.kind != "unclean_election"
    assert quiet * 3 == noisy
    assert set(kinds) == set(KINDS)
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
