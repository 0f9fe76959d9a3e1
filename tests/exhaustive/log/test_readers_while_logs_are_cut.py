"""Reads, searches by time, a scrubber and a cleaner run in threads while the log is appended to and truncated. A reader
inside a truncation gets OffsetNotAvailableError, no reader reports damage, and no cached state survives a
truncation."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_core.clock import SystemClock
from headrace_core.errors import (
    CorruptLogError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import LogConfig, LogDirectory, format_directory
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.log.files import RealFileSystem
from headrace_core.log.scrubbing import scrub_segment
from headrace_core.records import encode_batch
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.log_world import ORDERS, TOPIC_ID

SECONDS = 2.0
DELETE = LogConfig(segment_bytes=1500, index_interval_bytes=200, segment_index_bytes=200)
COMPACT = replace(DELETE, cleanup_delete=False, cleanup_compact=True, min_dirty_ratio=0.01)


@pytest.fixture(autouse=True)
def threads_that_alternate() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class CutLogWorld:
    def __init__(self, root: str, config: LogConfig, seed: int) -> None:
        self.fs = DescriptorCache(RealFileSystem(), 2)
        format_directory(self.fs, root, cluster_id="c", node_id=1)
        self.clock = SystemClock()
        self.directory = LogDirectory.open(self.fs, root, clock=self.clock, config_of=lambda topic, topic_id: config)
        self.log = self.directory.create(ORDERS, TOPIC_ID, config)
        self.seed = seed
        self.owner = threading.Lock()
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.epoch = self.cuts = self.questions = self.scrubbed = 0
        self.cleaner = Cleaner(
            self.fs, CleanerConfig(dedupe_buffer_bytes=24_000, io_buffer_bytes=4096), clock=self.clock, secret=b"x" * 16
        )

    # ---------------------------------------------------------------- the owner

    def append(self, rng: random.Random) -> None:
        with self.owner:
            for _ in range(rng.randrange(1, 4)):
                now_ms = self.clock.now_ms() + rng.randrange(-500, 5)
                records = [
                    (now_ms, b"key-%d" % rng.randrange(12), b"." * rng.randrange(150), None)
                    for _ in range(rng.randrange(1, 5))
                ]
                self.log.append(encode_batch(records), self.epoch)
        self.stop.wait(0.0003)

    def truncate(self, rng: random.Random) -> None:
        with self.owner:
            end = self.log.log_end_offset
            if end > 80:
                self.directory.truncate(self.log, rng.randrange(end - 60, end))
                self.epoch += 1
                self.cuts += 1
        self.stop.wait(0.01)

    def clean(self, rng: random.Random) -> None:
        def in_turn(action: Callable[[], bool]) -> bool:
            with self.owner:
                return action()

        manager = self.directory.compaction
        for target in manager.plan(
            self.directory.logs, stable_offset_of=lambda log: log.log_end_offset, now_ms=self.clock.now_ms()
        ):
            manager.clean(self.cleaner, self.log, target, execute=in_turn, producers={})
        self.stop.wait(0.002)

    # ---------------------------------------------------------------- those beside it

    @contextlib.contextmanager
    def unless_cut(self) -> Iterator[None]:
        """An answer may be wrong if the log is truncated before the answer. The log does not know when the caller's
        request began."""
        cuts = self.log.cuts
        try:
            yield
        except OffsetNotAvailableError:
            assert self.log.cuts, "nothing was truncated"
        except (CorruptLogError, OffsetOutOfRangeError, UnknownTopicOrPartitionError):
            if self.log.cuts == cuts and cuts % 2 == 0:
                raise
        self.questions += 1

    def read(self, rng: random.Random) -> None:
        with self.unless_cut():
            end = self.log.log_end_offset
            offset = rng.randrange(end + 1)
            self.log.read(offset, rng.choice([1, 300, 5000]), end, wait=rng.random() < 0.5)

    def search(self, rng: random.Random) -> None:
        with self.unless_cut():
            if rng.random() < 0.7:
                asked_ms = self.clock.now_ms() - rng.choice([0, 1, 5, 50, 400])
                self.log.offset_for_timestamp(asked_ms, self.log.log_end_offset)
            else:
                self.log.offset_of_max_timestamp()

    def scrub(self, rng: random.Random) -> None:
        for segment in self.log.segments:
            with contextlib.suppress(FileNotFoundError):
                scrub_segment(
                    self.fs, self.log, segment, spend=lambda size: None, should_stop=lambda: self.stop.is_set()
                )
                self.scrubbed += 1
        self.stop.wait(0.001)

    # ---------------------------------------------------------------- all of them

    def run(self, *workers: Callable[[random.Random], None]) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(worker, random.Random(f"{self.seed} {number}")))
            for number, worker in enumerate(workers)
        ]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < SECONDS or not self.has_enough():
            if self.stop.wait(0.01) or self.failures or elapsed > 40:
                break
        self.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), f"seed {self.seed}: {thread.name} never ended"
        if self.failures:
            self.failures[0].add_note(f"seed {self.seed}")
            raise self.failures[0]
        if not self.has_enough():
            raise NotInTimeError(f"not enough in 40 s: {self.cuts=} {self.questions=} {self.scrubbed=}")

    def has_enough(self) -> bool:
        return self.cuts >= 10 and self.questions > 1000 and self.scrubbed > 10

    def _guarded(self, worker: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            while not self.stop.is_set() and not self.failures:
                worker(rng)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failures.append(error)


@pytest.mark.parametrize("config", [DELETE, COMPACT], ids=["delete", "compact"])
def test_a_log_that_is_cut_is_not_damaged(tmp_path: Path, config: LogConfig) -> None:
    world = CutLogWorld(str(tmp_path / "data"), config, seed=random.randrange(2**32))
    world.run(
        world.append, world.truncate, world.clean, world.read, world.read, world.search, world.scrub, world.search
    )
    assert not world.directory.compaction.uncleanable, f"seed {world.seed}"
    world.directory.close()


def test_a_reader_that_made_the_indexes_anew_does_not_put_back_what_a_cut_took(tmp_path: Path) -> None:
    """A failure that was seen once: a reader loaded the entries again between the truncation of the indexes and that of
    the log. The truncation then searched for the log's end after the real end, and failed with CorruptLogError."""
    world = CutLogWorld(str(tmp_path / "data"), replace(DELETE, segment_bytes=1 << 20), seed=1)
    rng = random.Random(1)
    while world.log.log_end_offset < 60:
        world.append(rng)
    segment = world.log.active
    is_about_to, has_cut = threading.Event(), threading.Event()
    keep = segment.index.keep_in_memory

    def keeps(entries: list[tuple[int, int]]) -> None:
        is_about_to.set()
        has_cut.wait(0.3)  # (while this is correct, the truncation waits for the reader)
        keep(entries)

    segment.index.keep_in_memory = keeps  # type: ignore[method-assign]
    reader = threading.Thread(target=segment.distrust_indexes, args=("a test",))
    reader.start()
    assert is_about_to.wait(60)
    world.directory.truncate(world.log, 20)
    has_cut.set()
    reader.join(60)
    assert world.log.log_end_offset <= 20
    assert segment.time_index.last_entry().offset < 20
    assert segment.index.loaded()[0][-1] < 20
    world.directory.truncate(world.log, 10)
    world.directory.close()
