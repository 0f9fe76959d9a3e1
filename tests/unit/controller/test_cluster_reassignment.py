"""Reassignments (KIP-455): begun, completed, cancelled, replaced, paced, throttled."""

from __future__ import annotations

import pytest

from headrace_controller.cluster.reassignment import listed
from headrace_controller.cluster.requests import AlterPartitionReassignments, DeleteTopics, DrainBroker, Reassignment
from headrace_core.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from tests.worlds.cluster_world import MovesWorld, with_replicas

RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def test_new_replicas_are_added_then_caught_up_then_the_old_ones_go() -> None:
    world = with_replicas(5, (1, 2, 3))
    world.move("t", 0, (1, 4, 5))
    assert world.state("t") == ((1, 4, 5, 2, 3), (4, 5), (2, 3), (1, 2, 3))
    world.upkeep()
    assert world.state("t")[1] == (4, 5), "nothing has caught up yet"
    topic_id = world.image.topic_ids["t"]
    world.alter_isr(topic_id, 0, [1, 2, 3, 4])
    world.upkeep()
    assert world.state("t")[1] == (4, 5), "one of them has not"
    world.alter_isr(topic_id, 0, [1, 2, 3, 4, 5])
    world.upkeep()
    assert world.state("t") == ((1, 4, 5), (), (), (1, 4, 5))
    assert world.partition("t").leader == 1
    assert not list(listed(world.image))


def test_a_leader_that_leaves_hands_over_in_the_same_decision() -> None:
    world = with_replicas(4, (1, 2))
    epoch = world.partition("t").leader_epoch
    world.move("t", 0, (3, 4))
    world.settle()
    assert world.state("t") == ((3, 4), (), (), (3, 4))
    assert world.partition("t").leader == 3
    assert world.partition("t").leader_epoch == epoch + 1


def test_a_replica_that_leaves_takes_a_leader_epoch_with_it_so_that_what_it_sends_is_fenced() -> None:
    world = with_replicas(3, (1, 2, 3))
    epoch = world.partition("t").leader_epoch
    world.move("t", 0, (1, 2))
    assert world.state("t") == ((1, 2), (), (), (1, 2)), "nothing had to be waited for"
    assert world.partition("t").leader == 1
    assert world.partition("t").leader_epoch == epoch + 1


def test_another_order_is_no_move_but_takes_effect_at_once() -> None:
    world = with_replicas(3, (1, 2, 3))
    world.move("t", 0, (3, 1, 2))
    assert world.state("t") == ((3, 1, 2), (), (), (1, 2, 3))
    assert world.partition("t").leader == 1
    assert world.partition("t").leader_epoch == 0


def test_asking_for_what_is_so_changes_nothing() -> None:
    world = with_replicas(3, (1, 2, 3))
    before = len(world.log)
    world.move("t", 0, (1, 2, 3))
    assert len(world.log) == before


def test_the_replication_factor_may_grow_unless_the_request_forbids_it() -> None:
    world = with_replicas(3, (1,))
    with pytest.raises(InvalidReplicationFactorError, match="has 1 replica"):
        world.move("t", 0, (1, 2, 3), allow_replication_factor_change=False)
    world.move("t", 0, (1, 2, 3))
    assert world.image.topics[world.image.topic_ids["t"]].replication_factor == 3, "what new partitions will have"
    world.settle()
    assert world.state("t") == ((1, 2, 3), (), (), (1, 2, 3))


def test_it_waits_while_what_stays_would_be_too_few_for_acks_all() -> None:
    world = MovesWorld(4)
    world.topic("t", [(1, 2, 3)], **{"min.insync.replicas": "2"})
    world.move("t", 0, (2, 3, 4))
    topic_id = world.image.topic_ids["t"]
    world.alter_isr(topic_id, 0, [1, 4])  # brokers 2 and 3 lag
    world.upkeep()
    assert world.state("t")[1] == (4,), "only broker 4 would be left in sync"
    world.alter_isr(topic_id, 0, [1, 4, 2])
    world.upkeep()
    assert world.state("t") == ((2, 3, 4), (), (), (2, 4)) or world.state("t")[3] == (4, 2)


def test_it_waits_when_who_had_caught_up_falls_behind_before_it_was_completed() -> None:
    world = with_replicas(3, (1, 2))
    world.move("t", 0, (3,))
    world.catch_up()
    world.beat(world.brokers[3], want_fence=True)
    world.upkeep()
    assert world.state("t")[1] == (3,)
    assert world.partition("t").leader == 1
    world.beat(world.brokers[3])
    world.settle()
    assert world.state("t") == ((3,), (), (), (3,))


