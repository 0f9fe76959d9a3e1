"""Poll a condition until it is true; a loop for a test that is a coroutine; a clock that a test sets forward; bounds on
time, which only `make verify` judges."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

from headrace_core.testing.verdicts import NotInTimeError

#: Time limit: a slow machine that runs other tests may need this long for work of milliseconds.
WAIT_S = 60.0
#: `make verify` sets this environment variable, and so makes bounds on time verdicts.
JUDGE_TIMES = "HEADRACE_JUDGE_TIMES"


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "",
    within_s: float = WAIT_S,
    *,
    pause_s: float = 0.005,
) -> Any:
    """Call ``condition`` every ``pause_s`` seconds, and return its first true value.

    ``what`` names the condition in the error; the default is the source text of ``condition``. Raises NotInTimeError if
    no value is true within ``within_s``.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise _late(condition, what, within_s)
        time.sleep(pause_s)
    return value


def check_in_time(began_s: float, within_s: float, what: str = "", ended_s: float | None = None) -> None:
    """Raise NotInTimeError if more than ``within_s`` seconds have passed from ``began_s`` to ``ended_s``, by default to
    now (of time.monotonic()); only where JUDGE_TIMES is set, since a clock judges the machine too."""
    check_took((time.monotonic() if ended_s is None else ended_s) - began_s, within_s, what)


def check_spent(began_s: float, within_s: float, what: str = "") -> None:
    """The same for this thread's processor time, from ``began_s`` of time.thread_time(). A computation that explodes
    fails everywhere, by the time limit of its test."""
    check_took(time.thread_time() - began_s, within_s, what)


def check_took(took_s: float, within_s: float, what: str = "") -> None:
    """The same for a measured time."""
    if took_s >= within_s and os.environ.get(JUDGE_TIMES):
        raise NotInTimeError(f"{took_s:.1f} s have passed, allowed are {within_s:g} s" + (f": {what}" if what else ""))


async def until_async(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "",
    within_s: float = WAIT_S,
    *,
    pause_s: float = 0.002,
) -> Any:
    """Wait like ``until``, but let the event loop run between two calls."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise _late(condition, what, within_s)
        await asyncio.sleep(pause_s)
    return value


def _late(condition: Callable[[], Any], what: str | Callable[[], str], within_s: float) -> NotInTimeError:
    if callable(what):
        what = what()
    if not what:
        try:
            what = inspect.getsource(condition).strip()
        except (OSError, TypeError):  # not a function, or a function without a source file
            what = repr(condition)
    return NotInTimeError(f"not within {within_s:g} s: {what}")


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


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


def work(seconds: float) -> None:
    """Block for ``seconds``, like a call to a database."""
    time.sleep(seconds)


async def work_async(seconds: float) -> None:
    """Sleep for ``seconds`` without blocking the event loop."""
    await asyncio.sleep(seconds)
