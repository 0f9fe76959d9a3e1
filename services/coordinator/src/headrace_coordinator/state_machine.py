"""The interface between a shard's runtime and its state machine. Pure.

A shard is a partition of ``__consumer_offsets``; its state machine is a function of that log: **decide, append, reply**
(Kafka: CoordinatorRuntime and CoordinatorShard).

    replay(key, value, timestamp)    a record of the log, in its order
    loaded(now)                      the end of the replay; sessions of all members begin again
    handle(request, now) -> Decision records to append, the reply, pushes; applied to memory already
    tick(now) -> Decision            what time demands
    next_due_ms()                    when to tick again

``handle`` and ``tick`` apply their decisions through the functions that ``replay`` uses, so a replay of the log gives
the same state. The runtime sends no reply and no push before the records of that decision, and of all decisions before
it, are committed. When an append fails, the runtime drops the state machine and replays the log into a new one, so
nothing here needs to be rolled back.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol


class RecordKind(enum.IntEnum):
    """The first two bytes of a key, big-endian. 0 to 3 are Kafka's; its readers skip unknown kinds."""

    #: A key of an offset commit from before Kafka 0.8.2; its body has the format of OFFSET_COMMIT.
    OLD_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    CLASSIC_GROUP = 2  #: A group of Kafka's classic protocol, which Headrace neither writes nor reads.
    CLAIM = 1000
    GROUP = 1001
    MEMBER = 1002
    TARGET_ASSIGNMENT = 1003
    CURRENT_ASSIGNMENT = 1004
    STORY = 1005


def kind_of(key: bytes) -> int:
    """A key's kind, or -1 when it is too short."""
    return int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1


class ShardRecord(NamedTuple):
    """A record of ``__consumer_offsets``. ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None


class ClockSet(NamedTuple):
    """From the runtime: the wall clock was set by ``by_ms``, forward or (negative) back. No time has passed."""

    by_ms: int


class OwnershipAsked(NamedTuple):
    """From the runtime: from now on the metadata is queried for the shard's owner."""

    number: int


class OwnershipProven(NamedTuple):
    """The answer: it was this owner's, under its epoch, at the query of this number."""

    number: int


class Push(NamedTuple):
    """A message for a member's stream, if it is connected, without a request."""

    group_id: str
    member_id: str
    message: object


class Decision(NamedTuple):
    """Records to append together or not at all; the reply, and the messages for others (groups: ``Push``), which are
    sent once the records are committed.

    ``is_atomic`` False: each record is valid by itself (tombstones of a group with many offsets), so that they may be
    cut into as many batches as a large decision needs. An atomic decision always fits into one.
    """

    records: tuple[ShardRecord, ...] = ()
    reply: object = None
    pushes: tuple[Any, ...] = ()
    is_atomic: bool = True


class StateMachine(Protocol):
    """One shard's state. Single-threaded; times are milliseconds of the wall clock, which may jump.

    ``handle`` raises a HeadraceError to refuse a request, and has changed nothing then. Any other exception is a bug,
    and the state is not used afterwards.
    """

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None: ...

    def loaded(self, now_ms: int) -> Decision: ...

    def handle(self, request: object, now_ms: int) -> Decision: ...

    def tick(self, now_ms: int) -> Decision: ...

    def next_due_ms(self) -> int | None: ...


class GroupStateMachine(StateMachine, Protocol):
    """The groups of a shard, as the shard's state (shard_state_machine.py) uses them beside the offsets.

    ``replay`` gets only records of kinds GROUP to STORY. A group with offsets only (of a plain consumer) counts here as
    one that does not exist.
    """

    def exists(self, group_id: str) -> bool:
        """Whether a group of this name exists, with or without members."""

    def is_empty(self, group_id: str) -> bool:
        """Whether it has no members. True for a group that does not exist."""

    def empty_since_ms(self, group_id: str) -> int | None:
        """When the last member left, by its record; None while it has members or does not exist."""

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Whether a member of the group subscribes to the topic, by name or by pattern."""

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        partitions: Iterable[tuple[str, int]] | None = None,
    ) -> None:
        """Raise UnknownMemberIdError, StaleMemberEpochError or FencedInstanceIdError unless this member may commit
        offsets of these partitions (topic, number).

        A negative epoch is an admin's or a plain consumer's, and is valid while the group has no members. An older
        epoch than the member's may still commit what it has had since then (KIP-1251), if the partitions are named.
        """

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Check that this member may fetch offsets. A negative epoch without a member id always may."""

    def group_ids(self) -> tuple[str, ...]:
        """All groups that have a record."""

    def delete(self, group_id: str) -> Decision:
        """Tombstones for all records of the group, applied; NonEmptyGroupError, GroupIdNotFoundError."""
