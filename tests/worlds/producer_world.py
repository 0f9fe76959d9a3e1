"""Common parts of the tests of producer state: idempotent batches, a list of all appends, and the expected producer
table, computed independently of the log."""

from __future__ import annotations

import random
from typing import NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.log import Append, AppendInfo, LogDirectory, PartitionLog
from headrace_core.log.producer_state import BATCHES_KEPT, ProducerTable
from headrace_core.records import encode_batch

NOW_MS = 1_700_000_000_000


class Sent(NamedTuple):
    """A batch that was appended to the log."""

    base_offset: int
    count: int
    producer_id: int
    epoch: int
    sequence: int
    timestamp_ms: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


def idempotent(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    timestamp_ms: int = NOW_MS,
    offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Make a batch of a producer; ``producer_id`` -1 makes a batch without idempotence."""
    plain = producer_id < 0
    return encode_batch(
        [(timestamp_ms, None, f"{producer_id}:{sequence + i}".encode(), []) for i in range(count)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=-1 if plain else epoch,
        base_sequence=-1 if plain else sequence,
    )  # fmt: skip


def append(log: PartitionLog, *batches: bytes, leader_epoch: int = 0) -> AppendInfo | HeadraceError:
    """Append one request with the given batches."""
    (outcome,) = log.append_many([Append(data=b"".join(batches), leader_epoch=leader_epoch)])
    return outcome


#: producer id -> (epoch, time, [(last sequence, last offset)] of the last batches, oldest first).
Expected = dict[int, tuple[int, int, list[tuple[int, int]]]]


def expected_of(sent: list[Sent], end: int) -> Expected:
    """The expected producer state of a log that ends at ``end``."""
    found: Expected = {}
    for batch in sent:
        if batch.next_offset > end or batch.producer_id < 0:
            continue
        epoch, _, batches = found.get(batch.producer_id, (batch.epoch, 0, []))
        if epoch != batch.epoch:
            batches = []
        last = (batch.sequence + batch.count - 1) % 2**31, batch.next_offset - 1
        found[batch.producer_id] = batch.epoch, batch.timestamp_ms, [*batches, last][-BATCHES_KEPT:]
    return found


def check_table(table: ProducerTable, expected: Expected, *, whole_window: bool = False) -> None:
    """Check that ``table`` has the expected state; each producer's window may lack older batches."""
    assert {entry.producer_id for entry in table} == set(expected)
    for entry in table:
        epoch, timestamp_ms, batches = expected[entry.producer_id]
        assert (entry.epoch, entry.last_timestamp_ms) == (epoch, timestamp_ms)
        found = [(batch.last_sequence, batch.last_offset) for batch in entry.batches]
        assert found, "the last batch is always known"
        assert found == batches[-len(found) :]
        assert len(found) == len(batches) or (entry.is_cut_short and not whole_window)


class Producers:
    """Producers that write to a log, and the list of their appended batches."""

    def __init__(self, rng: random.Random, ids: int = 4) -> None:
        self.rng = rng
        self.ids = ids
        self.sent: list[Sent] = []
        self.clock_ms = NOW_MS

    def cut(self, end: int) -> None:
        """Remove the batches after ``end``, where the log was truncated."""
        self.sent = [batch for batch in self.sent if batch.next_offset <= end]

    def next_sequence(self, producer_id: int) -> tuple[int, int]:
        """The (epoch, sequence) of a producer's next batch."""
        for batch in reversed(self.sent):
            if batch.producer_id == producer_id:
                return batch.epoch, (batch.sequence + batch.count) % 2**31
        return 0, self.rng.choice([0, 0, 2**31 - 2])

    def write(self, log: PartitionLog, requests: int = 1, leader_epoch: int = 0) -> None:
        """Append several requests in one pass of the log's writer, each with one to three batches."""
        appends, coming = [], []
        end = log.log_end_offset
        for _ in range(requests):
            data = b""
            for _ in range(self.rng.randint(1, 3)):
                producer_id = self.rng.choice([-1, *range(self.ids)])
                epoch, sequence = self.next_sequence(producer_id)
                if producer_id >= 0 and self.rng.random() < 0.1:
                    epoch, sequence = epoch + 1, 0
                self.clock_ms += 1
                batch = Sent(end, self.rng.randint(1, 3), producer_id, epoch, sequence, self.clock_ms)
                data += idempotent(producer_id, sequence, batch.count, epoch=epoch, timestamp_ms=self.clock_ms)
                end = batch.next_offset
                self.sent.append(batch)
                coming.append(batch)
            appends.append(Append(data=data, leader_epoch=leader_epoch))
        outcomes = log.append_many(appends)
        assert all(isinstance(outcome, AppendInfo) and not outcome.is_duplicate for outcome in outcomes), outcomes
        assert log.log_end_offset == end

    def check(self, log: PartitionLog, *, whole_window: bool = False) -> None:
        """Check that the log's producer table matches the appended batches."""
        check_table(log.producers, expected_of(self.sent, log.log_end_offset), whole_window=whole_window)
        assert log.producers.next_offset == log.log_end_offset

    def check_window(self, log: PartitionLog) -> None:
        """Send the last batches of every producer again: each must be answered with its first offset, and none may be
        appended."""
        end = log.log_end_offset
        for producer_id in range(self.ids):
            its = [batch for batch in self.sent if batch.producer_id == producer_id]
            for batch in [batch for batch in its if batch.epoch == its[-1].epoch][-BATCHES_KEPT:]:
                outcome = append(log, idempotent(producer_id, batch.sequence, batch.count, epoch=batch.epoch))
                assert isinstance(outcome, AppendInfo), (batch, outcome)
                assert (outcome.is_duplicate, outcome.base_offset) == (True, batch.base_offset)
                assert outcome.next_offset == batch.next_offset
        assert log.log_end_offset == end
        self.check(log)


def log_of(directory: LogDirectory) -> PartitionLog:
    """The only element of a list."""
    (log,) = directory.logs.values()
    return log
