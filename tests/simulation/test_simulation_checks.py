"""Tests of the simulator's own checks: a planted violation of each kind is found, and valid states pass."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headrace_controller.raft import (
    AppendResponse,
    Entry,
    EntryKind,
    Message,
    Place,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
    VoterSet,
)
from headrace_core.metadata import ClusterRecord, MetadataImage
from headrace_core.metadata.codec import encode_decision
from tests.simulation.sim_checks import SafetyChecks, ShadowLog, Violation

ONE, TWO, THREE = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
ALL = VoterSet.of([ONE, TWO, THREE])


def entry(base: int, term: int, name: str = "c", voters: VoterSet | None = None) -> Entry:
    if voters is not None:
        return Entry(EntryKind.VOTERS, term, base, 1, b"v%d" % len(voters), voters)
    data = encode_decision([ClusterRecord(name, 1)], timestamp_ms=0, base_offset=base, epoch=term)
    return Entry(EntryKind.DATA, term, base, 1, data)


class Lab:
    """Three replicas whose disks and messages the test writes itself."""

    def __init__(self) -> None:
        self.checks = SafetyChecks()
        self.logs = {key: ShadowLog.behind(0) for key in ALL}

    def write(self, key: ReplicaKey, *entries: Entry) -> None:
        log = self.logs[key]
        self.checks.appended(key, log, entries, log.entries[-1].term if log.entries else 0)
        log.append(entries)
        self.checks.durable(key, entries)

    def commit(self, key: ReplicaKey, offset: int) -> None:
        self.checks.committed_at(key, self.logs[key], offset, lambda: [ALL])

    def say(
        self, key: ReplicaKey, term: int, body: object, to: ReplicaKey = THREE, sender: ReplicaKey | None = None
    ) -> None:
        self.checks.said(key, term, self.logs[key], Message(sender or key, to, body))  # type: ignore[arg-type]

    def has(self, key: ReplicaKey) -> Callable[[int, int], bool]:
        return lambda offset, term: any(e.next_offset == offset and e.term == term for e in self.logs[key].entries)


@pytest.fixture
def lab() -> Lab:
    """A majority has one entry of term 1, which is therefore committed."""
    lab = Lab()
    lab.checks.leads(ONE, 1, lab.has(ONE))
    for key in (ONE, TWO):
        lab.write(key, entry(0, 1))
    lab.commit(ONE, 1)
    return lab


def broken(check: str) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, match=f"^{re.escape(check)}: ")


def test_what_is_sound_passes(lab: Lab) -> None:
    lab.commit(TWO, 1)
    lab.say(TWO, 1, AppendResponse(1, 0, Place(1, 1)), to=ONE)
    lab.say(TWO, 2, VoteResponse(2, 2, True), to=ONE)
    lab.checks.leads(ONE, 2, lab.has(ONE))
    lab.checks.image("1", lab.checks.latest, None)
    assert lab.checks.committed == 1


def test_two_leaders_in_a_term_are_found(lab: Lab) -> None:
    with broken("leaders"):
        lab.checks.leads(TWO, 1, lab.has(TWO))


def test_a_second_vote_is_found_also_when_it_is_for_itself(lab: Lab) -> None:
    lab.say(THREE, 2, VoteResponse(2, 2, True), to=ONE)
    with broken("votes"):
        lab.say(THREE, 2, VoteRequest(2, Place(0, 0)), to=TWO)


def test_a_voice_from_a_disk_that_is_gone_is_found(lab: Lab) -> None:
    with broken("identity"):
        lab.say(THREE, 1, VoteResponse(1, 1, False), sender=ReplicaKey(3, bytes(16)))


def test_a_promise_of_what_is_not_on_the_disk_is_found(lab: Lab) -> None:
    with broken("durability"):
        lab.say(THREE, 1, AppendResponse(1, 0, Place(1, 1)), to=ONE)


def test_different_entries_at_one_place_are_found(lab: Lab) -> None:
    with broken("log matching"):
        lab.write(THREE, entry(0, 1, "another"))


def test_equal_entries_behind_different_ones_are_found(lab: Lab) -> None:
    lab.write(ONE, entry(1, 3))
    lab.write(THREE, entry(0, 2, "x"))
    with broken("log matching"):
        lab.write(THREE, entry(1, 3))


def test_a_leader_without_what_is_committed_is_found(lab: Lab) -> None:
    with broken("completeness"):
        lab.checks.leads(THREE, 2, lab.has(THREE))


def test_different_entries_committed_at_one_place_are_found(lab: Lab) -> None:
    lab.write(THREE, entry(0, 2, "x"))
    with broken("state machines"):
        lab.commit(THREE, 1)


def test_what_too_few_have_is_not_committed(lab: Lab) -> None:
    lab.write(ONE, entry(1, 1))
    with broken("commitment"):
        lab.commit(ONE, 2)


def test_a_leader_that_commits_an_earlier_term_by_counting_is_found(lab: Lab) -> None:
    with broken("commitment"):
        lab.checks.counts(ONE, 3, 1, 1)


def test_a_change_of_voters_before_the_last_one_is_committed_is_found(lab: Lab) -> None:
    lab.write(ONE, entry(1, 1, voters=VoterSet.of([ONE, TWO])))
    with broken("voters"):
        lab.write(ONE, entry(2, 1, voters=VoterSet.of([ONE])))


def test_a_change_of_voters_before_the_leader_knows_is_found(lab: Lab) -> None:
    lab.checks.leads(TWO, 2, lab.has(TWO))
    with broken("voters"):
        lab.write(TWO, entry(1, 2, voters=VoterSet.of([ONE, TWO])))


def test_an_image_that_differs_or_lies_between_is_found(lab: Lab) -> None:
    known = lab.checks.latest
    with broken("state machines"):
        lab.checks.image("2", MetadataImage(next_offset=known.next_offset, epoch=1, cluster_id="other"), None)
    with broken("state machines"):
        lab.checks.image("2", MetadataImage(next_offset=17), None)


def test_an_acknowledged_write_that_is_not_committed_is_found(lab: Lab) -> None:
    lab.checks.writes.begin("w")
    with broken("histories"):
        lab.checks.acknowledged("w", 1)


def test_a_refused_write_that_comes_to_be_committed_is_found(lab: Lab) -> None:
    lab.checks.marks_of = lambda record: getattr(record, "cluster_id", None)
    lab.checks.writes.begin("late")
    lab.checks.refused("late")
    for key in (ONE, TWO):
        lab.write(key, entry(1, 1, "late"))
    with broken("histories"):
        lab.commit(ONE, 2)


def test_a_stale_read_is_found(lab: Lab) -> None:
    with broken("reads"):
        lab.checks.read_served(1, 0, "1")
