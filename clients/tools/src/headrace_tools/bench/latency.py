"""The latency workload: time from send to receipt, through one producer and one consumer in this process.

Without ``rate`` one record is in flight at a time. With ``rate`` records are sent on a schedule (open loop) while
another task or thread reads. Each value begins with a number, which matches the received record to its send.
``linger.ms=0`` unless configured.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from typing import Any

from headrace_core.errors import HeadraceError, InvalidArgumentError, RequestTimedOutError
from headrace_core.types import TopicPartition

from .common import (
    STALL_S,
    BenchOptions,
    BenchResult,
    Pace,
    call,
    ensure_topic,
    partitions_of,
    shared_config,
    warm_memory,
)

_NUMBER = struct.Struct(">Q")
_WARM_UP_RECORDS = 50  # records that only warm up connections, sessions and caches, and are not measured


def latency(options: BenchOptions) -> BenchResult:
    """Measure ``records`` round trips (10,000 by default). Raises InvalidArgumentError for an API that cannot send
    single records."""
    options.check()
    if options.api not in ("object", "async"):
        raise InvalidArgumentError(
            f"--api {options.api}: latency is measured for single records; pass --api object or --api async"
        )
    if options.record_bytes < _NUMBER.size:
        raise InvalidArgumentError(
            f"--record-bytes {options.record_bytes}: latency needs at least {_NUMBER.size} bytes, which hold the "
            "record's number"
        )
    records = options.records or 10_000
    ensure_topic(options)
    if options.warm:
        warm_memory()
    trip = _Trip(records, options.record_bytes)
    if options.api == "async":
        asyncio.run(_run_async(options, trip))
    else:
        _run_blocking(options, trip)
    return BenchResult(
        workload="latency",
        api=options.api,
        records=records,
        seconds=trip.seconds,
        value_bytes=records * options.record_bytes,
        latencies_ms=trip.latencies_ms(),
        verified=trip.complete(),
    )


class _Trip:
    """The times at which each record was sent and received. The first records are for warm-up, and their latencies are
    not measured."""

    def __init__(self, records: int, record_bytes: int) -> None:
        self.count = records + _WARM_UP_RECORDS
        padding = os.urandom(record_bytes - _NUMBER.size)
        self._run = os.urandom(4)  # distinguishes the records of this run from those of earlier runs in the topic
        start = int.from_bytes(self._run, "big") << 32
        self._start = start
        self.values = [_NUMBER.pack(start + number) + padding for number in range(self.count)]
        self._sent = [0.0] * self.count
        self._received = [0.0] * self.count
        self._sound = True
        self.arrived = 0

    def send(self, number: int) -> bytes:
        self._sent[number] = time.perf_counter()
        return self.values[number]

    def take(self, records: list[Any]) -> None:
        now = time.perf_counter()
        for record in records:
            value = record.value or b""
            number = _NUMBER.unpack_from(value)[0] - self._start if len(value) >= _NUMBER.size else -1
            if not 0 <= number < self.count:
                continue  # the record is from another writer
            self._sound &= value == self.values[number] and not self._received[number]
            self._received[number] = now
            self.arrived += 1

    @property
    def seconds(self) -> float:
        return max(self._received) - self._sent[_WARM_UP_RECORDS]

    def latencies_ms(self) -> list[float]:
        pairs = list(zip(self._sent, self._received, strict=True))[_WARM_UP_RECORDS:]
        return [(received - sent) * 1e3 for sent, received in pairs]

    def complete(self) -> bool:
        return self._sound and self.arrived == self.count


def _configs(options: BenchOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"linger.ms": 0} | options.config, shared_config(options) | {"check.crcs": True}


def _timed_out(trip: _Trip) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"no record arrived for {STALL_S:g} s, after {trip.arrived} of {trip.count} records; "
        "`headrace doctor` checks the cluster"
    )


def _run_blocking(options: BenchOptions, trip: _Trip) -> None:
    from headrace import Consumer, Producer

    producer_config, consumer_config = _configs(options)
    with Producer(producer_config) as producer, Consumer(consumer_config) as consumer:
        partitions = partitions_of(consumer, options.topic)
        consumer.assign(partitions)
        for partition, end in consumer.end_offsets(partitions).items():
            consumer.seek(partition, end)

        def receive(wanted: int) -> None:
            deadline = time.monotonic() + STALL_S
            while trip.arrived < wanted:
                before = trip.arrived
                trip.take(consumer.poll(timeout=1.0))
                if trip.arrived > before:
                    deadline = time.monotonic() + STALL_S
                elif time.monotonic() > deadline:
                    raise _timed_out(trip)

        alone = trip.count if options.rate is None else _WARM_UP_RECORDS
        for number in range(alone):
            producer.send(options.topic, trip.send(number))
            receive(number + 1)
        if alone < trip.count:
            sender = _Sender(options, producer, trip)
            sender.start()
            receive(trip.count)
            sender.finish()


class _Sender(threading.Thread):
    """A thread that sends the measured records on schedule while the main thread reads."""

    def __init__(self, options: BenchOptions, producer: Any, trip: _Trip) -> None:
        super().__init__(name="headrace-bench-sender", daemon=True)
        self._options, self._producer, self._trip = options, producer, trip
        self._failure: HeadraceError | None = None

    def run(self) -> None:
        pace = Pace(self._options.rate)
        try:
            for number in range(_WARM_UP_RECORDS, self._trip.count):
                pace.wait(number - _WARM_UP_RECORDS)
                self._producer.send(self._options.topic, self._trip.send(number))
        except HeadraceError as error:
            self._failure = error

    def finish(self) -> None:
        self.join()
        if self._failure is not None:
            raise self._failure


async def _run_async(options: BenchOptions, trip: _Trip) -> None:
    from headrace import AsyncConsumer, AsyncProducer

    producer_config, consumer_config = _configs(options)
    async with AsyncProducer(producer_config) as producer, AsyncConsumer(consumer_config) as consumer:
        names = sorted(await consumer.partitions_for(options.topic))
        partitions = [TopicPartition(options.topic, number) for number in names]
        await call(consumer.assign, partitions)
        for partition, end in (await consumer.end_offsets(partitions)).items():
            await call(consumer.seek, partition, end)

        async def receive(wanted: int) -> None:
            deadline = time.monotonic() + STALL_S
            while trip.arrived < wanted:
                before = trip.arrived
                trip.take(await consumer.poll(timeout=1.0))
                if trip.arrived > before:
                    deadline = time.monotonic() + STALL_S
                elif time.monotonic() > deadline:
                    raise _timed_out(trip)

        async def send_on_schedule() -> None:
            pace = Pace(options.rate)
            for number in range(_WARM_UP_RECORDS, trip.count):
                if delay := pace.delay(number - _WARM_UP_RECORDS):
                    await asyncio.sleep(delay)
                await producer.send(options.topic, trip.send(number))

        alone = trip.count if options.rate is None else _WARM_UP_RECORDS
        for number in range(alone):
            await producer.send(options.topic, trip.send(number))
            await receive(number + 1)
        if alone < trip.count:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send_on_schedule())
                await receive(trip.count)
