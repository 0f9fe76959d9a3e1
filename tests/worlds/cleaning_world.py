"""A small compacted log in memory, and the steps of a cleaning."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.compaction.cleaner import Cleaner, CleaningReport, Execute
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.compaction.planning import CleanerConfig, Target
from headrace_core.log.compaction.windows import RateLimiter
from headrace_core.records import Record, decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition

ROOT = "/data"
LEDGER = TopicPartition("ledger", 0)


def at_once(action: Callable[[], bool]) -> bool:
    return action()


class Ledger:
    """A log configuration with small segments, for a compacted topic with few keys."""

    def __init__(
        self, *, partition: TopicPartition = LEDGER, fs: CrashingFileSystem | None = None, **config: Any
    ) -> None:
        self.fs = fs or CrashingFileSystem()
        self.partition = partition
        self.clock = ManualClock(1_700_000_000_000)
        self.directory = f"{ROOT}/{partition}"
        if fs is None:
            self.fs.mkdir(ROOT)
        self.fs.mkdir(self.directory)
        self.fs.sync_directory("/")
        self.fs.sync_directory(ROOT)
        settings = {
            "segment_bytes": 1000,
            "index_interval_bytes": 100,
            "cleanup_compact": True,
            "delete_retention_ms": 1000,
        }
        self.config = LogConfig(**(settings | config))
        self.log = self.open()

    def open(self, fs: CrashingFileSystem | None = None, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            fs or self.fs,
            self.directory,
            self.partition,
            self.config,
            clock=self.clock,
            rng=random.Random(1),
            recovery_point=recovery_point,
        )

    def put(self, *pairs: tuple[str, str | None]) -> int:
        records = [
            (self.clock.now_ms(), key.encode(), None if value is None else value.encode(), None) for key, value in pairs
        ]
        return self.log.append(encode_batch(records), 0).base_offset

    def fill(self, count: int, keys: int = 5) -> None:
        """Append ``count`` records, one per batch, then roll to a new active segment with one more record."""
        for number in range(count):
            self.put((f"key-{number % keys}", f"value {number} " + "." * 60))
        self.log.roll()
        self.put(("active", "stays"))
        self.log.flush()

    def manager(self) -> CleanerManager:
        return CleanerManager(self.fs, ROOT)

    def target(self, manager: CleanerManager | None = None) -> Target:
        (found,) = (manager or self.manager()).plan(
            {self.partition: self.log},
            stable_offset_of=lambda log: log.log_end_offset,
            now_ms=self.clock.now_ms(),
        )
        return found

    def cleaner(self, limiter: RateLimiter | None = None, **config: Any) -> Cleaner:
        settings = {"dedupe_buffer_bytes": 1 << 14, "io_buffer_bytes": 512}
        return Cleaner(
            self.fs, CleanerConfig(**(settings | config)), clock=self.clock, secret=bytes(16), limiter=limiter
        )

    def clean(
        self,
        manager: CleanerManager | None = None,
        execute: Execute = at_once,
        cleaner: Cleaner | None = None,
        **more: Any,
    ) -> CleaningReport:
        manager = manager or self.manager()
        report = manager.clean(
            cleaner or self.cleaner(),
            self.log,
            self.target(manager),
            execute=execute,
            producers={},
            **more,
        )
        assert report is not None
        return report

    def records(self, max_bytes: int = 1 << 20) -> list[Record]:
        """All batches of the log, read with ``read``."""
        return read_on(self.log, self.log.log_start_offset, max_bytes)

    def values(self) -> dict[str, str]:
        return {record.key.decode(): (record.value or b"").decode().rstrip(". ") for record in self.records()}


def read_on(log: PartitionLog, offset: int, max_bytes: int) -> list[Record]:
    """The records that a consumer gets from ``offset`` to the log end; checks that offsets ascend and every read makes
    progress."""
    found: list[Record] = []
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes)
        assert result is not None
        assert result.next_offset > offset
        for span in split_batches(result.records):
            found += decode_batch(result.records, span.position, start_offset=offset)
        offset = result.next_offset
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return found
