"""The log against a plain list, under any sequence of operations including crashes. At each file operation of the log's
owner, a reader reads the log. The reader must see each record as it was before the operation or as it is after it.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_core.errors import OffsetNotAvailableError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.dump import Problem, dump
from headrace_core.log.scrubbing import scrub_segment
from headrace_core.records import Compression, decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from headrace_core.types import TopicPartition
from tests.worlds.this_process import examples

EXAMPLES = 600 if os.environ.get("HEADRACE_FULL", "0") not in ("", "0") else 120
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
        self.config = CONFIG
        self.peeks = 0
        self.open()
        self.log = self.directory.create(PARTITION, TOPIC_ID, CONFIG)

    def open(self) -> None:
        self.directory = LogDirectory.open(
            self.fs, ROOT, clock=self.clock, config_of=lambda topic, topic_id: self.config, rng=self.rng
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

    # ---------------------------------------------------------------- a reader beside the owner

    @contextmanager
    def reader_beside(self, up_to: int) -> Iterator[None]:
        """A reader that reads the offsets below ``up_to`` (the start of a batch) at each file operation of the
        owner."""
        known = {record.offset: record for record in self.records}
        is_reading = False

        def look(entry: TraceEntry) -> None:
            nonlocal is_reading
            if not is_reading:
                is_reading = True
                self.peek(known, up_to)
                is_reading = False

        self.fs.on_operation = look
        try:
            yield
        finally:
            self.fs.on_operation = None

    def peek(self, known: dict[int, Kept], up_to: int) -> None:
        if self.start_offset > up_to:
            return
        self.peeks += 1
        offset = self.rng.randint(self.start_offset, up_to)
        try:
            result = self.log.read(offset, self.rng.choice([1, 200, 10_000]), up_to, wait=self.rng.random() < 0.7)
        except OffsetOutOfRangeError:
            assert offset < self.log.log_start_offset, "a record that stays was out of range"
            return
        except (OffsetNotAvailableError, UnknownTopicOrPartitionError):
            assert self.log.cuts % 2, "only a truncation may send a reader away"
            return
        if result is None:
            return  # the read must be repeated by a thread that may wait
        found = [
            record
            for span in split_batches(result.records)
            for record in decode_batch(result.records, span.position, start_offset=offset)
        ]
        assert [record.offset for record in found] == list(range(offset, result.next_offset))
        assert offset == up_to or found, "no record where there is one"
        for record in found:
            kept = known[record.offset]
            assert (record.timestamp_ms, record.value, record.leader_epoch) == (
                kept.timestamp_ms,
                kept.value,
                kept.epoch,
            )

    # ---------------------------------------------------------------- changes

    @rule(groups=st.lists(st.lists(batches, min_size=1, max_size=3), min_size=1, max_size=3), codec=codecs)
    def append(self, groups: list[list[list[tuple[int, bytes]]]], codec: Compression) -> None:
        appends, expected, before = [], [], self.end_offset
        for group in groups:
            data = b""
            for batch in group:
                data += encode_batch([(ms, None, value, []) for ms, value in batch], compression=codec)
                base = self.end_offset
                for ms, value in batch:
                    self.records.append(Kept(self.end_offset, ms, value, self.epoch, base))
            appends.append(Append(data=data, leader_epoch=self.epoch))
            expected.append(self.end_offset)
        with self.reader_beside(before):
            outcomes = self.log.append_many(appends)
        assert [outcome.next_offset for outcome in outcomes if isinstance(outcome, AppendInfo)] == expected

    @rule()
    def flush(self) -> None:
        with self.reader_beside(self.end_offset):
            self.flushed = self.log.flush()
        assert self.flushed == self.end_offset

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        with self.reader_beside(self.end_offset):
            self.log.roll()

    @rule(
        segment_bytes=st.sampled_from([500, 900, 4000]),
        interval_bytes=st.sampled_from([0, 120, 1000]),
        index_bytes=st.sampled_from([36, 150, 1000]),
    )
    def reconfigure(self, segment_bytes: int, interval_bytes: int, index_bytes: int) -> None:
        self.config = replace(
            self.config,
            segment_bytes=segment_bytes,
            index_interval_bytes=interval_bytes,
            segment_index_bytes=index_bytes,
        )
        self.log.reconfigure(self.config)

    @rule()
    def checkpoint(self) -> None:
        self.directory.write_recovery_points()

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start_offset, self.end_offset + 1))
        with self.reader_beside(self.batch_of(offset)):
            self.directory.truncate(self.log, offset)
        self.cut(offset)
        self.flushed = min(self.flushed, self.end_offset)

    def batch_of(self, offset: int) -> int:
        """The first offset of the batch that contains this offset."""
        return next((record.batch for record in self.records if record.offset == offset), min(offset, self.end_offset))

    def cut(self, offset: int) -> None:
        """Truncation removes whole batches, also the batch that contains the offset. If the log start offset is inside
        of the removed batch, truncation empties the log, and the log start offset stays. No deleted record returns."""
        if offset >= self.end_offset:
            return
        batch = self.batch_of(offset)
        self.empty_at = batch
        self.records = [record for record in self.records if record.offset < batch]
        if self.end_offset < self.start_offset <= offset:
            self.records, self.empty_at = [], self.start_offset
        elif self.start_offset > self.end_offset:
            self.start_offset = self.end_offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.flush()  # a broker deletes below the high watermark only
        before = data.draw(st.integers(0, self.end_offset))
        start_offset = max(self.start_offset, before)
        with self.reader_beside(self.end_offset):
            assert self.directory.delete_records(self.log, before) == start_offset
        self.start_offset = start_offset

    @rule(
        retention_bytes=st.none() | st.integers(0, 4000),
        retention_ms=st.none() | st.integers(99_000, 101_500),
        data=st.data(),
    )
    def retain(self, retention_bytes: int | None, retention_ms: int | None, data: st.DataObject) -> None:
        self.flush()
        high_watermark = self.batch_of(data.draw(st.integers(self.start_offset, self.end_offset)))
        self.log.reconfigure(replace(self.config, retention_bytes=retention_bytes, retention_ms=retention_ms))
        expected = self.start_after_retention(retention_bytes, retention_ms, high_watermark)
        verdict = self.log.expired(high_watermark)
        assert (verdict.log_start_offset if verdict else self.start_offset) == expected
        with self.reader_beside(self.end_offset):
            if verdict is not None:
                assert self.directory.expire([(self.log, verdict)])
        self.start_offset = expected
        self.log.reconfigure(self.config)

    def start_after_retention(self, most_bytes: int | None, most_ms: int | None, high_watermark: int) -> int:
        """Retention checks segment by segment, from the oldest. Retention deletes a segment if its records are deleted,
        if the rest of the log still reaches the limit of bytes, or if its latest record is too old. Retention never
        deletes above the high watermark."""
        segments = self.log.segments
        ends = [*(segment.base_offset for segment in segments[1:]), self.end_offset]
        start, size = self.start_offset, sum(segment.size for segment in segments)
        rules = ["start", "size", "time"]
        for number, (segment, end) in enumerate(zip(segments, ends, strict=True)):
            is_active = number == len(segments) - 1
            if end > high_watermark or (is_active and segment.size == 0):
                break
            latest = max((r.timestamp_ms for r in self.records if segment.base_offset <= r.offset < end), default=None)
            while (
                rules
                and not {
                    "start": end <= start and not is_active,
                    "size": most_bytes is not None and size - segment.size >= most_bytes,
                    "time": most_ms is not None and (latest is None or self.clock.now_ms() - latest > most_ms),
                }[rules[0]]
            ):
                del rules[0]  # a rule ends at the first segment that it keeps; the next rule continues there
            if not rules:
                break
            size -= segment.size
            start = max(start, end)
        return start

    @rule(everything=st.booleans())
    def remove_deleted_files(self, everything: bool) -> None:
        self.clock.advance(self.rng.choice([0, 61_000]))
        with self.reader_beside(self.end_offset):
            self.directory.remove_deleted(everything=everything)

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
        assert self.log.durable_end == end

    # ---------------------------------------------------------------- questions

    @rule()
    def scrub(self) -> None:
        for segment in self.log.segments:
            found = scrub_segment(
                self.fs, self.log, segment, spend=lambda size: None, should_stop=lambda: False
            )  # a healthy log is no CorruptLogError
            assert found.size == segment.size
            assert found.index_fault is None

    @rule(data=st.data(), max_bytes=st.integers(1, 1500))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        up_to = data.draw(st.integers(self.start_offset, self.end_offset))
        offset = data.draw(st.integers(self.start_offset, self.end_offset))
        bounds = [record.batch for record in self.records if record.offset == up_to]
        up_to = bounds[0] if bounds else up_to  # high watermarks lie between batches
        result = self.log.read(offset, max_bytes, up_to)
        assert result is not None
        if offset >= up_to:
            assert (result.records, result.next_offset) == (b"", offset)
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
        problems = [str(line) for line in dump(self.log.directory, deep=True, fs=self.fs) if isinstance(line, Problem)]
        assert problems == [], problems

    def visible(self) -> list[Kept]:
        return [record for record in self.records if record.offset >= self.start_offset]

    @invariant()
    def ends_agree(self) -> None:
        assert self.log.log_start_offset == self.start_offset
        assert self.log.log_end_offset == self.end_offset
        assert self.log.flushed_end <= self.log.log_end_offset


LogMachine.TestCase.settings = settings(max_examples=examples(EXAMPLES), stateful_step_count=50, deadline=None)
TestLogAgainstModel = LogMachine.TestCase
