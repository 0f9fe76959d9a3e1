"""A leader whose disk is full up to its reserve hands its leadership to a voter with space. Without such a voter it
stays, and still carries out deletions."""

from __future__ import annotations

import errno
import logging
import random

import pytest

from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    AlterScramCredentials,
    ConfigOp,
    CreateAcls,
    DeleteTopics,
    Heartbeat,
    OpKind,
    Request,
    ScramDeletion,
    ScramUpsertion,
)
from headrace_controller.quorum_controller import HAND_OVER_EVERY_MS, QuorumController
from headrace_controller.raft import AppendRequest, Message, TimeoutNow
from headrace_controller.waiting import Answer
from headrace_core.errors import DiskFullError, HeadraceError, NotControllerError
from headrace_core.metadata import ConfigResourceType
from headrace_core.metadata.records import AclRecord
from tests.worlds.quorum_world import ROOT, QuorumWorld, create

DISK_BYTES = 4_000_000  #: Of which 5 % are the reserve, and as much is free when a shortage ends.
FILLER = f"{ROOT}/somebody-elses-file"
SOON_MS = 2_000


class Quorum:
    """Controllers, each with a disk of its own, and a broker."""

    def __init__(self, count: int = 3) -> None:
        self.world = QuorumWorld(count, random.Random(1))
        self.world.elect()
        self.world.live_broker()
        self.world.create("before", "doomed")
        for node in self.world.nodes.values():
            node.fs.mount(ROOT, DISK_BYTES)
        self.world.pass_ms(SOON_MS)
        self.first = self.world.leader

    @property
    def others(self) -> list[QuorumController]:
        return [each for each in self.world.alive() if each is not self.first]

    def leave(self, controller: QuorumController, bytes_: int) -> None:
        """Another program leaves this number of bytes free on the controller's disk."""
        fs = self.world.nodes[controller.node_id].fs
        if FILLER in fs.files():
            fs.unlink(FILLER)
        size = fs.free_bytes(ROOT) - bytes_
        file = fs.open(FILLER, write=True, create=True)
        file.pwritev([bytes(size)], 0)
        file.close()

    def fill(self, *controllers: QuorumController) -> None:
        for each in controllers:
            self.leave(each, 100_000)

    def empty(self, controller: QuorumController) -> None:
        self.world.nodes[controller.node_id].fs.unlink(FILLER)

    def passes(self, ms: int) -> None:
        """Let time pass, while the broker sends heartbeats."""
        for _ in range(0, ms, 2_000):
            self.world.pass_ms(min(ms, 2_000))
            for leader in [each for each in self.world.alive() if each.is_active]:
                epoch = leader.image.brokers[1].broker_epoch
                beat = Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=leader.image.next_offset, stream=1)
                self.world.ask(leader.node_id, beat)
        self.world.settle()

    def transfers(self) -> set[int]:
        """The terms whose leader hands the leadership over from now on."""
        found: set[int] = set()

        def note(message: Message) -> bool:
            if isinstance(message.body, TimeoutNow):
                found.add(message.body.term)
            return False

        self.world.is_cut = note
        return found

    def failure(self, controller: QuorumController, request: Request) -> HeadraceError | None:
        asked = self.world.ask(controller.node_id, request)
        self.world.settle()
        return None if isinstance(asked.result, Answer) else asked.result


@pytest.fixture
def quorum() -> Quorum:
    return Quorum()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_leader_with_a_full_disk_hands_over_to_a_voter_with_space(
    quorum: Quorum, caplog: pytest.LogCaptureFixture
) -> None:
    term, moved = quorum.world.leader.term, quorum.transfers()
    quorum.fill(quorum.first)
    quorum.passes(SOON_MS)
    heir = quorum.world.elect_other_than(quorum.first.node_id)
    quorum.world.create("after")
    quorum.passes(24_000)
    assert (quorum.world.leader, heir.term, moved) == (heir, term + 1, {term})
    assert not heir.image.brokers[1].fenced
    assert "full up to its reserve" in said(caplog)[0]
    assert f"hands its leadership to controller {heir.node_id}" in said(caplog)[1]
    assert len(said(caplog)) == 2


