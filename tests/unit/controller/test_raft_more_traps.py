"""Problems of Raft that are not in the papers, from issues of etcd, Kafka and other systems, and from our own
review."""

from __future__ import annotations

import dataclasses

import pytest

from headrace_controller.raft import (
    AppendRequest,
    AppendResponse,
    HardState,
    HeartbeatResponse,
    Message,
    RaftSettings,
    ReplicaKey,
    Role,
    SnapshotRequest,
    TimeoutNow,
    quorum_status,
)
from headrace_core.errors import NotControllerError, OutdatedVoterError
from tests.unit.controller.test_raft_traps import SETTINGS, cut_off, lead_again, world_of
from tests.worlds.raft_world import RaftWorld, key, voters

CHUNKS = RaftSettings(election_ticks=5, snapshot_chunk_bytes=3)


def with_a_snapshot_for_the_third() -> RaftWorld:
    """Node 1 leads. Node 3 was down, and the log of node 1 no longer has the entries that node 3 lacks."""
    world = RaftWorld(voters(1, 2, 3), settings=CHUNKS, draw=lambda below: below - 1)
    world.elect(1)
    world.crash(world.replicas[key(3)])
    for number in range(4):
        world.propose(1, b"<%d>" % number)
    world.settle()
    world.tick(1)
    world.settle()
    world.compact(world.replicas[key(1)], world[1].committed)
    world.restart(world.replicas[key(3)])
    return world


def deliver_until_a_chunk_is_written(world: RaftWorld) -> None:
    world.tick(1)
    while not world.replicas[key(3)].disk.received:
        world.deliver(world.network.pop(0))


def chunks_under_way(world: RaftWorld) -> list[SnapshotRequest]:
    return [message.body for message in world.network if isinstance(message.body, SnapshotRequest)]


# -- snapshots


def test_the_snapshots_of_two_leaders_are_not_mixed() -> None:
    """Two snapshots of the same state may have different bytes (time of the snapshot, order of maps). Kafka also starts
    the transfer again under another leader."""
    world = with_a_snapshot_for_the_third()
    third, snapshot = world.replicas[key(3)], world[1].log.snapshot

    def send(leader: int, term: int, position: int, data: bytes) -> None:
        request = SnapshotRequest(term, snapshot, position, data, is_last=False)
        third.node.step(Message(key(leader), key(3), request))
        world.work(third)

    send(1, 1, 0, b"of the ")
    send(1, 1, 7, b"first, a")
    world.network.clear()
    send(2, 2, 15, b"nd the second's end")
    assert [message.body.position for message in world.network] == [0]  # type: ignore[union-attr]
    send(2, 2, 0, b"Of the second")
    send(1, 1, 15, b"nd of a leader that is none any more")
    assert third.disk.received == b"Of the second"


def test_a_chunk_with_a_slow_disk_is_not_sent_again_with_every_heartbeat() -> None:
    """etcd: a follower is paused while it installs a snapshot. A chunk is large, so the leader must not repeat a chunk
    every 100 ms while it waits for a slow disk or a slow connection."""
    world = with_a_snapshot_for_the_third()
    world.tick(1)
    third, slow = world.replicas[key(3)], []
    for _ in range(4):  # the disk of 3 takes four heartbeats for a chunk
        messages, world.network = world.network, []
        for message in messages:
            if isinstance(message.body, SnapshotRequest):
                slow.append(message)
            else:
                world.deliver(message)
        answers, world.network = world.network, []
        for message in answers:
            world.deliver(message)
        world.tick(1)
    assert len(slow + chunks_under_way(world)) == 1
    world.network += slow
    world.settle()
    assert third.node.committed == world[1].committed


def test_a_chunk_that_was_lost_is_sent_again() -> None:
    world = with_a_snapshot_for_the_third()
    deliver_until_a_chunk_is_written(world)
    world.network.clear()  # the answer is lost
    for _ in range(2 * SETTINGS.election_ticks):
        world.tick(1)
        world.settle()
    assert world[3].committed == world[1].committed


