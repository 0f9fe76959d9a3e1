"""Partitions that are taken from a static member while it is cut off. The member's process does not know it, and has
positions in them. They are its own again only after it has released them (group/reconciling.py)."""

from __future__ import annotations

import pytest

from headrace_coordinator.group.messages import GroupState, Heartbeat, Part
from headrace_coordinator.group.settings import GroupSettings
from headrace_core.errors import StaleMemberEpochError
from tests.worlds.group_world import GROUP, Client, GroupShardWorld


def cut_off(shard: GroupShardWorld) -> tuple[Client, Client, Part]:
    """Member a is cut off for longer than the grace period; member b joins and gets one of its partitions."""
    (a,) = shard.join("a", instance_id="one")
    a.disconnect()
    beyond_the_grace(shard)
    b = Client(shard, "b")
    b.join()
    b.hear_all()
    (taken,) = b.reading
    return a, b, taken


def beyond_the_grace(shard: GroupShardWorld) -> None:
    shard.sleep(shard.settings.connection_grace_ms + 1)
    for client in shard.clients.values():
        client.pause_if_cut_off()


def has(shard: GroupShardWorld, name: str) -> frozenset[Part]:
    (member,) = [each for each in shard.described().members if each.member_id == name]
    return member.assigned


@pytest.mark.parametrize("takes_over", [False, True], ids=["same coordinator", "next coordinator"])
def test_a_taken_partition_is_revoked_first_and_assigned_again_after_its_release(takes_over: bool) -> None:
    shard = GroupShardWorld(orders=2)
    a, b, taken = cut_off(shard)
    b.leave()
    if takes_over:
        shard.take_over()
    a.heartbeat()
    a.hear(lets_go=False)
    assert a.letting_go == {taken}
    assert taken not in has(shard, "a")
    a.heartbeat()  # it knows, but has not released it
    a.hear(lets_go=False)
    assert taken not in has(shard, "a")
    assert shard.described().state is GroupState.RECONCILING
    a.let_go()
    a.heartbeat()
    assert taken in has(shard, "a")
    shard.converge()
    assert a.reading == has(shard, "a")
    assert shard.described().state is GroupState.STABLE


def test_a_member_that_released_a_taken_partition_before_it_is_free_gets_it_at_once() -> None:
    shard = GroupShardWorld(orders=2)
    _, b, taken = cut_off(shard)
    shard.converge()
    assert shard.described().state is GroupState.STABLE
    b.leave()
    assert taken in has(shard, "a")


def test_a_heartbeat_of_before_the_revocation_is_no_release_however_often_it_arrives() -> None:
    shard = GroupShardWorld(orders=2)
    a, b, taken = cut_off(shard)
    b.leave()
    a.connect()
    early = Heartbeat(
        GROUP, "a", a.epoch, a.connection or 0, instance_id="one", owned=frozenset(), revision=a.revision,
        topics=("orders",),
    )  # fmt: skip
    shard.ask(early)
    shard.ask(early)
    assert taken not in has(shard, "a")


def test_a_partition_that_is_taken_while_it_is_revoked_is_still_to_be_released() -> None:
    """The member knows of the revocation, but its caller has not released the partition when the connection breaks."""
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", instance_id="one")
    b = Client(shard, "b")
    b.join()
    a.hear(lets_go=False)
    (taken,) = a.letting_go
    a.heartbeat()
    a.hear(lets_go=False)
    a.disconnect()
    beyond_the_grace(shard)
    b.hear_all()
    assert b.reading == {taken}
    b.leave()
    a.heartbeat()
    a.hear(lets_go=False)
    assert taken not in has(shard, "a")
    a.let_go()
    a.heartbeat()
    assert taken in has(shard, "a")


def test_a_process_that_joins_owns_nothing_and_has_nothing_to_release() -> None:
    shard = GroupShardWorld(orders=2)
    a, b, taken = cut_off(shard)
    b.leave()
    a.join()
    assert taken in has(shard, "a")


def test_the_process_that_replaces_a_member_has_nothing_to_release() -> None:
    shard = GroupShardWorld(orders=2)
    _, b, taken = cut_off(shard)
    b.leave()
    Client(shard, "a2", instance_id="one").join()
    assert taken in has(shard, "a2")


def test_a_static_member_that_left_for_a_while_has_nothing_to_release() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", instance_id="one")
    a.leave(temporarily=True)
    b = Client(shard, "b")
    b.join()
    b.hear_all()
    assert b.reading
    b.leave()
    a.join()
    a.hear_all()
    assert len(a.reading) == 2


def test_a_member_that_does_not_release_a_taken_partition_in_time_is_removed() -> None:
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=0, connection_grace_ms=500), orders=2)
    (a,) = shard.join("a", instance_id="one", rebalance_timeout_ms=10_000)
    a.disconnect()
    beyond_the_grace(shard)
    b = Client(shard, "b")
    b.join()
    b.hear_all()
    b.leave()
    a.heartbeat()
    a.hear(lets_go=False)
    a.heartbeat()
    a.hear(lets_go=False)
    shard.sleep(9_000)
    a.heartbeat()
    shard.tick()
    assert "a" in {member.member_id for member in shard.described().members}
    shard.sleep(1_001)
    a.heartbeat()
    shard.tick()
    assert "a" not in {member.member_id for member in shard.described().members}


# -- commits ----------------------------------------------------------------------------------------------------------


def test_a_taken_partition_cannot_be_committed_before_its_release() -> None:
    """Neither while it is the member's target again, nor when no member wants it any more."""
    shard = GroupShardWorld(orders=2, clicks=1)
    a, b, taken = cut_off(shard)
    part = [("orders", taken[1])]
    b.leave()
    a.heartbeat()
    a.hear(lets_go=False)
    with pytest.raises(StaleMemberEpochError):
        shard.groups.check_commit(GROUP, "a", a.epoch, "one", part)
    a.heartbeat(topics=("clicks",))
    a.hear(lets_go=False)
    assert taken not in {each for member in shard.described().members for each in member.target}
    with pytest.raises(StaleMemberEpochError, match="free for other members"):
        shard.groups.check_commit(GROUP, "a", a.epoch, "one", part)


def test_a_commit_of_before_the_release_does_not_count_under_the_next_ownership() -> None:
    """The commit has the member's newest epoch, and arrives when the partition is the member's again."""
    shard = GroupShardWorld(orders=2)
    a, b, taken = cut_off(shard)
    b.leave()
    a.heartbeat()
    a.hear(lets_go=False)
    newest_before_the_release = a.epoch
    a.let_go()
    a.heartbeat()
    a.hear_all()
    assert taken in a.reading
    with pytest.raises(StaleMemberEpochError):
        shard.groups.check_commit(GROUP, "a", newest_before_the_release, "one", [("orders", taken[1])])
    shard.groups.check_commit(GROUP, "a", a.epoch, "one", [("orders", 0), ("orders", 1)])


def test_what_it_kept_can_be_committed_while_it_has_a_taken_partition_to_release() -> None:
    shard = GroupShardWorld(orders=2)
    a, b, taken = cut_off(shard)
    before = a.epoch
    b.leave()
    a.heartbeat()
    a.hear(lets_go=False)
    kept = [("orders", 1 - taken[1])]
    shard.groups.check_commit(GROUP, "a", a.epoch, "one", kept)
    shard.groups.check_commit(GROUP, "a", before, "one", kept)
