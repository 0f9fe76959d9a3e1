"""The benchmark of groups: its audit finds skipped and repeated records, and two of its cases run with small
numbers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("groups").audit


def runs(*found: tuple[int, int, float]) -> dict[str, Any]:
    """(first, end, when), of partition 0."""
    return {"group": "g", "runs": [[0, first, end, at] for first, end, at in found]}


@pytest.mark.parametrize(
    ("reports", "committed", "skipped", "repeated", "twice"),
    [
        ([runs((0, 10, 1.0))], 0, 0, 0, 0),
        ([runs((0, 8, 1.0))], 0, 2, 0, 0),
        ([runs((0, 4, 1.0)), runs((6, 10, 2.0))], 4, 2, 0, 0),
        ([runs((0, 6, 1.0)), runs((4, 10, 2.0))], 4, 0, 0, 2),
        ([runs((0, 6, 1.0)), runs((3, 10, 2.0))], 4, 0, 1, 3),
        ([runs((0, 6, 1.0), (4, 10, 2.0))], 5, 0, 1, 2),
    ],
)
def test_the_audit(audit: Any, reports: Any, committed: int, skipped: int, repeated: int, twice: int) -> None:
    commits = [{"group": "g", "at": 1.5, "offsets": {"0": committed}}, {"group": "h", "at": 1.5, "offsets": {"0": 9}}]
    assert audit(reports, commits, {0: 10}) == (skipped, repeated, twice)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_death_and_a_restart_are_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "groups.py"), "--smoke", "--only", "restart,death", "--work", str(tmp_path)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bars = {bar["what"]: bar["measured"] for bar in next(line["bars"] for line in lines if "bars" in line)}
    assert all(value is not None for value in bars.values()), done.stdout + done.stderr
    assert bars["static members restarted one by one: partitions that move"] == 0
    assert list(tmp_path.iterdir()) == [], "something was left behind"