def test_a_chunk_goes_again_at_once_when_the_connection_broke() -> None:
    world = with_a_snapshot_for_the_third()
    deliver_until_a_chunk_is_written(world)
    world.network.clear()
    world[1].peer_lost(key(3))
    world.work(world.replicas[key(1)])
    assert len(chunks_under_way(world)) == 1


def test_entries_that_arrive_while_the_last_chunk_is_written_are_not_lost() -> None:
    """An installation races an append. A replica whose log has reached the snapshot's offset keeps its log."""
    world = with_a_snapshot_for_the_third()
    first, third = world.replicas[key(1)], world.replicas[key(3)]
    everything = [world.history[at] for at in sorted(world.history)]
    late = AppendRequest(1, third.node.log.end, tuple(everything), world[1].committed)
    deliver_until_a_chunk_is_written(world)
    while not any(request.is_last for request in chunks_under_way(world)):
        world.deliver(world.network.pop(0))
    last = next(message for message in world.network if isinstance(message.body, SnapshotRequest))
    world.network.clear()
    third.node.step(last)
    ready = third.node.ready()
    assert ready.chunk is not None
    third.node.step(Message(first.key, third.key, late))
    third.disk.carry_out(ready)
    third.node.persisted(ready)
    world.work(third)
    assert third.disk.start.place.offset == 0, "nothing was installed over it"
    assert [entry.data for entry in third.disk.entries_] == [entry.data for entry in everything]
    world.settle()
    entry = world.propose(1, b"more")
    world.settle()
    assert world[3].log_end_offset == entry.next_offset


def test_an_answer_from_before_an_install_does_not_send_a_follower_back() -> None:
    """NuRaft 105: a refusal that was in transit during the installation of a snapshot moves the leader's next offset
    back to before the snapshot."""
    world = with_a_snapshot_for_the_third()
    world.tick(1)
    late = []
    while world[3].log.start.offset == 0 or world.network:
        message = world.network.pop(0)
        if isinstance(message.body, AppendResponse) and message.body.is_rejected:
            late.append(message)
        world.deliver(message)
    assert late, "it refused what it could not follow"
    for message in late:
        world.deliver(message)
    assert not chunks_under_way(world)
    entry = world.propose(1, b"more")
    world.settle()
    assert world[3].log_end_offset == entry.next_offset


def test_a_candidate_takes_the_snapshot_of_who_was_elected() -> None:
    """Nebula 1769: a candidate must not refuse another leader's snapshot and stand again."""
    world = with_a_snapshot_for_the_third()
    world.is_cut = lambda sender, to: sender == key(3) and to != key(1)
    world.tick(3, times=2 * SETTINGS.election_ticks)
    assert world[3].role is Role.PROSPECTIVE
    world.network.clear()
    world.is_cut = lambda sender, to: False
    world.tick(1)
    world.settle()
    assert world[3].role is Role.FOLLOWER
    assert world[3].committed == world[1].committed


# -- elections


def test_a_pre_vote_spreads_the_term_of_who_says_no() -> None:
    """openraft 1796, etcd 8501: nodes 1 and 2 have the longer log, node 3 has the higher term, and no node leads. No
    node can win before the other nodes learn the candidate's term, and pre-votes do not raise terms. A refusal of a
    snapshot therefore contains the term."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 3)
    world.propose(1, b"longer")
    world.settle()
    world.is_cut = lambda sender, to: False
    for replica in world.replicas.values():
        world.crash(replica)
    world.network.clear()
    world.replicas[key(3)].disk.hard_state = HardState(7, key(3))
    world.restart(world.replicas[key(1)])
    world.restart(world.replicas[key(3)])  # node 2 stays away, so both other nodes are needed
    for _ in range(6 * SETTINGS.election_ticks):
        world.tick(1, 3)
        world.settle()
    assert world[1].role is Role.LEADER
    assert world[1].term >= 8
    assert world[3].log_end_offset == world[1].log_end_offset


def test_two_who_ask_at_the_same_time_do_not_refuse_each_other() -> None:
    """raft-rs 84: a candidate in pre-vote no longer follows, so it may grant its vote to another."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(1)])
    world.tick(2, 3, times=2 * SETTINGS.election_ticks)
    assert world[2].role is world[3].role is Role.PROSPECTIVE
    for _ in range(6 * SETTINGS.election_ticks):
        world.settle()
        world.tick(2)
    world.settle()
    assert Role.LEADER in (world[2].role, world[3].role)


