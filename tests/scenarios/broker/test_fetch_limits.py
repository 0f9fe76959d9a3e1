"""What the broker's own limits do to an answer."""

from __future__ import annotations

import asyncio

from solo_broker import SoloBroker, batch, fetch

from headrace_broker.context import BrokerLimits
from headrace_core.testing.crashing_fs import CrashingFileSystem


def test_the_brokers_fetch_max_bytes_bounds_an_answer_that_the_client_does_not_bound():
    async def scenario() -> None:
        one = batch(b"x" * 2000)
        async with SoloBroker(CrashingFileSystem(), limits=BrokerLimits(fetch_bytes_max=2 * len(one) + 1)) as broker:
            await broker.topic("orders")
            for _ in range(5):
                assert not (await broker.append("orders", one)).error.code
            consumer, answers = broker.consumer()
            for number in range(3):
                consumer.on_request(fetch(number, *(["orders"] if number == 0 else []), max_wait_ms=0))
            await answers.wait_sent(3)
            assert [answer.results[0].next_offset for answer in answers.sent] == [2, 4, 5]
            consumer.on_closed()

    asyncio.run(scenario())
