"""Many logs in one directory: created together, and stopped and started with little work."""

from __future__ import annotations

import random
import threading
import uuid
from itertools import pairwise

import pytest

from headrace_core.errors import CorruptLogError, InconsistentTopicIdError
from headrace_core.log import LogConfig, LogDirectory, PartitionLog
from headrace_core.log.checkpoints import PARTITION_METADATA
from headrace_core.log.creating import NewLog
from headrace_core.log.progress import OpeningProgress
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import Loss, SimulatedCrash
from headrace_core.types import TopicPartition
from tests.worlds.log_world import NOW_MS, ORDERS, ROOT, TOPIC_ID, batch, formatted, open_directory, values_of
from tests.worlds.this_process import steps


def wanted(count: int) -> list[NewLog]:
    return [(TopicPartition("many", number), TOPIC_ID, LogConfig()) for number in range(count)]


def made(directory: LogDirectory, count: int) -> list[PartitionLog]:
    logs = directory.create_all(wanted(count))
    assert all(isinstance(log, PartitionLog) for log in logs)
    return [log for log in logs if isinstance(log, PartitionLog)]


def test_logs_made_together_are_there_after_a_power_loss():
    fs = formatted()
    made(open_directory(fs), 300)
    fs.crash()
    again = open_directory(fs)
    assert len(again.logs) == 300
    assert {log.topic_id for log in again.logs.values()} == {TOPIC_ID}


def test_one_that_cannot_be_made_does_not_keep_the_others():
    fs = formatted()
    directory = open_directory(fs)
    first, damaged = directory.create_all([wanted(2)[0], (ORDERS, TOPIC_ID, LogConfig())])
    assert isinstance(damaged, PartitionLog)
    damaged.append(batch("a"), 0)
    directory.quarantine(ORDERS, CorruptLogError("rotten"))
    other = (TopicPartition("many", 0), uuid.UUID(int=99), LogConfig())
    again, of_another_topic, in_quarantine, new = directory.create_all(
        [wanted(1)[0], other, (ORDERS, TOPIC_ID, LogConfig()), wanted(2)[1]]
    )
    assert again is first
    assert isinstance(of_another_topic, InconsistentTopicIdError)
    assert isinstance(in_quarantine, CorruptLogError)
    assert isinstance(new, PartitionLog)
    assert new.append(batch("b"), 0).base_offset == 0


def test_a_log_that_is_wanted_twice_is_made_once():
    directory = open_directory(formatted())
    first, second = directory.create_all([*wanted(1), *wanted(1)])
    assert first is second


@pytest.mark.parametrize("loss", list(Loss), ids=lambda loss: loss.value)
def test_power_loss_at_every_step_leaves_logs_that_can_be_made_again(loss: Loss, seed: int):
    fs = formatted()
    directory = open_directory(fs)
    before = fs.operations
    made(directory, 3)
    for number in steps(0, fs.operations - before - 1):
        fs = formatted()
        directory = open_directory(fs)
        fs.crash_at(fs.operations + number)
        with pytest.raises(SimulatedCrash):
            made(directory, 3)
        assert not directory.logs, "nobody is told of a log that is not durable"
        fs.crash(random.Random(seed), loss)
        again = open_directory(fs)
        assert not again.quarantined, f"step {number}"
        for log in made(again, 3):
            assert (log.topic_id, log.log_end_offset) == (TOPIC_ID, 0), f"step {number}"
            log.append(batch("x"), 0)
            assert values_of(log) == ["x"]


def test_a_topic_id_is_never_seen_in_part():
    """partition.metadata gets its name after its bytes are on the disk."""
    fs = formatted()
    directory = open_directory(fs)
    fs.trace.clear()
    made(directory, 5)
    forced: set[str] = set()
    for entry in fs.trace:
        if entry.operation == "sync":
            forced.add(entry.path)
        if entry.operation == "rename" and PARTITION_METADATA in entry.path:
            assert entry.path.partition(" -> ")[0] in forced


def test_a_full_disk_leaves_nothing_that_the_next_try_stumbles_over():
    fs = formatted()
    directory = open_directory(fs)
    fs.fail("create", error=28, nth=7)
    with pytest.raises(OSError, match="No space left"):
        made(directory, 3)
    assert not directory.logs
    assert [log.log_end_offset for log in made(directory, 3)] == [0, 0, 0]


def test_a_stop_syncs_and_reads_nothing_of_logs_that_did_not_change():
    fs = formatted()
    directory = open_directory(fs)
    logs = made(directory, 40)
    for log in logs[:10]:
        log.append(batch("a"), 0)
    directory.close(broker_epoch=1)
    directory = open_directory(fs)
    values = values_of(directory.logs[logs[3].topic_partition])
    assert values == ["a"]
    directory.logs[logs[3].topic_partition].append(batch("b"), 0)
    fs.trace.clear()
    directory.close(broker_epoch=2)
    touched = {entry.path.split("/")[2] for entry in fs.trace if "/many-" in entry.path}
    assert touched == {"many-3"}
    directory = open_directory(fs)
    assert values_of(directory.logs[logs[3].topic_partition]) == ["a", "b"]


