"""A voter whose directory is replaced by an older copy has forgotten what it promised. What another process remembers
stops it; a voter that is as it should be is never stopped (raft/memory.py)."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from headrace_controller.raft import (
    HardState,
    HeartbeatResponse,
    Message,
    OutdatedNotice,
    Place,
    RaftNode,
    RaftSettings,
    RecallRequest,
    RecallResponse,
    Remembered,
    Role,
    VoteRequest,
    VoteResponse,
    quorum_status,
)
from headrace_controller.raft.memory import Memory, contradiction
from headrace_core.errors import DiskFullError, OutdatedVoterError
from tests.unit.controller.raft_schedule import Schedule
from tests.worlds.quorum_world import QuorumWorld
from tests.worlds.raft_world import Disk, RaftWorld, Replica, key, voters

RECALL_TICKS = 8


def world_of(*node_ids: int) -> RaftWorld:
    settings = RaftSettings(election_ticks=5, recall_ticks=RECALL_TICKS)
    world = RaftWorld(voters(*node_ids), settings=settings, draw=lambda below: below - 1)
    world.connect()
    return world


def write(world: RaftWorld, leader: int, count: int = 3) -> None:
    for number in range(count):
        world.propose(leader, b"%d" % number)
    world.settle()
    world.tick(leader)
    world.settle()


def copy_of(world: RaftWorld, node_id: int) -> Disk:
    return copy.deepcopy(world.replicas[key(node_id)].disk)


def restore(world: RaftWorld, node_id: int, disk: Disk) -> Replica:
    """Let a voter come back with an older copy of its directory; its connections break before."""
    replica = world.replicas[key(node_id)]
    world.kill(replica)
    world.network.clear()
    replica.disk = disk
    world.restart(replica)
    return replica


def cut_off(world: RaftWorld, *node_ids: int) -> None:
    world.is_cut = lambda sender, to: (sender.node_id in node_ids) != (to.node_id in node_ids)


# -- what is found


def test_a_follower_that_lost_acknowledged_entries_is_stopped() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 3)
    write(world, 1)
    restore(world, 3, old)
    with pytest.raises(OutdatedVoterError, match=r"controller 1@\w+ remembers that it acknowledged the log up to") as e:
        world.connect()
    assert f"headrace quorum remove {key(3).full_name}" in e.value.message
    assert "headrace quorum add" in e.value.message


def test_a_leader_that_comes_back_with_a_copy_of_its_own_term_is_stopped() -> None:
    """Neither term nor vote went back. The followers remember what the leader said about its disk in heartbeats."""
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 1)
    write(world, 1)
    restore(world, 1, old)
    with pytest.raises(OutdatedVoterError, match=r"controller [23]@\w+ remembers that it acknowledged the log up to"):
        world.connect()


def test_a_voter_that_lost_its_vote_is_stopped() -> None:
    world = world_of(1, 2, 3)
    old = copy_of(world, 2)
    cut_off(world, 3)
    world.elect(1)
    vote = world.replicas[key(2)].disk.hard_state
    assert (vote.term, vote.vote) == (1, key(1))
    old.hard_state = HardState(1)
    old.entries_ = list(world.replicas[key(2)].disk.entries_)
    restore(world, 2, old)
    with pytest.raises(OutdatedVoterError, match=r"controller 1@\w+ remembers its vote for controller 1@\w+ in term 1"):
        world.connect()


def test_a_voter_whose_term_went_back_is_stopped() -> None:
    world = world_of(1, 2, 3)
    old = copy_of(world, 3)
    world.elect(1)
    world.network.clear()
    old.entries_ = list(world.replicas[key(3)].disk.entries_)
    old.hard_state = HardState(0)
    replica = world.replicas[key(3)]
    world.kill(replica)
    old.entries_ = []  # (a log of term 1 would show the term)
    replica.disk = old
    world.restart(replica)
    with pytest.raises(OutdatedVoterError, match="term 1, but this disk has term 0"):
        world.connect()


def test_a_former_leader_remembers_what_was_acknowledged_to_it() -> None:
    """The present leader does not: the voter was cut off when that leader was elected."""
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 3)
    write(world, 1)
    cut_off(world, 3)
    world[1].transfer(key(2))
    world.work(world.replicas[key(1)])
    world.settle()
    assert world[2].role is Role.LEADER
    restore(world, 3, old)
    cut_off(world, 2)
    with pytest.raises(OutdatedVoterError, match=r"controller 1@\w+ remembers that it acknowledged"):
        world.connect()


def test_a_candidate_remembers_the_votes_of_an_election_that_it_lost() -> None:
    world = world_of(1, 2, 3, 4, 5)
    world.tick(1, times=10)
    candidate = world[1]
    candidate.step(Message(key(2), key(1), VoteResponse(0, 1, is_granted=True, is_pre_vote=True)))
    candidate.step(Message(key(3), key(1), VoteResponse(0, 1, is_granted=True, is_pre_vote=True)))
    world.work(world.replicas[key(1)])
    candidate.step(Message(key(2), key(1), VoteResponse(1, 1, is_granted=True)))
    assert candidate.role is Role.CANDIDATE
    assert candidate.recollections().of(key(2)) == Remembered(1, key(1))


# -- what a copy may do until it is found


def test_a_started_voter_answers_no_vote_request_before_the_others_have_answered() -> None:
    """The third voter lacks what 1 and 2 committed. With the vote of an older copy it would lead."""
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 2)
    cut_off(world, 3)
    write(world, 1)
    replica = restore(world, 2, old)
    replica.node.step(Message(key(3), key(2), VoteRequest(2, Place(1, 1))))
    world.work(replica)
    assert not [each for each in world.network if isinstance(each.body, VoteResponse)]
    world.tick(2, times=RECALL_TICKS - 1)
    assert replica.node.role is Role.FOLLOWER
    with pytest.raises(OutdatedVoterError):
        world.connect()
    for body in (VoteRequest(2, Place(9, 1)), HeartbeatResponse(1, 1)):
        replica.node.step(Message(key(3), key(2), body))
    world.network.clear()
    world.work(replica)
    assert not world.network


def test_a_copy_does_not_count_for_commits() -> None:
    """Of five voters, the leader and a follower have entries. The follower comes back with an older copy, and a third
    voter acknowledges: no majority has the entries."""
    world = world_of(1, 2, 3, 4, 5)
    world.elect(1)
    old = copy_of(world, 2)
    cut_off(world, 3, 4, 5)
    world.propose(1, b"a")
    world.settle()
    assert world[1].progress_of(key(2)).match == world[1].log_end_offset  # type: ignore[union-attr]
    committed = world[1].committed
    restore(world, 2, old)
    world.is_cut = lambda sender, to: not {sender.node_id, to.node_id} <= {1, 3}
    world.tick(1)
    world.settle()
    assert world[1].progress_of(key(3)).match == world[1].log_end_offset  # type: ignore[union-attr]
    assert world[1].committed == committed


def test_a_follower_that_reconnects_counts_again_after_a_heartbeat() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(3)])
    world.kill(world.replicas[key(2)])
    world.restart(world.replicas[key(2)])
    world.connect()
    world.tick(2, times=RECALL_TICKS)
    world.settle()
    world.propose(1, b"a")
    world.settle()
    world.tick(1)
    world.settle()
    assert world[1].committed == world[1].log_end_offset


def test_the_others_ignore_a_copy_that_was_found_and_tell() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    write(world, 1)
    world.deliver(Message(key(3), key(1), OutdatedNotice(1)))
    assert [(each.key.node_id, each.is_outdated) for each in quorum_status(world[1]).voters] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    cut_off(world, 2)
    committed = world[1].committed
    world.propose(1, b"a")
    world.settle()
    world.tick(1)
    world.settle()
    assert world[1].committed == committed


def test_the_others_go_on() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 3)
    write(world, 1)
    replica = restore(world, 3, old)
    with pytest.raises(OutdatedVoterError):
        world.connect()
    world.crash(replica)
    world.network.clear()
    write(world, 1)
    assert world[2].committed == world[1].committed == world[1].log_end_offset


def test_a_voter_whose_own_directory_is_put_back_takes_part_again() -> None:
    """The others ignored it until they were restarted, and the quorum status called it an older copy."""
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 3)
    write(world, 1)
    own = copy_of(world, 3)
    replica = restore(world, 3, old)
    with pytest.raises(OutdatedVoterError):
        world.connect()
    world.crash(replica)
    world.network.clear()
    world.deliver(Message(key(3), key(1), OutdatedNotice(1)))
    assert world[1].outdated == {key(3)}
    world[1].forget(key(3))
    replica.disk = own
    world.restart(replica)
    world.connect()
    world.tick(3, times=RECALL_TICKS)
    world.settle()
    cut_off(world, 2)
    world.propose(1, b"a")
    world.settle()
    world.tick(1)
    world.settle()
    assert world[1].committed == world[1].log_end_offset
    assert not any(each.is_outdated for each in quorum_status(world[1]).voters)


# -- how long a voter waits


def test_a_started_voter_waits_for_silent_voters_only_so_long() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    for node_id in (1, 2, 3):
        world.crash(world.replicas[key(node_id)])
    world.restart(world.replicas[key(1)])
    world.restart(world.replicas[key(2)])
    world.connect()
    for _ in range(RECALL_TICKS - 1):
        world.tick(1, 2)
        world.settle()
        assert {world[1].role, world[2].role} == {Role.FOLLOWER}
    world.tick(2)
    world.elect(1)


def test_a_leader_that_answers_may_be_deposed_so_its_entries_wait_for_the_other_answers() -> None:
    """Voter 2 has made 3 the leader of term 2, and comes back with a copy from before. Leader 1 of term 1 has not heard
    of it, and remembers nothing that 2 forgot: with an acknowledgement of 2 it would commit."""
    world = world_of(1, 2, 3)
    world.elect(1)
    write(world, 1)
    old = copy_of(world, 2)
    cut_off(world, 1)
    for node_id in (2, 3):
        world[node_id].peer_lost(key(1))
    world.elect(3)
    committed = world[1].committed
    world.propose(1, b"lost")
    replica = restore(world, 2, old)
    cut_off(world, 3)
    world.connect()
    for _ in range(RECALL_TICKS - 1):
        world.tick(1, 2)
        world.settle()
    assert (world[1].committed, replica.node.role) == (committed, Role.FOLLOWER)
    world.is_cut = lambda sender, to: False
    with pytest.raises(OutdatedVoterError, match=r"controller 3@\w+ remembers"):
        world.connect()


def test_lost_questions_are_asked_again() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    old = copy_of(world, 3)
    write(world, 1)
    replica = restore(world, 3, old)
    world.connect = lambda: None  # type: ignore[method-assign]
    world.tick(3)
    with pytest.raises(OutdatedVoterError):
        world.settle()
    assert replica.node.role is Role.FOLLOWER


def test_a_voter_whose_machine_goes_back_while_it_runs_is_found_when_it_reconnects() -> None:
    """A snapshot of a virtual machine with its memory: the process is not started again, its connections break."""
    world = world_of(1, 2, 3)
    world.elect(1)
    replica = world.replicas[key(3)]
    old = copy.deepcopy((replica.disk, replica.node))
    write(world, 1)
    (replica.disk, replica.node), replica.applied = old, old[1].committed
    with pytest.raises(OutdatedVoterError):
        world.connect()


# -- what is no older copy


def reconnect(world: RaftWorld, node_id: int) -> None:
    world.kill(world.replicas[key(node_id)])
    world.network.clear()
    world.restart(world.replicas[key(node_id)])
    world.connect()


def entries_that_were_not_flushed(world: RaftWorld) -> None:
    world.propose(1, b"a")
    replica = world.replicas[key(3)]
    for message in list(world.network):
        if message.to == key(3):
            replica.node.step(message)
    replica.node.ready()  # the disk does not get to it
    reconnect(world, 3)


def entries_that_a_later_leader_replaced(world: RaftWorld) -> None:
    cut_off(world, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: False
    world.connect()
    reconnect(world, 3)


def acknowledged_entries_that_a_later_leader_replaced(world: RaftWorld) -> None:
    """Voter 3 acknowledged to 1, which is cut off with it; the others elect 2 without these entries."""
    world.is_cut = lambda sender, to: (sender.node_id in (1, 3)) != (to.node_id in (1, 3))
    write(world, 1, 2)
    before = world[3].log_end_offset
    world[1].peer_lost(key(2))
    for node_id in (2, 4, 5):
        world[node_id].peer_lost(key(1))
    world.elect(2)
    world.is_cut = lambda sender, to: False
    world.tick(2)
    world.settle()
    world.connect()
    assert world[3].log_end_offset < before
    reconnect(world, 3)


def a_disk_that_was_replaced(world: RaftWorld) -> None:
    del world.replicas[key(3)]
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    world.settle()
    world.add(key(3, disk=2))
    world.connect()
    world[1].add_voter(key(3, disk=2))
    world.work(world.replicas[key(1)])
    world.settle()
    world.connect()


@pytest.mark.parametrize(
    "goes_back",
    [
        entries_that_were_not_flushed,
        entries_that_a_later_leader_replaced,
        acknowledged_entries_that_a_later_leader_replaced,
        a_disk_that_was_replaced,
    ],
    ids=lambda each: each.__name__,
)
def test_what_may_go_back_stops_nobody(goes_back: Callable[[RaftWorld], None]) -> None:
    world = world_of(1, 2, 3, 4, 5)
    world.elect(1)
    write(world, 1)
    goes_back(world)
    assert not any(replica.node.outdated for replica in world.replicas.values())


def test_late_and_repeated_answers_stop_nobody() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    late = RecallResponse(1, world[1].recollections().of(key(3)))
    write(world, 1)
    for answer in (late, late, RecallResponse(1, world[1].recollections().of(key(3)))):
        world.deliver(Message(key(1), key(3), answer))
    assert world[3].outdated == set()


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_no_sound_voter_is_stopped_whatever_happens(first: int) -> None:
    """Crashes, lost and late messages, changes of the voters: OutdatedVoterError would end the schedule."""
    asked = 0
    for seed in range(first, first + 10):
        schedule = Schedule(seed, recall_ticks=3 + seed % 4)
        schedule.run(400)
        asked += any(isinstance(each.body, RecallRequest | RecallResponse) for each in schedule.world.network)
        asked += schedule.counts["crash"] + schedule.counts["kill"]
    assert asked


# -- the controller and its disk


def test_a_directory_that_was_found_to_be_older_is_never_used_again() -> None:
    """The process ends; until the voter is replaced, no start takes part, whoever remembers."""
    rng = random.Random(4)
    world = QuorumWorld(3, rng)
    leader = world.elect().node_id
    world.live_broker()
    number = next(each for each in (1, 2, 3) if each != leader)
    world.kill(number)
    old = world.nodes[number].fs.crash_clone(rng)
    world.start(number)
    world.create("t")
    world.pass_ms(600)
    world.kill(number)
    world.nodes[number].fs = old
    copied = world.start(number)
    with pytest.raises(OutdatedVoterError) as found:
        world.pass_ms(2_000)
    copied.withdraw(found.value)
    world.deliver()
    shown = {each.key.node_id: each.is_outdated for each in quorum_status(world.leader.raft).voters}
    assert shown == {each: each == number for each in (1, 2, 3)}
    world.kill(number)
    with pytest.raises(OutdatedVoterError, match="headrace quorum remove"):
        world.start(number)
    world.create("u")
    assert world.leader.node_id == leader


def test_a_full_disk_does_not_forget_what_others_promised() -> None:
    rng = random.Random(4)
    world = QuorumWorld(3, rng)
    leader = world.elect()
    world.live_broker()
    world.create("t")
    world.pass_ms(600)
    before = {number: leader.raft.recollections().of(world.key(number)) for number in (1, 2, 3)}
    leader.receive(Message(world.key(2), leader.key, OutdatedNotice(1)))
    leader._begin_anew(DiskFullError("full"))
    assert leader.raft.outdated == {world.key(2)}
    assert not leader.raft._questions.are_open, "the process goes on, and need not ask"
    assert {number: leader.raft.recollections().of(world.key(number)) for number in (1, 2, 3)} == before
    assert sum(each.kept > 0 for each in before.values()) == 2


# -- comparing


class Case(NamedTuple):
    remembered: Remembered
    is_outdated: bool


#: Against a disk with term 5, a vote for 1, and a log up to 10.
CASES = {
    "nothing": Case(Remembered(), False),
    "all of it": Case(Remembered(5, key(1), 10, 10), False),
    "a later term": Case(Remembered(6), True),
    "another vote": Case(Remembered(5, key(2)), True),
    "another vote of an earlier term": Case(Remembered(4, key(2)), False),
    "entries of this term": Case(Remembered(5, None, 11), True),
    "entries of an earlier term": Case(Remembered(4, None, 11), False),
    "committed entries of an earlier term": Case(Remembered(4, None, 11, 11), True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_contradicts_a_disk(name: str) -> None:
    remembered, is_outdated = CASES[name]
    assert bool(contradiction(HardState(5, key(1)), 10, remembered)) is is_outdated


def test_memory_keeps_the_latest_term_and_every_committed_entry() -> None:
    memory = Memory()
    memory.note(key(2), 3, key(1), end=9, kept=5)
    memory.note(key(2), 3, None, end=7)
    assert memory.of(key(2)) == Remembered(3, key(1), 9, 5)
    memory.note(key(2), 2, key(3), end=20, kept=6)
    assert memory.of(key(2)) == Remembered(3, key(1), 9, 6)
    memory.note(key(2), 4)
    assert memory.of(key(2)) == Remembered(4, None, 0, 6)
    assert memory.of(key(3)) == Remembered()


def test_a_pre_vote_proves_no_term() -> None:
    memory = Memory()
    memory.note_message(key(1), key(2), VoteRequest(7, Place(3, 1), is_pre_vote=True))
    memory.note_message(key(1), key(2), VoteResponse(3, 4, is_granted=True, is_pre_vote=True))
    assert memory.of(key(2)) == Remembered(3)


def test_nothing_is_asked_where_it_is_switched_off() -> None:
    world = RaftWorld(voters(1, 2, 3), settings=RaftSettings())
    for replica in world.replicas.values():
        replica.node.observe(key(1))
    assert not any(isinstance(each.body, RecallRequest) for each in _said(world[2]))


def _said(node: RaftNode) -> list[Message]:
    ready = node.ready()
    return [*ready.messages, *ready.replies]
