"""Split long work in the event loop into turns, so that other tasks run every few milliseconds and work for a cancelled
call stops.

All long work of an event loop shares the turns. One piece of work runs, the other pieces queue, and after each turn the
loop runs no long work for three times as long as the turn took. Because long requests take turns, ten long requests
delay a short request no more than one long request does.

**Order.** Pieces of work of similar size (within a factor of four) form a class. A class completes its pieces one after
another in order of arrival, and the classes alternate. Of 50 equal pieces, the first is done after a fiftieth of the
total time. If all pieces shared the turns equally instead, their mean time would be twice as long. The classes take
turns in a round: each class with waiting pieces gets one turn in each round, so no class waits forever.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")
Result = TypeVar("Result")
Piece = TypeVar("Piece")

#: Seconds that one turn takes, and seconds of the pause after the turn (PAUSE_S): long work takes a quarter of the
#: event loop's time. The pause is in proportion to the length of the turn, and at most PAUSE_S_MAX.
TURN_S = 0.0015
PAUSE_S = 0.0045
PAUSE_S_MAX = 1.0
PAUSE_S_MIN = 0.001  #: Shorter pauses are omitted, because the event loop's timers have whole milliseconds.
SHORT_ITEMS = 200  #: Maximum number of items in work that does not count as long.
DESCRIPTION_ITEMS = 20  #: Number of items that the description of one configuration counts as.


class TurnOrder(Generic[Piece]):
    """The pieces of work that wait for a turn, in order. Pure."""

    def __init__(self) -> None:
        self._classes: dict[int, list[tuple[int, Piece]]] = {}
        self._served = -1

    def add(self, items: int, arrival: int, piece: Piece) -> None:
        """Add a piece. ``arrival``: a unique number that grows with each new piece; a piece keeps its number for all
        its turns."""
        heapq.heappush(self._classes.setdefault(items.bit_length() // 2, []), (arrival, piece))

    def next(self) -> Piece | None:
        """Remove and return the next piece of work; None if no work waits."""
        if not self._classes:
            return None
        larger = [each for each in self._classes if each > self._served]
        self._served = min(larger or self._classes)
        waiting = self._classes[self._served]
        _, piece = heapq.heappop(waiting)
        if not waiting:
            del self._classes[self._served]
        return piece


class _Desk:
    """Assigns the turns of one event loop."""

    def __init__(self) -> None:
        self.arrivals = itertools.count()
        self._order: TurnOrder[asyncio.Future[None]] = TurnOrder()
        self._is_taken = False
        self._holder: asyncio.Task[Any] | None = None

    async def turn(self, items: int, arrival: int, *, keeps_place: bool) -> None:
        """Wait for a turn. ``keeps_place``: the piece of work has a turn now, and the call of ``turn`` ends that turn.
        Raises CancelledError if the task is cancelled. Raises RuntimeError if the task already has a turn, because the
        task would wait for itself."""
        task = asyncio.current_task()
        if task is not None and self._holder is task and not keeps_place:
            raise RuntimeError(
                "a task that holds the turn asked for another turn, and would wait for itself; await the inner work "
                "with `turns.outside(...)`"
            )
        turn = asyncio.get_running_loop().create_future()
        self._order.add(items, arrival, turn)
        if keeps_place or not self._is_taken:
            self.hand_over()
        try:
            await turn
            self._holder = task
        except asyncio.CancelledError:
            if not turn.cancelled():  # the task got the turn and was cancelled at the same time
                self.hand_over()
            raise

    def leave(self) -> None:
        """Note that the task no longer has the turn, so that the task may ask for another turn, for inner work."""
        self._holder = None

    def hand_over(self, pause_s: float = 0.0) -> None:
        """Give the turn to the next piece of work in the queue, after a pause."""
        self._holder = None
        if pause_s >= PAUSE_S_MIN:
            asyncio.get_running_loop().call_later(pause_s, self.hand_over)
            return
        while (turn := self._order.next()) is not None:
            if not turn.done():
                turn.set_result(None)
                break
        self._is_taken = turn is not None


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = WeakKeyDictionary()


class Turns:
    """The turns of one piece of work on ``items`` items. A task that has a turn must not ask for another turn, except
    by ``outside``. Use ``async with Turns(n) as turns`` and, in the loop over the items, ``if turns.is_over(): await
    turns.next()``. ``async with`` and ``next`` raise CancelledError when the call was cancelled."""

    __slots__ = ("_arrival", "_desk", "_has_turn", "_items", "_until_s")

    def __init__(self, items: int) -> None:
        self._items = items
        self._desk = None if items <= SHORT_ITEMS else _desk_of_this_loop()
        self._arrival = 0 if self._desk is None else next(self._desk.arrivals)
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
        """Whether the present turn is used up. ``is_over`` is always False for short work, which does not read the
        clock."""
        return self._desk is not None and time.perf_counter() >= self._until_s

    async def next(self) -> None:
        """End the current turn, so that other tasks and other long work can run, and wait for the next turn."""
        if self._desk is not None:
            # The current work keeps the turn during the pause, so that other long work pauses too.
            await asyncio.sleep(self._pause_s())
        await self._begin()

    async def each(self, items: Iterable[Item], make: Callable[[Item], Result]) -> list[Result]:
        """``make`` of each item, in turns."""
        made = []
        for item in items:
            if self.is_over():
                await self.next()
            made.append(make(item))
        return made

    async def outside(self, work: Awaitable[Result]) -> Result:
        """Await ``work`` without a turn and return its result. ``work`` waits for a thread, a disk or an answer, or is
        long work with its own turns. Other pieces can have turns while ``work`` runs. The part of ``work`` before its
        first wait belongs to the turn."""
        if self._desk is None:
            return await work
        self._desk.leave()
        end = asyncio.get_running_loop().call_soon(self._end)
        try:
            return await work
        except asyncio.CancelledError:
            end.cancel()
            self._end()
            self._desk = None  # no more work follows in this task
            raise
        finally:
            if self._has_turn:  # the work has the turn if ``work`` did not wait
                end.cancel()
            else:
                await self._begin()

    async def _begin(self) -> None:
        if self._desk is not None:
            has_turn, self._has_turn = self._has_turn, False
            await self._desk.turn(self._items, self._arrival, keeps_place=has_turn)
            self._has_turn = True
        self._until_s = time.perf_counter() + TURN_S

    def _end(self) -> None:
        if self._desk is not None and self._has_turn:
            self._has_turn = False
            self._desk.hand_over(self._pause_s())

    def _pause_s(self) -> float:
        """The pause after the turn, which depends on the turn's length. A process that was stopped for a minute within
        a turn must not pause for three minutes."""
        return min((time.perf_counter() - self._until_s + TURN_S) * PAUSE_S / TURN_S, PAUSE_S_MAX)


def _desk_of_this_loop() -> _Desk:
    loop = asyncio.get_running_loop()
    desk = _desks.get(loop)
    if desk is None:
        desk = _desks[loop] = _Desk()
    return desk
