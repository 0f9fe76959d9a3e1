"""bench/hostile.py judges p99 in two ways: by its ratio to the p99 without an attacker, and by a limit with a minimum
in ms."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hostile")


def figures(hostile: Any, beside_ms: float) -> dict[str, Any]:
    """The results of an attacker beside a client whose p99 without an attacker is 4 ms."""
    outcome = hostile.Outcome(quiet=[4.0] * 100, beside=[beside_ms] * 100)
    outcome.seconds = 1.0
    found: dict[str, Any] = outcome.figures("resets", hostile.FLOOR_MS)
    return found


@pytest.mark.parametrize(
    ("beside_ms", "within_ratio", "fine"), [(12.0, True, True), (12.1, False, True), (25.1, False, False)]
)
def test_a_p99_below_the_floor_is_fine_and_its_ratio_is_judged_all_the_same(
    hostile: Any, beside_ms: float, within_ratio: bool, fine: bool
) -> None:
    found = figures(hostile, beside_ms)
    assert (found["within_ratio"], found["fine"]) == (within_ratio, fine)


def test_the_table_has_both_verdicts(hostile: Any) -> None:
    head, row, within, _ = hostile.table([figures(hostile, 20.0)], 0, True).splitlines()
    assert head.split("  ")[-2:] == ["ratio <= 3", "verdict"]
    assert row.split()[-2:] == ["MISSED", "ok"]
    assert within == "p99 at most 3 times the quiet one: 0 of 1 attackers"
