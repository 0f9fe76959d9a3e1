"""Clean a log on a real disk and report speed and memory: for test_compaction_of_a_gigabyte, or by hand:

    python tests/exhaustive/log/gigabyte.py DIRECTORY [RECORDS] [MAP_BYTES] [KEYS]

The program writes the log (unless it exists), cleans it until no dirty records are left, and prints one JSON object.
Peak RSS covers only the cleaning, because a separate process writes the log.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, PartitionLog, RealFileSystem
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.records import BatchBuilder
from headrace_core.types import TopicPartition

PARTITION = TopicPartition("gigabyte", 0)
CONFIG = LogConfig(segment_bytes=256 << 20, cleanup_compact=True, min_dirty_ratio=0.0)
VALUE_BYTES = 90
BATCH_BYTES = 64 * 1024


def rss_kib_max() -> int:
    """VmHWM of this program. (ru_maxrss would include the parent's value if that is larger.)"""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def open_log(root: Path) -> PartitionLog:
    directory = root / str(PARTITION)
    directory.mkdir(parents=True, exist_ok=True)
    return PartitionLog.open(RealFileSystem(), str(directory), PARTITION, CONFIG, clock=SystemClock())


def write(root: Path, records: int, keys: int) -> None:
    """``keys`` different keys of 8 bytes, in an order that is bad for hash tables."""
    log = open_log(root)
    builder = BatchBuilder(BATCH_BYTES)
    value = random.Random(1).randbytes(VALUE_BYTES)
    now_ms = SystemClock().now_ms()
    step = 7_368_787
    for start in range(0, records, 10_000):
        part = [
            ((number * step % keys).to_bytes(8, "big"), value) for number in range(start, min(start + 10_000, records))
        ]
        done = 0
        while done < len(part):
            done = builder.append_many(part, done, now_ms)
            if done < len(part):
                log.append(builder.build(), 0)
    if builder.count:
        log.append(builder.build(), 0)
    log.roll()
    log.close()


def clean(root: Path, map_bytes: int) -> dict[str, float]:
    log = open_log(root)
    fs = RealFileSystem()
    size = log.size_bytes
    manager = CleanerManager(fs, str(root))
    cleaner = Cleaner(fs, CleanerConfig(dedupe_buffer_bytes=map_bytes), clock=SystemClock(), secret=os.urandom(16))
    rounds, read, written, kept = 0, 0, 0, 0
    cpu, started = time.process_time(), time.perf_counter()
    while targets := manager.plan(
        {PARTITION: log},
        stable_offset_of=lambda log: log.log_end_offset,
        now_ms=SystemClock().now_ms(),
    ):
        report = manager.clean(cleaner, log, targets[0], execute=lambda action: action(), producers={})
        assert report is not None
        rounds += 1
        read += report.bytes_read
        written += report.bytes_written
        kept = report.records_kept
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "log_mib": round(size / 2**20, 1),
        "rounds": rounds,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "mib_per_s": round(size / 2**20 / seconds, 1),
        "mib_per_cpu_s": round(size / 2**20 / cpu, 1),
        "read_mib": round(read / 2**20, 1),
        "written_mib": round(written / 2**20, 1),
        "records_kept": kept,
        "rss_mib_max": round(rss_kib_max() / 1024, 1),
    }


def main() -> None:
    root = Path(sys.argv[1])
    records = int(sys.argv[2]) if len(sys.argv) > 2 else 10_050_000
    map_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else 128 << 20
    keys = int(sys.argv[4]) if len(sys.argv) > 4 else 10_000_000
    if len(sys.argv) > 5:
        write(root, records, keys)
        return
    if not root.exists():
        subprocess.run(
            [sys.executable, __file__, str(root), str(records), str(map_bytes), str(keys), "write"], check=True
        )
    print(json.dumps(clean(root, map_bytes)))


if __name__ == "__main__":
    main()
