"""The planner: every move is legal and keeps the racks, no unneeded move is planned, and the plan ends."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest

from headrace_controller.cluster.placement import Placer
from headrace_controller.cluster.rebalance import Move, _Planner, plan
from headrace_core.metadata import BrokerChangeRecord, MetadataImage, PartitionChangeRecord
from tests.worlds.cluster_world import (
    after_moves,
    applied,
    cluster,
    leader_counts,
    rack_count,
    random_cluster,
    replica_counts,
    with_topic,
)

SCHEDULES = range(300)
ENOUGH = 1_000


def replicas_of(image: MetadataImage, move: Move) -> tuple[int, ...]:
    return image.topics[move.topic_id].partitions[move.partition].replicas


@pytest.mark.parametrize("fill", [False, True])
def test_every_move_is_legal_and_keeps_the_racks(seed: int, fill: bool) -> None:
    moved = 0
    for schedule in SCHEDULES:
        image = random_cluster(random.Random(seed + schedule))
        takers = {each.broker_id for each in image.placeable_brokers()}
        draining = {each.broker_id for each in image.brokers.values() if each.draining}
        moves = plan(image, fill=fill, moves_max=ENOUGH)
        assert len({(move.topic_id, move.partition) for move in moves}) == len(moves)
        for move in moves:
            before = replicas_of(image, move)
            assert len(set(move.targets)) == len(move.targets) == len(before), (seed + schedule, move)
            added, gone = set(move.targets) - set(before), set(before) - set(move.targets)
            assert added <= takers, (seed + schedule, move)
            assert fill or gone <= draining, (seed + schedule, move)
            if not gone & draining:
                assert rack_count(image, move.targets) >= rack_count(image, before), (seed + schedule, move)
            moved += 1
    assert moved > 300, "the schedules hardly moved anything"


def test_a_drain_leaves_a_replica_only_where_no_other_broker_could_take_it(seed: int) -> None:
    emptied = 0
    for schedule in SCHEDULES:
        image = random_cluster(random.Random(seed + schedule))
        after = after_moves(image, plan(image, fill=False, moves_max=ENOUGH))
        takers = {each.broker_id for each in after.placeable_brokers()}
        for broker in image.brokers.values():
            if broker.draining:
                for _, _, partition in after.partitions_on(broker.broker_id):
                    assert takers <= set(partition.replicas), seed + schedule
                emptied += broker.broker_id not in after.loads and broker.broker_id in image.loads
    assert emptied > 10


def test_a_plan_carried_out_leaves_nothing_to_plan(seed: int) -> None:
    for schedule in SCHEDULES:
        image = random_cluster(random.Random(seed + schedule))
        after = after_moves(image, plan(image, fill=True, moves_max=ENOUGH))
        assert plan(after, fill=True, moves_max=ENOUGH) == [], seed + schedule


def test_a_plan_of_few_moves_at_a_time_ends_too(seed: int) -> None:
    for schedule in SCHEDULES[::10]:
        image = random_cluster(random.Random(seed + schedule))
        for _ in range(200):
            moves = plan(image, fill=True, moves_max=3)
            assert len(moves) <= 3
            if not moves:
                break
            image = after_moves(image, moves)
        else:
            pytest.fail(f"seed {seed + schedule}: no end after 200 plans")


def test_no_more_replicas_move_than_brokers_lack(seed: int) -> None:
    for schedule in SCHEDULES:
        rng = random.Random(seed + schedule)
        image = cluster([rng.choice(["a", "b", None]) for _ in range(rng.randint(2, 8))])
        holders = rng.sample(sorted(image.brokers), rng.randint(2, len(image.brokers)))
        image = with_topic(image, "t", [tuple(rng.sample(holders, 2)) for _ in range(rng.randint(1, 60))])
        counts = replica_counts(image)
        share = sum(counts.values()) // len(image.brokers)
        lacking = sum(max(0, share - counts[each]) for each in image.brokers)
        moves = plan(image, fill=True, moves_max=ENOUGH)
        travelled = sum(len(set(move.targets) - set(replicas_of(image, move))) for move in moves)
        assert travelled <= lacking, seed + schedule
        after = replica_counts(after_moves(image, moves))
        if all(broker.rack is None for broker in image.brokers.values()):
            assert travelled == lacking, seed + schedule
        assert max(after.values()) <= max(counts.values()), seed + schedule


def test_a_broker_that_joins_gets_its_share_of_replicas_and_leaders_and_the_others_keep_theirs_even() -> None:
    image = cluster([None] * 4)
    ring = [(1, 2), (2, 3), (3, 1)]
    image = with_topic(image, "t", [ring[number % 3] for number in range(60)])
    moves = plan(image, fill=True, moves_max=ENOUGH)
    after = after_moves(image, moves)
    assert replica_counts(after) == {1: 30, 2: 30, 3: 30, 4: 30}
    assert leader_counts(after) == {1: 15, 2: 15, 3: 15, 4: 15}
    assert sum(4 in move.targets for move in moves) == 30


def test_leaders_are_evened_out_without_moving_data() -> None:
    image = with_topic(cluster([None] * 3), "t", [(1, 2, 3)] * 30)
    moves = plan(image, fill=True, moves_max=ENOUGH)
    assert all(sorted(move.targets) == [1, 2, 3] for move in moves)
    assert leader_counts(after_moves(image, moves)) == {1: 10, 2: 10, 3: 10}
    assert len(moves) == 20


def test_brokers_that_join_lead_their_share_of_every_topic_not_only_of_the_largest(seed: int) -> None:
    """A cluster that a user reported: it had 56 partitions. Two new brokers led 11 each, but none of the 6 partitions
    with load."""
    for schedule in SCHEDULES[::10]:
        rng = random.Random(seed + schedule)
        old, new = rng.randint(3, 4), rng.randint(1, 3)
        image = cluster([None] * (old + new), fenced=range(old + 1, old + new + 1))
        for name, count in (("orders", rng.choice((6, 12))), ("__consumer_offsets", 50), ("small", 2)):
            placer = Placer(image.placeable_brokers(), image.loads)
            placer.begin_topic()
            image = with_topic(image, name, placer.place_all(count, 3))
        epochs = {each: image.brokers[each].broker_epoch for each in image.brokers}
        live = [BrokerChangeRecord(each, epochs[each], fenced=False) for each in range(old + 1, old + new + 1)]
        image = applied(image, live)
        after = after_moves(image, plan(image, fill=True, moves_max=ENOUGH))
        assert spread(leader_counts(after), after) <= 1, seed + schedule
        for topic in after.topics.values():
            led = Counter(partition.replicas[0] for partition in topic.partitions)
            assert spread(led, after) <= 1, (seed + schedule, topic.name, led)


def test_a_topics_leaders_are_evened_out_in_exchange_for_anothers_when_all_lead_alike() -> None:
    image = with_topic(cluster([None] * 2), "busy", [(1, 2)] * 4)
    image = with_topic(image, "idle", [(2, 1)] * 4)
    moves = plan(image, fill=True, moves_max=ENOUGH)
    after = after_moves(image, moves)
    assert len(moves) == 4
    assert [Counter(each.replicas[0] for each in topic.partitions) for topic in after.topics.values()] == [
        {1: 2, 2: 2},
        {1: 2, 2: 2},
    ]


def test_evening_out_the_leaders_of_topics_never_makes_all_leaders_less_even(seed: int) -> None:
    for schedule in SCHEDULES:
        image = random_cluster(random.Random(seed + schedule))
        takers = {each.broker_id for each in image.placeable_brokers()}
        planner = _Planner(image, ENOUGH)
        planner.lead()
        after = after_moves(image, planner.moves())
        assert squares(leader_counts(after), takers) <= squares(leader_counts(image), takers), seed + schedule


def spread(counts: Counter[int], image: MetadataImage) -> int:
    return max(counts[each] for each in image.brokers) - min(counts[each] for each in image.brokers)


def squares(counts: Counter[int], brokers: Collection[int]) -> int:
    return sum(counts[each] ** 2 for each in brokers)


def test_leadership_is_handed_along_a_path_where_the_two_share_no_partition() -> None:
    image = with_topic(cluster([None] * 3), "t", [(1, 2), (1, 2), (1, 2), (2, 3), (2, 3)])
    moves = plan(image, fill=True, moves_max=ENOUGH)
    assert sorted(leader_counts(after_moves(image, moves)).values()) == [1, 2, 2]


def test_a_restart_moves_nothing() -> None:
    full = with_topic(cluster([None] * 3), "t", [(1, 2), (2, 3), (3, 1)] * 10)
    assert plan(full, fill=True, moves_max=ENOUGH) == []
    fenced = with_topic(cluster([None] * 3, fenced=[3]), "t", [(1, 2), (2, 3), (3, 1)] * 10)
    assert plan(fenced, fill=True, moves_max=ENOUGH) == []


def test_what_is_moving_or_not_healthy_is_left_alone_but_a_drain_redirects_what_is_on_its_way() -> None:
    image = with_topic(cluster([None] * 4), "t", [(1, 2), (1, 2), (1, 2), (1, 2)])
    topic_id = next(iter(image.topics))
    moving = PartitionChangeRecord(topic_id, 0, 1, replicas=(1, 4, 2), adding=(4,), removing=(2,))
    shrunk = PartitionChangeRecord(topic_id, 1, 1, isr=(1,))
    image = applied(image, [moving, shrunk])
    assert {move.partition for move in plan(image, fill=True, moves_max=ENOUGH)} <= {2, 3}
    draining = with_topic(cluster([None] * 4, draining=[4]), "t", [(1, 2)])
    moving = PartitionChangeRecord(topic_id, 0, 1, replicas=(1, 4, 2), adding=(4,), removing=(2,))
    back = [Move(topic_id, 0, (1, 2))]  # broker 2 still has the data
    assert plan(applied(draining, [moving]), fill=False, moves_max=ENOUGH) == back


def test_a_partition_without_a_leader_stays_for_there_is_nobody_to_copy_it_from() -> None:
    image = with_topic(cluster([None] * 2, draining=[1]), "t", [(1,), (1,)])
    topic_id = next(iter(image.topics))
    image = applied(image, [PartitionChangeRecord(topic_id, 0, 1, leader=-1, leader_epoch=1)])
    assert plan(image, fill=False, moves_max=ENOUGH) == [Move(topic_id, 1, (2,))]


def test_a_replica_never_goes_to_a_rack_that_its_partition_is_in_while_another_is_free() -> None:
    image = cluster(["a", "b", "a", "c"], draining=[2])
    image = with_topic(image, "t", [(1, 2)] * 4)
    targets = {move.targets for move in plan(image, fill=False, moves_max=ENOUGH)}
    assert targets == {(1, 4)}
