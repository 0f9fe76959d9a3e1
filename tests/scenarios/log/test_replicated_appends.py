"""Which batches a follower's log accepts from its leader, and which it refuses."""

from __future__ import annotations

import errno
import random

import pytest

from headrace_core.errors import CorruptMessageError, DiskFullError, HeadraceError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog
from headrace_core.log.epochs import EpochStart
from headrace_core.log.replicated import (
    ReplicatedAppendError,
    UnexpectedEpochError,
    UnexpectedOffsetError,
    check_replicated,
)
from headrace_core.records import encode_batch, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from tests.worlds.log_world import NOW_MS, ORDERS, TOPIC_ID, formatted, open_directory


def sent(offset: int, count: int = 1, *, epoch: int = 0, pad: int = 0) -> bytes:
    """A batch as it is in a leader's log."""
    records = [(NOW_MS + offset + i, None, f"{offset + i}".encode() + b"." * pad, []) for i in range(count)]
    return encode_batch(records, base_offset=offset, leader_epoch=epoch)


def replicated(data: bytes, *, leader_epoch: int = 0, follows: int | None = None) -> Append:
    return Append(data=data, leader_epoch=leader_epoch, replicated=True, follows=follows)


def follower(config: LogConfig | None = None) -> tuple[CrashingFileSystem, PartitionLog]:
    fs, directory = formatted_and_open(config)
    return fs, directory.logs[ORDERS]


def formatted_and_open(config: LogConfig | None = None) -> tuple[CrashingFileSystem, LogDirectory]:
    fs = formatted()
    directory = open_directory(fs, config)
    directory.create(ORDERS, TOPIC_ID, config or LogConfig())
    return fs, directory


def take(log: PartitionLog, *appends: Append) -> list[AppendInfo | HeadraceError]:
    return log.append_many(appends)


def bytes_of(log: PartitionLog) -> bytes:
    """All bytes of the log, as reads return them."""
    data, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20)
        assert result is not None
        data, offset = data + result.records, result.next_offset
    return data


def test_batches_keep_their_bytes_offsets_and_epochs() -> None:
    _, log = follower()
    data = sent(0, 3) + sent(3, 2, epoch=2) + sent(5, epoch=2) + sent(6, epoch=7)
    (info,) = take(log, replicated(data, leader_epoch=7))
    assert isinstance(info, AppendInfo)
    assert (info.base_offset, info.next_offset, info.size) == (0, 7, len(data))
    assert log.log_end_offset == 7
    assert bytes_of(log) == data
    assert log.epochs.entries == (EpochStart(0, 0), EpochStart(2, 3), EpochStart(7, 6))


def test_several_pushes_in_one_turn_go_on_where_the_one_before_them_ends() -> None:
    fs, log = follower()
    fs.trace.clear()
    infos = take(log, *(replicated(sent(i), follows=i) for i in range(5)))
    assert [info.base_offset for info in infos if isinstance(info, AppendInfo)] == [0, 1, 2, 3, 4]
    assert len([entry for entry in fs.trace if entry.operation == "write" and entry.path.endswith(".log")]) == 1


def test_an_epoch_is_on_the_disk_before_its_first_batch() -> None:
    fs, log = follower()
    take(log, replicated(sent(0)))
    fs.trace.clear()
    take(log, replicated(sent(1) + sent(2, epoch=1) + sent(3, epoch=3), leader_epoch=3))
    paths = [(entry.operation, entry.path.rpartition("/")[2]) for entry in fs.trace]
    written = next(i for i, (what, name) in enumerate(paths) if what == "write" and name.endswith(".log"))
    renames = [i for i, (what, name) in enumerate(paths) if what == "rename" and "leader-epoch" in name]
    assert len(renames) == 2
    assert max(renames) < written
    assert any(what == "sync_directory" for what, _ in paths[max(renames) : written])


def test_gaps_that_compaction_left_are_taken_as_they_are() -> None:
    _, log = follower(LogConfig(cleanup_compact=True))
    data = sent(4, 2) + sent(100, epoch=1)
    take(log, replicated(data, leader_epoch=1, follows=0))
    take(log, replicated(sent(2_000, epoch=1), leader_epoch=1, follows=101))
    assert log.log_end_offset == 2_001
    assert [span.base_offset for span in split_batches(bytes_of(log))] == [4, 100, 2_000]


