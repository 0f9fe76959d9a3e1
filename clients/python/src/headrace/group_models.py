"""Immutable values about consumer groups: members, offsets, lag, rebalances. The fields have the meaning of the fields
with the same names in groups.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

#: The states of a consumer group, as in Kafka (KIP-848). assigning: the coordinator computes the assignment;
#: reconciling: some members have not yet reached their assignment. In a group of Kafka's classic protocol,
#: preparing-rebalance: members join; completing-rebalance: the leader assigns.
GroupState = Literal[
    "empty", "assigning", "reconciling", "stable", "dead", "preparing-rebalance", "completing-rebalance"
]
GROUP_STATES: tuple[GroupState, ...] = get_args(GroupState)
#: "consumer" for a group of KIP-848, "classic" for one of Kafka's classic protocol, or a group that has only committed
#: offsets.
GroupType = Literal["consumer", "classic"]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group and the number of its members. A group that never had members, and to which only offsets are committed,
    is "empty". ``protocol_type``: "consumer", "connect" or another type; "" for a group that has only committed
    offsets."""

    group_id: str
    state: GroupState
    members: int
    type: GroupType = "consumer"
    protocol_type: str = "consumer"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``assigned``: partitions that the member may read; ``revoking``: partitions that it must
    release first; ``target``: its target assignment. ``topics`` and ``topic_regex`` are the member's subscription.
    ``instance_id`` is set for a static member (KIP-345). ``is_classic``: the member uses Kafka's classic protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    rack: str | None
    member_epoch: int
    topics: tuple[str, ...]
    topic_regex: str
    assigned: tuple[TopicPartition, ...]
    revoking: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] = ()
    is_classic: bool = False


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """An offset in an open transaction (KIP-447); it takes effect when the transaction is committed.
    ``transactional_id`` is empty if a Kafka broker wrote the offset; ``received_at_ms``: when the coordinator received
    it."""

    topic: str
    partition: int
    offset: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    received_at_ms: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, as its coordinator sees them (KIP-848). ``assignor``: "uniform", "range" or "sticky" (""
    before the first assignment). ``coordinator_address``: host:port of the coordinator ``coordinator_id``.
    ``pending_offsets``: the offsets of open transactions.

    If ``error`` is set (with ``raise_errors=False``), the other fields have no meaning.
    """

    group_id: str
    state: GroupState
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[MemberDescription, ...] = ()
    coordinator_id: int = -1
    coordinator_address: str = ""
    error: HeadraceError | None = None
    pending_offsets: tuple[PendingOffset, ...] = ()
    type: GroupType = "consumer"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition with a committed offset. A field is None until its value is known.

    ``lag``: records between ``committed_offset`` and ``high_watermark``; the high watermark is up to two seconds old.
    ``lag_ms``: age of the first unread record in ms. With ``lag_ms_is_at_least`` the age is only a lower bound, because
    the coordinator has not observed the partition long enough. ``records_lost``: records that were deleted before the
    group read them.

    ``status`` judges the recent commits by Burrow's rules: OK; WARN: the group commits, but its lag grows; STOP: no
    commits; STALL: commits without progress; REWIND: the committed offset went back. ``complete``: the part (0 to 1) of
    the window of commits that is filled; the window determines ``status``.
    """

    topic: str
    partition: int
    committed_offset: int
    commit_timestamp_ms: int
    high_watermark: int | None
    lag: int | None
    lag_ms: int | None
    lag_ms_is_at_least: bool
    records_lost: int
    status: str
    complete: float


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of one group. ``status`` summarizes the statuses of the group's partitions: OK, WARN, or ERR (a partition
    has STOP, STALL or REWIND). ``total_lag``: the sum of all lags that are known. ``error``: why the lag is unknown
    (with ``raise_errors=False``)."""

    group_id: str
    status: str
    total_lag: int
    partitions: tuple[PartitionLag, ...]
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that a rebalance moved from one member to another. ``from_member`` is None if no member owned the
    partition before, ``to_member`` if no member owns it after the rebalance. ``unread_ms``: how long the partition was
    not read, until its new owner reported that it reads; None: unknown, or the new owner has not reported yet."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    unread_ms: int | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of a group's target assignment. ``reason`` is a text for operators. ``moved`` has the first 200
    partitions that moved; ``moved_count`` counts all partitions that moved. ``ended_at_ms``: when every member had
    reached the new assignment; None: some members have not reached it, or a later rebalance came first."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: tuple[MovedPartition, ...]
    moved_count: int
    ended_at_ms: int | None
