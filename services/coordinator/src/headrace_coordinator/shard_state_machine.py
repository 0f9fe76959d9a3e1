"""The state machine of a group shard, with its groups and their offsets. Pure.

    a record, by its kind    0 1 1006 -> offsets; 2, 1001 to 1005 -> groups; others are skipped: the runtime
                             handles the claim, and only Kafka uses 3
    a request, by its type   those in _BY_TYPE are decided here; all others by the groups

The shard's state machine combines groups and offsets: removing a group removes its offsets, and removing a topic
removes its offsets in all groups. Groups that only have offsets (of a consumer that assigns partitions to itself) have
no group record, and are listed as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from headrace_core.errors import GroupIdNotFoundError
from headrace_core.types import TopicPartition

from .group.messages import (
    DescribedGroup,
    DescribeGroup,
    ExplainGroup,
    GroupState,
    ListedGroup,
    ListGroups,
    TopicsChanged,
)
from .offsets.logic import Committers, OffsetSettings, OffsetsLogic
from .offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeLag,
    EndOffsets,
    FetchOffsets,
    GroupLag,
    VerificationFailed,
    WatermarksSeen,
)
from .state_machine import ClockSet, Decision, GroupStateMachine, Push, RecordKind, StateMachine, kind_of

_OFFSET_KINDS = (RecordKind.OLD_OFFSET_COMMIT, RecordKind.OFFSET_COMMIT, RecordKind.PENDING_OFFSETS)
_GROUP_KINDS = (
    RecordKind.CLASSIC_GROUP,
    RecordKind.GROUP,
    RecordKind.MEMBER,
    RecordKind.TARGET_ASSIGNMENT,
    RecordKind.CURRENT_ASSIGNMENT,
    RecordKind.STORY,
)


class ShardStateMachine:
    """A StateMachine. ``groups``: the state machine for groups, at the same log position as the offsets."""

    def __init__(
        self,
        groups: GroupStateMachine,
        settings: OffsetSettings | None = None,
        committers: Committers | None = None,
    ) -> None:
        self._groups = groups
        self._offsets = OffsetsLogic(groups, settings or OffsetSettings(), committers)

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Apply a record of the log. Raises CorruptLogError and UnsupportedVersionError if this version cannot serve
        the shard."""
        kind = kind_of(key)
        if kind in _OFFSET_KINDS:
            self._offsets.replay(key, value)
        elif kind in _GROUP_KINDS:
            self._groups.replay(key, value, timestamp_ms)

    def loaded(self, now_ms: int) -> Decision:
        self._offsets.started(now_ms)
        return self._groups.loaded(now_ms)

    def handle(self, request: object, now_ms: int) -> Decision:
        self._offsets.check_clock(now_ms)
        rule = _BY_TYPE.get(type(request))
        return rule(self, request, now_ms) if rule is not None else self._groups.handle(request, now_ms)

    def tick(self, now_ms: int) -> Decision:
        """``tick`` processes the members' timeouts first. Expired offsets are removed in a tick in which the groups
        decide nothing. Groups and offsets need separate ticks, because a decision of the groups must be atomic, and
        tombstones may be too many for one batch."""
        decision = self._groups.tick(now_ms)
        if decision.records or decision.pushes:
            return decision
        records, gone = self._offsets.tick(now_ms)
        pushes: tuple[Push, ...] = ()
        for group_id in gone:
            deleted = self._groups.delete(group_id)
            records += deleted.records
            pushes += deleted.pushes
        return Decision(records, None, pushes, is_atomic=False)

    def next_due_ms(self) -> int | None:
        due = [time for time in (self._groups.next_due_ms(), self._offsets.next_due_ms()) if time is not None]
        return min(due, default=None)

    def watched_partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions whose high watermarks are needed for the groups' lag (WatermarksSeen)."""
        return self._offsets.lags.watched()

    def listed(self, now_ms: int) -> tuple[ListedGroup, ...]:
        """Every group of the shard, for the metrics; changes nothing."""
        found = self._list(ListGroups(()), now_ms).reply
        assert isinstance(found, tuple)
        return found

    def committed_count(self, group_id: str) -> int:
        """Number of partitions in which the group has committed an offset."""
        return len(self._offsets.book.of(group_id))

    def lag_of(self, group_id: str, now_ms: int) -> GroupLag | None:
        """The lag of a group, for the metrics; None if the group has no committed offset. Changes nothing."""
        committed = self._offsets.book.of(group_id)
        return self._offsets.lags.describe(group_id, committed, now_ms) if committed else None

    def _delete_group(self, request: DeleteGroup) -> Decision:
        """Raises NonEmptyGroupError and GroupIdNotFoundError, without a change."""
        group_id = request.group_id
        if self._groups.exists(group_id):
            deleted = self._groups.delete(group_id)
        elif self._offsets.book.has(group_id):
            deleted = Decision()
        else:
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")
        # Remove the offsets before the group: if a crash loses the group's own records, a client can delete the group
        # again.
        records = self._offsets.remove_group(group_id) + deleted.records
        return Decision(records, None, deleted.pushes, is_atomic=False)

    def _clock_set(self, request: ClockSet, now_ms: int) -> Decision:
        self._offsets.clock_set(request.by_ms)
        return self._groups.handle(request, now_ms)

    def _topics_changed(self, request: TopicsChanged, now_ms: int) -> Decision:
        decision = self._groups.handle(request, now_ms)
        self._offsets.topics_changed(request)
        return decision

    def _has_offsets_only(self, group_id: str) -> bool:
        return not self._groups.exists(group_id) and self._offsets.book.has(group_id)

    def _list(self, request: ListGroups, now_ms: int) -> Decision:
        decision = self._groups.handle(request, now_ms)
        if request.states and GroupState.EMPTY not in request.states:
            return decision
        plain = tuple(
            ListedGroup(group_id, GroupState.EMPTY, 0, "classic", "")
            for group_id in self._offsets.book.group_ids()
            if not self._groups.exists(group_id)
        )
        assert isinstance(decision.reply, tuple)
        return decision._replace(reply=decision.reply + plain)

    def _describe(self, request: DescribeGroup, now_ms: int) -> Decision:
        if self._has_offsets_only(request.group_id):
            decision = Decision(reply=DescribedGroup(request.group_id, GroupState.EMPTY, 0, 0, "", (), type="classic"))
        else:
            decision = self._groups.handle(request, now_ms)
        pending = self._offsets.pending(request.group_id)
        if not pending:
            return decision
        if not isinstance(decision.reply, DescribedGroup):  # a classic group, whose description has no pending offsets
            return decision
        return decision._replace(reply=decision.reply._replace(pending=pending))

    def _explain(self, request: ExplainGroup, now_ms: int) -> Decision:
        if self._has_offsets_only(request.group_id):
            return Decision(reply=())  # a group of this kind never had an assignment
        return self._groups.handle(request, now_ms)


