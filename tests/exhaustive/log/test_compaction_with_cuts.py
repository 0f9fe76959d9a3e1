"""Compaction while the log is shortened at both ends, against the model of test_compaction_against_model.py. A new
leader's truncation removes records that are cleaned or being cleaned, also those of open transactions. Retention
removes the oldest segments. HEADRACE_HISTORY=seed runs only one history.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from headrace_core.log.compaction.cleaner import Cleaner, CleaningReport
from headrace_core.log.producer_state import ProducerTable
from tests.worlds.compaction_world import (
    PARTITION,
    Batch,
    CompactionWorld,
    Counts,
    Known,
    batches_of,
    known_of,
    producers_of,
)

IS_FULL = os.environ.get("HEADRACE_FULL_COMPACTION", "0") not in ("", "0")
HISTORIES = 400 if IS_FULL else 5
#: Histories that found faults (test_old_producer_snapshots.py has them in short): a snapshot named a transaction whose
#: marker was compacted; a power loss took the only snapshot of a producer; a truncated log knew less than its snapshot;
#: a truncation and the start after it disagreed about open transactions.
FOUND_FAULTS = (877997752, 877997828, 877999062, 41)


class ShortenedWorld(CompactionWorld):
    """A history whose log loses records at both ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        #: All states that a producer had at some time.
        self.acknowledged: set[tuple[int, Known]] = set()

    def truncate(self) -> None:
        """Truncate the log as a follower does. The new end is any offset, and the producers' state follows from the
        rest of the log."""
        log = self.log
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        log.truncate_to(offset)
        self.is_in_snapshots_only = True
        assert log.log_start_offset <= log.log_end_offset <= offset
        ends = [batch.header.next_offset for batch in batches_of(log)]
        assert not ends or log.log_end_offset == max(ends[-1], log.log_start_offset), "what a start would find"
        self.manager.truncated(PARTITION, log.log_end_offset)
        self.history = {at: record for at, record in self.history.items() if at < log.log_end_offset}
        self.check_producers_after_a_cut()
        self.table = ProducerTable([replace(entry) for entry in log.producers], next_offset=log.log_end_offset)
        self.sequences.clear()
        self.epochs.clear()
        for entry in self.table:
            self.epochs[entry.producer_id] = entry.epoch
            last = entry.last_batch
            self.sequences[entry.producer_id] = last.last_sequence + 1 if last is not None else 0

    def append(self, data: bytes) -> None:
        super().append(data)
        self.acknowledged |= known_of(self.table).items()

    def check_producers_after_a_cut(self) -> None:
        """The log's state may include batches that a cleaning removed, because snapshots contain them. The state must
        include all existing batches. The state must not include truncated batches, or states that never existed."""
        log = self.log
        self.acknowledged = {
            (producer_id, known) for producer_id, known in self.acknowledged if known.last_offset < log.log_end_offset
        }
        found, rebuilt = known_of(log.producers), known_of(producers_of(batches_of(log)))
        acknowledged = {(producer_id, known[:3]) for producer_id, known in self.acknowledged}
        # A transaction marker is left, but compaction removed the data before the marker because of records that are
        # now truncated. From the marker, the log knows only the producer's epoch.
        acknowledged |= {(producer_id, (known.epoch, -1, -1)) for producer_id, known in self.acknowledged}
        assert {(producer_id, known[:3]) for producer_id, known in found.items()} <= acknowledged, (
            f"seed {self.seed}: the log knows what never was"
        )
        for producer_id in rebuilt.keys() - self.forgotten:
            assert producer_id in found, f"seed {self.seed}: producer {producer_id} is not known any more"
            epoch, _, last_offset, _ = rebuilt[producer_id]
            assert (found[producer_id].epoch, found[producer_id].last_offset) >= (epoch, last_offset), (
                f"seed {self.seed}: of {rebuilt[producer_id]} only {found[producer_id]} is known"
            )

    def expire(self) -> None:
        """Delete whole segments from the oldest, as retention does, but no segment of an open transaction."""
        log = self.log
        starts = [segment.base_offset for segment in log.segments if segment.base_offset <= self.stable_offset]
        # its marker was truncated, and its first records are removed, so that only the snapshots contain it
        if not starts:
            return
        log.delete_records(self.rng.choice(starts))
        log.drop_segments_below_start()

    def check_cleaned(self, before: list[Batch], report: CleaningReport) -> None:
        """When a marker is truncated, its transaction is open again, perhaps below the last stable offset of the
        producers' state. The cleaning then stops before the transaction, perhaps at once."""
        if report.segments_before:
            super().check_cleaned(before, report)
        else:
            assert [batch.raw for batch in batches_of(self.log)] == [batch.raw for batch in before]

    def clean_and_shorten(self) -> None:
        """The log is shortened before the first swap of a cleaning. The cleaning ends without changes, and no record is
        lost."""
        targets = self.manager.plan(
            {PARTITION: self.log}, stable_offset_of=lambda log: self.stable_offset, now_ms=self.clock.now_ms()
        )
        if not targets:
            return
        shortened: list[list[bytes]] = []

        def execute(action: object) -> bool:
            if not shortened:
                self.rng.choice([self.truncate, self.expire])()
                shortened.append([batch.raw for batch in batches_of(self.log)])
            return bool(action())  # type: ignore[operator]

        cleaner = Cleaner(self.fs, self.cleaner_config, clock=self.clock, secret=self.rng.randbytes(16))
        before_end = self.log.log_end_offset
        report = self.manager.clean(
            cleaner, self.log, targets[0], execute=execute, producers=self.log.producers.last_records()
        )
        self.counts.cleanings += report is not None
        assert self.log.log_end_offset <= before_end
        left = batches_of(self.log)
        for batch in left:
            for record in batch.records:
                assert record == self.history[record.offset], f"seed {self.seed}: a record changed, or is back"
        offsets = [record.offset for batch in left for record in batch.records]
        assert offsets == sorted(set(offsets))
        if report is not None and report.is_interrupted and shortened and report.segments_after == 0:
            assert [batch.raw for batch in left] == shortened[0], f"seed {self.seed}: it gave up, and changed the log"
        odd = [name for name in self.fs.listdir(self.log.directory) if name.endswith((".cleaned", ".swap"))]
        assert odd == []


def run(seed: int, counts: Counts) -> None:
    world = ShortenedWorld(seed, counts)
    for _ in range(world.rng.randrange(3, 6)):
        world.write(world.rng.randrange(10, 40))
        step = world.rng.random()
        if step < 0.3:
            world.truncate()
        elif step < 0.5:
            world.expire()
        elif step < 0.7:
            world.clean_and_shorten()
            continue
        world.clean()


@pytest.mark.timeout(1800 if IS_FULL else 120)
def test_a_cleaning_leaves_what_the_model_says_of_a_log_that_is_shortened(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    counts = Counts()
    only = os.environ.get("HEADRACE_HISTORY")
    for history in [int(only)] if only else [*FOUND_FAULTS, *range(seed, seed + HISTORIES)]:
        print(f"history: HEADRACE_HISTORY={history}")
        run(history, counts)
    print(counts)
    if not only:
        assert counts.cleanings >= HISTORIES
        assert counts.dropped > 0
