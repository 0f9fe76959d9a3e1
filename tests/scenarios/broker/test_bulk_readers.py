"""Bulk readers of a broker take turns, and the broker serves other clients between two large responses."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from headrace_broker.flow import BULK_BYTES
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.solo_broker import FakeStream, SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

READERS, BATCHES = 4, 12
LARGE = b"x" * (BULK_BYTES * 2)


class Passes:
    """Counts the passes of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._loop.call_soon(self._next)


class Reader:
    """A consumer that reads a topic from its start with ``max_bytes`` of one batch, and takes each response at once."""

    def __init__(self, broker: SoloBroker, name: str, passes: Passes, answered: list[tuple[int, str]]) -> None:
        self.handler, self.stream = broker.consumer()
        self.name, self._passes, self._answered = name, passes, answered
        self._send = self.stream.send
        self.stream.send = self._sent  # type: ignore[method-assign]

    def ask(self, correlation_id: int, *topics: str) -> None:
        request = fetch(correlation_id, *topics)
        request.max_bytes = 1
        self.handler.on_request(request)

    def _sent(self, response: Any, size: int = 0) -> None:
        self._send(response, size)
        self.stream.queued_bytes = 0
        self._answered.append((self._passes.number, self.name))

    @property
    def read(self) -> int:
        """Records that were read."""
        return sum(len(result.records) > 0 for answer in self.stream.sent for result in answer.results)


def run_readers(count: int) -> tuple[list[tuple[int, str]], list[FakeStream]]:
    async def scenario() -> tuple[list[tuple[int, str]], list[FakeStream]]:
        async with SoloBroker(CrashingFileSystem()) as broker:
            await broker.topic("history")
            for _ in range(BATCHES):
                assert (await broker.append("history", batch(LARGE))).error.code == 0
            answered: list[tuple[int, str]] = []
            passes = Passes()
            readers = [Reader(broker, f"reader-{number}", passes, answered) for number in range(count)]
            for reader in readers:
                reader.ask(0, "history")
                for number in range(1, BATCHES):
                    reader.ask(number)
            await until(lambda: all(reader.read == BATCHES for reader in readers))
            for reader in readers:
                reader.handler.on_closed()
            return answered, [reader.stream for reader in readers]

    return asyncio.run(scenario())


def test_one_pass_of_the_event_loop_has_at_most_one_large_response() -> None:
    answered, _ = run_readers(READERS)
    later = answered[READERS:]  # the first response of a session: the broker does not know yet that it reads in bulk
    numbers = [number for number, _ in later]
    assert len(later) == READERS * (BATCHES - 1)
    assert all(after > before for before, after in itertools.pairwise(numbers)), numbers


def test_bulk_readers_take_turns() -> None:
    answered, _ = run_readers(READERS)
    names = [name for _, name in answered]
    for at in range(0, len(names), READERS):
        assert len(set(names[at : at + READERS])) == READERS, names


def test_the_responses_in_turns_are_complete_and_in_order() -> None:
    _, streams = run_readers(READERS)
    for stream in streams:
        results = [result for answer in stream.sent for result in answer.results]
        assert [result.fetch_offset for result in results] == list(range(BATCHES))
        assert [result.next_offset for result in results] == list(range(1, BATCHES + 1))
        assert [answer.correlation_id for answer in stream.sent] == list(range(BATCHES))


@in_loop
async def test_a_reader_that_leaves_before_its_turn_stops_no_other_reader() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("history")
        for _ in range(3):
            await broker.append("history", batch(LARGE))
        answered: list[tuple[int, str]] = []
        passes = Passes()
        gone, stays = (Reader(broker, name, passes, answered) for name in ("gone", "stays"))
        for reader in (gone, stays):
            reader.ask(0, "history")
            reader.ask(1)
        gone.handler.on_closed()
        await until(lambda: stays.read == 2)
        assert gone.read <= 1
        stays.handler.on_closed()
