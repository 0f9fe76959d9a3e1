"""The interface between a shard's runtime and its state machine. Pure.

A shard is a partition of ``__consumer_offsets`` or ``__transaction_state``, and its state machine is a function of the
records in it. The state machine decides, the runtime appends and replies (Kafka: CoordinatorRuntime and
CoordinatorShard).

    replay(key, value, timestamp)    a record of the log, in its order
    loaded(now)                      the end of the replay; sessions of all members begin again
    handle(request, now) -> Decision records to append, the reply, pushes; applied to memory already
    tick(now) -> Decision            the work that is due by time; without a proof of ownership (OwnershipProven), only
                                     the work that needs none
    next_due_ms()                    when to tick again

``handle`` and ``tick`` apply their decisions through the functions that ``replay`` uses, so a replay of the log gives
the same state. The runtime sends a reply or a push when the records of its decision, and of all earlier decisions, are
committed. A state machine never rolls back: when an append fails, the runtime drops the state machine and replays the
log into a new state machine.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from typing import Any, NamedTuple, Protocol


class RecordKind(enum.IntEnum):
    """The kind of a record: the first two bytes of its key, big-endian. Kinds 0 to 3 are Kafka's; Kafka's readers skip
    unknown kinds."""

    #: A key of an offset commit from before Kafka 0.8.2; the body has the format of OFFSET_COMMIT.
    OLD_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    CLASSIC_GROUP = 2  #: A group of Kafka's classic protocol, in Kafka's bytes.
    CLAIM = 1000
    GROUP = 1001
    MEMBER = 1002
    TARGET_ASSIGNMENT = 1003
    CURRENT_ASSIGNMENT = 1004
    STORY = 1005
    PENDING_OFFSETS = 1006
    SINK = 1010


def kind_of(key: bytes) -> int:
    """The kind of a key; -1 if the key is too short."""
    return int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1


class ShardRecord(NamedTuple):
    """A record of a shard's partition. A ``value`` of None is a tombstone."""

    key: bytes
    value: bytes | None


class ClockSet(NamedTuple):
    """A message from the runtime: the wall clock was set by ``by_ms``, forward or (if negative) back. While the wall
    clock is set, no real time passes."""

    by_ms: int


class OwnershipAsked(NamedTuple):
    """A message from the runtime: the runtime now asks the metadata for the shard's owner."""

    number: int


class OwnershipProven(NamedTuple):
    """A message from the runtime: this coordinator owned the shard, under its epoch, when it made the query with this
    number."""

    number: int


class Push(NamedTuple):
    """A message for a member's stream, sent without a request if the member is connected."""

    group_id: str
    member_id: str
    message: object


class Decision(NamedTuple):
    """Records that are appended together or not at all, the reply, and messages for other receivers (groups: ``Push``,
    transactions: ``WriteMarkers`` and ``TransactionEnded``).
    The reply and the messages of a decision are sent when its records are committed.

    ``is_atomic`` False: each record is valid by itself, such as a tombstone of a group with many offsets. The records
    of a decision that is not atomic may be split into several batches. The records of an atomic decision always fit
    into one batch.
    """

    records: tuple[ShardRecord, ...] = ()
    reply: object = None
    pushes: tuple[Any, ...] = ()
    is_atomic: bool = True


class StateMachine(Protocol):
    """One shard's state. Not thread-safe; times are milliseconds of the wall clock, which may jump.

    ``handle`` raises a HeadraceError to refuse a request, before any change. Any exception that is no HeadraceError is
    a bug, after which the state machine is not used any more.
    """

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None: ...

    def loaded(self, now_ms: int) -> Decision: ...

    def handle(self, request: object, now_ms: int) -> Decision: ...

    def tick(self, now_ms: int) -> Decision: ...

    def next_due_ms(self) -> int | None: ...


class GroupStateMachine(StateMachine, Protocol):
    """The groups in a shard's state; shard_state_machine.py combines the groups with the offsets.

    ``replay`` gets only records of kinds CLASSIC_GROUP and GROUP to STORY. For this interface, a group that only has
    offsets (of a plain consumer) does not exist.
    """

    def exists(self, group_id: str) -> bool:
        """Whether a group with the id exists, with or without members."""

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members. The result is True for a group that does not exist."""

    def empty_since_ms(self, group_id: str) -> int | None:
        """The time when the group's last member left, according to its record; None while the group has members or does
        not exist."""

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        """Those of the topics to which a member of the group subscribes, by name or by pattern."""

    def is_joining(self, group_id: str) -> bool:
        """Whether members of the group are joining by the classic protocol, so that their subscriptions may change."""

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Raise UnknownMemberIdError, StaleMemberEpochError or FencedInstanceIdError unless the member may commit
        offsets of ``partitions`` (topic, number). ``in_transaction``: the offsets belong to a transaction.

        A negative epoch belongs to an admin's or a plain consumer's commit, which is valid while the group has no
        members. With an epoch below its current epoch, a member may still commit partitions that it has owned since the
        lower epoch (KIP-1251). A request with an older epoch must name the partitions.
        """

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Called when ``check_commit`` has allowed a member's commit, outside of transactions. For a member of the
        classic protocol, a commit counts as a heartbeat."""

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Raise an error unless the member may fetch offsets. A request to fetch offsets with a negative epoch and
        without a member id is always allowed."""

    def group_ids(self) -> tuple[str, ...]:
        """Ids of all groups that have a record."""

    def delete(self, group_id: str) -> Decision:
        """Delete the group; returns tombstones, already applied, for all of its records. Raises NonEmptyGroupError and
        GroupIdNotFoundError."""
