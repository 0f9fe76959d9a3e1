"""The mutants of the cluster's rules, from cluster_mutants.py and ledger_mutants.py."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants import cluster_mutants, ledger_mutants
from tests.simulation.mutants.mutant import Mutant, Patch


def _of(room: Any, part: str) -> tuple[Mutant, ...]:
    found = []
    for each in room.MUTANTS:
        patches: list[Patch] = []
        each.break_it(lambda where, name, value, patches=patches: patches.append(Patch(where, name, value)))
        found.append(
            Mutant(each.name, f"{each.source}: {each.removed}", 5, tuple(patches), part, getattr(each, "profile", None))
        )
    return tuple(found)


MUTANTS = (*_of(cluster_mutants, "brokers"), *_of(ledger_mutants, "ledger"))
