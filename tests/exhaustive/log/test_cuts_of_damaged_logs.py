"""A byte of a header is damaged while the log is in use, and then the log is truncated. The log ends at the right
offset, or it is reported as damaged and not truncated. The log never ends at a wrong offset. In the simulator's seed
4945, a voter's log ended seven entries too early."""

from __future__ import annotations

import random
import uuid

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log import LogConfig, LogDirectory, format_directory
from headrace_core.records import HEADER_BYTES, encode_batch, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from headrace_core.types import FlushPolicy
from tests.worlds.damage_world import NOW_MS, ORDERS, ROOT

#: A log of one segment with few index entries, as the metadata log has, and a log of several segments with every batch
#: in the index.
SHAPES = {
    "one segment": LogConfig(flush=FlushPolicy.OS),
    "several": LogConfig(segment_bytes=420, index_interval_bytes=1, segment_index_bytes=1200, flush=FlushPolicy.OS),
}


def opened(fs: CrashingFileSystem, config: LogConfig) -> LogDirectory:
    return LogDirectory.open(
        fs, ROOT, clock=ManualClock(NOW_MS), config_of=lambda topic, topic_id: config, rng=random.Random(1)
    )


def log_of_eleven_batches(config: LogConfig) -> tuple[CrashingFileSystem, list[int]]:
    """The log after a clean stop, and the end position of each batch."""
    fs = CrashingFileSystem(keep_trace=False)
    format_directory(fs, ROOT, cluster_id="c", node_id=1)
    directory = opened(fs, config)
    log = directory.create(ORDERS, uuid.UUID(int=1), config)
    ends = []
    for number in range(11):
        records = [(NOW_MS + number, None, b"%d.%d" % (number, each), []) for each in range(1 + number % 3)]
        log.append(encode_batch(records), 1 + number // 4)
        ends.append(log.log_end_offset)
    directory.close()
    return fs, ends


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut_at", [3, 5, 9])
def test_a_cut_is_right_or_refused_whichever_byte_of_a_header_rots(shape: str, cut_at: int) -> None:
    config = SHAPES[shape]
    fs, ends = log_of_eleven_batches(config)
    refused = done = 0
    for path, data in fs.files().items():
        if not path.endswith(".log"):
            continue
        for span in split_batches(data):
            for position in range(span.position, span.position + HEADER_BYTES):
                damaged = fs.crash_clone(loss=Loss.NONE)
                directory = opened(damaged, config)
                log = directory.logs[ORDERS]
                damaged.flip(path, position, (0x01, 0x80, 0xFF, 0x10, 0x02)[position % 5])
                before = damaged.files()[path]
                what = f"byte {position} of {path}"
                try:
                    directory.truncate(log, ends[cut_at])
                except CorruptLogError:
                    refused += 1
                    assert log.log_end_offset == ends[-1], what
                    assert damaged.files()[path] == before, what
                else:
                    done += 1
                    assert log.log_end_offset == ends[cut_at], what
    assert refused > 40, "at least what is next to the cut is looked at"
    assert done
