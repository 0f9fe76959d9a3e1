"""The log's state of idempotent producers across rolls, truncations, crashes and restarts."""

from __future__ import annotations

import errno
import math
import random
import struct
import uuid

import pytest
from crc32c import crc32c

from headrace_core.errors import (
    CorruptMessageError,
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceNumberError,
    RetriableError,
)
from headrace_core.log import Append, AppendInfo, LogConfig, PartitionLog
from headrace_core.log.dump import Note, Problem, ProducerLine, dump
from headrace_core.log.epochs import EpochStart
from headrace_core.log.moving import LogCopy, Pace
from headrace_core.log.producer_state import ProducerBatch, ProducerTable
from headrace_core.log.replicated import check_replicated
from headrace_core.log.transactions import Marker
from headrace_core.log.verify import verify
from headrace_core.records import HEADER_BYTES, encode_batch, read_header
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.types import TimestampType
from tests.worlds.log_world import (
    COMMIT,
    NOW_MS,
    ORDERS,
    ROOT,
    TINY,
    TOPIC_ID,
    Producers,
    append,
    append_to,
    begun,
    check_table,
    expected_of,
    formatted,
    idempotent,
    log_of,
    marker,
    open_directory,
    transactional,
)


def snapshots(fs: CrashingFileSystem) -> list[int]:
    names = (path.rpartition("/")[2] for path in fs.files())
    return [int(name.removesuffix(".snapshot")) for name in names if name.endswith(".snapshot")]


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


# ---------------------------------------------------------------------------------------------- what is answered


def test_a_batch_that_is_sent_again_gets_the_offset_that_it_has() -> None:
    _, _, log = begun(TINY)
    for sequence in range(5):
        append(log, idempotent(7, 2 * sequence, 2))
    for sequence in range(5):
        outcome = append(log, idempotent(7, 2 * sequence, 2))
        assert isinstance(outcome, AppendInfo)
        assert (outcome.base_offset, outcome.next_offset, outcome.is_duplicate) == (
            2 * sequence,
            2 * sequence + 2,
            True,
        )
        assert (outcome.size, outcome.log_append_time_ms) == (0, -1)
    assert log.log_end_offset == 10