def test_cancelled_it_goes_back_to_where_it_was() -> None:
    world = with_replicas(5, (1, 2, 3))
    world.move("t", 0, (1, 4, 5))
    world.alter_isr(world.image.topic_ids["t"], 0, [1, 2, 3, 4])
    world.move("t", 0, None)
    assert world.state("t") == ((1, 2, 3), (), (), (1, 2, 3))
    with pytest.raises(NoReassignmentInProgressError, match="t-0"):
        world.move("t", 0, None)


def test_it_cannot_be_cancelled_when_only_what_was_added_is_in_sync() -> None:
    world = with_replicas(2, (1,))
    world.move("t", 0, (2,))
    topic_id = world.image.topic_ids["t"]
    world.alter_isr(topic_id, 0, [1, 2])
    world.pass_time(20_000, but=[1])  # broker 1 is fenced before the reassignment is completed
    assert world.state("t") == ((2,), (), (), (2,)), "it was completed instead"
    world = with_replicas(3, (1,))
    world.move("t", 0, (2, 3))
    topic_id = world.image.topic_ids["t"]
    world.alter_isr(topic_id, 0, [1, 2])
    world.pass_time(20_000, but=[1])
    assert world.state("t")[3] == (2,)
    with pytest.raises(InvalidReplicaAssignmentError, match="cannot cancel"):
        world.move("t", 0, None)


def test_it_cannot_be_cancelled_when_only_a_new_replica_that_is_away_has_all_records() -> None:
    """Broker 3 committed records alone, and is down: without it, they would be lost (KIP-966)."""
    world = with_replicas(4, (1, 2))
    world.move("t", 0, (3, 4))
    world.alter_isr(world.image.topic_ids["t"], 0, [1, 2, 3])
    world.pass_time(20_000, but=[1, 2])
    assert world.state("t")[3] == (3,)
    world.pass_time(20_000, but=[1, 2, 3])
    assert (world.state("t")[3], world.partition("t").elr) == ((), (3,))
    before = world.partition("t")
    with pytest.raises(InvalidReplicaAssignmentError, match=r"cannot cancel .* new replicas \(broker 3\)"):
        world.move("t", 0, None)
    world.move("t", 0, (1, 2))
    assert world.partition("t").elr == before.elr, "broker 3 leaves when an old replica is in sync"
    world.pass_time(1_000)
    assert world.partition("t").leader == 3
    world.settle()
    assert world.state("t") == ((1, 2), (), (), (1, 2))


def test_another_target_takes_the_place_of_the_first_and_what_is_on_its_way_still_has_to_arrive() -> None:
    world = with_replicas(5, (1, 2))
    world.move("t", 0, (1, 3))
    world.move("t", 0, (3, 4))
    assert world.state("t") == ((3, 4, 1, 2), (3, 4), (1, 2), (1, 2))
    world.settle()
    assert world.state("t") == ((3, 4), (), (), (3, 4))


def test_a_replaced_reassignment_leaves_no_replica_behind_when_the_later_one_is_cancelled() -> None:
    world = with_replicas(5, (1, 2))
    world.move("t", 0, (1, 3))
    epoch = world.partition("t").leader_epoch
    world.move("t", 0, (1, 4))
    assert world.state("t") == ((1, 4, 2), (4,), (2,), (1, 2)), "the copy on broker 3 is abandoned"
    assert world.partition("t").leader_epoch == epoch + 1, "what broker 3 still sends is fenced"
    world.move("t", 0, None)
    assert world.state("t") == ((1, 2), (), (), (1, 2))


def test_an_abandoned_replica_stays_while_too_few_others_are_in_sync() -> None:
    world = MovesWorld(4)
    world.topic("t", [(1, 2)], **{"min.insync.replicas": "2"})
    topic_id = world.image.topic_ids["t"]
    world.move("t", 0, (1, 3))
    world.alter_isr(topic_id, 0, [1, 3])  # broker 2 lags, so the reassignment is about to end
    world.move("t", 0, (1, 4))
    assert world.state("t") == ((1, 4, 3, 2), (4,), (3, 2), (1, 3)), "without broker 3 nothing could be committed"
    world.settle()
    assert world.state("t")[:3] == ((1, 4), (), ())


def test_going_back_by_name_is_as_good_as_cancelling() -> None:
    world = with_replicas(3, (1, 2))
    world.move("t", 0, (1, 3))
    world.move("t", 0, (1, 2))
    assert world.state("t") == ((1, 2), (), (), (1, 2))


