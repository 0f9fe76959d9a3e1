"""Brokers that join get their share of replicas, drained brokers lose all replicas, and a restart moves no replica."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headrace_controller.applying import events_of
from headrace_controller.cluster import balancing
from headrace_controller.cluster.balancing import FRUITLESS_MS, is_drained
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DrainBroker,
    Drained,
    FeatureUpdate,
    MorePartitions,
    NewTopic,
    OpKind,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    HeadraceError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
)
from headrace_core.metadata import METADATA_VERSION_FEATURE, ConfigResourceType, MetadataDelta
from headrace_core.telemetry import BrokerDrained, BrokerDraining, BrokerFenced, BrokerUnregistered, Event
from tests.worlds.cluster_world import MovesWorld, rack_count, with_replicas

DELAY_MS = 30_000


def counts(world: MovesWorld) -> dict[int, int]:
    return {broker: world.image.loads[broker].replicas for broker in sorted(world.image.loads)}


def ring(count: int, partitions: int) -> list[tuple[int, ...]]:
    """Partitions with two replicas each, spread evenly over brokers 1 to ``count``."""
    return [(number % count + 1, (number + 1) % count + 1) for number in range(partitions)]


# -- joining ----------------------------------------------------------------------------------------------------------


def test_a_broker_that_joins_gets_its_share_a_few_partitions_at_a_time() -> None:
    world = with_replicas(3, *ring(3, 60), reassignment_partitions_per_broker=3)
    world.add_broker(4)
    world.pass_time(DELAY_MS - 2_000)
    assert not world.image.ledger.queued, "not before the brokers have been the same for a while"
    world.pass_time(4_000)
    assert len(world.image.ledger.reassigning) == 3
    assert len(world.image.ledger.queued) == 27
    world.settle()
    assert counts(world) == {1: 30, 2: 30, 3: 30, 4: 30}
    leaders = Counter(each.leader for each in world.image.topics[world.image.topic_ids["t"]].partitions)
    assert leaders[4] >= 10, "leaders come along"
    quiet = len(world.log)
    world.pass_time(10 * DELAY_MS)
    assert len(world.log) == quiet, "what is left after a rebalance starts no other"


def test_brokers_that_join_lead_some_of_each_topic_as_soon_as_they_have_it() -> None:
    """The preferred leader leads at once. One partition of eleven is below leader.imbalance.per.broker.percentage, so
    the check of imbalance would never elect it."""
    world = MovesWorld(3, auto_leader_rebalance_enable=False)
    in_turn = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    world.topic("orders", in_turn * 2)
    world.topic("others", in_turn * 16)
    for number in (4, 5):
        world.add_broker(number)
    world.pass_time(DELAY_MS + 5_000)
    world.settle()
    world.pass_time(5_000)
    for name, least in (("orders", 1), ("others", 9)):
        parts = world.image.topics[world.image.topic_ids[name]].partitions
        assert [each.leader for each in parts] == [each.replicas[0] for each in parts], name
        led = Counter(each.leader for each in parts)
        assert min(led[number] for number in range(1, 6)) >= least, (name, led)


def test_brokers_that_join_together_share_in_one_plan() -> None:
    world = with_replicas(2, *ring(2, 40))
    world.add_broker(3)
    world.pass_time(DELAY_MS - 5_000)
    world.add_broker(4)
    world.pass_time(DELAY_MS - 5_000)
    assert not world.image.ledger.queued
    world.pass_time(10_000)
    world.settle()
    assert counts(world) == {1: 20, 2: 20, 3: 20, 4: 20}


@pytest.mark.parametrize("away_ms", [3_000, 20_000, 200_000])
def test_a_broker_that_restarts_moves_nothing(away_ms: int) -> None:
    world = with_replicas(3, *ring(3, 30))
    before = counts(world)
    world.pass_time(2 * DELAY_MS)
    world.pass_time(away_ms, but=[3])
    world.add_broker(3, life=1)
    world.pass_time(10 * DELAY_MS)
    assert counts(world) == before
    assert not world.image.ledger.reassigning
    assert not world.image.ledger.queued


def test_a_new_leader_of_the_controllers_moves_nothing_in_haste() -> None:
    world = with_replicas(3, *ring(3, 30))
    world.add_broker(4)
    world.pass_time(DELAY_MS - 2_000)
    world.core.resign()
    world.core.lead(world.now_ms)
    world.pass_time(DELAY_MS - 2_000)
    assert not world.image.ledger.queued
    world.pass_time(4_000)
    assert world.image.ledger.queued


def test_a_small_difference_is_left_alone() -> None:
    world = with_replicas(3, *ring(3, 30), (1, 2), (1, 2))
    world.pass_time(3 * DELAY_MS)
    assert not world.image.ledger.queued
    assert not world.image.ledger.reassigning


def enable(world: MovesWorld, value: str) -> None:
    op = ConfigOp(OpKind.SET, "auto.rebalance.enable", value)
    (result,) = world.ask(AlterConfigs((AlterResource((ConfigResourceType.BROKER, ""), (op,)),)))
    assert result.error is None


def test_rebalancing_can_be_switched_off_also_in_the_middle() -> None:
    world = with_replicas(3, *ring(3, 60), reassignment_partitions_per_broker=3)
    world.add_broker(4)
    enable(world, "false")
    world.pass_time(2 * DELAY_MS)
    assert not world.image.ledger.queued
    enable(world, "true")
    world.pass_time(2_000)
    assert world.image.ledger.queued
    enable(world, "false")
    world.upkeep()
    assert not world.image.ledger.queued, "what waits is dropped, what is under way goes on"
    assert len(world.image.ledger.reassigning) == 3


def test_it_is_off_in_the_properties_file() -> None:
    world = with_replicas(3, *ring(3, 60), auto_rebalance_enable=False)
    world.add_broker(4)
    world.pass_time(3 * DELAY_MS)
    assert not world.image.ledger.queued


def test_nothing_is_planned_at_a_level_that_has_no_records_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = with_replicas(3, *ring(3, 60))
    world.add_broker(4)
    old = FeatureUpdate(METADATA_VERSION_FEATURE, 1, UpgradeType.SAFE_DOWNGRADE)
    (result,) = world.ask(UpdateFeatures((old,)))
    assert result.error is None
    planned: list[object] = []
    monkeypatch.setattr(balancing, "plan", lambda *given, **more: planned.append(given) or [])
    world.pass_time(2 * DELAY_MS)
    assert planned == [], "planning costs time, and could not be written"
    (result,) = world.ask(UpdateFeatures((FeatureUpdate(METADATA_VERSION_FEATURE, 2),)))
    assert result.error is None
    world.pass_time(2_000)
    assert planned


def test_a_plan_for_a_broker_that_goes_away_is_dropped() -> None:
    world = with_replicas(3, *ring(3, 60), reassignment_partitions_per_broker=3)
    world.add_broker(4)
    world.pass_time(DELAY_MS + 2_000)
    assert world.image.ledger.queued
    world.pass_time(20_000, but=[4])
    assert not world.image.ledger.queued
    assert len(world.image.ledger.reassigning) == 3, "it may come back for these"
    world.add_broker(4, life=1)
    world.pass_time(DELAY_MS + 2_000)
    world.settle()
    assert counts(world) == {1: 30, 2: 30, 3: 30, 4: 30}


# -- draining ---------------------------------------------------------------------------------------------------------


def test_a_drained_broker_loses_all_its_replicas_and_may_then_go() -> None:
    world = with_replicas(4, *ring(4, 40), reassignment_partitions_per_broker=3)
    assert world.ask(DrainBroker(2, draining=True)) == Drained(20)
    assert not is_drained(world.image, 2)
    world.upkeep()
    assert len(world.image.ledger.reassigning) <= 9
    world.settle()
    assert counts(world).keys() == {1, 3, 4}
    assert is_drained(world.image, 2)
    assert world.ask(DrainBroker(2, draining=True)) == Drained(0)
    with pytest.raises(InvalidRequestError, match="broker 2 is alive"):
        world.ask(UnregisterBroker(2))
    world.pass_time(20_000, but=[2])
    world.ask(UnregisterBroker(2))
    assert sorted(world.image.brokers) == [1, 3, 4]
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(UnregisterBroker(2))
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(DrainBroker(2, draining=True))


def test_a_drain_is_reported_from_its_begin_to_the_brokers_end() -> None:
    world = with_replicas(3, (1, 2), (2, 3))
    before = world.image

    def new_events() -> list[Event]:
        nonlocal before
        delta = MetadataDelta.between(before, world.image)
        events = list(events_of(delta, before, world.image))
        before = world.image
        return events

    world.ask(DrainBroker(2, draining=True))
    assert new_events() == [BrokerDraining(broker_id=2, replicas=2)]
    world.upkeep()
    assert new_events() == []
    world.settle()
    assert new_events() == [BrokerDrained(broker_id=2)]
    world.ask(DrainBroker(2, draining=True))
    assert new_events() == []
    world.pass_time(20_000, but=[2])
    assert [type(event) for event in new_events()] == [BrokerFenced]
    world.ask(UnregisterBroker(2))
    assert new_events() == [BrokerUnregistered(broker_id=2)]


def test_a_drained_broker_gets_nothing_new_and_stays_so_through_a_restart() -> None:
    world = with_replicas(3, (1, 2))
    world.ask(DrainBroker(3, draining=True))
    world.add_broker(3, life=1)
    assert world.image.brokers[3].draining
    world.create("u", partitions=20, replication_factor=2)
    assert 3 not in world.image.loads
    with pytest.raises(InvalidReplicationFactorError):
        world.create("v", replication_factor=3)
    with pytest.raises(InvalidReplicaAssignmentError, match="broker 3 is being drained"):
        world.topic("w", [(1, 3)])
    (result,) = world.ask(CreatePartitions((MorePartitions(topic="u", total=30),)))
    assert result.error is None
    assert 3 not in world.image.loads
    world.ask(DrainBroker(3, draining=False))
    world.topic("w", [(1, 3)])


def test_a_drain_that_was_cancelled_moves_nothing_more() -> None:
    world = with_replicas(4, *ring(4, 40), reassignment_partitions_per_broker=2)
    world.ask(DrainBroker(2, draining=True))
    world.upkeep()
    assert world.image.ledger.queued
    enable(world, "false")
    world.ask(DrainBroker(2, draining=False))
    world.upkeep()
    assert not world.image.ledger.queued


def test_a_broker_is_not_drained_when_nobody_could_take_its_replicas() -> None:
    world = with_replicas(1, (1,))
    with pytest.raises(InvalidRequestError, match="no other active broker can take them"):
        world.ask(DrainBroker(1, draining=True))


def test_a_drain_that_finds_no_taker_is_tried_again_when_there_is_one() -> None:
    world = with_replicas(3, (1, 2, 3))
    world.ask(DrainBroker(3, draining=True))
    world.pass_time(5_000)
    assert not world.image.ledger.queued
    world.add_broker(4)
    world.pass_time(FRUITLESS_MS + 2_000)
    world.settle()
    assert world.state("t")[0] == (1, 2, 4)


def test_what_is_on_its_way_to_a_broker_that_is_drained_turns_round() -> None:
    world = with_replicas(4, (1, 2))
    world.move("t", 0, (1, 3))
    world.ask(DrainBroker(3, draining=True))
    world.settle()
    assert 3 not in world.image.loads
    assert world.state("t")[0] == (1, 2)


def test_what_is_on_its_way_to_a_drained_broker_turns_round_before_what_is_on_one_leaves() -> None:
    """Only one broker could get either of two replicas. The planner planned a move of the existing replica, and dropped
    the plan because of the replica that was still moving. The planner planned and dropped the move of the existing
    replica again and again, and the metadata log grew."""
    world = with_replicas(4, (2, 3))
    world.move("t", 0, (4, 3))
    world.pass_time(20_000, but=[4])
    for number in (2, 3, 4):
        world.ask(DrainBroker(number, draining=True))
    world.pass_time(1_000, but=[4])
    assert world.state("t") == ((1, 3, 2), (1,), (2,), (2, 3)), "the copy on broker 4 is abandoned"
    world.settle()
    assert world.state("t")[0] == (1, 3)


def test_a_move_to_two_drained_brokers_goes_on_where_only_one_could_be_replaced() -> None:
    """While no plan is possible, the metadata log does not grow."""
    world = with_replicas(5, (1, 2))
    world.move("t", 0, (3, 4))
    world.pass_time(20_000, but=[3, 4])
    for number in (1, 2, 3, 4):
        world.ask(DrainBroker(number, draining=True))
    before = len(world.log)
    world.pass_time(10 * DELAY_MS, but=[3, 4])
    assert world.state("t")[:2] == ((3, 4, 1, 2), (3, 4))
    assert len(world.log) == before
    world.add_broker(6)
    world.pass_time(10 * DELAY_MS, but=[3, 4])
    world.settle()
    assert sorted(world.state("t")[0]) == [5, 6]


def test_a_broker_that_has_replicas_or_is_a_target_is_not_unregistered() -> None:
    world = with_replicas(3, (1, 2))
    world.pass_time(20_000, but=[2, 3])
    with pytest.raises(InvalidRequestError, match="broker 2 has 1 replica"):
        world.ask(UnregisterBroker(2))
    world.move("t", 0, (1, 3))
    with pytest.raises(InvalidRequestError, match="broker 3 has 1 replica"):
        world.ask(UnregisterBroker(3))


# -- everything at once -----------------------------------------------------------------------------------------------


def test_topics_that_come_and_go_stay_even_each_by_itself_and_over_all_racks(seed: int) -> None:
    for schedule in range(8):
        rng = random.Random(seed + schedule)
        racks: list[str | None] = [["a", "b", "c"][number % 3] for number in range(6)]
        world = MovesWorld(6, racks=rng.choice([racks, [None] * 6]), seed=schedule)
        for step in range(60):
            names = sorted(world.image.topic_ids)
            if names and rng.random() < 0.3:
                world.ask(DeleteTopics((rng.choice(names),)))
                continue
            new = NewTopic(name=f"t{step}", partitions=rng.randint(1, 7), replication_factor=rng.randint(1, 3))
            (result,) = world.ask(CreateTopics((new,)))
            assert result.error is None
        for topic in world.image.topics.values():
            leaders = Counter(partition.replicas[0] for partition in topic.partitions)
            assert max(leaders.values()) - min(leaders[each] for each in world.brokers) <= 1
            for partition in topic.partitions:
                racks_there = rack_count(world.image, partition.replicas)
                assert racks_there == len(partition.replicas), (seed + schedule, topic.name)


def test_brokers_come_go_and_drain_and_in_the_end_everything_is_where_it_may_be(seed: int) -> None:
    moved = 0
    for schedule in range(6):
        rng = random.Random(seed + schedule)
        world = with_replicas(4, *ring(4, 24), seed=schedule, reassignment_partitions_per_broker=2)
        lives: Counter[int] = Counter()
        away: set[int] = set()
        for _ in range(60):
            act = rng.random()
            number = rng.choice(sorted(world.brokers))
            if act < 0.1 and len(world.brokers) < 7:
                world.add_broker(len(world.brokers) + 1)
            elif act < 0.2:
                away.add(number)
            elif act < 0.4 and number in away:
                away.discard(number)
                lives[number] += 1
                world.pass_time(12_000, but=away | {number})
                world.add_broker(number, life=lives[number])
            elif act < 0.5:
                try:
                    world.ask(DrainBroker(number, draining=rng.random() < 0.5))
                except HeadraceError:
                    continue
            world.catch_up(at_most=rng.randint(0, 4), but=away)
            world.pass_time(rng.choice([1_000, 5_000, 40_000]), but=away)
            for topic in world.image.topics.values():
                for partition in topic.partitions:
                    assert len(partition.replicas) - len(partition.removing) == 2, seed + schedule
        for number in sorted(away):
            lives[number] += 1
            world.pass_time(12_000, but=away)
            world.add_broker(number, life=lives[number])
        for _ in range(30):
            world.catch_up()
            world.pass_time(40_000)
        moved += sum(type(record).__name__ == "QueuedReassignmentRecord" for record in world.log)
        assert not world.image.ledger.reassigning, seed + schedule
        assert not world.image.ledger.queued, seed + schedule
        takers = {each.broker_id for each in world.image.placeable_brokers()}
        for topic in world.image.topics.values():
            for partition in topic.partitions:
                assert len(takers) < 2 or set(partition.replicas) <= takers, (seed + schedule, partition)
                assert len(partition.isr) == 2, (seed + schedule, partition)
    assert moved > 50, "the schedules hardly moved anything"
