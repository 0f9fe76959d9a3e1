"""An AsyncConsumer and its caller's event loop: polls let the loop run, and a cancelled call interrupts no callback."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import AsyncConsumer, TopicPartition
from headrace.consumer import aio
from headrace.consumer.inbox import Slice
from headrace_core.records import encode_batch
from tests.unit.client.test_group_consumer import LIMIT_S, T0, Coordinator, Make, make, parties, run

__all__ = ["make", "parties"]

RECORDS = 1_000


def filled(consumer: AsyncConsumer, *, slices: int = 1) -> None:
    """A consumer with queued records, so that no poll has to wait."""
    core = consumer._core
    assigned = core.reading.partitions[T0]
    if assigned.position is None:
        assigned.position = 0
    for number in range(slices):
        base = number * RECORDS
        data = encode_batch([(1, None, b"v", None)] * RECORDS, base_offset=base)
        core.reading.inbox.put(Slice(assigned, base, base + RECORDS, [data], len(data)))


def handle() -> None:
    """The work of a caller on a record, which does not give control to the event loop."""
    until = time.monotonic() + 0.001
    while time.monotonic() < until:
        pass


def by_hand(**settings: Any) -> AsyncConsumer:
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1", **settings)
    consumer.assign([T0])
    return consumer


class Closing(Coordinator):
    async def close(self) -> None: ...


def in_group(make: Make, **callbacks: Any) -> tuple[AsyncConsumer, Coordinator]:
    """The public class with a fake core, which needs no network."""
    coordinator = Closing(0)
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer._finalizer.detach()
    consumer._core = make(coordinator, enable_auto_commit=False, auto_offset_reset="earliest").core
    consumer.subscribe(["t"], **callbacks)
    return consumer, coordinator


def test_polls_of_queued_records_let_a_timeout_end_them() -> None:
    async def scenario() -> None:
        consumer = by_hand()
        filled(consumer, slices=50)
        polls = 0

        async def catch_up() -> None:
            nonlocal polls
            while polls < 50 * RECORDS:
                assert await consumer.poll(max_records=1)
                polls += 1
                handle()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(catch_up(), 0.05)
        assert 0 < polls < 1_000
        assert (await consumer.poll(max_records=1))[0].offset == polls, "a cancelled poll loses nothing"

    asyncio.run(scenario())


def test_iteration_lets_the_loop_turn_after_some_milliseconds_however_slow_its_body_is() -> None:
    async def scenario() -> None:
        consumer = by_hand()
        filled(consumer)
        turns, seen = [0], 0

        async def other() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        async for _ in consumer:
            seen += 1
            handle()
            if seen == 60:
                break
        beside.cancel()
        assert turns[0] >= 60 * 0.001 / aio.TURN_S - 2

    asyncio.run(scenario())


def iterate_by(
    monkeypatch: pytest.MonkeyPatch, costs: list[float], *, slices: int = 1
) -> tuple[list[int], list[float], int]:
    """Iterate with a clock that only the loop body advances, by ``costs`` (seconds). Return the offsets, the times at
    which the event loop ran, and how often the clock was read."""
    now, reads, turns, offsets = [0.0], [0], [0.0], list[int]()

    def monotonic() -> float:
        reads[0] += 1
        return now[0]

    async def scenario() -> None:
        consumer = by_hand()
        filled(consumer, slices=slices)

        async def other() -> None:
            while True:
                turns.append(now[0])
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        monkeypatch.setattr(aio, "time", SimpleNamespace(monotonic=monotonic))
        async for record in consumer:
            offsets.append(record.offset)
            now[0] += costs[len(offsets) - 1]
            if len(offsets) == len(costs):
                break
        beside.cancel()

    asyncio.run(scenario())
    return offsets, [*turns, now[0]], reads[0]


def longest_gap(turns: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(turns))


@pytest.mark.parametrize("cost", [0.000_001, 0.000_02, 0.000_3, 0.001, 0.004, 0.02])
def test_at_a_steady_pace_the_loop_turns_every_five_milliseconds(monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    records = 20 * RECORDS
    offsets, turns, _ = iterate_by(monkeypatch, [cost] * records, slices=20)
    assert offsets == list(range(records))
    assert longest_gap(turns) <= max(aio.TURN_S, cost) + 1e-9


def test_a_body_that_becomes_slow_keeps_the_loop_for_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [0.000_001] * 1_500 + [0.002] * 400
    offsets, turns, _ = iterate_by(monkeypatch, costs, slices=2)
    assert offsets == list(range(len(costs)))
    assert longest_gap(turns) <= aio.TURN_S + aio.UNTIMED_RECORDS * 0.002
    late = [at for at in turns if at > (aio.UNTIMED_RECORDS + 10) * 0.002]
    assert longest_gap(late) <= 2 * aio.TURN_S


def test_a_fast_body_pays_for_few_reads_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, reads = iterate_by(monkeypatch, [0.000_001] * (10 * RECORDS), slices=10)
    assert reads <= 10 * RECORDS / (aio.UNTIMED_RECORDS / 2)


def test_a_callback_outlives_its_cancelled_poll_and_the_next_one_waits_for_it(make: Make) -> None:
    async def scenario() -> None:
        began, may_end, reported = asyncio.Event(), asyncio.Event(), []

        async def assigned(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            began.set()
            await may_end.wait()
            reported.append(partitions)

        consumer, _ = in_group(make, on_assigned=assigned)
        poll = asyncio.create_task(consumer.poll(LIMIT_S))
        await asyncio.wait_for(began.wait(), LIMIT_S)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        assert poll.cancelled()
        filled(consumer)
        again = asyncio.create_task(consumer.poll(LIMIT_S))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not again.done(), "no record before the callback is done"
        may_end.set()
        assert await asyncio.wait_for(again, LIMIT_S)
        assert reported == [[T0]]
        await consumer.close(LIMIT_S)

    run(scenario)


def test_what_a_callback_raises_after_its_poll_was_cancelled_is_raised_by_the_next_one_once(make: Make) -> None:
    async def scenario() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def assigned(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            began.set()
            await may_end.wait()
            raise ValueError("a mistake in a callback")

        consumer, _ = in_group(make, on_assigned=assigned)
        poll = asyncio.create_task(consumer.poll(LIMIT_S))
        await asyncio.wait_for(began.wait(), LIMIT_S)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        may_end.set()
        with pytest.raises(ValueError, match="mistake"):
            await consumer.poll(LIMIT_S)
        filled(consumer)
        assert await consumer.poll(LIMIT_S)
        await consumer.close(LIMIT_S)

    run(scenario)


def test_a_callback_of_a_close_that_is_cancelled_runs_to_its_end(make: Make) -> None:
    async def scenario() -> None:
        began, may_end, reported = asyncio.Event(), asyncio.Event(), []

        async def revoked(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            began.set()
            await may_end.wait()
            reported.append(partitions)

        consumer, coordinator = in_group(make, on_revoked=revoked)
        while not consumer.assignment():
            await consumer.poll(0.01)
        closing = asyncio.create_task(consumer.close(LIMIT_S))
        await asyncio.wait_for(began.wait(), LIMIT_S)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        may_end.set()
        await asyncio.wait_for(consumer.close(LIMIT_S), LIMIT_S)
        assert reported == [[T0]]
        assert consumer._core.reading.state == "closed"
        assert any(request.HasField("leave") for stream in coordinator.streams for request in stream.said)

    run(scenario)


def test_a_callback_may_close_its_consumer_and_poll_does_not_wait_for_itself(make: Make) -> None:
    async def scenario() -> None:
        async def assigned(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            await consumer.close(LIMIT_S)

        consumer, _ = in_group(make, on_assigned=assigned)
        async with asyncio.timeout(LIMIT_S):
            await consumer.poll(LIMIT_S)
        assert consumer._core.reading.state == "closed"

    run(scenario)
