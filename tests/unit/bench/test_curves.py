"""bench/curves.py: which figures become the points of a curve, and its pictures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"

SAVED: dict[str, Any] = {
    "medians": {
        "groups.20.headrace.rate": 5.0, "groups.5.headrace.rate": 4.0, "groups.5.headrace.p99": 2.0,
        "groups.20.headrace.p99": 3.0, "groups.5.kafka.rate@batch-1m": 1.0, "groups.5.kafka.rate@batch-128k": 2.0,
        "groups.5.kafka.p99": 7.0, "producers.5.headrace.rate": 9.0,
    },
    "best": {"groups.5.kafka.rate": {"setting": "batch-128k", "median": 2.0}},
}  # fmt: skip


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("curves")


@pytest.fixture
def curve_groups(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("curve_groups")


def test_the_points_of_a_curve_are_in_the_order_of_its_axis(curves: Any) -> None:
    assert curves.curve(SAVED, "groups", "headrace", "rate") == [(5, 4.0), (20, 5.0)]


def test_the_best_setting_of_kafka_counts(curves: Any) -> None:
    assert curves.curve(SAVED, "groups", "kafka", "rate") == [(5, 2.0)]


def test_a_picture_is_drawn_for_each_axis_that_was_measured(curves: Any, tmp_path: Path) -> None:
    assert [path.name for path in curves.draw(SAVED, tmp_path)] == ["curve-groups.png"]
    assert (tmp_path / "curve-groups.png").stat().st_size > 10_000


def test_only_records_with_a_time_have_a_delay(curve_groups: Any) -> None:
    member = curve_groups.Member(iter([[b"random bytes", curve_groups.timed(1)], []]).__next__, lambda: None)
    while member.failure is None:
        member._thread.join(0.1)
    assert (member.read, len(member.delays_s)) == (2, 1)
    assert curve_groups.delay_s(curve_groups.timed(1_000_000_000), 3_500_000_000) == 2.5
