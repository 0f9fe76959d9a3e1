"""Two tasks, or two threads, that read with one consumer: one reads, the other gets an error. A call that waited for
ever would be worse, and so would a commit of records that the other reader still handles."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer
from headrace.errors import IllegalStateError
from tests.unit.client.test_async_consumer_and_its_loop import by_hand, filled, in_group
from tests.unit.client.test_group_consumer import LIMIT_S, T0, Make, make, parties
from tests.worlds.waiting import until

__all__ = ["make", "parties"]

REFUSED = "another thread or task is polling this consumer at this moment"


async def iterate(consumer: AsyncConsumer) -> Any:
    return await anext(aiter(consumer))


CALLS = {
    "poll": lambda consumer: consumer.poll(LIMIT_S),
    "async for": iterate,
    "fetch_arrow": lambda consumer: consumer.fetch_arrow(LIMIT_S),
}


@pytest.mark.parametrize("first", CALLS)
@pytest.mark.parametrize("second", CALLS)
def test_the_second_of_two_tasks_is_refused_and_the_first_gets_the_records(first: str, second: str) -> None:
    async def scenario() -> None:
        consumer = by_hand()
        reading = asyncio.create_task(CALLS[first](consumer))
        while consumer._core.reading.inbox._async_sleeper is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(IllegalStateError, match=REFUSED):
            await CALLS[second](consumer)
        filled(consumer)
        assert await asyncio.wait_for(reading, LIMIT_S)

    asyncio.run(scenario())


def test_two_tasks_are_refused_with_queued_records_too() -> None:
    async def scenario() -> None:
        consumer = by_hand()
        filled(consumer)
        found = await asyncio.gather(consumer.poll(), consumer.poll(), return_exceptions=True)
        assert [type(each) for each in found] == [list, IllegalStateError]
        assert [record.offset for record in found[0]] == list(range(500))

    asyncio.run(scenario())


def test_tasks_may_take_turns_also_after_a_cancelled_poll() -> None:
    async def scenario() -> None:
        consumer = by_hand()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(LIMIT_S), 0.01)
        filled(consumer)
        for offset in range(3):
            (record,) = await asyncio.create_task(consumer.poll(max_records=1))
            assert record.offset == offset

    asyncio.run(scenario())


def test_a_callback_may_poll() -> None:
    async def scenario() -> None:
        consumer, polls = by_hand(), list[Any]()
        with consumer._core.alone(asyncio.current_task()):
            with pytest.raises(IllegalStateError, match=REFUSED):
                await asyncio.create_task(consumer.poll(0))
            polls.append(await consumer.poll(0))
        assert polls == [[]]

    asyncio.run(scenario())


def test_a_rebalance_callback_may_poll_within_the_poll_that_waits_for_it(make: Make) -> None:
    async def scenario() -> None:
        polls: list[Any] = []

        async def on_assigned(consumer: AsyncConsumer, partitions: list[Any]) -> None:
            polls.append(await consumer.poll(0))

        consumer, _ = in_group(make, on_assigned=on_assigned)
        while not polls:
            await consumer.poll(0.01)
        assert polls == [[]]
        await consumer.close()

    asyncio.run(scenario())


def test_a_reader_whose_event_loop_has_ended_blocks_nobody() -> None:
    consumer = by_hand()
    loop = asyncio.new_event_loop()
    task = loop.create_task(consumer.poll(LIMIT_S))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    filled(consumer)
    assert len(asyncio.run(consumer.poll())) == 500
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()  # type: ignore[union-attr]


def test_the_second_of_two_threads_is_refused() -> None:
    consumer, found = Consumer(bootstrap_servers="127.0.0.1:1"), list[Any]()
    consumer.assign([T0])
    thread = threading.Thread(target=lambda: found.append(consumer.poll(LIMIT_S)))
    thread.start()
    until(lambda: consumer._core.reading.inbox._sleeper is not None)
    for call in (lambda: consumer.poll(0), lambda: next(consumer), lambda: consumer.fetch_arrow(0)):
        with pytest.raises(IllegalStateError, match=REFUSED):
            call()
    filled(consumer)  # type: ignore[arg-type]
    thread.join(LIMIT_S)
    assert len(found[0]) == 500
    assert consumer.poll(0) != [], "one after the other, they may"
    consumer.close()
