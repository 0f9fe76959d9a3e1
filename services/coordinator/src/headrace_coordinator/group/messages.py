"""Requests, replies and pushes of a shard's groups, as plain values (KIP-848, on a stream).

    Heartbeat ----> HeartbeatReply          epoch 0 joins; later ones show liveness and the partitions read
    Leave --------> LeaveReply              a dynamic member is removed; a static member may return
    RemoveMembers -> MembersRemoved         an operator removes members
    Disconnected                            the stream broke: the grace begins
    TopicsChanged, GroupConfigChanged       changes of the metadata
    DescribeGroup, ListGroups, ExplainGroup queries

A shard of groups pushes two kinds of messages. A ``HeartbeatReply`` reports that the member's assignment has changed,
and a ``MemberRemoved`` says why the member was removed.

**Connections.** Each stream has a number, larger than the numbers of all earlier streams of this coordinator process.
Messages from a stream that is older than the member's latest stream change no state.

**Revisions.** A member's assignment has a revision, which increases with each change and is in the log. The owned
partitions in a heartbeat are used only if the heartbeat names the latest revision of the assignment. While a heartbeat
is in flight, a partition may be assigned to the member and revoked. A heartbeat that was in flight during the
assignment does not name the partition, but must not count as a release of the partition. Kafka's members need no
revisions, because each heartbeat is answered before the next heartbeat. Headrace's members need revisions, because they
receive pushes at any time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.security.access import Decider

Part = tuple[bytes, int]  #: (topic id, partition number)
Parts = frozenset[Part]

#: Special member epochs in requests: to join the group, to leave it permanently, and to leave it as a static member
#: that will return.
JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2

NO_REVISION = 0


class GroupState(enum.StrEnum):
    """Kafka's states of a consumer group. ASSIGNING: the target assignment is older than the group's epoch.
    RECONCILING: not every member has reached its target assignment."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"
    DEAD = "dead"


class Heartbeat(NamedTuple):
    """A member's heartbeat, with which the member joins (epoch 0) or continues its membership. A field of a heartbeat
    that is None has not changed since the last heartbeat; a join must have every field.

    ``owned``: the partitions that the member reads now, of the assignment with ``revision``. ``revision``: revision of
    the latest assignment that the member received (0 if none). If the group has another revision of the member's
    assignment, the answer contains the assignment. ``topic_regex``: "" ends a subscription by a pattern. ``assignor``:
    "" means that the member prefers no assignor. ``connection``: the number of the member's stream. ``principal``: the
    authenticated user of the member. The member's pattern includes only topics that the user may describe; "": the
    member may describe every topic. ``principal_host``: the address from which the member has authenticated;
    ``client_host`` is only shown in descriptions.
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
    principal: str | None = None
    principal_host: str | None = None
    owned: Parts | None = None
    revision: int = NO_REVISION


class Leave(NamedTuple):
    """A member leaves. ``member_epoch`` is LEAVE_EPOCH, or AWAY_EPOCH of a static member that will return.
    ``connection`` is None if the stream of the request does not matter."""

    group_id: str
    member_id: str
    member_epoch: int = LEAVE_EPOCH
    instance_id: str | None = None
    connection: int | None = None


class RemoveMembers(NamedTuple):
    """An operator removes members. The reply is a MembersRemoved. All members leave at once, so the group has one new
    target assignment, and not one for each member."""

    group_id: str
    member_ids: tuple[str, ...]


class MembersRemoved(NamedTuple):
    """The reply to RemoveMembers: the error of each member that is not in the group, in the order of the request."""

    errors: tuple[HeadraceError | None, ...]


class Disconnected(NamedTuple):
    """A report that a member's stream has ended without a Leave."""

    group_id: str
    member_id: str
    connection: int


class Topic(NamedTuple):
    """A topic, with the properties that assignors use. ``racks``: the racks of each partition's replicas; empty if they
    are unknown."""

    name: str
    topic_id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class TopicsChanged(NamedTuple):
    """All topics of the cluster by name; the caller must not change the mapping after it was passed. ``changed``: names
    of topics that were added, removed or changed after the previous TopicsChanged; None if the names are unknown.
    ``authorizer``: decides which topics members may describe, and is a new object after each change of the ACLs; None:
    members may describe every topic.
    """

    topics: Mapping[str, Topic]
    changed: frozenset[str] | None = None
    authorizer: Decider | None = None


class GroupConfigChanged(NamedTuple):
    """The whole configuration of a group (Kafka's dynamic group configs, KIP-848); None if the coordinator's settings
    apply."""

    group_id: str
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None


class DescribeGroup(NamedTuple):
    group_id: str


class ListGroups(NamedTuple):
    """``states``: list only groups in one of these states; empty lists all groups."""

    states: tuple[str, ...] = ()


class ExplainGroup(NamedTuple):
    group_id: str


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat, or a push.

    ``assignment``: all partitions that the member may read. The member releases all partitions that are not in
    ``assignment``, and then reports the release. ``assignment`` is None if the member's assignment is unchanged.
    ``names``: names of the topics in ``assignment``, by id. A member must stop reading when it got no answer for
    ``session_timeout_ms``, or when its stream has been broken for ``connection_grace_ms``. After the session timeout or
    the grace period, other members may own the member's partitions.
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
    """The member's new epoch: LEAVE_EPOCH or AWAY_EPOCH."""

    member_id: str
    member_epoch: int


class RemovalReason(enum.StrEnum):
    LEFT = "it left"
    SESSION = "it sent no heartbeat within its session timeout"
    CONNECTION = "its connection broke and it did not reconnect within the grace period"
    REBALANCE = "it did not revoke partitions within its rebalance timeout (max.poll.interval.ms)"
    REPLACED = "another process took over its instance id"


class MemberRemoved(NamedTuple):
    """A push to a removed member, which must release all partitions, and may join the group again. ``error``: the error
    that the removed member would get for its next request."""

    member_id: str
    error: str
    reason: str


class DescribedMember(NamedTuple):
    """``is_classic``: the member uses the classic protocol; the group is about to change its type."""

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
    is_classic: bool = False


class DescribedPending(NamedTuple):
    """An offset of an open transaction. ``transactional_id``: "" if Kafka wrote the offset."""

    topic: str
    partition: int
    offset: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    received_ms: int


class DescribedGroup(NamedTuple):
    """``names``: names of the topics whose ids appear in the description, if the topics exist."""

    group_id: str
    state: GroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedMember, ...]
    names: Mapping[bytes, str] = {}
    pending: tuple[DescribedPending, ...] = ()
    type: str = "consumer"


class ListedGroup(NamedTuple):
    """``type``: "consumer" for a group of KIP-848, or "classic". A group that has only committed offsets is described
    as a classic group without a protocol type."""

    group_id: str
    state: enum.StrEnum
    members: int
    type: str = "consumer"
    protocol_type: str = "consumer"


class Move(NamedTuple):
    """One partition's move in a rebalance; "" as a member means no member. ``unread_ms``: milliseconds during which the
    partition had no reader, until the new reader confirmed its assignment. ``unread_ms`` is -1 if the time is not known
    (yet), if there is no new reader, or if there was no old reader."""

    topic_id: bytes
    topic: str
    partition: int
    from_member: str
    to_member: str
    unread_ms: int = -1


class Rebalance(NamedTuple):
    """One change of a group's target assignment. ``ended_ms``: when every member had reached its target; -1 if that has
    not happened, or if a later rebalance came first. ``moves`` has only the first moves of a very large rebalance;
    ``moved`` is the number of all moves."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: int
    moves: tuple[Move, ...]
    ended_ms: int = -1
