"""Members that do not let go in time: the rebalance time-out (max.poll.interval.ms), and leases."""

from __future__ import annotations

from group_world import Client, Shard, parts


def test_who_does_not_let_go_in_time_is_gone_and_told_so() -> None:
    shard = Shard(orders=2)
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
    shard = Shard(orders=2)
    (a,) = shard.join("a", rebalance_timeout_ms=1_000)
    b = Client(shard, "b")
    b.join()
    a.inbox.clear()  # it is not told
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
    shard = Shard(orders=2)
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


def test_who_follows_waits_as_long_for_whoever_was_to_let_go_and_may_read_on_by_the_metadata() -> None:
    shard = Shard(orders=2)
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
