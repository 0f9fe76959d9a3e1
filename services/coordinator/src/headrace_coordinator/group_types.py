"""The groups of a shard, of both types: KIP-848's groups (group/) and classic groups (classic/). Pure.

A group has one type at a time; a change of its type keeps the committed offsets.

    an empty group                a member of either type joins           it takes that type
    a classic group               a member of KIP-848 joins               it becomes one of KIP-848 (upgrade)
    a group of KIP-848            a classic member joins                  the member is one of both (classic_members.py)
    a group of KIP-848            its last member of KIP-848 leaves       it becomes a classic one (downgrade)

``group.consumer.migration.policy`` may forbid the upgrade and the downgrade. A classic group cannot change its type if
its members are not consumers, or if its assignor adds data to the assignments. A member of KIP-848 that joins a classic
group that cannot change its type gets GROUP_ID_NOT_FOUND, as in Kafka. A group of KIP-848 with only classic members
keeps its type if a downgrade is forbidden, or its records exceed one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from headrace_core.errors import GroupIdNotFoundError, HeadraceError

from .classic.consumer_protocol import CONSUMER
from .classic.groups import ClassicGroups
from .classic.messages import ClassicState, Join, LeaveClassic, LeavingMember, Left
from .classic.records import encode_value
from .classic.settings import ClassicSettings
from .classic.state import ClassicGroup
from .group.groups import Groups
from .group.messages import (
    JOIN_EPOCH,
    DescribeGroup,
    ExplainGroup,
    Heartbeat,
    ListedGroup,
    ListGroups,
    MembersRemoved,
    RemoveMembers,
)
from .group.settings import GroupSettings
from .group.turn import ATOMIC_BYTES_MAX
from .state_machine import ClockSet, Decision, RecordKind, ShardRecord, kind_of


class GroupsOfBothTypes:
    """A GroupStateMachine."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        classic: ClassicSettings | None = None,
        *,
        awaits_proof: bool = False,
    ) -> None:
        settings, classic = settings or GroupSettings(), classic or ClassicSettings()
        self._groups = Groups(settings, classic, awaits_proof=awaits_proof)
        self._classic = ClassicGroups(classic)
        self._record_bytes_max = classic.record_bytes_max
        self._may_upgrade = settings.migration_policy in ("upgrade", "bidirectional")
        self._may_downgrade = settings.migration_policy in ("downgrade", "bidirectional")

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        if kind_of(key) == RecordKind.CLASSIC_GROUP:
            self._classic.replay(key, value)
        else:
            self._groups.replay(key, value, timestamp_ms)

    def loaded(self, now_ms: int) -> Decision:
        self._classic.loaded(now_ms)
        return self._groups.loaded(now_ms)

    def handle(self, request: object, now_ms: int) -> Decision:
        if isinstance(request, ClockSet):
            self._classic.handle(request, now_ms)
            return self._groups.handle(request, now_ms)
        if self._classic.handles(request):
            return self._of_classic(request, now_ms)
        if isinstance(request, Heartbeat) and request.member_epoch == JOIN_EPOCH:
            return self._join_consumer(request, now_ms)
        if isinstance(request, RemoveMembers) and self._is_classic(request.group_id):
            members = tuple(LeavingMember(each, None, "an operator removed the member") for each in request.member_ids)
            decision = self._classic.handle(LeaveClassic(request.group_id, members), now_ms)
            assert isinstance(decision.reply, Left)
            return decision._replace(reply=MembersRemoved(decision.reply.errors))
        if isinstance(request, ListGroups):
            return self._list(request, now_ms)
        if isinstance(request, DescribeGroup):
            described = self._classic.described(request.group_id) if self._is_classic(request.group_id) else None
            if described is not None:
                return Decision(reply=described)
        if isinstance(request, ExplainGroup) and self._is_classic(request.group_id):
            return Decision(reply=())  # the members compute the assignments, so the coordinator knows no reasons
        return self._groups.handle(request, now_ms)

    def tick(self, now_ms: int) -> Decision:
        if self._groups.has_lost_consumers:
            return self._downgrade(now_ms)
        decision = self._groups.tick(now_ms)
        return decision if decision.records or decision.pushes else self._classic.tick(now_ms)

    def next_due_ms(self) -> int | None:
        if self._groups.has_lost_consumers:
            return 0  # at once
        due = [time for time in (self._groups.next_due_ms(), self._classic.next_due_ms()) if time is not None]
        return min(due, default=None)

    # -- a group changes its type -------------------------------------------------------------------------------------

    def _of_classic(self, request: Any, now_ms: int) -> Decision:
        if not self._groups.is_empty(request.group_id):
            return self._groups.handle(request, now_ms)
        decision = self._classic.handle(request, now_ms)
        if not (isinstance(request, Join) and self._groups.exists(request.group_id)):
            return decision
        erased = self._groups.delete(request.group_id)
        begun = self._classic.begin(request.group_id, now_ms)
        return decision._replace(
            records=erased.records + begun.records + decision.records, pushes=erased.pushes + decision.pushes
        )

    def _join_consumer(self, request: Heartbeat, now_ms: int) -> Decision:
        group = self._classic.get(request.group_id)
        if group is None:
            return self._groups.handle(request, now_ms)
        if group.members:
            return self._upgrade(group, request, now_ms)
        decision = self._groups.handle(request, now_ms)
        erased = self._classic.delete(request.group_id)
        return decision._replace(records=erased.records + decision.records)

    def _upgrade(self, group: ClassicGroup, request: Heartbeat, now_ms: int) -> Decision:
        """Change a classic group with members to KIP-848, because a member of KIP-848 joins."""
        group_id = group.group_id
        if not self._may_upgrade or group.protocol_type != CONSUMER:
            why = (
                f"of type {group.protocol_type!r}"
                if self._may_upgrade
                else "and group.consumer.migration.policy of the coordinators forbids an upgrade"
            )
            raise GroupIdNotFoundError(
                f"group {group_id!r} has members of the classic protocol, {why}, so no member of the new protocol "
                "(group.protocol=consumer) can join; stop its consumers first"
            )
        adopted = self._groups.adopt(group, now_ms)
        try:
            decision = self._groups.handle(request, now_ms)
            records = adopted.records + decision.records
            if (size := _size(records)) > ATOMIC_BYTES_MAX:
                raise GroupIdNotFoundError(
                    f"group {group_id!r} is too large to change to the new group protocol while it has members: its "
                    f"records would have {size} bytes, at most {ATOMIC_BYTES_MAX} are written at once; stop its "
                    "consumers first"
                )
        except HeadraceError:
            self._groups.disown(group_id)
            raise
        erased = self._classic.hand_over(group_id, now_ms)
        return Decision(erased.records + records, decision.reply, erased.pushes + decision.pushes)

    def _downgrade(self, now_ms: int) -> Decision:
        """Change a group back to the classic type after its last member of KIP-848 has left. Guard: a downgrade is one
        atomic decision. If only a part of its records were written, the partitions of missing members would be assigned
        again while the missing members still read them."""
        group_id = self._groups.left_to_classic()
        if group_id is None or not self._may_downgrade:
            return Decision()
        group = self._groups.as_classic(group_id, now_ms)
        size = len(encode_value(group.record())) + self._groups.erased_bytes(group_id)
        if size > min(ATOMIC_BYTES_MAX, self._record_bytes_max):
            return Decision()
        erased = self._groups.hand_over(group_id)
        taken = self._classic.take_over(group, now_ms)
        return Decision(erased.records + taken.records, None, taken.pushes)

    # -- queries ------------------------------------------------------------------------------------------------------

    def _is_classic(self, group_id: str) -> bool:
        group = self._classic.get(group_id)
        return group is not None and (group.has_record or bool(group.members))

    def _list(self, request: ListGroups, now_ms: int) -> Decision:
        decision = self._groups.handle(request, now_ms)
        classic = tuple(
            ListedGroup(group.group_id, group.state, len(group.members), "classic", group.protocol_type)
            for group in self._classic.groups()
            if (group.has_record or group.members) and (not request.states or group.state in request.states)
        )
        assert isinstance(decision.reply, tuple)
        return decision._replace(reply=decision.reply + classic)

    def exists(self, group_id: str) -> bool:
        return self._is_classic(group_id) or self._groups.exists(group_id)

    def is_empty(self, group_id: str) -> bool:
        group = self._classic.get(group_id)
        if group is not None and (group.members or group.pending):
            return False
        return self._groups.is_empty(group_id)

    def empty_since_ms(self, group_id: str) -> int | None:
        group = self._classic.get(group_id)
        if group is not None and group.has_record:
            # A group whose members have all left during its first rebalance is in PREPARING_REBALANCE.
            return group.state_ms if not group.members and group.state_ms >= 0 else None
        return self._groups.empty_since_ms(group_id)

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        return self._classic.subscribed(group_id, topics) | self._groups.subscribed(group_id, topics)

    def is_joining(self, group_id: str) -> bool:
        group = self._classic.get(group_id)
        return group is not None and bool(group.members or group.pending) and group.state is not ClassicState.STABLE

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
        """Raise an error unless the member may commit offsets. For a classic group, ``member_epoch`` is the
        generation."""
        if self._is_classic(group_id):
            self._classic.check_commit(group_id, member_id, member_epoch, instance_id, in_transaction=in_transaction)
        else:
            self._groups.check_commit(group_id, member_id, member_epoch, instance_id, partitions)

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Called when a member has committed offsets, outside of transactions."""
        if self._is_classic(group_id):
            self._classic.committed(group_id, member_id, now_ms)
        else:
            self._groups.committed(group_id, member_id, now_ms)

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Raise an error unless the member may fetch offsets. Offset fetches of classic members are not checked, as in
        Kafka."""
        if not self._is_classic(group_id):
            self._groups.check_fetch(group_id, member_id, member_epoch)

    def group_ids(self) -> tuple[str, ...]:
        return self._groups.group_ids() + self._classic.group_ids()

    def delete(self, group_id: str) -> Decision:
        return self._classic.delete(group_id) if self._is_classic(group_id) else self._groups.delete(group_id)


def _size(records: Iterable[ShardRecord]) -> int:
    return sum(len(record.key) + len(record.value or b"") for record in records)
