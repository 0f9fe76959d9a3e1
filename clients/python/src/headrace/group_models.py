"""The frozen values that tell about consumer groups: members, offsets, lag, rebalances. Shapes as in groups.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

#: Kafka's states of a consumer group (KIP-848). assigning: the assignment is being computed; reconciling: not
#: every member has arrived at it.
GroupState = Literal["empty", "assigning", "reconciling", "stable", "dead"]
GROUP_STATES: tuple[GroupState, ...] = ("empty", "assigning", "reconciling", "stable", "dead")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group and how many members it has. One that only ever committed offsets is "empty" from the first day."""

    group_id: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. ``assigned``: what it may read now; ``revoking``: what it must let go first; ``target``:
    the target assignment. ``topics``, ``topic_regex``: what it subscribes to. ``instance_id``: of a static one.
    """

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
    """A group and its members, as its coordinator sees them (KIP-848). ``assignor``: who shares out: uniform, range or
    sticky ("" while nobody ever has). ``coordinator_address``: host:port of ``coordinator_id``.

    ``error``: why nothing is known of it (``raise_errors=False``), and then all else says nothing."""

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
    """How far a group is behind in a partition that it has committed an offset of; None: not known yet.

    ``lag``: records between ``committed_offset`` and ``high_watermark``, which is up to two seconds old. ``lag_ms``:
    how long the first record that is not read has been waiting; with ``lag_ms_is_at_least`` that or longer, for nobody
    has watched for so long. ``records_lost``: deleted before they were read.

    ``status`` is Burrow's judgement of the last commits: OK; WARN: works, and falls behind; STOP: commits no more;
    STALL: commits, and its offset does not move; REWIND: its offset went back. ``complete``: the part of the window of
    commits that the judgement rests on which is filled, 0 to 1.
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
    """A group's lag. ``status``: the worst of its partitions: OK, WARN, or ERR (one has stopped, stalled or gone back).
    ``total_lag``: the sum of what is known. ``error``: why nothing is known of it (``raise_errors=False``)."""

    group_id: str
    status: str
    total_lag: int
    partitions: tuple[PartitionLag, ...]
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that a rebalance took from a member (None: nobody had it) and gave to another (None: nobody).
    ``unread_ms``: how long nobody read it, until the new reader said that it does; None: not known (yet)."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None
    unread_ms: int | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of who shall read what. ``reason`` is for people. ``moved`` has the first 200 moves, ``moved_count``
    counts all. ``ended_at_ms``: when every member had arrived; None: not yet, or the next rebalance came before."""

    number: int
    at_ms: int
    group_epoch: int
    reason: str
    moved: tuple[MovedPartition, ...]
    moved_count: int
    ended_at_ms: int | None
