"""Poll a condition for a limited time. A failure names what did not happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from headrace_core.testing.verdicts import NotInTimeError

#: The limit: what a slow machine that runs other tests needs for what takes milliseconds.
WAIT_S = 60.0


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "",
    within_s: float = WAIT_S,
    *,
    pause_s: float = 0.005,
) -> Any:
    """The first true value of ``condition``, which is called every ``pause_s``.

    ``what``: names the condition in the error, the source of ``condition`` if empty.
    Raises NotInTimeError if there is no true value ``within_s``.
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
    """As ``until``; the event loop runs on between two looks."""
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
        except (OSError, TypeError):  # no function, or one without a file
            what = repr(condition)
    return NotInTimeError(f"not within {within_s:g} s: {what}")
