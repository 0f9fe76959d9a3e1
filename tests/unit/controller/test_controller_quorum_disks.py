"""Several controllers and their disks: snapshots, full and failing disks, damage, and changes of the voters."""

from __future__ import annotations

import errno
import random
from itertools import pairwise

import pytest

from headrace_controller.raft import AppendRequest, ReplicaKey, Role, SnapshotRequest
from headrace_controller.settings import QuorumSettings
from headrace_controller.waiting import Answer
from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    DuplicateVoterError,
    InvalidRequestError,
    ReplicaNotCaughtUpError,
)
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.worlds.quorum_world import ROOT, QuorumWorld, create, followers

DISK_BYTES = 20_000_000
FILLER = f"{ROOT}/somebody-elses-file"
SNAPSHOT_AT_ONCE = QuorumSettings(snapshot_bytes=1)


def world_of(count: int, rng: random.Random, settings: QuorumSettings | None = None) -> QuorumWorld:
    made = QuorumWorld(count, rng, settings=settings)
    made.elect()
    made.live_broker()
    made.pass_ms(200)
    return made


def fill(fs: CrashingFileSystem, leave_bytes: int = 0) -> None:
    """Another file takes the space, except for this number of bytes."""
    fs.mount(ROOT, DISK_BYTES)
    size = fs.free_bytes(ROOT) - leave_bytes
    file = fs.open(FILLER, write=True, create=True)
    file.pwritev([bytes(size)], 0)
    file.close()


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_due_by_size_and_counts_from_the_last_one(rng: random.Random) -> None:
    world = world_of(1, rng, QuorumSettings(snapshot_bytes=5_000, snapshot_interval_ms=0))
    made = []
    for number in range(200):
        world.create(f"topic-{number}")
        job = world[1].snapshot_due()
        if job is not None:
            assert world[1].snapshot_due() is None, "one at a time"
            job.run()
            world[1].snapshot_done(job)
            made.append(number)
    assert 1 < len(made) < 10
    gaps = [after - before for before, after in pairwise(made)]
    assert max(gaps) - min(gaps) <= 2


def test_a_snapshot_is_due_by_time_only_if_there_is_anything_new(rng: random.Random) -> None:
    world = world_of(1, rng, QuorumSettings(snapshot_interval_ms=10_000))
    world.make_snapshots()
    assert world.snapshots(1) == 0
    world.pass_ms(10_000)
    world.make_snapshots()
    assert world.snapshots(1) == 1
    world.pass_ms(30_000)
    world.make_snapshots()
    assert world.snapshots(1) == 1, "nothing was new"


def test_what_is_written_while_a_snapshot_is_made_comes_behind_it(rng: random.Random) -> None:
    world = world_of(1, rng, SNAPSHOT_AT_ONCE)
    world.create("before")
    job = world[1].snapshot_due()
    assert job is not None
    world.create("meanwhile")
    job.run()
    world.create("after")
    world[1].snapshot_done(job)
    world.kill(1)
    world.start(1)
    assert world.topics(1) == ["after", "before", "meanwhile"]


@pytest.mark.parametrize("loss", list(Loss))
def test_a_restart_begins_with_the_snapshot_and_the_log_behind_it(rng: random.Random, loss: Loss) -> None:
    world = world_of(3, rng, SNAPSHOT_AT_ONCE)
    for number in range(3):
        world.create(f"t{number}")
        world.pass_ms(200)
        world.make_snapshots()
    world.create("last")
    world.pass_ms(200)
    voters = world.leader.voters
    for number in world.nodes:
        world.kill(number, loss)
    for number in world.nodes:
        assert world.start(number).image.topic("t1") is not None, "at once, by the snapshot"
    world.elect()
    world.pass_ms(500)
    for number in world.nodes:
        assert world.topics(number) == ["last", "t0", "t1", "t2"]
        assert world[number].voters == voters


def test_a_laggard_gets_a_snapshot_and_its_subscribers_what_changed(rng: random.Random) -> None:
    world = world_of(3, rng, SNAPSHOT_AT_ONCE)
    world.create("doomed", "kept")
    world.pass_ms(200)
    laggard = followers(world)[0].node_id
    before = world[laggard].image
    world.isolate(laggard)
    for number in range(3):
        world.create(f"t{number}")
        world.pass_ms(200)
        world.make_snapshots()
    del world.nodes[laggard].published[:]
    sent: list[int] = []
    world.is_cut = lambda message: bool(isinstance(message.body, SnapshotRequest) and sent.append(laggard))
    world.heal()
    world.until(lambda: world.topics(laggard) == world.topics(world.leader.node_id))
    assert sent, "the log alone would have done"
    assert world[laggard].is_serving
    image, delta = world.nodes[laggard].published[0]
    assert delta.from_offset == before.next_offset
    assert delta.next_offset == image.next_offset
    assert delta.created_topics == set(image.topics) - set(before.topics)
    assert not delta.removed_topics
    world.create("after")
    world.pass_ms(200)
    assert world[laggard].image.topic("after") is not None


