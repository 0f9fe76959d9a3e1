"""Followers that report that they cannot append: they leave the in-sync set before replica.lag.time.max.ms."""

from __future__ import annotations

from headrace_broker.partition.follower_joins import FollowerJoins
from headrace_broker.partition.isr import JOIN_MS, REJOIN_MS
from headrace_core.telemetry import IsrShrunk
from headrace_protos.v1.replication_pb2 import FollowJoin
from tests.unit.broker.test_isr_keeper import FOLLOWER, LONG_MS, IsrKeeperWorld, join, now_ms
from tests.unit.broker.test_partition_leader_isr import LAG_MS, Leader
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until


def test_the_leader_asks_for_an_in_sync_set_without_it_at_once() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    stirred = leader.stirred
    leader.it.follower_left(3, leader.now_ms, cannot_append=True)
    assert leader.stirred > stirred
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms
    change = leader.propose()
    assert change.members == (1, 2)
    assert leader.it.high_watermark == 100, "not before the controllers agree (KIP-497)"
    assert leader.it.altered((1, 2), change.partition_epoch + 1, leader.it.leader_epoch)
    assert leader.it.high_watermark == 120


def test_a_follower_that_only_left_stays_for_the_lag_that_is_allowed() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    leader.it.follower_left(3, leader.now_ms)
    assert leader.change() is None


def test_one_that_has_all_that_there_is_stays_in_sync() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.it.follower_left(3, leader.now_ms, cannot_append=True)
    assert leader.change() is None


def test_while_it_cannot_append_nothing_waits_for_it_however_often_it_joins() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    leader.it.follower_left(3, leader.now_ms, cannot_append=True)
    change = leader.propose()
    leader.it.altered((1, 2), change.partition_epoch + 1, leader.it.leader_epoch)
    leader.join(3, 100)  # it keeps up, by time
    assert leader.change() is None
    leader.append(140)
    leader.ack(2, 140)
    assert leader.it.high_watermark == 140, "it is joined, and is not waited for"
    leader.ack(3, 140)
    assert leader.propose().members == (1, 2, 3), "it has appended, and has everything"


def test_a_follower_whose_stream_broke_leaves_when_it_is_not_back_soon() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    stirred = leader.stirred
    leader.it.follower_left(3, leader.now_ms, broken=True)
    assert leader.stirred > stirred
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms, "it is looked at, and watched from then on"
    assert leader.change() is None
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms + min(REJOIN_MS, LAG_MS) + 1
    leader.now_ms += min(REJOIN_MS, LAG_MS)
    assert leader.change() is None
    leader.now_ms += 1
    assert leader.propose().members == (1, 2)


def test_a_follower_that_is_back_in_time_has_the_whole_lag_again() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    leader.it.follower_left(3, leader.now_ms, broken=True)
    leader.now_ms += 1
    leader.join(3, 110)
    leader.now_ms += LAG_MS - 1
    assert leader.change() is None


def test_a_follower_that_never_joins_in_this_epoch_leaves_long_before_the_lag_is_over() -> None:
    leader = Leader()
    leader.join(2)
    assert leader.change() is None, "the epoch has begun just now"
    leader.append(120)
    leader.ack(2, 120)
    assert leader.change() is None
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms + JOIN_MS + 1
    leader.now_ms += JOIN_MS
    assert leader.change() is None
    leader.now_ms += 1
    change = leader.propose()
    assert change.members == (1, 2)
    assert leader.it.altered((1, 2), change.partition_epoch + 1, leader.it.leader_epoch)
    assert leader.it.high_watermark == 120
    leader.join(3, 120)
    assert leader.propose().members == (1, 2, 3), "and it comes back when it can"


def test_a_follower_that_tries_to_join_and_must_cut_its_log_first_has_time_for_it() -> None:
    leader = Leader()
    leader.join(2)
    assert leader.change() is None
    leader.now_ms += JOIN_MS
    leader.it.follower_tried(3, leader.now_ms)
    leader.now_ms += JOIN_MS
    assert leader.change() is None
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    assert leader.change() is None
    leader.now_ms += LAG_MS
    assert leader.change() is None, "once it has joined it is slow, and has the lag"
    leader.now_ms += 1
    assert leader.propose().members == (1, 2)


def test_a_follower_that_let_go_and_does_not_join_again_leaves_as_soon() -> None:
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    leader.it.follower_left(3, leader.now_ms)
    leader.now_ms += JOIN_MS
    assert leader.change() is None
    leader.now_ms += 1
    assert leader.propose().members == (1, 2)


@in_loop
async def test_the_keeper_does_not_wait_for_its_next_look() -> None:
    async with IsrKeeperWorld(lag_time_max_ms=LONG_MS) as world:
        leader = world.leader()
        join(leader)
        leader.advanced(1, 1, 10)
        await until(lambda: world.keeper.watched == 1 and not leader._is_stirred)
        leader.advanced(2, 2, 10)  # it makes progress: the next check is after a quarter of the lag time
        leader.follower_left(FOLLOWER, now_ms(), cannot_append=True)
        await until(lambda: any(isinstance(event, IsrShrunk) for event in world.events))


class Replica:
    can_join = True

    def join(self, handle: int) -> FollowJoin:
        return FollowJoin(handle=handle)

    def next_ack(self) -> None:
        return None


def test_the_stream_says_it_with_the_leave_once() -> None:
    joins: FollowerJoins[Replica] = FollowerJoins()
    one, other = Replica(), Replica()
    joins.join(one)
    joins.join(other)
    joins.next()
    joins.leave(one, cannot_append=True)
    joins.leave(other)
    said = joins.next()
    assert said is not None
    assert (list(said.leaves), list(said.cannot_append)) == ([1, 2], [1])
    joins.join(one)
    again = joins.next()
    assert again is not None
    assert not again.cannot_append
