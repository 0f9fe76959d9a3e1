"""Targets: the small files beside the logs. A damaged file may stop a start only with a typed error. If a damaged file
is accepted, its content is the original content."""

# ruff: noqa: PT017 - a typed error is one of the right answers here, and its words are checked
from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from headrace_controller.storage import MetadataStorage
from headrace_core.errors import CorruptLogError, HeadraceError, InvalidConfigError
from headrace_core.log import Append, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.checkpoints import (
    BROKER_EPOCH,
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    PARTITION_METADATA,
    CleanShutdown,
    encode_id,
    read_broker_epoch,
    read_clean_shutdown,
    read_meta,
    read_offsets,
    read_partition_metadata,
    write_broker_epoch,
    write_clean_shutdown,
    write_offsets,
    write_partition_metadata,
)
from headrace_core.log.epochs import LEADER_EPOCH_FILE, EpochStart, LeaderEpochs
from headrace_core.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from headrace_core.log.producer_state import ProducerTable
from headrace_core.records import decode_batch, iterate_headers, read_header
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import TopicPartition
from tests.fuzz.fuzz_engine import Reader, Target
from tests.fuzz.fuzz_seeds import logs, sealed_snapshot

ROOT = "/data"
TOPIC_ID = uuid.UUID(int=7)
PARTITION = TopicPartition("orders", 0)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=1000)


def file_system(files: dict[str, bytes]) -> CrashingFileSystem:
    """A disk with the given files in ROOT."""
    fs = CrashingFileSystem(keep_trace=False)
    fs.mkdir(ROOT)
    fs.sync_directory("/")
    for name, data in files.items():
        fs.replace(f"{ROOT}/{name}", data)
    return fs


# ---------------------------------------------------------------------------------------------- indexes alone


def offset_index(data: bytes) -> None:
    """An index is refused with CorruptLogError, or its entries ascend and a lookup finds the same entry as a linear
    search."""
    fs = file_system({"00000000000000000100.index": data})
    index = OffsetIndex(fs, f"{ROOT}/00000000000000000100.index", 100, 10_000)
    try:
        offsets, positions = index.loaded()
    except CorruptLogError:
        return
    entries = [(100 + offset, position) for offset, position in OFFSET_ENTRY.iter_unpack(data)]
    assert [(100 + offset, position) for offset, position in zip(offsets, positions, strict=True)] == entries
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    for offset in (0, 99, 100, *(each + step for each, _ in entries[:20] for step in (-1, 0, 1))):
        assert index.entry_below(offset).position == max((at for each, at in entries if each <= offset), default=0)
    for position in (0, *(at + step for _, at in entries[:20] for step in (-1, 0, 1))):
        assert index.entry_before(position).position == max((at for _, at in entries if at <= position), default=0)


def time_index(data: bytes) -> None:
    """The same check as ``offset_index``, for the time index."""
    fs = file_system({"00000000000000000100.timeindex": data})
    index = TimeIndex(fs, f"{ROOT}/00000000000000000100.timeindex", 100, 10_000)
    try:
        index.loaded()
    except CorruptLogError:
        return
    entries = [(ms, 100 + offset) for ms, offset in TIME_ENTRY.iter_unpack(data)]
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    for ms in (-1, 0, *(each + step for each, _ in entries[:20] for step in (-1, 0, 1))):
        assert tuple(index.entries_around(ms)[1]) == max(
            (entry for entry in entries if entry[0] <= ms), default=(-1, 100)
        )


# ---------------------------------------------------------------------------------------------- indexes beside a log


class _SoundLog:
    """Create a log of several segments, close it cleanly, and return its content."""

    def __init__(self) -> None:
        self.fs = CrashingFileSystem(keep_trace=False)
        format_directory(self.fs, ROOT, cluster_id="c", node_id=1)
        self.clock = ManualClock(1_700_000_100_000)
        directory = self.open(self.fs)
        log = directory.create(PARTITION, TOPIC_ID, CONFIG)
        for data in logs()[:2]:
            for position, header in iterate_headers(data):
                batch = data[position : position + header.size]
                log.append_many([Append(data=batch, leader_epoch=0, headers=[read_header(batch)])])
        self.batches = _batches(log)
        self.directory = log.directory
        directory.close()

    def open(self, fs: CrashingFileSystem) -> LogDirectory:
        return LogDirectory.open(fs, ROOT, clock=self.clock, config_of=lambda topic, topic_id: CONFIG)


def _batches(log: PartitionLog) -> dict[int, bytes]:
    """Every batch by its base offset."""
    found = {}
    for segment in log.segments:
        data = segment.log.pread(segment.size, 0)
        found.update({header.base_offset: data[at : at + header.size] for at, header in iterate_headers(data)})
    return found


_sound: list[_SoundLog] = []


def _sound_log() -> _SoundLog:
    if not _sound:
        _sound.append(_SoundLog())
    return _sound[0]


