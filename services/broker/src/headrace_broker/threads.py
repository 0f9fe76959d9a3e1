"""Threads for work that would stall the event loop: reads that wait for the disk, decompression."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from headrace_core.rpc.event_loop import StartedThreads

T = TypeVar("T")

#: Seconds of CPU time above which a piece of work counts as long, such as decompressing a batch of 32 MiB. After long
#: work, lanes whose last work was long wait for REST_TIMES the length of the work. With these pauses, all long work
#: together uses a quarter of a core.
LONG_S, REST_TIMES = 0.05, 3


class Rests:
    """Decides when the next long work of a lane may start. Each partition (or other owner of work) has a lane. Lanes
    whose last work was long share a quarter of a core; work of other lanes never waits. Pure; all times are in seconds
    of one clock."""

    __slots__ = ("_free_s", "_last_s")

    def __init__(self) -> None:
        self._last_s: dict[Hashable, float] = {}  # duration of a lane's last work, if that work was long
        self._free_s = 0.0

    def begin(self, lane: Hashable, now_s: float) -> float:
        """Begin the next work of one lane, or return how many seconds this work must wait."""
        expected_s = self._last_s.get(lane)
        if expected_s is None:
            return 0.0
        if self._free_s > now_s:
            return self._free_s - now_s
        self._free_s = now_s + (1 + REST_TIMES) * expected_s
        return 0.0

    def ended(self, lane: Hashable, now_s: float, took_s: float) -> None:
        """Record that work of one lane took ``took_s`` seconds of CPU time."""
        if took_s < LONG_S:
            self._last_s.pop(lane, None)
            return
        self._last_s[lane] = took_s
        self._free_s = max(self._free_s, now_s + REST_TIMES * took_s)


class WorkThreads:
    """Threads for one kind of work. All threads start with ``begin``; before ``begin``, the event loop's default
    threads do the work."""

    __slots__ = ("_loop", "_pool", "_resting", "_rests", "_size")

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int = 2) -> None:
        self._loop = loop
        self._size = size
        self._pool: StartedThreads | None = None
        self._rests = Rests()
        self._resting: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Start all threads."""
        self._pool = StartedThreads(self._size, "work")

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in one of the threads."""
        return self._loop.run_in_executor(self._pool, work)

    def run_rested(self, lane: Hashable, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` in one of the threads, for work whose duration depends on a client (see ``Rests``). The caller
        must run only one piece of work of a lane at a time."""

        def timed() -> T:
            began_s = time.thread_time()
            try:
                return work()
            finally:
                self._rests.ended(lane, time.monotonic(), time.thread_time() - began_s)

        if not (rest_s := self._rests.begin(lane, time.monotonic())):
            return self.run(timed)

        async def rested(rest_s: float) -> T:
            while rest_s:
                await asyncio.sleep(rest_s)
                rest_s = self._rests.begin(lane, time.monotonic())
            self._resting.discard(task)
            return await self.run(timed)

        task = self._loop.create_task(rested(rest_s))
        self._resting.add(task)
        return task

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Let the event loop call ``callback``, unless the loop has ended; meant for calls from other threads."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Let running work finish, and start no new work."""
        for task in self._resting:
            task.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
