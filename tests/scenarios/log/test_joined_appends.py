"""Joined appends: batches of several producers in one append end as if each had been appended alone."""

from __future__ import annotations

import errno
import random

import pytest

from headrace_core.errors import DiskFullError, HeadraceError, OutOfOrderSequenceNumberError, RecordTooLargeError
from headrace_core.log import Append, AppendInfo, LogConfig, PartitionLog
from headrace_core.records import read_header
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TimestampType
from tests.worlds.log_world import (
    NOW_MS,
    TINY,
    append_to,
    begun,
    idempotent,
    log_files,
    marker,
    transactional,
)


def joined(*batches: bytes, leader_epoch: int = 0) -> Append:
    return Append(
        data=bytearray(b"".join(batches)),
        leader_epoch=leader_epoch,
        headers=[read_header(each) for each in batches],
        joined=True,
    )


def alone(*batches: bytes, leader_epoch: int = 0) -> list[Append]:
    return [Append(data=each, leader_epoch=leader_epoch, headers=[read_header(each)]) for each in batches]


def outcomes_of(log: PartitionLog, append: Append) -> list[AppendInfo | HeadraceError]:
    """The outcomes of the batches of a joined append, whether they were joined in the end or not."""
    (outcome,) = log.append_many([append])
    assert append.headers is not None
    if isinstance(outcome, list):
        assert len(outcome) == len(append.headers)
        return outcome
    if isinstance(outcome, HeadraceError):
        return [outcome] * len(append.headers)
    found: list[AppendInfo | HeadraceError] = []
    offset = outcome.base_offset
    for header in append.headers:
        found.append(
            AppendInfo(
                offset,
                offset + header.record_count,
                -1,
                header.size,
                outcome.log_start_offset,
                header.max_timestamp_ms,
            )
        )
        offset += header.record_count
    assert offset == outcome.next_offset
    return found


def logs_in(fs: CrashingFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in log_files(fs).items() if "orders" in path}


def said(outcomes: list[AppendInfo | HeadraceError]) -> list[object]:
    return [str(each) if isinstance(each, HeadraceError) else each for each in outcomes]


CONFIGS = {
    "large segments": LogConfig(),
    "an index entry for each batch": LogConfig(index_interval_bytes=1),
    "tiny segments": TINY,
    "segments of a few batches": LogConfig(segment_bytes=300),
    "segments of a minute": LogConfig(segment_ms=60_000, index_interval_bytes=120),
    "small batches only": LogConfig(message_bytes_max=85),
}


def passes(rng: random.Random) -> list[tuple[int, list[bytes]]]:
    """Leader epoch and batches of each pass: batches with and without producers, some repeated, out of order, of an
    older producer epoch or too large, and some of a deposed leader."""
    sequences = dict.fromkeys(range(5), 0)
    sent: list[bytes] = []
    made, now_ms, leader_epoch = [], NOW_MS, 0
    for _ in range(8):
        batches = []
        leader_epoch += rng.random() < 0.2
        for _ in range(rng.randint(1, 9)):
            now_ms += rng.choice((0, 1, 20_000, -5_000))
            producer, count, chance = rng.choice((-1, *sequences)), rng.randint(1, 3), rng.random()
            if chance < 0.15 and sent:
                batches.append(rng.choice(sent[-12:]))
                continue
            sequence = sequences.get(producer, 0) + (7 if chance > 0.9 else 0)
            batches.append(idempotent(producer, sequence, count, timestamp_ms=now_ms, epoch=int(chance < 0.85)))
            if producer >= 0 and chance < 0.85:
                sequences[producer] = sequence + count
            sent.append(batches[-1])
        made.append((leader_epoch - (rng.random() < 0.1), batches))
    return made


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", range(25))
def test_joined_appends_leave_the_log_that_separate_appends_leave(seed: int, config: LogConfig) -> None:
    fs, _, log = begun(config)
    other_fs, _, other = begun(config)
    for epoch, batches in passes(random.Random(seed)):
        found = outcomes_of(log, joined(*batches, leader_epoch=epoch))
        assert said(found) == said(other.append_many(alone(*batches, leader_epoch=epoch)))
    assert log.producers.snapshot() == other.producers.snapshot()
    log.flush()
    other.flush()
    assert logs_in(fs) == logs_in(other_fs)


def test_a_topic_whose_settings_changed_since_the_check_is_obeyed() -> None:
    _, _, log = begun()
    late = joined(idempotent(-1, 0), idempotent(-1, 0, 3))
    assert late.headers is not None
    log.reconfigure(LogConfig(message_bytes_max=late.headers[1].size - 1))
    first, second = outcomes_of(log, late)
    assert isinstance(first, AppendInfo)
    assert isinstance(second, RecordTooLargeError)
    log.reconfigure(LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    times = [
        each.log_append_time_ms
        for each in outcomes_of(log, joined(*[idempotent(-1, 0)] * 2))
        if isinstance(each, AppendInfo)
    ]
    assert len(times) == 2
    assert min(times) >= 0


def test_a_batch_out_of_order_fails_alone() -> None:
    _, _, log = begun()
    append_to(log, idempotent(1, 0))
    found = outcomes_of(log, joined(idempotent(2, 0), idempotent(1, 5), idempotent(-1, 0, 3)))
    assert isinstance(found[0], AppendInfo)
    assert isinstance(found[1], OutOfOrderSequenceNumberError)
    assert isinstance(found[2], AppendInfo)
    assert (found[0].base_offset, found[2].base_offset, log.log_end_offset) == (1, 2, 5)


def test_two_batches_of_one_producer_are_joined_in_their_order() -> None:
    _, _, log = begun()
    (outcome,) = log.append_many([joined(idempotent(1, 0, 2), idempotent(1, 2, 3))])
    assert isinstance(outcome, AppendInfo)
    assert (outcome.base_offset, outcome.next_offset) == (0, 5)
    entry = log.producers.get(1)
    assert entry is not None
    assert [batch.last_offset for batch in entry.batches] == [1, 4]


def test_repeated_batches_get_their_first_offsets() -> None:
    _, _, log = begun()
    append_to(log, idempotent(1, 0, 2))
    append_to(log, idempotent(2, 0, 2))
    found = outcomes_of(log, joined(idempotent(2, 0, 2), idempotent(1, 0, 2)))
    assert [(each.base_offset, each.is_duplicate) for each in found if isinstance(each, AppendInfo)] == [
        (2, True),
        (0, True),
    ]
    assert log.log_end_offset == 4


def test_a_batch_that_is_not_in_its_producers_open_transaction_fails_alone() -> None:
    _, _, log = begun()
    append_to(log, transactional(1, 0))
    found = outcomes_of(log, joined(idempotent(1, 1), idempotent(2, 0)))
    assert isinstance(found[0], HeadraceError)
    assert isinstance(found[1], AppendInfo)
    append_to(log, marker(1, 1))
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset == 3


def test_a_full_disk_refuses_all_and_takes_their_producers_back() -> None:
    fs, _, log = begun()
    append_to(log, idempotent(1, 0))
    batches = (idempotent(1, 1), idempotent(2, 0))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    found = outcomes_of(log, joined(*batches))
    assert [type(each) for each in found] == [DiskFullError, DiskFullError]
    assert log.log_end_offset == 1
    assert log.producers.get(2) is None
    again = outcomes_of(log, joined(*batches))
    assert [each.base_offset for each in again if isinstance(each, AppendInfo)] == [1, 2]
