"""Cancel a call of an asyncio client at each of its suspension points. No clock decides where.

A call suspends in the event loop of its caller, and its work suspends on the I/O thread. ``cut_everywhere`` repeats a
call. It cancels the first repetition at the first suspension point, the second one at the second point, and so on,
until a repetition ends before its point:

* BEFORE: when the call begins to wait in the caller's loop.
* AFTER: when that for which it waits has happened, and before the call continues: the result is lost.
* INSIDE: when the work begins to wait on the I/O thread. The thread stands still until the caller has left.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from enum import Enum
from typing import Any

import anyio
import pytest
import uvloop

from headrace.engine import io_thread
from headrace.engine.io_thread import IoThread
from tests.worlds.this_process import ALL

POINTS_MAX = 100
#: Turns of the caller's loop in which a cancelled call leaves its caller.
TURNS = 8


class Place(Enum):
    BEFORE = "before"
    AFTER = "after"
    INSIDE = "inside"


class Cancelled:
    """The outcome of a call that was cancelled."""


#: `make test` cuts on one of them, `make test-deep` on all.
RUNTIMES = ("asyncio", "uvloop", "anyio") if ALL else ("asyncio",)
#: The number of cancelled repetitions of a call that suspends once. (anyio does not cancel what has just happened.)
LEAST = {"asyncio": 2, "uvloop": 2, "anyio": 1}


def run(runtime: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if runtime == "uvloop" else None) as runner:
        runner.run(main())


class Cut:
    """Cancels one call at its ``number``-th suspension point in ``place``."""

    def __init__(self, place: Place, number: int) -> None:
        self.place, self.number = place, number
        self.is_reached = False
        self.cancel: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._inside = 0

    def in_caller(self, number: int, awaited: Any) -> None:
        if self.place is Place.INSIDE or number != self.number:
            return
        self.is_reached = True
        if self.place is Place.BEFORE or awaited is None:
            self.cancel()
        else:
            awaited.add_done_callback(lambda _: self.cancel())

    def on_io_thread(self, number: int, awaited: Any) -> None:
        self._inside += 1
        if self.place is Place.INSIDE and self._inside == self.number:
            self.is_reached = True
            has_left = threading.Event()
            self._loop.call_soon_threadsafe(self._cancel, has_left)
            assert has_left.wait(30)

    def _cancel(self, has_left: threading.Event, turns: int = TURNS) -> None:
        if turns == TURNS:
            self.cancel()
        if turns:
            self._loop.call_soon(self._cancel, has_left, turns - 1)
        else:
            has_left.set()


_cut: contextvars.ContextVar[Cut | None] = contextvars.ContextVar("cut", default=None)


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that calls ``reached`` at each suspension point, with its number and what is awaited there."""

    def __init__(self, work: Awaitable[Any], reached: Callable[[int, Any], None]) -> None:
        self._steps: Any = work if isinstance(work, Coroutine) else work.__await__()
        self._reached = reached
        self._number = 0

    def _step(self, awaited: Any) -> Any:
        self._number += 1
        self._reached(self._number, awaited)
        return awaited

    def send(self, value: Any) -> Any:
        return self._step(self._steps.send(value))

    def throw(self, *error: Any) -> Any:
        return self._step(self._steps.throw(*error))

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # type: ignore[return-value]

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the work that a call starts on the I/O thread report its suspension points."""
    begin = io_thread._Outcome.__init__

    def begin_stepped(self: Any, io: IoThread, work: Coroutine[Any, Any, Any], *more: Any) -> None:
        cut = _cut.get()
        begin(self, io, work if cut is None else _Stepped(work, cut.on_io_thread), *more)  # type: ignore[arg-type]

    monkeypatch.setattr(io_thread._Outcome, "__init__", begin_stepped)


async def _cut_call(call: Callable[[], Awaitable[Any]], cut: Cut, runtime: str) -> Any:
    """The result of the call, its exception, or Cancelled."""

    async def body() -> Any:
        _cut.set(cut)
        if runtime != "anyio":
            return await _Stepped(call(), cut.in_caller)
        with anyio.CancelScope() as scope:
            cut.cancel = scope.cancel
            return await _Stepped(call(), cut.in_caller)
        return Cancelled

    task = asyncio.create_task(body())
    cut.cancel = task.cancel
    await asyncio.wait([task])
    if task.cancelled():
        return Cancelled
    return task.exception() or task.result()


async def cut_everywhere(runtime: str, call: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Repeat ``call`` with a cut at each of its points, and yield each outcome. Before the next one the caller checks
    the client, and brings it into the state in which the call begins."""
    for place in Place:
        for number in range(1, POINTS_MAX):
            cut = Cut(place, number)
            outcome = await _cut_call(call, cut, runtime)
            if isinstance(outcome, BaseException):
                outcome.add_note(f"cut {place.value} point {number}")
            yield outcome
            if not cut.is_reached:
                break
        else:
            raise AssertionError(f"{place.value}: more than {POINTS_MAX} points")
