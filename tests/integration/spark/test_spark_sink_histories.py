"""Random histories of an exactly-once sink on a real cluster, in which the test acts as Spark. The test repeats tasks,
runs them twice, and kills drivers between prepare, decision and commit log. Drivers that seemed dead continue."""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import Consumer, TopicPartition
from headrace.fetch import OffsetRange, RangeReader
from headrace_core.errors import InvalidTxnStateError, ProducerFencedError
from headrace_core.sinks import sink_id
from headrace_spark import exactly_once
from headrace_spark.exactly_once import SinkBatch, abort_batch, commit_batch, write_batch
from headrace_spark.sink_columns import SinkColumns
from headrace_spark.sink_options import SinkOptions, parse_sink_options
from headrace_spark.sink_task import SinkCommit

VALUE = SinkColumns(("value",), by_row=False, ignored=())
BATCHES, TASKS, ROWS = 6, 3, 20
HISTORIES = 3


class TaskFailsError(Exception):
    """Raised by the test to fail a task that has written its rows."""


class Spark:
    """One query. ``late``: the calls that drivers that seem dead will still make."""

    def __init__(self, seed: int, options: SinkOptions, sink: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.options, self.sink = options, sink
        self.monkeypatch = monkeypatch
        self.late: list[tuple[str, SinkBatch, list[SinkCommit]]] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        for number in range(BATCHES):
            while not self.drive(SinkBatch(self.sink, number)):
                self.counts["repeated batches"] += 1

    def drive(self, batch: SinkBatch) -> bool:
        """Run a batch; return whether Spark records it as committed."""
        commits = [self.task(batch, partition) for partition in range(TASKS)]
        if self.late and self.random.random() < 0.5:
            self.act(*self.late.pop())
        fate = self.random.random()
        if fate < 0.15:  # the driver dies before its commit, or it only seems so
            if fate < 0.1:
                self.late.append((self.random.choice(["commit", "abort"]), batch, commits))
            return False
        if not self.act("commit", batch, commits):
            self.act("abort", batch, commits)
            return False
        if fate < 0.3:
            self.late.append((self.random.choice(["commit", "abort"]), batch, commits))
            return False  # the driver dies after its decision
        return True

    def act(self, what: str, batch: SinkBatch, commits: list[SinkCommit]) -> bool:
        self.counts[what] += 1
        try:
            (commit_batch if what == "commit" else abort_batch)(self.options, batch, commits)
        except (ProducerFencedError, InvalidTxnStateError):
            self.counts[f"refused {what}"] += 1
            return False
        return True

    def task(self, batch: SinkBatch, partition: int) -> SinkCommit:
        """Run attempts of a task until one succeeds. If two attempts succeed, Spark drops the message of the slower
        one."""
        self.monkeypatch.setattr(exactly_once, "_partition", lambda: partition)
        while self.random.random() < 0.2:
            with pytest.raises(TaskFailsError):
                write_batch(self.rows(batch, partition, fails=True), VALUE, self.options, batch)
            self.counts["failed attempts"] += 1
        attempts = [
            write_batch(self.rows(batch, partition), VALUE, self.options, batch)
            for _ in range(1 + (self.random.random() < 0.2))
        ]
        self.counts["speculative losers"] += len(attempts) - 1
        self.counts["drained"] += not attempts[0].token
        return self.random.choice(attempts)

    def rows(self, batch: SinkBatch, partition: int, *, fails: bool = False) -> Iterator[pa.RecordBatch]:
        for half in () if partition == 2 and batch.number % 2 else (0, 1):  # some tasks have no rows
            values = [f"{batch.number}.{partition}.{half}.{row}" for row in range(ROWS)]
            yield pa.record_batch({"value": pa.array(values)})
        if fails:
            raise TaskFailsError


EXPECTED = Counter(
    f"{batch}.{partition}.{half}.{row}"
    for batch, partition, half, row in itertools.product(range(BATCHES), range(TASKS), (0, 1), range(ROWS))
    if partition != 2 or not batch % 2
)


def test_each_row_is_visible_once_whatever_spark_does(
    headrace: Any, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode())
    counts: Counter[str] = Counter()
    for seed in range(first, first + HISTORIES):
        topic = make_topic(2)
        servers = headrace.bootstrap_servers
        options = parse_sink_options(
            {"headrace.bootstrap.servers": servers, "topic": topic, "headrace.delivery": "exactly-once"}
        )
        spark = Spark(seed, options, sink_id(f"query of {topic}", topic), monkeypatch)
        spark.run()
        everywhere = [TopicPartition(topic, number) for number in (0, 1)]
        with (
            Consumer(bootstrap_servers=servers, isolation_level="read_committed") as stable,
            Consumer(bootstrap_servers=servers) as log,
        ):
            ends = stable.end_offsets(everywhere)
            assert ends == log.end_offsets(everywhere), f"seed {seed}: no transaction is open"
        ranges = [OffsetRange(*where, 0, end) for where, end in ends.items()]
        with RangeReader(ranges, bootstrap_servers=servers, isolation_level="read_committed") as reader:
            found = Counter(value.decode() for part in reader.arrow_batches() for value in part["value"].to_pylist())
        assert found == EXPECTED, f"seed {seed}: {spark.counts}"
        counts.update(spark.counts)
    for what in ("repeated batches", "failed attempts", "speculative losers", "drained"):
        assert counts[what], f"{what} did not happen: {dict(counts)}"
