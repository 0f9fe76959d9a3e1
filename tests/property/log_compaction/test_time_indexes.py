"""The time indexes of compacted logs, as Kafka's DumpLogSegments checks them, but without Kafka.

Each entry names the last offset of a batch, and the largest timestamp of that batch's records. Compaction leaves
batches without records. The timestamp in the header of a batch without records belongs to no record. Only a segment
that has no records has time entries for such batches. The rule of time entries holds for indexes written by a cleaning,
rebuilt by a recovery, or written by a follower.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from headrace_core.log import PartitionLog
from headrace_core.log.appending import Append
from headrace_core.log.index import TIME_ENTRY
from headrace_core.log.verify import Problem, verify
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.worlds.compaction_world import DIRECTORY, Batch, CompactionWorld, Counts, batches_of

SEEDS = 8


def follower_of(world: CompactionWorld, batches: list[Batch]) -> tuple[CrashingFileSystem, PartitionLog]:
    """A follower's log, which gets the leader's batches unchanged."""
    fs = CrashingFileSystem(keep_trace=False)
    for path in (Path(DIRECTORY).parent.as_posix(), DIRECTORY):
        fs.mkdir(path)
    log = world.open_log(fs)
    for batch in batches:
        (outcome,) = log.append_many([Append(data=batch.raw, leader_epoch=99, replicated=True)])
        assert not isinstance(outcome, BaseException), outcome
    return fs, log


def check(fs: CrashingFileSystem, log: PartitionLog, what: str) -> int:
    """Fail if the check of Kafka's tool or Headrace's check would fail. Return the number of checked entries."""
    batches = batches_of(log)
    log.close()
    by_last = {batch.header.last_offset: batch for batch in batches}
    with_records = {batch.segment for batch in batches if batch.records}
    looked = 0
    for path, data in sorted(fs.files().items()):
        if not (path.startswith(f"{DIRECTORY}/") and path.endswith(".timeindex")):
            continue
        base = int(Path(path).stem)
        before_ms = -1
        for timestamp_ms, relative in TIME_ENTRY.iter_unpack(data):
            where = f"{what}: {path}: {timestamp_ms} at offset {base + relative}"
            assert base + relative in by_last, f"{where}: no batch ends there"
            batch = by_last[base + relative]
            assert timestamp_ms > before_ms, where
            before_ms = timestamp_ms
            if base in with_records:
                largest_ms = max((record.timestamp_ms for record in batch.records), default=-1)
                assert timestamp_ms == largest_ms, f"{where}: the largest of its records is {largest_ms}"
                looked += 1
            else:
                assert timestamp_ms == batch.header.max_timestamp_ms, where
    problems = [line for line in verify(DIRECTORY, fs=fs) if isinstance(line, Problem)]
    assert [each for each in problems if ".snapshot" not in each.path] == [], what
    return looked


@pytest.mark.parametrize("part", range(2))
def test_each_time_entry_has_the_largest_timestamp_of_a_batch_that_has_records(part: int) -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    looked = 0
    for seed in [4712, *range(first + part, first + SEEDS, 2)]:
        world = CompactionWorld(seed, Counts())
        for _ in range(3):
            world.write(60)
            world.clean_without_crashes()
        batches = batches_of(world.log)
        crashed = world.fs.crash_clone(loss=Loss.NONE)
        looked += check(crashed, world.open_log(crashed, 0), f"seed {seed}, recovered")
        looked += check(*follower_of(world, batches), f"seed {seed}, a follower")
        looked += check(world.fs, world.log, f"seed {seed}, cleaned")
    assert looked > 20
