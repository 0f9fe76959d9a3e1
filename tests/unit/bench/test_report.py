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


def test_a_saved_result_has_a_line_for_each_sample_and_loads_back(report: Any, tmp_path: Path) -> None:
    measure = importlib.import_module("measure")
    samples = {
        "ours": {"unit": "rec/s", "values": [1.5, 2.0]},
        "kafka@batch-1m": {"unit": "rec/s", "values": [3.0]},
    }
    result = {"date": "today", "machine": {"cores": 2}, "bars": [{"met": True}], "samples": samples, "failures": []}
    path = tmp_path / "result.json"
    path.write_text(measure.text_of(result))
    loaded, again = report.load(path)
    assert again == result
    assert (loaded.median("ours"), loaded.best("kafka").setting) == (1.75, "batch-1m")
    assert sum('"unit"' in line for line in path.read_text().splitlines()) == len(samples)


def test_a_bar_that_was_not_measured_is_not_on_the_page(
    report: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = importlib.import_module("measure")
    page, saved = tmp_path / "page.md", tmp_path / "2026-01-01-2cores-8gib-peers.json"
    page.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n")
    monkeypatch.setitem(report.PARTS, "peers", report.Part("measured", page, report.OF_ONE_REPLICA))
    machine = {"cores": 2, "cpu": "x", "memory_gib": 8, "kernel": "6", "python": "3"}
    samples = {"headrace.start": {"unit": "s", "values": [0.5]}}
    saved.write_text(
        measure.text_of({"date": "d", "commit": "c", "machine": machine, "samples": samples, "failures": []})
    )
    report.rewrite(saved)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- measured: end -->\nafter\n")
    assert "start to first acknowledged record" in text
    assert "not measured" not in text
    assert "old" not in text
