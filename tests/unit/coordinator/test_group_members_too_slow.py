"""Members that do not revoke in time: the rebalance timeout (max.poll.interval.ms), and leases."""

from __future__ import annotations

from headrace_coordinator.state_machine import OwnershipAsked, OwnershipProven
from tests.worlds.group_world import Client, GroupShardWorld, parts


def test_a_member_that_does_not_revoke_in_time_is_removed_and_informed() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", rebalance_timeout_ms=10_000)
    b = Client(shard, "b")
    b.join()
    a.hear(lets_go=False)
    for _ in range(3):
        a.heartbeat()
        a.hear(lets_go=False)
        shard.sleep(3_000)
    assert len(shard.described().members) == 2
    b.heartbeat()
    shard.sleep(1_000)
    a.heartbeat()
    shard.tick()
    a.hear_all()
    assert a.removed is not None
    assert "max.poll.interval.ms" in a.removed.reason
    b.hear_all()
    assert b.reading == parts("orders", 0, 1)


def test_the_rebalance_time_out_begins_when_the_member_says_that_it_knows() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", rebalance_timeout_ms=1_000)
    b = Client(shard, "b")
    b.join()
    a.inbox.clear()  # it receives nothing
    shard.sleep(20_000)
    b.hear_all()
    b.heartbeat()
    assert len(shard.described().members) == 2, "its lease is its session, of which half is over"
    a.heartbeat()  # in its old revision
    shard.sleep(2_000)
    assert len(shard.described().members) == 2, "it has not heard the answer either"
    a.inbox.clear()
    a.heartbeat()
    a.hear(lets_go=False)
    a.heartbeat()
    shard.sleep(999)
    a.heartbeat()
    shard.tick()
    assert len(shard.described().members) == 2
    shard.sleep(5_000)
    assert len(shard.described().members) == 2, "it cannot be told at once, and reads the rest of what it has"
    a.heartbeat()
    shard.tick()
    a.hear_all()
    assert a.removed is not None
    assert "max.poll.interval.ms" in a.removed.reason


def test_who_says_for_a_session_that_it_does_not_know_is_gone_after_the_rebalance_time_out() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", rebalance_timeout_ms=1_000)
    b = Client(shard, "b")
    b.join()
    for _ in range(9):
        a.inbox.clear()
        a.heartbeat()
        b.hear_all()
        b.heartbeat()
        shard.sleep(5_000)
    assert len(shard.described().members) == 2
    shard.sleep(1_000)
    a.heartbeat()
    shard.tick()
    assert {each.member_id for each in shard.described().members} == {"b"}


def test_the_rebalance_time_out_begins_anew_when_one_revocation_follows_another() -> None:
    shard = GroupShardWorld(orders=6)
    (a,) = shard.join("a", rebalance_timeout_ms=10_000)
    b = Client(shard, "b")
    b.join()
    a.hear(lets_go=False)
    a.heartbeat()
    a.hear(lets_go=False)
    shard.sleep(4_900)
    b.hear_all()
    b.heartbeat()
    a.heartbeat()
    a.hear(lets_go=False)
    shard.sleep(4_900)
    c = Client(shard, "c")
    c.join()
    a.let_go()
    a.heartbeat()  # in time; the answer revokes one more partition
    shard.sleep(250)
    a.heartbeat()  # before it has received this
    shard.tick()
    assert len(a.reading) == 3
    assert {each.member_id for each in shard.described().members} == {"a", "b", "c"}, "it has not heard of the second"
    a.hear(lets_go=False)
    a.hear(lets_go=False)
    assert len(a.letting_go) == 1
    a.heartbeat()
    shard.sleep(9_999)
    b.heartbeat()
    c.hear_all()
    c.heartbeat()
    a.heartbeat()
    shard.tick()
    assert len(shard.described().members) == 3
    shard.sleep(1)
    a.heartbeat()
    shard.tick()
    assert {each.member_id for each in shard.described().members} == {"b", "c"}


def test_a_member_with_more_heartbeats_than_ownership_proofs_is_gone_all_the_same() -> None:
    shard = GroupShardWorld(orders=2, awaits_proof=True)
    (a,) = shard.join("a", rebalance_timeout_ms=1_000)
    b = Client(shard, "b")
    b.join()
    a.hear(lets_go=False)
    a.heartbeat()
    for number in range(100, 250):  # each confirmation takes 20 ms, and a heartbeat arrives meanwhile
        shard.now_ms += 10
        a.heartbeat()
        shard.ask(OwnershipAsked(number))
        shard.now_ms += 10
        a.heartbeat()
        shard.ask(OwnershipProven(number))
        shard._done(shard.groups.tick(shard.now_ms))
        if len(shard.described().members) == 1:
            break
    assert {each.member_id for each in shard.described().members} == {"b"}
    assert 1_000 <= (number - 99) * 20 <= 1_040


def test_who_follows_waits_as_long_for_whoever_was_to_let_go_and_may_read_on_by_the_metadata() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", rebalance_timeout_ms=1_000)
    b = Client(shard, "b")
    b.join()
    b.hear_all()
    shard.take_over()
    for _ in range(8):
        b.hear_all()
        b.heartbeat()
        shard.sleep(5_000)
    b.hear_all()
    assert a.reading == parts("orders", 0, 1)
    assert not b.reading
    b.heartbeat()
    shard.sleep(5_000)
    b.hear_all()
    assert b.reading == parts("orders", 0, 1), "its session is over"