def test_a_received_snapshot_is_decoded_where_the_loop_is_not_held_up(rng: random.Random) -> None:
    """100,000 partitions take a good part of a second: the disk step writes the snapshot in the disk's thread."""
    world = world_of(3, rng, SNAPSHOT_AT_ONCE)
    laggard = followers(world)[0].node_id
    world.isolate(laggard)
    for number in range(3):
        world.create(f"t{number}")
        world.pass_ms(200)
        world.make_snapshots()
    world.heal()
    controller, storage = world[laggard], world.nodes[laggard].storage
    assert storage is not None
    loaded: list[bool] = []
    load = storage.load_image
    storage.load_image = lambda: loaded.append(controller.may_persist_aside) or load()  # type: ignore[method-assign, func-returns-value]
    world.until(lambda: world.topics(laggard) == world.topics(world.leader.node_id))
    assert loaded == [True]


@pytest.mark.parametrize("loss", list(Loss))
def test_a_crash_at_any_operation_of_an_install_heals(rng: random.Random, loss: Loss) -> None:
    tried = 0
    for number in range(100):
        world = world_of(3, rng, SNAPSHOT_AT_ONCE)
        laggard = followers(world)[0].node_id
        world.isolate(laggard)
        for name in ("a", "b", "c"):
            world.create(name)
            world.pass_ms(200)
            world.make_snapshots()
        world.heal()
        fs = world.nodes[laggard].fs
        fs.crash_at(fs.operations + number)
        crashed = world.run_until_crash(ms=1_500)
        if not crashed:
            break
        tried += 1
        world.kill(laggard, loss)
        world.start(laggard)
        world.pass_ms(3_000)
        assert world.topics(laggard) == ["a", "b", "c"], f"crashed at operation {number}"
    assert tried > 10


def test_a_disk_too_full_for_a_snapshot_costs_the_snapshot_only(rng: random.Random) -> None:
    world = world_of(1, rng, SNAPSHOT_AT_ONCE)
    world.create("t")
    job = world[1].snapshot_due()
    assert job is not None
    fill(world.nodes[1].fs)
    with pytest.raises(DiskFullError) as failure:
        job.run()
    world[1].snapshot_failed(job, failure.value)
    world.nodes[1].fs.unlink(FILLER)
    assert world[1].snapshot_due() is None, "not again at once"
    world.pass_ms(61_000)
    world.make_snapshots()
    assert world.snapshots(1) == 1


# -- full and failing disks --------------------------------------------------------------------------------------------


def test_a_leader_that_cannot_write_makes_way_for_another_and_comes_back(rng: random.Random) -> None:
    world = world_of(3, rng)
    old = world.leader
    for number, node in world.nodes.items():
        fill(node.fs, leave_bytes=20_000 if number == old.node_id else 100_000)
    world.pass_ms(1_000)
    asked = world.ask(old.node_id, create("refused"))  # the reserve is used: growth is refused first
    world.settle()
    assert isinstance(asked.result, DiskFullError)
    assert old.is_active
    last = world.register_until_deposed(old.node_id)
    heir = world.elect_other_than(old.node_id)
    for each in followers(world):
        if each is not old:
            world.nodes[each.node_id].fs.unlink(FILLER)
    world.nodes[heir.node_id].fs.unlink(FILLER)
    world.pass_ms(200)
    world.create("t")
    for _ in range(30):
        world.pass_ms(100)
        assert old.role is not Role.LEADER, "it stands back"
    assert world.leader is heir
    assert not heir.image.brokers[1].fenced, "nobody is fenced for it"
    world.nodes[old.node_id].fs.unlink(FILLER)
    world.pass_ms(1_000)
    assert world.topics(old.node_id) == ["t"]
    written = last.answer.reply.broker_id if isinstance(last.result, Answer) else None
    assert (written in heir.image.brokers) is (written is not None)


