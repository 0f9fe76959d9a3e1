"""The controllers allocate producer ids in blocks of a thousand, and never allocate an id twice, under any leader."""

from __future__ import annotations

import random

import pytest

from headrace_controller.cluster.requests import (
    AllocateProducerIds,
    CoordinatorRegistered,
    ProducerIdBlock,
    RegisterCoordinator,
)
from headrace_core.errors import BrokerIdNotRegisteredError, StaleBrokerEpochError, UnknownServerError
from headrace_core.metadata import BrokerEndpoint, ProducerIdsRecord
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16


def test_blocks_follow_each_other_also_those_in_flight() -> None:
    world = ClusterWorld()
    one, two = world.live_broker(1), world.live_broker(2)
    ask = [AllocateProducerIds(each.broker_id, each.broker_epoch) for each in (one, two)]
    assert world.ask(ask[0]) == ProducerIdBlock(0, 1_000)
    assert world.ask(ask[0], in_flight=True) == ProducerIdBlock(1_000, 1_000)
    assert world.ask(ask[1], in_flight=True) == ProducerIdBlock(2_000, 1_000)
    assert world.log[-1] == ProducerIdsRecord(two.broker_id, two.broker_epoch, 3_000)


def test_only_a_broker_in_its_present_life_gets_any() -> None:
    world = ClusterWorld()
    broker = world.live_broker(1)
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(AllocateProducerIds(9, 0))
    with pytest.raises(StaleBrokerEpochError):
        world.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch - 1))
    assert world.image.ledger.next_producer_id == 0


def test_a_coordinator_gets_blocks_of_its_own_while_it_is_registered() -> None:
    world = ClusterWorld()
    broker = world.live_broker(1)
    endpoints = (BrokerEndpoint("internal", "h", 1),)
    registered = world.ask(RegisterCoordinator(cluster_id=CLUSTER, incarnation_id=id16(1), endpoints=endpoints))
    assert isinstance(registered, CoordinatorRegistered)
    who = registered.coordinator_id, registered.coordinator_epoch
    assert world.ask(AllocateProducerIds(coordinator=who)) == ProducerIdBlock(0, 1_000)
    assert world.log[-1] == ProducerIdsRecord(-1, -1, 1_000)
    assert world.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch)) == ProducerIdBlock(1_000, 1_000)
    with pytest.raises(StaleBrokerEpochError):
        world.ask(AllocateProducerIds(coordinator=(who[0], who[1] - 1)))
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(AllocateProducerIds(coordinator=(who[0] + 1, who[1])))


def test_ids_end_rather_than_begin_again() -> None:
    world = ClusterWorld()
    broker = world.live_broker(1)
    last = ProducerIdsRecord(1, broker.broker_epoch, 2**63 - 900)
    world.log.append(last)
    image = world.image.apply([last], world.image.next_offset + 1)
    world.core.replay(image)
    with pytest.raises(UnknownServerError, match="all producer ids"):
        world.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch))


def test_no_id_is_given_out_twice_through_resignations_and_lost_decisions(seed: int) -> None:
    """A request for a block is answered when the record of the block is committed. The next leader may allocate an
    uncommitted block again."""
    rng = random.Random(seed)
    world = ClusterWorld()
    broker = world.live_broker(1)
    answered: list[int] = []
    in_flight: list[int] = []
    lost = 0
    for _ in range(300):
        act = rng.random()
        if act < 0.6:
            decision = world.decide(AllocateProducerIds(broker.broker_id, broker.broker_epoch))
            assert isinstance(decision.reply, ProducerIdBlock)
            in_flight.append(decision.reply.first)
        elif act < 0.8:
            world.commit()
            answered += in_flight
            in_flight = []
        else:
            lost += len(in_flight)
            in_flight = []
            world.core.resign()
            del world.log[world.image.next_offset :]
            world.core.lead(world.now_ms)
    assert len(set(answered)) == len(answered)
    assert answered == sorted(answered)
    assert len(answered) > 30
    assert lost > 10, "nothing was ever lost"
