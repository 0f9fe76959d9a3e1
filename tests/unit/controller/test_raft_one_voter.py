"""Raft with one voter: the order of durable writes, and the state after a restart."""

from __future__ import annotations

import pytest

from headrace_controller.raft import EntryKind, HardState, Place, RaftNode, Role, SnapshotId, Stored
from headrace_core.errors import NotControllerError
from tests.worlds.raft_world import Disk, RaftWorld, key, voters

ONE = SnapshotId(Place(0, 0), voters(1))
NEW = HardState()


def voter(hard_state: HardState = NEW, log_end: int = 0, last_term: int = 0) -> RaftNode:
    terms = ((last_term, 0),) if log_end else ()
    stored = Stored(start=ONE, end_offset=log_end, hard_state=hard_state, terms=terms)
    return RaftNode(key(1), stored, Disk(ONE), draw=lambda below: 0)


def leader(log_end: int = 0, last_term: int = 0) -> RaftNode:
    node = voter(log_end=log_end, last_term=last_term)
    node.tick()
    node.persisted(node.ready())
    return node


def test_nothing_happens_before_time_passes() -> None:
    ready = voter().ready()
    assert not ready.must_persist
    assert (ready.committed, ready.role, ready.leader) == (0, Role.FOLLOWER, -1)


def test_term_and_vote_are_durable_before_the_voter_leads() -> None:
    """Raft, 5.2; KIP-595: a replica that acts in a term before the term is durable can vote twice in this term."""
    node = voter(HardState(4, key(1)))
    node.tick()
    ready = node.ready()
    assert ready.hard_state == HardState(5, key(1))
    assert ready.entries == ()
    assert ready.role is Role.CANDIDATE
    with pytest.raises(NotControllerError):
        node.propose(b"x", 1)
    node.tick()
    node.persisted(ready)
    assert node.role is Role.LEADER
    assert node.term == 5, "the vote is asked for once"


def test_a_leader_begins_with_an_entry_of_its_own_term() -> None:
    """Raft, 5.4.2 and figure 8."""
    node = leader(log_end=10, last_term=3)
    (entry,) = node.ready().entries
    assert (entry.kind, entry.term, entry.base_offset, entry.count) == (EntryKind.LEADER_CHANGE, 4, 10, 1)


def test_earlier_entries_are_committed_only_with_one_of_the_leaders_own_term() -> None:
    """Raft, figure 8."""
    node = leader(log_end=10, last_term=3)
    ready = node.ready()
    assert node.committed == 0
    node.persisted(ready)
    assert node.committed == 11


def test_what_is_written_but_not_flushed_is_not_committed() -> None:
    """etcd issue 14370: a single voter acknowledged entries that were only in the page cache."""
    node = leader()
    node.persisted(node.ready())
    node.propose(b"x", 3)
    ready = node.ready()
    assert (len(ready.entries), ready.committed, node.committed) == (1, 1, 1)
    node.persisted(ready)
    assert node.committed == 4


def test_what_is_proposed_while_the_disk_is_busy_waits_for_its_own_turn() -> None:
    node = leader()
    node.propose(b"x", 3)
    ready = node.ready()
    node.propose(b"y", 2)
    node.persisted(ready)
    assert node.committed == 4
    node.persisted(node.ready())
    assert node.committed == 6


def test_proposals_follow_one_another_without_a_gap() -> None:
    node = leader()
    entries = [node.propose(b"x", count) for count in (1, 5, 2)]
    assert [(entry.base_offset, entry.next_offset) for entry in entries] == [(1, 2), (2, 7), (7, 9)]
    assert [entry.base_offset for entry in node.ready().entries] == [0, 1, 2, 7]
    assert node.log_end_offset == 9


def test_a_term_is_never_used_twice_even_if_the_vote_is_older_than_the_log() -> None:
    node = voter(HardState(2, key(1)), log_end=10, last_term=7)
    node.tick()
    assert node.ready().hard_state == HardState(8, key(1))


def test_a_restart_remembers_what_was_acknowledged() -> None:
    world = RaftWorld(voters(1))
    world.elect(1)
    entry = world.propose(1, b"kept")
    replica = world.replicas[key(1)]
    replica.node.propose(b"lost", 1)
    world.crash(replica)
    world.restart(replica)
    node = world.elect(1)
    assert entry.next_offset <= node.committed
    assert [each.data for each in world.history.values() if each.kind is EntryKind.DATA] == [b"kept"]
