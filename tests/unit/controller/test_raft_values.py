"""Guarantees of Raft's values: sets of voters and their addresses, and entries with the same bytes in all logs."""

from __future__ import annotations

import pytest

from headrace_controller.raft import EntryKind, VoterSet
from tests.worlds.raft_world import RaftWorld, control, key, voters

ADDRESSES = {1: "a:1", 2: "b:2", 3: "c:3"}


def test_addresses_are_kept_with_those_who_have_one() -> None:
    members = VoterSet.of([key(2), key(1), key(3)], {1: "a:1", 2: "b:2", 3: "", 9: "nobody:9"})
    assert members.addresses == ((1, "a:1"), (2, "b:2"))
    assert [members.address(node_id) for node_id in (1, 2, 3, 9)] == ["a:1", "b:2", "", ""]


def test_who_is_who_does_not_depend_on_an_address() -> None:
    assert VoterSet.of([key(1)], ADDRESSES) == voters(1)
    assert hash(VoterSet.of([key(1)], ADDRESSES)) == hash(voters(1))


def test_a_voter_comes_with_its_address_and_takes_it_along() -> None:
    members = VoterSet.of([key(1), key(2)], ADDRESSES)
    grown = members.plus(key(3), "c:3")
    assert grown == voters(1, 2, 3)
    assert dict(grown.addresses) == ADDRESSES
    assert dict(grown.minus(key(1)).addresses) == {2: "b:2", 3: "c:3"}
    assert grown.minus(key(1, disk=2)) == grown, "another disk's replica is somebody else"


def test_two_directories_of_a_node_do_not_vote_together() -> None:
    with pytest.raises(ValueError, match="named twice"):
        voters(1, 2).plus(key(2, disk=2))


def test_rafts_own_entries_have_the_same_bytes_in_every_log() -> None:
    """The leader encodes entries once, with their term and offset. Followers store and forward the same bytes."""
    world = RaftWorld(voters(1, 2, 3))
    world.elect(1)
    world[1].observe(key(4))
    world.add(key(4))
    world.work(world.replicas[key(1)])
    world.tick(1)
    world.settle()
    world[1].add_voter(key(4), "d:4")
    world.work(world.replicas[key(1)])
    world.settle()
    logs = [replica.disk.entries_ for replica in world.replicas.values()]
    assert logs[0] == logs[1] == logs[2] == logs[3]
    first, second = logs[0]
    assert (first.kind, first.data) == (EntryKind.LEADER_CHANGE, control(first.kind, 1, 0, voters(1, 2, 3)))
    assert (second.kind, second.data) == (EntryKind.VOTERS, control(second.kind, 1, 1, voters(1, 2, 3, 4)))
    assert [log[1].voters.address(4) for log in logs if log[1].voters is not None] == ["d:4"] * 4
