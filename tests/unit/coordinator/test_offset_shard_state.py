"""One shard's groups and offsets together: routing, and atomic decisions."""

from __future__ import annotations

import pytest

from headrace_coordinator.group.messages import (
    DescribedGroup,
    DescribeGroup,
    ExplainGroup,
    GroupState,
    Heartbeat,
    ListedGroup,
    ListGroups,
    Topic,
    TopicsChanged,
)
from headrace_coordinator.offsets.codec import CommittedOffset, encode_key, encode_value
from headrace_coordinator.offsets.logic import NAMESAKE_AGE_MS
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeLag,
    FetchOffsets,
    OffsetToCommit,
    PartitionEnd,
    WatermarksSeen,
)
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import ClockSet, Decision, RecordKind, ShardRecord, StateMachine
from headrace_core.errors import GroupIdNotFoundError, NonEmptyGroupError
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import DAY_MS, NOW_MS, Group, GroupsByHand

CHECK_MS = 600_000


class _QuietGroups(GroupsByHand):
    """Groups that make no decisions of their own, and return an empty list for ListGroups."""

    def tick(self, now_ms: int) -> Decision:
        return Decision()

    def handle(self, request: object, now_ms: int) -> Decision:
        self.handled.append(request)
        return Decision(reply=() if isinstance(request, ListGroups) else "by the groups")


class Shard:
    def __init__(self, groups: GroupsByHand | None = None) -> None:
        self.groups = groups or _QuietGroups()
        self.state: StateMachine = ShardStateMachine(self.groups)
        self.state.loaded(NOW_MS)
        self.log: list[ShardRecord] = []

    def ask(self, request: object, now_ms: int = NOW_MS) -> Decision:
        return self._kept(self.state.handle(request, now_ms))

    def tick(self, now_ms: int) -> Decision:
        return self._kept(self.state.tick(now_ms))

    def _kept(self, decision: Decision) -> Decision:
        self.log += decision.records
        return decision

    def commit(self, group_id: str, *partitions: int) -> None:
        self.ask(CommitOffsets(group_id, tuple(OffsetToCommit("t", number, 1) for number in partitions)))

    def committed_long_ago(self, group_id: str, *partitions: int) -> None:
        """Committed offsets that the former owner of the shard wrote eight days ago."""
        value = encode_value(CommittedOffset(1, commit_timestamp_ms=NOW_MS - 8 * DAY_MS))
        for number in partitions:
            self.state.replay(encode_key(group_id, TopicPartition("t", number)), value, NOW_MS - 8 * DAY_MS)

    def offsets(self, group_id: str) -> list[int]:
        return [one.partition for one in self.ask(FetchOffsets(group_id)).reply.offsets]  # type: ignore[attr-defined]


def _key(kind: int, rest: bytes = b"x") -> bytes:
    return kind.to_bytes(2, "big") + rest


def test_each_record_goes_to_whom_it_belongs() -> None:
    shard = Shard()
    offset = encode_value(CommittedOffset(5))
    shard.state.replay(encode_key("g", TopicPartition("t", 0)), offset, 1)
    shard.state.replay(_key(0, encode_key("g", TopicPartition("t", 1))[2:]), offset, 2)
    for kind in (RecordKind.CLASSIC_GROUP, RecordKind.GROUP, RecordKind.MEMBER, RecordKind.STORY):
        shard.state.replay(_key(kind), b"value", 3)
    for key in (_key(RecordKind.CLAIM), _key(3), _key(1_007), _key(32_000), b"", b"\0"):
        shard.state.replay(key, b"value", 4)
    assert shard.offsets("g") == [0, 1]
    assert shard.groups.replayed == [
        (_key(kind), b"value", 3)
        for kind in (RecordKind.CLASSIC_GROUP, RecordKind.GROUP, RecordKind.MEMBER, RecordKind.STORY)
    ]


def test_what_is_not_about_offsets_is_the_groups_to_decide() -> None:
    shard = Shard()
    heartbeat = Heartbeat("g", "m", 0, 1)
    assert shard.ask(heartbeat).reply == "by the groups"
    assert shard.groups.handled == [heartbeat]


def test_a_group_and_its_offsets_go_together() -> None:
    shard = Shard()
    shard.groups.groups["g"] = Group()
    shard.commit("g", 0, 1)
    shard.commit("h", 0)
    decision = shard.ask(DeleteGroup("g"))
    assert [record.value for record in decision.records] == [None] * 3
    assert decision.records[-1].key == _key(RecordKind.GROUP, b"g"), "the group last: what is cut off can be done again"
    assert not decision.is_atomic
    assert shard.offsets("g") == []
    assert shard.offsets("h") == [0]
    with pytest.raises(GroupIdNotFoundError):
        shard.ask(DeleteGroup("g"))


def test_a_group_that_only_ever_committed_can_be_listed_described_and_deleted() -> None:
    shard = Shard()
    shard.groups.groups["members"] = Group({"m": 1})
    shard.commit("plain", 0)
    assert shard.ask(ListGroups()).reply == (ListedGroup("plain", GroupState.EMPTY, 0, "classic", ""),)
    assert shard.ask(ListGroups(("empty",))).reply == (ListedGroup("plain", GroupState.EMPTY, 0, "classic", ""),)
    assert shard.ask(ListGroups(("stable",))).reply == ()
    assert shard.ask(DescribeGroup("plain")).reply == DescribedGroup(
        "plain", GroupState.EMPTY, 0, 0, "", (), type="classic"
    )
    assert shard.ask(DescribeGroup("members")).reply == "by the groups"
    assert shard.ask(ExplainGroup("plain")).reply == ()
    assert len(shard.ask(DeleteGroup("plain")).records) == 1
    assert shard.ask(DescribeGroup("plain")).reply == "by the groups"


