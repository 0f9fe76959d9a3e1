"""Callbacks of the user: checked when they are given, run, and kept from waiting on the I/O thread.

Delivery and commit callbacks run on the I/O thread, which serves every client of the process. A call that waits there
waits for itself, and every client with it. ``refuse_to_wait`` is the check in front of each blocking wait.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from headrace_core.errors import IllegalStateError, InvalidArgumentError

logger = logging.getLogger("headrace")

#: The I/O thread, while there is one, and the name of the callback that it is in.
_io_thread: threading.Thread | None = None
_inside: str | None = None


def set_io_thread(thread: threading.Thread | None) -> None:
    """``thread`` is the I/O thread from now on; None: there is none (any more)."""
    global _io_thread, _inside
    _io_thread, _inside = thread, None


def on_io_thread() -> bool:
    """Whether the caller runs on the I/O thread."""
    return _io_thread is not None and threading.current_thread() is _io_thread


def refuse_to_wait(call: str | None = None) -> None:
    """IllegalStateError on the I/O thread. ``call``: what would wait; None: the client's method on the stack."""
    if on_io_thread():
        raise IllegalStateError(waiting_text(call or f"{_method_on_stack()}()"))


def waiting_text(call: str) -> str:
    """Why ``call`` cannot wait where it is, and what to do."""
    where = f"in the callback {_inside}" if _inside else "on Headrace's I/O thread"
    return (
        f"{call} cannot wait {where}: callbacks run on the thread that does the I/O of every client of the process; "
        f"hand {call} to another thread, or use send() there without waiting for its result"
    )


def _method_on_stack() -> str:
    """The outermost public function of this package among the frames up to the user's code."""
    found = "a blocking call"
    at: Any = sys._getframe(2)
    while at is not None and str(at.f_globals.get("__name__", "")).partition(".")[0] == "headrace":
        if not at.f_code.co_name.startswith(("_", "<")):
            found = at.f_code.co_name
        at = at.f_back
    return found


def check_callback(name: str, callback: Any, *, may_be_async: bool = False) -> None:
    """InvalidArgumentError unless ``callback`` is None or callable. ``may_be_async``: coroutine functions are too."""
    if callback is None:
        return
    if not callable(callback):
        raise InvalidArgumentError(f"{name}={callback!r:.80}: must be callable, or None")
    is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)
    if is_async and not may_be_async:
        raise InvalidArgumentError(f"{name}={name_of(callback)}: must be a plain function; nothing awaits a coroutine")


def name_of(callback: Any) -> str:
    """How errors and logs call a callback."""
    wrapped = getattr(callback, "wrapped", callback)
    return str(getattr(wrapped, "__qualname__", None) or type(wrapped).__qualname__)


def run_callback(callback: Callable[..., object], *arguments: Any) -> None:
    """Call it. What it raises is logged, on the I/O thread ``sys.exit()`` too: nothing that a user's function does may
    stop that thread, or look like a failure of the call that ran it. Elsewhere Ctrl-C and its like are raised."""
    global _inside
    is_io, before = on_io_thread(), _inside
    if is_io:
        _inside = name_of(callback)
    try:
        callback(*arguments)
    except BaseException as error:
        logger.exception("the callback %s failed", name_of(callback))
        if not is_io and not isinstance(error, Exception):
            raise
    finally:
        if is_io:
            _inside = before
