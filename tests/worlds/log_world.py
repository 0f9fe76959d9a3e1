"""Common parts of the log's tests: batches with recognizable values, a log directory in memory, and a read of the whole
log."""

from __future__ import annotations

import random
import uuid

from headrace_core.log import LogConfig, LogDirectory, PartitionLog, format_directory
from headrace_core.log.descriptors import DescriptorCache
from headrace_core.records import decode_batch, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition

ROOT = "/data"
TOPIC_ID = uuid.UUID(int=0x1234)
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
NOW_MS = 1_700_000_000_000


def batch(*values: str, timestamp_ms: int = NOW_MS, pad: int = 0) -> bytes:
    """Make one uncompressed batch; record i has the timestamp ``timestamp_ms + i``."""
    return encode_batch([(timestamp_ms + i, None, value.encode() + b"." * pad, []) for i, value in enumerate(values)])


def formatted() -> CrashingFileSystem:
    """A file system with one formatted log directory, whose files are durable."""
    fs = CrashingFileSystem()
    format_directory(fs, ROOT, cluster_id="test", node_id=1)
    return fs


def open_directory(
    fs: CrashingFileSystem, config: LogConfig | None = None, clock: ManualClock | None = None
) -> LogDirectory:
    """Let every use of a log's descriptor close a descriptor of another log, if possible. The closed descriptors must
    have no visible effect."""
    chosen = config or LogConfig()
    return LogDirectory.open(
        DescriptorCache(fs, 1),
        ROOT,
        clock=clock or ManualClock(NOW_MS),
        config_of=lambda topic, topic_id: chosen,
        rng=random.Random(1),
    )


def values_of(log: PartitionLog, max_bytes: int = 1 << 20) -> list[str]:
    """Read all values of the log; check that offsets have no gap and that batches are sound."""
    values: list[str] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes)
        assert result is not None
        assert result.records, f"an empty read at {offset} of {log.log_start_offset}..{log.log_end_offset}"
        for span in split_batches(result.records):
            for record in decode_batch(result.records, span.position, start_offset=offset):
                assert record.offset == offset
                values.append((record.value or b"").decode().rstrip("."))
                offset += 1
        assert offset == result.next_offset
    return values


def log_files(fs: CrashingFileSystem) -> dict[str, bytes]:
    """The files that a second recovery must not change: all files except the lock."""
    return {path: data for path, data in fs.files().items() if not path.endswith("/.lock")}
