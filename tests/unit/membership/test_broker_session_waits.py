"""The waits of a broker's session: their ends, and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from headrace_core.membership.node_session import wait_for_event


@pytest.mark.parametrize("turns", range(5))
def test_a_wait_that_is_cancelled_just_as_its_event_is_set_is_cancelled(turns: int) -> None:
    """A broker never stopped, because its heartbeat task was cancelled in the same turn of the event loop in which it
    was woken."""

    async def work() -> bool:
        event = asyncio.Event()
        waiting = asyncio.create_task(wait_for_event(event, 10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.done():  # it had ended before
            return True
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return waiting.cancelled()

    assert asyncio.run(work())


def test_a_wait_ends_with_its_time() -> None:
    asyncio.run(wait_for_event(asyncio.Event(), 0.01))
