"""A leader that stops hands its leadership over to a live voter. If the other voters are gone, the leader stops at once
without a transfer."""

from __future__ import annotations

import random

from headrace_core.errors import RequestTimedOutError
from tests.worlds.quorum_world import QuorumWorld, followers


def _led(rng: random.Random) -> QuorumWorld:
    world = QuorumWorld(3, rng)
    world.elect()
    world.pass_ms(500)
    return world


def test_the_successor_is_one_that_is_connected(rng: random.Random) -> None:
    world = _led(rng)
    leader, (one, other) = world.leader, followers(world)
    assert leader.best_successor() in (one.key, other.key)
    assert one.best_successor() is None, "who does not lead has nothing to hand over"
    world.kill(one.node_id)
    assert leader.best_successor() == other.key
    world.kill(other.node_id)
    assert leader.best_successor() is None


def test_a_leader_knows_when_the_rest_decides_nothing(rng: random.Random) -> None:
    world = _led(rng)
    leader, (one, other) = world.leader, followers(world)
    assert not leader.is_left_alone
    world.kill(one.node_id)
    assert not leader.is_left_alone
    world.kill(other.node_id)
    assert leader.is_left_alone
    world.start(one.node_id)  # its message arrived again
    world.pass_ms(1_000)
    assert not leader.is_left_alone


def test_a_hand_over_ends_with_the_connection_of_its_successor(rng: random.Random) -> None:
    world = _led(rng)
    leader, (one, other) = world.leader, followers(world)
    world.isolate(one.node_id)
    asked = world.call(leader.transfer, one.key)
    world.settle()
    assert not asked.is_answered
    leader.peer_lost(one.key)
    world.settle()
    assert isinstance(asked.result, RequestTimedOutError)
    assert leader.is_active
    assert world.create("still-led")
    assert leader.best_successor() == other.key
