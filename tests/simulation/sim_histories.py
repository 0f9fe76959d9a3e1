"""The other part of a schedule: the cluster's rules without a network, on brokers that hold records.

In the world of controllers brokers hold no records, so it cannot see one lost by an election. These histories can: many
decisions in little time, with crashes, lost tails, wiped disks and requests that arrive late; the rule is that a clean
leader has every committed record (tests/unit/controller/cluster_histories.py, ledger_histories.py).
"""

from __future__ import annotations

from collections import Counter

from cluster_histories import PROFILES, Histories
from ledger_histories import LedgerHistories

STEPS = 400
#: The history with moves, coordinators and levels takes three times as long: every so many-th schedule has one.
LEDGER_EVERY = 4


def run_histories(seed: int, parts: tuple[str, ...]) -> Counter[tuple[str, str]]:
    """``parts``: of "brokers" and "ledger". Raises Broken, an assertion or a HeadraceError."""
    counts: Counter[tuple[str, str]] = Counter()
    found: list[Histories] = []
    if "brokers" in parts:
        small = {"metadata_max_records_per_request": 4} if seed // len(PROFILES) % 2 == 0 else {}
        found.append(Histories(seed, **small))
    if "ledger" in parts and seed % LEDGER_EVERY == 0:
        number = seed // LEDGER_EVERY
        found.append(LedgerHistories(number, level=1 if number % 4 == 0 else 2))
    for history in found:
        history.run(STEPS)
        for what, times in history.counts.items():
            counts["cluster", what] += times
    return counts
