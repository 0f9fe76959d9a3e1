"""Bytes on disk: indexes, checkpoints, identity files, and a comparison of the two file systems."""

from __future__ import annotations

import errno
import json
import random
import uuid
from pathlib import Path

import pytest

from headrace_core.errors import CorruptLogError, InvalidConfigError
from headrace_core.log.checkpoints import (
    BROKER_EPOCH,
    CleanShutdown,
    DirectoryMeta,
    decode_id,
    encode_id,
    load_checkpoint,
    read_broker_epoch,
    read_clean_shutdown,
    read_meta,
    read_offsets,
    read_partition_metadata,
    write_broker_epoch,
    write_clean_shutdown,
    write_meta,
    write_offsets,
    write_partition_metadata,
)
from headrace_core.log.epochs import UNKNOWN_EPOCH_END, EpochEnd, EpochStart, LeaderEpochs
from headrace_core.log.files import FileSystem, RealFileSystem, make_directories, read_file, write_file_atomically
from headrace_core.log.index import OffsetIndex, TimeIndex, TimestampOffset
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.types import TopicPartition


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "real":
        return RealFileSystem(), str(tmp_path)
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    return fs, "/d"


# ---------------------------------------------------------------------------------------------- file systems


def test_both_file_systems_read_back_what_was_written(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    file = fs.open(f"{root}/f", write=True, create=True)
    parts = [bytes([i % 256]) * 3 for i in range(2500)]  # more buffers than one writev takes
    assert file.pwritev(parts, 5) == 7500
    data = bytes(5) + b"".join(parts)
    assert file.size() == len(data)
    assert file.pread(100_000, 0) == data
    assert file.pread(10, 7000) == data[7000:7010]
    assert file.pread(10, 100_000) == b""
    assert file.is_cached(len(data), 0)
    assert file.pread_cached(len(data), 0) == data
    assert file.pread_cached(10, 7000) == data[7000:7010]
    assert file.pread_cached(100_000, 5) == data[5:], "fewer bytes only at the end of the file"
    assert file.pread_cached(10, 100_000) == b""
    file.preallocate(len(data), 1 << 20)
    assert file.size() == len(data)
    file.start_writeback(0, len(data))
    file.sync()
    file.truncate(7)
    assert read_file(fs, f"{root}/f") == data[:7]
    file.close()
    file.close()
    with pytest.raises(OSError, match=r".") as caught:
        file.pread(1, 0)
    assert caught.value.errno == errno.EBADF


def test_both_file_systems_agree_about_names(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/missing")
    make_directories(fs, f"{root}/a/b")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{root}/a")
    held = fs.open(f"{root}/a/old", write=True, create=True)
    held.pwritev([b"held"], 0)
    fs.open(f"{root}/a/new", create=True).close()
    fs.rename(f"{root}/a/old", f"{root}/a/new")
    fs.sync_directory(f"{root}/a")
    assert fs.listdir(f"{root}/a") == ["b", "new"]
    assert fs.is_directory(f"{root}/a/b")
    assert not fs.is_directory(f"{root}/a/new")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{root}/a")
    fs.unlink(f"{root}/a/new")
    fs.rmdir(f"{root}/a/b")
    assert held.pread(10, 0) == b"held", "who has a deleted file open keeps it"
    assert not fs.exists(f"{root}/a/new")
    assert fs.free_bytes(root) > 0


def test_both_file_systems_give_a_lock_to_one_owner_only(place: tuple[FileSystem, str]) -> None:
    fs, root = place
    lock = fs.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        fs.lock(f"{root}/.lock")
    lock.release()
    lock.release()
    fs.lock(f"{root}/.lock").release()


# ---------------------------------------------------------------------------------------------- indexes


def test_indexes_have_kafkas_bytes() -> None:
    fs = CrashingFileSystem()
    index, times = OffsetIndex(fs, "/i", 1000, 80), TimeIndex(fs, "/t", 1000, 120)
    index.start_empty()
    times.start_empty()
    index.append(1004, 4100)
    index.append(1009, 0x01020304)
    times.maybe_append(0x0102030405060708, 1004)
    for one in (index, times):
        one.file.write()
    assert fs.files()["/i"].hex() == "00000004000010040000000901020304"
    assert fs.files()["/t"].hex() == "010203040506070800000004"


def test_offset_index_finds_the_entry_at_or_below() -> None:
    index = OffsetIndex(CrashingFileSystem(), "/i", 1000, 24)
    index.start_empty()
    for offset, position in ((1004, 100), (1009, 200), (1020, 300), (1030, 400)):
        index.append(offset, position)
    assert len(index) == 3, "a full index ignores what comes"
    assert index.is_full
    assert [index.entry_below(offset).position for offset in (0, 1000, 1003, 1004, 1008, 1009, 9999)] == [
        0, 0, 0, 100, 100, 200, 300,
    ]  # fmt: skip
    assert [index.entry_before(position).position for position in (0, 99, 100, 250, 999)] == [0, 0, 100, 200, 300]
    index.truncate_to(1009)
    assert (len(index), index.last_position()) == (1, 100)
    index.file.write()
    index.unload()
    assert index.entry_below(1010).position == 100, "from the file"


def test_time_index_keeps_the_last_entry_for_the_seal() -> None:
    times = TimeIndex(CrashingFileSystem(), "/t", 0, 36)
    times.start_empty()
    for timestamp_ms, offset in ((10, 1), (10, 2), (5, 3), (20, 4), (30, 5)):
        times.maybe_append(timestamp_ms, offset)
    assert times.is_full
    assert times.last_entry() == TimestampOffset(20, 4)
    times.maybe_append(30, 5, sealing=True)
    assert times.last_entry() == TimestampOffset(30, 5)
    assert [times.entries_around(ms)[1].offset for ms in (9, 10, 19, 20, 99)] == [0, 1, 1, 4, 5]


@pytest.mark.parametrize("data", [bytes(7), bytes(16), b"\0\0\0\2\0\0\0\1\0\0\0\1\0\0\0\2"])
def test_what_cannot_be_an_index_is_refused_by_name(data: bytes) -> None:
    fs = CrashingFileSystem()
    fs.replace("/i", data)
    with pytest.raises(CorruptLogError, match="/i"):
        OffsetIndex(fs, "/i", 0, 1000).entry_below(0)


# ---------------------------------------------------------------------------------------------- checkpoints


def kafkas(checkpoint: bytes) -> bytes:
    """Parse the file as Kafka's reader does, which ignores white space at the end of a line."""
    lines = checkpoint.split(b"\n")
    assert all(line == line.rstrip() for line in lines[:-2]), "only the last entry carries the checksum"
    assert len(lines[-2]) - len(lines[-2].rstrip()) == (32 if len(lines) > 3 else 0)
    return b"\n".join(line.rstrip() for line in lines)


def test_checkpoints_have_kafkas_text() -> None:
    fs = CrashingFileSystem()
    offsets = {TopicPartition("pay.ments", 10): 5, TopicPartition("orders", 0): 4711}
    write_offsets(fs, "/c", offsets)
    assert kafkas(fs.files()["/c"]) == b"0\n2\norders 0 4711\npay.ments 10 5\n"
    assert read_offsets(fs, "/c") == offsets
    fs.replace("/c", kafkas(fs.files()["/c"]))
    assert read_offsets(fs, "/c") == offsets, "one without a checksum is Kafka's"


def test_torn_checkpoint_reads_as_nothing_at_every_length() -> None:
    fs = CrashingFileSystem()
    write_offsets(fs, "/c", {TopicPartition("orders", partition): partition * 7 for partition in range(3)})
    data = fs.files()["/c"]
    for size in range(len(data)):
        fs.replace("/c", data[:size])
        found = load_checkpoint(fs, "/c")
        assert found is None or found.rows is None
        assert read_offsets(fs, "/c") == {}
    for garbage in (b"1\n0\n", b"0\n1\norders x 1\n", b"0\n1\norders 1\n", b"\xff\xfe\n0\n"):
        fs.replace("/c", garbage)
        assert read_offsets(fs, "/c") == {}
    assert read_offsets(fs, "/missing") == {}


def test_a_flipped_bit_in_a_checkpoint_changes_no_offset_that_is_read() -> None:
    fs = CrashingFileSystem()
    offsets = {TopicPartition("orders", 0): 4711, TopicPartition("orders", 1): 12}
    write_offsets(fs, "/c", offsets)
    data = fs.files()["/c"]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        fs.replace("/c", bytes(flipped))
        assert read_offsets(fs, "/c") in ({}, offsets), f"bit {bit} of {data!r}"


def test_atomic_write_is_all_or_nothing_wherever_it_is_cut_off() -> None:
    before = CrashingFileSystem()
    make_directories(before, "/d")
    write_file_atomically(before, "/d/f", b"the old bytes")
    whole = before.crash_clone()
    write_file_atomically(whole, "/d/f", b"new")
    assert whole.operations > 4
    for number in range(whole.operations):
        for seed, loss in enumerate(Loss):
            fs = before.crash_clone()
            fs.crash_at(number)
            with pytest.raises(SimulatedCrash):
                write_file_atomically(fs, "/d/f", b"new")
            fs.crash(random.Random(seed), loss)
            assert read_file(fs, "/d/f") in (b"the old bytes", b"new"), f"cut off at operation {number}, {loss}"
    whole.crash()
    assert read_file(whole, "/d/f") == b"new"


def test_ids_and_identities_are_kafkas() -> None:
    topic_id = uuid.UUID("b8c1f8a4-3f5c-4a53-a1bd-0a3c5d7e9f10")
    assert encode_id(topic_id) == "uMH4pD9cSlOhvQo8XX6fEA"
    assert decode_id(encode_id(topic_id)) == topic_id
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    write_partition_metadata(fs, "/d", topic_id)
    written = fs.files()["/d/partition.metadata"]
    assert written.startswith(b"version: 0\ntopic_id: uMH4pD9cSlOhvQo8XX6fEA\ncrc32c: "), "Kafka reads two lines"
    assert read_partition_metadata(fs, "/d") == topic_id
    fs.replace("/d/partition.metadata", b"version: 9\ntopic_id: x")
    with pytest.raises(CorruptLogError, match=r"partition\.metadata"):
        read_partition_metadata(fs, "/d")
    meta = DirectoryMeta(cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=3, directory_id=topic_id)
    assert read_meta(fs, "/d") is None
    write_meta(fs, "/d", meta)
    assert read_meta(fs, "/d") == meta
    assert b"directory.id=uMH4pD9cSlOhvQo8XX6fEA\n" in fs.files()["/d/meta.properties"]
    for text in (b"version=0\nnode.id=3", b"version=1\ncluster.id=x\nnode.id=three", b""):
        fs.replace("/d/meta.properties", text)
        with pytest.raises(InvalidConfigError, match=r"meta\.properties"):
            read_meta(fs, "/d")


def test_clean_shutdown_marker_is_kafkas() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    assert read_clean_shutdown(fs, "/d") is None
    write_clean_shutdown(fs, "/d", CleanShutdown(77))
    written = json.loads(fs.files()["/d/.kafka_cleanshutdown"])
    assert list(written) == ["version", "brokerEpoch", "crc32c"], "Kafka ignores fields that it does not know"
    assert (written["version"], written["brokerEpoch"]) == (0, 77)
    assert read_clean_shutdown(fs, "/d") == CleanShutdown(77)
    write_clean_shutdown(fs, "/d", CleanShutdown(78, frozenset({"a-0", "b-1"})))
    assert read_clean_shutdown(fs, "/d") == CleanShutdown(78, frozenset({"a-0", "b-1"}))
    fs.replace("/d/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":12}')
    assert read_clean_shutdown(fs, "/d") == CleanShutdown(12), "Kafka's own"
    fs.replace("/d/.kafka_cleanshutdown", b"")
    assert read_clean_shutdown(fs, "/d") is None, "what cannot be read vouches for nothing"


def test_the_broker_epoch_is_replaced_durably_and_proves_nothing_when_damaged() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    fs.sync_directory("/")
    assert read_broker_epoch(fs, "/d") == -1
    for epoch in (4, 123_456_789_012, 5):
        write_broker_epoch(fs, "/d", epoch)
        fs.crash()
        assert read_broker_epoch(fs, "/d") == epoch
    path = f"/d/{BROKER_EPOCH}"
    written = fs.files()[path]
    assert json.loads(written)["brokerEpoch"] == 5
    for position in range(len(written)):
        fs.flip(path, position, 0x10)
        assert read_broker_epoch(fs, "/d") == -1, position
        fs.flip(path, position, 0x10)
    fs.replace(path, b'{"version": 0, "brokerEpoch": 9223372036854775808}')
    assert read_broker_epoch(fs, "/d") == -1, "no broker epoch is that large"


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_full_disk_takes_the_broker_epoch_in_place_of_the_former_one(operation: str) -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    fs.sync_directory("/")
    fs.fail(operation, errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        write_broker_epoch(fs, "/d", 1)
    write_broker_epoch(fs, "/d", 1)
    fs.fail(operation, errno.ENOSPC, times=1)
    write_broker_epoch(fs, "/d", 1_000_000)
    fs.crash()
    assert read_broker_epoch(fs, "/d") == 1_000_000


# ---------------------------------------------------------------------------------------------- leader epochs


def test_epoch_ends_are_answered_as_kafka_does() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    epochs = LeaderEpochs(fs, "/d")
    assert epochs.end_of(0, 100) == UNKNOWN_EPOCH_END
    for epoch, start in ((2, 0), (4, 10), (7, 30)):
        epochs.assign(epoch, start)
    assert kafkas(fs.files()["/d/leader-epoch-checkpoint"]) == b"0\n3\n2 0\n4 10\n7 30\n"
    ends = {epoch: epochs.end_of(epoch, 50) for epoch in range(9)}
    assert ends[0] == EpochEnd(0, 0)
    assert ends[2] == ends[3] == EpochEnd(2, 10)
    assert ends[4] == ends[6] == EpochEnd(4, 30)
    assert ends[7] == EpochEnd(7, 50)
    assert ends[8] == UNKNOWN_EPOCH_END
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 29, 30, 99)] == [2, 2, 4, 4, 7, 7]
    epochs.truncate_from_start(15)
    assert epochs.entries == (EpochStart(4, 15), EpochStart(7, 30))
    epochs.truncate_from_end(30)
    assert epochs.entries == (EpochStart(4, 15),)
    again = LeaderEpochs(fs, "/d")
    assert again.load()
    assert again.entries == epochs.entries


def test_epoch_that_never_wrote_a_record_is_replaced() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    epochs = LeaderEpochs(fs, "/d")
    epochs.assign(1, 0)
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert epochs.entries == (EpochStart(1, 0), EpochStart(3, 10))


def test_the_epoch_of_the_last_deleted_record_is_kept_at_the_log_start() -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    epochs = LeaderEpochs(fs, "/d")
    epochs.assign(2, 0)
    epochs.truncate_from_start(10)  # the log is empty
    epochs.assign(3, 10)
    assert epochs.entries == (EpochStart(2, 10), EpochStart(3, 10))
    assert epochs.end_of(2, 15) == EpochEnd(2, 10)
    assert [epochs.epoch_of(offset) for offset in (9, 10, 11)] == [-1, 3, 3]
    epochs.assign(4, 10)  # epoch 3 has no record
    assert epochs.entries == (EpochStart(2, 10), EpochStart(4, 10))
    again = LeaderEpochs(fs, "/d")
    assert again.load()
    again.truncate_from_start(10)
    assert again.entries == epochs.entries
    epochs.assign(6, 20)
    epochs.truncate_from_start(20)
    assert epochs.entries == (EpochStart(4, 20), EpochStart(6, 20))
    epochs.truncate_from_start(21)
    assert epochs.entries == (EpochStart(6, 21),)


@pytest.mark.parametrize("text", [b"0\n2\n1 0\n", b"0\n2\n2 0\n1 5\n", b"0\n1\n1 x\n", b"0\n1\n1 2 3\n"])
def test_damaged_epoch_checkpoint_is_distinguished_from_an_empty_one(text: bytes) -> None:
    fs = CrashingFileSystem()
    fs.mkdir("/d")
    fs.replace("/d/leader-epoch-checkpoint", text)
    assert not LeaderEpochs(fs, "/d").load()
    fs.replace("/d/leader-epoch-checkpoint", b"0\n0\n")
    assert LeaderEpochs(fs, "/d").load()
