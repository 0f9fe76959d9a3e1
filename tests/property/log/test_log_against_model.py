"""The log against a plain list: whatever is done to it, in whatever order, crashes included."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.dump import Problem, dump
from headrace_core.records import Compression, decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import TopicPartition

ROOT = "/data"
PARTITION = TopicPartition("orders", 0)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=120, segment_index_bytes=150, segment_ms=500)

timestamps = st.integers(0, 2000).map(lambda ms: 1_600_000_000_000 + ms)
batches = st.lists(st.tuples(timestamps, st.binary(max_size=60)), min_size=1, max_size=4)
codecs = st.sampled_from([Compression.NONE, Compression.LZ4, Compression.GZIP])


@dataclass(frozen=True)
class Kept:
    """A record of the model; ``batch`` is the offset at which its batch starts."""

    offset: int
    timestamp_ms: int
    value: bytes
    epoch: int
    batch: int


class LogMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(1_600_000_100_000)
        self.fs = CrashingFileSystem(keep_trace=False)
        format_directory(self.fs, ROOT, cluster_id="c", node_id=1)
        self.records: list[Kept] = []
        self.start_offset = 0
        self.flushed = 0
        self.epoch = 0
        self.open()
        self.log = self.directory.create(PARTITION, TOPIC_ID, CONFIG)

    def open(self) -> None:
        self.directory = LogDirectory.open(
            self.fs, ROOT, clock=self.clock, config_of=lambda topic, topic_id: CONFIG, rng=self.rng
        )
        assert not self.directory.quarantined
        if PARTITION in self.directory.logs:
            self.log: PartitionLog = self.directory.logs[PARTITION]

    @property
    def end_offset(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.base

    @property
    def base(self) -> int:
        return self.empty_at

    empty_at = 0

    # ---------------------------------------------------------------- changes

    @rule(groups=st.lists(st.lists(batches, min_size=1, max_size=3), min_size=1, max_size=3), codec=codecs)
    def append(self, groups: list[list[list[tuple[int, bytes]]]], codec: Compression) -> None:
        appends, expected = [], []
        for group in groups:
            data = b""
            for batch in group:
                data += encode_batch([(ms, None, value, []) for ms, value in batch], compression=codec)
                base = self.end_offset
                for ms, value in batch:
                    self.records.append(Kept(self.end_offset, ms, value, self.epoch, base))
            appends.append(Append(data=data, leader_epoch=self.epoch))
            expected.append(self.end_offset)
        outcomes = self.log.append_many(appends)
        assert [outcome.next_offset for outcome in outcomes if isinstance(outcome, AppendInfo)] == expected

    @rule()
    def flush(self) -> None:
        self.flushed = self.log.flush()
        assert self.flushed == self.end_offset

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def checkpoint(self) -> None:
        self.directory.write_recovery_points()

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end_offset + 1))
        self.directory.truncate(self.log, offset)
        self.cut(offset)
        self.flushed = min(self.flushed, self.end_offset)

    def cut(self, offset: int) -> None:
        """Whole batches go: the one that straddles the offset too."""
        if offset >= self.end_offset:
            return
        batch = next(record.batch for record in self.records if record.offset == offset)
        self.empty_at = batch
        self.records = [record for record in self.records if record.offset < batch]
        if self.start_offset > self.end_offset:
            self.start_offset = self.end_offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.flush()  # a broker deletes below the high watermark only
        before = data.draw(st.integers(0, self.end_offset))
        self.start_offset = max(self.start_offset, before)
        assert self.directory.delete_records(self.log, before) == self.start_offset

    # ---------------------------------------------------------------- stops

    @rule()
    def stop_cleanly(self) -> None:
        self.directory.close(broker_epoch=4)
        self.open()
        assert self.directory.clean_shutdown_epoch == 4
        self.flushed = self.end_offset
        assert self.log.log_end_offset == self.end_offset

    @rule(loss=st.sampled_from(Loss))
    def crash(self, loss: Loss) -> None:
        self.fs.crash(self.rng, loss)
        self.open()
        self.recovered()

    @rule(suffix=st.sampled_from([".index", ".timeindex", "leader-epoch-checkpoint"]), garbage=st.binary(max_size=40))
    def crash_and_damage_what_can_be_rebuilt(self, suffix: str, garbage: bytes) -> None:
        self.fs.crash(self.rng, Loss.NONE)
        path = self.rng.choice([path for path in self.fs.files() if path.endswith(suffix)] or [""])
        if path:
            self.fs.replace(path, garbage)
            self.fs.replace(f"{ROOT}/recovery-point-offset-checkpoint", b"0\ntorn")
        self.open()
        self.recovered()

    def recovered(self) -> None:
        end = self.log.log_end_offset
        assert self.flushed <= end <= self.end_offset
        self.cut(end)
        assert self.end_offset == end, "a batch was cut in two"
        self.flushed = end
        assert self.log.settled_offset == end

    # ---------------------------------------------------------------- questions

    @rule(data=st.data(), max_bytes=st.integers(1, 1500))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        up_to = data.draw(st.integers(self.start_offset, self.end_offset))
        offset = data.draw(st.integers(self.start_offset, self.end_offset))
        bounds = [record.batch for record in self.records if record.offset == up_to]
        up_to = bounds[0] if bounds else up_to  # high watermarks lie between batches
        result = self.log.read(offset, max_bytes, up_to)
        assert result is not None
        if offset >= up_to:
            assert result == (b"", offset)
            return
        spans = split_batches(result.records)
        assert spans[0].base_offset <= offset <= spans[0].last_offset
        assert len(result.records) <= max_bytes or len(spans) == 1
        assert result.next_offset == spans[-1].last_offset + 1 <= up_to
        found = [
            (record.offset, record.timestamp_ms, record.value, record.leader_epoch)
            for span in spans
            for record in decode_batch(result.records, span.position, start_offset=offset)
        ]
        assert found == [
            (record.offset, record.timestamp_ms, record.value, record.epoch)
            for record in self.records
            if offset <= record.offset < result.next_offset
        ]

    @rule(timestamp_ms=timestamps)
    def find_by_time(self, timestamp_ms: int) -> None:
        found = self.log.offset_for_timestamp(timestamp_ms)
        expected = next((record for record in self.visible() if record.timestamp_ms >= timestamp_ms), None)
        assert (found and found.offset) == (expected and expected.offset)
        if found is not None and expected is not None:
            assert (found.timestamp_ms, found.leader_epoch) == (expected.timestamp_ms, expected.epoch)

    @rule()
    def find_the_latest(self) -> None:
        found = self.log.offset_of_max_timestamp()
        visible = self.visible()
        assert (found is None) == (not visible)
        if found is not None:
            assert found.timestamp_ms == max(record.timestamp_ms for record in visible)
            assert any(
                record.offset == found.offset and record.timestamp_ms == found.timestamp_ms for record in visible
            )

    @rule(epoch=st.integers(0, 6))
    def ask_for_the_end_of_an_epoch(self, epoch: int) -> None:
        found = self.log.epoch_end_offset(epoch)
        visible = self.visible()
        if not visible or epoch > visible[-1].epoch:
            return
        later = [record.offset for record in visible if record.epoch > epoch]
        assert found.end_offset == (later[0] if later else self.end_offset)

    @rule()
    def dump_finds_no_problem(self) -> None:
        self.flush()
        self.log.active.write_indexes()
        assert [
            str(line) for line in dump(self.log.directory, deep=True, fs=self.fs) if isinstance(line, Problem)
        ] == []

    def visible(self) -> list[Kept]:
        return [record for record in self.records if record.offset >= self.start_offset]

    @invariant()
    def ends_agree(self) -> None:
        assert self.log.log_start_offset == self.start_offset
        assert self.log.log_end_offset == self.end_offset
        assert self.log.flushed_offset <= self.log.log_end_offset


LogMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestLogAgainstModel = LogMachine.TestCase
