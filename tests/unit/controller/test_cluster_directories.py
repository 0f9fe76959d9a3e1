"""Directories in the cluster's rules (KIP-858): places of replicas, and the effect of a failed directory."""

from __future__ import annotations

import random

import pytest

from headrace_controller.cluster.requests import (
    AssignDirectories,
    CreatePartitions,
    MorePartitions,
    Placement,
    RegisterBroker,
    Registered,
)
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    LogDirNotFoundError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import EMPTY_IMAGE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY, BrokerEndpoint
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.types import NO_LEADER
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16

ONE, TWO, THREE = id16(71), id16(72), id16(73)


def one_broker() -> tuple[ClusterWorld, Registered]:
    world = ClusterWorld()
    return world, world.live_broker(7, directories=(ONE, TWO))


# -- assignments ------------------------------------------------------------------------------------------------------


def test_a_broker_with_one_directory_has_its_replicas_there_from_the_start() -> None:
    world = ClusterWorld()
    world.live_broker(7)
    world.create("t", 2)
    assert [world.partition("t", number).directories for number in (0, 1)] == [(id16(7),)] * 2
    world.ask(CreatePartitions((MorePartitions(topic="t", total=3),)))
    assert world.partition("t", 2).directories == (id16(7),)


def test_a_broker_with_several_directories_says_where_its_replicas_are() -> None:
    world, broker = one_broker()
    topic = world.create("t", 3)
    assert world.partition("t").directories == (UNASSIGNED_DIRECTORY,)
    assert world.partition("t").leader == 1, "an unassigned replica is believed to be well"
    assert world.assign(broker, topic, ONE, 0, 2) == ()
    assert world.assign(broker, topic, TWO, 1) == ()
    assert [world.partition("t", number).directories for number in range(3)] == [(ONE,), (TWO,), (ONE,)]
    assert [world.partition("t", number).partition_epoch for number in range(3)] == [1, 1, 1]
    assert [world.partition("t", number).leader_epoch for number in range(3)] == [0, 0, 0], "nothing else moves"


def test_what_is_known_already_writes_nothing() -> None:
    world, broker = one_broker()
    topic = world.create("t", 2)
    world.assign(broker, topic, ONE, 0, 1)
    written = len(world.log)
    assert world.assign(broker, topic, ONE, 0, 1) == ()
    assert len(world.log) == written


def test_a_moved_replica_is_assigned_again() -> None:
    world, broker = one_broker()
    topic = world.create("t")
    world.assign(broker, topic, ONE, 0)
    world.assign(broker, topic, TWO, 0)
    assert world.partition("t").directories == (TWO,)
    assert (world.partition("t").leader, world.partition("t").leader_epoch) == (1, 0)


def test_an_earlier_life_of_the_broker_assigns_nothing() -> None:
    world, former = one_broker()
    topic = world.create("t")
    world.now_ms += 60_000
    world.live_broker(7, life=1, directories=(ONE, TWO))
    with pytest.raises(StaleBrokerEpochError):
        world.assign(former, topic, ONE, 0)
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(AssignDirectories(broker_id=9, broker_epoch=1, placements=()))
    assert world.partition("t").directories == (UNASSIGNED_DIRECTORY,)


def test_each_wrong_assignment_is_refused_by_itself() -> None:
    world, broker = one_broker()
    topic = world.create("t", 2)
    world.live_broker(8)
    other = world.create("theirs", assignments={0: (2,)}, partitions=-1)
    placements = (
        Placement(id16(999), 0, ONE),
        Placement(topic.topic_id, 2, ONE),
        Placement(topic.topic_id, -1, ONE),
        Placement(other.topic_id, 0, ONE),
        Placement(topic.topic_id, 1, id16(8)),
        Placement(topic.topic_id, 0, TWO),
    )
    refused = world.ask(
        AssignDirectories(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, placements=placements)
    )
    assert [type(each.error) for each in refused] == [
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        NotLeaderOrFollowerError,
        LogDirNotFoundError,
    ]
    assert [each.placement for each in refused] == list(placements[:5])
    assert world.partition("t").directories == (TWO,)
    assert world.partition("t", 1).directories == (UNASSIGNED_DIRECTORY,)


