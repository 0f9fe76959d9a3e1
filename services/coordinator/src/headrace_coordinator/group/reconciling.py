"""Move a member from its current to its target assignment (KIP-848), one pure step: ``advance``.

    has partitions outside its target -> REVOKING    told to release them; keeps its epoch; the rest waits for that
    has released them -----------------> gets what is free of its target, and the epoch of the target
    target is still another member's --> WAITING     gets it when that one has released it; continues with the rest
    has all of its target -------------> SETTLED

A partition is free when no member has it, neither assigned nor revoking. So two members never have it at once, and a
member that keeps a partition never notices that others move.

A release counts only from a member that knows its assignment (messages: revisions), or that surely reads nothing: its
process is new, it announced its leave, or its connection has been broken for longer than the grace.

Owned partitions count only under the latest revision of the assignment: a heartbeat that was on its way while a
partition was assigned and revoked does not name it, and would seem to have released it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .messages import AWAY_EPOCH, NO_REVISION, Part, Parts

NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Current:
    """A member's partitions. ``assigned``: it may read these, since the epoch of each; ``revoking``: it must release
    these. ``epoch`` 0: it has not received an assignment."""

    epoch: int = 0
    first_epoch: int = 0
    revision: int = NO_REVISION
    assigned: Mapping[Part, int] = field(default_factory=dict)
    revoking: Parts = NOTHING

    @property
    def held(self) -> Parts:
        """Partitions that no other member may have."""
        return self.revoking.union(self.assigned)

    @property
    def is_away(self) -> bool:
        return self.epoch == AWAY_EPOCH

    def has_arrived(self, target: Parts, target_epoch: int) -> bool:
        """Whether nothing is left to do for it."""
        if self.revoking:
            return False
        if self.is_away:
            return target >= self.assigned.keys()
        return self.epoch == target_epoch and self.assigned.keys() == target


def advance(
    current: Current,
    target: Parts,
    target_epoch: int,
    *,
    is_free: Callable[[Part], bool],
    owned: Parts | None = None,
    reads_nothing: bool = False,
) -> Current:
    """The next step, or ``current`` itself when there is none now.

    ``owned``: the partitions that the member reads, if that counts. ``is_free``: no *other* member has the partition.
    """
    if reads_nothing:
        current = _without(current, current.held - target)
    if current.revoking:
        if owned is None or not owned.isdisjoint(current.revoking):
            return current
        current = _with(current, current.assigned, NOTHING)
    excess = current.assigned.keys() - target
    if excess:
        kept = {part: epoch for part, epoch in current.assigned.items() if part in target}
        return _with(current, kept, frozenset(excess))
    if current.is_away:
        return current
    fresh = {part: target_epoch for part in target if part not in current.assigned and is_free(part)}
    if not reads_nothing and fresh:
        current = _with(current, {**current.assigned, **fresh}, NOTHING)
    if current.epoch == target_epoch:
        return current
    return Current(
        target_epoch, current.first_epoch or target_epoch, current.revision, current.assigned, current.revoking
    )


def begun_anew(current: Current) -> Current:
    """The member joins again, or another process replaces it: nothing is revoking, because the old one reads nothing
    now; it keeps its assignment, but must receive it."""
    return Current(0, 0, current.revision + 1, dict(current.assigned), NOTHING)


def gone_away(current: Current) -> Current:
    """The static member has left, and will return."""
    return Current(AWAY_EPOCH, current.first_epoch, current.revision, dict(current.assigned), NOTHING)


def _without(current: Current, parts: Parts) -> Current:
    if not parts and not current.revoking:
        return current
    kept = {part: epoch for part, epoch in current.assigned.items() if part not in parts}
    return _with(current, kept, NOTHING)


def _with(current: Current, assigned: Mapping[Part, int], revoking: Parts) -> Current:
    """A change of the assignment is a new revision."""
    changed = assigned.keys() != current.assigned.keys()
    return Current(current.epoch, current.first_epoch, current.revision + changed, assigned, revoking)
