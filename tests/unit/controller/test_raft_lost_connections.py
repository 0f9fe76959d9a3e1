"""``RaftNode.peer_lost``: a follower that loses the leader's connection does not wait for the time-out, and does not
disturb other nodes."""

from __future__ import annotations

import pytest

from headrace_controller.raft import AppendRequest, RaftSettings, Role, VoteRequest
from headrace_controller.raft.progress import Mode
from tests.worlds.raft_world import RaftWorld, key, voters

SETTINGS = RaftSettings(election_ticks=10)


def led_by_one(*node_ids: int, seed: int = 0) -> RaftWorld:
    world = RaftWorld(voters(*node_ids), settings=SETTINGS, seed=seed)
    world.elect(1)
    world.tick(1)
    world.settle()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_a_follower_that_loses_the_leader_stands_within_three_ticks(seed: int) -> None:
    world = led_by_one(1, 2, 3, seed=seed)
    world[3].peer_lost(key(1))
    assert world[3].role is Role.FOLLOWER, "not at once: it may be back in a moment"
    ticks = 0
    while world[3].role is Role.FOLLOWER:
        world.tick(3)
        ticks += 1
    assert 1 <= ticks <= 3
    assert world[3].role is Role.PROSPECTIVE


@pytest.mark.parametrize("seed", range(40))
def test_when_the_leaders_process_dies_another_leads_within_three_ticks(seed: int) -> None:
    """All connections of the leader break, so no follower receives its messages. One of the followers is elected within
    1 to 3 ticks. (They do not tick at the same moment; another test covers two followers that tick at the same
    moment.)"""
    world = led_by_one(1, 2, 3, seed=seed)
    world.kill(world.replicas[key(1)])
    ticks = 0
    while Role.LEADER not in (world[2].role, world[3].role):
        world.tick(2)
        world.settle()
        world.tick(3)
        world.settle()
        ticks += 1
    assert ticks <= 3


def test_two_that_stand_at_the_same_moment_split_the_vote_and_stand_again_soon() -> None:
    """Each of two voters has voted for itself, and the third voter is dead: neither candidate waits for a time-out of
    10 to 20 ticks."""
    waited = []
    for seed in range(100):
        world = led_by_one(1, 2, 3, seed=seed)
        world.kill(world.replicas[key(1)])
        ticks = 0
        while Role.LEADER not in (world[2].role, world[3].role):
            world.tick(2, 3)  # before any delivery: each follower asks before it receives the other's request
            world.settle()
            ticks += 1
        waited.append((ticks, world[2].term))
    assert max(term for _, term in waited) > 2, "no vote was split: nothing was shown"
    assert max(ticks for ticks, _ in waited) < 2 * SETTINGS.election_ticks, waited
    assert sum(ticks for ticks, _ in waited) / len(waited) < 5, waited


@pytest.mark.parametrize("seed", range(20))
def test_controllers_that_start_together_elect_as_soon_as_a_majority_is_connected(seed: int) -> None:
    world = RaftWorld(voters(1, 2, 3), settings=SETTINGS, seed=seed)
    world.tick(times=2)
    world.settle()
    assert {world[node_id].role for node_id in (1, 2, 3)} == {Role.FOLLOWER}, "nobody is there yet"
    world[1].observe(key(2))
    world[2].observe(key(1))
    ticks = 0
    while Role.LEADER not in (world[1].role, world[2].role):
        for node_id in (1, 2):
            world.tick(node_id)
            world.settle()
        ticks += 1
    assert ticks <= 3


def test_one_that_is_connected_to_no_majority_has_nobody_to_ask() -> None:
    world = RaftWorld(voters(1, 2, 3, 4, 5), settings=SETTINGS)
    world[1].observe(key(2))
    world[1].observe(key(7))  # it does not vote
    world.tick(1, times=SETTINGS.election_ticks - 1)
    assert world[1].role is Role.FOLLOWER


def test_one_that_asked_in_vain_asks_again_when_somebody_is_there() -> None:
    """All requests of the candidate were lost. The candidate does not wait for another time-out."""
    world = RaftWorld(voters(1, 2, 3), settings=SETTINGS)
    world.tick(1, times=2 * SETTINGS.election_ticks)
    assert world[1].role is Role.PROSPECTIVE
    world.network.clear()
    world[1].observe(key(2))
    for _ in range(3):
        world.tick(1)
        world.settle()
    assert world[1].role is Role.LEADER


