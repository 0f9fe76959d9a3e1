"""Simulated work for handlers and writers of tests. The sleep is the work itself, not a wait for a state."""

from __future__ import annotations

import asyncio
import time


def work(seconds: float) -> None:
    """Block for ``seconds``, like a call to a database."""
    time.sleep(seconds)


async def work_async(seconds: float) -> None:
    """Sleep for ``seconds`` without blocking the event loop."""
    await asyncio.sleep(seconds)
