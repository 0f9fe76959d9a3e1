"""Wall clocks that are days off, in both directions, from the beginning of a schedule: of one role, or of both.

A seed says which roles. No plan draws it, so the rest of a seed's schedule is the same as with right clocks.
(Controllers' clocks are set by a day in the midst of a schedule: ``sim_faults``.)
"""

from __future__ import annotations

import random

DAY_MS = 86_400_000.0
BROKERS, COORDINATORS = "brokers", "coordinators"
_CASES: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset(),
    frozenset({BROKERS}),
    frozenset({COORDINATORS}),
    frozenset({BROKERS, COORDINATORS}),
)


def roles_off(seed: int) -> frozenset[str]:
    """The roles whose nodes have wrong clocks in the schedule of a seed."""
    return random.Random(f"clocks {seed}").choice(_CASES)


def off_ms(seed: int, role: str, node: object) -> float:
    """How far the wall clock of a node is ahead (or, below 0, behind): one to two days, or not at all."""
    if role not in roles_off(seed):
        return 0.0
    rng = random.Random(f"clock {seed} {node}")
    return rng.choice([-1, 1]) * DAY_MS * rng.uniform(1.0, 2.0)


def events(seed: int, *roles: str) -> dict[tuple[str, str], int]:
    """The events to count in a schedule with nodes of these roles."""
    return {("clocks", f"{role} are days off"): 1 for role in roles if role in roles_off(seed)}
