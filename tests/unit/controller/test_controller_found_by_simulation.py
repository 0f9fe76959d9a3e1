"""Bugs in the controller found by the simulator, repeated step by step."""

from __future__ import annotations

import random

from headrace_controller.cluster.requests import HeartbeatsEnded
from headrace_controller.quorum_controller import QuorumController, QuorumSettings
from headrace_controller.raft import Role
from tests.worlds.quorum_world import QuorumWorld


def _elected(world: QuorumWorld) -> QuorumController:
    """A leader as soon as it is elected, before it has committed anything."""
    for _ in range(1_000):
        for controller in world.alive():
            world.turn(controller.node_id)
            if controller.role is Role.LEADER:
                return controller
        if world.network:
            world.deliver()
        else:
            world.clock.advance(100)
    raise AssertionError("nobody is elected")


def test_a_first_leader_that_is_asked_to_hand_over_before_it_is_ready_lives(rng: random.Random) -> None:
    world = QuorumWorld(3, rng)
    leader = _elected(world)
    assert not leader.image.cluster_id, "the first leader has yet to say whose log it is"
    other = next(key for key in leader.voters if key != leader.key)
    world.is_cut = lambda message: message.to == other  # this node never becomes the leader
    asked = world.call(leader.transfer, other)
    world.settle()
    world.until(lambda: asked.is_answered)
    world.is_cut = lambda message: False
    world.until(lambda: all(each.image.cluster_id for each in world.alive()))


def test_a_leader_that_hands_over_fences_nobody_meanwhile(rng: random.Random) -> None:
    world = QuorumWorld(3, rng)
    leader = world.elect()
    world.live_broker()
    world.pass_ms(500)
    broker = leader.image.brokers[1]
    assert not broker.fenced
    world.do(HeartbeatsEnded(broker.broker_id, broker.broker_epoch))
    other = next(key for key in leader.voters if key != leader.key)
    world.isolate(other.node_id)  # this node never becomes the leader
    for _ in range(12):  # the broker's session ends during the leadership transfer, and that requires a proposal
        asked = world.call(leader.transfer, other)
        world.pass_ms(800)
        assert not asked.is_answered
        world.until(lambda asked=asked: asked.is_answered)  # type: ignore[misc]
    world.until(lambda: leader.image.brokers[1].fenced)
    assert leader.is_active


def test_nothing_is_no_snapshot(rng: random.Random) -> None:
    """A log that is long enough for a snapshot, with an unknown committed end."""
    world = QuorumWorld(3, rng, settings=QuorumSettings(snapshot_bytes=300))
    world.elect()
    world.live_broker()
    world.pass_ms(300)
    for number in (1, 2, 3):
        world.kill(number)
    for number in (1, 2, 3):
        controller = world.start(number)
        assert controller.image.next_offset == 0
        assert controller.snapshot_due() is None
