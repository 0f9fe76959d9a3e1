"""Offsets and classic groups in one shard: which commits the members may send, and what a commit does to its member."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace_coordinator.classic import groups
from headrace_coordinator.classic.consumer_protocol import subscribed_topics
from headrace_coordinator.classic.messages import (
    ClassicState,
    Join,
    Joined,
    LeaveClassic,
    LeavingMember,
    MemberIdNeeded,
    Sync,
    Waiting,
)
from headrace_coordinator.classic.settings import ClassicSettings
from headrace_coordinator.group.messages import (
    Heartbeat,
    Leave,
    ListGroups,
    MembersRemoved,
    RemoveMembers,
    Topic,
    TopicsChanged,
)
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.offsets.logic import OffsetSettings
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetToCommit,
)
from headrace_coordinator.offsets.pending import Verification
from headrace_coordinator.offsets.retention import RetentionSettings
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.errors import (
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import DAY_MS, NOW_MS

GROUP, TOPIC_ID = "g", bytes(range(16))
SESSION_MS, REBALANCE_MS = 10_000, 60_000
CHECK_MS = 600_000
OFFSET = OffsetToCommit("t", 0, 5)


def join_of(ticket: int, member_id: str = "", **more: Any) -> Join:
    protocols = (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)
    return Join(GROUP, member_id, f"m{ticket}", SESSION_MS, REBALANCE_MS, "consumer", protocols, ticket, **more)


class Shard:
    """A shard with groups of both types, and a clock; ``move`` gives the shard to another coordinator."""

    def __init__(self, *, initial_delay_ms: int = 0, offsets: OffsetSettings | None = None) -> None:
        self.settings = ClassicSettings(initial_delay_ms=initial_delay_ms)
        self.offsets = offsets
        self.now_ms = NOW_MS
        self.log: list[ShardRecord] = []
        self.answers: dict[int, Any] = {}
        self._tickets = itertools.count(1)
        self.move()

    def move(self) -> None:
        self.state = ShardStateMachine(GroupsOfBothTypes(None, self.settings), self.offsets)
        for key, value in self.log:
            self.state.replay(key, value, self.now_ms)
        self._keep(self.state.loaded(self.now_ms))
        self.ask(TopicsChanged({"t": Topic("t", TOPIC_ID, 4)}))

    def _keep(self, decision: Decision) -> Any:
        self.log += decision.records
        self.answers |= {each.ticket: each.outcome for each in decision.pushes if hasattr(each, "ticket")}
        return decision.reply

    def ask(self, request: object) -> Any:
        return self._keep(self.state.handle(request, self.now_ms))

    def wait(self, ms: int) -> None:
        """Let time pass as the runtime does, with a tick when work is due."""
        until_ms = self.now_ms + ms
        while (due_ms := self.state.next_due_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._keep(self.state.tick(self.now_ms))
        self.now_ms = until_ms

    def joined(self, member_id: str = "") -> Joined:
        """A member that has joined, and has no assignment yet."""
        ticket = next(self._tickets)
        reply = self.ask(join_of(ticket, member_id))
        answer = self.answers[ticket] if isinstance(reply, Waiting) else reply
        assert isinstance(answer, Joined)
        return answer

    def member(self) -> Joined:
        """A member with its assignment."""
        joined = self.joined()
        self.ask(Sync(GROUP, joined.member_id, joined.generation, next(self._tickets)))
        return joined

    def committed(self) -> set[tuple[str, int]]:
        found: OffsetsFetched = self.ask(FetchOffsets(GROUP))
        return {(each.topic, each.partition) for each in found.offsets}

    def commit(self, member: Joined) -> object:
        return self.ask(CommitOffsets(GROUP, (OFFSET,), member.member_id, member.generation))

    def commit_in_transaction(self, member: Joined) -> object:
        commit = CommitOffsets(GROUP, (OFFSET,), member.member_id, member.generation)
        request = CommitTransactionOffsets(commit, "copy", 7, 3)
        verification = self.ask(request)
        assert isinstance(verification, Verification)
        return self.ask(request._replace(verification=verification, coordinator_epoch=1))


def test_a_member_without_an_assignment_yet_commits_in_transactions_only() -> None:
    """RebalanceInProgressError would be a fatal error for Kafka's producer."""
    shard = Shard()
    joined = shard.joined()
    with pytest.raises(RebalanceInProgressError):
        shard.commit(joined)
    assert isinstance(shard.commit_in_transaction(joined), OffsetsCommitted)
    for wrong, error in (
        (joined._replace(generation=joined.generation - 1), IllegalGenerationError),
        (joined._replace(member_id="stranger"), UnknownMemberIdError),
    ):
        with pytest.raises(error):
            shard.commit_in_transaction(wrong)


