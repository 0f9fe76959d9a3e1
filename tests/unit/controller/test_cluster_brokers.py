"""Brokers in the cluster's rules: ids by directory, heartbeats, fencing, restarts, controlled shutdown."""

from __future__ import annotations

import dataclasses

import pytest

from headrace_controller.cluster.requests import Heartbeat, HeartbeatsEnded, RegisterBroker, Registered
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    HeadraceError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import BrokerEndpoint
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16

REQUEST = RegisterBroker(
    cluster_id=CLUSTER,
    incarnation_id=id16(1),
    directory_ids=(id16(2),),
    endpoints=(BrokerEndpoint("client", "h", 1),),
)


def test_new_directories_get_new_ids_from_one_on() -> None:
    world = ClusterWorld()
    assert [world.register(number).broker_id for number in (7, 8, 9)] == [1, 2, 3]


def test_the_same_directories_get_their_id_back_with_a_larger_epoch() -> None:
    world = ClusterWorld()
    first = world.live_broker(7)
    world.register(8)
    world.now_ms += 10_000
    again = world.register(7, life=1)
    assert again.broker_id == first.broker_id
    assert again.broker_epoch > first.broker_epoch


def test_a_broker_epoch_is_the_offset_of_its_registration() -> None:
    world = ClusterWorld()
    broker = world.register(7)
    record = world.log[broker.broker_epoch]
    assert getattr(record, "broker_epoch", None) == broker.broker_epoch
    assert getattr(record, "broker_id", None) == broker.broker_id


def test_an_operator_may_choose_the_id() -> None:
    world = ClusterWorld()
    assert world.register(7, wanted=42).broker_id == 42
    assert world.register(8).broker_id == 43
    with pytest.raises(InvalidRequestError, match=r"belong to broker 42, but node\.id=5"):
        world.register(7, life=1, wanted=5)


def test_a_repeated_registration_of_one_process_is_answered_as_before() -> None:
    world = ClusterWorld()
    first = world.register(7)
    written = len(world.log)
    assert world.register(7) == first
    assert len(world.log) == written


def test_directories_of_two_brokers_cannot_be_one_broker() -> None:
    world = ClusterWorld()
    world.register(7)
    world.register(8)
    with pytest.raises(InvalidRequestError, match="different brokers: 1, 2"):
        world.ask(dataclasses.replace(REQUEST, directory_ids=(id16(7), id16(8))))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cluster_id": "other"}, InconsistentClusterIdError),
        ({"cluster_id": ""}, InconsistentClusterIdError),
        ({"incarnation_id": b"short"}, InvalidRequestError),
        ({"directory_ids": ()}, InvalidRequestError),
        ({"directory_ids": (b"short",)}, InvalidRequestError),
        ({"directory_ids": (id16(2), id16(2))}, InvalidRequestError),
        ({"endpoints": ()}, InvalidRequestError),
        ({"endpoints": REQUEST.endpoints * 2}, InvalidRequestError),
        ({"endpoints": (BrokerEndpoint("client", "", 1),)}, InvalidRequestError),
        ({"endpoints": (BrokerEndpoint("client", "h", 0),)}, InvalidRequestError),
        ({"rack": "r" * 256}, InvalidRequestError),
        ({"directory_ids": tuple(id16(n) for n in range(1_001))}, InvalidRequestError),
    ],
)
def test_a_wrong_registration_is_refused_and_leaves_nothing(change: dict, error: type[HeadraceError]) -> None:
    world = ClusterWorld()
    written = len(world.log)
    with pytest.raises(error):
        world.ask(dataclasses.replace(REQUEST, **change))
    assert len(world.log) == written


def test_a_broker_stays_fenced_until_it_has_applied_its_registration() -> None:
    world = ClusterWorld()
    broker = world.register(7)
    assert world.beat(broker, applied=broker.broker_epoch).fenced
    assert world.image.active_brokers() == []
    assert not world.beat(broker, applied=broker.broker_epoch + 1).fenced
    assert [b.broker_id for b in world.image.active_brokers()] == [1]


def test_a_broker_may_ask_to_stay_fenced() -> None:
    world = ClusterWorld()
    broker = world.register(7)
    assert world.beat(broker, want_fence=True).fenced
    assert not world.beat(broker).fenced
    assert world.beat(broker, want_fence=True).fenced
    assert world.image.brokers[1].fenced


def test_a_heartbeat_of_nobody_and_of_a_former_life_is_refused() -> None:
    world = ClusterWorld()
    with pytest.raises(BrokerIdNotRegisteredError):
        world.beat(Registered(5, 0))
    old = world.live_broker(7)
    world.now_ms += 10_000
    world.register(7, life=1)
    with pytest.raises(StaleBrokerEpochError, match="is out of date"):
        world.beat(old)


def test_a_second_live_process_with_the_same_directories_is_refused() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.now_ms += 8_999
    with pytest.raises(DuplicateBrokerRegistrationError, match="in use by a live broker"):
        world.register(7, life=1)
    world.now_ms += 1
    assert world.register(7, life=1).broker_epoch > broker.broker_epoch


def test_a_killed_process_is_succeeded_at_once_because_its_stream_broke() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.create("t")
    world.ask(HeartbeatsEnded(broker.broker_id, broker.broker_epoch))
    again = world.register(7, life=1)
    assert again.broker_id == broker.broker_id
    assert world.partition("t").leader == -1  # fenced until it has caught up
    world.beat(again)
    assert world.partition("t").leader == again.broker_id