def test_an_epoch_begins_where_the_batch_before_it_ends_even_if_compaction_removed_its_first_records() -> None:
    """The next epoch must not begin at its first remaining record: epoch 0 would then seem to reach up to 100. A
    replica with uncommitted records of epoch 0 from 7 on would keep these records when it joins this log's broker. A
    checkpoint that is rebuilt from the batches has the starts of epochs that the lost checkpoint had."""
    config = LogConfig(cleanup_compact=True, cleanup_delete=False, segment_bytes=300)
    fs, directory = formatted_and_open(config)
    log = directory.logs[ORDERS]
    take(log, replicated(sent(0, 7), follows=0))
    take(log, replicated(sent(100, epoch=3), leader_epoch=3, follows=7))
    take(log, replicated(sent(101, epoch=3) + sent(120, epoch=5), leader_epoch=5, follows=101))
    log.roll()
    take(log, replicated(sent(200, epoch=6), leader_epoch=6, follows=121))
    log.flush()
    wanted = (EpochStart(0, 0), EpochStart(3, 7), EpochStart(5, 102), EpochStart(6, 121))
    assert log.epochs.entries == wanted
    assert log.epoch_end_offset(0).end_offset == 7
    (path,) = (path for path in fs.files() if path.endswith("leader-epoch-checkpoint"))
    clone = fs.crash_clone()
    assert open_directory(clone, config).logs[ORDERS].epochs.entries == wanted
    clone = fs.crash_clone()
    clone.unlink(path)
    assert open_directory(clone, config).logs[ORDERS].epochs.entries == wanted


def test_an_empty_log_that_opens_again_keeps_the_epoch_of_its_deleted_records() -> None:
    fs, directory = formatted_and_open()
    log = directory.logs[ORDERS]
    take(log, replicated(sent(0, 7), follows=0))
    log.flush()
    directory.delete_records(log, 7)
    log.epochs.assign(2, 7)  # a record of epoch 2 does not reach the disk
    assert log.epochs.entries == (EpochStart(0, 7), EpochStart(2, 7))
    again = open_directory(fs.crash_clone(), None).logs[ORDERS]
    assert (again.log_start_offset, again.log_end_offset) == (7, 7)
    assert again.epochs.entries == (EpochStart(0, 7),)


def test_a_gap_wider_than_a_segment_can_tell_begins_a_segment_of_its_own() -> None:
    _, log = follower(LogConfig(cleanup_compact=True))
    far = 3 * 2**31
    (first,) = take(log, replicated(sent(0) + sent(far) + sent(far + 1), follows=0))
    assert isinstance(first, AppendInfo)
    assert log.log_end_offset == far + 2
    assert [segment.base_offset for segment in log.segments] == [0, far]
    assert [span.base_offset for span in split_batches(bytes_of(log))] == [0, far, far + 1]


def test_a_push_larger_than_this_broker_s_segments_is_divided_among_them() -> None:
    _, log = follower(LogConfig(segment_bytes=300))
    data = b"".join(sent(i, pad=40) for i in range(12))
    (info,) = take(log, replicated(data, follows=0))
    assert isinstance(info, AppendInfo)
    assert (info.base_offset, info.next_offset, info.size) == (0, 12, len(data))
    assert len(log.segments) > 4
    assert bytes_of(log) == data
    assert all(segment.size <= 300 for segment in log.segments)


def test_what_cannot_follow_is_refused_and_changes_nothing() -> None:
    _, log = follower()
    take(log, replicated(sent(0, 3, epoch=4), leader_epoch=4))
    broken = bytearray(sent(3, epoch=4))
    broken[-1] ^= 1
    refused: list[tuple[bytes, int, type[HeadraceError]]] = [
        (sent(2, epoch=4), 4, UnexpectedOffsetError),
        (sent(3, 2, epoch=4) + sent(4, epoch=4), 4, UnexpectedOffsetError),
        (sent(3, epoch=3), 4, UnexpectedEpochError),
        (sent(3, epoch=4) + sent(4, epoch=3), 4, UnexpectedEpochError),
        (sent(3, epoch=5), 4, UnexpectedEpochError),
        (bytes(broken), 4, CorruptMessageError),
        (sent(3, epoch=4)[:-1], 4, CorruptMessageError),
        (b"", 4, UnexpectedOffsetError),
    ]
    for data, leader_epoch, expected in refused:
        (outcome,) = take(log, replicated(data, leader_epoch=leader_epoch))
        assert type(outcome) is expected, data
    assert log.log_end_offset == 3
    assert log.epochs.entries == (EpochStart(4, 0),)
    (outcome,) = take(log, replicated(sent(3, epoch=4), leader_epoch=4))
    assert isinstance(outcome, AppendInfo)