def test_a_commit_counts_as_a_heartbeat() -> None:
    shard = Shard()
    member = shard.member()
    for _ in range(20):
        shard.wait(SESSION_MS - 1)
        shard.commit(member)
    shard.wait(SESSION_MS)
    with pytest.raises(UnknownMemberIdError):
        shard.commit(member)


# -- a group of KIP-848 without members takes the classic type ---------------------------------------------------------


def left_by_its_consumer() -> Shard:
    """A group of KIP-848 whose member has committed, and left a month later."""
    shard = Shard()
    shard.ask(Heartbeat(GROUP, "c", 0, 1, topics=("t",), rebalance_timeout_ms=REBALANCE_MS))
    shard.ask(CommitOffsets(GROUP, (OFFSET,), "c", 1))
    shard.now_ms += 30 * DAY_MS
    shard.move()
    shard.ask(Heartbeat(GROUP, "c", 1, 1))
    shard.ask(Leave(GROUP, "c"))
    return shard


@pytest.mark.parametrize("joins", [False, True])
def test_offsets_stay_for_their_retention_when_a_classic_member_has_come_and_gone(joins: bool) -> None:
    """The record of the former group said since when the group had been empty."""
    shard = left_by_its_consumer()
    if joins:
        shard.joined()
    else:  # it only asks for a member id
        assert isinstance(shard.ask(join_of(next(shard._tickets), needs_known_id=True)), MemberIdNeeded)
    shard.move()  # before the member has got an assignment
    shard.wait(7 * DAY_MS - CHECK_MS)
    assert shard.committed() == {("t", 0)}
    shard.wait(2 * CHECK_MS)
    assert shard.committed() == set()
    assert shard.ask(ListGroups()) == ()


def test_offsets_of_members_that_are_no_consumers_are_not_deleted_below_them() -> None:
    shard = Shard()
    ticket = next(shard._tickets)
    shard.ask(Join(GROUP, "", "m", SESSION_MS, REBALANCE_MS, "connect", (("default", b""),), ticket))
    worker = shard.answers[ticket]
    shard.ask(Sync(GROUP, worker.member_id, worker.generation, next(shard._tickets)))
    shard.commit(worker)
    (result,) = shard.ask(DeleteOffsets(GROUP, (TopicPartition("t", 0),))).results
    assert isinstance(result.error, GroupSubscribedToTopicError)
    assert shard.committed() == {("t", 0)}


