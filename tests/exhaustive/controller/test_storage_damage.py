"""Damaged bytes, missing files, full disks: a typed error or the complete state, never a part of it."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from headrace_controller.raft import HardState, SnapshotChunk, SnapshotId, VoterSet
from headrace_controller.storage import MetadataStorage, write_first_voters
from headrace_core.errors import (
    CorruptLogError,
    CorruptMessageError,
    DiskFullError,
    InvalidConfigError,
    OffsetOutOfRangeError,
)
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord
from headrace_core.metadata.snapshot import encode_snapshot, snapshot_name
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.storage_world import (
    DIRECTORY,
    FIRST_TERM,
    KEYS,
    ROOT,
    VOTERS,
    Model,
    Voter,
    decision,
    formatted,
    history,
    leader_change,
    open_storage,
    setting,
    small_segments,
    snapshot_bytes,
    some_entries,
    topic,
)

NO_VOTERS = VoterSet.of([])
FIRST_VOTERS = f"{DIRECTORY}/{snapshot_name(0, 0)}"


def path_of(snapshot: SnapshotId) -> str:
    return f"{DIRECTORY}/{snapshot_name(*snapshot.place)}"


def stopped(voter: Voter) -> CrashingFileSystem:
    """The disk after a kill of the process."""
    return voter.fs.crash_clone(loss=Loss.ALL)


def flipped(fs: CrashingFileSystem, path: str, rng: random.Random, *, step: int = 1) -> Iterator[tuple[int, int]]:
    """Flip a bit of each byte in turn, and yield (position, bit). Each flip is undone afterwards."""
    for position in range(0, len(fs.files()[path]), step):
        bit = 1 << rng.randrange(8)
        fs.flip(path, position, bit)
        yield position, bit
        fs.flip(path, position, bit)


def reopened(fs: CrashingFileSystem) -> MetadataStorage:
    """Open the storage on a copy, so that its repairs do not change the original."""
    return open_storage(fs.crash_clone(loss=Loss.NONE))


# ---------------------------------------------------------------------------------------------- the log


@pytest.mark.parametrize("voters", [VOTERS, None], ids=["of three", "sole"])
def test_a_log_that_is_gone_is_not_begun_anew(voters: VoterSet | None) -> None:
    """The voter has lost its term and vote. If the file of the first voters is also lost, the voter would lead
    alone."""
    fs = formatted(voters)
    open_storage(fs).close()
    storage = open_storage(fs)
    storage.append([topic(1, 0)])
    storage.save_hard_state(HardState(1, KEYS[0]))
    del storage
    crashed = fs.crash_clone(loss=Loss.ALL)
    for name in crashed.listdir(DIRECTORY):
        crashed.unlink(f"{DIRECTORY}/{name}")
    crashed.rmdir(DIRECTORY)
    for _ in range(2):  # a refused start writes no file that the next start would take for a new log
        with pytest.raises(CorruptLogError, match=r"is missing: restore it, or add .* as a new voter"):
            open_storage(crashed)


def test_a_flipped_bit_anywhere_in_the_log_is_never_believed_and_never_cut(rng: random.Random) -> None:
    """Although the last batch is beyond every recovery point, it must not be truncated, because it was acknowledged."""
    voter = Voter.new()
    voter.append([leader_change(1, 0), decision(1, 1, ClusterRecord("c", 1)), topic(1, 2), setting(2, 4, 10)])
    fs = stopped(voter)
    log = f"{DIRECTORY}/{0:020}.log"
    for position, bit in flipped(fs, log, rng):
        with pytest.raises(CorruptLogError) as caught:
            reopened(fs)
        assert log in caught.value.message, f"bit {bit} of byte {position}"
    assert voter.model.wrong(reopened(fs), voter.model.end) is None


def test_a_log_that_was_torn_at_any_byte_is_a_beginning_of_itself(rng: random.Random) -> None:
    voter = Voter.new()
    voter.append(history(rng, 6))
    fs = stopped(voter)
    log = f"{DIRECTORY}/{0:020}.log"
    data = fs.files()[log]
    ends = set()
    for size in range(len(data)):
        fs.replace(log, data[:size])
        storage = reopened(fs)
        assert voter.model.wrong(storage, 0) is None, f"cut at {size} of {len(data)}"
        ends.add(storage.log_end_offset)
    assert ends == {0, *(entry.next_offset for entry in voter.model.entries[:-1])}


def test_a_log_that_lost_what_was_below_the_recovery_point_is_refused(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch, 100_000)
    voter = Voter.new()
    voter.append(history(rng, 10))
    fs = stopped(voter)
    log = f"{DIRECTORY}/{0:020}.log"
    fs.replace(log, fs.files()[log][:-400])
    with pytest.raises(CorruptLogError, match=r"recovery point|flushed up to"):
        open_storage(fs)


def test_a_log_that_ends_below_its_own_snapshot_is_refused(rng: random.Random) -> None:
    """The log looks like one that a received snapshot should replace, but it has lost acknowledged entries."""
    voter = Voter.new()
    voter.append(history(rng, 6))
    voter.snapshot(voter.model.end)
    voter.append(some_entries(rng, voter.model.end, 30, 3))
    fs = stopped(voter)
    log = f"{DIRECTORY}/{0:020}.log"
    fs.replace(log, fs.files()[log][:200])
    with pytest.raises(CorruptLogError, match=r"recovery point|flushed up to"):
        open_storage(fs)


def test_entries_whose_bytes_say_something_else_are_not_written() -> None:
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    sound = setting(1, 1, 20)
    for wrong in (
        replace(sound, data=sound.data[:-1] + b"x"),
        replace(sound, term=2),
        replace(sound, count=2),
        replace(sound, data=sound.data + sound.data),
        replace(sound, data=leader_change(1, 1).data),
        replace(sound, data=b""),
        replace(sound, data=setting(1, 2, 20).data),
    ):
        with pytest.raises(CorruptMessageError):
            voter.storage.append([wrong])
    assert voter.model.wrong(voter.storage, 1) is None
    voter.append([sound])


def test_a_full_disk_takes_all_entries_or_none(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    voter = Voter.new()
    voter.append(history(rng, 5))
    more = some_entries(rng, voter.model.end, 30, 12)  # they need several segments
    for operation in ("write", "create"):
        refusals = 0
        for nth in range(1, 40):
            before = voter.fs.crash_clone(loss=Loss.NONE)
            storage = open_storage(before)
            storage.save_hard_state(voter.model.hard_state)
            before.fail(operation, errno.ENOSPC, nth=nth, path_contains="__cluster_metadata-0/0")
            try:
                storage.append(more)
            except DiskFullError:
                refusals += 1
            else:
                break
            assert voter.model.wrong(storage, voter.model.end) is None, f"{operation} {nth}"
            later = Model((*voter.model.entries, *more))
            storage.append(more)
            assert later.wrong(storage, later.end) is None, f"{operation} {nth}, and then there was room"
        assert refusals > 2, operation


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_disk_without_room_even_for_the_recovery_point_takes_all_entries_or_none(
    operation: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery point is the log's end, as after each start. To lower the recovery point first would need a new
    file, for which a full disk has no room."""
    small_segments(monkeypatch)
    voter = Voter.new()
    voter.append(history(rng, 5))
    voter.reopen(clean=True)
    more = some_entries(rng, voter.model.end, 30, 12)  # they need several segments
    later = Model((*voter.model.entries, *more))
    refusals = 0
    for nth in range(1, 40):
        before = voter.fs.crash_clone(loss=Loss.NONE)
        storage = open_storage(before)
        storage.save_hard_state(voter.model.hard_state)
        before.fail(operation, errno.ENOSPC, nth=nth, times=1_000)
        try:
            storage.append(more)
        except DiskFullError:
            refusals += 1
        else:
            break
        assert voter.model.wrong(storage, voter.model.end) is None, f"{operation} {nth}"
        for loss in (Loss.ALL, Loss.NONE):
            crashed = before.crash_clone(loss=loss)
            crashed.faults.clear()
            assert voter.model.wrong(open_storage(crashed), voter.model.end) is None, f"{operation} {nth}, {loss}"
        before.faults.clear()
        storage.append(more)
        assert later.wrong(storage, later.end) is None, f"{operation} {nth}, and then there was room"
    assert refusals > 2, operation


