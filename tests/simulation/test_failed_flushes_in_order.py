"""Every test run runs ten seeds of each programme of failed flushes: a flush fails, the node restarts, more records are
acknowledged, and the power fails.

``make failed-flushes`` runs 200 seeds of each programme. A failure names its seed, and the command that repeats it.
"""

from __future__ import annotations

import os
import zlib

import pytest

from tests.simulation import failed_flushes
from tests.simulation.failed_flushes import PROGRAMMES, LostError
from tests.simulation.mutants.scoreboard import MUTANTS

SEEDS = 10


@pytest.mark.parametrize("name", PROGRAMMES)
def test_nothing_is_lost_and_every_seed_has_the_whole_order(name: str) -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    for seed in range(first, first + SEEDS):
        _, _, seen, lost = failed_flushes.run_seed((name, seed))
        again = f"again: make failed-flushes SEEDS=1 SEED={seed} PROGRAMMES={name}"
        assert not lost, f"{lost}; {again}"
        assert seen.is_whole, f"{seen}; {again}"
        assert seen.records_at_stake > 0


@pytest.mark.parametrize("name", PROGRAMMES)
def test_a_recovery_that_trusts_the_page_cache_loses_what_was_acknowledged(name: str) -> None:
    with MUTANTS["RecoveryTrustsThePageCache"].applied():
        for seed in range(1, 4):
            try:
                PROGRAMMES[name](seed)
            except LostError:
                return
    pytest.fail(f"{name} has not noticed it in three seeds")
