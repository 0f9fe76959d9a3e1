"""Long work in the event loop, in turns: others go on every few milliseconds, and work for a cancelled call stops.

All long work of a loop shares its turns: one piece is at work, the others queue, and after each turn the loop is free
of long work for a while. So ten long requests delay a short one as much as one long request does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar
from weakref import WeakKeyDictionary

Result = TypeVar("Result")

#: How long one turn may take, and how long all others have the loop after it: long work takes a quarter of the loop.
TURN_S = 0.003
PAUSE_S = 0.009
#: So few items are no long work.
SHORT_ITEMS = 200
#: Items that the description of one configuration stands for.
DESCRIPTION_ITEMS = 20

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turns:
    """Of one piece of work on ``items`` items. ``async with Turns(n) as turns``, and in its loop
    ``if turns.is_over(): await turns.next()``. CancelledError, at either: the call for which it is done was cancelled.
    """

    __slots__ = ("_has_turn", "_lock", "_until_s")

    def __init__(self, items: int) -> None:
        self._lock = None if items <= SHORT_ITEMS else _lock_of_this_loop()
        self._has_turn = False
        self._until_s = 0.0

    async def __aenter__(self) -> Turns:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def is_over(self) -> bool:
        """Has this turn taken its time? Never for short work, which does not look at the clock."""
        return self._lock is not None and time.perf_counter() >= self._until_s

    async def next(self) -> None:
        """Let the event loop do what waits, and other long work have a turn."""
        if self._lock is not None:
            await asyncio.sleep(PAUSE_S)  # with the lock: other long work pauses too
            self._end()
        await self._begin()

    async def outside(self, work: Awaitable[Result]) -> Result:
        """The result of ``work``, which waits for a thread or a disk and not for this loop: others have their turns
        meanwhile, however long it takes."""
        self._end()
        try:
            return await work
        except asyncio.CancelledError:
            self._lock = None  # there is no more work to come
            raise
        finally:
            await self._begin()

    async def _begin(self) -> None:
        if self._lock is not None:
            await self._lock.acquire()
            self._has_turn = True
        self._until_s = time.perf_counter() + TURN_S

    def _end(self) -> None:
        if self._lock is not None and self._has_turn:
            self._has_turn = False
            self._lock.release()


def _lock_of_this_loop() -> asyncio.Lock:
    loop = asyncio.get_running_loop()
    lock = _locks.get(loop)
    if lock is None:
        lock = _locks[loop] = asyncio.Lock()
    return lock
