"""Requests, replies and pushes of a shard's groups, as plain values (KIP-848, on a stream).

    Heartbeat ----> HeartbeatReply          epoch 0 joins; later ones show liveness and the partitions read
    Leave --------> LeaveReply              a dynamic member is removed; a static one may return
    Disconnected                            the stream broke: the grace begins
    TopicsChanged, GroupConfigChanged       changes of the metadata
    DescribeGroup, ListGroups, ExplainGroup queries

Pushed: ``HeartbeatReply``, when the member's assignment has changed, and ``MemberRemoved`` (says why it is no longer a
member).

**Connections.** A stream has a number, larger than those of all earlier streams of the process. Messages from an older
stream of a member than its latest change nothing.

**Revisions.** A member's assignment has a revision, which grows with each change and is in the log. Owned partitions in
a heartbeat count only under the latest revision. A heartbeat that was on its way while a partition was assigned and
revoked does not know of it, and must not seem to have released it. Kafka's members need no revisions, because each
heartbeat is answered before the next; ours get pushes at any time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

Part = tuple[bytes, int]  #: (topic id, partition number)
Parts = frozenset[Part]

#: Special member epochs of requests: join the group, leave it permanently, leave it as a static member that will
#: return.
JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2

NO_REVISION = 0


class GroupState(enum.StrEnum):
    """Kafka's states of a consumer group. ASSIGNING: the target is older than the group's epoch. RECONCILING: not every
    member has reached its target."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"
    DEAD = "dead"


class Heartbeat(NamedTuple):
    """A member joins (epoch 0) or continues. None: unchanged; when joining, every field counts.

    ``owned``: the partitions read now, of the assignment with ``revision``. ``revision``: revision of the latest
    assignment that the member received (0: none); if the group has another one, the answer contains the assignment.
    ``topic_regex``: "" ends a subscription by regex. ``assignor``: "" for no preference. ``connection``: the number of
    the member's stream.
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
    """The member leaves; ``member_epoch``: LEAVE_EPOCH, or AWAY_EPOCH of a static member that will return.
    ``connection`` None: an admin removes it."""

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
    """A topic for assignors. ``racks``: of each partition's replicas; empty: unknown."""

    name: str
    topic_id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class TopicsChanged(NamedTuple):
    """All topics of the cluster by name; the mapping must not change afterwards. ``changed``: names that were added,
    removed or changed since the last time; None: unknown."""

    topics: Mapping[str, Topic]
    changed: frozenset[str] | None = None


class GroupConfigChanged(NamedTuple):
    """The whole configuration of a group (Kafka's dynamic group configs, KIP-848); None: the coordinator's own."""

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


class HeartbeatReply(NamedTuple):
    """Answer to a heartbeat, or pushed.

    ``assignment``: all that the member may read; it releases other partitions that it owns, and then says so. None:
    unchanged. ``names``: of the topics in ``assignment``. A member stops reading when it got no answer for
    ``session_timeout_ms``, or its stream is broken for ``connection_grace_ms``: others may have its partitions.
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
    LEFT = "it left"
    SESSION = "it sent no heartbeat within its session timeout"
    CONNECTION = "its connection broke and it did not reconnect within the grace period"
    REBALANCE = "it did not revoke partitions within its rebalance timeout (max.poll.interval.ms)"
    REPLACED = "another process took over its instance id"


class MemberRemoved(NamedTuple):
    """Pushed to a removed member: it releases everything, and may join again. ``error``: its next answer's code."""

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
    """``names``: of the topics whose ids appear, if they exist."""

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
    """One partition of a rebalance; member "": none. ``unread_ms``: time without a reader until its new reader
    confirmed; -1: unknown (yet), or it has no reader now or had none before."""

    topic_id: bytes
    topic: str
    partition: int
    from_member: str
    to_member: str
    unread_ms: int = -1


class Rebalance(NamedTuple):
    """One change of the target. ``ended_ms``: when every member had reached it; -1: not yet, or a later one came
    before. ``moves`` has only the first of very many; ``moved`` counts all."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: int
    moves: tuple[Move, ...]
    ended_ms: int = -1
