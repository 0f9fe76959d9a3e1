"""What the groups of a shard are asked and told, as plain values (KIP-848, on a stream).

    Heartbeat ----> HeartbeatReply          epoch 0 joins; each later one says that it lives, and what it reads
    Leave --------> LeaveReply              a dynamic member is gone; a static one may only be away
    Disconnected                            the stream broke: the grace begins
    TopicsChanged, GroupConfigChanged       what the metadata says now
    DescribeGroup, ListGroups, ExplainGroup questions

Pushed without being asked: ``HeartbeatReply`` with an assignment (something has changed for the member), and
``MemberRemoved`` (it is no member any more, and why).

**Connections.** A stream has a number, larger than those of all streams that the process took before. What comes from
an older stream of a member than its latest one says nothing about it, and changes nothing.

**Revisions.** A member's assignment has a revision, which grows with each change and lives in the log. What a heartbeat
says about owned partitions counts only under the latest revision: a heartbeat that was on its way while a partition was
given and taken back does not know of it, and must not seem to have let it go. Kafka's members need none, for they are
answered one heartbeat at a time; ours are told at any time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

#: (topic id, partition number)
Part = tuple[bytes, int]
Parts = frozenset[Part]

#: A member epoch that joins, and the epochs of those that leave: for good, and of a static member that comes back.
JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2

NO_REVISION = 0


class GroupState(enum.StrEnum):
    """Kafka's states of a consumer group. ASSIGNING: the target is older than the group's epoch. RECONCILING: not every
    member has arrived at its target."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"
    DEAD = "dead"


# -- asked ------------------------------------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """A member joins (epoch 0) or goes on. None: as before; of a joining one everything is taken as it is here.

    ``owned``: what it reads at this moment, of the assignment with ``revision``. ``revision``: that of the latest
    assignment that it has heard (0: none); another one than the group's is answered with the assignment.
    ``topic_regex``: "" none any more. ``assignor``: "" none preferred. ``connection``: the number of its stream.
    """

    group_id: str
    member_id: str
    member_epoch: int
    connection: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Parts | None = None
    revision: int = NO_REVISION


class Leave(NamedTuple):
    """The member leaves; ``member_epoch``: LEAVE_EPOCH, or AWAY_EPOCH of a static member that means to come back.
    ``connection`` None: somebody else takes it out (an admin)."""

    group_id: str
    member_id: str
    member_epoch: int = LEAVE_EPOCH
    instance_id: str | None = None
    connection: int | None = None


class Disconnected(NamedTuple):
    """The member's stream has ended without a Leave."""

    group_id: str
    member_id: str
    connection: int


class Topic(NamedTuple):
    """A topic as assignors see it. ``racks``: of each partition, where its replicas are; empty: not known."""

    name: str
    topic_id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class TopicsChanged(NamedTuple):
    """The cluster's topics by name, all of them; the mapping must not change afterwards. ``changed``: names that came,
    went or are different since the last time; None: not known."""

    topics: Mapping[str, Topic]
    changed: frozenset[str] | None = None


class GroupConfigChanged(NamedTuple):
    """The configuration of a group, all of it (Kafka's dynamic group configs, KIP-848); None: the coordinator's own."""

    group_id: str
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None


class DescribeGroup(NamedTuple):
    group_id: str


class ListGroups(NamedTuple):
    """``states``: only groups in one of these; empty: all."""

    states: tuple[str, ...] = ()


class ExplainGroup(NamedTuple):
    group_id: str


# -- told -------------------------------------------------------------------------------------------------------------


class HeartbeatReply(NamedTuple):
    """Answer to a heartbeat, or pushed.

    ``assignment``: all that the member may read; it lets go of what it owns and is not in here, and then says so. None:
    as before. ``names``: of the topics in ``assignment``. ``session_timeout_ms``: a member that was not answered for so
    long stops reading; ``connection_grace_ms``: and so does one whose stream is broken for so long: others may have its
    partitions.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    connection_grace_ms: int
    revision: int
    assignment: Parts | None = None
    names: Mapping[bytes, str] = {}


class LeaveReply(NamedTuple):
    """The member's epoch from now on: LEAVE_EPOCH or AWAY_EPOCH."""

    member_id: str
    member_epoch: int


class RemovalReason(enum.StrEnum):
    """Why somebody is no member any more."""

    LEFT = "it left"
    SESSION = "it did not heartbeat for its session time-out"
    CONNECTION = "its connection broke, and it did not come back within the grace"
    REBALANCE = "it did not let go of partitions within its rebalance time-out (max.poll.interval.ms)"
    REPLACED = "another process took over its instance id"


class MemberRemoved(NamedTuple):
    """Pushed to somebody who is no member any more: it lets go of everything, and may join anew. ``error``: the code
    that its next heartbeat gets."""

    member_id: str
    error: str
    reason: str


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack: str | None
    member_epoch: int
    topics: tuple[str, ...]
    topic_regex: str
    assigned: Parts
    revoking: Parts
    target: Parts


class DescribedGroup(NamedTuple):
    """``names``: of the topics whose ids appear, as far as they exist."""

    group_id: str
    state: GroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedMember, ...]
    names: Mapping[bytes, str] = {}


class ListedGroup(NamedTuple):
    group_id: str
    state: GroupState
    members: int


class Move(NamedTuple):
    """One partition of a rebalance; members "" : nobody. ``unread_ms``: from when nobody read it until its new reader
    said that it does; -1: not (yet) known, or it has no reader now or had none before."""

    topic_id: bytes
    topic: str
    partition: int
    from_member: str
    to_member: str
    unread_ms: int = -1


class Rebalance(NamedTuple):
    """One change of the target. ``ended_ms``: when every member had arrived; -1: not yet, or a later one came before.
    ``moves`` holds the first of them only when there are very many; ``moved`` counts all."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: int
    moves: tuple[Move, ...]
    ended_ms: int = -1
