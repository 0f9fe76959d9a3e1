"""Move a member from its current assignment to its target assignment (KIP-848), in one pure step: ``advance``.

    has partitions outside its target -> REVOKING    must release them; keeps its epoch; other changes wait for that
    has released them -----------------> gets the free partitions of its target, and the epoch of the target
    target is still another member's --> WAITING     gets the partition when that member has released it
    has all of its target -------------> SETTLED

A partition is free when no member has it, neither assigned nor revoking. Only free partitions are assigned, so two
members never have the same partition. A member that keeps a partition does not notice that other partitions move.

A release of partitions is accepted only from a member that knows its assignment (revisions: see messages.py), or that
certainly reads no partition. A member certainly reads no partition if its process is new, if it announced its leave, or
if it was disconnected beyond the grace period.

Partitions may be *taken* from a static member that was disconnected beyond the grace period: they are free, but the
member's process does not know it, and has positions in them from before other members read on. So a taken partition is
assigned to the member again only after the member has reported, knowing an assignment without the partition, that it
no longer owns the partition. Until then the member keeps its epoch, so that the epochs of its commits tell the two
ownerships apart. (In Kafka no partition is taken: a member has its partitions until it releases them, or is fenced.)

The owned partitions in a heartbeat are accepted only if the heartbeat has the latest revision of the assignment.
Without revisions, a heartbeat that was in flight while a partition was assigned and revoked would look like a release
of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .messages import AWAY_EPOCH, NO_REVISION, Part, Parts

NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Current:
    """A member's partitions, each with the epoch in which the member got it. ``assigned``: partitions that the member
    may read. ``revoking``: partitions that the member must release. ``taken``: partitions that were freed without the
    member's knowledge. ``epoch`` 0: the member has not received an assignment."""

    epoch: int = 0
    first_epoch: int = 0
    revision: int = NO_REVISION
    assigned: Mapping[Part, int] = field(default_factory=dict)
    revoking: Mapping[Part, int] = field(default_factory=dict)
    taken: Parts = NOTHING

    @property
    def held(self) -> Parts:
        """The member's partitions, assigned or revoking, which no other member may have."""
        return frozenset(self.assigned).union(self.revoking)

    @property
    def unreleased(self) -> Parts:
        """The partitions that the member must release, and has not reported as released."""
        return self.taken.union(self.revoking)

    def has_since(self, part: Part, epoch: int) -> bool:
        """Whether the member has had the partition from that epoch on."""
        began = self.assigned.get(part, self.revoking.get(part))
        return began is not None and began <= epoch

    @property
    def is_away(self) -> bool:
        return self.epoch == AWAY_EPOCH

    def has_arrived(self, target: Parts, target_epoch: int) -> bool:
        """Whether the member has reached its target, so that no step is left."""
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
    """The member's next state, or ``current`` itself if no step is possible now.

    ``owned``: the partitions that the member reads, or None if its report is outdated. ``is_free(part)``: whether no
    *other* member has the partition.
    """
    if reads_nothing:
        current = _taken_from(current, target)
    if current.revoking:
        if owned is None or not owned.isdisjoint(current.revoking):
            return current
        current = _with(current, current.assigned, {})
    excess = {part: epoch for part, epoch in current.assigned.items() if part not in target}
    if excess:
        kept = {part: epoch for part, epoch in current.assigned.items() if part in target}
        return _with(current, kept, excess)
    if current.is_away or not current.taken.isdisjoint(target):
        return current
    fresh = {part: target_epoch for part in target if part not in current.assigned and is_free(part)}
    if not reads_nothing and fresh:
        current = _with(current, {**current.assigned, **fresh}, {})
    if current.epoch == target_epoch:
        return current
    return replace(current, epoch=target_epoch, first_epoch=current.first_epoch or target_epoch)


def acknowledged(current: Current, owned: Parts) -> Current:
    """The state after a report of a member that knows its assignment: taken partitions that it does not own may be
    assigned to it again."""
    return current if current.taken <= owned else replace(current, taken=current.taken & owned)


def without_unread(current: Current, target: Parts, reads: Parts) -> Current:
    """Free the partitions that the member neither reads nor may keep. ``reads``: all partitions that the member reads.
    The member has just joined or joined again, and had stopped reading all other partitions before."""
    kept = {part: epoch for part, epoch in current.assigned.items() if part in target or part in reads}
    revoking = {part: epoch for part, epoch in current.revoking.items() if part in reads}
    if len(kept) == len(current.assigned) and revoking == current.revoking:
        return current
    return _with(current, kept, revoking)


def begun_anew(current: Current) -> Current:
    """The state of a member that joins again, or whose process is replaced by another process. The member's revoking
    partitions are free now, because the member's old process reads none of them. The member keeps its assignment, but
    must receive the assignment again."""
    return Current(0, 0, current.revision + 1, dict(current.assigned))


def gone_away(current: Current) -> Current:
    """The state of a static member that has left and will return."""
    return Current(AWAY_EPOCH, current.first_epoch, current.revision, dict(current.assigned))


def _taken_from(current: Current, target: Parts) -> Current:
    """Free all partitions outside the target of a member that reads no partition. A member that is away joins anew, so
    it has nothing to release."""
    kept = {part: epoch for part, epoch in current.assigned.items() if part in target}
    taken = NOTHING if current.is_away else current.taken | (current.held - kept.keys())
    return replace(_with(current, kept, {}), taken=taken)


def _with(current: Current, assigned: Mapping[Part, int], revoking: Mapping[Part, int]) -> Current:
    """Change the assignment, which increments its revision."""
    changed = assigned.keys() != current.assigned.keys()
    return replace(current, revision=current.revision + changed, assigned=assigned, revoking=revoking)
