"""A directory of logs: ownership, created and deleted logs, and the state after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import uuid
from pathlib import Path

import pytest

from headrace_core.config import LONG_MAX
from headrace_core.config.topic_keys import TOPIC
from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    InconsistentTopicIdError,
    InvalidConfigError,
    ServerBusyError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import AppendInfo, LogConfig, LogDirectory, RealFileSystem, format_directory
from headrace_core.log.checkpoints import BROKER_EPOCH, RECOVERY_POINTS, read_broker_epoch, write_offsets
from headrace_core.log.dump import BatchLine, FileLine, OffsetEntryLine, Problem, RecordLine, TimeEntryLine, dump
from headrace_core.log.verify import verify
from headrace_core.log.writer import DirectoryWriter
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import FlushPolicy, TimestampType, TopicPartition
from tests.worlds.log_world import (
    NOW_MS,
    ORDERS,
    PAYMENTS,
    ROOT,
    TOPIC_ID,
    batch,
    begun,
    formatted,
    open_directory,
    values_of,
)


def test_directory_that_was_not_formatted_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidConfigError, match="format"):
        open_directory(CrashingFileSystem())


def test_formatting_twice_changes_nothing_and_never_takes_over() -> None:
    fs = formatted()
    meta = format_directory(fs, ROOT, cluster_id="test", node_id=1)
    assert format_directory(fs, f"{ROOT}/", cluster_id="test", node_id=1) == meta
    for cluster_id, node_id in (("other", 1), ("test", 2)):
        with pytest.raises(InvalidConfigError, match="formatted for node 1"):
            format_directory(fs, ROOT, cluster_id=cluster_id, node_id=node_id)


@pytest.mark.parametrize("wrong", [{"cluster_id": "other"}, {"node_id": 9}])
def test_directory_of_somebody_else_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError, match=r"meta\.properties"):
        LogDirectory.open(
            formatted(),
            ROOT,
            clock=ManualClock(),
            config_of=lambda topic, topic_id: LogConfig(),
            **wrong,  # type: ignore[arg-type]
        )


def test_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    for fs, root in ((formatted(), ROOT), (RealFileSystem(), str(tmp_path))):
        format_directory(fs, root, cluster_id="test", node_id=1)

        def take(fs: object = fs, root: str = root) -> LogDirectory:
            return LogDirectory.open(
                fs,  # type: ignore[arg-type]
                root,
                clock=ManualClock(),
                config_of=lambda topic, topic_id: LogConfig(),
            )

        first = take()
        with pytest.raises(StorageError, match="in use"):
            take()
        first.close()
        take().close(clean=False)
        take().close()


def test_clean_stop_is_believed_once() -> None:
    fs = formatted()
    directory = open_directory(fs)
    assert directory.clean_shutdown_epoch is None
    directory.create(ORDERS, TOPIC_ID, LogConfig()).append(batch("a"), 0)
    directory.write_high_watermarks({ORDERS: 1})
    directory.close(broker_epoch=12)
    fs.crash()
    again = open_directory(fs)
    assert again.clean_shutdown_epoch == 12
    assert values_of(again.logs[ORDERS]) == ["a"]
    assert again.logs[ORDERS].topic_id == TOPIC_ID
    assert again.high_watermark(ORDERS) == 1
    fs.crash()
    assert open_directory(fs).clean_shutdown_epoch is None


def test_the_broker_epoch_is_on_the_disk_before_anything_else_changes() -> None:
    """A copy has the epoch of the broker that changed the directory last, at whatever moment it is taken."""
    fs = formatted()
    directory = open_directory(fs, broker_epoch=7)
    directory.create(ORDERS, TOPIC_ID, LogConfig()).append(batch("a"), 0)
    directory.close(broker_epoch=7)
    fs.crash()
    before = fs.files()
    epochs, changes = [], []

    def look(_: object) -> None:
        copy = fs.crash_clone()
        epochs.append(read_broker_epoch(copy, ROOT))
        files = {path: data for path, data in copy.files().items() if BROKER_EPOCH not in path}
        changes.append(files != before)

    del before[f"{ROOT}/{BROKER_EPOCH}"]
    fs.on_operation = look
    open_directory(fs, broker_epoch=8).logs[ORDERS].append(batch("b"), 0)
    fs.on_operation = None
    assert epochs[0] == 7
    assert epochs[-1] == 8
    assert all(epoch == 8 for epoch, has_changed in zip(epochs, changes, strict=True) if has_changed)
    assert any(changes)


def test_a_damaged_broker_epoch_is_a_problem_with_a_cure() -> None:
    fs = formatted()
    open_directory(fs, broker_epoch=7).close(broker_epoch=7)
    assert not [line for line in verify(ROOT, fs=fs) if isinstance(line, Problem)]
    fs.flip(f"{ROOT}/{BROKER_EPOCH}", 20, 0x10)
    (problem,) = [line for line in verify(ROOT, fs=fs) if isinstance(line, Problem)]
    assert problem.path == f"{ROOT}/{BROKER_EPOCH}"
    assert "counts as an older copy" in problem.cure


def test_a_directory_that_cannot_take_the_broker_epoch_stays_closed() -> None:
    fs = formatted()
    fs.fail("sync", errno.EIO, path_contains=BROKER_EPOCH)
    with pytest.raises(OSError, match="error"):
        open_directory(fs, broker_epoch=7)
    assert open_directory(fs, broker_epoch=8).meta.node_id == 1, "and its lock is free"


def test_clean_start_reads_no_batch_body() -> None:
    fs, directory, log = begun()
    for i in range(50):
        log.append(batch(str(i), pad=5000), 0)
    directory.close()
    fs.trace.clear()
    open_directory(fs)
    read = sum(entry.size for entry in fs.trace if entry.operation == "read" and entry.path.endswith(".log"))
    assert read < 30_000


def test_creating_again_gives_the_same_log_and_never_another_topics() -> None:
    _, directory, log = begun()
    assert directory.create(ORDERS, TOPIC_ID, LogConfig()) is log
    with pytest.raises(InconsistentTopicIdError, match="orders-0"):
        directory.create(ORDERS, uuid.UUID(int=99), LogConfig())


def test_deleted_log_stays_away_and_its_successor_starts_afresh() -> None:
    fs, directory, log = begun()
    for i in range(5):
        log.append(batch(str(i)), 3)
    log.flush()
    directory.write_recovery_points()
    directory.write_high_watermarks({ORDERS: 5})
    directory.delete_records(log, 2)
    assert directory.delete(ORDERS)
    assert not directory.delete(ORDERS)
    fs.crash()
    assert not [path for path in fs.files() if "/orders-0/" in path]
    directory = open_directory(fs)
    assert not directory.logs
    assert directory.remove_deleted().names == 1
    assert not [path for path in fs.files() if "orders" in path]
    log = directory.create(ORDERS, uuid.UUID(int=99), LogConfig())
    assert (log.log_start_offset, log.log_end_offset, log.epochs.latest_epoch) == (0, 0, -1)
    assert directory.high_watermark(ORDERS) == 0
    fs.crash()
    assert open_directory(fs).logs[ORDERS].log_end_offset == 0


def test_records_after_a_truncation_are_not_below_the_old_high_watermark() -> None:
    """An unclean leader election may cut committed records; what is appended later is not committed by that."""
    fs, directory, log = begun()
    log.append(batch("a"), 0)
    log.append(batch("b"), 0)
    log.flush()
    directory.write_high_watermarks({ORDERS: 2})
    directory.truncate(log, 1)
    log.append(batch("c"), 1)
    log.flush()
    assert directory.high_watermark(ORDERS) == 1
    fs.crash()
    assert open_directory(fs).high_watermark(ORDERS) == 1


def test_records_after_a_lost_end_are_not_below_the_old_high_watermark() -> None:
    """A follower may know a high watermark above the records that it has forced to the disk."""
    fs, directory, log = begun()
    log.append(batch("a"), 0)
    log.flush()
    log.append(batch("b"), 0)
    directory.write_high_watermarks({ORDERS: 2})
    fs.crash()
    directory = open_directory(fs)
    log = directory.logs[ORDERS]
    assert (log.log_end_offset, directory.high_watermark(ORDERS)) == (1, 1)
    log.append(batch("c"), 1)
    log.flush()
    fs.crash()
    assert open_directory(fs).high_watermark(ORDERS) == 1


def test_a_log_that_begins_again_at_a_lower_offset_is_compacted_from_there_on() -> None:
    """The leader after an unclean election does not know that records were deleted, so the log begins again below its
    start. Compaction had cleaned the former log up to its start."""
    directory = open_directory(formatted())
    compacted = LogConfig(cleanup_compact=True, min_dirty_ratio=0.0)
    log = directory.create(ORDERS, TOPIC_ID, compacted)
    keyed = encode_batch([(NOW_MS, b"key", b"value", [])])
    for _ in range(30):
        log.append(keyed, 0)
    directory.delete_records(log, 20)
    directory.compaction.adopt(ORDERS, 25)
    directory.restart(log, 5)
    for _ in range(30):
        log.append(keyed, 0)
    log.roll()
    (target,) = directory.compaction.plan(
        directory.logs, stable_offset_of=lambda log: log.log_end_offset, now_ms=NOW_MS
    )
    assert (target.first_dirty_offset, target.end_offset) == (5, 35)


def test_what_was_asked_of_a_deleted_log_does_not_befall_its_successor() -> None:
    fs = formatted()
    directory = open_directory(fs)
    old = directory.create(ORDERS, TOPIC_ID, LogConfig())
    for i in range(5):
        old.append(batch(str(i)), 0)
    old.flush()
    directory.delete(ORDERS)
    log = directory.create(ORDERS, uuid.UUID(int=99), LogConfig())
    for ask in (lambda: directory.delete_records(old, 4), lambda: directory.truncate(old, 4)):
        with pytest.raises(UnknownTopicOrPartitionError):
            ask()
    directory.write_high_watermarks({PAYMENTS: 3})
    log.append(batch("a", "b"), 0)
    log.flush()
    fs.crash()
    directory = open_directory(fs)
    assert values_of(directory.logs[ORDERS]) == ["a", "b"]
    directory.create(PAYMENTS, TOPIC_ID, LogConfig()).append(batch("a", "b", "c"), 0)
    assert directory.high_watermark(PAYMENTS) == 0


def test_deletion_that_a_full_disk_stops_is_finished_before_a_successor_is_made() -> None:
    """If the old recovery point stayed, the next start would conclude from the old recovery point that the new log has
    lost records."""
    fs = formatted()
    directory = open_directory(fs)
    old = directory.create(ORDERS, TOPIC_ID, LogConfig())
    for i in range(5):
        old.append(batch(str(i)), 0)
    old.flush()
    directory.write_recovery_points()
    fs.fail("create", errno.ENOSPC, path_contains="checkpoint", times=2)
    assert directory.delete(ORDERS)
    with pytest.raises(OSError, match="No space"):
        directory.create(ORDERS, uuid.UUID(int=99), LogConfig())
    log = directory.create(ORDERS, uuid.UUID(int=99), LogConfig())
    log.append(batch("a"), 0)
    log.flush()
    fs.crash()
    directory = open_directory(fs)
    assert not directory.quarantined
    assert values_of(directory.logs[ORDERS]) == ["a"]


def test_longest_topic_name_can_be_deleted() -> None:
    directory = open_directory(formatted())
    longest = TopicPartition("t" * 249, 12345)
    directory.create(longest, TOPIC_ID, LogConfig())
    assert directory.delete(longest)


def test_a_log_whose_name_is_too_long_for_the_disk_costs_no_other_log_anything(tmp_path: Path) -> None:
    """The longest topic name and the 100,001st partition together need 256 bytes."""
    fs, root = RealFileSystem(), str(tmp_path)
    format_directory(fs, root, cluster_id="test", node_id=1)
    directory = LogDirectory.open(fs, root, clock=ManualClock(), config_of=lambda topic, topic_id: LogConfig())
    partitions = [TopicPartition("t" * 249, 100_000), TopicPartition("t" * 249, 99_999)]
    refused, made = directory.create_all([(partition, TOPIC_ID, LogConfig()) for partition in partitions])
    assert isinstance(refused, StorageError)
    assert "use a shorter topic name" in refused.message
    assert made is directory.logs[partitions[1]]
    directory.close()


def test_half_deleted_log_goes_at_the_next_start() -> None:
    fs = formatted()
    open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    fs.rename(f"{ROOT}/orders-0", f"{ROOT}/orders-0.{'ab' * 16}-delete")
    fs.sync_directory(ROOT)
    fs.crash()
    directory = open_directory(fs)
    assert not directory.logs
    directory.remove_deleted()
    assert not [path for path in fs.files() if "-delete" in path]


def put(fs: CrashingFileSystem, path: str, data: bytes = b"the operator's") -> None:
    """Make a file, and the directory that holds it if that is missing."""
    parent = path.rpartition("/")[0]
    if not fs.is_directory(parent):
        fs.mkdir(parent)
    file = fs.open(path, write=True, create=True)
    file.pwritev([data], 0)
    file.sync()
    fs.sync_directory(parent)
    fs.sync_directory(ROOT)


@pytest.mark.parametrize("name", ["backup-20261129", "disk-2", "orders-0"])
def test_a_directory_of_the_operator_with_the_name_of_a_log_is_left_alone(name: str) -> None:
    fs = formatted()
    put(fs, f"{ROOT}/{name}/notes.txt")
    fs.mkdir(f"{ROOT}/{name}/payments-0")
    directory = open_directory(fs)
    assert not directory.holdings()
    topic, _, number = name.rpartition("-")
    wanted = [(item, TOPIC_ID, LogConfig()) for item in (TopicPartition(topic, int(number)), PAYMENTS)]
    refused, made = directory.create_all(wanted)
    assert isinstance(refused, StorageError)
    assert f"{ROOT}/{name} has the name of a log" in refused.message
    assert made is directory.logs[PAYMENTS]
    directory.close()
    open_directory(fs).remove_deleted(everything=True)
    assert fs.listdir(f"{ROOT}/{name}") == ["notes.txt", "payments-0"]


def test_a_file_with_the_name_of_a_log_costs_no_other_log_anything() -> None:
    fs = formatted()
    put(fs, f"{ROOT}/orders-0")
    directory = open_directory(fs)
    refused, made = directory.create_all([(item, TOPIC_ID, LogConfig()) for item in (ORDERS, PAYMENTS)])
    assert isinstance(refused, StorageError)
    assert made is directory.logs[PAYMENTS]
    assert fs.exists(f"{ROOT}/orders-0")


def test_a_directory_of_the_operator_that_ends_in_delete_is_left_alone() -> None:
    fs = formatted()
    put(fs, f"{ROOT}/do-not-delete/notes.txt")
    open_directory(fs).remove_deleted(everything=True)
    assert fs.listdir(f"{ROOT}/do-not-delete") == ["notes.txt"]


def test_a_log_of_which_only_a_foreign_file_is_left_is_quarantined() -> None:
    fs, directory, log = begun()
    log.append(batch("a"), 0)
    log.flush()
    directory.close()
    for file in fs.listdir(f"{ROOT}/orders-0"):
        fs.unlink(f"{ROOT}/orders-0/{file}")
    put(fs, f"{ROOT}/orders-0/notes.txt")
    assert list(open_directory(fs).quarantined) == [ORDERS]


def test_damaged_log_is_quarantined_and_the_others_are_served() -> None:
    fs = formatted()
    directory = open_directory(fs)
    for partition in (ORDERS, PAYMENTS):
        log = directory.create(partition, TOPIC_ID, LogConfig())
        for value in ("a", "b", "c"):
            log.append(batch(value), 0)
        log.flush()
    directory.write_recovery_points()
    fs.crash()
    fs.flip(f"{ROOT}/orders-0/00000000000000000000.log", 70)
    for _ in range(2):  # the log stays closed, and keeps its recovery point
        directory = open_directory(fs)
        assert "recovery point 3" in directory.quarantined[ORDERS].message
        kept = directory.quarantined[ORDERS].__traceback__
        assert ORDERS not in directory.logs
        assert values_of(directory.logs[PAYMENTS]) == ["a", "b", "c"]
        with pytest.raises(CorruptLogError, match="recovery point 3"):
            directory.create(ORDERS, TOPIC_ID, LogConfig())
        assert directory.quarantined[ORDERS].__traceback__ is kept, "each caller gets a copy of the error"
        (refused,) = directory.create_all([(ORDERS, TOPIC_ID, LogConfig())])
        assert isinstance(refused, CorruptLogError)
        assert refused.__traceback__ is None, "an error that is returned does not keep frames"
        directory.close()
    directory = open_directory(fs)
    assert directory.delete(ORDERS)
    assert directory.create(ORDERS, TOPIC_ID, LogConfig()).log_end_offset == 0


def test_damaged_log_stays_quarantined_however_often_the_others_are_closed_cleanly() -> None:
    """The log's indexes are complete, and its end is the recovery point. A later clean stop must not make the damaged
    log trusted."""
    fs, directory, log = begun()
    for value in ("a", "b", "c"):
        log.append(batch(value), 0)
    directory.close()
    open_directory(fs)
    fs.crash()
    fs.flip(f"{ROOT}/orders-0/00000000000000000000.log", 66)
    for _ in range(3):
        directory = open_directory(fs)
        assert "recovery point 3" in directory.quarantined[ORDERS].message
        directory.close()
    fs.flip(f"{ROOT}/orders-0/00000000000000000000.log", 66)  # it is restored
    for _ in range(2):
        directory = open_directory(fs)
        assert values_of(directory.logs[ORDERS]) == ["a", "b", "c"]
        directory.close()


def test_logs_that_go_together_cost_one_round_of_checkpoints() -> None:
    fs = formatted()
    directory = open_directory(fs)
    partitions = [TopicPartition("many", number) for number in range(20)]
    for partition in partitions:
        log = directory.create(partition, TOPIC_ID, LogConfig())
        log.append(batch("a", "b"), 0)
        log.flush()
        directory.delete_records(log, 1)
    directory.write_recovery_points()
    directory.write_high_watermarks(dict.fromkeys(partitions, 2))
    fs.trace.clear()
    assert directory.delete_all([*partitions, ORDERS]) == partitions
    renamed = [entry.path for entry in fs.trace if entry.operation == "rename" and "checkpoint" in entry.path]
    assert len(renamed) == 3, renamed
    fs.crash()
    assert not [path for path in fs.files() if "/many-" in path and "-delete" not in path]


def test_what_a_full_disk_left_of_a_creation_does_not_outlive_the_next_one() -> None:
    fs = formatted()
    directory = open_directory(fs)
    fs.fail("sync_directory", errno.ENOSPC, path_ends=ROOT)
    with pytest.raises(OSError, match="No space"):
        directory.create(ORDERS, TOPIC_ID, LogConfig())
    assert directory.get(ORDERS) is None  # its name may be gone after a power loss
    log = directory.create(ORDERS, uuid.UUID(int=99), LogConfig())
    log.append(batch("a"), 0)
    log.flush()
    fs.crash()
    log = open_directory(fs).logs[ORDERS]
    assert (log.topic_id, values_of(log)) == (uuid.UUID(int=99), ["a"])


def test_roll_that_a_full_disk_stops_leaves_a_log_that_goes_on_and_opens_again() -> None:
    fs = formatted()
    config = LogConfig(segment_bytes=300)
    directory = open_directory(fs, config)
    log = directory.create(ORDERS, TOPIC_ID, config)
    log.append(batch("a", pad=100), 0)
    fs.fail("create", errno.ENOSPC, path_ends=".index")
    with pytest.raises(DiskFullError):
        log.append(batch("too much for this segment", pad=100), 0)
    log.append(batch("b"), 0)  # small enough for the old segment
    log.flush()
    fs.sync_directory(log.directory)
    fs.crash()
    directory = open_directory(fs, config)
    assert not directory.quarantined
    assert values_of(directory.logs[ORDERS]) == ["a", "b"]


def test_torn_checkpoints_never_block_a_start() -> None:
    fs = formatted()
    directory = open_directory(fs)
    log = directory.create(ORDERS, TOPIC_ID, LogConfig(segment_bytes=400))
    for i in range(12):
        log.append(batch(str(i)), i // 4)
    log.flush()
    directory.write_high_watermarks({ORDERS: 12})
    directory.delete_records(log, 2)
    directory.write_recovery_points()
    fs.crash()
    checkpoints = [path for path in fs.files() if path.endswith("checkpoint")]
    assert len(checkpoints) == 4
    for path in checkpoints:
        for damage in (b"", b"0\n5\nx", b"\xff" * 30, fs.files()[path][:-3]):
            damaged = fs.crash_clone()
            damaged.replace(path, damage)
            log = open_directory(damaged, LogConfig(segment_bytes=400)).logs[ORDERS]
            assert log.log_end_offset == 12
            assert [log.epochs.epoch_of(offset) for offset in range(log.log_start_offset, 12)] == [
                offset // 4 for offset in range(log.log_start_offset, 12)
            ]


def test_index_that_shrank_stays_so_after_a_clean_stop_and_a_power_loss() -> None:
    """A stale index of a segment below the recovery point would be trusted."""
    fs = formatted()
    config = LogConfig(index_interval_bytes=50)
    directory = open_directory(fs, config)
    log = directory.create(ORDERS, TOPIC_ID, config)
    for i in range(4):
        log.append(batch(str(i)), 0)
    log.roll()
    directory.truncate(log, 1)
    directory.close()
    directory = open_directory(fs, config)
    log = directory.logs[ORDERS]
    log.roll()
    log.append(batch("after"), 0)
    log.flush()
    directory.write_recovery_points()
    fs.crash()
    assert values_of(open_directory(fs, config).logs[ORDERS]) == ["0", "after"]
    assert [str(line) for line in dump(log.directory, fs=fs) if isinstance(line, Problem)] == []


# ---------------------------------------------------------------------------------------------- configuration


def test_topic_keys_have_kafkas_names_and_defaults() -> None:
    values = TOPIC.parse({})
    assert values["segment.bytes"] == 1 << 30
    assert values["max.message.bytes"] == 1_048_588
    assert values["retention.ms"] == 7 * 86_400_000
    assert values["message.timestamp.after.max.ms"] == 3_600_000
    assert values["message.timestamp.before.max.ms"] == LONG_MAX
    assert values["log.flush"] == "commit"
    assert all(key.doc and key.dynamic for key in TOPIC.keys.values())
    named = (
        "cleanup.policy retention.ms retention.bytes segment.bytes segment.ms segment.index.bytes min.insync.replicas "
        "compression.type max.message.bytes message.timestamp.type message.timestamp.before.max.ms "
        "message.timestamp.after.max.ms min.compaction.lag.ms max.compaction.lag.ms delete.retention.ms "
        "min.cleanable.dirty.ratio file.delete.delay.ms flush.messages flush.ms unclean.leader.election.enable "
        "index.interval.bytes preallocate"
    )
    assert set(named.split()) <= set(TOPIC.keys)


def test_log_settings_come_from_topic_over_broker_over_default() -> None:
    config = LogConfig.from_topic(
        {"segment.bytes": "2000", "message.timestamp.type": "LogAppendTime", "retention.ms": "-1"},
        broker_defaults={"segment.bytes": 9000, "index.interval.bytes": 77},
    )
    assert (config.segment_bytes, config.index_interval_bytes) == (2000, 77)
    assert config.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.retention_ms is None
    assert LogConfig.from_topic({}) == LogConfig()


def test_topic_key_in_snake_case_overrides_the_brokers_dotted_one() -> None:
    assert LogConfig.from_topic({"segment_bytes": 5000}, broker_defaults={"segment.bytes": 9000}).segment_bytes == 5000


@pytest.mark.parametrize(
    ("given", "flush_ms"),
    [
        ({"log.flush": "interval"}, 250),
        ({"log.flush": "interval", "flush.ms": "40"}, 40),
        ({"log.flush": "os"}, None),
        ({"log.flush": "os", "flush.ms": "40"}, 40),
    ],
)
def test_flush_interval_is_the_topics_or_the_brokers(given: dict[str, str], flush_ms: int | None) -> None:
    config = LogConfig.from_topic(given, flush_interval_ms=250)
    assert config.flush is FlushPolicy(given["log.flush"])
    assert config.flush_ms == flush_ms


@pytest.mark.parametrize(
    "given",
    [
        {"segment.bytes": "13"},
        {"log.flush": "sometimes"},
        {"cleanup.policy": "shred"},
        {"cleanup.policy": ""},
        {"remote.storage.enable": "true"},
        {"segment.byte": "100"},
    ],
)
def test_topic_settings_that_cannot_be_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        LogConfig.from_topic(given)


# ---------------------------------------------------------------------------------------------- dump


def dumped_log() -> tuple[CrashingFileSystem, str]:
    fs = formatted()
    config = LogConfig(segment_bytes=2500, index_interval_bytes=300)
    log = open_directory(fs).create(ORDERS, TOPIC_ID, config)
    for i in range(40):
        log.append(batch(f"{i}", f"{i}b", timestamp_ms=NOW_MS + i), 0)
    log.close()
    return fs, log.directory


def test_dump_of_a_sound_log_shows_all_of_it_and_no_problem() -> None:
    fs, path = dumped_log()
    lines = list(dump(path, deep=True, fs=fs))
    assert not [line for line in lines if isinstance(line, Problem)]
    assert sum(isinstance(line, BatchLine) for line in lines) == 40
    assert sum(isinstance(line, RecordLine) for line in lines) == 80
    for kind in (FileLine, OffsetEntryLine, TimeEntryLine):
        assert any(isinstance(line, kind) for line in lines)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_dump_names_file_position_and_offset_of_a_flipped_byte(suffix: str) -> None:
    fs, path = dumped_log()
    name = f"{path}/00000000000000000000{suffix}"
    size = len(fs.files()[name])
    assert size > 20
    # No checksum covers leader epochs and base offsets; a wrong offset shows in the following batch.
    batches = batches_of(fs, name)
    unseen = {at for line in batches for at in range(line.position + 12, line.position + 16)}
    unseen.update(range(batches[-1].position, batches[-1].position + 8) if batches else ())
    for position in set(range(0, size, 7)) - unseen:
        damaged = fs.crash_clone()
        damaged.replace(name, fs.files()[name])
        damaged.flip(name, position)
        problems = [line for line in dump(name, deep=True, fs=damaged) if isinstance(line, Problem)]
        assert problems, f"a flip at {position} went unnoticed"
        assert problems[0].path == name
        assert problems[0].position <= position + 150
        assert str(problems[0]).startswith(f"{name}, position {problems[0].position}, offset ")


def batches_of(fs: CrashingFileSystem, name: str) -> list[BatchLine]:
    return [line for line in dump(name, fs=fs) if isinstance(line, BatchLine)] if name.endswith(".log") else []


def test_dump_of_a_torn_tail_says_how_much_is_lost() -> None:
    fs, path = dumped_log()
    name = f"{path}/00000000000000000000.log"
    fs.replace(name, fs.files()[name][:-5])
    problems = [line for line in dump(path, fs=fs) if isinstance(line, Problem)]
    assert "no sound batch in them" in problems[0].what


def test_dump_refuses_what_is_no_log() -> None:
    fs, path = dumped_log()
    with pytest.raises(FileNotFoundError):
        list(dump(f"{path}/nothing.log", fs=fs))
    with pytest.raises(ValueError, match="not a"):
        list(dump(f"{path}/partition.metadata", fs=fs))
    fs.replace(f"{path}/orders.log", b"")
    with pytest.raises(ValueError, match="base offset"):
        list(dump(f"{path}/orders.log", fs=fs))


def test_an_append_to_a_log_that_rotted_meanwhile_is_refused_and_costs_nobody_else_anything() -> None:
    fs = formatted()
    directory = open_directory(fs)
    for partition in (ORDERS, PAYMENTS):
        log = directory.create(partition, uuid.uuid5(TOPIC_ID, str(partition)), LogConfig())
        for number in range(3):
            log.append(batch(str(number), timestamp_ms=NOW_MS + number), 0)
    directory.close()
    directory = open_directory(fs)
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    fs.flip(path, len(fs.files()[path]) - len(batch("2")) + 16)  # the magic of the last batch, after the start
    before = fs.files()[path]

    async def append_to_both() -> tuple[object, object, object]:
        writer = DirectoryWriter(directory, clock=ManualClock(NOW_MS))
        logs = [directory.logs[ORDERS], directory.logs[PAYMENTS]]
        outcomes = await asyncio.gather(
            *(writer.append(log, batch("3"), leader_epoch=0) for log in logs), return_exceptions=True
        )
        await writer.close()
        return outcomes[0], outcomes[1], writer.failure

    refused, done, failure = asyncio.run(append_to_both())
    assert isinstance(refused, CorruptLogError)
    assert f"{path}, position" in refused.message
    assert isinstance(done, AppendInfo)
    assert done.base_offset == 3
    assert failure is None
    assert fs.files()[path] == before, "nothing was written behind the damage"


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        *[(operation, errno.ENOSPC) for operation in ("sync_directory", "rename", "open", "write")],
        *[(operation, errno.EMFILE) for operation in ("sync_directory", "open")],
    ],
)
def test_a_deletion_that_failed_half_way_leaves_nothing_to_a_log_of_the_same_name(operation: str, error: int) -> None:
    """The deletion of the old log fails at each of its steps in turn. If the log start of the old log stayed, it would
    make the new log empty at the next start."""
    for nth in range(1, 9):
        fs, directory, log = begun()
        for number in range(20):
            log.append(batch(str(number)), 0)
        log.flush()
        directory.delete_records(log, 15)
        directory.write_high_watermarks({ORDERS: 20})
        directory.write_recovery_points()
        fs.fail(operation, error, nth=nth, times=2, path_contains=ROOT)
        with contextlib.suppress(OSError, ServerBusyError):
            directory.delete(ORDERS)
        fs.faults.clear()
        new_id = uuid.uuid5(TOPIC_ID, "new")
        new = directory.create(ORDERS, new_id, LogConfig())
        for number in range(3):
            new.append(batch(f"new {number}"), 0)
        new.flush()
        again = open_directory(fs.crash_clone())
        assert again.logs[ORDERS].topic_id == new_id
        assert values_of(again.logs[ORDERS]) == ["new 0", "new 1", "new 2"], f"{operation} {nth}"
        assert again.high_watermark(ORDERS) == 0


@pytest.mark.parametrize("recovery_point", [0, 2, 3, None], ids=lambda point: f"flushed_to_{point}")
def test_an_empty_segment_of_a_roll_that_failed_hides_nothing(recovery_point: int | None) -> None:
    """The file was removed, and a crash restored its name. ``recovery_point`` None means a clean stop."""
    fs, directory, log = begun()
    for number in range(3):
        log.append(batch(str(number)), 0)
    log.flush()
    if recovery_point is None:
        directory.close()
    else:
        write_offsets(fs, f"{ROOT}/{RECOVERY_POINTS}", {ORDERS: recovery_point})
    crashed = fs.crash_clone()
    for suffix in (".log", ".index"):
        crashed.open(f"{ROOT}/orders-0/{2:020}{suffix}", write=True, create=True).close()
    again = open_directory(crashed)
    assert not again.quarantined
    assert values_of(again.logs[ORDERS]) == ["0", "1", "2"]
    assert again.logs[ORDERS].append(batch("3"), 0).base_offset == 3
    assert not crashed.exists(f"{ROOT}/orders-0/{2:020}.log")
    again.logs[ORDERS].flush()
    assert values_of(open_directory(crashed.crash_clone()).logs[ORDERS]) == ["0", "1", "2", "3"]
