"""Offsets and the real groups in one shard, from the first member to the last tombstone."""

from __future__ import annotations

import pytest

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.messages import (
    DescribeGroup,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    ListGroups,
    Topic,
    TopicsChanged,
)
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, ShardRecord, StateMachine
from headrace_core.errors import (
    GroupIdNotFoundError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import DAY_MS, NOW_MS

CHECK_MS = 600_000
TOPIC_ID = bytes(range(16))
TOPICS = TopicsChanged({"t": Topic("t", TOPIC_ID, 4)})


class Shard:
    """The shard's owner: ``move`` gives the shard to another owner, which replays the log."""

    def __init__(self) -> None:
        self.log: list[tuple[ShardRecord, int]] = []
        self.now_ms = NOW_MS
        self.state: StateMachine = self._begun()

    def _begun(self) -> ShardStateMachine:
        state = ShardStateMachine(Groups())
        for (key, value), timestamp_ms in self.log:
            state.replay(key, value, timestamp_ms)
        self._keep(state.loaded(self.now_ms))
        self._keep(state.handle(TOPICS, self.now_ms))
        return state

    def move(self) -> None:
        self.state = self._begun()

    def _keep(self, decision: Decision) -> Decision:
        self.log += [(record, self.now_ms) for record in decision.records]
        return decision

    def ask(self, request: object) -> object:
        return self._keep(self.state.handle(request, self.now_ms)).reply

    def wait(self, ms: int) -> None:
        """Let time pass as the runtime does, with a tick when work is due."""
        until_ms = self.now_ms + ms
        for _ in range(100_000):
            due_ms = self.state.next_due_ms()
            if due_ms is None or due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self._keep(self.state.tick(self.now_ms))
        else:
            raise AssertionError("there is always something due")
        self.now_ms = until_ms

    def join(self, group_id: str, member_id: str) -> int:
        """The member's epoch."""
        reply = self.ask(
            Heartbeat(
                group_id, member_id, 0, 1, rebalance_timeout_ms=300_000, topics=("t",), topic_regex="", owned=None
            )
        )
        assert isinstance(reply, HeartbeatReply)
        return reply.member_epoch

    def commit(self, group_id: str, offset: int, member_id: str = "", epoch: int = -1, partition: int = 0) -> None:
        reply = self.ask(CommitOffsets(group_id, (OffsetToCommit("t", partition, offset),), member_id, epoch))
        assert [one.error for one in reply.results] == [None]  # type: ignore[attr-defined]

    def offsets(self, group_id: str, member_id: str = "", epoch: int = -1) -> dict[int, int]:
        reply = self.ask(FetchOffsets(group_id, None, member_id, epoch))
        return {one.partition: one.offset for one in reply.offsets}  # type: ignore[attr-defined]


def test_a_member_commits_leaves_and_the_next_one_goes_on_where_it_was() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    shard.commit("g", 42, "m1", epoch)
    shard.ask(Leave("g", "m1"))
    with pytest.raises(UnknownMemberIdError):
        shard.commit("g", 50, "m1", epoch)
    shard.move()
    epoch = shard.join("g", "m2")
    assert shard.offsets("g", "m2", epoch) == {0: 42}


def test_an_epoch_that_was_never_given_commits_nothing() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    for wrong in (epoch + 1, epoch + 100):
        with pytest.raises(StaleMemberEpochError):
            shard.commit("g", 1, "m1", wrong)
        with pytest.raises(StaleMemberEpochError):
            shard.offsets("g", "m1", wrong)
    assert shard.offsets("g") == {}


def test_nobody_from_outside_commits_or_deletes_while_members_are_there() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    shard.commit("g", 42, "m1", epoch)
    with pytest.raises(UnknownMemberIdError):
        shard.commit("g", 0)
    with pytest.raises(NonEmptyGroupError):
        shard.ask(DeleteGroup("g"))
    reply = shard.ask(DeleteOffsets("g", (TopicPartition("t", 0),)))
    assert [one.error.code for one in reply.results] == ["GROUP_SUBSCRIBED_TO_TOPIC"]  # type: ignore[attr-defined]
    assert shard.offsets("g") == {0: 42}


def test_offsets_are_reset_by_an_admin_once_the_group_is_empty() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    shard.commit("g", 42, "m1", epoch)
    shard.ask(Leave("g", "m1"))
    shard.commit("g", 0)
    assert shard.offsets("g") == {0: 0}


def test_a_group_in_use_keeps_its_offsets_for_a_month_and_an_empty_one_for_seven_days() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    shard.commit("g", 42, "m1", epoch)
    heartbeat = Heartbeat("g", "m1", epoch, 1)
    for _ in range(30 * 24):
        for _ in range(120):
            shard.now_ms += 30_000
            shard.ask(heartbeat)
        shard.wait(0)
    assert shard.offsets("g") == {0: 42}
    shard.ask(Leave("g", "m1"))
    shard.wait(3 * DAY_MS)
    shard.move()  # the new owner counts from the record's time, not from its own start
    shard.wait(4 * DAY_MS - 1)
    assert shard.offsets("g") == {0: 42}
    shard.wait(2 * CHECK_MS)
    assert shard.offsets("g") == {}
    assert shard.ask(ListGroups()) == ()
    shard.move()
    assert shard.ask(ListGroups()) == (), "nothing of it is left in the log"


def test_a_deleted_group_is_gone_for_whoever_replays_the_log() -> None:
    shard = Shard()
    epoch = shard.join("g", "m1")
    for partition in range(4):
        shard.commit("g", 42, "m1", epoch, partition)
    shard.ask(Leave("g", "m1"))
    assert shard.ask(DescribeGroup("g")).state is GroupState.EMPTY  # type: ignore[attr-defined]
    shard.ask(DeleteGroup("g"))
    for _ in range(2):
        with pytest.raises(GroupIdNotFoundError):
            shard.ask(DescribeGroup("g"))
        with pytest.raises(GroupIdNotFoundError):
            shard.ask(DeleteGroup("g"))
        assert shard.offsets("g") == {}
        shard.move()
    live = {record.key: record.value for record, _ in shard.log}
    assert [key for key, value in live.items() if value is not None] == [], "a compacted log keeps nothing of it"


def test_what_a_cut_off_deletion_left_can_be_deleted_again() -> None:
    """Many tombstones are several batches; the leader may die after any batch."""
    whole = Shard()
    epoch = whole.join("g", "m1")
    for partition in range(4):
        whole.commit("g", 42, "m1", epoch, partition)
    whole.ask(Leave("g", "m1"))
    before = len(whole.log)
    whole.ask(DeleteGroup("g"))
    for end in range(before, len(whole.log)):
        shard = Shard()
        shard.log = whole.log[:end]
        shard.move()
        shard.ask(DeleteGroup("g"))
        shard.move()
        assert shard.ask(ListGroups()) == ()
        assert shard.offsets("g") == {}
