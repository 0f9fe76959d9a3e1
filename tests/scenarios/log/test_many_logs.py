"""Many logs in one directory: made together, stopped and started for next to nothing."""

from __future__ import annotations

import random
import uuid
from collections import Counter

import pytest
from log_world import ORDERS, ROOT, TOPIC_ID, batch, formatted, open_directory, values_of

from headrace_core.errors import CorruptLogError, InconsistentTopicIdError
from headrace_core.log import LogConfig, LogDirectory, PartitionLog
from headrace_core.log.checkpoints import PARTITION_METADATA
from headrace_core.log.creating import NewLog
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.types import TopicPartition


def wanted(count: int) -> list[NewLog]:
    return [(TopicPartition("many", number), TOPIC_ID, LogConfig()) for number in range(count)]


def made(directory: LogDirectory, count: int) -> list[PartitionLog]:
    logs = directory.create_all(wanted(count))
    assert all(isinstance(log, PartitionLog) for log in logs)
    return [log for log in logs if isinstance(log, PartitionLog)]


def counts(fs: CrashingFileSystem) -> Counter[str]:
    return Counter(entry.operation for entry in fs.trace)


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
    for number in range(fs.operations - before):
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
