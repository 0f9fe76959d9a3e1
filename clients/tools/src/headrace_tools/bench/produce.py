"""The produce workload: send through one of four interfaces, and await every outcome."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from .common import (
    SAMPLES,
    BenchOptions,
    BenchResult,
    Pace,
    Values,
    end_offsets_of,
    ensure_topic,
    moved_by,
    portion_of,
    timed,
    warm_memory,
)

_MANY_RECORDS = 10_000
_ARROW_BYTES = 8 << 20  # bytes of values in one send_arrow call
_OPEN_RECORDS = 200_000  # maximum number of pending outcomes in the modes object and async


def produce(options: BenchOptions) -> BenchResult:
    """Send ``records`` values and await the outcome of each. Raises the first error of a record."""
    options.check()
    records = options.records or 1_000_000
    ensure_topic(options)
    before = end_offsets_of(options)
    if options.warm:
        warm_memory()
    values = Values(options.record_bytes, records)
    run = {"object": _produce_object, "many": _produce_many, "arrow": _produce_arrow, "async": _produce_async}
    seconds, latencies, acknowledged = run[options.api](options, values, records)
    return BenchResult(
        workload="produce",
        api=options.api,
        records=records,
        seconds=seconds,
        value_bytes=records * options.record_bytes,
        latencies_ms=latencies,
        verified=acknowledged == records and moved_by(options, before, records),
    )


_Outcome = tuple[float, list[float], int]  # seconds, latencies, acknowledged


def _produce_object(options: BenchOptions, values: Values, records: int) -> _Outcome:
    from headrace import Producer

    stride = portion_of(options, max(1, min(1_000, records // SAMPLES)))
    portions = values.portions(records, stride)
    topic, latencies, acknowledged, sent = options.topic, [], 0, 0  # type: tuple[str, list[float], int, int]
    open_futures: list[Any] = []
    with Producer(options.config) as producer:
        producer.partitions_for(topic)  # connect before the clock starts
        send = producer.send
        pace = Pace(options.rate)
        begun = time.perf_counter()
        for portion in portions:
            pace.wait(sent)
            first = send(topic, portion[0])
            first.add_done_callback(timed(latencies))
            open_futures.append(first)
            open_futures += [send(topic, value) for value in portion[1:]]
            sent += len(portion)
            if len(open_futures) >= 2 * _OPEN_RECORDS:
                acknowledged += _await_all(open_futures[:_OPEN_RECORDS])
                del open_futures[:_OPEN_RECORDS]
        producer.flush()
        acknowledged += _await_all(open_futures)
        seconds = time.perf_counter() - begun
    return seconds, latencies, acknowledged


def _await_all(futures: list[Any]) -> int:
    return len([future.result() for future in futures])


def _produce_many(options: BenchOptions, values: Values, records: int) -> _Outcome:
    from headrace import Producer

    portions = values.portions(records, portion_of(options, _MANY_RECORDS))
    with Producer(options.config) as producer:
        return _produce_calls(options, producer, producer.send_many, portions)


def _produce_arrow(options: BenchOptions, values: Values, records: int) -> _Outcome:
    from headrace import Producer

    rows = min(records, portion_of(options, max(1, _ARROW_BYTES // options.record_bytes)), values.distinct)
    table = values.table(values.distinct)
    offsets = itertools.cycle(range(0, values.distinct - rows + 1, rows))
    full, rest = divmod(records, rows)
    tables = [table.slice(next(offsets), rows) for _ in range(full)]
    if rest:
        tables.append(table.slice(0, rest))
    with Producer(options.config) as producer:
        return _produce_calls(options, producer, producer.send_arrow, tables)


def _produce_calls(options: BenchOptions, producer: Any, send: Callable[..., Any], portions: Sequence[Any]) -> _Outcome:
    topic, latencies, futures, sent = options.topic, [], [], 0  # type: tuple[str, list[float], list[Any], int]
    producer.partitions_for(topic)
    pace = Pace(options.rate)
    begun = time.perf_counter()
    for portion in portions:
        pace.wait(sent)
        future = send(topic, portion)
        future.add_done_callback(timed(latencies))
        futures.append(future)
        sent += len(portion)
    producer.flush()
    acknowledged = sum(future.result().record_count for future in futures)
    return time.perf_counter() - begun, latencies, acknowledged


def _produce_async(options: BenchOptions, values: Values, records: int) -> _Outcome:
    return asyncio.run(_produce_async_run(options, values, records))


async def _produce_async_run(options: BenchOptions, values: Values, records: int) -> _Outcome:
    from headrace import AsyncProducer

    stride = portion_of(options, max(1, min(1_000, records // SAMPLES)))
    portions = values.portions(records, stride)
    topic, latencies, acknowledged, sent = options.topic, [], 0, 0  # type: tuple[str, list[float], int, int]
    open_futures: list[Any] = []
    async with AsyncProducer(options.config) as producer:
        await producer.partitions_for(topic)
        send = producer.send
        pace = Pace(options.rate)
        begun = time.perf_counter()
        for portion in portions:
            if delay := pace.delay(sent):
                await asyncio.sleep(delay)
            first = await send(topic, portion[0])
            first.add_done_callback(timed(latencies))
            open_futures.append(first)
            for value in portion[1:]:
                open_futures.append(await send(topic, value))  # noqa: PERF401
            sent += len(portion)
            if len(open_futures) >= 2 * _OPEN_RECORDS:
                for future in open_futures[:_OPEN_RECORDS]:
                    await future
                acknowledged += _OPEN_RECORDS
                del open_futures[:_OPEN_RECORDS]
        await producer.flush()
        for future in open_futures:
            await future
        acknowledged += len(open_futures)
        return time.perf_counter() - begun, latencies, acknowledged