def test_damage_is_reported_with_its_place() -> None:
    data = bytearray(sent(7) + sent(8))
    data[-1] ^= 1
    with pytest.raises(CorruptMessageError, match=rf"byte {len(data) // 2} of the message.*CRC"):
        check_replicated(bytes(data), log_end_offset=7, leader_epoch=0)


def test_a_push_that_follows_one_that_failed_is_not_taken_for_a_gap() -> None:
    fs, log = follower(LogConfig(cleanup_compact=True))
    take(log, replicated(sent(0), follows=0))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    full, lost = take(log, replicated(sent(1), follows=1), replicated(sent(2), follows=2))
    assert isinstance(full, DiskFullError)
    assert isinstance(lost, DiskFullError), "both were in one write"
    (later,) = take(log, replicated(sent(3), follows=3))
    assert isinstance(later, UnexpectedOffsetError)
    assert log.log_end_offset == 1
    assert isinstance(later, ReplicatedAppendError)


def test_the_first_batch_may_begin_below_the_start_that_the_leader_reported() -> None:
    fs, directory = formatted_and_open()
    log = directory.logs[ORDERS]
    directory.restart(log, 150)
    assert log.recovery_point == 0, "nothing is there that could be missing"
    directory.write_recovery_points()
    data = sent(140, 20, epoch=3) + sent(160, epoch=3)
    (info,) = take(log, replicated(data, leader_epoch=3, follows=150))
    assert isinstance(info, AppendInfo)
    assert (log.log_start_offset, log.log_end_offset) == (150, 161)
    assert bytes_of(log) == data
    (outcome,) = take(log, replicated(sent(155, 20, epoch=3), leader_epoch=3))
    assert isinstance(outcome, UnexpectedOffsetError), "only the first batch of an empty log may"

    log.flush()
    fs.crash()
    again = open_directory(fs).logs[ORDERS]
    assert (again.log_start_offset, again.log_end_offset) == (150, 161)
    assert bytes_of(again) == data


@pytest.mark.parametrize("loss", list(Loss))
def test_a_crash_at_any_operation_of_such_a_first_batch_costs_no_partition(loss: Loss, rng: random.Random) -> None:
    for stop_at in range(100):
        fs, directory = formatted_and_open()
        log = directory.logs[ORDERS]
        directory.restart(log, 150)
        directory.write_recovery_points()
        fs.crash_at(fs.operations + stop_at)
        crashed = False
        try:
            take(log, replicated(sent(140, 20), follows=150))
            log.flush()
        except SimulatedCrash:
            crashed = True
        fs.crash(rng, loss)
        opened = open_directory(fs)
        assert not opened.quarantined, f"after {stop_at} operations"
        again = opened.logs[ORDERS]
        assert again.log_start_offset == 150
        assert again.log_end_offset in ((150, 160) if crashed else (160,))
        if not crashed:
            return
    raise AssertionError("it never came to an end")


def test_a_copy_of_a_compacted_log_starts_where_its_leader_does_after_a_crash() -> None:
    """The log's first record is at 32, and no record was deleted. A consumer at 10 continues at 32, without an "out of
    range" error, which would reset its position."""
    config = LogConfig(cleanup_compact=True, cleanup_delete=False)
    fs, directory = formatted_and_open(config)
    log = directory.logs[ORDERS]
    (outcome,) = take(log, replicated(sent(32), follows=0))
    assert isinstance(outcome, AppendInfo)
    log.flush()
    again = open_directory(fs.crash_clone(), config).logs[ORDERS]
    assert (again.log_start_offset, again.log_end_offset) == (0, 33)
    found = again.read(10, 1 << 20)
    assert found is not None
    assert found.next_offset == 33