def test_a_request_that_contradicts_itself_or_is_too_large_changes_nothing() -> None:
    world = ClusterWorld(metadata_max_records_per_request=3)
    broker = world.live_broker(7, directories=(ONE, TWO))
    topic = world.create("t", 2)
    with pytest.raises(InvalidRequestError, match="two directories"):
        world.ask(
            AssignDirectories(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                placements=(Placement(topic.topic_id, 0, ONE), Placement(topic.topic_id, 0, TWO)),
            )
        )
    with pytest.raises(PolicyViolationError, match="split the request"):
        world.assign(broker, topic, ONE, 0, 1, 2, 3)
    assert world.partition("t").directories == (UNASSIGNED_DIRECTORY,)


# -- a directory fails ------------------------------------------------------------------------------------------------


def test_a_failed_directory_takes_its_replicas_and_no_others_with_it() -> None:
    world, broker = one_broker()
    topic = world.create("t", 4)
    world.assign(broker, topic, ONE, 0, 1)
    world.assign(broker, topic, TWO, 2)
    assert not world.beat(broker, offline_directories=(TWO,)).fenced
    assert [world.partition("t", number).leader for number in range(4)] == [1, 1, NO_LEADER, 1]
    lost = world.partition("t", 2)
    assert (lost.isr, lost.elr, lost.leader_epoch) == ((), (1,), 1), "the only replica is waited for"
    assert world.image.brokers[1].offline_directories == (TWO,)
    written = len(world.log)
    world.beat(broker, offline_directories=(TWO,))
    world.beat(broker)
    assert len(world.log) == written, "within a life a directory does not come back, and is not lost twice"


def test_a_replica_that_was_in_a_failed_directory_before_it_could_be_said_is_offline_too() -> None:
    world, broker = one_broker()
    topic = world.create("t")
    world.beat(broker, offline_directories=(TWO,))
    assert world.partition("t").leader == 1
    assert world.assign(broker, topic, TWO, 0) == ()
    assert (world.partition("t").leader, world.partition("t").directories) == (NO_LEADER, (TWO,))


def test_a_lost_replica_does_not_lead_until_it_is_found() -> None:
    world, broker = one_broker()
    topic = world.create("t")
    world.assign(broker, topic, LOST_DIRECTORY, 0)
    assert (world.partition("t").leader, world.partition("t").elr) == (NO_LEADER, (1,))
    world.beat(broker, want_fence=True)
    world.beat(broker)
    assert world.partition("t").leader == NO_LEADER, "nor when its broker comes back"
    world.assign(broker, topic, TWO, 0)
    assert world.partition("t").leader == 1


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        pytest.param(1, (1, (1,), (), True), id="it leads as the last known leader, if nobody else is eligible"),
        pytest.param(2, (NO_LEADER, (), (2,), False), id="whoever else is eligible is waited for"),
    ],
)
def test_a_lost_replica_may_be_an_empty_one_while_a_directory_is_gone(
    minimum: int, expected: tuple[int, tuple[int, ...], tuple[int, ...], bool]
) -> None:
    """A disk fails, and its broker cannot say whether a replica was on the disk: LOST. After the failure, the disk is
    removed from log.dirs. The broker no longer misses a directory, and creates the log again. The newly created log is
    empty, so the replica must not become a clean leader."""
    world, stopped = lost_replica(minimum)
    broker = restarted(world, stopped, ONE)
    topic = world.image.topic("t")
    assert topic is not None
    world.assign(broker, topic, ONE, 0)
    after = world.partition("t")
    assert (after.leader, after.isr, after.elr, after.recovering) == expected


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_lost_replica_that_is_found_when_all_directories_are_back_has_everything(minimum: int) -> None:
    world, stopped = lost_replica(minimum)
    broker = restarted(world, stopped, ONE, TWO)
    topic = world.image.topic("t")
    assert topic is not None
    world.assign(broker, topic, TWO, 0)
    after = world.partition("t")
    assert (after.leader, after.isr, after.recovering) == (1, (1,), False)