def test_a_voter_that_does_not_know_yet_that_it_votes_votes() -> None:
    """T 4.1, etcd's learners: the entry that makes a node a voter has reached some nodes, but not the node itself.
    Without the vote of the new voter, the new set has no majority."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.add(key(4))
    world[1].observe(key(4))
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    world.is_cut = lambda sender, to: to == key(4)
    world[1].add_voter(key(4))
    world.work(world.replicas[key(1)])
    world.settle()
    assert not world[4].is_voter
    assert world[2].voters == world[3].voters == voters(1, 2, 3, 4)
    world.crash(world.replicas[key(1)])
    world.is_cut = lambda sender, to: False
    world.tick(2, 3, 4, times=SETTINGS.election_ticks)
    world.network.clear()
    world.elect(2)
    assert world[4].is_voter


# -- handing over


def test_a_leader_that_was_deposed_while_it_handed_over_takes_writes_when_it_leads_again() -> None:
    """hashicorp/raft 696."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    world.tick(2, 3, times=SETTINGS.election_ticks)
    world.network.clear()
    world.elect(2)
    world[1].transfer(key(3))
    world.is_cut = lambda sender, to: False
    world.tick(2)
    world.settle()
    assert (world[1].role, world[1].transferring_to) == (Role.FOLLOWER, None)
    lead_again(world, 1)
    entry = world.propose(1, b"taken")
    world.settle()
    assert world[1].committed == entry.next_offset


def test_a_leader_that_removes_itself_leaves_no_gap() -> None:
    """T 4.2.2 and 3.10: when the leader's own removal is committed, the leader asks a voter with the whole log to stand
    for election at once."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world[1].remove_voter(key(1))
    world.work(world.replicas[key(1)])
    world.settle()  # no tick: no time-out was needed
    assert world[1].role is Role.FOLLOWER
    assert [world[node_id].role for node_id in (2, 3)].count(Role.LEADER) == 1


def test_a_leader_that_removes_itself_leaves_no_gap_when_a_later_entry_is_still_on_its_way() -> None:
    """An earlier version asked no voter to stand unless one had the whole log."""
    world = world_of(1, 2, 3, 4)
    world.elect(1)
    world[1].remove_voter(key(1))
    world.work(world.replicas[key(1)])
    removal, world.network = world.network, []
    world.propose(1, b"later")
    world.network = [message for message in world.network if message.to != key(4)]  # node 4 does not get it
    later, world.network = world.network, removal
    for message in removal:
        world.deliver(message)
    world.network = [message for message in world.network if message not in removal]
    world.settle()
    world.network += later
    world.settle()
    assert world[1].role is Role.FOLLOWER
    assert [world[node_id].role for node_id in (2, 3, 4)].count(Role.LEADER) == 1


def test_an_answer_to_a_heartbeat_may_commit_the_leaders_own_removal() -> None:
    """Found by the simulator, seed 700292: the followers' connections broke after they had the removal."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world[1].remove_voter(key(1))
    world.work(world.replicas[key(1)])
    to_followers, world.network = world.network, []
    for message in to_followers:
        world.deliver(message)
    world.network.clear()  # the acknowledgements are lost
    for follower in (2, 3):
        progress = world[1].progress_of(key(follower))
        assert progress is not None
        progress.matched(world[1].log.end_offset)
        world[1].peer_lost(key(follower))
    assert world[1].role is Role.LEADER
    world.tick(1)
    world.settle()
    assert world[1].role is Role.FOLLOWER
    assert [world[node_id].role for node_id in (2, 3)].count(Role.LEADER) == 1


