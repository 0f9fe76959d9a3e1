"""Remove the guards of the cluster's rules one by one: without a guard, some history must fail a check."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.errors import HeadraceError
from tests.simulation.cluster_histories import PROFILES, Histories
from tests.simulation.mutants.cluster_mutants import MUTANTS, Mutant

SCHEDULES_MAX = 2_000
STEPS = 400


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_guard_that_is_taken_away_is_missed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        mutant.break_it(patch.setattr)
        seed, why = _killer(mutant)
    print(f"{mutant.name} ({mutant.source}): killed by seed {seed}: {why[:100]}")
    history(seed).run(STEPS)  # the product passes the history that exposes the mutant


def _killer(mutant: Mutant) -> tuple[int, str]:
    for seed in _seeds(mutant.profile):
        try:
            history(seed).run(STEPS)
        except (AssertionError, HeadraceError) as error:
            return seed, f"{type(error).__name__} {error}"
    pytest.fail(f"nothing missed {mutant.removed} in {SCHEDULES_MAX} schedules")


def history(seed: int) -> Histories:
    """In every second history of each profile, decisions are split into parts."""
    settings: dict[str, Any] = {"metadata_max_records_per_request": 4} if seed // len(PROFILES) % 2 == 0 else {}
    return Histories(seed, **settings)


def _seeds(profile: int | None) -> range:
    return range(SCHEDULES_MAX) if profile is None else range(profile, SCHEDULES_MAX, len(PROFILES))
