"""The power fails after an append and before its flush, so any of the written blocks may be on disk. A partly written
append that ends at any block border does not count as damage. The log opens with the flushed records."""

from __future__ import annotations

import itertools
import random
import uuid

import pytest

from headrace_core.log import LogConfig, LogDirectory, format_directory
from headrace_core.records import encode_batch
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import BLOCK_BYTES, CrashingFileSystem
from headrace_core.types import TopicPartition

ROOT = "/data"
ORDERS = TopicPartition("orders", 0)
PATH = f"{ROOT}/orders-0/{0:020}.log"
NOW_MS = 1_700_000_000_000
#: The number is so large that the second last byte of the next batch's base offset is not zero.
FLUSHED_RECORDS = 300
#: The settings of a broker's logs, and those of a voter's metadata log. In a metadata log, a complete but wrong batch
#: is no torn tail.
CONFIGS = {"broker": LogConfig(), "voter": LogConfig(refuse_whole_tail=True)}


def open_directory(fs: CrashingFileSystem, config: LogConfig) -> LogDirectory:
    return LogDirectory.open(
        fs, ROOT, clock=ManualClock(NOW_MS), config_of=lambda topic, topic_id: config, rng=random.Random(1)
    )


def batch_of(count: int, size: int) -> bytes:
    """A batch of ``count`` records and ``size`` bytes. If the length of the value needs one byte less than planned, the
    key gets one more byte."""
    for key in (b"", b"k", b"kk"):
        records: list[tuple[int, bytes, bytes, list[tuple[str, bytes]]]] = [(NOW_MS, key, b"", [])] * count
        missing = size - len(encode_batch(records))
        for shorter in range(6):
            records[-1] = (NOW_MS, key, b"\xab" * (missing - shorter), [])
            data = encode_batch(records)
            if len(data) == size:
                return data
    raise AssertionError(f"no batch has {size} bytes")


def written(config: LogConfig, before: int, behind: int) -> tuple[CrashingFileSystem, int, bytes]:
    """Create a log of three batches. The first batch is flushed and ends ``before`` bytes before a block border. The
    second batch ends ``behind`` bytes after the next border (before the border, if negative), and the third follows.
    Return the number of flushed bytes and the content of the file."""
    fs = CrashingFileSystem(keep_trace=False)
    format_directory(fs, ROOT, cluster_id="c", node_id=1)
    log = open_directory(fs, config).create(ORDERS, uuid.UUID(int=1), config)
    flushed = 3 * BLOCK_BYTES - before
    log.append(batch_of(FLUSHED_RECORDS, flushed), 0)
    log.flush()
    log.append(batch_of(1, before + BLOCK_BYTES + behind), 0)
    log.append(batch_of(1, 200), 0)
    data = fs.files()[PATH]
    fs.crash()
    assert len(fs.files()[PATH]) == flushed
    return fs, flushed, data


BORDERS = [*((each, 700) for each in range(1, 17)), *((700, each) for each in range(-16, 17))]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("is_last", [True, False], ids=["at the end", "before a sound one"])
@pytest.mark.parametrize(("before", "behind"), BORDERS)
def test_an_append_of_which_only_some_blocks_arrived_is_a_torn_tail(
    before: int, behind: int, is_last: bool, kind: str
) -> None:
    """From the simulator's seed 3515: six bytes after the border were lost, and the voter reported the batch as
    damaged."""
    config = CONFIGS[kind]
    fs, flushed, data = written(config, before, behind)
    second_end = 4 * BLOCK_BYTES + behind
    data = data[:second_end] if is_last else data
    borders = range(flushed // BLOCK_BYTES * BLOCK_BYTES, len(data), BLOCK_BYTES)
    for lost in itertools.chain.from_iterable(itertools.combinations(borders, n) for n in range(len(borders) + 1)):
        left = bytearray(data)
        for border in lost:
            start, end = max(border, flushed), min(border + BLOCK_BYTES, len(data))
            left[start:end] = bytes(end - start)
        fs.replace(PATH, bytes(left))
        directory = open_directory(fs.crash_clone(), config)
        assert ORDERS not in directory.quarantined, f"lost at {lost}: {directory.quarantined[ORDERS].message}"
        log = directory.logs[ORDERS]
        kept = FLUSHED_RECORDS + (left[:second_end] == data[:second_end])
        kept += left == data and not is_last
        assert log.log_end_offset == kept, f"lost at {lost}"


@pytest.mark.parametrize("behind", range(1, 17))
def test_a_flipped_bit_is_no_lost_block_where_a_batch_ends_behind_a_border(behind: int) -> None:
    """In the metadata log, recovery never truncates acknowledged entries, even if only a few of their bytes are in the
    last block."""
    config = CONFIGS["voter"]
    fs, flushed, data = written(config, 700, behind)
    end = 4 * BLOCK_BYTES + behind
    for position in (flushed + 21, flushed + 100, end - behind - 1, end - 1):
        rotten = bytearray(data[:end])
        rotten[position] ^= 4
        fs.replace(PATH, bytes(rotten))
        assert ORDERS in open_directory(fs.crash_clone(), config).quarantined, f"byte {position} of {end}"
