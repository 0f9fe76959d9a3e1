"""Each mutant is noticed by its directed test (mutants/directed.py), whatever the seed of the random schedules is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.mutants.directed import NOTICED_BY
from tests.simulation.mutants.runner import RESULTS, SURVIVED
from tests.simulation.mutants.scoreboard import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutant_has_a_directed_test_that_notices_it(tmp_path: Path) -> None:
    assert set(NOTICED_BY) == set(MUTANTS)
    path = tmp_path / "results.json"
    tests = sorted(set(NOTICED_BY.values()))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "tests.simulation.mutants.runner", *tests]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, RESULTS: str(path)}, capture_output=True, text=True)
    assert path.exists(), run.stdout[-4_000:] + run.stderr[-2_000:]
    for name, result in json.loads(path.read_text()).items():
        print(f"{name}: {NOTICED_BY[name]}: {result.splitlines()[0][:100]}")
    wrong = {
        name: f"{NOTICED_BY[name]}: {result}"
        for name, result in json.loads(path.read_text()).items()
        if result == SURVIVED or result.startswith("WRONG")
    }
    assert not wrong
