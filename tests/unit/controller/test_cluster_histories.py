"""Random histories of registrations, crashes, AlterPartitions, elections and settings: every state and step satisfies
the rules, and no clean leader lacks a committed record."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_histories import Histories

SEEDS = 60
STEPS = 400


@pytest.mark.parametrize("block", range(6))
def test_no_clean_leader_lacks_a_committed_record_whatever_happens(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        history = Histories(seed)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"Histories({seed}).run({STEPS}): {broken}") from broken
        counts.update(history.counts)
    print(dict(counts))
    expected = ("commit", "ISR altered", "ISR refused", "clean election", "election from the ELR", "clean stop")
    assert all(counts[what] for what in (*expected, "lost a disk", "lost a tail")), counts


def test_histories_whose_decisions_are_cut_to_pieces_end_the_same() -> None:
    """metadata.max.records.per.request bounds what follows from one broker's coming or going."""
    for seed in range(1_000, 1_012):
        history = Histories(seed, metadata_max_records_per_request=4)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"Histories({seed}, metadata_max_records_per_request=4): {broken}") from broken
