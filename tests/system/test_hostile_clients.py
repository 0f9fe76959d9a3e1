"""Hostile clients besides a well-behaved one, for two seconds each; bench/hostile.py measures for longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "hostile.py"
#: One attacker of each kind: long lists, inflation, memory of answers, connections that begin calls without end.
ATTACKERS = "unknown_names,empty_items,grpc_bombs,slow_readers,rapid_resets"
#: The limit is high because the machine runs other tests too.
P99_MS_MAX = 1_500


@pytest.mark.long
@pytest.mark.timeout(300)
def test_well_behaved_client_is_served_beside_hostile_ones() -> None:
    command = [sys.executable, str(BENCH), "--smoke", "--only", ATTACKERS, "--floor-ms", str(P99_MS_MAX)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert [each["what"] for each in reports[1:-2]] == ATTACKERS.split(",")
    assert reports[-1]["lost"] == 0