def test_a_group_with_members_is_not_deleted_and_keeps_its_offsets() -> None:
    shard = Shard()
    shard.commit("g", 0)
    shard.groups.groups["g"] = Group({"m": 1})
    with pytest.raises(NonEmptyGroupError):
        shard.ask(DeleteGroup("g"))
    assert shard.offsets("g") == [0]


def test_offsets_are_deleted_through_the_shard_too() -> None:
    shard = Shard()
    shard.commit("g", 0, 1)
    assert len(shard.ask(DeleteOffsets("g", (TopicPartition("t", 1),))).records) == 1
    assert shard.offsets("g") == [0]


def test_time_outs_come_before_expiry_and_are_not_mixed_with_it() -> None:
    """A decision of the groups is written completely or not at all. Tombstones may need more than one batch."""

    class Busy(_QuietGroups):
        busy = True

        def tick(self, now_ms: int) -> Decision:
            if not self.busy:
                return Decision()
            self.busy = False
            return Decision((ShardRecord(b"member out", None),))

    shard = Shard(Busy())
    shard.committed_long_ago("g", 0)
    first = shard.tick(NOW_MS + CHECK_MS)
    assert (first.records, first.is_atomic) == ((ShardRecord(b"member out", None),), True)
    assert shard.state.next_due_ms() <= NOW_MS + CHECK_MS  # type: ignore[operator]
    second = shard.tick(NOW_MS + CHECK_MS)
    assert (len(second.records), second.is_atomic) == (1, False)
    assert shard.offsets("g") == []


def test_an_expired_group_leaves_with_its_last_offset() -> None:
    shard = Shard()
    shard.committed_long_ago("g", 0, 1)
    shard.groups.groups["g"] = Group(empty_since_ms=NOW_MS - 8 * DAY_MS)
    decision = shard.tick(NOW_MS + CHECK_MS)
    assert [record.key[:2] for record in decision.records] == [b"\0\1", b"\0\1", _key(RecordKind.GROUP, b"")]
    assert shard.groups.groups == {}


def test_the_next_tick_is_due_when_the_first_of_both_is() -> None:
    shard = Shard()
    assert shard.state.next_due_ms() == NOW_MS + CHECK_MS
    shard.groups.due_ms = NOW_MS + 100
    assert shard.state.next_due_ms() == NOW_MS + 100


def test_a_clock_that_was_set_back_is_noticed_by_whatever_is_asked_next() -> None:
    """The runtime runs a tick when work is due, and by the old wall-clock time the next tick would be in a year."""
    shard = Shard()
    earlier_ms = NOW_MS - 365 * DAY_MS
    shard.ask(ListGroups(), earlier_ms)
    assert shard.state.next_due_ms() == earlier_ms + CHECK_MS


@pytest.mark.parametrize("by_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_is_set_after_the_loading_makes_an_unknown_topics_offset_no_offset_of_none(by_ms: int) -> None:
    shard, newer = Shard(), CommittedOffset(5, topic_id=b"n" * 16)
    shard.state.replay(encode_key("g", TopicPartition("t", 0)), encode_value(newer), NOW_MS)
    shard.ask(TopicsChanged({"t": Topic("t", b"o" * 16, 1)}))
    shard.ask(ClockSet(by_ms), NOW_MS + by_ms)
    assert shard.groups.handled[-1] == ClockSet(by_ms)
    for after_ms, expected in ((NAMESAKE_AGE_MS - 1, ["UNKNOWN_TOPIC_ID"]), (NAMESAKE_AGE_MS, [])):
        found = shard.ask(FetchOffsets("g"), NOW_MS + by_ms + after_ms).reply.offsets  # type: ignore[attr-defined]
        assert [each.error and each.error.code for each in found] == expected


def test_topics_are_passed_to_both() -> None:
    shard = Shard()
    there = TopicsChanged({"t": Topic("t", bytes(16), 3)})
    shard.ask(there)
    shard.commit("g", 0)
    shard.ask(TopicsChanged({}))
    assert len(shard.groups.handled) == 2
    assert shard.state.next_due_ms() == 0
    assert len(shard.tick(NOW_MS).records) == 1
    assert shard.offsets("g") == []


def test_lag_is_computed_from_what_the_leaders_say() -> None:
    shard = Shard()
    shard.commit("g", 0)
    assert isinstance(shard.state, ShardStateMachine)
    assert shard.state.watched_partitions() == (TopicPartition("t", 0),)
    assert shard.ask(WatermarksSeen((PartitionEnd("t", 0, 11),))) == Decision()
    assert shard.ask(DescribeLag("g")).reply.total_lag == 10  # type: ignore[attr-defined]
    with pytest.raises(GroupIdNotFoundError):
        shard.ask(DescribeLag("nobody"))


def test_a_successor_of_the_shard_has_the_same_offsets() -> None:
    shard = Shard()
    shard.commit("g", 0, 1, 2)
    shard.commit("h", 5)
    shard.ask(DeleteOffsets("g", (TopicPartition("t", 1),)))
    shard.ask(DeleteGroup("h"))
    shard.commit("h", 6)
    successor = Shard()
    for key, value in shard.log:
        successor.state.replay(key, value, NOW_MS)
    for group_id in ("g", "h"):
        assert successor.ask(FetchOffsets(group_id)) == shard.ask(FetchOffsets(group_id))
