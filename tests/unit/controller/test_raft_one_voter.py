"""Raft of one voter: what is durable before what, and what a restart remembers."""

from __future__ import annotations

import pytest

from headrace_controller.raft import EntriesFlushed, EntryKind, HardState, HardStateSaved, RaftNode, Role
from headrace_core.errors import InvalidConfigError, NotControllerError, UnsupportedVersionError

NEW = HardState()


def voter(hard_state: HardState = NEW, log_end: int = 0, last_term: int = 0) -> RaftNode:
    return RaftNode(1, (1,), hard_state=hard_state, log_end_offset=log_end, last_term=last_term)


def leader(**start: int) -> RaftNode:
    node = voter(**start)  # type: ignore[arg-type]
    node.tick()
    ready = node.ready()
    assert ready.hard_state is not None
    node.step(HardStateSaved(ready.hard_state))
    return node


def test_nothing_happens_before_time_passes() -> None:
    ready = voter().ready()
    assert (ready.hard_state, ready.entries, ready.committed, ready.role) == (None, (), 0, Role.FOLLOWER)


def test_term_and_vote_are_durable_before_the_voter_leads() -> None:
    """Raft, 5.2; KIP-595: whoever acts in a term that it may forget can vote twice in it."""
    node = voter(HardState(4, 1))
    node.tick()
    ready = node.ready()
    assert ready.hard_state == HardState(5, 1)
    assert ready.entries == ()
    assert ready.role is Role.CANDIDATE
    with pytest.raises(NotControllerError):
        node.propose(b"x", 1)
    node.tick()
    assert node.ready().hard_state is None, "the vote is asked for once"
    node.step(HardStateSaved(HardState(5, 1)))
    assert node.role is Role.LEADER


def test_an_echo_of_another_term_makes_no_leader() -> None:
    node = voter(HardState(4, 1))
    node.tick()
    node.step(HardStateSaved(HardState(4, 1)))
    assert node.role is Role.CANDIDATE


def test_a_leader_begins_with_an_entry_of_its_own_term() -> None:
    """Raft, 5.4.2 and figure 8."""
    node = leader(log_end=10, last_term=3)
    (entry,) = node.ready().entries
    assert (entry.kind, entry.term, entry.base_offset, entry.count) == (EntryKind.LEADER_CHANGE, 4, 10, 1)


def test_earlier_entries_are_committed_only_with_one_of_the_leaders_own_term() -> None:
    """Raft, figure 8."""
    node = leader(log_end=10, last_term=3)
    node.ready()
    node.step(EntriesFlushed(10))
    assert node.committed == 0
    node.step(EntriesFlushed(11))
    assert node.committed == 11


def test_what_is_written_but_not_flushed_is_not_committed() -> None:
    """etcd issue 14370: a single voter acknowledged what was only in the page cache."""
    node = leader()
    node.propose(b"x", 3)
    assert len(node.ready().entries) == 2
    assert node.ready().committed == 0
    node.step(EntriesFlushed(1))
    assert node.ready().committed == 1
    node.step(EntriesFlushed(4))
    assert node.ready().committed == 4


def test_the_commit_offset_never_goes_back() -> None:
    node = leader()
    node.propose(b"x", 3)
    node.step(EntriesFlushed(4))
    node.step(EntriesFlushed(2))
    assert node.committed == 4


def test_proposals_follow_one_another_without_a_gap() -> None:
    node = leader()
    entries = [node.propose(b"x", count) for count in (1, 5, 2)]
    assert [(entry.base_offset, entry.next_offset) for entry in entries] == [(1, 2), (2, 7), (7, 9)]
    assert [entry.base_offset for entry in node.ready().entries] == [0, 1, 2, 7]
    assert node.log_end_offset == 9


def test_a_term_is_never_used_twice_even_if_the_vote_is_older_than_the_log() -> None:
    node = voter(HardState(2, 1), log_end=10, last_term=7)
    node.tick()
    assert node.ready().hard_state == HardState(8, 1)


def test_a_leader_that_resigned_takes_no_proposals_and_forgets_those_not_handed_over() -> None:
    node = leader()
    node.propose(b"x", 1)
    node.resign()
    assert (node.role, node.leader, node.ready().entries) == (Role.FOLLOWER, -1, ())
    with pytest.raises(NotControllerError):
        node.propose(b"x", 1)


def test_several_voters_are_not_built_yet() -> None:
    with pytest.raises(UnsupportedVersionError, match="3 voters: a quorum of several is not built yet"):
        RaftNode(1, (1, 2, 3), hard_state=HardState(), log_end_offset=0, last_term=0)


@pytest.mark.parametrize("voters", [(), (2,)])
def test_a_voter_must_be_named(voters: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfigError, match=r"node\.id=1"):
        RaftNode(1, voters, hard_state=HardState(), log_end_offset=0, last_term=0)
