"""Move a member from its current to its target assignment (KIP-848), one pure step: ``advance``.

    has what it shall not have ------> REVOKING    told to let go; keeps its epoch; everything else waits for that
    has let go of it ----------------> gets what is free of its target, and the epoch of the target
    target is still somebody else's -> WAITING     gets it when that one has let go; goes on with the rest meanwhile
    has all of its target -----------> SETTLED

A partition is free when no member has it, neither assigned nor revoking. So at no time two members have it, and nobody
who keeps a partition ever notices that others move.

That a member has let go of something is believed only of a member that knows what it has (messages: revisions), or of
one that certainly reads nothing: its process is a new one, or it said that it goes, or its connection has been broken
for longer than the grace.

Owned partitions count only under the latest revision of the assignment: a heartbeat that was under way while a
partition was given and revoked does not name it, and would seem to have released it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .messages import AWAY_EPOCH, NO_REVISION, Part, Parts

NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has. ``assigned``: it may read these, since the epoch of each; ``revoking``: it must let go of
    these. ``epoch`` 0: it was told nothing yet."""

    epoch: int = 0
    first_epoch: int = 0
    revision: int = NO_REVISION
    assigned: Mapping[Part, int] = field(default_factory=dict)
    revoking: Parts = NOTHING

    @property
    def held(self) -> Parts:
        """All that nobody else may have."""
        return self.revoking.union(self.assigned)

    @property
    def is_away(self) -> bool:
        return self.epoch == AWAY_EPOCH

    def has_arrived(self, target: Parts, target_epoch: int) -> bool:
        """Is there nothing more to do for it?"""
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

    ``owned``: what the member said that it reads, if that counts. ``is_free``: has no *other* member the partition?
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
    """The member joins again, or another process takes its place: nothing is revoking any more, for whoever was to let
    go reads nothing now; it keeps what it may read, but has to be told."""
    return Current(0, 0, current.revision + 1, dict(current.assigned), NOTHING)


def gone_away(current: Current) -> Current:
    """The static member has left, and means to come back."""
    return Current(AWAY_EPOCH, current.first_epoch, current.revision, dict(current.assigned), NOTHING)


def _without(current: Current, parts: Parts) -> Current:
    if not parts and not current.revoking:
        return current
    kept = {part: epoch for part, epoch in current.assigned.items() if part not in parts}
    return _with(current, kept, NOTHING)


def _with(current: Current, assigned: Mapping[Part, int], revoking: Parts) -> Current:
    """A change of what the member may read is a new revision."""
    changed = assigned.keys() != current.assigned.keys()
    return Current(current.epoch, current.first_epoch, current.revision + changed, assigned, revoking)