@pytest.mark.parametrize(
    ("targets", "error", "says"),
    [
        ((), InvalidReplicaAssignmentError, "empty"),
        ((1, 1), InvalidReplicaAssignmentError, "named twice"),
        ((1, 9), InvalidReplicaAssignmentError, "broker 9 is not registered"),
        ((1, 3), InvalidReplicaAssignmentError, "broker 3 is being drained"),
    ],
)
def test_impossible_targets_are_refused(targets: tuple[int, ...], error: type[Exception], says: str) -> None:
    world = with_replicas(3, (1, 2))
    world.ask(DrainBroker(3, draining=True))
    with pytest.raises(error, match=says):
        world.move("t", 0, targets)
    assert not world.image.ledger.reassigning


def test_each_item_is_taken_or_refused_by_itself() -> None:
    world = with_replicas(3, (1, 2), (1, 2))
    errors = world.reassign({("t", 0): (1, 3), ("t", 7): (1, 3), ("nothing", 0): (1,), ("t", 1): None})
    assert [type(error) for error in errors] == [
        type(None),
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        NoReassignmentInProgressError,
    ]
    twice = AlterPartitionReassignments((Reassignment("t", 1, (1, 3)), Reassignment("t", 1, (2, 3))))
    assert [type(each.error) for each in world.ask(twice)] == [InvalidRequestError] * 2
    with pytest.raises(InvalidRequestError, match="throttle_bytes_per_s=-1"):
        world.move("t", 1, (1, 3), throttle_bytes_per_s=-1)
    small = with_replicas(3, (1, 2), (1, 2))
    object.__setattr__(small.core.settings, "metadata_max_records_per_request", 1)
    with pytest.raises(PolicyViolationError, match="split it"):
        small.reassign({("t", 0): (1, 3), ("t", 1): (1, 3)})


def test_a_deleted_topic_takes_its_reassignments_with_it() -> None:
    world = with_replicas(3, (1, 2), (1, 2), reassignment_partitions_per_broker=1)
    world.reassign({("t", 0): (1, 3), ("t", 1): (1, 3)})
    assert len(world.image.ledger.reassigning) == len(world.image.ledger.queued) == 1
    world.ask(DeleteTopics(("t",)))
    assert not world.image.ledger.reassigning
    assert not world.image.ledger.queued
    world.upkeep()


# -- pace -------------------------------------------------------------------------------------------------------------


def test_no_broker_takes_part_in_more_copies_than_it_may_and_all_are_done_in_the_end() -> None:
    world = with_replicas(4, *[(1, 2)] * 9, reassignment_partitions_per_broker=2)
    world.reassign({("t", number): (1, 3) for number in range(9)})
    seen = []
    for _ in range(20):
        world.upkeep()
        seen.append(len(world.image.ledger.reassigning))
        assert seen[-1] <= 2, "broker 3 fetches, and broker 1 sends, more than two at a time"
        world.catch_up(at_most=1)
    assert max(seen) == 2
    assert not world.image.ledger.queued
    assert all(world.state("t", number) == ((1, 3), (), (), (1, 3)) for number in range(9))


def test_what_waits_is_listed_as_what_it_will_be_and_can_be_cancelled() -> None:
    world = with_replicas(3, (1, 2), (2, 1), reassignment_partitions_per_broker=1)
    world.reassign({("t", 0): (1, 3), ("t", 1): (2, 3)})
    first, second = listed(world.image)
    assert (first.replicas, first.adding, first.removing, first.waits) == ((1, 3, 2), (3,), (2,), False)
    assert (second.replicas, second.adding, second.removing, second.waits) == ((2, 1), (3,), (1,), True)
    assert list(listed(world.image, [("t", 1), ("t", 9), ("none", 0)])) == [second]
    world.move("t", 1, None)
    assert list(listed(world.image)) == [first]


def test_a_copy_to_a_broker_that_is_away_keeps_nobody_waiting() -> None:
    world = with_replicas(4, (1, 2), (1, 2), reassignment_partitions_per_broker=1)
    world.move("t", 0, (1, 3))
    world.pass_time(20_000, but=[3])
    world.move("t", 1, (1, 4))
    assert world.state("t", 1)[1] == (4,)
    world.catch_up()
    world.upkeep()
    assert world.state("t", 1) == ((1, 4), (), (), (1, 4))
    assert world.state("t", 0)[1] == (3,)


def test_an_operators_wish_waits_for_a_broker_that_is_away() -> None:
    world = with_replicas(3, (1, 2))
    world.pass_time(20_000, but=[3])
    world.move("t", 0, (1, 3))
    assert world.state("t")[1] == ()
    assert [each.waits for each in listed(world.image)] == [True]
    world.beat(world.brokers[3])
    world.settle()
    assert world.state("t") == ((1, 3), (), (), (1, 3))


