"""Work that takes a while, for handlers and writers of tests: the time is the work itself, and no wait for a state."""

from __future__ import annotations

import asyncio
import time


def work(seconds: float) -> None:
    """Take ``seconds``, as a call to a database does."""
    time.sleep(seconds)


async def work_async(seconds: float) -> None:
    """Take ``seconds`` without blocking the event loop."""
    await asyncio.sleep(seconds)
