"""The numbers of a member's commits: a late attempt must not reset the offsets of what came after it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_coordinator.group.messages import Topic, TopicsChanged
from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.logic import OffsetsLogic
from headrace_coordinator.offsets.messages import CommitOffsets, FetchOffsets, OffsetToCommit
from headrace_coordinator.shard_state_machine import state_machines
from headrace_core.errors import StaleMemberEpochError
from tests.worlds.shard_world import NOW_MS, Group, OffsetsWorld

MEMBER: dict[str, Any] = {"member_id": "m", "member_epoch": 3}


@pytest.fixture
def world() -> OffsetsWorld:
    made = OffsetsWorld()
    made.groups.groups["g"] = Group({"m": 3, "n": 3})
    return made


def test_an_attempt_that_arrives_after_a_later_commit_of_the_member_changes_nothing(world: OffsetsWorld) -> None:
    world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    world.commit("g", OffsetToCommit("t", 0, 20), **MEMBER, sequence=2)
    for _ in range(2):
        with pytest.raises(StaleMemberEpochError, match="commit 1 of member 'm' arrived after"):
            world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    assert world.fetch("g")["t", 0].offset == 20


def test_an_attempt_that_arrives_after_a_transaction_changes_nothing_and_has_succeeded(world: OffsetsWorld) -> None:
    world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    world.send("g", OffsetToCommit("t", 0, 20), **MEMBER)
    for _ in range(2):
        decision = world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
        assert not decision.records
        assert [each.error for each in decision.reply.results] == [None]  # type: ignore[attr-defined]
    world.end(commit=True)
    assert world.fetch("g")["t", 0].offset == 20


@pytest.mark.parametrize("is_committed", [None, True, False], ids=["open", "committed", "aborted"])
@pytest.mark.parametrize("is_loaded_again", [False, True])
def test_a_commit_that_was_given_up_before_any_attempt_arrived_changes_nothing_after_a_transaction(
    world: OffsetsWorld, is_committed: bool | None, is_loaded_again: bool
) -> None:
    """The transaction's offsets are the member's commit 2."""
    world.commit("g", OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 5), **MEMBER)
    world.send("g", OffsetToCommit("t", 0, 20), **MEMBER, commit_sequence=2)
    if is_committed is not None:
        world.end(commit=is_committed)
    if is_loaded_again:
        world.logic = OffsetsLogic(world.groups, world.settings, world.logic._committers)
        for key, value in world.log:
            world.logic.replay(key, value)
    for _ in range(2):
        with pytest.raises(StaleMemberEpochError, match="commit 1 of member 'm' arrived after the member's commit 2"):
            world.commit("g", OffsetToCommit("t", 0, 10), OffsetToCommit("t", 1, 10), **MEMBER, sequence=1)
    if is_committed is None:
        world.end(commit=True)
    assert [each.offset for each in world.fetch("g").values()] == [5 if is_committed is False else 20, 5]
    world.commit("g", OffsetToCommit("t", 0, 30), **MEMBER, sequence=3)
    assert world.fetch("g")["t", 0].offset == 30


def test_a_transaction_whose_offsets_are_refused_or_arrive_again_takes_no_number(world: OffsetsWorld) -> None:
    world.logic.topics_changed(TopicsChanged({"t": Topic("t", b"t" * 16, 1)}))
    world.send("g", OffsetToCommit("new", 0, 20), **MEMBER, commit_sequence=2)
    world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    world.commit("g", OffsetToCommit("t", 0, 30), **MEMBER, sequence=5)
    world.send("g", OffsetToCommit("t", 0, 40), **MEMBER, commit_sequence=4)
    world.commit("g", OffsetToCommit("t", 0, 30), **MEMBER, sequence=5)
    world.end(commit=True)
    assert world.fetch("g")["t", 0].offset == 40


def test_the_transactions_of_a_member_say_nothing_of_other_members_and_of_who_is_none(world: OffsetsWorld) -> None:
    world.send("g", OffsetToCommit("t", 0, 20), **MEMBER, commit_sequence=7)
    world.send("g", OffsetToCommit("t", 0, 21))  # as Kafka's clients do
    world.end(commit=True)
    world.commit("g", OffsetToCommit("t", 0, 30), member_id="n", member_epoch=3, sequence=1)
    assert world.fetch("g")["t", 0].offset == 30
    assert set(world.logic._committers) == {("g", "m"), ("g", "n")}


def test_a_commit_that_has_failed_for_a_partition_takes_effect_when_it_is_repeated(world: OffsetsWorld) -> None:
    """The coordinator did not know the topic yet."""
    world.logic.topics_changed(TopicsChanged({}))
    refused = world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    assert refused.reply.results[0].error is not None  # type: ignore[attr-defined]
    world.logic.topics_changed(TopicsChanged({"t": Topic("t", b"t" * 16, 1)}))
    world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    assert world.fetch("g")["t", 0].offset == 10


BOTH = OffsetToCommit("t", 0, 20), OffsetToCommit("new", 0, 1)


def test_a_commit_that_has_failed_for_a_partition_is_later_than_the_attempts_of_earlier_commits(
    world: OffsetsWorld,
) -> None:
    world.logic.topics_changed(TopicsChanged({"t": Topic("t", b"t" * 16, 1)}))
    world.commit("g", *BOTH, **MEMBER, sequence=2)
    with pytest.raises(StaleMemberEpochError):
        world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=1)
    assert world.fetch("g")["t", 0].offset == 20


def test_the_partitions_for_which_a_commit_has_succeeded_are_not_committed_again(world: OffsetsWorld) -> None:
    topics = {"t": Topic("t", b"t" * 16, 1)}
    world.logic.topics_changed(TopicsChanged(topics))
    world.commit("g", *BOTH, **MEMBER, sequence=1)
    world.send("g", OffsetToCommit("t", 0, 30), **MEMBER)
    world.end(commit=True)
    for known in (topics, {**topics, "new": Topic("new", b"n" * 16, 1)}):
        world.logic.topics_changed(TopicsChanged(known))
        for _ in range(2):
            world.commit("g", *BOTH, **MEMBER, sequence=1)
            assert world.fetch("g")["t", 0].offset == 30
    assert world.fetch("g")["new", 0].offset == 1
    assert not world.commit("g", *BOTH, **MEMBER, sequence=1).records


def test_numbers_outlive_the_loading_of_the_shard_though_the_last_commit_may_not(world: OffsetsWorld) -> None:
    """The append of the last commit has failed, so the shard loads its log again, without the commit."""
    new = state_machines(lambda: world.groups, world.settings)
    former = new()
    commits = [CommitOffsets("g", (OffsetToCommit("t", 0, 10 * each),), "m", 3, None, each) for each in (1, 2)]
    (written,) = former.handle(commits[0], NOW_MS).records
    assert former.handle(commits[1], NOW_MS).records
    later = new()
    later.replay(*written, NOW_MS)
    with pytest.raises(StaleMemberEpochError):
        later.handle(commits[0], NOW_MS)
    assert later.handle(commits[1], NOW_MS).records, "an answer without a record would lose the commit"
    assert not later.handle(commits[1], NOW_MS).records
    reply = later.handle(FetchOffsets("g"), NOW_MS).reply
    assert [each.offset for each in reply.offsets] == [20]  # type: ignore[attr-defined]


def test_other_members_and_clients_without_numbers_have_their_own_order(world: OffsetsWorld) -> None:
    world.commit("g", OffsetToCommit("t", 0, 10), **MEMBER, sequence=2)
    world.commit("g", OffsetToCommit("t", 0, 5), member_id="n", member_epoch=3, sequence=1)
    assert world.fetch("g")["t", 0].offset == 5
    world.commit("g", OffsetToCommit("t", 0, 4), **MEMBER)  # as Kafka's clients do
    assert world.fetch("g")["t", 0].offset == 4


def test_the_members_that_committed_last_are_remembered(world: OffsetsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "COMMITTERS_MAX", 2)
    world.groups.groups["g"] = Group(dict.fromkeys("abc", 3))
    for number, member_id in enumerate("abac", 1):
        world.commit("g", OffsetToCommit("t", 0, 10), member_id=member_id, member_epoch=3, sequence=number)
    assert set(world.logic._committers) == {("g", "a"), ("g", "c")}
