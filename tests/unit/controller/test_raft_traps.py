"""Known problems of Raft, each as the shortest test that shows it. Section numbers are those of the Raft paper; T means
the thesis."""

from __future__ import annotations

import pytest

from headrace_controller.raft import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    Place,
    RaftSettings,
    ReplicaKey,
    Role,
    VoteRequest,
)
from headrace_controller.raft.types import Body
from headrace_core.errors import (
    DuplicateVoterError,
    InvalidRequestError,
    NotControllerError,
    ReplicaNotCaughtUpError,
    VoterChangeInProgressError,
    VoterNotFoundError,
)
from tests.worlds.raft_world import RaftWorld, key, voters

SETTINGS = RaftSettings(election_ticks=5, learner_lag_max=50)


def world_of(*node_ids: int) -> RaftWorld:
    """Fixed time-outs: no node stands for election before ``lead_again`` has elected the intended leader."""
    return RaftWorld(voters(*node_ids), settings=SETTINGS, draw=lambda below: below - 1)


def lead_again(world: RaftWorld, node_id: int) -> None:
    """Let the other nodes receive no message from a leader for an election time-out."""
    world.tick(times=world.settings.election_ticks)
    world.network.clear()
    world.elect(node_id)


def cut_off(world: RaftWorld, *node_ids: int) -> None:
    """Cut the connections between the named nodes and all other nodes."""
    world.is_cut = lambda sender, to: (sender.node_id in node_ids) != (to.node_id in node_ids)


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """5.4.2, figure 8: a majority has an entry of term 1, but the leader of term 3 must not count it as committed.
    A node with an entry of term 2 could still win and overwrite the entry of term 1."""
    one_at_a_time = RaftSettings(election_ticks=5, message_bytes_max=1)
    world = RaftWorld(voters(1, 2, 3, 4, 5), settings=one_at_a_time, draw=lambda below: below - 1)
    world.elect(1)
    cut_off(world, 1, 2)
    old = world.propose(1, b"of term 1")
    world.settle()
    assert world[2].log.has(Place(old.next_offset, 1))
    world.crash(world.replicas[key(1)])  # (b)
    cut_off(world, 2)
    world.tick(times=world.settings.election_ticks)
    world.network.clear()
    world.tick(5, times=world.settings.election_ticks - 1)
    while world[5].role is not Role.LEADER:
        world.deliver(world.network.pop(0))
    world.network.clear()  # its own entry reaches no other node
    world.crash(world.replicas[key(5)])
    world.is_cut = lambda sender, to: False
    world.restart(world.replicas[key(1)])
    first = world.replicas[key(1)]
    while first.node.role is not Role.LEADER:  # (c)
        world.deliver(world.network.pop(0)) if world.network else world.tick(1)
    while not world[3].log.has(Place(old.next_offset, 1)):
        world.deliver(world.network.pop(0))
    assert (first.node.role, first.node.term) == (Role.LEADER, 3)
    for answer in [message for message in world.network if message.to == key(1)]:
        first.node.step(answer)
    assert not first.node.has_committed_in_term
    assert first.node.committed < old.next_offset
    world.work(first)
    world.restart(world.replicas[key(5)])
    for _ in range(3):
        world.tick(1)
        world.settle()
    assert world[5].log.end == first.node.log.end, "(e): once its own entry is committed, so is all before it"


def test_a_sole_voter_commits_nothing_that_its_own_disk_may_lose() -> None:
    """etcd issue 14370: a single voter needs no other voter, so it reported an entry as committed before its disk had
    the entry."""
    world = RaftWorld(voters(1))
    world.elect(1)
    observer = world.add(key(2))
    world[1].observe(key(2))
    world.work(world.replicas[key(1)])
    world.settle()
    world.propose(1, b"kept")
    world.settle()
    known = observer.applied
    assert known == world[1].committed
    world[1].propose(b"lost", 1)
    world.work(world.replicas[key(1)], crash_after=0)  # messages without a promise are already in transit
    world.settle()
    assert observer.applied == known
    world.restart(world.replicas[key(1)])
    world.elect(1)
    world[1].observe(key(2))
    entry = world.propose(1, b"another")
    world.settle()
    assert observer.applied == entry.next_offset


