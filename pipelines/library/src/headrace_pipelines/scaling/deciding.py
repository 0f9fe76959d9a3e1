"""The decision of the autoscaler: how many members a group should have, by its lag in seconds. Pure.

* If the lag is above ``grow_s``, the number of members doubles, up to one for each partition (a further member is
  idle).
* If the lag is below ``shrink_s`` for ``calm_s``, one member stops, if the other members can handle the traffic.
* Between ``shrink_s`` and ``grow_s``, and for ``pause_s`` after a change, nothing changes (hysteresis).

The capacity of one member is measured while the lag is above ``grow_s``, because then each member is busy. Without this
measurement, a group with steady traffic would shrink, fall behind and grow again and again.

A partition has one member, so members do not share the traffic evenly: of 4 partitions and 3 members, one member has 2
partitions, half of the traffic. The member with the most partitions decides whether a group can be smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the members, and times in seconds. ``partitions``: number of partitions of the topic, which is also the
    maximum number of members. ``spare``: the largest part of a member's capacity that the traffic of its partitions may
    need after another member is stopped. Raises InvalidArgumentError."""

    least: int = 1
    partitions: int
    grow_s: float = 1.5
    shrink_s: float = 0.75
    calm_s: float = 3.0
    pause_s: float = 2.0
    spare: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.partitions:
            raise InvalidArgumentError(
                f"least={self.least}, partitions={self.partitions}: must be 1 <= least <= partitions"
            )
        if not 0 <= self.shrink_s < self.grow_s:
            raise InvalidArgumentError(
                f"shrink_s={self.shrink_s}, grow_s={self.grow_s}: must be 0 <= shrink_s < grow_s"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation of the group: its lag in seconds (None: not known), and the records that arrived and were handled
    per second."""

    at_s: float
    lag_s: float | None
    arriving: float
    handled: float


@dataclass(frozen=True, slots=True)
class State:
    """The state of the autoscaler. ``capacity``: records per second of one busy member, 0.0 while it is not known."""

    members: int
    changed_s: float
    calm_since_s: float | None = None
    capacity: float = 0.0


def busiest_share(members: int, partitions: int) -> float:
    """The part of the traffic (0 to 1) that the member with the most partitions must handle, if each partition has the
    same traffic."""
    return -(-partitions // members) / partitions


def decide(state: State, sample: Sample, limits: Limits) -> State:
    """The state after an observation; ``members`` is the number of members that the group should have now."""
    members = min(max(state.members, limits.least), limits.partitions)
    if sample.lag_s is None:
        return replace(state, members=members, calm_since_s=None)
    is_paused = sample.at_s - state.changed_s < limits.pause_s
    if sample.lag_s > limits.grow_s:
        capacity = state.capacity if is_paused else max(state.capacity, sample.handled / members)
        wanted = members if is_paused else min(2 * members, limits.partitions)
        changed_s = sample.at_s if wanted != members else state.changed_s
        return State(wanted, changed_s, None, capacity)
    if sample.lag_s >= limits.shrink_s:
        return replace(state, members=members, calm_since_s=None)
    since_s = sample.at_s if state.calm_since_s is None else state.calm_since_s
    is_calm = not is_paused and sample.at_s - since_s >= limits.calm_s
    if is_calm and members > limits.least and _can_be_fewer(members - 1, state, sample, limits):
        return State(members - 1, sample.at_s, sample.at_s, state.capacity)
    return replace(state, members=members, calm_since_s=since_s)


def _can_be_fewer(members: int, state: State, sample: Sample, limits: Limits) -> bool:
    """Whether ``members`` can handle the traffic; True while the capacity is not known."""
    busiest = sample.arriving * busiest_share(members, limits.partitions)
    return not state.capacity or busiest <= state.capacity * limits.spare