def test_a_transfer_to_somebody_who_lags_brings_it_up_to_date_first() -> None:
    """etcd: TimeoutNow to a follower without the whole log would only cost a term."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 3)
    for number in range(10):
        world.propose(1, b"%d" % number)
    world.settle()
    world.network.clear()
    world[1].transfer(key(3))
    world.work(world.replicas[key(1)])
    assert not [message for message in world.network if isinstance(message.body, TimeoutNow)]
    world.is_cut = lambda sender, to: False
    world.network.clear()
    world.tick(1)
    world.settle()
    assert (world[3].role, world[3].term) == (Role.LEADER, 2)
    assert world[3].has_committed_in_term


def test_who_asks_again_and_again_to_hand_over_cannot_keep_a_leader_from_doubting_itself() -> None:
    """In an early version, each request for a transfer restarted the timer after which a leader checks whether a
    majority still answers."""
    world = world_of(1, 2, 3)
    world.elect(1)
    cut_off(world, 1)
    for _ in range(2 * SETTINGS.election_ticks):
        if world[1].role is Role.LEADER:
            world[1].transfer(key(2))
        world.tick(1)
        world.network.clear()
    assert world[1].role is not Role.LEADER


def test_who_asks_again_and_again_to_hand_over_to_the_dead_cannot_stop_the_writes_for_ever() -> None:
    world = world_of(1, 2, 3)
    world.elect(1)
    world.crash(world.replicas[key(2)])
    taken = 0
    for _ in range(4 * SETTINGS.election_ticks):
        world.tick(1)
        world.settle()
        if world[1].transferring_to is None:
            world.propose(1, b"x")
            taken += 1
        world[1].transfer(key(2))
    assert taken >= 3


def test_voters_do_not_change_while_the_leader_hands_over() -> None:
    """The next leader would start with an uncommitted change; and the chosen voter may be the voter that is being
    removed."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: True
    world[1].transfer(key(2))
    with pytest.raises(NotControllerError, match="transferring its leadership"):
        world[1].remove_voter(key(2))


def test_who_votes_no_more_by_an_order_of_late_stands_for_nothing() -> None:
    """A late TimeoutNow arrives at a removed replica, or at a replica that already leads."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    world.settle()
    world.tick(1)
    world.settle()
    world.replicas[key(3)].node.step(Message(key(1), key(3), TimeoutNow(1)))
    world.work(world.replicas[key(3)])
    assert world[3].role is Role.FOLLOWER
    world[1].step(Message(key(2), key(1), TimeoutNow(1)))
    assert world[1].role is Role.LEADER


# -- reads


def test_a_read_after_a_change_of_leaders_waits_for_an_entry_of_the_new_term() -> None:
    """etcd: a new leader does not know the commit offset of its predecessor. The new leader's own commit offset may be
    lower."""
    world = world_of(1, 2, 3)
    world.elect(1)
    entry = world.propose(1, b"acknowledged")
    for message in list(world.network):
        world.deliver(message)
    for message in [message for message in world.network if message.to == key(1)]:
        world.deliver(message)
    assert world[1].committed == entry.next_offset
    world.network.clear()
    assert world[2].committed < entry.next_offset, "the others do not know it yet"
    world.crash(world.replicas[key(1)])
    world.tick(2, 3, times=SETTINGS.election_ticks)
    world.network.clear()
    second = world.replicas[key(2)]
    while second.node.role is not Role.LEADER:
        world.tick(2)
        while world.network and second.node.role is not Role.LEADER:
            world.deliver(world.network.pop(0))
    second.node.read("early")
    world.work(second)
    assert second.reads == []
    world.settle()
    assert [(token, offset > entry.next_offset) for token, offset in second.reads] == [("early", True)]


def test_a_heartbeat_answer_of_an_earlier_lead_confirms_no_read() -> None:
    """Rounds restart with each leadership: a response from an earlier leadership must not count for a new round with
    the same number."""
    world = world_of(1, 2, 3)
    world.elect(1)
    first = world.replicas[key(1)]
    first.node.read("one")
    world.work(first)
    world.settle()
    old = [Message(key(2), key(1), HeartbeatResponse(1, 1)), Message(key(3), key(1), HeartbeatResponse(1, 1))]
    lead_again(world, 2)
    lead_again(world, 1)
    assert first.node.has_committed_in_term
    first.reads.clear()
    world.is_cut = lambda sender, to: True
    first.node.read("two")
    world.work(first)
    for message in old:
        first.node.step(message)
    world.work(first)
    assert first.reads == []


# -- learners


def test_an_observer_does_not_count_in_a_majority() -> None:
    """etcd's learners: an observer's log and answers never help to commit an entry or to keep a leader in office."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.add(key(4))
    world[1].observe(key(4))
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    assert world[4].log_end_offset == world[1].log_end_offset
    cut_off(world, 1, 4)
    entry = world.propose(1, b"x")
    world.settle()
    assert world[4].log_end_offset == entry.next_offset
    assert world[1].committed < entry.next_offset
    for _ in range(2 * SETTINGS.election_ticks):
        world.tick(1, 4)
        world.settle()
    assert world[1].role is Role.FOLLOWER
    assert world[4].role is Role.FOLLOWER


