"""Poll a condition until it is true, for a limited time. The error of a failed wait names the condition."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from headrace_core.testing.verdicts import NotInTimeError

#: Time limit: a slow machine that runs other tests may need this long for work of milliseconds.
WAIT_S = 60.0


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
