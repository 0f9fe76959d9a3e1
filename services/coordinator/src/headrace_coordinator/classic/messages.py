"""Requests and answers of classic groups, as plain values.

    Join ---------> Joined | Waiting       Waiting: the answer comes later, as an ``Answered``
    Sync ---------> Synced | Waiting
    ClassicHeartbeat, LeaveClassic         answered at once

A request that may wait carries a ``ticket``, a number of the caller. ``Answered`` brings the answer to a ticket once
the records of its decision are committed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError

Protocols = tuple[tuple[str, bytes], ...]  #: (name, the member's data), in the member's order of preference.

NO_GENERATION = -1


class ClassicState(enum.StrEnum):
    """Kafka's states of a classic group; see state.py for the transitions."""

    EMPTY = "empty"
    PREPARING_REBALANCE = "preparing-rebalance"
    COMPLETING_REBALANCE = "completing-rebalance"
    STABLE = "stable"
    DEAD = "dead"


class Join(NamedTuple):
    """A member joins, or joins again. ``member_id``: "" of a new member. ``new_id``: the member id that a new member
    gets. ``needs_known_id``: a new dynamic member must join a second time (KIP-394)."""

    group_id: str
    member_id: str
    new_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    ticket: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    needs_known_id: bool = False
    can_skip_assignment: bool = False


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """``members`` are named to the leader alone."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class MemberIdNeeded(NamedTuple):
    """Join again with this member id (KIP-394)."""

    member_id: str


class Sync(NamedTuple):
    """A member asks for its assignment. ``assignments``: those of all members, from the leader."""

    group_id: str
    member_id: str
    generation: int
    ticket: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Synced(NamedTuple):
    protocol_type: str
    protocol: str
    assignment: bytes


class ClassicHeartbeat(NamedTuple):
    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(NamedTuple):
    """``member_id``: "" if only the instance id is known, as an operator may know it."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveClassic(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class Left(NamedTuple):
    """The outcome of each member, in the request's order."""

    errors: tuple[HeadraceError | None, ...]


class Waiting(NamedTuple):
    """The answer to a ticket follows."""


class Answered(NamedTuple):
    """A push: the answer to the request with this ticket, Joined, Synced or a HeadraceError."""

    ticket: int
    outcome: object


class DescribedClassicMember(NamedTuple):
    """``topics``, ``assigned``: what ``metadata`` and ``assignment`` say, if the member is a consumer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    topics: tuple[str, ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()


class DescribedClassicGroup(NamedTuple):
    group_id: str
    state: ClassicState
    generation: int
    protocol_type: str
    protocol: str
    members: tuple[DescribedClassicMember, ...]
