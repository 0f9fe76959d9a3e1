"""All mutants."""

from __future__ import annotations

import raft_mutants
from mutant import Mutant

MUTANTS: dict[str, Mutant] = {each.name: each for room in (raft_mutants,) for each in room.MUTANTS}