def index_beside_log(data: bytes) -> None:
    """Put an index file of any bytes beside a sound log after a clean stop. The log serves all its records at each
    offset and time, or reports the damage. The log never serves a wrong record, and loses no record."""
    sound, reader = _sound_log(), Reader(data)
    fs = sound.fs.crash_clone(loss=Loss.NONE)
    names = sorted(name for name in fs.listdir(sound.directory) if name.endswith(("index", LEADER_EPOCH_FILE)))
    fs.replace(f"{sound.directory}/{names[reader.below(len(names))]}", reader.rest)
    directory = sound.open(fs)
    try:
        log = directory.logs.get(PARTITION)
        assert log is not None, f"a damaged index is no damaged log: {directory.quarantined}"
        _check_reads(log, sound.batches)
    finally:
        directory.close(clean=False)


def _check_reads(log: PartitionLog, batches: dict[int, bytes]) -> None:
    expected = b"".join(batches.values())
    records = [record for batch in batches.values() for record in decode_batch(batch)]
    assert log.log_end_offset == max(batches) + read_header(batches[max(batches)]).last_offset_delta + 1
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 150)
        assert result is not None
        assert result.next_offset > offset
        found, offset = found + result.records, result.next_offset
    assert found == expected
    for offset in range(log.log_start_offset, log.log_end_offset, 3):
        result = log.read(offset, 1)
        assert result is not None
        header = read_header(result.records)
        assert header.base_offset <= offset <= header.last_offset
        assert result.records == batches[header.base_offset]
    for ms in sorted({record.timestamp_ms for record in records if record.timestamp_ms >= 0}):
        at = log.offset_for_timestamp(ms)
        wanted = next(record for record in records if record.timestamp_ms >= ms)
        assert at is not None
        assert (at.offset, at.timestamp_ms) == (wanted.offset, wanted.timestamp_ms)
    latest = log.offset_of_max_timestamp()
    assert latest is not None
    assert latest.timestamp_ms == max(record.timestamp_ms for record in records)


def _index_seeds() -> list[bytes]:
    sound = _sound_log()
    files = sound.fs.files()
    names = sorted(name for name in sound.fs.listdir(sound.directory) if name.endswith(("index", LEADER_EPOCH_FILE)))
    return [bytes([number]) + files[f"{sound.directory}/{name}"] for number, name in enumerate(names)]


# ---------------------------------------------------------------------------------------------- checkpoints, identities


def checkpoint(data: bytes) -> None:
    """A checkpoint gives one offset for each partition, or nothing. Accepted offsets are written back unchanged."""
    fs = file_system({"checkpoint": data})
    found = read_offsets(fs, f"{ROOT}/checkpoint")
    assert all(isinstance(offset, int) for offset in found.values())
    write_offsets(fs, f"{ROOT}/checkpoint", found)
    assert read_offsets(fs, f"{ROOT}/checkpoint") == found


