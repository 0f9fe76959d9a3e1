"""All mutants."""

from __future__ import annotations

import broker_mutants
import cluster_rooms
import group_mutants
import raft_mutants
import shell_mutants
import upkeep_mutants
from mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    each.name: each
    for room in (raft_mutants, shell_mutants, cluster_rooms, broker_mutants, upkeep_mutants, group_mutants)
    for each in room.MUTANTS
}
