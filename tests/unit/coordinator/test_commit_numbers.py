"""The numbers of a member's commits: an attempt that the member has given up must not arrive after a later commit."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.messages import OffsetToCommit
from headrace_core.errors import StaleMemberEpochError
from tests.worlds.shard_world import Group, OffsetsWorld


def test_an_attempt_that_arrives_after_a_later_commit_of_the_member_changes_nothing() -> None:
    """The member had given it up, and sent it again under the same number."""
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 3, "n": 3})
    member: dict[str, Any] = {"member_id": "m", "member_epoch": 3}
    world.commit("g", OffsetToCommit("t", 0, 10), **member, sequence=1)
    world.commit("g", OffsetToCommit("t", 0, 10), **member, sequence=1)
    world.commit("g", OffsetToCommit("t", 0, 20), **member, sequence=2)
    for _ in range(2):
        with pytest.raises(StaleMemberEpochError, match="commit 1 of member 'm' arrived after"):
            world.commit("g", OffsetToCommit("t", 0, 10), **member, sequence=1)
    assert world.fetch("g")["t", 0].offset == 20
    world.commit("g", OffsetToCommit("t", 0, 5), member_id="n", member_epoch=3, sequence=1)  # numbers of another member
    world.commit("g", OffsetToCommit("t", 0, 4), **member)  # a client without numbers, as Kafka's
    assert world.fetch("g")["t", 0].offset == 4


def test_the_members_that_committed_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "COMMITTERS_MAX", 2)
    world = OffsetsWorld()
    world.groups.groups["g"] = Group(dict.fromkeys("abc", 3))
    for member_id in "abac":
        world.commit("g", OffsetToCommit("t", 0, 10), member_id=member_id, member_epoch=3, sequence=2)
    assert set(world.logic._sequences) == {("g", "a"), ("g", "c")}