def test_a_stream_that_comes_back_makes_the_broker_alive_again() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.ask(HeartbeatsEnded(broker.broker_id, broker.broker_epoch))
    world.beat(broker)
    with pytest.raises(DuplicateBrokerRegistrationError):
        world.register(7, life=1)


def test_the_end_of_a_former_lifes_stream_changes_nothing() -> None:
    world = ClusterWorld()
    old = world.live_broker(7)
    world.now_ms += 10_000
    new = world.register(7, life=1)
    world.ask(HeartbeatsEnded(old.broker_id, old.broker_epoch))
    world.beat(new)
    with pytest.raises(DuplicateBrokerRegistrationError):
        world.register(7, life=2)


def test_a_silent_broker_is_fenced_and_its_partitions_wait_for_it() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    topic = world.create("t", 3)
    world.now_ms += 9_000
    world.tick()
    assert not world.image.brokers[1].fenced
    world.now_ms += 1
    world.tick()
    assert world.image.brokers[1].fenced
    for number in range(3):
        partition = world.partition("t", number)
        assert (partition.leader, partition.isr, partition.elr) == (-1, (), (1,))
        assert partition.leader_epoch == topic.partitions[number].leader_epoch + 1
    assert not world.beat(broker).fenced
    assert [world.partition("t", number).leader for number in range(3)] == [1, 1, 1]
    assert world.partition("t").leader_epoch == 2


def test_heartbeats_keep_a_broker_from_being_fenced() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    for _ in range(10):
        world.now_ms += 5_000
        world.beat(broker)
        world.tick()
    assert not world.image.brokers[1].fenced


def test_every_silent_broker_is_fenced_in_one_tick() -> None:
    world = ClusterWorld()
    for number in range(3):
        world.live_broker(number)
    world.now_ms += 9_001
    world.tick()
    assert world.image.active_brokers() == []


def test_a_new_leader_fences_nobody_in_haste() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.now_ms += 60_000
    world.core.lead(world.now_ms)
    world.tick()
    assert not world.image.brokers[1].fenced
    world.now_ms += 9_001
    world.tick()
    assert world.image.brokers[1].fenced
    assert not world.beat(broker).fenced


def test_a_broker_that_wants_to_stop_may_do_so_when_nobody_takes_over() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.create("t")
    reply = world.beat(broker, want_shutdown=True)
    assert (reply.fenced, reply.should_shutdown) == (True, True)
    assert world.partition("t").leader == -1
    assert (world.partition("t").isr, world.partition("t").elr) == ((), (1,))
    again = world.register(7, life=1)  # no wait for a session, because the broker was fenced by its clean stop
    assert world.image.brokers[1].broker_epoch == again.broker_epoch


def test_a_fenced_broker_may_stop_at_any_time() -> None:
    world = ClusterWorld()
    broker = world.register(7)
    assert world.beat(broker, want_shutdown=True).should_shutdown


def test_leaderships_move_before_a_broker_may_stop() -> None:
    world = ClusterWorld()
    leaving, staying = world.live_broker(7), world.live_broker(8)
    world.create("t", 2, replication_factor=2)
    reply = world.beat(leaving, want_shutdown=True)
    assert (reply.fenced, reply.should_shutdown) == (False, False)
    assert [world.partition("t", number).leader for number in range(2)] == [2, 2]
    assert [world.partition("t", number).isr for number in range(2)] == [(2,), (2,)]
    assert not world.beat(leaving, want_shutdown=True).should_shutdown, "the new leader has not heard of it"
    handed_over = world.image.next_offset
    world.create("later", assignments={0: (2,)}, partitions=-1)  # the controller does not wait for later changes
    world.beat(staying, applied=handed_over)
    assert world.beat(leaving, want_shutdown=True).should_shutdown
    assert world.image.brokers[1].fenced


def test_a_broker_that_shuts_down_gets_no_new_replicas() -> None:
    world = ClusterWorld()
    leaving = world.live_broker(7)
    world.live_broker(8)
    world.create("t", 2, replication_factor=2)
    world.beat(leaving, want_shutdown=True)
    assert [p.replicas for p in world.create("u", 4).partitions] == [(2,)] * 4


def test_a_leader_is_elected_from_the_in_sync_replicas_only() -> None:
    world = ClusterWorld()
    brokers = [world.live_broker(number) for number in range(3)]
    world.create("t", partitions=-1, assignments={0: (1, 2, 3)})

    def silence(*numbers: int) -> None:
        world.now_ms += 9_001
        for index, broker in enumerate(brokers, start=1):
            if index not in numbers and not world.image.brokers[index].fenced:
                world.beat(broker)
        world.tick()

    silence(2)
    assert world.partition("t").isr == (1, 3)
    silence(1)
    assert (world.partition("t").leader, world.partition("t").isr) == (3, (3,))
    world.beat(brokers[1])
    assert world.partition("t").isr == (3,), "coming back does not make a replica in sync"
    silence(3)
    waiting = world.partition("t")
    assert (waiting.leader, waiting.isr, waiting.elr) == (-1, (), (3,)), "2 is alive but lacks records"
    world.beat(brokers[2])
    assert (world.partition("t").leader, world.partition("t").isr) == (3, (3,))


def test_a_heartbeat_without_a_change_writes_nothing() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    written = len(world.log)
    decision = world.decide(
        Heartbeat(broker_id=1, broker_epoch=broker.broker_epoch, metadata_offset=world.image.next_offset)
    )
    assert decision.records == ()
    assert len(world.log) == written
