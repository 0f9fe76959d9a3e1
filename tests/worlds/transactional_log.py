"""A log of random transactions, with the answers that Kafka gives about the log: the oracle of read_committed tests;
and a real broker whose topics have such logs."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace_core.log.producer_state import ProducerTable
from headrace_core.records import ABORT, COMMIT, Compression, encode_batch, read_header
from tests.worlds.broker_world import Cluster, Topic
from tests.worlds.waiting import until

TIME_MS = 1_700_000_000_000


class Aborted(NamedTuple):
    """An aborted transaction. ``last_offset`` is the offset of the transaction's marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class TransactionalLog:
    """Append with ``write`` and ``end``. Offsets have no gaps."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.aborted: list[Aborted] = []
        self.rows: list[Row] = []  #: The records that read_uncommitted returns.
        self._open: dict[int, int] = {}
        self._fate: dict[int, bool] = {}  # maps an offset to whether its transaction was committed
        self._undecided: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}

    def write(
        self,
        count: int = 1,
        *,
        producer_id: int = -1,
        in_transaction: bool = True,
        compression: Compression = Compression.NONE,
    ) -> None:
        """A batch of ``count`` records; without a producer id, or not ``in_transaction``, the batch belongs to no
        transaction."""
        in_transaction = in_transaction and producer_id >= 0
        first = self.end_offset
        rows = [Row(at, b"k%d" % at, b"value of %d" % at) for at in range(first, first + count)]
        sequence = self._sequences.get(producer_id, 0)
        self._append(
            encode_batch(
                [(TIME_MS, row.key, row.value, None) for row in rows],
                base_offset=first,
                leader_epoch=0,
                compression=compression,
                producer_id=producer_id,
                producer_epoch=-1 if producer_id < 0 else 0,
                base_sequence=-1 if producer_id < 0 else sequence,
                transactional=in_transaction,
            )
        )
        self._sequences[producer_id] = sequence + count
        self.rows += rows
        if in_transaction:
            self._open.setdefault(producer_id, first)
            self._undecided.setdefault(producer_id, []).extend(row.offset for row in rows)

    def end(self, producer_id: int, marker: int) -> None:
        """A COMMIT or ABORT marker; the transaction may be empty."""
        offset = self.end_offset
        self._append(
            encode_batch(
                [(TIME_MS, struct.pack(">hh", 0, marker), struct.pack(">hi", 0, 0), None)],
                base_offset=offset,
                leader_epoch=0,
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
                control=True,
            )
        )
        self._fate.update(dict.fromkeys(self._undecided.pop(producer_id, ()), marker == COMMIT))
        first = self._open.pop(producer_id, None)
        if marker == ABORT and first is not None:
            self.aborted.append(Aborted(producer_id, first, offset))

    def _append(self, batch: bytes) -> None:
        self.batches.append(batch)
        self.end_offset = read_header(batch).next_offset

    @property
    def last_stable_offset(self) -> int:
        return min(self._open.values(), default=self.end_offset)

    @property
    def committed(self) -> list[Row]:
        """The records that read_committed returns."""
        undecided = {offset for offsets in self._undecided.values() for offset in offsets}
        return [
            row
            for row in self.rows
            if row.offset < self.last_stable_offset and row.offset not in undecided and self._fate.get(row.offset, True)
        ]

    def aborted_between(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that a fetch of [start, end) names (LocalLog.collectAbortedTransactions)."""
        return [each for each in self.aborted if each.last_offset >= start and each.first_offset < end]

    @classmethod
    def random(cls, seed: int, steps: int = 60, producers: int = 4) -> TransactionalLog:
        """Interleaved transactions, batches outside of transactions, empty transactions; some may stay open."""
        rng = random.Random(seed)
        log = cls()
        for _ in range(steps):
            producer_id = rng.randrange(producers)
            act = rng.random()
            if act < 0.55:
                codec = rng.choice((Compression.NONE, Compression.NONE, Compression.LZ4))
                log.write(rng.randint(1, 5), producer_id=producer_id, compression=codec)
            elif act < 0.65:
                log.write(rng.randint(1, 3))
            elif act < 0.70:
                log.write(producer_id=producer_id, in_transaction=False)
            else:
                log.end(producer_id, rng.choice((ABORT, COMMIT)))
        for producer_id in range(producers):
            if rng.random() < 0.8:
                log.end(producer_id, rng.choice((ABORT, COMMIT)))
        return log


@contextmanager
def serving(directory: Path, logs: Mapping[str, TransactionalLog], segment_batches: int = 20) -> Iterator[Cluster]:
    """A controller and a broker with a topic of one partition for each log. Each segment has this number of batches."""
    with Cluster(directory) as cluster:
        topics = [cluster.topic(name) for name in logs]
        assert cluster.broker.terminate() == 0
        for name, log in logs.items():
            _put(cluster.broker.data / f"{name}-0", log, segment_batches)
        cluster.restart()
        for topic, log in zip(topics, logs.values(), strict=True):
            until(lambda topic=topic, log=log: _end(topic) == log.end_offset, "the partition to be led")  # type: ignore[misc]
        yield cluster


def _end(topic: Topic) -> int:
    return int(topic.end())


def _put(directory: Path, log: TransactionalLog, segment_batches: int) -> None:
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for first in range(0, len(log.batches), segment_batches):
        part = log.batches[first : first + segment_batches]
        base_offset = int.from_bytes(part[0][:8], "big")
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(part))
    (directory / f"{log.end_offset:020d}.snapshot").write_bytes(_producers(log).snapshot())


def _producers(log: TransactionalLog) -> ProducerTable:
    """The producers at the log's end. After a clean stop a log without a snapshot has no producers."""
    table = ProducerTable()
    for batch in log.batches:
        header = read_header(batch)
        if header.is_control:
            table.marker_appended(header, coordinator_epoch=0)
        else:
            table.appended(header)
    return table