def lost_replica(minimum: int) -> tuple[ClusterWorld, Registered]:
    """There are two brokers. The first broker's replica was the last in-sync replica, and the broker has not reported
    the directory of its log. The first broker stopped cleanly, started without directory TWO, reported the log as lost,
    and stopped cleanly again. The second of the two brokers is down."""
    world = ClusterWorld()
    broker = restarted(world, None, ONE, TWO)
    world.live_broker(8)
    configs = {"min.insync.replicas": str(minimum)}
    topic = world.create("t", partitions=-1, assignments={0: (1, 2)}, configs=configs)
    world.now_ms += 60_000
    world.beat(broker)
    world.tick()
    stop(world, broker)
    broker = restarted(world, broker, ONE)
    world.assign(broker, topic, LOST_DIRECTORY, 0)
    assert (world.partition("t").leader, world.partition("t").last_known_elr) == (NO_LEADER, (1,))
    stop(world, broker)
    return world, broker


def stop(world: ClusterWorld, broker: Registered) -> None:
    while not world.beat(broker, want_shutdown=True).should_shutdown:
        pass


def restarted(world: ClusterWorld, before: Registered | None, *directories: bytes) -> Registered:
    """The broker stopped cleanly and has log.flush=commit, so it has all records that its directories had."""
    broker = world.ask(
        RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(5_000 + world.image.next_offset),
            directory_ids=directories,
            endpoints=(BrokerEndpoint("client", "127.0.0.1", 9_001),),
            previous_broker_epoch=-1 if before is None else before.broker_epoch,
            default_log_flush="commit",
        )
    )
    assert isinstance(broker, Registered)
    assert not world.beat(broker).fenced
    return broker


def test_a_directory_cannot_have_a_reserved_id() -> None:
    for reserved in (UNASSIGNED_DIRECTORY, LOST_DIRECTORY):
        with pytest.raises(InvalidRequestError, match="reserved"):
            ClusterWorld().register(7, directories=(ONE, reserved))


def test_a_replica_that_is_found_in_a_working_directory_leads_again() -> None:
    world, broker = one_broker()
    topic = world.create("t")
    world.assign(broker, topic, TWO, 0)
    world.beat(broker, offline_directories=(TWO,))
    assert world.partition("t").leader == NO_LEADER
    world.assign(broker, topic, ONE, 0)
    assert (world.partition("t").leader, world.partition("t").leader_epoch) == (1, 2)


def test_a_later_registration_with_the_directory_brings_its_replicas_back() -> None:
    world, broker = one_broker()
    topic = world.create("t", 2)
    world.assign(broker, topic, ONE, 0)
    world.assign(broker, topic, TWO, 1)
    world.beat(broker, offline_directories=(TWO,))
    world.now_ms += 60_000
    world.live_broker(7, life=1, directories=(ONE,))
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, NO_LEADER]
    assert world.image.brokers[1].offline_directories == (TWO,)
    world.now_ms += 60_000
    world.live_broker(7, life=2, directories=(ONE, TWO))
    assert world.image.brokers[1].offline_directories == ()
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, 1]
    assert [world.partition("t", number).directories for number in (0, 1)] == [(ONE,), (TWO,)]


def test_a_directory_that_failed_still_belongs_to_its_broker() -> None:
    world, broker = one_broker()
    world.beat(broker, offline_directories=(TWO,))
    world.now_ms += 60_000
    world.register(7, life=1, directories=(ONE,))
    world.now_ms += 60_000
    assert world.register(7, life=2, directories=(TWO,)).broker_id == broker.broker_id
    assert world.register(9, directories=(THREE, id16(9))).broker_id == 2
    world.now_ms += 60_000
    assert world.register(9, life=1, directories=(THREE, ONE)).broker_id == 2, "a disk may be given to another broker"


def test_a_new_replica_of_a_broker_with_one_directory_left_is_there() -> None:
    world, broker = one_broker()
    world.beat(broker, offline_directories=(ONE,))
    world.create("t")
    assert world.partition("t").directories == (TWO,)


def test_a_broker_without_any_directory_is_fenced_although_it_lives() -> None:
    world, broker = one_broker()
    topic = world.create("t", 2)
    world.assign(broker, topic, ONE, 0)
    reply = world.beat(broker, offline_directories=(ONE, TWO))
    assert reply.fenced
    assert [world.partition("t", number).leader for number in (0, 1)] == [NO_LEADER, NO_LEADER]
    assert world.beat(broker, offline_directories=(ONE, TWO)).fenced, "and stays so"
    with pytest.raises(InvalidReplicationFactorError, match="none is alive"):
        world.create("u")
    world.now_ms += 60_000
    world.live_broker(7, life=1, directories=(ONE, TWO))
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, 1]


