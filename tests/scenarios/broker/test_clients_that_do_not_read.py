"""Clients that ask and ask and never read what they are told: what the broker keeps for them is bounded."""

from __future__ import annotations

import asyncio
import itertools

from solo_broker import FakeStream, SoloBroker, batch, fetch, produce

from headrace_broker.handlers.fetch import QUEUED_BYTES_MAX
from headrace_broker.handlers.produce import UNREAD_BYTES_MAX
from headrace_core.testing.crashing_fs import CrashingFileSystem

REQUESTS_MAX = 100_000


def bytes_kept(stream: FakeStream) -> int:
    return sum(answer.ByteSize() for answer in stream.sent)


def test_a_producer_is_held_back_while_it_leaves_its_answers_unread():
    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem()) as broker:
            await broker.topic("orders")
            handler, stream = broker.producer()
            one = batch(b"a")
            for number in itertools.count():
                assert number < REQUESTS_MAX, "never held back"
                handler.on_request(produce(number, "nowhere" * 30, one))
                if stream.paused:
                    break
            assert bytes_kept(stream) <= UNREAD_BYTES_MAX + 4096
            stream.queued_bytes = UNREAD_BYTES_MAX // 2 + 1
            handler.on_written()
            assert stream.paused
            stream.queued_bytes -= 1
            handler.on_written()
            assert not stream.paused
            handler.on_closed()
            assert (await broker.append("orders", one)).base_offset == 0

    asyncio.run(scenario())


def test_a_consumer_is_held_back_even_if_its_unread_answers_are_empty():
    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem()) as broker:
            for requests in (
                lambda number: fetch(number, max_wait_ms=0),
                lambda number: fetch(number, "n" * 10_000, max_wait_ms=0),
            ):
                handler, stream = broker.consumer()
                for number in itertools.count():
                    assert number < REQUESTS_MAX, "never held back"
                    handler.on_request(requests(number))
                    if stream.paused:
                        break
                assert bytes_kept(stream) <= QUEUED_BYTES_MAX + 64 * 1024
                handler.on_closed()

    asyncio.run(scenario())