def test_a_duplicate_is_answered_with_the_time_that_the_log_gave() -> None:
    _, _, log = begun(LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    first, again = append(log, idempotent(7, 0)), append(log, idempotent(7, 0))
    assert isinstance(first, AppendInfo)
    assert isinstance(again, AppendInfo)
    assert again.log_append_time_ms == first.log_append_time_ms >= 0


def test_batches_of_one_request_follow_each_other_and_are_known_together() -> None:
    _, _, log = begun(TINY)
    request = idempotent(7, 0, 2) + idempotent(7, 2) + idempotent(8, 0)
    first, again = append(log, request), append(log, request)
    assert isinstance(first, AppendInfo)
    assert isinstance(again, AppendInfo)
    assert (again.base_offset, again.next_offset, again.is_duplicate) == (0, 4, True)
    assert isinstance(append(log, idempotent(7, 3), idempotent(7, 5)), OutOfOrderSequenceNumberError)
    assert isinstance(append(log, idempotent(7, 2), idempotent(7, 3)), OutOfOrderSequenceNumberError), "one is old"
    assert log.log_end_offset == 4
    assert isinstance(append(log, idempotent(7, 3)), AppendInfo), "what was refused left no trace"


def test_requests_that_come_together_follow_each_other() -> None:
    _, _, log = begun(TINY)
    outcomes = log.append_many([Append(data=idempotent(7, sequence), leader_epoch=0) for sequence in (0, 1, 1, 3, 2)])
    kinds = [outcome.is_duplicate if isinstance(outcome, AppendInfo) else type(outcome) for outcome in outcomes]
    assert kinds == [False, False, True, OutOfOrderSequenceNumberError, False]
    assert log.log_end_offset == 3


def test_a_duplicate_of_what_could_not_be_written_is_not_confirmed() -> None:
    fs, _, log = begun(TINY)
    append(log, idempotent(7, 0))
    fs.fail("write", errno.ENOSPC, path_ends=".log", times=2)
    appends = [Append(data=idempotent(7, sequence), leader_epoch=0) for sequence in (1, 1, 2)]
    outcomes = log.append_many(appends)
    assert [type(outcome) for outcome in outcomes] == [DiskFullError, DiskFullError, DiskFullError]
    assert log.log_end_offset == 1
    check_table(log.producers, {7: (0, NOW_MS, [(0, 0)])})
    assert [type(outcome) for outcome in log.append_many(appends)] == [AppendInfo] * 3
    assert log.log_end_offset == 3


@pytest.mark.parametrize(("operation", "error"), [("create", errno.EMFILE), ("write", errno.ENOSPC)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_retry_is_no_duplicate_if_the_leaders_epoch_could_not_be_written(
    operation: str, error: int, first: int
) -> None:
    """The retry would be acknowledged, and the record would be nowhere (found by random lives of a broker)."""
    fs, _, log = begun(TINY)
    for sequence in range(first):
        append(log, idempotent(7, sequence))
    fs.fail(operation, error, path_contains="leader-epoch-checkpoint", times=2 if error == errno.EMFILE else 1)
    assert isinstance(append(log, idempotent(7, first), leader_epoch=1), RetriableError)
    assert log.log_end_offset == first
    check_table(log.producers, {7: (0, NOW_MS, [(0, 0)])} if first else {})
    append(log, idempotent(-1, -1), leader_epoch=1)
    again = append(log, idempotent(7, first), leader_epoch=1)
    assert isinstance(again, AppendInfo)
    assert (again.base_offset, again.is_duplicate) == (first + 1, False)


@pytest.mark.parametrize(("operation", "error"), [("create", errno.EMFILE), ("write", errno.ENOSPC)])
def test_a_marker_ends_nothing_if_the_leaders_epoch_could_not_be_written(operation: str, error: int) -> None:
    fs, _, log = begun(TINY)
    append_to(log, transactional(7, 0))
    fs.fail(operation, error, path_contains="leader-epoch-checkpoint", times=2 if error == errno.EMFILE else 1)
    ends = Append(
        data=marker(7, COMMIT, epoch=1),
        leader_epoch=1,
        headers=[read_header(marker(7, COMMIT, epoch=1))],
        transaction=Marker(7, 1, commit=True, coordinator_epoch=1, version=2),
    )
    (outcome,) = log.append_many([ends])
    assert isinstance(outcome, RetriableError)
    assert log.last_stable_offset(1) == 0
    (again,) = log.append_many([ends])
    assert isinstance(again, AppendInfo)
    assert not again.is_duplicate
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset == 2


def test_a_first_batch_that_could_not_be_written_leaves_nobody_known() -> None:
    fs, _, log = begun(TINY)
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    assert isinstance(append(log, idempotent(7, 5)), DiskFullError)
    assert len(log.producers) == 0


def test_a_roll_without_room_for_the_snapshot_seals_nothing() -> None:
    fs, _, log = begun(TINY)
    append(log, idempotent(7, 0))
    fs.fail("write", errno.ENOSPC, path_contains=".snapshot")
    big = idempotent(7, 1, 74)
    assert isinstance(append(log, big), DiskFullError)
    assert bases(log) == [0]
    assert not [path for path in fs.files() if ".snapshot" in path]
    assert isinstance(append(log, big), AppendInfo)
    assert bases(log) == [0, 1]
    assert snapshots(fs) == [1]


# ---------------------------------------------------------------------------------------------- replicas


def test_a_replica_knows_the_producers_that_its_leader_knows() -> None:
    rng = random.Random(3)
    _, _, leader = begun(TINY)
    _, _, replica = begun(LogConfig(segment_bytes=500))
    producers = Producers(rng)
    for _ in range(20):
        producers.write(leader, 3)
    offset = 0
    while offset < leader.log_end_offset:
        result = leader.read(offset, 400)
        assert result is not None
        headers = check_replicated(result.records, log_end_offset=offset, leader_epoch=0)
        (outcome,) = replica.append_many(
            [Append(data=result.records, leader_epoch=0, headers=headers, replicated=True, follows=offset)]
        )
        assert isinstance(outcome, AppendInfo)
        offset = result.next_offset
    producers.check(leader, whole_window=True)
    producers.check(replica, whole_window=True)
    producers.check_window(replica)


def test_a_replica_takes_what_a_leader_would_refuse() -> None:
    _, _, replica = begun(TINY)
    data = idempotent(7, 0, leader_epoch=0) + idempotent(7, 9, offset=1, leader_epoch=0)
    (outcome,) = replica.append_many([Append(data=data, leader_epoch=0, replicated=True)])
    assert isinstance(outcome, AppendInfo)
    check_table(replica.producers, {7: (0, NOW_MS, [(0, 0), (9, 1)])})


def unreadable_marker(offset: int) -> bytes:
    """The CRC of the batch is right, but its record claims more bytes than the batch has."""
    record = (NOW_MS, struct.pack(">hh", 0, 1), bytes(6), None)
    out = bytearray(
        encode_batch([record], base_offset=offset, leader_epoch=0, producer_id=7, producer_epoch=0, control=True)
    )
    out[HEADER_BYTES] = 0x7E
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def test_a_marker_that_was_written_unreadable_is_refused_by_a_leader_and_passed_over_in_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Found by the fuzzer: a log with an unreadable marker did not open, even after its tail was truncated, and the
    error had a wrong type."""
    fs, _, log = begun(TINY)
    first = unreadable_marker(0)
    (outcome,) = log.append_many([Append(data=first, leader_epoch=0, headers=[read_header(first)])])
    assert isinstance(outcome, InvalidRecordError)
    assert (log.log_end_offset, len(log.producers)) == (0, 0)
    data = idempotent(7, 0, leader_epoch=0) + unreadable_marker(1) + idempotent(7, 1, offset=2, leader_epoch=0)
    (outcome,) = log.append_many([Append(data=data, leader_epoch=0, replicated=True)])
    assert isinstance(outcome, AppendInfo), "a replica has what its leader has"
    expected = {7: (0, NOW_MS, [(0, 0), (1, 2)])}
    check_table(log.producers, expected)
    log.flush()
    fs.crash()
    again = open_directory(fs, TINY).logs[ORDERS]
    assert again.log_end_offset == 3
    check_table(again.producers, expected)
    assert "offset 1: a control batch that ends no transaction" in caplog.text


# ---------------------------------------------------------------------------------------------- snapshots


def test_there_is_a_snapshot_for_each_segment_and_none_where_nobody_is_known() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(1), ids=0)
    while len(log.segments) < 3:
        producers.write(log)
    known_from = log.log_end_offset
    producers.ids = 3
    for _ in range(20):
        producers.write(log)
    assert snapshots(fs) == [base for base in bases(log) if base > known_from]
    for base in snapshots(fs):
        data = fs.files()[f"{log.directory}/{base:020d}.snapshot"]
        check_table(ProducerTable.from_snapshot(data, "s", base), expected_of(producers.sent, base))
    end = log.log_end_offset
    directory.close()
    assert snapshots(fs)[-1] == end


def test_a_clean_start_reads_the_snapshot_and_no_batch() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(2))
    for _ in range(20):
        producers.write(log)
    directory.close()
    fs.crash()
    fs.trace.clear()
    again = open_directory(fs, TINY)
    read = {entry.path.rpartition(".")[2] for entry in fs.trace if entry.operation == "read" and "orders" in entry.path}
    assert "snapshot" in read
    last = log_of(again).active
    for entry in fs.trace:
        if entry.operation == "read" and entry.path.endswith(".log"):
            assert entry.path == last.path, "no batch of an older segment is looked at"
            assert entry.position >= last.index.last_position() > 0, "only what an opening looks at anyway"
    producers.check(log_of(again))
    producers.check_window(log_of(again))
    again.close()
    before = fs.files()
    open_directory(fs, TINY).close()
    assert fs.files() == before, "nothing was appended: nothing is written again"


def test_a_snapshot_of_a_clean_stop_goes_with_the_next_roll() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(2))
    while not len(log.producers):
        producers.write(log)
    stop = log.log_end_offset
    directory.close()
    log = log_of(open_directory(fs, TINY))
    assert snapshots(fs) == [stop]
    while len(log.segments) < 2:
        producers.write(log)
    assert snapshots(fs) == bases(log)[1:]


def test_damaged_snapshots_send_the_start_to_an_older_one_and_to_the_log() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(5))
    for _ in range(25):
        producers.write(log)
    log.flush()
    directory.write_recovery_points()
    files = [f"{log.directory}/{base:020d}.snapshot" for base in snapshots(fs)]
    assert len(files) > 3
    for count in range(1, len(files) + 1):
        clone = fs.crash_clone(loss=Loss.NONE)
        for path in files[-count:]:
            clone.flip(path, 9)
        found = open_directory(clone, TINY)
        producers.check(log_of(found))
        clone.crash()
        producers.check(log_of(open_directory(clone, TINY)))


def test_a_damaged_snapshot_is_kept_until_a_sound_one_stands_for_it() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(5))
    while len(log.segments) < 4:
        producers.write(log)
    log.flush()
    directory.write_recovery_points()
    for base in snapshots(fs):
        fs.flip(f"{log.directory}/{base:020d}.snapshot", 9)
    fs.crash(loss=Loss.NONE)
    fs.fail("write", errno.ENOSPC, path_contains=".snapshot")
    producers.check(log_of(open_directory(fs, TINY)))
    fs.crash()
    producers.check(log_of(open_directory(fs, TINY)))


def test_retention_takes_snapshots_along_and_producers_stay() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(6))
    while len(log.segments) < 5:
        producers.write(log)
    start = bases(log)[3]
    directory.delete_records(log, start)
    assert snapshots(fs) == bases(log)
    producers.check(log)
    log.flush()
    fs.crash(loss=Loss.NONE)
    producers.check(log_of(open_directory(fs, TINY)))


def test_what_only_a_snapshot_tells_survives_a_power_loss_after_retention() -> None:
    """A roll does not fsync snapshots. In an early version, a producer whose batches were deleted was lost after a
    crash."""
    fs, directory, log = begun(TINY)
    assert isinstance(append(log, idempotent(77, 0, 3)), AppendInfo)
    producers = Producers(random.Random(6))
    while len(log.segments) < 5:
        producers.write(log)
    log.flush()
    directory.write_recovery_points()
    directory.delete_records(log, bases(log)[3])
    fs.crash(loss=Loss.ALL)
    again = log_of(open_directory(fs, TINY))
    entry = again.producers.get(77)
    assert entry is not None
    assert entry.last_batch == ProducerBatch(2, 2, 2, NOW_MS)


def test_a_cut_below_torn_snapshots_leaves_the_producers_of_the_segments_before_it() -> None:
    """A snapshot at the log's end replaced the older snapshots. A truncation removed the snapshot at the log's end too,
    and without a snapshot the log had no producers."""
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(7))
    while len(log.segments) < 6:
        producers.write(log)
    log.flush()
    directory.write_recovery_points()
    for base in snapshots(fs):
        fs.flip(f"{log.directory}/{base:020d}.snapshot", 9)
    fs.crash(loss=Loss.NONE)
    directory = open_directory(fs, TINY)
    log = log_of(directory)
    assert snapshots(fs) == bases(log)[1:]
    directory.truncate(log, bases(log)[4] + 1)
    producers.check(log)
    fs.crash()
    producers.check(log_of(open_directory(fs, TINY)))


def test_a_marker_that_compaction_emptied_tells_its_epoch() -> None:
    """If the marker's epoch were lost, a recovery from the batches, and each new replica, would let the fenced producer
    write again."""
    fs, _, log = begun(TINY)
    marker = encode_batch(
        [(NOW_MS, struct.pack(">hh", 0, 1), bytes(6), None)],
        leader_epoch=0,
        producer_id=7,
        producer_epoch=3,
        control=True,
    )
    emptied = bytearray(marker[:HEADER_BYTES])
    struct.pack_into(">i", emptied, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", emptied, 57, 0)
    struct.pack_into(">I", emptied, 17, crc32c(memoryview(emptied)[21:]))
    (outcome,) = log.append_many([Append(data=bytes(emptied), leader_epoch=0, replicated=True)])
    assert isinstance(outcome, AppendInfo)
    log.flush()
    assert isinstance(append(log, idempotent(7, 0, epoch=2)), InvalidProducerEpochError)
    fs.crash()
    again = log_of(open_directory(fs, TINY))
    assert isinstance(append(again, idempotent(7, 0, epoch=2)), InvalidProducerEpochError)


def test_a_log_that_begins_anew_knows_nobody() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(6))
    while len(log.segments) < 3:
        producers.write(log)
    directory.restart(log, 1000)
    assert len(log.producers) == 0
    assert snapshots(fs) == []
    assert isinstance(append(log, idempotent(1, 77)), AppendInfo)


@pytest.mark.parametrize("crashed", [False, True], ids=["open", "after a power loss"])
def test_a_log_that_begins_where_its_leader_deleted_records_gets_the_leader_s_producers(crashed: bool) -> None:
    """If the producers were lost, this replica would later, as a leader, append a batch of a deleted record a second
    time."""
    _, _, leader = begun(TINY)
    append(leader, kept := idempotent(1, 0, count=2))
    append(leader, idempotent(2, 0))
    append(leader, idempotent(2, 1))  # at the new log start
    append(leader, idempotent(3, 0))
    fs, directory, log = begun(TINY)
    append(log, idempotent(9, 0))
    directory.restart(log, 3, leader.producers.snapshot_at(3))
    if crashed:
        fs.crash()
        log = log_of(open_directory(fs, TINY))
    assert (log.log_start_offset, log.log_end_offset, log.producers.next_offset) == (3, 3, 3)
    assert {entry.producer_id: entry.last_batch for entry in log.producers} == {
        1: ProducerBatch(1, 1, 1, NOW_MS),
        2: ProducerBatch(0, 2, 0, NOW_MS),
    }
    again = append(log, kept)
    assert isinstance(again, AppendInfo)
    assert again.is_duplicate
    assert isinstance(append(log, idempotent(2, 7)), OutOfOrderSequenceNumberError)
    assert isinstance(append(log, idempotent(2, 1)), AppendInfo)


def test_a_crash_leaves_no_log_that_begins_there_without_the_producers() -> None:
    _, _, leader = begun(TINY)
    append(leader, idempotent(1, 0, count=2))
    append(leader, idempotent(2, 0))
    fs, directory, log = begun(TINY)
    append(log, idempotent(9, 0))
    log.flush()
    clones: list[CrashingFileSystem] = []
    fs.on_operation = lambda entry: clones.append(fs.crash_clone())
    directory.restart(log, 3, leader.producers.snapshot_at(3))
    fs.on_operation = None
    clones.append(fs.crash_clone())
    found = [log_of(open_directory(clone, TINY)) for clone in clones]
    begun_there = [each for each in found if each.log_start_offset == 3]
    assert 2 < len(begun_there) < len(found)
    for each in begun_there:
        assert {entry.producer_id for entry in each.producers} == {1, 2}


def test_a_transaction_that_began_before_the_log_start_is_open_in_a_log_that_begins_there() -> None:
    _, _, leader = begun(TINY)
    append_to(leader, transactional(7, 0))
    append_to(leader, transactional(8, 0))
    append(leader, idempotent(1, 0))
    _, directory, log = begun(TINY)
    directory.restart(log, 1, leader.producers.snapshot_at(1))
    assert [(entry.producer_id, entry.transaction_first_offset) for entry in log.producers] == [(7, 0)]
    assert log.producers.first_unstable_offset == 0


def test_damaged_producers_of_a_leader_change_nothing() -> None:
    _, directory, log = begun(TINY)
    append(log, idempotent(1, 0))
    damaged = bytearray(log.producers.snapshot_at(1))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="the leader's producers"):
        directory.restart(log, 50, bytes(damaged))
    assert (log.log_start_offset, log.log_end_offset, len(log.producers)) == (0, 1, 1)


def test_producers_that_write_nothing_are_forgotten() -> None:
    clock = ManualClock(NOW_MS)
    log = open_directory(formatted(), TINY, clock).create(ORDERS, TOPIC_ID, TINY)
    append(log, idempotent(7, 0))
    clock.advance(5_000)
    append(log, idempotent(8, 0))
    candidates = log.producers.expired(clock.monotonic_ms(), 1_000)
    assert candidates == [7]
    append(log, idempotent(7, 1))
    assert log.expire_producers(1_000, candidates) == 0, "it has written since it was looked at"
    assert log.expire_producers(0, [7, 8, 9]) == 2
    assert len(log.producers) == 0


def test_a_dump_shows_each_producer_and_tells_rot_from_what_a_crash_leaves() -> None:
    fs, _, log = begun(TINY)
    append(log, idempotent(7, 4, 2, epoch=3), idempotent(8, 0))
    log.roll()
    log.flush()
    path = f"{log.directory}/{3:020d}.snapshot"
    lines = [line for line in dump(log.directory, fs=fs) if isinstance(line, ProducerLine)]
    assert lines == list(dump(path, fs=fs))[1:]
    assert [(line.producer_id, line.producer_epoch, line.last_sequence) for line in lines] == [(7, 3, 5), (8, 0, 0)]
    assert [(line.last_offset, line.offset_delta, line.transaction_first_offset) for line in lines] == [
        (1, 1, -1),
        (2, 0, -1),
    ]
    sound = fs.files()[path]
    for data, is_rot in ((sound[:-1], False), (b"", False), (bytes(len(sound)), False), (sound[:-1] + b"x", True)):
        fs.replace(path, data)
        for found in (dump(path, fs=fs), verify(log.directory, fs=fs)):
            problems = [line for line in found if isinstance(line, Problem)]
            assert [isinstance(line, Note) for line in problems] == [not is_rot]
            assert problems[0].path == path


def test_a_log_that_is_copied_to_another_directory_takes_its_snapshots_along() -> None:
    fs, _, log = begun(TINY)
    producers = Producers(random.Random(9))
    while len(log.segments) < 4:
        producers.write(log)
    fs.mkdir("/other")
    copy = LogCopy(fs, log, "/other", move_id=uuid.UUID(int=1), pace=Pace(ManualClock(NOW_MS), math.inf))
    copy.begin()
    copy.catch_up()
    producers.write(log)
    copy.finish()
    copied = [name for name in fs.listdir(copy.path) if name.endswith(".snapshot")]
    assert copied == [f"{base:020d}.snapshot" for base in bases(log)[1:]]
    moved = PartitionLog.open(
        fs, copy.path, ORDERS, TINY, clock=ManualClock(NOW_MS), recovery_point=log.log_end_offset, clean=True
    )
    producers.check(moved)
    producers.check_window(moved)


# ---------------------------------------------------------------------------------------------- cuts and crashes


def test_the_table_after_a_cut_at_any_offset_is_that_of_the_batches_left() -> None:
    fs, directory, log = begun(TINY)
    producers = Producers(random.Random(8))
    while len(log.segments) < 4:
        producers.write(log, 2)
    log.flush()
    directory.write_recovery_points()
    end = log.log_end_offset
    for offset in range(end + 1):
        clone = fs.crash_clone(loss=Loss.NONE)
        cut_directory = open_directory(clone, TINY)
        cut = log_of(cut_directory)
        cut_directory.truncate(cut, offset)
        left = Producers(random.Random(offset))
        left.sent = [batch for batch in producers.sent if batch.next_offset <= cut.log_end_offset]
        left.check(cut)
        assert all(base <= cut.log_end_offset for base in snapshots(clone))
        left.check_window(cut)
        clone.crash()
        left.check(log_of(open_directory(clone, TINY)))


@pytest.mark.parametrize("rolled", [True, False], ids=["the first segment begins there", "it begins below"])
@pytest.mark.parametrize("crashed", [False, True], ids=["open", "after a power loss"])
def test_a_cut_of_all_records_above_the_log_start_keeps_the_producers_and_the_epoch_below_it(
    rolled: bool, crashed: bool
) -> None:
    """If the log forgot the epoch, its broker would later, as a leader, make the followers begin again. If the log
    forgot its producers, its broker would later, as a leader, append a repeated batch a second time."""
    fs, directory, log = begun(TINY)
    append(log, sent := idempotent(1, 0, count=2), leader_epoch=3)
    if rolled:
        log.roll()
    log.flush()
    directory.delete_records(log, 2)
    append(log, idempotent(1, 2, count=2), leader_epoch=5)
    log.roll()
    append(log, idempotent(1, 4), leader_epoch=5)
    log.flush()
    directory.write_recovery_points()
    assert log.epochs.entries == (EpochStart(3, 2), EpochStart(5, 2))
    directory.truncate(log, 2, 3)
    if crashed:
        fs.crash()
        log = log_of(open_directory(fs, TINY))
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (2, 2, 1)
    assert log.epochs.entries == (EpochStart(3, 2),)
    again = append(log, sent, leader_epoch=6)
    assert isinstance(again, AppendInfo)
    assert again.is_duplicate
    assert isinstance(append(log, idempotent(1, 2, count=2), leader_epoch=6), AppendInfo)
    assert log.epochs.entries == (EpochStart(3, 2), EpochStart(6, 2))


def test_a_cut_at_the_log_start_forgets_an_epoch_that_the_leader_does_not_know() -> None:
    _, directory, log = begun(TINY)
    directory.restart(log, 50)
    append(log, idempotent(1, 0, count=2), leader_epoch=5)
    directory.truncate(log, 50, 4)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (50, 50, ())


def work(fs: CrashingFileSystem, producers: Producers) -> None:
    """Appends, rolls, a truncation, a clean stop, more appends."""
    directory = open_directory(fs, TINY)
    log = directory.logs.get(ORDERS) or directory.create(ORDERS, TOPIC_ID, TINY)
    for turn in range(14):
        producers.write(log)
        if turn % 3 == 0:
            log.flush()
        if turn == 7:
            directory.write_recovery_points()
        if turn == 9:
            directory.truncate(log, max(log.flushed_end - 3, 0))
            producers.cut(log.log_end_offset)
    directory.close()


def run_until(stop_at: int | None, seed: int) -> tuple[CrashingFileSystem, bool]:
    fs = formatted()
    producers = Producers(random.Random(seed))
    if stop_at is not None:
        fs.crash_at(fs.operations + stop_at)
    try:
        work(fs, producers)
        work(fs, producers)
    except SimulatedCrash:
        return fs, True
    return fs, False


@pytest.mark.parametrize("loss", list(Loss))
def test_the_table_after_a_crash_at_any_operation_is_that_of_the_batches_left(loss: Loss, rng: random.Random) -> None:
    stop_at, crashed = 0, True
    while crashed:
        fs, crashed = run_until(stop_at, 4)
        fs.crash(rng, loss)
        directory = open_directory(fs, TINY)
        assert not directory.quarantined
        if directory.logs:
            log = log_of(directory)
            check_left(log, f"{ROOT}: crashed at operation {stop_at}, {loss}")
        stop_at += 3 if loss in (Loss.ALL, Loss.NONE) else 7
    assert stop_at > 100


def check_left(log: PartitionLog, where: str) -> None:
    """The table of producers must match the batches in the log."""
    truth = replayed(log)
    found = {entry.producer_id: (entry.epoch, entry.last_timestamp_ms, entry.last_batch) for entry in log.producers}
    assert found == truth, where


def replayed(log: PartitionLog) -> dict[int, tuple[int, int, object]]:
    """Rebuild the state of the producers from all batches of the log."""
    table = ProducerTable()
    for segment in log.segments:
        for _, header in segment.places(0, segment.size):
            table.appended(header)
    return {entry.producer_id: (entry.epoch, entry.last_timestamp_ms, entry.last_batch) for entry in table}


def test_duplicates_and_refused_batches_begin_no_epoch_and_force_no_file() -> None:
    fs, _, log = begun(TINY)
    sent = idempotent(1, 0, count=2)
    append(log, sent, leader_epoch=3)
    path, forced = f"{log.directory}/leader-epoch-checkpoint", len(fs.trace)
    before = fs.files()[path]
    again = append(log, sent, leader_epoch=5)
    assert isinstance(again, AppendInfo)
    assert again.is_duplicate
    assert isinstance(append(log, idempotent(1, 7), leader_epoch=5), OutOfOrderSequenceNumberError)
    assert (log.epochs.latest_epoch, fs.files()[path]) == (3, before)
    assert len(fs.trace) == forced, "the disk was not asked for anything"
    assert isinstance(append(log, idempotent(1, 2), leader_epoch=5), AppendInfo)
    assert log.epochs.latest_epoch == 5
    assert fs.files()[path] != before


def test_what_was_noted_of_batches_that_are_not_appended_is_taken_back() -> None:
    """A marker is damaged in memory, after a reported batch of its producer. A new epoch cannot be written on a full
    disk."""
    fs, _, log = begun(TINY)
    rotten = bytearray(unreadable_marker(2))
    rotten[-1] ^= 1
    batches = [idempotent(7, 0, offset=1, leader_epoch=0), bytes(rotten)]
    first = Append(data=idempotent(8, 0, leader_epoch=0), leader_epoch=0, replicated=True)
    second = Append(
        data=b"".join(batches), leader_epoch=0, headers=[read_header(each) for each in batches], replicated=True
    )
    outcomes = log.append_many([first, second])
    assert isinstance(outcomes[0], AppendInfo)
    assert isinstance(outcomes[1], CorruptMessageError)
    expected = {8: (0, NOW_MS, [(0, 0)])}
    check_table(log.producers, expected)
    fs.fail("write", errno.ENOSPC, path_contains="leader-epoch-checkpoint")
    assert isinstance(append(log, idempotent(9, 0), leader_epoch=4), DiskFullError)
    check_table(log.producers, expected)


def test_an_epoch_without_a_record_goes_when_the_log_is_cut_at_its_end() -> None:
    """The next leader does not know the epoch without a record. If the epoch stayed, the log could never follow the
    next leader."""
    fs, directory, log = begun(TINY)
    sent = idempotent(1, 0, count=2)
    append(log, sent, leader_epoch=3)
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    assert isinstance(append(log, idempotent(1, 2), leader_epoch=5), DiskFullError)
    assert log.epochs.latest_epoch == 5
    directory.truncate(log, log.log_end_offset)
    assert (log.log_end_offset, log.epochs.latest_epoch) == (2, 3)
    # The next leader's records of epoch 4 begin at offset 2, the end of the cut log.
    after = encode_batch([(NOW_MS, None, b"value", [])], base_offset=2, leader_epoch=4)
    (outcome,) = log.append_many([Append(data=after, leader_epoch=6, replicated=True, follows=2)])
    assert isinstance(outcome, AppendInfo), outcome