@pytest.mark.parametrize("seed", range(20))
def test_one_that_comes_back_to_a_leader_disturbs_nobody(seed: int) -> None:
    """A follower that returns also disturbs no node if it reaches the other follower first, and the leader only
    later."""
    world = led_by_one(1, 2, 3, seed=seed)
    world.crash(world.replicas[key(3)])
    world.restart(world.replicas[key(3)])
    world.is_cut = lambda sender, to: {sender, to} == {key(1), key(3)}
    world[3].observe(key(2))
    for _ in range(3 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert [world[node_id].term for node_id in (1, 2, 3)] == [1, 1, 1]
    world.is_cut = lambda sender, to: False
    world[1].observe(key(3))
    world[3].observe(key(1))
    world.work(world.replicas[key(1)])
    world.settle()
    world.tick(3, times=SETTINGS.election_ticks - 1)
    assert (world[3].leader, world[3].role) == (1, Role.FOLLOWER), "what is heard at once ends the haste"


@pytest.mark.parametrize("seed", range(20))
def test_while_others_hear_the_leader_it_is_refused_and_nothing_is_disturbed(seed: int) -> None:
    world = led_by_one(1, 2, 3, seed=seed)
    world[3].peer_lost(key(1))
    world.is_cut = lambda sender, to: {sender, to} == {key(1), key(3)}
    for _ in range(5 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert (world[1].role, world[1].term, world[3].term) == (Role.LEADER, 1, 1)
    entry = world.propose(1, b"x")
    world.settle()
    assert world[1].committed == entry.next_offset
    world.is_cut = lambda sender, to: False
    world.tick(1)
    world.settle()
    assert (world[3].leader, world[3].committed) == (1, entry.next_offset)


@pytest.mark.parametrize("seed", range(20))
def test_a_flapping_connection_never_makes_the_term_grow(seed: int) -> None:
    """The connection breaks before every tick, for both of its ends. Each time the connection is back for the next
    heartbeat, or for the heartbeat after that."""
    world = led_by_one(1, 2, 3, seed=seed)
    for number in range(10 * SETTINGS.election_ticks):
        world[3].peer_lost(key(1))
        world[1].peer_lost(key(3))
        broken = number % 3 == 0
        world.is_cut = (lambda sender, to: {sender, to} == {key(1), key(3)}) if broken else (lambda sender, to: False)
        world.tick()
        world.settle()
    assert [world[node_id].term for node_id in (1, 2, 3)] == [1, 1, 1]
    assert world[1].role is Role.LEADER


def test_a_leader_that_is_back_is_given_the_whole_time_out_again() -> None:
    world = led_by_one(1, 2, 3)
    for node_id in (2, 3):
        world[node_id].peer_lost(key(1))
    world.tick(1)
    world.settle()  # a heartbeat arrives over the new connections
    world.tick(2, 3, times=SETTINGS.election_ticks - 1)
    assert (world[2].role, world[3].role) == (Role.FOLLOWER, Role.FOLLOWER)
    assert not [message for message in world.network if isinstance(message.body, VoteRequest)]


def test_losing_somebody_who_does_not_lead_means_nothing() -> None:
    world = led_by_one(1, 2, 3)
    world[3].peer_lost(key(2))
    world[3].peer_lost(key(1, disk=9))
    world.tick(3, times=SETTINGS.election_ticks - 1)
    assert world[3].role is Role.FOLLOWER


def test_an_observer_that_loses_the_leader_does_not_stand() -> None:
    world = led_by_one(1, 2, 3)
    observer = world.add(key(4))
    world[1].observe(key(4))
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    assert observer.node.leader == 1
    observer.node.peer_lost(key(1))
    world.tick(4, times=3 * SETTINGS.election_ticks)
    assert observer.node.role is Role.FOLLOWER


def test_a_leader_sends_again_what_was_under_way_when_the_connection_broke() -> None:
    """The leader does not send only later entries, because the follower would refuse them. The leader asks the follower
    at once where the two logs diverge."""
    world = led_by_one(1, 2, 3)
    world.propose(1, b"lost on the way")
    world.network = [message for message in world.network if message.to != key(2)]
    world[1].peer_lost(key(2))
    progress = world[1].progress_of(key(2))
    assert progress is not None
    assert progress.mode is Mode.PROBE
    world.work(world.replicas[key(1)])
    again = [message.body for message in world.network if message.to == key(2)]
    assert [body.entries[0].data for body in again if isinstance(body, AppendRequest)] == [b"lost on the way"]
    world.settle()
    assert world[2].log_end_offset == world[1].log_end_offset
    assert progress.mode is Mode.REPLICATE


def test_a_leader_does_not_wait_for_a_successor_that_has_gone() -> None:
    world = led_by_one(1, 2, 3)
    world.is_cut = lambda sender, to: key(2) in (sender, to)
    world[1].transfer(key(2))
    world.settle()
    assert world[1].transferring_to == key(2)
    world[1].peer_lost(key(3))
    assert world[1].transferring_to == key(2), "somebody else's connection"
    world[1].peer_lost(key(2))
    assert world[1].transferring_to is None
    entry = world.propose(1, b"x")
    world.settle()
    assert world[1].committed >= entry.next_offset


def test_a_follower_that_is_back_is_brought_up_to_date_at_once() -> None:
    """The leader does not wait for the answer to the next heartbeat. The leader counts entries that it sent into the
    broken connection as lost."""
    world = led_by_one(1, 2, 3)
    world.crash(world.replicas[key(2)])
    world[1].peer_lost(key(2))
    entry = world.propose(1, b"while it was away")
    world.settle()
    world.restart(world.replicas[key(2)])
    world[1].observe(key(2))
    world.work(world.replicas[key(1)])
    world.settle()  # no tick
    assert world[2].log_end_offset == entry.next_offset
