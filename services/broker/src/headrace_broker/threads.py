"""Threads for what would stall the event loop: reads that wait for the disk (design, 12, rule 10), decompression."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkThreads:
    """A few threads, started when the first work comes."""

    __slots__ = ("_loop", "_pool", "_size")

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int = 2) -> None:
        self._loop = loop
        self._size = size
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """The result of ``work``, which runs in one of the threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._size, thread_name_prefix="work")
        return self._loop.run_in_executor(self._pool, work)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """From a thread: have the loop call ``callback``. A loop that has ended calls nobody."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Let running work end; start no more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
