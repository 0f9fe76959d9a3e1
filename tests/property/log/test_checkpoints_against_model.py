"""A directory's checkpoints against a plain model: partitions are created, deleted and created again, and the power
fails at any point.

The model knows the durable state of each partition, and the operation in progress when the power failed. After the
start, each value is the old value or the new value. A re-created log has no state of the deleted log with the same
name.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_core.log import LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.types import TopicPartition
from tests.worlds.this_process import examples

ROOT = "/data"
CONFIG = LogConfig(segment_bytes=400)
PARTITIONS = [TopicPartition(topic, number) for topic in ("orders", "a.b-1") for number in range(2)]
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")

partitions = st.sampled_from(PARTITIONS)


@dataclass
class Known:
    """The durable state of a partition. After a power failure, each value may also be the value that the interrupted
    operation writes."""

    topic_id: uuid.UUID
    end: int = 0
    flushed: int = 0
    start: int = 0
    high_watermark: int = 0
    may_be: dict[str, int] = field(default_factory=dict)


class CheckpointMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = CrashingFileSystem(keep_trace=False)
        self.clock = ManualClock(1_700_000_000_000)
        self.model: dict[TopicPartition, Known] = {}
        self.gone: set[TopicPartition] = set()
        self.made = 0
        format_directory(self.fs, ROOT, cluster_id="c", node_id=1)
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory.open(
            self.fs, ROOT, clock=self.clock, config_of=lambda topic, topic_id: CONFIG, rng=self.rng
        )
        assert not self.directory.quarantined

    # ---------------------------------------------------------------- what is done, whole or not

    def doing(self, action: Callable[[], object], *, crash: int | None, loss: Loss) -> bool:
        """Run the operation, and return whether it completed. With ``crash``, the power fails at the file operation of
        this number."""
        if crash is None:
            action()
            return True
        self.fs.crash_at(self.fs.operations + crash)
        try:
            action()
        except SimulatedCrash:
            self.fs.crash(self.rng, loss)
            return False
        self.fs.crash_after = None
        return True

    crashes = st.none() | st.integers(0, 25)
    losses = st.sampled_from(Loss)

    @rule(partition=partitions, crash=crashes, loss=losses)
    def create(self, partition: TopicPartition, crash: int | None, loss: Loss) -> None:
        if partition in self.model:
            return
        self.made += 1
        topic_id = uuid.UUID(int=self.made)
        done = self.doing(lambda: self.directory.create(partition, topic_id, CONFIG), crash=crash, loss=loss)
        if done:
            self.model[partition] = Known(topic_id)
            return
        self.open()
        found = self.directory.logs.get(partition)
        if found is not None:
            assert found.topic_id in (None, topic_id), "a log that was deleted is back"
            self.directory.create(partition, topic_id, CONFIG)  # the start completes a creation that was interrupted
            self.model[partition] = Known(topic_id)
        self.check_all()

    @rule(partition=partitions, crash=crashes, loss=losses)
    def delete(self, partition: TopicPartition, crash: int | None, loss: Loss) -> None:
        if partition not in self.model:
            return
        if self.doing(lambda: self.directory.delete(partition), crash=crash, loss=loss):
            del self.model[partition]
            return
        self.open()
        if partition not in self.directory.logs:
            del self.model[partition]
        self.check_all()

    @rule(partition=partitions, loss=losses)
    def make_anew(self, partition: TopicPartition, loss: Loss) -> None:
        """Write checkpoints with the log, replace the log by another one of the same name, and let the power fail."""
        if partition not in self.model:
            return
        for known, log in zip(self.model.values(), map(self.directory.logs.get, self.model), strict=True):
            assert log is not None
            known.flushed = log.flush()
        self.directory.write_recovery_points()
        self.directory.delete(partition)
        self.made += 1
        self.model[partition] = Known(uuid.UUID(int=self.made))
        self.directory.create(partition, self.model[partition].topic_id, CONFIG)
        self.lose_power(loss)

    @rule(partition=partitions, count=st.integers(1, 9), size=st.integers(1, 60), flush=st.booleans())
    def append(self, partition: TopicPartition, count: int, size: int, flush: bool) -> None:
        known = self.model.get(partition)
        if known is None:
            return
        log = self.directory.logs[partition]
        for _ in range(count):
            known.end = log.append(encode_batch([(5, None, b"x" * size, None)]), 0).next_offset
        if flush:
            log.flush()
        known.flushed = max(known.flushed, log.flushed_end)

    @rule(partition=partitions, share=st.floats(0, 1), crash=crashes, loss=losses)
    def delete_records(self, partition: TopicPartition, share: float, crash: int | None, loss: Loss) -> None:
        known = self.model.get(partition)
        if known is None:
            return
        log = self.directory.logs[partition]
        known.flushed = log.flush()
        before = int(known.end * share)
        if self.doing(lambda: self.directory.delete_records(log, before), crash=crash, loss=loss):
            known.start = max(known.start, before)
            return
        known.may_be["start"] = max(known.start, before)
        self.restarted()

    @rule(partition=partitions, share=st.floats(0, 1), crash=crashes, loss=losses)
    def truncate(self, partition: TopicPartition, share: float, crash: int | None, loss: Loss) -> None:
        known = self.model.get(partition)
        if known is None:
            return
        log = self.directory.logs[partition]
        offset = max(int(known.end * share), known.start)
        known.flushed = min(log.flush(), offset)
        if self.doing(lambda: self.directory.truncate(log, offset), crash=crash, loss=loss):
            known.end = min(known.end, offset)
            known.start = min(known.start, known.end)
            known.high_watermark = min(known.high_watermark, known.end)
            return
        known.may_be["high watermark"] = min(known.high_watermark, offset)
        self.restarted()

    @rule(share=st.floats(0, 1), crash=crashes, loss=losses)
    def write_high_watermarks(self, share: float, crash: int | None, loss: Loss) -> None:
        offsets = {partition: int(known.flushed * share) for partition, known in self.model.items()}
        if self.doing(lambda: self.directory.write_high_watermarks(offsets), crash=crash, loss=loss):
            for partition, offset in offsets.items():
                self.model[partition].high_watermark = offset
            return
        for partition, offset in offsets.items():
            self.model[partition].may_be["high watermark"] = offset
        self.restarted()

    @rule(crash=crashes, loss=losses)
    def write_recovery_points(self, crash: int | None, loss: Loss) -> None:
        if not self.doing(self.directory.write_recovery_points, crash=crash, loss=loss):
            self.restarted()

    @rule(crash=crashes, loss=losses)
    def stop(self, crash: int | None, loss: Loss) -> None:
        """A clean stop, or a stop during which the power fails, and then a start."""
        if self.doing(lambda: self.directory.close(broker_epoch=3), crash=crash, loss=loss):
            for known in self.model.values():
                known.flushed = known.end
            self.open()
            assert self.directory.clean_shutdown_epoch == 3
            self.check_all()
        else:
            self.restarted()

    @rule(loss=losses)
    def lose_power(self, loss: Loss) -> None:
        self.fs.crash(self.rng, loss)
        self.restarted()

    @rule(crash=st.integers(0, 40), loss=losses)
    def lose_power_twice(self, crash: int, loss: Loss) -> None:
        """The power fails a second time, during the start."""
        self.fs.crash(self.rng, loss)
        if self.doing(self.open, crash=crash, loss=loss):
            self.check_all()
        else:
            self.restarted()

    @precondition(lambda self: self.model)
    @rule(name=st.sampled_from(CHECKPOINTS), data=st.binary(max_size=12))
    def damage(self, name: str, data: bytes) -> None:
        """Without its checkpoint, a log starts from a safe value, and no other state is lost."""
        for log in self.directory.logs.values():
            log.flush()
        self.directory.close(clean=False)
        self.fs.crash(self.rng, Loss.NONE)
        self.fs.replace(f"{ROOT}/{name}", data)
        for known in self.model.values():
            known.flushed = known.end
            known.may_be |= {"high watermark": 0} if "replication" in name else {}
        self.restarted(log_starts_lost="log-start" in name)

    # ---------------------------------------------------------------- what holds then

    def restarted(self, *, log_starts_lost: bool = False) -> None:
        self.open()
        self.check_all(log_starts_lost=log_starts_lost)

    def check_all(self, *, log_starts_lost: bool = False) -> None:
        assert set(self.directory.logs) == set(self.model)
        for partition, known in self.model.items():
            self.check(partition, self.directory.logs[partition], known, log_starts_lost)

    def check(self, partition: TopicPartition, log: PartitionLog, known: Known, log_starts_lost: bool) -> None:
        assert log.topic_id == known.topic_id
        assert known.flushed <= log.log_end_offset <= known.end, f"{partition}: {known}, ends at {log.log_end_offset}"
        starts = {known.start, known.may_be.get("start", known.start)}
        if known.end < known.start or log_starts_lost:
            starts |= {log.segments[0].base_offset}  # without the checkpoint: where the files begin
        assert min(log.log_start_offset, log.log_end_offset) in {min(start, log.log_end_offset) for start in starts}, (
            f"{partition}: {known}, starts at {log.log_start_offset}"
        )
        marks = {known.high_watermark, known.may_be.get("high watermark", known.high_watermark)}
        assert self.directory.high_watermark(partition) in marks | {min(mark, log.log_end_offset) for mark in marks}
        known.end = known.flushed = log.log_end_offset
        known.start = log.log_start_offset
        known.high_watermark = self.directory.high_watermark(partition)
        known.may_be.clear()

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        assert set(self.directory.logs) == set(self.model)
        for partition, known in self.model.items():
            log = self.directory.logs[partition]
            assert (log.log_start_offset, log.log_end_offset) == (known.start, known.end), partition


CheckpointMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)


class TestCheckpointsAgainstModel(CheckpointMachine.TestCase):  # type: ignore[misc, name-defined]
    def setUp(self) -> None:
        logging.disable(logging.ERROR)  # each damaged checkpoint is logged
        self.addCleanup(logging.disable, logging.NOTSET)
