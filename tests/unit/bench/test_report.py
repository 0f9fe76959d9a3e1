"""The line above a table of figures says where the figures come from, and how many rounds the medians are computed
from."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("report")


@pytest.mark.parametrize(
    ("rounds", "beginning"),
    [
        ({"rounds": 1}, "We measured these figures in one round on today at"),
        ({"rounds": 5}, "We measured these figures as medians of 5 rounds on today at"),
        ({}, "We measured these figures on today at"),
    ],
)
def test_the_facts_count_the_rounds(report: Any, rounds: dict[str, int], beginning: str) -> None:
    machine = {"cores": 2, "cpu": "x", "memory_gib": 8, "kernel": "6", "python": "3"}
    result = {"machine": machine, "date": "today", "commit": "abc", **rounds}
    facts = " ".join(report._facts(Path("x.json"), result).split())
    assert facts.startswith(beginning)
    assert facts.endswith("The saved file is `x.json`.")
    assert "round" not in report._facts(Path("x.json"), result, with_rounds=False)