_BY_TYPE: dict[type, Callable[[ShardStateMachine, Any, int], Decision]] = {
    CommitOffsets: lambda state, request, now_ms: state._offsets.commit(request, now_ms),
    CommitTransactionOffsets: lambda state, request, now_ms: state._offsets.commit_in_transaction(request, now_ms),
    VerificationFailed: lambda state, request, _: state._offsets.verification_failed(request),
    EndOffsets: lambda state, request, now_ms: state._offsets.end_transaction(request, now_ms),
    FetchOffsets: lambda state, request, now_ms: state._offsets.fetch(request, now_ms),
    DeleteOffsets: lambda state, request, _: state._offsets.delete(request),
    WatermarksSeen: lambda state, request, now_ms: state._offsets.watermarks_seen(request, now_ms),
    DescribeLag: lambda state, request, now_ms: state._offsets.describe_lag(request, now_ms),
    DeleteGroup: lambda state, request, _: state._delete_group(request),
    ClockSet: lambda state, request, now_ms: state._clock_set(request, now_ms),
    TopicsChanged: lambda state, request, now_ms: state._topics_changed(request, now_ms),
    ListGroups: lambda state, request, now_ms: state._list(request, now_ms),
    DescribeGroup: lambda state, request, now_ms: state._describe(request, now_ms),
    ExplainGroup: lambda state, request, now_ms: state._explain(request, now_ms),
}


def state_machines(new_groups: Callable[[], GroupStateMachine], settings: OffsetSettings) -> Callable[[], StateMachine]:
    """Return what makes the state machines of a shard, one after the other. They share the numbers of the last commits,
    because late attempts still reach this coordinator after it has loaded the shard again."""
    committers: Committers = OrderedDict()
    return lambda: ShardStateMachine(new_groups(), settings, committers)
