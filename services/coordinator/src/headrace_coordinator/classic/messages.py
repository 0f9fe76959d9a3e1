"""Requests and answers of classic groups, as plain values.

    Join ---------> Joined | Waiting       Waiting: the answer comes later, as an ``Answered``
    Sync ---------> Synced | Waiting
    ClassicHeartbeat, LeaveClassic         answered at once

Join and Sync have a ``ticket``, a number that the caller chooses. ``Answered`` contains a ticket and the answer to the
request with this ticket; it is sent when the records of the decision are committed.
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
    """A JoinGroup request of a member that joins, or joins again. ``member_id``: "" for a new member. ``new_id``: the
    member id that a new member gets. ``needs_known_id``: a new dynamic member must repeat the request with its member
    id (KIP-394)."""

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
    """The answer to JoinGroup. ``members`` is empty in the answers to all members but the leader."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class MemberIdNeeded(NamedTuple):
    """The answer MEMBER_ID_REQUIRED: the member must repeat JoinGroup with this member id (KIP-394)."""

    member_id: str


class Sync(NamedTuple):
    """A SyncGroup request: a member requests its assignment. ``assignments``: the assignments of all members, which
    only the leader sends."""

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
    """A member that a LeaveGroup request removes. ``member_id``: "" if an operator removes the member by its instance
    id."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveClassic(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class Left(NamedTuple):
    """The reply to LeaveClassic: the error of each leaving member, or None, in the request's order."""

    errors: tuple[HeadraceError | None, ...]


class Waiting(NamedTuple):
    """The reply to a request whose answer is sent later, as an ``Answered`` with the request's ticket."""


class Answered(NamedTuple):
    """The answer that is sent later to the request with this ticket. ``outcome`` is a Joined, a Synced or a
    HeadraceError."""

    ticket: int
    outcome: object


class DescribedClassicMember(NamedTuple):
    """A member in a group's description. ``topics`` and ``assigned`` are decoded from ``metadata`` and ``assignment``
    if the member is a consumer."""

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
