"""A value that is sampled in the background: pages show the last sample and its age, and never wait for a new
sample."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace_core.errors import HeadraceError

logger = logging.getLogger("headrace.console")

T = TypeVar("T")

#: Seconds after the last page view during which the value is sampled at the short interval.
VIEWED_S = 60.0


@dataclass(frozen=True, slots=True)
class Sampled(Generic[T]):
    """A sample. ``taken_s``: the ``time.monotonic()`` at which the requests of the sample ended."""

    value: T
    taken_s: float

    @property
    def age_s(self) -> float:
        return max(0.0, time.monotonic() - self.taken_s)


class Refreshing(Generic[T]):
    """Samples ``take`` every ``interval_s`` while pages are viewed, else every ``idle_interval_s`` (None: not at all).

    ``error`` is the reason why the last attempt to take a sample failed; the previous sample is then kept.
    """

    def __init__(
        self, name: str, take: Callable[[], Awaitable[T]], *, interval_s: float, idle_interval_s: float | None
    ) -> None:
        self._name = name
        self._take = take
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._viewed_s = -VIEWED_S
        self._wanted = asyncio.Event()
        self._ended = asyncio.Event()  # set when an attempt has ended, and replaced before the next one ends
        self.last: Sampled[T] | None = None
        self.error: HeadraceError | None = None

    def view(self) -> Sampled[T] | None:
        """Return the last sample, and record that a page needs the value."""
        is_idle = time.monotonic() - self._viewed_s >= VIEWED_S
        self._viewed_s = time.monotonic()
        if is_idle:
            self._wanted.set()
        return self.last

    async def viewed(self, timeout_s: float) -> Sampled[T] | None:
        """Return the last sample; wait for the first sample for at most ``timeout_s``."""
        found = self.view()
        return found if found is not None or self.error is not None else await self._after(timeout_s)

    async def again(self, timeout_s: float) -> Sampled[T] | None:
        """Return a sample that begins after this call; if none is ready after ``timeout_s``, return the last sample."""
        self.view()
        deadline = time.monotonic() + timeout_s
        self._wanted.set()
        ended = self._ended  # an attempt that runs now may have begun before the call
        running = self._is_running
        await self._wait(ended, deadline)
        if running:
            self._wanted.set()
            await self._wait(self._ended, deadline)
        return self.last

    async def run(self) -> None:
        """Take samples until the task is cancelled."""
        while True:
            self._wanted.clear()
            self._is_running = True
            try:
                self.last = Sampled(await self._take(), time.monotonic())
                self.error = None
            except HeadraceError as error:
                self.error = error
            except Exception:
                logger.exception("sampling %s failed", self._name)
            self._is_running = False
            ended, self._ended = self._ended, asyncio.Event()
            ended.set()
            await self._pause()

    _is_running = False

    async def _pause(self) -> None:
        """Wait until the next sample is due: after the interval, or at the first page view after an idle time."""
        begun = time.monotonic()
        while True:
            is_viewed = time.monotonic() - self._viewed_s < VIEWED_S
            interval = self._interval_s if is_viewed else self._idle_interval_s
            left = None if interval is None else begun + interval - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await self._wanted.wait()
                return
            except TimeoutError:
                continue

    async def _after(self, timeout_s: float) -> Sampled[T] | None:
        await self._wait(self._ended, time.monotonic() + timeout_s)
        return self.last

    @staticmethod
    async def _wait(event: asyncio.Event, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await event.wait()
        except TimeoutError:
            pass
