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
    ("rounds", "end"),
    [
        ({"rounds": 1}, "Python 3; 1 round; `x.json`."),
        ({"rounds": 5}, "Python 3; 5 rounds, medians; `x.json`."),
        ({}, "Python 3; `x.json`."),
    ],
)
def test_the_facts_count_the_rounds(report: Any, rounds: dict[str, int], end: str) -> None:
    machine = {"cores": 2, "cpu": "x", "memory_gib": 8, "kernel": "6", "python": "3"}
    result = {"machine": machine, "date": "today", "commit": "abc", **rounds}
    assert " ".join(report._facts(Path("x.json"), result).split()).endswith(end)
    assert "round" not in report._facts(Path("x.json"), result, with_rounds=False)
