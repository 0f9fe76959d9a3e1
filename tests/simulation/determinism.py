"""Checks of schedules for all parts of the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.simulation.sim_plan import FAULTS_MAX, FAULTS_MIN

ROOT = Path(__file__).resolve().parents[2]


def check_one_history(seeds: tuple[int, ...], half: str, hashes: Iterable[str] = ("0", "4711")) -> None:
    """A seed must give the same history in every process: no set, dictionary or id may depend on the process."""
    script = (
        "from tests.simulation import run; run.listen_to_the_log()\n"
        f"for seed in {seeds}: world, error = run.run_one(run.plan_of(seed, {half!r})); "
        "print(world.digest, world.scheduler.events, error)"
    )
    command = [sys.executable, "-c", script]
    environments = ({**os.environ, "PYTHONHASHSEED": each} for each in hashes)
    stories = {
        subprocess.run(command, cwd=ROOT, env=each, check=True, capture_output=True).stdout for each in environments
    }
    assert len(stories) == 1, stories


def check_plans(
    make: Callable[[int], Any], seeds: int, also: Callable[[Any], None] = lambda plan: None
) -> Counter[str]:
    """Check that the plans of this many seeds have the form of sim_plan.py. Returns how often each kind of fault
    comes."""
    quiet = noisy = 0
    kinds: Counter[str] = Counter()
    for seed in range(seeds):
        plan = make(seed)
        assert plan == make(seed)
        assert FAULTS_MIN <= len(plan.faults) <= FAULTS_MAX
        quiet += sum(period.is_quiet for period in plan.periods)
        noisy += sum(not period.is_quiet for period in plan.periods)
        for fault in plan.faults:
            kinds[fault.kind] += 1
            assert any(p.from_ms <= fault.at_ms <= p.to_ms and not p.is_quiet for p in plan.periods)
        also(plan)
    assert quiet * 3 == noisy
    return kinds
