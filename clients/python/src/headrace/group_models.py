"""Frozen values about consumer groups: members, offsets, lag, rebalances. Fields as in groups.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

#: Kafka's states of a consumer group (KIP-848). assigning: the assignment is being computed; reconciling: some members
#: have not yet reached it.
GroupState = Literal["empty", "assigning", "reconciling", "stable", "dead"]
GROUP_STATES: tuple[GroupState, ...] = ("empty", "assigning", "reconciling", "stable", "dead")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group and its member count. A group that only commits offsets and never had members is "empty"."""

    group_id: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``assigned``: partitions it may read; ``revoking``: partitions it must release first;
    ``target``: the target assignment. ``topics``, ``topic_regex``: its subscription. ``instance_id``: of a static
    member (KIP-345)."""

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


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, as its coordinator sees them (KIP-848). ``assignor``: uniform, range or sticky (""
    before the first assignment). ``coordinator_address``: host:port of ``coordinator_id``.

    With an ``error`` (``raise_errors=False``) the other fields have no meaning.
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


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of a group in a partition with a committed offset; None: not known yet.

    ``lag``: records between ``committed_offset`` and ``high_watermark``, which is up to two seconds old. ``lag_ms``:
    age of the first unread record; a lower bound if ``lag_ms_is_at_least``, because the coordinator has not observed it
    that long. ``records_lost``: records deleted unread.

    ``status`` is Burrow's judgement of recent commits: OK; WARN: commits, but falls behind; STOP: no commits; STALL:
    commits without progress; REWIND: the offset went back. ``complete``: filled part of the window of commits, 0 to 1.
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
    """The lag of a group. ``status``: the worst of its partitions: OK, WARN, or ERR (STOP, STALL or REWIND).
    ``total_lag``: the sum of the known ones. ``error``: why the lag is unknown (``raise_errors=False``)."""

    group_id: str
    status: str
    total_lag: int
    partitions: tuple[PartitionLag, ...]
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that a rebalance moved from one member to another (None: no owner). ``unread_ms``: time until the new
    owner reported that it reads; None: unknown (yet)."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    unread_ms: int | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of a group's target assignment. ``reason`` is text for people. ``moved`` has the first 200 moves,
    ``moved_count`` counts all. ``ended_at_ms``: when every member had reached it; None: not yet, or superseded."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: tuple[MovedPartition, ...]
    moved_count: int
    ended_at_ms: int | None
