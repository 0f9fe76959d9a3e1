"""A log's state of its producers, against the batches in it, under any sequence of operations."""

from __future__ import annotations

import os
import random
import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_core.errors import CorruptLogError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.producer_state import BATCHES_KEPT, ProducerTable
from headrace_core.log.replicated import check_replicated
from headrace_core.records import BatchHeader, encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import TopicPartition
from tests.worlds.this_process import examples

EXAMPLES = 400 if os.environ.get("HEADRACE_FULL", "0") not in ("", "0") else 40
ROOT = "/data"
PARTITION = TopicPartition("orders", 0)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120, segment_index_bytes=150)
SEQUENCES = 2**31


class ProducerMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(1_600_000_100_000)
        self.fs = CrashingFileSystem(keep_trace=False)
        format_directory(self.fs, ROOT, cluster_id="c", node_id=1)
        self.epoch = 0
        self.time_ms = 1_600_000_000_000
        self.directory = self.opened()
        self.log = self.directory.create(PARTITION, uuid.UUID(int=7), CONFIG)

    def opened(self) -> LogDirectory:
        directory = LogDirectory.open(
            self.fs, ROOT, clock=self.clock, config_of=lambda topic, topic_id: CONFIG, rng=self.rng
        )
        assert not directory.quarantined
        if PARTITION in directory.logs:
            self.log: PartitionLog = directory.logs[PARTITION]
        return directory

    # ---------------------------------------------------------------- the truth

    def headers(self) -> list[BatchHeader]:
        """The headers of every batch with a producer id, in the log's order."""
        return [
            header
            for segment in self.log.segments
            for _, header in segment.places(0, segment.size)
            if header.producer_id >= 0
        ]

    def windows(self) -> dict[int, list[BatchHeader]]:
        """The last batches of each producer in its last epoch."""
        found: dict[int, list[BatchHeader]] = {}
        for header in self.headers():
            batches = found.setdefault(header.producer_id, [])
            if batches and batches[-1].producer_epoch != header.producer_epoch:
                batches.clear()
            batches.append(header)
        return {producer_id: batches[-BATCHES_KEPT:] for producer_id, batches in found.items()}

    def next_batch(self, producer_id: int, count: int, bump: bool, offset: int = 0, leader_epoch: int = -1) -> bytes:
        window = self.windows().get(producer_id)
        epoch, sequence = 0, 0
        if window:
            last = window[-1]
            epoch, sequence = last.producer_epoch, (last.base_sequence + last.last_offset_delta + 1) % SEQUENCES
        if bump:
            epoch, sequence = epoch + 1, 0
        self.time_ms += 1
        return encode_batch(
            [(self.time_ms, None, b"v", [])] * count,
            base_offset=offset,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    # ---------------------------------------------------------------- changes

    @rule(producers=st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=4))
    def append(self, producers: list[tuple[int, int, bool]]) -> None:
        for producer_id, count, bump in producers:
            if producer_id < 0:
                data = encode_batch([(self.time_ms, None, b"plain", [])] * count)
            else:
                data = self.next_batch(producer_id, count, bump and self.rng.random() < 0.3)
            self.log.append(data, self.epoch)

    @rule(producer_id=st.integers(0, 3), count=st.integers(1, 3))
    def replicate(self, producer_id: int, count: int) -> None:
        end = self.log.log_end_offset
        data = self.next_batch(producer_id, count, False, end, self.epoch)
        headers = check_replicated(
            data, log_end_offset=end, leader_epoch=self.epoch, latest_epoch=self.log.epochs.latest_epoch
        )
        append = Append(data=data, leader_epoch=self.epoch, headers=headers, replicated=True, follows=end)
        (outcome,) = self.log.append_many([append])
        assert isinstance(outcome, AppendInfo)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.directory.write_recovery_points()

    @rule(back=st.integers(0, 40))
    def truncate(self, back: int) -> None:
        self.directory.truncate(self.log, max(self.log.log_end_offset - back, 0))
        self.epoch += 1

    @rule()
    def stop_and_start(self) -> None:
        self.directory.close()
        self.directory = self.opened()

    @rule(loss=st.sampled_from(list(Loss)))
    def crash(self, loss: Loss) -> None:
        self.fs.crash(self.rng, loss)
        self.directory = self.opened()

    @rule(position=st.integers(0, 200))
    def damage_a_snapshot_and_crash(self, position: int) -> None:
        paths = [path for path, data in self.fs.files().items() if path.endswith(".snapshot") and data]
        if not paths:
            return
        path = self.rng.choice(paths)
        self.fs.flip(path, position % len(self.fs.files()[path]))
        self.fs.crash(self.rng, Loss.NONE)
        self.directory = self.opened()

    @rule(producer_id=st.integers(0, 3))
    def resend_a_whole_window(self, producer_id: int) -> None:
        end = self.log.log_end_offset
        for header in self.windows().get(producer_id, []):
            data = encode_batch(
                [(self.time_ms, None, b"v", [])] * (header.last_offset_delta + 1),
                producer_id=producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
            (outcome,) = self.log.append_many([Append(data=data, leader_epoch=self.epoch)])
            assert isinstance(outcome, AppendInfo), outcome
            assert outcome.is_duplicate
            assert (outcome.base_offset, outcome.next_offset) == (header.base_offset, header.next_offset)
        assert self.log.log_end_offset == end

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def the_table_is_that_of_the_batches_in_the_log(self) -> None:
        if not hasattr(self, "log"):
            return
        windows = self.windows()
        found = {entry.producer_id: entry for entry in self.log.producers}
        assert set(found) == set(windows)
        for producer_id, batches in windows.items():
            entry, last = found[producer_id], batches[-1]
            assert (entry.epoch, entry.last_timestamp_ms) == (last.producer_epoch, last.max_timestamp_ms)
            known = [(batch.first_sequence, batch.base_offset, batch.last_offset) for batch in entry.batches]
            truth = [(header.base_sequence, header.base_offset, header.last_offset) for header in batches]
            assert known
            assert known == truth[-len(known) :]
            assert len(known) == len(truth) or entry.is_cut_short
        assert self.log.producers.next_offset == self.log.log_end_offset

    @invariant()
    def each_snapshot_is_the_table_of_its_offset(self) -> None:
        if not hasattr(self, "log"):
            return
        for path, data in self.fs.files().items():
            if not path.endswith(".snapshot"):
                continue
            offset = int(path.rpartition("/")[2].removesuffix(".snapshot"))
            assert offset <= self.log.log_end_offset
            table = ProducerTable()
            for header in self.headers():
                if header.base_offset < offset:
                    table.appended(header)
            try:
                found = ProducerTable.from_snapshot(data, path, offset)
            except CorruptLogError:  # damaged or torn, and not read since
                continue
            scanned = {entry.producer_id: (entry.epoch, entry.last_batch) for entry in found}
            assert scanned == {entry.producer_id: (entry.epoch, entry.last_batch) for entry in table}


TestProducers = ProducerMachine.TestCase
TestProducers.settings = settings(max_examples=examples(EXAMPLES), stateful_step_count=25, deadline=None)
