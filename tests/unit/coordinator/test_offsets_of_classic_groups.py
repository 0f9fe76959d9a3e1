"""Offsets and classic groups in one shard: which commits the members may send, and what a commit does to its member."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace_coordinator.classic.messages import Join, Joined, Sync, Waiting
from headrace_coordinator.classic.settings import ClassicSettings
from headrace_coordinator.group.messages import Topic, TopicsChanged
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    OffsetsCommitted,
    OffsetToCommit,
)
from headrace_coordinator.offsets.pending import Verification
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from tests.worlds.offsets_world import NOW_MS

GROUP, TOPIC_ID = "g", bytes(range(16))
SESSION_MS, REBALANCE_MS = 10_000, 60_000
OFFSET = OffsetToCommit("t", 0, 5)


class Shard:
    """A shard with groups of both types, and a clock; ``move`` gives the shard to another coordinator."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.log: list[ShardRecord] = []
        self.answers: dict[int, Any] = {}
        self._tickets = itertools.count(1)
        self.move()

    def move(self) -> None:
        self.state = ShardStateMachine(GroupsOfBothTypes(None, ClassicSettings(initial_delay_ms=0)))
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
        protocols = (("range", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"),)
        join = Join(GROUP, member_id, f"m{ticket}", SESSION_MS, REBALANCE_MS, "consumer", protocols, ticket)
        reply = self.ask(join)
        answer = self.answers[ticket] if isinstance(reply, Waiting) else reply
        assert isinstance(answer, Joined)
        return answer

    def member(self) -> Joined:
        """A member with its assignment."""
        joined = self.joined()
        self.ask(Sync(GROUP, joined.member_id, joined.generation, next(self._tickets)))
        return joined

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