def test_a_clean_start_opens_no_log_that_is_empty_and_syncs_none():
    fs = formatted()
    directory = open_directory(fs)
    made(directory, 40)
    directory.close(broker_epoch=1)
    fs.trace.clear()
    open_directory(fs)
    of_logs = [entry for entry in fs.trace if f"{ROOT}/many-" in entry.path]
    assert not [entry for entry in of_logs if entry.path.endswith(".log") and entry.operation != "stat"]
    assert not [entry for entry in of_logs if entry.operation in ("sync", "sync_directory", "write", "truncate")]


def test_an_unclean_start_scans_on_several_threads_and_keeps_the_order():
    fs = formatted()
    directory = open_directory(fs)
    for number, log in enumerate(made(directory, 12)):
        log.append(batch(f"value of {number}"), 0)
        log.flush()
    fs.crash()
    plain = open_directory(fs)
    names = list(plain.logs)
    plain.close(clean=False)
    fs.crash()
    again = LogDirectory.open(
        fs, ROOT, clock=ManualClock(NOW_MS), config_of=lambda topic, topic_id: LogConfig(), recovery_threads=4
    )
    assert list(again.logs) == names
    assert {str(partition): values_of(log) for partition, log in again.logs.items()} == {
        f"many-{number}": [f"value of {number}"] for number in range(12)
    }


def test_an_error_of_one_log_ends_an_unclean_start_once_no_thread_is_at_work():
    fs = formatted()
    directory = open_directory(fs)
    for log in made(directory, 12):
        log.append(batch("a"), 0)
        log.flush()
    fs.crash()
    fs.fail("read", path_contains="many-5/", path_ends=".log")
    with pytest.raises(OSError, match="Input/output error"):
        LogDirectory.open(
            fs, ROOT, clock=ManualClock(NOW_MS), config_of=lambda topic, topic_id: LogConfig(), recovery_threads=3
        )
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("recovery-")]
    assert len(open_directory(fs).logs) == 12, "the lock was released"


def test_a_long_start_says_how_far_it_is():
    fs, clock = formatted(), ManualClock(NOW_MS)
    directory = open_directory(fs)
    for log in made(directory, 30):
        log.append(batch("a", pad=3000), 0)
        log.flush()
    fs.crash()
    reports: list[OpeningProgress] = []
    fs.on_operation = lambda entry: clock.advance(100) if entry.operation == "read" else None
    LogDirectory.open(
        fs, ROOT, clock=clock, config_of=lambda topic, topic_id: LogConfig(), on_progress=reports.append
    ).close()
    assert len(reports) > 1
    assert {(progress.path, progress.logs) for progress in reports} == {(ROOT, 30)}
    assert [progress.logs_opened for progress in reports] == sorted(progress.logs_opened for progress in reports)
    assert 3000 < reports[0].scanned_bytes <= reports[-1].scanned_bytes <= 30 * 3200
    assert all(after.seconds - before.seconds >= 2 for before, after in pairwise(reports))


def test_an_unclean_start_forces_only_what_may_not_be_on_the_disk():
    fs = formatted()
    directory = open_directory(fs)
    logs = made(directory, 20)
    for log in logs:
        log.append(batch("a"), 0)
        log.flush()
    directory.write_recovery_points()
    logs[3].append(batch("b"), 0)
    logs[3].flush()  # after the recovery points were written
    fs.crash()
    fs.trace.clear()
    again = open_directory(fs)
    forced = {
        entry.path.split("/")[2] for entry in fs.trace if entry.operation.startswith("sync") and "many" in entry.path
    }
    assert forced == {"many-3"}
    fs.crash()
    assert values_of(open_directory(fs).logs[logs[3].topic_partition]) == ["a", "b"]
    assert len(again.logs) == 20


@pytest.mark.parametrize("is_read", [False, True])
def test_only_a_few_sealed_segments_keep_their_indexes_in_memory(is_read: bool) -> None:
    log = open_directory(formatted()).create(ORDERS, TOPIC_ID, LogConfig(index_interval_bytes=0))
    for number in range(12):
        for part in range(3):
            log.append(batch(f"{number} {part}"), 0)
        log.roll()
        if is_read:
            values_of(log, 1)
            log._forget_places()  # as a compaction does
    assert len(log.segments) == 13
    assert sum(segment.index.columns is not None for segment in log.segments[:-1]) <= 4
    assert sum(segment.time_index.columns is not None for segment in log.segments[:-1]) <= 4
    assert len(values_of(log)) == 36