def test_a_full_disk_refuses_nothing_that_the_log_has_while_the_last_other_voter_is_removed(
    rng: random.Random,
) -> None:
    world = world_of(2, rng)
    leader = world.leader
    (other,) = followers(world)
    world.isolate(other.node_id)
    asked = world.ask(leader.node_id, create("t"))
    world.settle()
    fill(world.nodes[leader.node_id].fs)
    # the entry would leave the leader as the only voter, and is not written
    world.call(leader.remove_voter, world.key(other.node_id))
    world.pass_ms(200)
    assert not asked.is_answered, "the other voter may have it, and still votes"
    world.nodes[leader.node_id].fs.unlink(FILLER)
    world.heal()
    world.until(lambda: asked.is_answered)
    assert (type(asked.result), world.topics(leader.node_id)) == (Answer, ["t"])


def test_a_follower_with_a_full_disk_acknowledges_nothing_and_the_others_go_on(rng: random.Random) -> None:
    world = world_of(3, rng)
    full, well = followers(world)
    fill(world.nodes[full.node_id].fs)
    world.create("t")
    world.pass_ms(2_000)
    assert world.topics(full.node_id) == []
    assert world.leader.voters == full.voters
    world.isolate(well.node_id)
    stuck = world.ask(world.leader.node_id, create("u"))
    world.pass_ms(500)
    assert not stuck.is_answered, "the full disk counted for a majority"
    world.nodes[full.node_id].fs.unlink(FILLER)
    world.pass_ms(500)
    assert isinstance(stuck.result, Answer)
    assert world.topics(full.node_id) == ["t", "u"]


def test_a_full_disk_that_cannot_save_a_vote_gives_none(rng: random.Random) -> None:
    world = world_of(3, rng)
    first, full = followers(world)
    term = world.leader.term
    fs = world.nodes[full.node_id].fs
    fs.fail("write", errno.ENOSPC, path_contains="quorum-state", times=10_000)
    world.kill(world.leader.node_id)
    world.pass_ms(10_000)
    assert not first.is_active, "it was elected by a vote that was not durable"
    assert full.term == term
    fs.faults.clear()
    world.elect()


def test_a_failed_disk_ends_the_controller(rng: random.Random) -> None:
    world = world_of(3, rng)
    leader = world.leader
    world.nodes[leader.node_id].fs.fail("sync", errno.EIO, path_ends=".log")
    asked = world.ask(leader.node_id, create("t"))
    assert leader.begin()
    with pytest.raises(OSError, match="Input/output"):
        leader.persist()
    assert not asked.is_answered


def test_what_rots_in_the_own_log_ends_the_controller_before_anybody_gets_it(rng: random.Random) -> None:
    world = world_of(3, rng)
    laggard = followers(world)[0]
    world.isolate(laggard.node_id)
    world.create("a")
    world.create("b")
    leader = world.leader
    fs = world.nodes[leader.node_id].fs
    path = f"{ROOT}/__cluster_metadata-0/{0:020d}.log"
    fs.flip(path, len(fs.files()[path]) - 60)
    sent: list[bytes] = []

    def note(message: object) -> bool:
        body = message.body  # type: ignore[attr-defined]
        if isinstance(body, AppendRequest):
            sent.extend(entry.data for entry in body.entries)
        return False

    world.is_cut = note
    world.heal()
    with pytest.raises(CorruptLogError, match="CRC-32C"):
        world.pass_ms(2_000)
    assert world.topics(laggard.node_id) == []


# -- voters come and go ------------------------------------------------------------------------------------------------


def test_one_voter_grows_to_three_and_back(rng: random.Random) -> None:
    world = world_of(1, rng)
    world.create("t")
    for number in (2, 3):
        newcomer = world.add_node(number)
        early = world.call(world.leader.add_voter, newcomer.key, f"host:{number}")
        world.settle()
        assert isinstance(early.result, ReplicaNotCaughtUpError)
        world.leader.observe(newcomer.key)
        world.pass_ms(300)
        assert newcomer.is_serving, "an observer follows"
        assert not newcomer.raft.is_voter
        added = world.call(world.leader.add_voter, newcomer.key, f"host:{number}")
        world.pass_ms(300)
        assert isinstance(added.result, Answer)
        assert newcomer.raft.is_voter
        assert world.leader.addresses[number] == f"host:{number}"
    world.create("u")
    world.kill(1)
    world.elect_other_than(1)
    world.create("v")
    world.start(1)
    world.pass_ms(500)
    twice = world.call(world.leader.add_voter, world[1].key, "host:1")
    world.settle()
    assert isinstance(twice.result, DuplicateVoterError)
    for number in (2, 3):
        removed = world.call(world.leader.remove_voter, world.key(number))
        world.until(lambda removed=removed: removed.is_answered)  # type: ignore[misc]
        assert isinstance(removed.result, Answer)
        world.elect()
    assert [key.node_id for key in world.leader.voters] == [1]
    last = world.call(world.leader.remove_voter, world.key(1))
    world.settle()
    assert isinstance(last.result, InvalidRequestError)
    world.create("w")
    assert world.topics(1) == ["t", "u", "v", "w"]


