"""The clock of an event loop, which a test sets forward: a time limit of minutes passes at once, and a slow machine
never reaches it by itself."""

from __future__ import annotations

import asyncio


class LoopClock:
    """The clock of ``loop``, by default of the running loop. Time also passes by itself, so that short waits end."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        loop = loop or asyncio.get_running_loop()
        self._ahead_s = 0.0
        real = loop.time
        loop.time = lambda: real() + self._ahead_s  # type: ignore[method-assign]

    def forward(self, seconds: float) -> None:
        """Set the clock forward. Timers that are due then run in the next round of the loop."""
        self._ahead_s += seconds
