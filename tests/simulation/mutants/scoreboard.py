"""All mutants."""

from __future__ import annotations

from tests.simulation.mutants import (
    broker_mutants,
    cluster_rooms,
    group_mutants,
    raft_mutants,
    shell_mutants,
    txn_mutants,
    upkeep_mutants,
)
from tests.simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    each.name: each
    for room in (
        raft_mutants,
        shell_mutants,
        cluster_rooms,
        broker_mutants,
        upkeep_mutants,
        group_mutants,
        txn_mutants,
    )
    for each in room.MUTANTS
}