def test_a_kill_on_a_full_disk_leaves_no_entry_in_the_place_of_another(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that needs a new segment is refused, although the smaller entry after it would fit into the old segment.
    The process is killed before it can remove the written part of the refused append."""

    def killed(storage: MetadataStorage, end: int) -> None:
        raise SimulatedCrash("killed")

    monkeypatch.setattr(MetadataStorage, "_take_back", killed)
    small_segments(monkeypatch)
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    entries = [setting(1, at, size) for at, size in enumerate((200, 600, 10, 600, 10), 1)]
    later = Model((*voter.model.entries, *entries))
    kills = 0
    for nth in range(1, 10):
        fs = voter.fs.crash_clone(loss=Loss.NONE)
        storage = open_storage(fs)
        storage.save_hard_state(voter.model.hard_state)
        fs.fail("create", errno.ENOSPC, nth=nth, path_contains="__cluster_metadata-0/0")
        try:
            storage.append(entries)
        except SimulatedCrash:
            kills += 1
        else:
            break
        assert later.wrong(reopened(fs), voter.model.end) is None, f"create {nth}"
    assert kills


@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_term_that_a_full_disk_refused_is_not_in_the_history_of_terms(
    operation: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the terms has the new term before the entry is written. A leader without the refused entry sends
    entries of the former term for the same offsets, and then the power fails."""
    small_segments(monkeypatch)
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    refused = [leader_change(2, 1), setting(2, 2, 600)]
    sent = [setting(1, at, 10) for at in range(1, 6)]
    later = Model((*voter.model.entries, *sent))
    refusals = 0
    for nth in range(1, 40):
        fs = voter.fs.crash_clone(loss=Loss.NONE)
        storage = open_storage(fs)
        storage.save_hard_state(voter.model.hard_state)
        fs.fail(operation, errno.ENOSPC, nth=nth, times=1_000)
        try:
            storage.append(refused)
        except DiskFullError:
            refusals += 1
        else:
            break
        fs.faults.clear()
        storage.append(sent)
        assert later.wrong(open_storage(fs.crash_clone(loss=Loss.ALL)), later.end) is None, f"{operation} {nth}"
    assert refusals


def test_an_empty_log_removes_the_entries_that_a_full_disk_refused(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    entries = history(rng, 20)
    whole = Model(tuple(entries))
    for operation in ("write", "create"):
        refused = 0
        for nth in range(1, 40):
            voter = Voter.new()
            voter.fs.fail(operation, errno.ENOSPC, nth=nth, times=1_000)
            try:
                voter.storage.append(entries)
            except DiskFullError:
                pass
            else:
                break
            assert whole.wrong(voter.storage, 0) is None, f"{operation} {nth}"
            refused += 1
            assert voter.storage.log_end_offset == 0, f"{operation} {nth}"
            assert whole.wrong(reopened(voter.fs), 0) is None, f"{operation} {nth}"
            voter.fs.faults.clear()
            voter.storage.append(entries)
            assert whole.wrong(voter.storage, whole.end) is None, f"{operation} {nth}, and then there was room"
        assert refused > 1, operation


def test_an_entry_of_a_term_that_met_a_full_disk_does_not_stand_in_the_way_of_an_earlier_one() -> None:
    """A leader of term 7 failed to write an entry at an offset; the next leader copies an entry of term 5 to that
    offset."""
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    voter.fs.fail("write", errno.ENOSPC, path_ends=".log")
    with pytest.raises(DiskFullError):
        voter.storage.append([leader_change(7, 1)])
    assert voter.model.wrong(voter.storage, 1) is None
    voter.append([leader_change(5, 1), leader_change(8, 2)])
    assert voter.model.wrong(voter.storage, 3) is None
    assert voter.model.wrong(open_storage(stopped(voter)), 3) is None


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_a_disk_that_is_full_while_the_log_is_cut_leaves_a_log_that_can_go_on(
    keep: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    refusals = 0
    for nth in range(1, 20):
        voter = Voter.new()
        voter.append(history(rng, 5))
        voter.append(some_entries(rng, voter.model.end, 70, 8))
        model, offset = voter.model, voter.model.entries[keep].base_offset
        fault = voter.fs.fail("create", errno.ENOSPC, nth=nth)
        try:
            voter.storage.truncate(offset)
        except DiskFullError:
            refusals += 1
            assert model.wrong(voter.storage, offset) is None, f"create {nth}"
            assert model.wrong(reopened(voter.fs), offset) is None, f"create {nth}"
            voter.storage.truncate(offset)
        voter.fs.faults.clear()
        cut = replace(model, entries=(*model.until(offset), leader_change(60, offset)))
        voter.storage.append(cut.entries[-1:])  # of an earlier term than what was cut
        assert cut.wrong(voter.storage, cut.end) is None, f"create {nth}"
        assert cut.wrong(reopened(voter.fs), cut.end) is None, f"create {nth}"
        if fault.seen < nth:
            break
    assert refusals  # of the recovery point's file; the truncation continues without the files that it cannot create


# ---------------------------------------------------------------------------------------------- snapshots


def with_two_snapshots(rng: random.Random) -> Voter:
    """The log begins after the first of the snapshots."""
    voter = Voter.new()
    for term in (1, 20, 30):
        voter.append(some_entries(rng, voter.model.end, term, 4))
        if term < 30:
            voter.snapshot(voter.model.end)
    assert voter.storage.log_start_offset > 0
    return voter


def test_a_newest_snapshot_that_has_rotted_is_made_good_by_the_one_before(rng: random.Random) -> None:
    voter = with_two_snapshots(rng)
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    fs, forgiving = stopped(voter), replace(voter.model, snapshot=0)
    for position, _ in flipped(fs, path_of(newest), rng):
        storage = reopened(fs)
        older = storage.newest_snapshot()
        assert older is not None
        assert older.place < newest.place, f"byte {position}"
        assert forgiving.wrong(storage, voter.model.end) is None, f"byte {position}"


def test_a_snapshot_cut_at_any_byte_is_made_good_by_the_one_before(rng: random.Random) -> None:
    voter = with_two_snapshots(rng)
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    fs, forgiving = stopped(voter), replace(voter.model, snapshot=0)
    data = fs.files()[path_of(newest)]
    for size in range(0, len(data), 7):
        fs.replace(path_of(newest), data[:size])
        assert forgiving.wrong(reopened(fs), voter.model.end) is None, f"cut at {size} of {len(data)}"


def installed(rng: random.Random) -> tuple[Voter, SnapshotId]:
    """The only snapshot of the replica came from the leader."""
    leaders = Model(tuple(history(rng, 8)))
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    voter.install(leaders, leaders.end, chunk_bytes=300)
    voter.append([leader_change(90, leaders.end)])
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    return voter, newest


def test_the_only_snapshot_that_has_rotted_stops_the_voter_and_says_what_to_do(rng: random.Random) -> None:
    voter, newest = installed(rng)
    fs = stopped(voter)
    for position, _ in flipped(fs, path_of(newest), rng, step=3):
        with pytest.raises(CorruptLogError, match="restore the file from a copy") as caught:
            reopened(fs)
        assert path_of(newest) in caught.value.message, f"byte {position}"


def test_a_log_without_its_beginning_and_without_the_snapshot_of_it_is_refused(rng: random.Random) -> None:
    voter, newest = installed(rng)
    fs = stopped(voter)
    fs.unlink(path_of(newest))
    with pytest.raises(CorruptLogError, match=r"no snapshot covers the offsets before.*restore the \.checkpoint file"):
        open_storage(fs)
    trimmed = stopped(with_two_snapshots(rng))
    for path in list(trimmed.files()):
        if path.endswith(".checkpoint"):
            trimmed.unlink(path)
    with pytest.raises(CorruptLogError, match="no snapshot covers the offsets before"):
        open_storage(trimmed)


def test_a_newest_snapshot_that_is_missing_is_no_loss_while_the_one_before_is_there(rng: random.Random) -> None:
    voter = with_two_snapshots(rng)
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    fs = stopped(voter)
    fs.unlink(path_of(newest))
    assert replace(voter.model, snapshot=0).wrong(open_storage(fs), voter.model.end) is None


def test_a_rotted_snapshot_that_was_about_to_be_installed_is_not_passed_over(rng: random.Random) -> None:
    """The log may already be truncated because of this snapshot, so the earlier state no longer exists."""
    leaders = Model(tuple(history(rng, 8)))
    voter = Voter.new()
    voter.append(leaders.entries[:4])
    voter.snapshot(voter.model.end)
    fs = stopped(voter)
    path = path_of(leaders.snapshot_id(leaders.end))
    fs.replace(path, snapshot_bytes(leaders, leaders.end)[:-1] + b"x")
    with pytest.raises(CorruptLogError, match="restore the file from a copy"):
        open_storage(fs)


def test_a_snapshot_under_another_ones_name_is_refused(rng: random.Random) -> None:
    voter, newest = installed(rng)
    fs = stopped(voter)
    for offset, term in ((newest.place.offset + 1, newest.place.term), (newest.place.offset, newest.place.term + 1)):
        other = fs.crash_clone(loss=Loss.NONE)
        other.rename(path_of(newest), f"{DIRECTORY}/{snapshot_name(offset, term)}")
        with pytest.raises(CorruptLogError, match="but the file contains snapshot"):
            open_storage(other)


def test_a_snapshot_and_a_log_that_contradict_each_other_are_refused(rng: random.Random) -> None:
    voter = Voter.new()
    voter.append(history(rng, 8))
    fs = stopped(voter)
    image = msgspec.structs.replace(voter.model.image(2), epoch=77)
    fs.replace(f"{DIRECTORY}/{snapshot_name(2, 77)}", b"".join(encode_snapshot(image, voters=(), timestamp_ms=0)))
    with pytest.raises(CorruptLogError, match="belongs to another controller"):
        open_storage(fs)


def test_a_snapshot_that_rots_while_it_is_sent_goes_to_nobody(rng: random.Random) -> None:
    voter = with_two_snapshots(rng)
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    assert voter.storage.snapshot_chunk(newest, 0, 100) is not None
    voter.fs.flip(path_of(newest), 200)
    with pytest.raises(CorruptLogError):
        voter.storage.snapshot_chunk(newest, 0, 100)


def test_a_snapshot_is_handed_out_in_pieces_of_any_size(rng: random.Random) -> None:
    voter = with_two_snapshots(rng)
    newest = voter.storage.newest_snapshot()
    assert newest is not None
    whole = voter.fs.files()[path_of(newest)]
    for size in (1, 64, len(whole), len(whole) + 1):
        data, is_last = b"", False
        while not is_last:
            piece = voter.storage.snapshot_chunk(newest, len(data), size)
            assert piece is not None
            data, is_last = data + piece[0], piece[1]
        assert data == whole
    assert voter.storage.snapshot_chunk(SnapshotId(newest.place, NO_VOTERS), 0, 100) is None
    assert voter.storage.snapshot_chunk(voter.model.snapshot_id(0), 0, 100) is None


# ---------------------------------------------------------------------------------------------- receiving


def parts(fs: CrashingFileSystem) -> list[str]:
    return [path for path in fs.files() if path.endswith((".part", ".tmp"))]


def test_a_snapshot_that_arrives_damaged_or_is_another_is_asked_for_anew(rng: random.Random) -> None:
    leaders = Model(tuple(history(rng, 8)))
    snapshot, data = leaders.snapshot_id(leaders.end), snapshot_bytes(leaders, leaders.end)
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    storage = voter.storage
    for position in range(0, len(data), 11):
        damaged = data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]
        assert not storage.write_chunk(SnapshotChunk(snapshot, 0, damaged, True)), f"byte {position}"
    assert not storage.write_chunk(SnapshotChunk(SnapshotId(snapshot.place, VoterSet.of(KEYS[:1])), 0, data, True))
    later = snapshot.place._replace(offset=snapshot.place.offset + 1)
    assert not storage.write_chunk(SnapshotChunk(SnapshotId(later, snapshot.voters), 0, data, True))
    assert not storage.write_chunk(SnapshotChunk(snapshot, 50, data[50:], True)), "its beginning never came"
    assert storage.write_chunk(SnapshotChunk(snapshot, 0, data[:60], False))
    assert not storage.write_chunk(SnapshotChunk(snapshot, 80, data[80:], True)), "a piece is missing"
    assert parts(voter.fs) == []
    assert voter.model.wrong(storage, 1) is None
    voter.install(leaders, leaders.end, chunk_bytes=100)
    assert voter.model.wrong(storage, leaders.end) is None


def test_a_chunk_that_comes_twice_and_one_of_another_snapshot_in_between(rng: random.Random) -> None:
    leaders = Model(tuple(history(rng, 8)))
    snapshot, data = leaders.snapshot_id(leaders.end), snapshot_bytes(leaders, leaders.end)
    storage = Voter.new().storage
    for chunk in (
        SnapshotChunk(leaders.snapshot_id(2), 0, b"another", False),
        SnapshotChunk(snapshot, 0, data[:100], False),
        SnapshotChunk(snapshot, 100, data[100:150], False),
        SnapshotChunk(snapshot, 100, data[100:200], False),
        SnapshotChunk(snapshot, 200, data[200:], False),
        SnapshotChunk(snapshot, len(data), b"", True),
    ):
        assert storage.write_chunk(chunk), chunk
    storage.install(snapshot)
    assert storage.load_image() == leaders.image(leaders.end)


def test_a_full_disk_while_a_snapshot_arrives_leaves_nothing_and_the_next_try_succeeds(rng: random.Random) -> None:
    leaders = Model(tuple(history(rng, 8)))
    snapshot, data = leaders.snapshot_id(leaders.end), snapshot_bytes(leaders, leaders.end)
    voter = Voter.new()
    voter.fs.fail("write", errno.ENOSPC, nth=2, path_contains=".part", partial_bytes=20)
    assert voter.storage.write_chunk(SnapshotChunk(snapshot, 0, data[:100], False))
    with pytest.raises(DiskFullError):
        voter.storage.write_chunk(SnapshotChunk(snapshot, 100, data[100:], True))
    assert parts(voter.fs) == []
    voter.install(leaders, leaders.end, chunk_bytes=1_000)
    assert voter.model.wrong(voter.storage, leaders.end) is None


def test_a_snapshot_whose_installation_met_a_full_disk_is_installed_when_there_is_room(rng: random.Random) -> None:
    leaders = Model(tuple(history(rng, 12)))
    refusals = 0
    for nth in range(1, 20):
        voter = Voter.new()
        voter.append(leaders.entries[:6])
        data = snapshot_bytes(leaders, leaders.end)
        snapshot = leaders.snapshot_id(leaders.end)
        assert voter.storage.write_chunk(SnapshotChunk(snapshot, 0, data, True))
        fault = voter.fs.fail("create", errno.ENOSPC, nth=nth)
        try:
            voter.storage.install(snapshot)
        except DiskFullError:
            refusals += 1
            crashed = stopped(voter)
            assert replace(leaders, snapshot=leaders.end).wrong(open_storage(crashed), leaders.end) is None, f"{nth}"
        assert replace(leaders, snapshot=leaders.end).wrong(voter.storage, leaders.end) is None, f"create {nth}"
        if not fault.seen >= nth:
            break
    assert refusals >= 2


def test_a_snapshot_counts_while_there_is_no_room_to_begin_the_log_behind_it(rng: random.Random) -> None:
    """Found by the simulator: while the disk was still full, the controller's restart failed, and the process ended."""
    leaders = Model(tuple(history(rng, 12)))
    snapshot, data = leaders.snapshot_id(leaders.end), snapshot_bytes(leaders, leaders.end)
    refusals = 0
    for operation in ("create", "write"):
        for nth in range(1, 20):
            voter = Voter.new()
            voter.append(leaders.entries[:6])
            assert voter.storage.write_chunk(SnapshotChunk(snapshot, 0, data, True))
            voter.fs.fail(operation, errno.ENOSPC, nth=nth, times=1_000)
            try:
                voter.storage.install(snapshot)
            except DiskFullError:
                refusals += 1
            else:
                break
            later = replace(leaders, snapshot=leaders.end)
            assert later.wrong(voter.storage, leaders.end) is None, f"{operation} {nth}"
            assert (voter.storage.log_start_offset, voter.storage.log_end_offset) == (leaders.end, leaders.end)
            assert voter.storage.bytes_since_snapshot() == 0
            with pytest.raises(OffsetOutOfRangeError, match=f"offset {leaders.end - 1} "):
                voter.storage.read(leaders.end - 1, leaders.end)
            more = leader_change(9, leaders.end)
            with pytest.raises(DiskFullError, match="cannot install"):
                voter.storage.append([more])
            assert later.wrong(voter.storage, leaders.end) is None, f"{operation} {nth}"
            crashed, kept = stopped(voter), voter.fs.crash_clone(loss=Loss.NONE)
            voter.fs.faults.clear()
            for storage in (voter.storage, open_storage(crashed), open_storage(kept)):
                assert storage.append([more]) == more.next_offset
                assert replace(later, entries=(*leaders.entries, more)).wrong(storage, more.next_offset) is None
                storage.close()
            reopened = open_storage(voter.fs.crash_clone(loss=Loss.ALL))
            assert replace(later, entries=(*leaders.entries, more)).wrong(reopened, more.next_offset) is None
    assert refusals >= 3


def test_a_controller_that_stops_and_starts_on_a_full_disk_keeps_a_snapshot_that_was_not_installed(
    rng: random.Random,
) -> None:
    leaders = Model(tuple(history(rng, 12)))
    snapshot, data = leaders.snapshot_id(leaders.end), snapshot_bytes(leaders, leaders.end)
    for nth in range(1, 4):
        voter = Voter.new()
        voter.append(leaders.entries[:6])
        assert voter.storage.write_chunk(SnapshotChunk(snapshot, 0, data, True))
        voter.fs.fail("create", errno.ENOSPC, nth=nth, times=1_000)
        try:
            voter.storage.install(snapshot)
        except DiskFullError:
            voter.storage.close()
            voter.fs.faults.clear()
        later = replace(leaders, snapshot=leaders.end)
        assert later.wrong(open_storage(voter.fs.crash_clone(loss=Loss.ALL)), leaders.end) is None, f"create {nth}"


# ---------------------------------------------------------------------------------------------- making


def test_a_snapshot_that_finds_no_room_leaves_nothing(rng: random.Random) -> None:
    voter = Voter.new()
    voter.append(history(rng, 8))
    model = voter.model
    for operation in ("create", "write"):
        voter.fs.fail(operation, errno.ENOSPC, path_ends=".checkpoint.tmp", partial_bytes=10)
        job = voter.storage.snapshot_job(model.image(model.end), model.place(model.end), model.voters_at(model.end))
        with pytest.raises(DiskFullError, match="no space left"):
            job.run()
        assert parts(voter.fs) == []
    voter.snapshot(model.end)
    assert voter.storage.newest_snapshot() == model.snapshot_id(model.end)


def test_no_snapshot_is_made_of_what_is_kept_for_the_log(rng: random.Random) -> None:
    fs = formatted()
    fs.mount(ROOT, 10_000_000)
    storage = MetadataStorage.open(
        fs, ROOT, clock=ManualClock(), cluster_id="cluster-one", node_id=1, reserve_bytes=500_000
    )
    storage.save_hard_state(FIRST_TERM)
    model = Model(tuple(history(rng, 8)))
    storage.append(model.entries)
    filler = fs.open(f"{ROOT}/filler", write=True, create=True)
    filler.pwritev([bytes(fs.free_bytes(ROOT) - 400_000)], 0)
    job = storage.snapshot_job(model.image(model.end), model.place(model.end), VOTERS)
    with pytest.raises(DiskFullError, match=r"log\.dir\.reserve\.bytes"):
        job.run()
    assert parts(fs) == []
    filler.truncate(0)
    job.run()
    storage.finish_snapshot(job)
    assert storage.load_image() == model.image(model.end)


def test_a_snapshot_that_was_overtaken_by_one_from_the_leader_is_dropped(rng: random.Random) -> None:
    leaders = Model(tuple(history(rng, 10)))
    voter = Voter.new()
    voter.append(leaders.entries[:4])
    model = voter.model
    job = voter.storage.snapshot_job(model.image(model.end), model.place(model.end), model.voters_at(model.end))
    voter.install(leaders, leaders.end, chunk_bytes=10_000)
    job.run()
    assert voter.storage.finish_snapshot(job) is None
    assert parts(voter.fs) == []
    assert [path for path in voter.fs.files() if path.endswith(".checkpoint")] == [
        path_of(leaders.snapshot_id(leaders.end))
    ]
    assert voter.model.wrong(voter.storage, leaders.end) is None


def test_a_full_disk_puts_the_trimming_off_and_loses_nothing(rng: random.Random) -> None:
    voter = Voter.new()
    voter.append(history(rng, 6))
    voter.snapshot(voter.model.end)
    first = voter.model.end
    voter.append(some_entries(rng, first, 30, 6))
    voter.fs.fail("create", errno.ENOSPC, path_contains="checkpoint.tmp", nth=2, times=9)  # (the first is the snapshot)
    voter.snapshot(voter.model.end)
    assert voter.model.wrong(open_storage(stopped(voter)), voter.model.end) is None
    voter.fs.faults.clear()
    voter.append(some_entries(rng, voter.model.end, 50, 6))
    voter.snapshot(voter.model.end)
    assert voter.storage.log_start_offset > first
    assert voter.model.wrong(open_storage(stopped(voter)), voter.model.end) is None


def test_what_was_trimmed_is_gone_from_the_disk_and_is_said_to_be(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    voter = Voter.new()
    sizes = []
    for term in range(1, 120, 10):
        voter.append(some_entries(rng, voter.model.end, term, 12))
        voter.snapshot(voter.model.end)
        sizes.append(sum(len(data) for path, data in voter.fs.files().items() if path.endswith(".log")))
    assert max(sizes) < 3 * min(sizes)
    assert not any(".deleted" in path for path in voter.fs.files())
    assert sum(path.endswith(".checkpoint") for path in voter.fs.files()) == 2
    with pytest.raises(OffsetOutOfRangeError):
        voter.storage.read(0, voter.model.end)


# ---------------------------------------------------------------------------------------------- who votes


def test_a_directory_of_before_there_were_voters_is_its_own_sole_voter() -> None:
    storage = open_storage(formatted(voters=None))
    sole = VoterSet.of([KEYS[0]])
    assert storage.stored(sole).start.voters == sole
    storage.save_hard_state(HardState(1))
    storage.append([leader_change(1, 0, sole)])
    assert storage.stored(sole).start.voters == sole
    assert storage.newest_snapshot() is None
    assert storage.load_image() == EMPTY_IMAGE


def test_a_voter_that_lost_the_file_with_the_first_voters_does_not_elect_itself() -> None:
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    fs = stopped(voter)
    fs.unlink(FIRST_VOTERS)
    with pytest.raises(CorruptLogError, match="first voters is missing"):
        open_storage(fs).stored(VoterSet.of([KEYS[0]]))


def test_damage_in_the_file_with_the_first_voters_stops_the_voter(rng: random.Random) -> None:
    voter = Voter.new()
    voter.append([leader_change(1, 0)])
    fs = stopped(voter)
    for position, _ in flipped(fs, FIRST_VOTERS, rng, step=3):
        with pytest.raises(CorruptLogError, match="restore the file from a copy"):
            reopened(fs)
        assert position >= 0


def test_the_first_voters_are_written_once() -> None:
    fs = formatted()
    before = fs.files()
    write_first_voters(fs, ROOT, VOTERS)
    assert fs.files() == before
    for others in (NO_VOTERS, VOTERS.plus(KEYS[3]), VoterSet.of(VOTERS.keys, {1: "elsewhere:1"})):
        with pytest.raises(InvalidConfigError, match="refusing to overwrite it"):
            write_first_voters(fs, ROOT, others)
    fs.flip(FIRST_VOTERS, 100)
    with pytest.raises(CorruptLogError):
        write_first_voters(fs, ROOT, VOTERS)
    fs.unlink(FIRST_VOTERS)
    open_storage(fs).close()
    with pytest.raises(InvalidConfigError, match="already has a metadata log"):
        write_first_voters(fs, ROOT, VOTERS)


@pytest.mark.parametrize("loss", list(Loss))
def test_the_first_voters_are_there_whole_or_not_at_all(loss: Loss, rng: random.Random) -> None:
    fs = formatted(voters=None)
    clones: list[CrashingFileSystem] = []
    fs.on_operation = lambda operation: clones.append(fs.crash_clone(rng, loss))
    write_first_voters(fs, ROOT, VOTERS)
    fs.on_operation = None
    clones.append(fs.crash_clone(rng, Loss.ALL))
    for clone in clones:
        write_first_voters(clone, ROOT, VOTERS)
        assert open_storage(clone).stored(NO_VOTERS).start.voters == VOTERS
    assert FIRST_VOTERS in clones[-1].files()


def test_nobody_votes_in_a_directory_that_was_formatted_to_wait() -> None:
    storage = open_storage(formatted(voters=NO_VOTERS))
    assert storage.stored(VoterSet.of([KEYS[0]])).start.voters == NO_VOTERS
