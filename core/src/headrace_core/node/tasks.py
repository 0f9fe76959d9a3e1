"""The background tasks of a node. When a background task ends, the node stops, because it cannot continue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import HeadraceError

T = TypeVar("T")


class NodeTasks:
    """The background tasks of one broker or coordinator; ``role`` is for the error message."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    @property
    def has_failed(self) -> bool:
        """Whether a task has ended."""
        return any(task.done() for task in self._tasks)

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, or raise the error of a background task that ends before ``work``."""
        task = asyncio.create_task(work)
        await asyncio.wait([task, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            self._raise_failure()
        return await task

    async def run_until(self, stop: asyncio.Event) -> None:
        """Wait until ``stop`` is set; raises the error of a background task that ends before ``stop`` is set."""
        waiting = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                self._raise_failure()
        finally:
            waiting.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks; returns when they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _raise_failure(self) -> None:
        for failed in self._tasks:
            if failed.done() and not failed.cancelled():
                failed.result()
                raise HeadraceError(
                    f"the {self._role}'s {failed.get_name()} task ended unexpectedly; the {self._role} stops"
                )
