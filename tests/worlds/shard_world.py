"""Shards of a coordinator in memory: one that decides nothing, for tests of the runner; and one with the offsets of
groups whose states the test sets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from headrace_coordinator.offsets.logic import OffsetSettings, OffsetsLogic
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    EndOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
)
from headrace_coordinator.offsets.pending import Verification
from headrace_coordinator.state_machine import Decision, RecordKind, ShardRecord
from headrace_core.errors import (
    GroupIdNotFoundError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000


@dataclass
class Group:
    """``members`` maps member ids to member epochs. ``empty_since_ms`` counts while the group has no members."""

    members: dict[str, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    empty_since_ms: int = 0
    is_joining: bool = False


class GroupsByHand:
    """Replaces GroupStateMachine; the test sets its groups."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.replayed: list[tuple[bytes, bytes | None, int]] = []
        self.handled: list[object] = []
        self.due_ms: int | None = None
        self.asked_about: Iterable[tuple[str, int]] | None = None

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        self.replayed.append((key, value, timestamp_ms))

    def loaded(self, now_ms: int) -> Decision:
        return Decision((ShardRecord(b"loaded", b""),))

    def handle(self, request: object, now_ms: int) -> Decision:
        self.handled.append(request)
        return Decision(reply="by the groups")

    def tick(self, now_ms: int) -> Decision:
        return Decision((ShardRecord(b"ticked", b""),))

    def next_due_ms(self) -> int | None:
        return self.due_ms

    def exists(self, group_id: str) -> bool:
        return group_id in self.groups

    def is_empty(self, group_id: str) -> bool:
        return group_id not in self.groups or not self.groups[group_id].members

    def empty_since_ms(self, group_id: str) -> int | None:
        group = self.groups.get(group_id)
        return group.empty_since_ms if group is not None and not group.members else None

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        return topics & set(self.groups[group_id].topics) if group_id in self.groups else set()

    def is_joining(self, group_id: str) -> bool:
        return group_id in self.groups and self.groups[group_id].is_joining

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
        self.asked_about = partitions
        members = self.groups[group_id].members
        if member_epoch < 0 and not members:
            return
        if member_id not in members:
            raise UnknownMemberIdError(f"no member {member_id!r} in {group_id!r}")
        if members[member_id] != member_epoch:
            raise StaleMemberEpochError(f"{member_id!r} is at epoch {members[member_id]}, not {member_epoch}")

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None: ...

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        if member_epoch >= 0 or member_id:
            self.check_commit(group_id, member_id, member_epoch, None)

    def group_ids(self) -> tuple[str, ...]:
        return tuple(self.groups)

    def delete(self, group_id: str) -> Decision:
        if group_id not in self.groups:
            raise GroupIdNotFoundError(group_id)
        if self.groups[group_id].members:
            raise NonEmptyGroupError(group_id)
        del self.groups[group_id]
        key = int(RecordKind.GROUP).to_bytes(2, "big") + group_id.encode()
        return Decision((ShardRecord(key, None),))


class OffsetsWorld:
    """The offsets of one shard; all records are kept, and ``successor`` replays them."""

    def __init__(self, settings: OffsetSettings | None = None) -> None:
        self.groups = GroupsByHand()
        self.settings = settings or OffsetSettings()
        self.logic = OffsetsLogic(self.groups, self.settings)
        self.logic.started(NOW_MS)
        self.log: list[ShardRecord] = []

    def commit(self, group_id: str, *offsets: OffsetToCommit, now_ms: int = NOW_MS, **who: object) -> Decision:
        decision = self.logic.commit(CommitOffsets(group_id, offsets, **who), now_ms)  # type: ignore[arg-type]
        self.log += decision.records
        return decision

    def send(
        self,
        group_id: str,
        *offsets: OffsetToCommit,
        producer: tuple[int, int] = (7, 3),
        sequence: int = 0,
        commit_sequence: int = 0,
        coordinator_epoch: int = 5,
        now_ms: int = NOW_MS,
        **who: object,
    ) -> Decision:
        """Add offsets to the open transaction of a producer (id, epoch); the verification is confirmed at once."""
        request = CommitTransactionOffsets(
            CommitOffsets(group_id, offsets, sequence=commit_sequence, **who),  # type: ignore[arg-type]
            "payments",
            *producer,
            sequence,
        )
        verification = self.logic.commit_in_transaction(request, now_ms).reply
        assert isinstance(verification, Verification)
        request = request._replace(verification=verification, coordinator_epoch=coordinator_epoch)
        decision = self.logic.commit_in_transaction(request, now_ms)
        self.log += decision.records
        return decision

    def end(
        self,
        producer: tuple[int, int] = (7, 4),
        *,
        commit: bool,
        version: int = 2,
        coordinator_epoch: int = 5,
        now_ms: int = NOW_MS,
    ) -> Decision:
        """Send the marker of a transaction; under version 2 its epoch is above the transaction's epoch."""
        decision = self.logic.end_transaction(EndOffsets(*producer, commit, version, coordinator_epoch), now_ms)
        self.log += decision.records
        return decision

    def fetch(self, group_id: str, *, now_ms: int = NOW_MS, **how: object) -> dict[tuple[str, int], FetchedOffset]:
        reply = self.logic.fetch(FetchOffsets(group_id, **how), now_ms).reply  # type: ignore[arg-type]
        return {(one.topic, one.partition): one for one in reply.offsets}  # type: ignore[attr-defined]

    def expire(self, now_ms: int) -> tuple[str, ...]:
        records, groups = self.logic.tick(now_ms)
        self.log += records
        return groups

    def successor(self, now_ms: int = NOW_MS) -> OffsetsLogic:
        """A new coordinator of the shard, which has replayed the log."""
        logic = OffsetsLogic(self.groups, self.settings)
        for key, value in self.log:
            logic.replay(key, value)
        logic.started(now_ms)
        return logic


class IdleMachine:
    """A state machine that only records its requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None: ...

    def loaded(self, now_ms: int) -> Decision:
        return Decision()

    def handle(self, request: Any, now_ms: int) -> Decision:
        self.asked.append(request)
        return Decision()

    def tick(self, now_ms: int) -> Decision:
        return Decision()

    def next_due_ms(self) -> int | None:
        return None


class EmptyLog:
    async def append(self, batches: Any, expected_end: int) -> int:
        return 0

    async def read(self, end: int, take: Any) -> None: ...


class GrowingLog(EmptyLog):
    """A log that only counts its records."""

    def __init__(self) -> None:
        self.end = 0

    async def append(self, batches: Any, expected_end: int) -> int:
        base, self.end = self.end, self.end + sum(map(len, batches))
        return base