# -- the throttle -----------------------------------------------------------------------------------------------------


def test_a_throttle_is_set_with_the_reassignment_and_lifted_at_its_end() -> None:
    world = with_replicas(4, (1, 2), (2, 1))
    world.move("t", 0, (1, 3), throttle_bytes_per_s=1_000_000)
    assert world.topic_config("t") == {LEADERS: "0:1,0:2", FOLLOWERS: "0:3"}
    for broker in (1, 2, 3):
        assert world.broker_config(broker) == {RATE: "1000000", FOLLOWER_RATE: "1000000"}
    assert world.broker_config(4) == {}
    world.move("t", 1, (2, 4))
    assert world.topic_config("t") == {LEADERS: "0:1,0:2,1:2,1:1", FOLLOWERS: "0:3,1:4"}
    assert world.broker_config(4) == {RATE: "1000000", FOLLOWER_RATE: "1000000"}
    world.catch_up(at_most=1)
    world.upkeep()
    assert world.topic_config("t") == {LEADERS: "1:2,1:1", FOLLOWERS: "1:4"}
    assert world.broker_config(1) == {RATE: "1000000", FOLLOWER_RATE: "1000000"}
    world.settle()
    assert world.topic_config("t") == {}
    assert [world.broker_config(broker) for broker in (1, 2, 3, 4)] == [{}] * 4
    assert world.image.ledger.throttle.bytes_per_s == 0


def test_a_throttle_stays_as_long_as_anything_waits_and_covers_it_when_it_begins() -> None:
    world = with_replicas(3, (1, 2), (1, 2), reassignment_partitions_per_broker=1)
    world.reassign({("t", 0): (1, 3), ("t", 1): (1, 3)}, throttle_bytes_per_s=5)
    assert world.topic_config("t") == {LEADERS: "0:1,0:2", FOLLOWERS: "0:3"}
    world.catch_up()
    world.upkeep()
    assert world.topic_config("t") == {LEADERS: "1:1,1:2", FOLLOWERS: "1:3"}
    world.settle()
    assert world.topic_config("t") == {}
    assert world.broker_config(1) == {}


def test_a_throttle_can_be_changed_set_later_and_lifted_while_partitions_move() -> None:
    world = with_replicas(3, (1, 2))
    world.move("t", 0, (1, 3))
    assert world.topic_config("t") == {}
    world.reassign({}, throttle_bytes_per_s=7)
    assert world.topic_config("t") == {LEADERS: "0:1,0:2", FOLLOWERS: "0:3"}
    world.reassign({}, throttle_bytes_per_s=8)
    assert world.broker_config(3) == {RATE: "8", FOLLOWER_RATE: "8"}
    world.reassign({}, throttle_bytes_per_s=0)
    assert world.topic_config("t") == {}
    assert world.broker_config(3) == {}
    assert world.state("t")[1] == (3,), "the copy goes on"
    before = len(world.log)
    world.reassign({}, throttle_bytes_per_s=0)
    assert len(world.log) == before


def test_cancelling_the_last_reassignment_lifts_the_throttle() -> None:
    world = with_replicas(3, (1, 2))
    world.move("t", 0, (1, 3), throttle_bytes_per_s=7)
    world.move("t", 0, None)
    assert world.topic_config("t") == {}
    assert world.broker_config(1) == {}
    world.reassign({}, throttle_bytes_per_s=7)
    assert world.broker_config(1) == {}, "there is nothing to throttle"


def test_deleting_the_topic_of_the_last_reassignment_lifts_the_throttle() -> None:
    world = with_replicas(3, (1, 2), (1, 2), reassignment_partitions_per_broker=1)
    world.topic("other", [(1, 2)])
    world.reassign({("t", 0): (1, 3), ("t", 1): (1, 3)}, throttle_bytes_per_s=1_000)
    world.ask(DeleteTopics(("unknown",)))
    assert world.broker_config(1)[RATE] == "1000"
    world.ask(DeleteTopics(("t",)))
    assert world.broker_config(1) == {}
    world.move("other", 0, (1, 3))
    assert world.topic_config("other") == {}, "the next reassignment has no throttle"


def test_lists_of_an_operators_own_stay() -> None:
    world = MovesWorld(3)
    world.topic("t", [(1, 2), (1, 2)], **{LEADERS: "*", FOLLOWERS: "1:2"})
    world.move("t", 0, (1, 3), throttle_bytes_per_s=7)
    assert world.topic_config("t") == {LEADERS: "*", FOLLOWERS: "1:2,0:3"}
    world.settle()
    assert world.topic_config("t") == {LEADERS: "*", FOLLOWERS: "1:2"}
