"""The consume workload: read a topic and check that every offset comes once."""

from __future__ import annotations

import asyncio
import itertools
import time
from operator import attrgetter
from typing import Any

from headrace_core.errors import InvalidArgumentError, MissingDependencyError, RequestTimedOutError
from headrace_core.types import TopicPartition

from .common import SAMPLES, STALL_S, BenchOptions, BenchResult, call, partitions_of, warm_memory

#: Number of records that an async iteration reads before it checks them as a group.
_PORTION_RECORDS = 2_000


class _Ledger:
    """Checks the offsets of each partition: each offset must come once, in order, from the earliest on.

    The ledger checks every offset, and the field ``verified`` of the result depends on the check. The time that the
    check takes is included in the reading time. The offsets of whole runs of consecutive records of one partition are
    checked at once, because a check per record would be slower. With ``ends``, each partition is read up to its end:
    records beyond the end are checked, but not counted.
    """

    def __init__(self, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int] | None = None) -> None:
        self._next = {partition.partition: offset for partition, offset in starts.items()}
        self._ends = None if ends is None else {partition.partition: offset for partition, offset in ends.items()}
        self.records = 0
        self.value_bytes = 0
        self.sound = True

    def is_done(self, wanted: int) -> bool:
        """Whether all partitions have reached their ends; without ends, whether ``wanted`` records were read. With
        ends, a gap or a duplicate in the offsets also ends the run."""
        if self._ends is None:
            return self.records >= wanted
        return not self.sound or all(self._next[partition] >= end for partition, end in self._ends.items())

    def is_verified(self, wanted: int) -> bool:
        """Whether every offset came once and in order, and all wanted records were read."""
        if self._ends is None:
            return self.sound and self.records >= wanted
        return self.sound and self.is_done(wanted) and self.records == wanted

    def _excess(self, partition: int, after: int, count: int) -> int:
        """Count the offsets at or beyond the partition's end, among the ``count`` offsets before ``after``."""
        if self._ends is None or partition not in self._ends:
            return 0
        return min(count, max(0, after - self._ends[partition]))

    def take_records(self, records: list[Any]) -> None:
        """Check and count a list of records, one run of consecutive offsets after the other."""
        self.value_bytes += sum(map(len, filter(None, map(attrgetter("value"), records))))
        self.records += len(records)
        position, count = 0, len(records)
        while position < count:
            partition = records[position].partition
            offset = records[position].offset
            self.sound &= offset == self._next.get(partition)
            end = _run_end(records, position, partition, offset)
            seen = list(map(attrgetter("offset"), records[position:end]))
            self.sound &= seen == list(range(offset, offset + end - position))
            self._next[partition] = offset + end - position
            if excess := self._excess(partition, offset + end - position, end - position):
                self.records -= excess
                self.value_bytes -= sum(len(each.value or b"") for each in records[end - excess : end])
            position = end

    def take_table(self, table: Any) -> None:
        """Check and count the records of an Arrow table, batch by batch."""
        for batch in table.to_batches():
            if batch.num_rows:
                self._take_batch(batch)

    def _take_batch(self, batch: Any) -> None:
        import numpy

        partitions, offsets, count = batch.column("partition").to_numpy(), batch.column("offset").to_numpy(), len(batch)
        self.value_bytes += _bytes_in(batch.column("value"))
        self.records += count
        cuts = [0, *(numpy.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist(), count]
        for begin, end in itertools.pairwise(cuts):
            partition, run = int(partitions[begin]), offsets[begin:end]
            self.sound &= int(run[0]) == self._next.get(partition) and bool(numpy.all(run[1:] - run[:-1] == 1))
            self._next[partition] = int(run[-1]) + 1
            if excess := self._excess(partition, int(run[-1]) + 1, end - begin):
                self.records -= excess
                self.value_bytes -= _bytes_in(batch.column("value").slice(end - excess, excess))


def _bytes_in(values: Any) -> int:
    """The size of all values of a binary array in bytes, computed from its first and last buffer offset."""
    import numpy

    ends = numpy.frombuffer(values.buffers()[1], numpy.int32)
    return int(ends[values.offset + len(values)] - ends[values.offset])


def _run_end(records: list[Any], begin: int, partition: int, offset: int) -> int:
    """The index after the run of consecutive offsets of ``partition`` that begins at index ``begin``, found by
    bisection."""

    def inside(at: int) -> bool:
        return bool(records[at].partition == partition and records[at].offset == offset + at - begin)

    low, high = begin, len(records)
    if inside(high - 1):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    return high


def consume(options: BenchOptions) -> BenchResult:
    """Read a topic from the earliest offset: ``records`` records, or all that exist when the workload starts."""
    options.check()
    if options.api == "arrow":
        _import_arrow()
    if options.warm:
        warm_memory()
    config = {"check.crcs": True, "allow.auto.create.topics": False} | options.config
    if options.api == "async":
        seconds, latencies, ledger, wanted = asyncio.run(_consume_async(options, config))
    else:
        seconds, latencies, ledger, wanted = _consume_blocking(options, config)
    return BenchResult(
        workload="consume",
        api=options.api,
        records=ledger.records,
        seconds=seconds,
        value_bytes=ledger.value_bytes,
        latencies_ms=latencies,
        verified=ledger.is_verified(wanted),
    )


def _import_arrow() -> None:
    """Import pyarrow before the clock starts: the import takes longer than reading a million records."""
    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401

        import headrace_core.records.arrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("--api arrow needs pyarrow and numpy: pip install 'headrace[arrow]'") from error


def _wanted(options: BenchOptions, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> int:
    there = sum(ends.values()) - sum(starts.values())
    if not there:
        raise InvalidArgumentError(f"topic {options.topic} is empty; `headrace bench produce` fills it")
    if options.records is not None and options.records > there:
        raise InvalidArgumentError(
            f"--records {options.records}: topic {options.topic} has fewer records ({there}); pass a smaller number"
        )
    return options.records or there


def _stalled(ledger: _Ledger, wanted: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"no record arrived for {STALL_S:g} s, after {ledger.records} of {wanted} records; "
        "`headrace doctor` checks the cluster"
    )


def _consume_blocking(options: BenchOptions, config: dict[str, Any]) -> tuple[float, list[float], _Ledger, int]:
    from headrace import Consumer

    latencies: list[float] = []
    with Consumer(config) as consumer:
        partitions = partitions_of(consumer, options.topic)
        starts = dict(consumer.beginning_offsets(partitions))
        ends = dict(consumer.end_offsets(partitions))
        wanted = _wanted(options, starts, ends)
        ledger = _Ledger(starts, ends if options.records is None else None)
        begun = last = time.perf_counter()
        consumer.assign(partitions)
        for partition, offset in starts.items():
            consumer.seek(partition, offset)
        while not ledger.is_done(wanted):
            called = time.perf_counter()
            if options.api == "arrow":
                table = consumer.fetch_arrow(timeout=1.0)
                count = 0 if table is None else table.num_rows
                if count:
                    ledger.take_table(table)
            else:
                records = consumer.poll(timeout=1.0, max_records=max(1, min(wanted - ledger.records, 10_000)))
                count = len(records)
                ledger.take_records(records)
            now = time.perf_counter()
            latencies.append((now - called) * 1e3)
            if count:
                last = now
            elif now - last > STALL_S:
                raise _stalled(ledger, wanted)
        seconds = time.perf_counter() - begun
    return seconds, latencies, ledger, wanted


async def _consume_async(options: BenchOptions, config: dict[str, Any]) -> tuple[float, list[float], _Ledger, int]:
    from headrace import AsyncConsumer

    latencies: list[float] = []
    async with AsyncConsumer(config) as consumer:
        partitions = [TopicPartition(options.topic, n) for n in sorted(await consumer.partitions_for(options.topic))]
        starts = dict(await consumer.beginning_offsets(partitions))
        ends = dict(await consumer.end_offsets(partitions))
        wanted = _wanted(options, starts, ends)
        ledger = _Ledger(starts, ends if options.records is None else None)
        portion = min(_PORTION_RECORDS, max(1, wanted // SAMPLES))
        handed: list[Any] = []  # records that are checked in groups, like the records of a poll
        begun = last = time.perf_counter()
        await call(consumer.assign, partitions)
        for partition, offset in starts.items():
            await call(consumer.seek, partition, offset)
        room = min(portion, wanted)
        async with asyncio.timeout(None) as guard:
            async for record in consumer:
                handed.append(record)
                if len(handed) == room:
                    ledger.take_records(handed)
                    now = time.perf_counter()
                    latencies.append((now - last) * 1e3 / room)
                    last = now
                    guard.reschedule(asyncio.get_running_loop().time() + STALL_S)
                    handed.clear()
                    if ledger.is_done(wanted):
                        break
                    room = max(1, min(portion, wanted - ledger.records))
        seconds = time.perf_counter() - begun
    return seconds, latencies, ledger, wanted
