"""Readers in several threads while producers append and retention, DeleteRecords and compaction delete segments.
Readers never see a wrong gap, a duplicate, a wrong order, a closed file, or a key without its last value."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_core.clock import SystemClock
from headrace_core.errors import OffsetOutOfRangeError
from headrace_core.log import LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.files import FileSystem, RealFileSystem
from headrace_core.records import decode_batch, encode_batch, split_batches
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.log_world import ORDERS, TOPIC_ID

SECONDS = 0.7
READERS = 3
KEYS = 12

DELETE = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_bytes=4000, file_delete_delay_ms=0)
COMPACT = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    cleanup_delete=False,
    cleanup_compact=True,
    min_dirty_ratio=0.01,
    file_delete_delay_ms=0,
)
#: The limit is so small that retention deletes segments before compaction does.
BOTH = replace(COMPACT, cleanup_delete=True, retention_bytes=3000)


class ShrinkingLogWorld:
    """One log and its workers. ``owner`` is held by the thread that changes the log; in the product the directory's
    writer runs changes one after the other."""

    def __init__(self, root: str, fs: FileSystem, config: LogConfig, seed: int) -> None:
        format_directory(fs, root, cluster_id="c", node_id=1)
        self.clock = SystemClock()
        self.directory = LogDirectory.open(fs, root, clock=self.clock, config_of=lambda topic, topic_id: config)
        self.log: PartitionLog = self.directory.create(ORDERS, TOPIC_ID, config)
        self.fs = fs
        self.seed = seed
        self.owner = threading.Lock()
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        #: Key -> offset of its last record that is durable.
        self.last: dict[bytes, int] = {}
        #: Key -> offset of its last record, durable or not.
        self.latest: dict[bytes, int] = {}
        self.passes = self.jumps = self.out_of_range = self.cleanings = self.shrunk = 0

    def run(self, *workers: Callable[[random.Random], None], until: Callable[[], bool]) -> None:
        """All workers run for SECONDS, and longer until the run has enough of each event."""
        threads = [
            threading.Thread(target=self._guarded, args=(worker, random.Random(f"{self.seed} {number}")))
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < SECONDS or not until():
            if self.failures or elapsed > 40:
                break
            time.sleep(0.01)
        self.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), f"seed {self.seed}: {thread.name} never ended"
        if self.failures:
            self.failures[0].add_note(f"seed {self.seed}")
            raise self.failures[0]

    def _guarded(self, worker: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            while not self.stop.is_set() and not self.failures:
                worker(rng)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failures.append(error)

    # ---------------------------------------------------------------- who changes it

    def produce(self, rng: random.Random) -> None:
        records = [
            (self.clock.now_ms(), b"key-%d" % rng.randrange(KEYS), b"." * rng.randrange(150), None)
            for _ in range(rng.randrange(1, 5))
        ]
        with self.owner:
            base = self.log.append(encode_batch(records), 0).base_offset
            self.latest.update({key: base + place for place, (_, key, _, _) in enumerate(records) if key})
            if rng.random() < 0.3:
                self.log.flush()
                self.last.update({key: base + place for place, (_, key, _, _) in enumerate(records) if key})
        self.stop.wait(0.0005)

    def retain(self, rng: random.Random) -> None:
        with self.owner:
            verdict = self.log.expired(self.log.flushed_end)
            if verdict is not None:
                self.shrunk += len(self.directory.expire([(self.log, verdict)]))
        self.directory.remove_deleted()
        self.stop.wait(0.003)

    def delete_records(self, rng: random.Random) -> None:
        with self.owner:
            start, end = self.log.log_start_offset, self.log.flushed_end
            self.directory.delete_records(self.log, start + rng.randrange(max((end - start) // 8, 1)))
        self.stop.wait(0.05)

    def compact(self, rng: random.Random) -> None:
        targets = self.directory.compaction.plan(
            {ORDERS: self.log}, stable_offset_of=lambda log: log.flushed_end, now_ms=self.clock.now_ms()
        )
        if not targets:
            self.stop.wait(0.002)
            return
        cleaner = Cleaner(
            self.fs, CleanerConfig(dedupe_buffer_bytes=1 << 14), clock=self.clock, secret=rng.randbytes(16)
        )
        report = self.directory.compaction.clean(cleaner, self.log, targets[0], execute=self.in_turn, producers={})
        assert report is not None
        self.cleanings += not report.is_interrupted

    def in_turn(self, action: Callable[[], bool]) -> bool:
        with self.owner:
            return action()

    # ---------------------------------------------------------------- who reads it

    def read(self, rng: random.Random) -> None:
        """Read the log once, from its start to its end."""
        log = self.log
        wanted = dict(self.last)
        offset, expected, seen = log.log_start_offset, None, dict[bytes, int]()
        end = log.flushed_end
        while offset < end:
            try:
                result = log.read(offset, rng.choice([1, 500, 3000, 100_000]), end)
            except OffsetOutOfRangeError:
                assert log.log_start_offset > offset, f"offset {offset} is refused, but not below the start"
                self.out_of_range += 1
                offset, expected = log.log_start_offset, None
                continue
            assert result is not None
            assert result.next_offset > offset, f"a reader stands still at {offset}"
            for span in split_batches(result.records):
                for record in decode_batch(result.records, span.position, start_offset=offset):
                    assert record.offset >= offset
                    assert expected is None or record.offset >= expected, f"{record.offset} again, after {expected}"
                    if expected is not None and record.offset > expected:
                        assert log.config.cleanup_compact, f"a gap: {record.offset} after {expected - 1}"
                        self.jumps += 1
                    expected = record.offset + 1
                    assert record.key is not None
                    seen[record.key] = record.offset
            offset = result.next_offset
        for key, last in wanted.items():
            # A roll makes records durable too. A newer value after the end of the pass may have replaced a record that
            # a roll made durable.
            assert seen.get(key, -1) >= last or last < log.log_start_offset or self.latest[key] >= end, (
                f"the last value of {key!r}, at {last}, was not read: {seen.get(key)}"
            )
        self.passes += 1
        if rng.random() < 0.3:  # by time, too
            log.offset_for_timestamp(self.clock.now_ms() - rng.randrange(2000), end)
            log.offset_of_max_timestamp(end)


@pytest.mark.parametrize("files_max", [1000, 2])
@pytest.mark.parametrize("config", [DELETE, COMPACT, BOTH], ids=["delete", "compact", "compact,delete"])
def test_readers_see_every_record_that_is_left_in_order(
    tmp_path: Path, config: LogConfig, files_max: int, seed: int
) -> None:
    world = ShrinkingLogWorld(str(tmp_path / "data"), DescriptorCache(RealFileSystem(), files_max), config, seed)
    compacts = config.cleanup_compact

    def enough() -> bool:
        if world.passes < 2 * READERS or world.log.log_start_offset == 0:
            return False
        if compacts and (world.cleanings < 4 or world.jumps == 0):
            return False
        return not config.cleanup_delete or world.shrunk > 3

    cleaners = [world.compact] if compacts else []
    world.run(world.produce, world.delete_records, world.retain, *cleaners, *[world.read] * READERS, until=enough)
    if not enough():
        raise NotInTimeError(f"not enough in 40 s: {vars(world)}")
    assert compacts or world.jumps == 0
    assert not world.directory.compaction.uncleanable
    world.directory.remove_deleted(everything=True)
    left = sorted(path.name for path in (tmp_path / "data" / "orders-0").iterdir())
    assert not [name for name in left if name.endswith((".deleted", ".cleaned", ".swap"))]