def test_a_directory_fails_while_the_broker_shuts_down() -> None:
    world = ClusterWorld()
    first, second = world.live_broker(7, directories=(ONE, TWO)), world.live_broker(8)
    topic = world.create("t", assignments={0: (1, 2), 1: (1, 2)}, partitions=-1)
    world.assign(first, topic, ONE, 0)
    world.assign(first, topic, TWO, 1)
    world.beat(first, want_shutdown=True, offline_directories=(TWO,))
    assert [world.partition("t", number).leader for number in (0, 1)] == [2, 2]
    assert [world.partition("t", number).isr for number in (0, 1)] == [(2,), (2,)]
    world.beat(second)
    assert world.beat(first, want_shutdown=True, offline_directories=(TWO,)).should_shutdown


def test_leadership_moves_to_a_replica_whose_directory_works() -> None:
    world = ClusterWorld()
    brokers = [world.live_broker(number, directories=(id16(number), id16(100 + number))) for number in (7, 8, 9)]
    topic = world.create("t", assignments={0: (1, 2, 3)}, partitions=-1)
    for number, broker in zip((7, 8, 9), brokers, strict=True):
        world.assign(broker, topic, id16(number), 0)
    world.beat(brokers[1], offline_directories=(id16(8),))
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1, 3)), "a follower leaves the in-sync set"
    world.beat(brokers[0], offline_directories=(id16(7),))
    assert (world.partition("t").leader, world.partition("t").isr) == (3, (3,))
    world.beat(brokers[2], offline_directories=(id16(9),))
    assert (world.partition("t").leader, world.partition("t").elr) == (NO_LEADER, (3,))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_nobody_leads_from_an_offline_directory(seed: int) -> None:
    """Random failures, assignments and restarts. A leader's replica is always in sync and works. A partition without a
    leader has no in-sync replica; it waits for an eligible replica or the last known leader, which do not work. The log
    replays to the same image."""
    rng = random.Random(seed)
    world = ClusterWorld(seed)
    disks = {number: (id16(number), id16(100 + number), id16(200 + number)) for number in (7, 8, 9)}
    lives = {number: world.live_broker(number, directories=disks[number]) for number in disks}
    offline: dict[int, set[bytes]] = {number: set() for number in disks}
    for life in range(1, 60):
        number = rng.choice(list(disks))
        broker = lives[number]
        match rng.randrange(5):
            case 0:
                offline[number].add(rng.choice(disks[number]))
                world.beat(broker, offline_directories=tuple(offline[number]))
            case 1:
                world.now_ms += 60_000
                named = tuple(rng.sample(disks[number], rng.randint(1, 3)))
                lives[number], offline[number] = world.register(number, life=life, directories=named), set()
                for each in lives.values():
                    world.beat(each)
            case 2 if len(world.image.active_brokers()) > 1:
                factor = rng.randint(1, len(world.image.active_brokers()))
                world.create(f"t{life}", rng.randint(1, 3), replication_factor=factor)
            case 3:
                for topic in world.image.topics.values():
                    mine = [n for n, each in enumerate(topic.partitions) if broker.broker_id in each.replicas]
                    world.assign(broker, topic, rng.choice(disks[number]), *mine)
            case 4:
                world.beat(broker, offline_directories=tuple(offline[number]), want_fence=rng.random() < 0.3)
        for topic in world.image.topics.values():
            for state in topic.partitions:
                if state.leader == NO_LEADER:
                    waits_for = state.elr or state.last_known_elr
                    assert waits_for, f"seed {seed}: {state}"
                    assert state.isr == (), f"seed {seed}: {state}"
                    able = [each for each in waits_for if world.image.is_available(state, each)]
                    assert not able, f"seed {seed}: {state} could have a leader"
                else:
                    able = [each for each in state.isr if world.image.is_available(state, each)]
                    assert state.leader in able, f"seed {seed}: {state} is led by a replica that does not work"
    (batch,) = decode_batches(encode_decision(world.log, timestamp_ms=1, base_offset=0, epoch=1))
    assert EMPTY_IMAGE.apply(batch.records, len(world.log), 1) == world.image, f"seed {seed}"