def test_new_voters_are_known_after_a_restart_with_and_without_a_snapshot(rng: random.Random) -> None:
    world = world_of(1, rng, SNAPSHOT_AT_ONCE)
    newcomer = world.add_node(2)
    world.leader.observe(newcomer.key)
    world.pass_ms(300)
    world.call(world.leader.add_voter, newcomer.key, "host:2")
    world.pass_ms(300)
    for _ in range(2):
        for number in (1, 2):
            world.kill(number)
            assert [key.node_id for key in world.start(number).voters] == [1, 2]
        world.elect()
        world.pass_ms(300)
        world.make_snapshots()
        world.create(f"t{world.leader.term}")
        world.pass_ms(300)
        world.make_snapshots()


def test_a_wiped_voter_is_a_stranger_and_gets_back_as_a_new_one(rng: random.Random) -> None:
    world = world_of(3, rng)
    world.create("t")
    wiped = followers(world)[0].node_id
    before = world.key(wiped)
    world.kill(wiped)
    again = world.add_node(wiped)
    world.leader.observe(again.key)
    world.pass_ms(3_000)
    assert again.key != before
    assert not again.raft.is_voter
    assert again.is_serving, "it follows, and has no vote"
    as_itself = world.call(world.leader.add_voter, again.key, "host:9")
    world.settle()
    assert isinstance(as_itself.result, DuplicateVoterError), "the lost disk has to go first"
    removed = world.call(world.leader.remove_voter, before)
    world.pass_ms(300)
    assert isinstance(removed.result, Answer)
    back = world.call(world.leader.add_voter, again.key, "host:9")
    world.pass_ms(300)
    assert isinstance(back.result, Answer)
    assert again.raft.is_voter


def test_the_observers_of_a_leader_are_known_to_the_next_one(rng: random.Random) -> None:
    world = world_of(3, rng)
    observer = world.add_node(4)
    for each in world.alive():
        if each is not observer:
            each.observe(observer.key)
    world.pass_ms(300)
    old = world.leader
    world.kill(old.node_id)
    world.elect_other_than(old.node_id)
    world.create("t")
    world.pass_ms(300)
    assert world.topics(4) == ["t"]


def test_a_new_leader_does_not_begin_anew_with_those_that_follow_already(rng: random.Random) -> None:
    """When the new leader becomes active, a majority has its first entry. Replication continues without another
    probe."""
    world = QuorumWorld(3, rng)
    for each in world.alive():
        for other in world.alive():
            if other is not each:
                each.observe(other.key)
    has_successor: list[bool] = []
    turn = world.turn

    def noted(number: int) -> None:
        turn(number)
        if world[number].is_active:
            has_successor.append(world[number].best_successor() is not None)

    world.turn = noted  # type: ignore[method-assign]
    world.elect()
    assert has_successor[0]


def test_who_follows_is_known_after_a_full_disk(rng: random.Random) -> None:
    """Raft then restarts within the process, and observers do not reconnect."""
    world = world_of(1, rng)
    observer = world.add_node(4)
    world.leader.observe(observer.key)
    world.pass_ms(300)
    node = world.nodes[1]
    fill(node.fs)
    refused = world.ask(1, create("refused"))
    world.pass_ms(300)
    assert isinstance(refused.result, DiskFullError)
    node.fs.unlink(FILLER)
    world.until(lambda: world[1].is_active)
    world.create("t")
    world.pass_ms(500)
    assert world.topics(4) == ["t"]


def test_who_has_gone_is_remembered_only_if_it_votes(rng: random.Random) -> None:
    world = world_of(3, rng)
    for number in range(100):
        world.leader.observe(stranger := ReplicaKey(9, number.to_bytes(16, "big")))
        world.leader.peer_lost(stranger)
        world.leader.forget(stranger)
    assert len(world.leader._gone) <= 3