def test_the_next_leader_knows_who_follows_without_a_vote() -> None:
    """An observer announces itself once to each replica. A later leader must still know the observer."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.add(ReplicaKey(4, bytes([1]) * 16))
    for node_id in (1, 2, 3):
        world[node_id].observe(key(4))
    lead_again(world, 2)
    world.tick(2)
    world.settle()
    assert world[4].log_end_offset == world[2].log_end_offset
    world[2].forget(key(4))
    entry = world.propose(2, b"x")
    world.settle()
    assert world[4].log_end_offset < entry.next_offset


def test_a_learner_that_was_promoted_while_it_lagged_cannot_be() -> None:
    """T 4.2.1: the request fails with ReplicaNotCaughtUpError. While the replica lags, the leader sends the missing
    entries to the replica."""
    world = RaftWorld(voters(1, 2, 3), settings=dataclasses.replace(SETTINGS, learner_lag_max=5), draw=lambda below: 0)
    world.elect(1)
    world.add(key(4))
    world[1].observe(key(4))
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    world.is_cut = lambda sender, to: key(4) in (sender, to)
    for number in range(7):
        world.propose(1, b"%d" % number)
    world.settle()
    with pytest.raises(Exception, match="retry when this controller has caught up"):
        world[1].add_voter(key(4))
    world.is_cut = lambda sender, to: False
    world.tick(1)
    world.settle()
    assert world[1].add_voter(key(4)).voters == voters(1, 2, 3, 4)


# -- configurations that are not applied yet


def test_a_leader_that_was_elected_by_a_set_that_is_not_committed_commits_it_first() -> None:
    """etcd: a campaign with an unapplied change of the voters. In Headrace the latest set counts as soon as it is in
    the log, so every candidate knows it. No further change begins before the set is committed."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: to == key(3) or (sender, to) == (key(2), key(1))
    world[1].remove_voter(key(3))
    world.work(world.replicas[key(1)])
    world.settle()
    assert world[2].voters == voters(1, 2)
    assert world[1].committed < world[1].log_end_offset
    while world[1].role is Role.LEADER:
        world.tick(1)
        world.network.clear()
    world.is_cut = lambda sender, to: key(3) in (sender, to)
    lead_again(world, 2)
    assert world[2].has_committed_in_term
    assert world[1].voters == world[2].voters == voters(1, 2)


# -- entries