def test_a_refused_change_moves_the_leadership_before_the_next_look_at_the_disk(quorum: Quorum) -> None:
    quorum.passes(500)
    quorum.leave(quorum.first, DISK_BYTES // 20 + 1_000)  # four records are too many
    quorum.world.clock.advance(150)
    quorum.failure(quorum.first, create(*(f"t{number}" for number in range(9))))
    quorum.passes(SOON_MS)
    assert quorum.world.leader is not quorum.first


def test_the_voter_without_space_is_not_chosen(quorum: Quorum) -> None:
    full, well = quorum.others
    quorum.fill(full)
    quorum.passes(SOON_MS)
    for _ in range(3):  # whoever has space, gets the leadership
        quorum.fill(quorum.first)
        quorum.passes(SOON_MS)
        assert quorum.world.leader is well
        quorum.empty(quorum.first)
        quorum.passes(20_000)
        quorum.first, well = well, quorum.first


def test_where_all_disks_are_full_the_leader_stays_and_deletions_work(
    quorum: Quorum, caplog: pytest.LogCaptureFixture
) -> None:
    quorum.fill(*quorum.world.alive())
    term, moved = quorum.first.term, quorum.transfers()
    quorum.passes(24_000)
    assert isinstance(quorum.failure(quorum.first, create("more")), DiskFullError)
    assert quorum.failure(quorum.first, DeleteTopics(("doomed",))) is None
    assert (quorum.world.leader.term, moved) == (term, set())
    assert sum("stays the leader" in each for each in said(caplog)) == 1
    quorum.empty(quorum.others[1])
    quorum.passes(24_000)
    assert quorum.world.leader is not quorum.first, "somebody has space now"
    quorum.world.create("more")


def test_nothing_is_said_of_controllers_that_are_away(
    quorum: Quorum, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum.first, "_near_voters", dict)
    quorum.fill(quorum.first)
    quorum.passes(24_000)
    assert len(said(caplog)) == 1
    assert "full up to its reserve" in said(caplog)[0]


def test_the_only_controller_stays(caplog: pytest.LogCaptureFixture) -> None:
    quorum = Quorum(1)
    quorum.fill(quorum.first)
    quorum.passes(24_000)
    assert isinstance(quorum.failure(quorum.first, create("more")), DiskFullError)
    assert quorum.failure(quorum.first, DeleteTopics(("doomed",))) is None
    assert len(said(caplog)) == 2


def test_a_hand_over_that_fails_is_tried_at_most_once_in_an_interval(quorum: Quorum) -> None:
    tries: list[float] = []

    def cut(message: Message) -> bool:
        if isinstance(message.body, TimeoutNow):
            tries.append(quorum.world.clock.monotonic_ms())
            return True
        return False

    quorum.world.is_cut = cut
    quorum.fill(quorum.first)
    quorum.passes(4 * HAND_OVER_EVERY_MS)
    begun = [at for number, at in enumerate(tries) if not number or at - tries[number - 1] > HAND_OVER_EVERY_MS / 2]
    assert len(begun) in (4, 5)
    assert quorum.world.leader is quorum.first
    assert quorum.failure(quorum.first, DeleteTopics(("doomed",))) is None


def test_two_disks_at_their_limit_do_not_exchange_the_leadership(quorum: Quorum) -> None:
    other, third = quorum.others
    moved = quorum.transfers()
    quorum.fill(third)
    quorum.fill(quorum.first)
    quorum.passes(SOON_MS)
    assert quorum.world.leader is other
    for _ in range(8):  # each has a little more than its reserve, until it leads
        quorum.leave(quorum.first, DISK_BYTES // 20 + 10_000)
        quorum.fill(quorum.world.leader)
        quorum.passes(2_000)
    assert len(moved) <= 2


def test_a_voter_of_an_earlier_release_is_not_chosen(quorum: Quorum) -> None:
    old, new = quorum.others
    for each in (old, new):
        quorum.world.nodes[each.node_id].storage.measure_space = lambda: None  # type: ignore[method-assign,union-attr,return-value,assignment]
    quorum.passes(SOON_MS)
    quorum.fill(quorum.first)
    quorum.passes(24_000)
    assert quorum.world.leader is quorum.first, "it reports no space, and may be full too"


def test_a_voter_that_is_far_behind_or_away_is_not_chosen(quorum: Quorum) -> None:
    away, near = quorum.others
    quorum.fill(near)
    quorum.world.is_cut = lambda message: isinstance(message.body, AppendRequest) and message.to == away.key
    quorum.world.create("t")
    quorum.first.peer_lost(away.key)
    quorum.world.isolate(away.node_id)
    quorum.fill(quorum.first)
    quorum.passes(20_000)
    assert quorum.world.leader is quorum.first
    quorum.world.is_cut = lambda message: False
    quorum.world.heal()
    quorum.world.until(lambda: any(each.is_active and each is not quorum.first for each in quorum.world.alive()))


def test_what_is_asked_while_the_leadership_moves_is_answered(quorum: Quorum) -> None:
    quorum.fill(quorum.first)
    asked = [quorum.world.ask(quorum.first.node_id, DeleteTopics(("doomed",)))]
    for _ in range(30):
        quorum.passes(100)
        asked.append(quorum.world.ask(quorum.first.node_id, DeleteTopics(("nobody",))))
    quorum.passes(2_000)
    assert quorum.world.leader is not quorum.first
    assert all(each.is_answered for each in asked)
    assert isinstance(asked[0].result, Answer | NotControllerError)


def test_a_quota_that_the_file_system_does_not_show_counts_as_a_full_disk(quorum: Quorum) -> None:
    """The write fails, although statvfs shows space."""
    fs = quorum.world.nodes[quorum.first.node_id].fs
    fs.fail("write", errno.EDQUOT, path_ends=".log", times=10_000)
    quorum.world.ask(quorum.first.node_id, create("t"))
    heir = quorum.world.elect_other_than(quorum.first.node_id)
    quorum.passes(500)
    seen = heir.raft.progress_of(quorum.first.key)
    assert seen is not None
    assert seen.room is not None
    assert seen.room.usable_bytes == 0


@pytest.mark.parametrize("is_longer", [False, True])
def test_a_stopping_leader_prefers_a_voter_with_space(quorum: Quorum, *, is_longer: bool) -> None:
    full, well = quorum.others
    quorum.fill(full)
    quorum.passes(SOON_MS)
    if is_longer:  # the one with the full disk has the longer log
        quorum.world.is_cut = lambda message: isinstance(message.body, AppendRequest) and message.to == well.key
        quorum.world.create("t")
    assert quorum.first.best_successor() == well.key


def config(how: OpKind, value: str = "") -> AlterConfigs:
    ops = (ConfigOp(how, "retention.ms", value),)
    return AlterConfigs((AlterResource((ConfigResourceType.TOPIC, "before"), ops),))


ACL = AclRecord(b"", 2, "t", 3, "User:ann", "*", 2, 3)
PASSWORD = ScramUpsertion("ann", 1, 4_096, b"salt", bytes(32))


@pytest.mark.parametrize(
    "request_", [CreateAcls((ACL,)), AlterScramCredentials((PASSWORD,))], ids=lambda each: type(each).__name__
)
def test_users_and_their_rights_are_growth(quorum: Quorum, request_: Request) -> None:
    quorum.fill(*quorum.world.alive())
    quorum.passes(SOON_MS)
    assert isinstance(quorum.failure(quorum.first, request_), DiskFullError)
    for each in quorum.world.alive():
        quorum.empty(each)
    quorum.passes(SOON_MS)
    assert quorum.failure(quorum.first, request_) is None


def test_a_user_is_removed_on_a_full_disk(quorum: Quorum) -> None:
    assert quorum.failure(quorum.first, AlterScramCredentials((PASSWORD,))) is None
    quorum.fill(*quorum.world.alive())
    quorum.passes(SOON_MS)
    assert quorum.failure(quorum.first, AlterScramCredentials((), (ScramDeletion("ann", 1),))) is None


def test_removals_are_no_growth(quorum: Quorum) -> None:
    assert quorum.failure(quorum.first, config(OpKind.SET, "5")) is None
    quorum.fill(*quorum.world.alive())
    quorum.passes(SOON_MS)
    assert isinstance(quorum.failure(quorum.first, config(OpKind.SET, "6")), DiskFullError)
    assert quorum.failure(quorum.first, config(OpKind.DELETE)) is None