def epochs(data: bytes) -> None:
    """Epochs and offsets both ascend, or the file is not loaded. Every lookup has a valid answer."""
    fs = file_system({LEADER_EPOCH_FILE: data})
    found = LeaderEpochs(fs, ROOT)
    if not found.load():
        assert found.entries == ()
        return
    assert all(a.epoch < b.epoch and a.start_offset <= b.start_offset for a, b in pairwise(found.entries))
    end = max((entry.start_offset for entry in found.entries), default=0) + 10
    for entry in found.entries[:50]:
        assert found.end_of(entry.epoch, end).epoch == (entry.epoch if entry.epoch >= 0 else -1)
    entries = found.entries
    found.replace(entries)
    again = LeaderEpochs(fs, ROOT)
    assert again.load()
    assert again.entries == entries
    again.truncate_from_start(5)
    again.truncate_from_end(end // 2)
    assert all(isinstance(entry, EpochStart) and entry.start_offset < max(end // 2, 1) for entry in again.entries)


def identities(data: bytes) -> None:
    """``meta.properties``, ``partition.metadata``, ``.kafka_cleanshutdown``, ``.headrace_broker_epoch``: the file is
    read, or refused with a typed error. A second read of a file gives the same result."""
    names = (META_PROPERTIES, PARTITION_METADATA, CLEAN_SHUTDOWN, BROKER_EPOCH)
    fs = file_system(dict.fromkeys(names, data))
    for read, allowed in (
        (lambda: read_meta(fs, ROOT), InvalidConfigError),
        (lambda: read_partition_metadata(fs, ROOT), CorruptLogError),
    ):
        _typed(read, allowed)
    stop = read_clean_shutdown(fs, ROOT)
    if stop is not None:
        write_clean_shutdown(fs, ROOT, stop)
        assert read_clean_shutdown(fs, ROOT) == stop
    epoch = read_broker_epoch(fs, ROOT)
    if epoch >= 0:
        write_broker_epoch(fs, ROOT, epoch)
        assert read_broker_epoch(fs, ROOT) == epoch


def _typed(read: Callable[[], Any], allowed: type[HeadraceError]) -> None:
    try:
        found = read()
    except allowed as error:
        assert ROOT in error.message, "the error names the file"
    else:
        assert found is not None
        assert read() == found


def _identity_seeds() -> list[bytes]:
    fs = CrashingFileSystem(keep_trace=False)
    format_directory(fs, ROOT, cluster_id="c", node_id=1)
    write_partition_metadata(fs, ROOT, TOPIC_ID)
    found = [fs.files()[f"{ROOT}/{name}"] for name in (META_PROPERTIES, PARTITION_METADATA)]
    for stop in (CleanShutdown(4), CleanShutdown(-1, frozenset({"orders-0"}))):
        write_clean_shutdown(fs, ROOT, stop)
        found.append(fs.files()[f"{ROOT}/{CLEAN_SHUTDOWN}"])
    write_broker_epoch(fs, ROOT, 4711)
    found.append(fs.files()[f"{ROOT}/{BROKER_EPOCH}"])
    found.append(f"version: 0\ntopic_id: {encode_id(TOPIC_ID)}".encode())
    return found


def _checkpoint_seeds() -> list[bytes]:
    fs = file_system({})
    write_offsets(fs, f"{ROOT}/c", {PARTITION: 4711, TopicPartition("a.b_c-d", 12): 0})
    return [fs.files()[f"{ROOT}/c"], b"0\n0\n", b"0\n2\norders 0 4711\norders 1 815\n", b"0\n1\n3 40\n"]


def _epoch_seeds() -> list[bytes]:
    fs = file_system({})
    found = LeaderEpochs(fs, ROOT)
    found.replace([EpochStart(0, 0), EpochStart(3, 40), EpochStart(7, 40)])
    return [fs.files()[f"{ROOT}/{LEADER_EPOCH_FILE}"], b"0\n0\n", b"0\n2\n0 0\n4 17\n"]


# ---------------------------------------------------------------------------------------------- others


def snapshot(data: bytes) -> None:
    """A producer snapshot: it is refused with CorruptLogError, or its table writes the same entries back."""
    try:
        table = ProducerTable.from_snapshot(data, "7.snapshot", 7)
    except CorruptLogError as error:
        assert "7.snapshot" in error.message
        return
    again = ProducerTable.from_snapshot(table.snapshot(), "7.snapshot", 7)
    assert [(e.producer_id, e.epoch, e.transaction_first_offset) for e in again] == [
        (e.producer_id, e.epoch, e.transaction_first_offset) for e in table
    ]
    assert again.snapshot() == table.snapshot()


def _snapshot_seeds() -> list[bytes]:
    table = ProducerTable()
    for data in logs()[2:3]:
        for _, header in iterate_headers(data):
            if header.is_control:
                table.marker_appended(header, 0)
            elif header.producer_id >= 0:
                table.appended(header)
    return [table.snapshot(), ProducerTable().snapshot()]


def quorum_state(data: bytes) -> None:
    """A voter's term and vote are read, or refused with CorruptLogError. A voter that starts with guessed values could
    vote twice in a term."""
    fs = _formatted_controller().crash_clone(loss=Loss.NONE)
    fs.replace(f"{ROOT}/__cluster_metadata-0/quorum-state", _sealed_state(data))
    try:
        storage = MetadataStorage.open(fs, ROOT, clock=ManualClock(), cluster_id="c", node_id=1)
    except CorruptLogError as error:
        assert "quorum-state" in error.message
        return
    state = storage.hard_state
    storage.save_hard_state(state)
    storage.close()
    again = MetadataStorage.open(fs, ROOT, clock=ManualClock(), cluster_id="c", node_id=1)
    assert again.hard_state == state
    again.close()


def _sealed_state(data: bytes) -> bytes:
    """Add a valid checksum if the input begins with "!"."""
    if not data.startswith(b"!"):
        return data
    text = data[1:].decode("latin-1")
    return json.dumps({"state": text, "crc32": zlib.crc32(text.encode())}).encode()


_controllers: list[CrashingFileSystem] = []


def _formatted_controller() -> CrashingFileSystem:
    if not _controllers:
        fs = CrashingFileSystem(keep_trace=False)
        format_directory(fs, ROOT, cluster_id="c", node_id=1)
        MetadataStorage.open(fs, ROOT, clock=ManualClock(), cluster_id="c", node_id=1).close()
        _controllers.append(fs)
    return _controllers[0]


TARGETS = (
    Target("offset_index", offset_index, lambda: [OFFSET_ENTRY.pack(3, 0) + OFFSET_ENTRY.pack(9, 500), bytes(64)]),
    Target("time_index", time_index, lambda: [TIME_ENTRY.pack(5, 3) + TIME_ENTRY.pack(2**40, 9), bytes(60)]),
    Target("index_beside_log", index_beside_log, _index_seeds),
    Target("checkpoint", checkpoint, _checkpoint_seeds),
    Target("epochs", epochs, _epoch_seeds),
    Target("identities", identities, _identity_seeds),
    Target("snapshot", snapshot, _snapshot_seeds, sealed_snapshot),
    Target(
        "quorum_state",
        quorum_state,
        lambda: [
            b'!{"data_version": 0, "leaderEpoch": 3, "votedId": 1}',
            b'{"state": "{}", "crc32": 2745614147}',
            b"[[[[[[[[",
        ],
    ),
)
