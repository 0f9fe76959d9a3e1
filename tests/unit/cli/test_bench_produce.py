"""``bench produce`` prints "verified" only when the log matches the acknowledgements."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from headrace_core.types import TopicPartition
from headrace_tools.bench import common
from headrace_tools.bench.common import BenchOptions, moved_by

# The package re-exports a function of the same name, so the module is asked for by its full name.
produce_module = importlib.import_module("headrace_tools.bench.produce")

BEFORE = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}
OPTIONS = BenchOptions(topic="t", config={}, records=10, warm=False)


def _ends(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, int]) -> list[int]:
    """Return ``answers`` as the end offsets of partitions 0 and 1, one after the other, and then always the last
    answer."""
    asked: list[int] = []

    def end_offsets_of(options: BenchOptions) -> dict[TopicPartition, int]:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(len(asked))
        return dict(zip(BEFORE, answer, strict=True))

    monkeypatch.setattr(common, "end_offsets_of", end_offsets_of)
    return asked


@pytest.mark.parametrize(
    ("ends", "moved"), [((10, 12), True), ((15, 7), True), ((10, 11), False), ((5, 7), False), ((10, 13), False)]
)
def test_the_log_must_have_grown_by_as_many(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[int, int], moved: bool
) -> None:
    monkeypatch.setattr(common, "STALL_S", 0.01)
    _ends(monkeypatch, ends)
    assert moved_by(OPTIONS, BEFORE, 10) is moved


def test_records_that_nobody_acknowledges_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _ends(monkeypatch, (5, 7), (9, 9), (10, 12))
    assert moved_by(OPTIONS, BEFORE, 10)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("acknowledged", "moved", "verified"), [(10, True, True), (9, True, False), (10, False, False)]
)
def test_verified_needs_every_acknowledgement_and_the_log(
    monkeypatch: pytest.MonkeyPatch, acknowledged: int, moved: bool, verified: bool
) -> None:
    def outcome(*_: Any) -> tuple[float, list[float], int]:
        return 1.0, [1.0], acknowledged

    monkeypatch.setattr(produce_module, "ensure_topic", lambda options: None)
    monkeypatch.setattr(produce_module, "end_offsets_of", lambda options: BEFORE)
    monkeypatch.setattr(produce_module, "moved_by", lambda options, before, wanted: moved)
    monkeypatch.setattr(produce_module, "_produce_object", outcome)
    assert produce_module.produce(OPTIONS).verified is verified
