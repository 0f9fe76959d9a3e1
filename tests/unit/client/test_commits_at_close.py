"""Commits in flight when a group member closes: the member leaves after them, or they end with a typed error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace import AsyncConsumer, TopicPartition
from headrace.errors import ClosedError, RequestTimedOutError
from tests.unit.client.test_async_consumer_and_its_loop import Closing
from tests.unit.client.test_group_consumer import LIMIT_S, T0, Make, Party, make, parties, run
from tests.worlds.this_process import logged

__all__ = ["make", "parties"]


async def member(make: Make, **more: Any) -> tuple[AsyncConsumer, Party]:
    """A member that owns t-0, with the public class around it. ``more``: callbacks and settings."""
    callbacks = {name: more.pop(name) for name in list(more) if name.startswith("on_")}
    party = make(Closing(0), **{"enable_auto_commit": False, **more})
    loop = asyncio.get_running_loop()
    # As on the I/O thread: coroutines start in the order of their calls.
    party.io.submit = lambda work: asyncio.run_coroutine_threadsafe(work, loop)
    party.io.run_async = lambda work: asyncio.wrap_future(party.io.submit(work))
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:1")
    consumer._finalizer.detach()
    consumer._core = party.core
    consumer.subscribe(["t"], **callbacks)
    await party.until(lambda: party.core.reading.partitions)
    return consumer, party


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


def test_member_leaves_after_its_commits_in_flight(make: Make) -> None:
    async def scenario() -> None:
        consumer, party = await member(make)
        coordinator = party.coordinator
        coordinator.may_commit.clear()
        futures = [consumer.commit_async({T0: offset}) for offset in (5, 6)]
        closing = asyncio.create_task(consumer.close(LIMIT_S))
        await turns()
        assert not closing.done()
        assert coordinator.goodbyes == 0, "the coordinator would refuse the second commit"
        coordinator.may_commit.set()
        await closing
        assert [future.done() and future.result() for future in futures] == [None, None]
        assert [request.offsets[0].offset for request in coordinator.commits] == [5, 6]
        assert coordinator.goodbyes == 1

    run(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_close_waits_for_a_commit_that_on_revoked_starts(make: Make, *, fails: bool) -> None:
    async def scenario() -> None:
        futures: list[asyncio.Future[None]] = []

        def revoked(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            futures.append(consumer.commit_async({T0: 7}))
            if fails:
                raise ValueError("a user's mistake")

        consumer, party = await member(make, on_revoked=revoked)
        party.coordinator.may_commit.clear()
        closing = asyncio.create_task(consumer.close(LIMIT_S))
        await turns()
        assert party.coordinator.goodbyes == 0
        party.coordinator.may_commit.set()
        if fails:
            with pytest.raises(ValueError, match="a user's mistake"):
                await closing
        else:
            await closing
        assert futures[0].done()
        assert futures[0].result() is None
        assert party.coordinator.goodbyes == 1

    run(scenario)


def test_commit_that_has_not_ended_in_time_raises_that_its_outcome_is_unknown(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        consumer, party = await member(make)
        party.coordinator.may_commit.clear()
        errors: list[BaseException | None] = []
        first = consumer.commit_async({T0: 5}, lambda offsets, error: errors.append(error))
        second = consumer.commit_async({T0: 6})  # waits for the first
        async with asyncio.timeout(LIMIT_S):
            await consumer.close(1.0)
        for future in (first, second):
            with pytest.raises(RequestTimedOutError, match="the commit may or may not have taken effect"):
                await future
        assert [type(error) for error in errors] == [RequestTimedOutError]
        assert party.coordinator.goodbyes == 1, "the commits leave time for the leave request"
        await party.away_until(lambda: not party.io.tasks)

    with caplog.at_level(logging.WARNING, "headrace"):
        run(scenario)
    assert caplog.text.count("the consumer was closed with 2 commits in flight") == 1


def test_consumer_that_is_dropped_ends_its_commits_with_the_same_error(make: Make) -> None:
    async def scenario() -> None:
        consumer, party = await member(make)
        party.coordinator.may_commit.clear()
        future = consumer.commit_async({T0: 5})
        await party.away_until(lambda: party.coordinator.commits)
        party.core.at_exit()
        with pytest.raises(RequestTimedOutError, match="may or may not"):
            await asyncio.wait_for(future, LIMIT_S)
        with pytest.raises(ClosedError):
            await party.group.commit_work({})

    run(scenario)


def test_close_logs_no_repetition_of_an_auto_commit_that_it_ends(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        consumer, party = await member(make, enable_auto_commit=True, auto_commit_interval_ms=1)
        party.coordinator.may_commit.clear()
        party.read_up_to(20)
        await party.until(lambda: party.coordinator.commits)
        await consumer.close(0.2)
        await party.away_until(lambda: not party.io.tasks)

    with caplog.at_level(logging.WARNING, "headrace"):
        run(scenario)
    assert "the consumer was closed with 1 commit in flight" in caplog.text
    assert not any("the next auto-commit repeats it" in each.getMessage() for each in logged(caplog))


def test_interrupted_close_does_not_wait_for_commits_and_leaves(make: Make) -> None:
    async def scenario() -> None:
        def interrupts(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            raise asyncio.CancelledError

        consumer, party = await member(make, on_revoked=interrupts)
        party.coordinator.may_commit.clear()
        future = consumer.commit_async({T0: 5})
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(consumer.close(LIMIT_S), LIMIT_S / 2)
        assert party.coordinator.goodbyes == 1
        with pytest.raises(RequestTimedOutError):
            await future

    run(scenario)