def test_a_follower_that_lost_messages_in_the_midst_of_many_is_back_within_a_heartbeat() -> None:
    """Progress: the transport may drop messages for which its queue has no room."""
    settings = RaftSettings(election_ticks=5, in_flight_messages_max=8, message_bytes_max=1)
    world = RaftWorld(voters(1, 2, 3), settings=settings, draw=lambda below: below - 1)
    world.elect(1)
    for number in range(6):
        world.propose(1, b"%d" % number)
    appends = [each for each in world.network if each.to == key(2) and isinstance(each.body, AppendRequest)]
    world.network.remove(appends[2])
    world.settle()
    assert world[2].log_end_offset == world[1].log_end_offset, "the one that came next was refused, and all was resent"
    world.is_cut = lambda sender, to: to == key(2)  # no message arrives
    for number in range(6):
        world.propose(1, b"%d" % number)
    world.settle()
    assert world[2].log_end_offset < world[1].log_end_offset
    world.is_cut = lambda sender, to: False
    world.tick(1)
    world.settle()
    assert world[2].log_end_offset == world[1].log_end_offset


def test_a_disk_that_lost_what_it_acknowledged_is_informed_by_the_leader() -> None:
    """A replica may lose what it acknowledged, for example because its log was emptied by hand. Neither the leader nor
    the emptied replica could continue: the leader does not go back below the acknowledged offset, and the replica lacks
    the entries before it."""
    world = world_of(1, 2, 3)
    world.elect(1)
    for number in range(3):
        world.propose(1, b"%d" % number)
    world.settle()
    world.tick(1)
    world.settle()
    third = world.replicas[key(3)]
    world.crash(third)
    del third.disk.entries_[2:]
    world.restart(third)
    world.tick(1)
    with pytest.raises(
        OutdatedVoterError,
        match=r"controller 1@\w+ remembers that it acknowledged the log up to offset 4, but its "
        "log ends at 2",
    ):
        world.settle()


# -- how it stands


def test_a_leader_tells_who_has_how_much_and_since_when() -> None:
    """KIP-836."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.add(key(4))
    world[1].observe(key(4))
    for _ in range(3):
        world.tick(1)
        world.settle()
    end = world[1].log_end_offset
    world.is_cut = lambda sender, to: key(3) in (sender, to)
    world[1].peer_lost(key(3))
    entry = world.propose(1, b"x")
    for _ in range(3):
        world.settle()
        world.tick(1)
    status = quorum_status(world[1])
    assert (status.leader, status.term, status.committed) == (1, 1, entry.next_offset)
    assert [(each.key.node_id, each.match) for each in status.voters] == [(1, end + 1), (2, end + 1), (3, -1)]
    assert [(each.key.node_id, each.match) for each in status.observers] == [(4, end + 1)]
    assert [each.last_contact_ticks_ago for each in status.voters] == [0, 1, 3]
    assert [each.caught_up_ticks_ago for each in status.voters] == [0, 1, 3]
    follower = quorum_status(world[2])
    assert (follower.leader, follower.voters, follower.observers) == (1, (), ())


def test_a_voter_that_has_answered_entries_and_no_heartbeat_yet_counts_as_contacted() -> None:
    """A follower that has the whole log must not be shown as a node that never answered."""
    world = world_of(1, 2, 3)
    world.elect(1)
    status = quorum_status(world[1])
    assert [each.match for each in status.voters] == [status.log_end_offset] * 3
    assert [each.last_contact_ticks_ago for each in status.voters] == [0, 0, 0]
    assert [each.caught_up_ticks_ago for each in status.voters] == [0, 0, 0]


def test_a_silent_follower_has_not_caught_up_since_its_last_answer() -> None:
    """No entry was appended after the follower's last answer, so the follower's log ends at the leader's log end. The
    replica with the whole log may still be gone."""
    world = world_of(1, 2, 3)
    world.elect(1)
    world.is_cut = lambda sender, to: key(3) in (sender, to)
    for _ in range(3):
        world.tick(1)
        world.settle()
    world.propose(1, b"x")
    world.settle()
    world.tick(1)
    world.settle()
    status = quorum_status(world[1])
    assert [each.last_contact_ticks_ago for each in status.voters] == [0, 0, 4]
    assert [each.caught_up_ticks_ago for each in status.voters] == [0, 0, 4]
