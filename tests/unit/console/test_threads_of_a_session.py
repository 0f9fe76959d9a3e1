"""Threads that wait for a silent node: their number is bounded, also when no page waits for them any more."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from headrace_console.cluster import _in_thread
from tests.worlds.waiting import in_loop


@in_loop
async def test_a_caller_that_waits_no_longer_makes_no_room_for_a_further_thread() -> None:
    free, silent = asyncio.Semaphore(2), threading.Event()
    begun: list[int] = []

    def ask() -> str:
        begun.append(1)
        silent.wait(30)
        return "answer"

    try:
        for _ in range(5):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await _in_thread(free, ask)
        assert len(begun) == 2
    finally:
        silent.set()
    async with asyncio.timeout(10):
        assert await _in_thread(free, lambda: "again") == "again"
