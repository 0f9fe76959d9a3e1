"""Measure the record batch codec on one core, beside aiokafka's compiled codec. Records have 100 random bytes and no
keys.

    codec.py [--rounds 7] [--smoke] [--no-tune]

Each round runs every workload once, so that a slow minute affects all of them. The result is the median of the rounds.
Samples go to standard output, one JSON object per line; the last object has all medians and ratios. A table goes to
standard error.

    headrace.codec.encode        append() for each record, then build(), CRC included
    headrace.codec.decode        a record object for each, .value read, CRC checked
    aiokafka.codec.*             the same, as ../shared/peers measures it
    headrace.codec.*_arrow       a table of values to a batch of 1 MiB, and such a slice to all of the Spark schema
    headrace.codec.*_arrow_10mib the same with ten batches, so that they do not stay in the processor's cache

The allocator is tuned as in our own processes (rpc/environment.py) unless --no-tune. Without the tuning glibc maps each
large buffer, and most of the time would go into the kernel's zeroing of pages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from measure import Samples, table

from headrace_core.records import Compression, _compiled, _pure, arrow, with_base
from headrace_core.rpc.environment import tune_malloc

NOW_MS = 1_700_000_000_000
VALUE_BYTES = 100
BATCH_BYTES = 1 << 20


class Workloads:
    """Each method handles ``self.count`` records (or the number that it returns) in one call."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values = [os.urandom(VALUE_BYTES) for _ in range(count)]
        self.table = pa.table({"value": pa.array(self.values, pa.binary())})
        self.batch = _compiled.encode_batch((NOW_MS, None, value, None) for value in self.values)
        self.slices = [with_base(batch, 0, 0, 1) + batch[16:] for batch, _ in self.encode_to_batches()]
        self.packed = _compiled.encode_batch(
            ((NOW_MS, None, value, None) for value in self.values), compression=Compression.LZ4
        )
        self.theirs = bytes(self._their_builder().build())
        self.builder = _compiled.BatchBuilder(1 << 30)

    def encode_to_batches(self) -> list[tuple[bytes, int]]:
        return arrow.encode_arrow(self.table, max_batch_bytes=BATCH_BYTES, now_ms=NOW_MS)

    def _their_builder(self) -> Any:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for index, value in enumerate(self.values):
            builder.append(index, NOW_MS, None, value, [])
        return builder

    def aiokafka_encode(self) -> None:
        bytes(self._their_builder().build())

    def aiokafka_decode(self) -> None:
        batch = DefaultRecordBatch(self.theirs)
        assert batch.validate_crc()
        size = 0
        for record in batch:
            size += len(record.value)
        assert size == VALUE_BYTES * self.count

    def encode(self) -> None:
        append = self.builder.append
        for value in self.values:
            append(NOW_MS, None, value)
        self.builder.build()

    def encode_many(self) -> None:
        self.builder.append_many(self.values, 0, NOW_MS)
        self.builder.build()

    def encode_pure(self) -> None:
        _pure.encode_batch((NOW_MS, None, value, None) for value in self.values)

    def decode(self) -> None:
        size = 0
        for record in _compiled.RecordIterator(self.batch, topic="t", partition=1):
            size += len(record.value)  # type: ignore[arg-type]  # every record has a value
        assert size == VALUE_BYTES * self.count

    def decode_list(self) -> None:
        size = 0
        for record in _compiled.decode_batch(self.batch, topic="t", partition=1):
            size += len(record.value)  # type: ignore[arg-type]  # every record has a value
        assert size == VALUE_BYTES * self.count

    def decode_lz4(self) -> None:
        for record in _compiled.RecordIterator(self.packed, topic="t", partition=1):
            record.value  # noqa: B018 - reading it is the workload

    def decode_pure(self) -> None:
        for record in _pure.RecordIterator(self.batch, topic="t", partition=1):
            record.value  # noqa: B018

    def validate(self) -> None:
        _compiled.validate_batches(self.batch)

    def encode_arrow(self) -> None:
        assert sum(count for _, count in self.encode_to_batches()) == self.count

    def decode_arrow(self) -> None:
        rows = sum(arrow.decode_arrow(data, topic="t", partition=1).num_rows for data in self.slices)
        assert rows == self.count

    def decode_arrow_value(self) -> None:
        for data in self.slices:
            arrow.decode_arrow(data, topic="t", partition=1, columns=["value"])


def rate(work: Callable[[], None], count: int, seconds: float) -> float:
    """Records per second of this thread's CPU time, over at least ``seconds``: independent of other load."""
    work()
    done = 0
    started = time.thread_time()
    while (elapsed := time.thread_time() - started) < seconds:
        work()
        done += count
    return done / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--smoke", action="store_true", help="one short round, which only shows whether the benchmark works"
    )
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--no-tune", action="store_true", help="leave the allocator as it is")
    asked = parser.parse_args()
    tuned = not asked.no_tune and tune_malloc()
    rounds, seconds = (1, 0.02) if asked.smoke else (asked.rounds, 0.4)
    batch, bulk, slow = Workloads(9_000), Workloads(90_000), Workloads(2_000)  # 9,000 records make one batch of 1 MiB
    plan: list[tuple[str, Workloads, Callable[[], None]]] = [
        ("aiokafka.codec.encode", batch, batch.aiokafka_encode),
        ("headrace.codec.encode", batch, batch.encode),
        ("headrace.codec.encode_many", batch, batch.encode_many),
        ("headrace.codec.encode_arrow", batch, batch.encode_arrow),
        ("headrace.codec.encode_arrow_10mib", bulk, bulk.encode_arrow),
        ("aiokafka.codec.decode", batch, batch.aiokafka_decode),
        ("headrace.codec.decode", batch, batch.decode),
        ("headrace.codec.decode_list", batch, batch.decode_list),
        ("headrace.codec.decode_lz4", batch, batch.decode_lz4),
        ("headrace.codec.decode_arrow", batch, batch.decode_arrow),
        ("headrace.codec.decode_arrow_10mib", bulk, bulk.decode_arrow),
        ("headrace.codec.decode_arrow_value", batch, batch.decode_arrow_value),
        ("headrace.codec.validate", batch, batch.validate),
        ("headrace.codec.encode_pure", slow, slow.encode_pure),
        ("headrace.codec.decode_pure", slow, slow.decode_pure),
    ]
    plan = [step for step in plan if asked.only in step[0]]
    samples = Samples()
    for _ in range(rounds):
        for name, workloads, work in plan:
            samples.add(name, rate(work, workloads.count, seconds), "records/s")
    ratios = {
        f"{ours}/{theirs}": samples.ratio(f"headrace.codec.{ours}", f"aiokafka.codec.{theirs}")
        for ours, theirs in (
            ("encode", "encode"),
            ("decode", "decode"),
            ("encode_arrow", "encode"),
            ("decode_arrow", "decode"),
        )
    }
    print(table(samples), file=sys.stderr)
    for name, ratio in ratios.items():
        if ratio is not None:
            print(f"ours {name} theirs: {ratio:.2f}x", file=sys.stderr)
    medians = {name: round(samples.median(name) or 0) for name in samples.values}
    print(json.dumps({"workload": "codec", "tuned_malloc": tuned, "records_per_s": medians, "ratios": ratios}))


if __name__ == "__main__":
    main()