def test_a_candidate_without_all_that_is_committed_gets_no_vote() -> None:
    """5.4.1."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 3)
    world.propose(1, b"x")
    world.settle()
    world.is_cut = lambda sender, to: 1 in (sender.node_id, to.node_id)
    world.tick(2, 3, times=SETTINGS.election_ticks)
    for _ in range(30):
        world.tick(3)
        world.settle()
    assert world[3].role is not Role.LEADER
    assert world.elect(2).log_end_offset > world[1].committed


def test_a_partitioned_voter_does_not_raise_its_term_and_disturbs_nobody_when_it_returns() -> None:
    """T 9.6, KIP-996."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 3)
    for _ in range(10 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert world[3].term == world[1].term == 1
    world.is_cut = lambda sender, to: False
    for _ in range(10):
        world.tick()
        world.settle()
    assert (world[1].role, world[1].term) == (Role.LEADER, 1)


def test_a_voter_that_receives_nothing_but_can_send_deposes_no_leader() -> None:
    """T 9.6 with an asymmetric partition: the node's requests arrive at the other nodes, but the leader's heartbeats do
    not arrive at the node. With pre-vote alone the node would win an election. The other voters receive heartbeats of
    the leader, so they refuse the vote."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: to.node_id == 3
    for _ in range(10 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert (world[1].role, world[1].term) == (Role.LEADER, 1)
    entry = world.propose(1, b"x")
    world.settle()
    assert world[1].committed == entry.next_offset


def test_a_leader_that_sends_but_receives_nothing_makes_room() -> None:
    """6.2: check-quorum. The leader's heartbeats arrive, so no follower stands for election; the responses do not
    arrive."""
    world = RaftWorld(voters(1, 2, 3), settings=SETTINGS, seed=1)
    world.elect(1)
    world.is_cut = lambda sender, to: to.node_id == 1
    leaders = set()
    for _ in range(6 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
        leaders |= {node_id for node_id in (2, 3) if world[node_id].role is Role.LEADER}
    assert leaders, "nobody took over"
    assert world[1].role is not Role.LEADER


@pytest.mark.parametrize("kind", [HeartbeatResponse, AppendResponse])
def test_old_answers_that_arrive_late_keep_no_leader(kind: type[Body]) -> None:
    """6.2: responses of followers were in transit for long, or arrive twice. Late responses prove only that the
    follower was connected when the request was sent. (Found by the simulator, seed 2305.)"""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.propose(1, b"x")
    world.tick(1)
    old: list[Message] = []
    while world.network:
        message = world.network.pop(0)
        old += [message] if isinstance(message.body, kind) else []
        world.deliver(message)
    assert {message.sender for message in old} == {key(2), key(3)}
    world.is_cut = lambda sender, to: True
    for _ in range(2 * SETTINGS.election_ticks):
        world.tick(1)
        world.network.clear()
        for message in old:  # outside of the network, which is cut
            world[1].step(message)
            world.work(world.replicas[key(1)])
    assert world[1].role is not Role.LEADER


def test_a_heartbeat_is_answered_before_the_disk_has_the_entries_that_came_with_it() -> None:
    """6.2, 6.4: a response proves that the replica is alive in this term. A follower's slow disk therefore deposes no
    leader and delays no read. However, a replica does not report a term that is not on its disk yet (5.1)."""
    world = world_of(1, 2, 3)
    world.elect(1)
    follower = world[2]
    entry = Entry(EntryKind.DATA, 1, follower.log_end_offset, 1, b"x")
    append = AppendRequest(1, follower.log.end, (entry,), 0)
    heartbeat = HeartbeatRequest(1, 0, 7)
    for body in (append, heartbeat):
        follower.step(Message(key(1), key(2), body))
    ready = follower.ready()
    assert ready.entries == (entry,)
    assert [message.body for message in ready.messages] == [HeartbeatResponse(1, 7)]
    assert [type(message.body) for message in ready.replies] == [AppendResponse]
    follower.persisted(ready)
    follower.step(Message(key(3), key(2), HeartbeatRequest(4, 0, 1)))
    ready = follower.ready()
    assert ready.hard_state == HardState(4)
    assert ready.messages == ()
    assert [message.body for message in ready.replies] == [HeartbeatResponse(4, 1)]
    follower.persisted(ready)
    follower.step(Message(key(3), key(2), HeartbeatRequest(4, 0, 2)))
    assert [message.body for message in follower.ready().messages] == [HeartbeatResponse(4, 2)]


def test_a_replica_that_returns_with_a_higher_term_is_taken_back() -> None:
    """etcd: a node with a higher term cannot follow, because the leader's term is lower. The node cannot win an
    election, because its pre-votes are refused. The node with the higher term therefore reports its term to the
    leader."""
    world = world_of(1, 2, 3)
    world.elect(1)
    third = world.replicas[key(3)]
    world.crash(third)
    # it stood for election again and again, as implementations without pre-vote do
    third.disk.hard_state = type(third.disk.hard_state)(9, None)
    world.propose(1, b"x")
    world.settle()
    world.restart(third)
    for _ in range(6 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    leader = next(world[node_id] for node_id in (1, 2, 3) if world[node_id].role is Role.LEADER)
    assert leader.term >= 10
    assert world[3].log_end_offset == leader.log_end_offset


def test_a_removed_server_disturbs_nobody() -> None:
    """4.2.3 of T: a removed node receives no messages any more, and requests votes for ever."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: to.node_id == 3  # it does not even learn that it was removed
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    world.settle()
    assert len(world[1].voters) == 2
    world.is_cut = lambda sender, to: to.node_id == 3 and sender.node_id == 1
    for _ in range(10 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert (world[1].role, world[1].term) == (Role.LEADER, 1)


def test_a_leader_that_removes_itself_goes_once_that_is_committed() -> None:
    """T 4.2.2: the leader continues to lead until its removal is committed, and does not count itself in majorities."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    entry = world[1].remove_voter(key(1))
    world.work(world.replicas[key(1)])
    world.settle()
    assert world[1].role is Role.LEADER
    world.is_cut = lambda sender, to: False
    world.tick(1)
    world.settle()
    assert world[1].role is Role.FOLLOWER
    assert world[1].committed >= entry.next_offset
    lead_again(world, 2)
    assert world[2].voters == voters(2, 3)


def test_the_one_whose_removal_was_not_committed_may_still_be_needed() -> None:
    """T 4.2.2; found by schedule 100 of test_raft_schedules: the voter that removed itself has the longer log of the
    two voters. The voter with the shorter log cannot win without the vote of the longer log, and cannot get that
    vote."""
    world = world_of(1, 2)
    world.elect(1)
    cut_off(world, 1)
    world[1].remove_voter(key(1))
    world.work(world.replicas[key(1)])
    for replica in world.replicas.values():
        world.crash(replica)
    world.is_cut = lambda sender, to: False
    world.network.clear()
    for replica in world.replicas.values():
        world.restart(replica)
    for _ in range(10 * SETTINGS.election_ticks):
        world.tick()
        world.settle()
    assert world[2].role is Role.LEADER
    assert world[2].voters == voters(2)


def test_a_wiped_voter_is_a_stranger() -> None:
    """KIP-853: the node has lost the record of its votes with its disk. The node does not answer messages to the voter
    with the old disk."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.propose(1, b"x")
    world.settle()
    del world.replicas[key(3)]
    fresh = world.add(ReplicaKey(3, bytes([9]) * 16))
    stolen = Message(key(2), key(3), VoteRequest(7, world[2].log.end))
    world.network.append(stolen)
    world.settle()
    assert fresh.node.term == 0
    with pytest.raises(DuplicateVoterError, match="remove that voter first"):
        world[1].add_voter(fresh.key)
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    world.settle()
    with pytest.raises(ReplicaNotCaughtUpError):
        world[1].add_voter(fresh.key)
    world[1].observe(fresh.key)
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    world[1].add_voter(fresh.key)
    world.work(world.replicas[key(1)])
    world.settle()
    assert fresh.key in world[2].voters
    assert fresh.node.log_end_offset == world[1].log_end_offset


def test_voters_change_one_at_a_time_and_not_before_the_leader_knows() -> None:
    """T 4.1, and the fix to it (Ongaro, raft-dev, 2015)."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    world[1].remove_voter(key(3))
    with pytest.raises(VoterChangeInProgressError, match="another change of the voters"):
        world[1].remove_voter(key(2))
    fresh = world_of(1, 2, 3)
    fresh.tick(1, times=2 * SETTINGS.election_ticks - 1)
    while fresh[1].role is not Role.LEADER:
        messages, fresh.network = fresh.network, []
        for message in messages:
            fresh.deliver(message)
    with pytest.raises(VoterChangeInProgressError, match="entry of its term"):
        fresh[1].remove_voter(key(3))
    with pytest.raises(NotControllerError):
        fresh[2].remove_voter(key(3))
    fresh.settle()
    with pytest.raises(VoterNotFoundError):
        fresh[1].remove_voter(key(4))
    alone = world_of(1)
    alone.elect(1)
    with pytest.raises(InvalidRequestError, match="is the only voter and cannot be removed"):
        alone[1].remove_voter(key(1))


def test_a_set_of_voters_that_is_cut_off_again_does_not_count() -> None:
    """T 4.1: the latest set in the log counts at once. If the entry of the latest set is truncated, the previous set
    counts again."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    assert world[1].voters == voters(1, 2)
    lead_again(world, 2)
    world.is_cut = lambda sender, to: False
    for _ in range(3):
        world.tick(2)
        world.settle()
    assert world[1].voters == world[2].voters == voters(1, 2, 3)


def test_a_snapshot_taken_during_a_change_of_voters_has_those_of_its_own_end() -> None:
    """7, T 4.1: the snapshot has the committed set, and not the latest set, which may still be truncated."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(3)])
    for number in range(5):
        world.propose(1, b"%d" % number)
    world.settle()
    first = world.replicas[key(1)]
    committed = first.node.committed
    world.is_cut = lambda sender, to: True
    first.node.remove_voter(key(2))
    world.work(first)
    world.compact(first, committed)
    assert first.node.log.snapshot.voters == voters(1, 2, 3)
    assert first.node.voters == voters(1, 3)
    world.is_cut = lambda sender, to: False
    world.restart(world.replicas[key(3)])
    for _ in range(3):
        world.tick(1)
        world.settle()
    assert world[3].log.snapshot.voters == voters(1, 2, 3)
    assert world[3].voters == voters(1, 3)
    assert world[3].log_end_offset == world[1].log_end_offset


def test_a_follower_that_needs_what_the_log_no_longer_has_gets_a_snapshot_in_chunks() -> None:
    """7, KIP-630."""
    settings = RaftSettings(election_ticks=5, snapshot_chunk_bytes=3)
    world = RaftWorld(voters(1, 2, 3), settings=settings, draw=lambda below: 0)
    world.elect(1)
    world.crash(world.replicas[key(3)])
    for number in range(20):
        world.propose(1, b"<%d>" % number)
    world.settle()
    world.compact(world.replicas[key(1)], world[1].committed)
    world.propose(1, b"more")
    world.settle()
    world.restart(world.replicas[key(3)])
    for _ in range(3):
        world.tick(1)
        world.settle()
    assert world[3].log.start == world[1].log.start
    assert world[3].committed == world[1].committed


def test_a_damaged_snapshot_is_asked_for_anew() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(3)])
    world.propose(1, b"x")
    world.settle()
    world.compact(world.replicas[key(1)], world[1].committed)
    third = world.replicas[key(3)]
    world.restart(third)
    carry_out, verdicts = third.disk.carry_out, [False]

    def damaged_once(ready: object) -> bool:
        carry_out(ready)  # type: ignore[arg-type]
        return verdicts.pop() if getattr(ready, "chunk", None) is not None and verdicts else True

    third.disk.carry_out = damaged_once  # type: ignore[method-assign]
    for _ in range(3):
        world.tick(1)
        world.settle()
    assert not verdicts
    assert world[3].committed == world[1].committed


def test_a_deposed_leader_that_does_not_know_it_serves_no_read() -> None:
    """T 6.4."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    lead_again(world, 2)
    entry = world.propose(2, b"newer")
    world.settle()
    first, second = world.replicas[key(1)], world.replicas[key(2)]
    if first.node.role is Role.LEADER:
        first.node.read("stale")
        world.work(first)
    second.node.read("fresh")
    world.work(second)
    world.settle()
    assert first.reads == []
    assert second.reads == [("fresh", entry.next_offset)]
    world.is_cut = lambda sender, to: False
    for _ in range(3):
        world.tick()
        world.settle()
    assert first.reads == []
    with pytest.raises(NotControllerError, match="controller 2 does"):
        first.node.read("again")


def test_an_answer_from_before_a_read_proves_nothing() -> None:
    """T 6.4: the leader may have been deposed after its last contact with a majority."""
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    first.node.read("first")
    world.work(first)
    world.settle()
    world.tick(1)
    late = [message for message in world.network if message.sender == key(1)]
    world.network.clear()
    for message in late:
        world.deliver(message)
    answers = [message for message in world.network if message.to == key(1)]
    world.network.clear()
    first.node.read("second")
    world.work(first)
    for message in answers:
        first.node.step(message)
        world.work(first)
    assert [token for token, _ in first.reads] == ["first"]


def test_reads_of_one_turn_share_one_round_of_heartbeats() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    for token in range(100):
        first.node.read(token)
    world.work(first)
    assert len(world.network) == 2
    world.settle()
    assert [token for token, _ in first.reads] == list(range(100))


def test_a_leader_hands_over_without_a_gap() -> None:
    """T 3.10: the next leader is elected at once, although all voters have just received a heartbeat."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.propose(1, b"x")
    world.settle()
    world[1].transfer(key(2))
    with pytest.raises(NotControllerError, match="transferring its leadership"):
        world[1].propose(b"y", 1)
    world.work(world.replicas[key(1)])
    world.settle()
    assert (world[2].role, world[2].term, world[1].role) == (Role.LEADER, 2, Role.FOLLOWER)


def test_a_hand_over_to_somebody_who_is_gone_is_given_up() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(2)])
    world[1].transfer(key(2))
    for _ in range(SETTINGS.election_ticks):
        world.tick(1)
        world.settle()
    entry = world.propose(1, b"y")
    world.settle()
    assert world[1].committed == entry.next_offset


def test_entries_are_sent_ahead_within_limits_and_lost_ones_are_sent_again() -> None:
    settings = RaftSettings(election_ticks=5, in_flight_messages_max=3, message_bytes_max=150)
    world = RaftWorld(voters(1, 2, 3), settings=settings, draw=lambda below: 0)
    world.elect(1)
    first = world.replicas[key(1)]
    for number in range(20):
        first.node.propose(b"%d" % number, 1)
    world.work(first)
    to_second = [message for message in world.network if message.to == key(2)]
    assert len(to_second) == 3, "as many as may be under way"
    world.network.clear()  # all of it is lost
    for _ in range(5):
        world.tick(1)
        world.settle()
    assert world[2].committed == world[3].committed == first.node.log_end_offset


def test_a_voter_says_yes_once_in_a_term_also_after_a_restart() -> None:
    """5.2."""
    world = world_of(1, 2, 3)
    third = world.replicas[key(3)]
    answers = []
    for candidate in (key(1), key(2)):
        world.network.clear()
        third.node.step(Message(candidate, key(3), VoteRequest(1, world[1].log.end)))
        world.work(third)
        answers += [message.body.is_granted for message in world.network]  # type: ignore[union-attr]
        world.crash(third)
        world.restart(third)
    assert answers == [True, False]


def test_a_deferred_read_costs_no_message_and_goes_with_the_next_heartbeats() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    for token in range(10):
        first.node.read(token, is_deferred=True)
    world.work(first)
    assert not world.network
    world.settle()
    assert first.reads == []
    entry = world.propose(1, b"after they asked")
    world.settle()
    world.tick(1)
    assert [message.to for message in world.network] == [key(2), key(3)], "the regular heartbeats"
    assert first.reads == [], "nobody has answered yet"
    world.settle()
    assert first.reads == [(token, entry.next_offset) for token in range(10)]


def test_a_deferred_read_goes_with_the_round_that_a_prompt_one_begins() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    first.node.read("deferred", is_deferred=True)
    first.node.read("prompt")
    world.work(first)
    world.settle()
    assert {token for token, _ in first.reads} == {"deferred", "prompt"}


def test_deferred_reads_fail_with_the_lead_like_any_other() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    first.node.read("deferred", is_deferred=True)
    world.work(first)
    cut_off(world, 1)
    lead_again(world, 2)
    world.is_cut = lambda sender, to: False
    for _ in range(3):
        world.tick()
        world.settle()
    assert first.reads == []
    assert first.failed_reads == ["deferred"]


def test_a_sole_voter_confirms_a_deferred_read_with_its_next_tick() -> None:
    world = world_of(1)
    world.elect(1)
    first = world.replicas[key(1)]
    first.node.read("deferred", is_deferred=True)
    world.work(first)
    assert first.reads == []
    world.tick(1)
    assert [token for token, _ in first.reads] == ["deferred"]
