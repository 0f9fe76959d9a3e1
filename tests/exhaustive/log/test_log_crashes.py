"""A crash at every operation, and a truncation at every byte: acknowledged records survive, and no record appears that
was not sent."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log import DirectoryWriter, LogConfig, PartitionLog, RealFileSystem
from headrace_core.records import encode_batch, split_batches, with_base
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.types import TopicPartition
from tests.worlds.log_world import (
    NOW_MS,
    ORDERS,
    PAYMENTS,
    ROOT,
    TOPIC_ID,
    batch,
    begun,
    formatted,
    log_files,
    open_directory,
    values_of,
)

#: Small segments and an index entry for nearly every batch, so that a short run rolls and indexes.
TINY = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=120)


@dataclass
class History:
    """Values that a workload sent to a log, in order, and how many were acknowledged."""

    sent: dict[TopicPartition, list[str]] = field(default_factory=lambda: {ORDERS: [], PAYMENTS: []})
    acknowledged: dict[TopicPartition, int] = field(default_factory=lambda: {ORDERS: 0, PAYMENTS: 0})
    start: int = 0


def run_workload(fs: CrashingFileSystem, history: History, config: LogConfig = TINY, pad: int = 17) -> None:
    """Appends of several sizes to two partitions, in groups, with rolls, a new epoch, deleted records, checkpoints."""
    directory = open_directory(fs, config)
    logs = {partition: directory.create(partition, TOPIC_ID, config) for partition in (ORDERS, PAYMENTS)}
    for turn in range(9):
        for partition, log in logs.items():
            values = [f"{partition}:{turn}:{i}" for i in range(1 + turn % 3)]
            history.sent[partition] += values
            log.append(batch(*values, timestamp_ms=NOW_MS + turn * 10, pad=pad * turn), turn // 4)
            if turn % 2:
                extra = f"{partition}:{turn}:extra"
                history.sent[partition].append(extra)
                log.append(batch(extra, pad=pad), turn // 4)
        for partition, log in logs.items():
            log.flush()
            history.acknowledged[partition] = log.flushed_end
        if turn == 4:
            directory.write_recovery_points()
        if turn == 6:
            start = directory.delete_records(logs[ORDERS], 5)
            history.start = start
    directory.close(broker_epoch=1)


def count_operations(config: LogConfig = TINY, pad: int = 17) -> int:
    fs = formatted()
    before = fs.operations
    run_workload(fs, History(), config, pad)
    return fs.operations - before


OPERATIONS = count_operations()


def check_recovered(fs: CrashingFileSystem, history: History, config: LogConfig = TINY) -> None:
    directory = open_directory(fs, config)
    assert not directory.quarantined
    for partition in (ORDERS, PAYMENTS):
        log = directory.get(partition)
        if log is None:
            assert history.acknowledged[partition] == 0
            continue
        sent = history.sent[partition]
        assert history.acknowledged[partition] <= log.log_end_offset <= len(sent)
        if partition == ORDERS:
            assert log.log_start_offset >= history.start
            assert log.log_start_offset in (0, 5)
        assert values_of(log) == sent[log.log_start_offset : log.log_end_offset]
        epochs = log.epochs.entries
        assert [entry.epoch for entry in epochs] == sorted({entry.epoch for entry in epochs})
        for span_epoch, offset in batch_epochs(log):
            assert log.epochs.epoch_of(offset) == span_epoch
    first = log_files(fs)
    for log in directory.logs.values():
        log.close()
    fs.crash(loss=Loss.ALL)  # all records that recovery reports as durable must be durable
    again = open_directory(fs, config)
    assert not again.quarantined
    second = log_files(fs)
    assert {name: data for name, data in second.items() if name.endswith(".log")} == {
        name: data for name, data in first.items() if name.endswith(".log")
    }


def batch_epochs(log: PartitionLog) -> list[tuple[int, int]]:
    return [
        (place.header.leader_epoch, place.header.base_offset)
        for segment in log.segments
        for place in segment.places(0, segment.size)
        if place.header.base_offset >= log.log_start_offset
    ]


@pytest.mark.parametrize("loss", list(Loss), ids=lambda loss: loss.value)
def test_crash_at_every_operation_keeps_the_acknowledged_prefix(loss: Loss) -> None:
    for number in range(OPERATIONS):
        for seed in range(1 if loss in (Loss.ALL, Loss.NONE) else 3):
            fs = formatted()
            history = History()
            fs.crash_at(fs.operations + number)
            with pytest.raises(SimulatedCrash):
                run_workload(fs, history)
            fs.crash(random.Random(seed), loss)
            try:
                check_recovered(fs, history)
            except BaseException as error:
                error.add_note(f"crash at operation {number}, {loss}, seed {seed}")
                raise


def test_blocks_of_one_turn_that_reach_the_disk_in_any_order_are_a_torn_tail() -> None:
    """Batches of several blocks each: holes appear in the middle of the last write."""
    config, pad = LogConfig(segment_bytes=200_000), 1500
    for number in range(count_operations(config, pad)):
        for seed in range(4):
            fs = formatted()
            history = History()
            fs.crash_at(fs.operations + number)
            with pytest.raises(SimulatedCrash):
                run_workload(fs, history, config, pad)
            fs.crash(random.Random(seed), Loss.BLOCKS)
            try:
                check_recovered(fs, history, config)
            except BaseException as error:
                error.add_note(f"crash at operation {number}, seed {seed}")
                raise


def test_crash_during_recovery_loses_nothing_either() -> None:
    fs = formatted()
    history = History()
    fs.crash_at(fs.operations + OPERATIONS * 2 // 3)
    with pytest.raises(SimulatedCrash):
        run_workload(fs, history)
    rng = random.Random(7)
    for number in range(200):
        crashed = fs.crash_clone(rng, Loss.PREFIX)
        crashed.crash_at(number)
        try:
            open_directory(crashed, TINY)
        except SimulatedCrash:
            crashed.crash(rng, Loss.PREFIX)
            check_recovered(crashed, history)
        else:
            break
    else:
        pytest.fail("recovery never came to its end")
    assert number > 5


def test_truncation_at_every_byte_leaves_the_longest_prefix_of_whole_batches() -> None:
    fs, _, log = begun()
    for i in range(6):
        log.append(batch(*[f"{i}:{j}" for j in range(i % 3 + 1)], pad=i * 5), 0)
    log.flush()
    values = values_of(log)
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    data = fs.files()[path]
    spans = split_batches(data)
    fs.crash()
    for size in range(len(data) + 1):
        cut = fs.crash_clone()
        cut.replace(path, data[:size])
        recovered = open_directory(cut).get(ORDERS)
        assert recovered is not None
        whole = [span for span in spans if span.position + span.size <= size]
        assert recovered.log_end_offset == (whole[-1].last_offset + 1 if whole else 0), f"truncated at {size}"
        assert values_of(recovered) == values[: recovered.log_end_offset]
        assert len(cut.files()[path]) == sum(span.size for span in whole)
        # and it goes on from there
        recovered.append(batch("more"), 0)
        assert values_of(recovered) == [*values[: recovered.log_end_offset - 1], "more"]


def test_a_recovery_of_many_small_batches_needs_no_memory_for_each(tmp_path: Path) -> None:
    """A segment of 1 GiB may have ten million batches: with an object for each, the recovery needed 2 GiB."""
    one, count = batch("v"), 6_000
    (tmp_path / "00000000000000000000.log").write_bytes(
        b"".join(with_base(one, 0, offset, 0) + one[16:] for offset in range(count))
    )
    fs = RealFileSystem()
    tracemalloc.start()
    try:
        log = PartitionLog.open(fs, str(tmp_path), ORDERS, LogConfig(), clock=ManualClock())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.log_end_offset == count
    window_bytes = log.size_bytes
    assert peak_bytes - window_bytes < 80 * count
    log.close()


@pytest.mark.parametrize("interval_bytes", [0, 100, 4096])
def test_recovery_writes_the_indexes_that_the_appends_wrote(interval_bytes: int) -> None:
    rng = random.Random(7)
    config = LogConfig(index_interval_bytes=interval_bytes, segment_index_bytes=2_000)
    fs, directory, log = begun(config)
    for _ in range(400):
        records = [
            (NOW_MS + rng.randrange(-50, 50), None, rng.randbytes(rng.randrange(60)), None)
            for _ in range(rng.randint(1, 3))
        ]
        log.append(encode_batch(records), 0)
    directory.close()
    written = {path: data for path, data in fs.files().items() if path.endswith("index")}
    assert len(written) >= 2
    assert all(written.values())
    fs.unlink(f"{ROOT}/.kafka_cleanshutdown")
    for path in written:
        fs.unlink(path)
    open_directory(fs, config).close()
    assert {path: fs.files()[path] for path in written} == written


def test_second_recovery_changes_not_one_byte() -> None:
    fs = formatted()
    fs.crash_at(fs.operations + OPERATIONS - 12)
    with pytest.raises(SimulatedCrash):
        run_workload(fs, History())
    fs.crash(random.Random(3), Loss.PREFIX)
    open_directory(fs, TINY)
    first = log_files(fs)
    fs.crash(loss=Loss.NONE)  # killed again before its first operation
    open_directory(fs, TINY)
    assert log_files(fs) == first


def test_what_survives_a_kill_survives_the_power_loss_after_it() -> None:
    """Recovery counts the data that it finds as flushed, so it must flush data that a killed process left in the page
    cache."""
    fs = formatted()
    log = open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    log.append(batch("written, not flushed"), 0)
    fs.crash(loss=Loss.NONE)
    recovered = open_directory(fs).get(ORDERS)
    assert recovered is not None
    assert recovered.durable_end == 1
    fs.crash(loss=Loss.ALL)
    after = open_directory(fs).get(ORDERS)
    assert after is not None
    assert values_of(after) == ["written, not flushed"]


def test_every_acknowledgement_follows_its_flush() -> None:
    """From the trace: before each acknowledgement, every byte of its batch was synced, and every file name on its
    path."""
    fs = formatted()

    async def work() -> None:
        directory = open_directory(fs, TINY)
        writer = DirectoryWriter(directory, clock=ManualClock(NOW_MS))
        logs = [
            await writer.run(lambda p=partition: directory.create(p, TOPIC_ID, TINY))
            for partition in (ORDERS, PAYMENTS)
        ]
        waiting = []
        for turn in range(40):
            for log in logs:
                future = writer.append(log, batch(f"{turn}", pad=turn), leader_epoch=0)
                future.add_done_callback(
                    lambda done, log=log: fs.note("acknowledged", log.directory, done.result().next_offset)
                )
                waiting.append(future)
            if turn % 4 == 3:
                await asyncio.gather(*waiting)
        await writer.close()

    asyncio.run(work())
    unsynced_files: dict[str, set[str]] = {}
    unsynced_names: dict[str, set[str]] = {}
    acknowledged = 0
    for entry in fs.trace:
        parent = entry.path.rpartition("/")[0]
        if entry.operation == "write":
            unsynced_files.setdefault(parent, set()).add(entry.path)
        elif entry.operation == "sync":
            unsynced_files.get(parent, set()).discard(entry.path)
        elif entry.operation == "create":
            unsynced_names.setdefault(parent, set()).add(entry.path)
        elif entry.operation == "sync_directory":
            unsynced_names.pop(entry.path, None)
        elif entry.operation == "acknowledged":
            acknowledged += 1
            logs = {path for path in unsynced_files.get(entry.path, set()) if path.endswith(".log")}
            assert not logs, f"{logs} not synced at {entry}"
            names = {path for path in unsynced_names.get(entry.path, set()) if path.endswith(".log")}
            assert not names, f"the names of {names} not durable at {entry}"
    assert acknowledged == 80


@pytest.mark.parametrize("recovery_point", [0, 3])
def test_flipped_byte_with_sound_batches_after_it_is_corruption(recovery_point: int) -> None:
    fs = formatted()
    log = open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    for i in range(5):
        log.append(batch(f"value {i}"), 0)
    log.flush()
    fs.crash()
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    spans = split_batches(fs.files()[path])
    for position in range(spans[2].position, spans[2].position + spans[2].size):
        damaged = fs.crash_clone()
        damaged.flip(path, position)
        if recovery_point:
            damaged.replace(f"{ROOT}/recovery-point-offset-checkpoint", f"0\n1\norders 0 {recovery_point}\n".encode())
        before = damaged.files()[path]
        directory = open_directory(damaged)
        assert directory.get(ORDERS) is None
        assert "position" in directory.quarantined[ORDERS].message
        assert damaged.files()[path] == before
        with pytest.raises(CorruptLogError):
            directory.create(ORDERS, TOPIC_ID, LogConfig())


def test_flipped_byte_in_the_last_batch_is_a_torn_tail_unless_it_was_flushed() -> None:
    fs = formatted()
    log = open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    for i in range(3):
        log.append(batch(f"value {i}"), 0)
    log.flush()
    fs.crash()
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    fs.flip(path, len(fs.files()[path]) - 3)
    torn = fs.crash_clone()
    recovered = open_directory(torn).get(ORDERS)
    assert recovered is not None
    assert values_of(recovered) == ["value 0", "value 1"]
    fs.replace(f"{ROOT}/recovery-point-offset-checkpoint", b"0\n1\norders 0 3\n")
    assert ORDERS in open_directory(fs).quarantined


def test_log_that_ends_below_its_recovery_point_is_corrupt() -> None:
    fs, directory, log = begun()
    for i in range(3):
        log.append(batch(f"value {i}"), 0)
    log.flush()
    directory.write_recovery_points()
    fs.crash()
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    data = fs.files()[path]
    fs.replace(path, data[: split_batches(data)[2].position])
    assert "flushed up to 3" in open_directory(fs).quarantined[ORDERS].message


def test_hole_in_an_unflushed_turn_is_cut_and_what_was_flushed_stays() -> None:
    fs = formatted()
    log = open_directory(fs).create(ORDERS, TOPIC_ID, LogConfig())
    log.append(batch("flushed", pad=500), 0)
    log.flush()
    for i in range(4):
        log.append(batch(f"big {i}", pad=9000), 0)
    path = f"{ROOT}/orders-0/00000000000000000000.log"
    data = bytearray(fs.files()[path])
    data[4096:8192] = bytes(4096)
    fs.crash()
    fs.replace(path, bytes(data))
    recovered = open_directory(fs).get(ORDERS)
    assert recovered is not None
    assert values_of(recovered) == ["flushed"]