@pytest.mark.parametrize("kind", ["consumer", "classic", "classic, joining", "connect"])
def test_a_group_with_members_loses_the_offsets_of_topics_that_it_does_not_read(kind: str) -> None:
    """KAFKA-8338. Members that are no consumers may use any offset."""
    retention_ms, check_ms = 60_000, 3_000
    shard = Shard(
        offsets=OffsetSettings(retention=RetentionSettings(retention_ms=retention_ms, check_interval_ms=check_ms))
    )
    shard.ask(TopicsChanged({"t": Topic("t", TOPIC_ID, 4), "left": Topic("left", bytes(15) + b"x", 1)}))
    offsets = (OFFSET, OffsetToCommit("left", 0, 5))
    protocols = (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)
    if kind == "consumer":
        shard.ask(Heartbeat(GROUP, "c", 0, 1, topics=("t",), rebalance_timeout_ms=REBALANCE_MS))
        shard.ask(CommitOffsets(GROUP, offsets, "c", 1))
    else:
        ticket, protocol_type = next(shard._tickets), "connect" if kind == "connect" else "consumer"
        shard.ask(Join(GROUP, "", "m", SESSION_MS, REBALANCE_MS, protocol_type, protocols, ticket))
        member = shard.answers[ticket]
        shard.ask(Sync(GROUP, member.member_id, member.generation, next(shard._tickets)))
        shard.ask(CommitOffsets(GROUP, offsets, member.member_id, member.generation))
        if kind == "classic, joining":
            shard.ask(join_of(next(shard._tickets))._replace(rebalance_timeout_ms=100 * retention_ms))
    for _ in range(2 * retention_ms // check_ms):
        if kind == "consumer":
            shard.ask(Heartbeat(GROUP, "c", 1, 1))
        else:
            shard.ask(CommitOffsets(GROUP, (OFFSET,), member.member_id, member.generation))
        shard.wait(check_ms)
    left = {("left", 0)} if kind in ("classic, joining", "connect") else set()
    assert shard.committed() == {("t", 0)} | left


def test_a_check_reads_each_subscription_once_however_many_topics_the_group_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check is one step of the shard; requests wait for its end."""
    shard = Shard(offsets=OffsetSettings(retention=RetentionSettings(retention_ms=2_000, check_interval_ms=3_000)))
    left = {f"left-{number}" for number in range(50)}
    shard.ask(TopicsChanged({name: Topic(name, name.encode().ljust(16), 1) for name in ("t", *left)}))
    member = shard.member()
    offsets = (OFFSET, *(OffsetToCommit(name, 0, 5) for name in left))
    shard.ask(CommitOffsets(GROUP, offsets, member.member_id, member.generation))
    read: list[bytes] = []
    monkeypatch.setattr(groups, "subscribed_topics", lambda data: read.append(data) or subscribed_topics(data))
    shard.wait(3_000)
    assert shard.committed() == {("t", 0)}
    assert len(read) == 1


def test_an_operator_removes_members_of_a_classic_group() -> None:
    shard = Shard()
    member = shard.member()
    removed: MembersRemoved = shard.ask(RemoveMembers(GROUP, (member.member_id, "stranger")))
    assert removed.errors[0] is None
    assert isinstance(removed.errors[1], UnknownMemberIdError)
    with pytest.raises(UnknownMemberIdError):
        shard.commit(member)


def test_offsets_stay_while_a_group_without_members_ends_its_first_rebalance() -> None:
    shard = Shard(initial_delay_ms=REBALANCE_MS)
    shard.ask(join_of(ticket := next(shard._tickets)))
    shard.wait(REBALANCE_MS)
    member = shard.answers[ticket]
    shard.ask(Sync(GROUP, member.member_id, member.generation, next(shard._tickets)))
    shard.commit(member)
    shard.now_ms += 30 * DAY_MS
    shard.move()  # the member stays for a month
    shard.ask(LeaveClassic(GROUP, (LeavingMember(member.member_id),)))
    shard.wait(CHECK_MS - REBALANCE_MS // 2)
    shard.ask(join_of(ticket := next(shard._tickets)))
    shard.ask(LeaveClassic(GROUP, (LeavingMember(f"m{ticket}"),)))
    assert shard.state.listed(shard.now_ms)[0].state == ClassicState.PREPARING_REBALANCE
    shard.wait(REBALANCE_MS // 2 + 1_000)
    assert shard.state.listed(shard.now_ms)[0].state == ClassicState.PREPARING_REBALANCE
    assert shard.committed() == {("t", 0)}
