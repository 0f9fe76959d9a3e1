"""User callbacks: check them, run them, and keep them from blocking the I/O thread.

Delivery and commit callbacks run on the I/O thread, which serves every client of the process. A blocking call in a
delivery or commit callback would wait for its own thread and stop every client. Each call that blocks first calls
``refuse_to_wait``.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

from headrace_core.errors import IllegalStateError, InvalidArgumentError
from headrace_core.real_threads import Thread, current_ident

logger = logging.getLogger("headrace")

#: The longest sleep, in seconds; a wait without end is a loop of them. CPython checks for signals before a thread
#: begins to wait for a lock, and not while the thread then waits for the GIL: a Ctrl-C that arrives then is handled
#: when the sleep ends. gevent takes a sleep without end for a deadlock (LoopExit): it does not see the I/O thread.
SIGNALS_S = 1.0

#: The ident of the process's I/O thread, or None before its start; ``_inside`` is the name of the callback that the I/O
#: thread runs.
_io_ident: int | None = None
_inside: str | None = None


def set_io_thread(thread: Thread | None) -> None:
    """Register the process's I/O thread; None when that thread has ended."""
    global _io_ident, _inside
    _io_ident, _inside = None if thread is None else thread.ident, None


def on_io_thread() -> bool:
    return _io_ident is not None and current_ident() == _io_ident


def refuse_to_wait(call: str | None = None) -> None:
    """Raise IllegalStateError if the current thread is the I/O thread. ``call`` is the name of the blocking call; None:
    take the client method from the stack."""
    if _io_ident is not None and current_ident() == _io_ident:
        raise IllegalStateError(waiting_text(call or f"{_method_on_stack()}()"))


def waiting_text(call: str) -> str:
    """The message of the error: why ``call`` cannot block on the I/O thread, and what to do."""
    where = f"in the callback {_inside}" if _inside else "on Headrace's I/O thread"
    return (
        f"{call} cannot wait {where}: callbacks run on the thread that does the I/O of every client of the process; "
        f"hand {call} to another thread, or use send() there without waiting for its result"
    )


def _method_on_stack() -> str:
    """Find the public method that the user's code called: the outermost frame of this package."""
    found = "a blocking call"
    at: Any = sys._getframe(2)
    while at is not None and str(at.f_globals.get("__name__", "")).partition(".")[0] == "headrace":
        if not at.f_code.co_name.startswith(("_", "<")):
            found = at.f_code.co_name
        at = at.f_back
    return found


def check_handler(name: str, handler: Any, *, may_be_async: bool = False) -> None:
    """Check a callable like ``check_callback``, but refuse None."""
    if handler is None:
        raise InvalidArgumentError(f"{name}=None: must be callable")
    check_callback(name, handler, may_be_async=may_be_async)


def check_callback(name: str, callback: Any, *, may_be_async: bool = False) -> None:
    """Raise InvalidArgumentError unless ``callback`` is None, callable, or (``may_be_async``) a coroutine function."""
    if callback is None:
        return
    if not callable(callback):
        raise InvalidArgumentError(f"{name}={callback!r:.80}: must be callable, or None")
    is_async = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__)
    if is_async and not may_be_async:
        raise InvalidArgumentError(
            f"{name}={name_of(callback)}: must be a plain function, because the client does not await this callback"
        )


def name_of(callback: Any) -> str:
    wrapped = getattr(callback, "wrapped", callback)
    return str(getattr(wrapped, "__qualname__", None) or type(wrapped).__qualname__)


def run_callback(callback: Callable[..., object], *arguments: Any) -> None:
    """Call a user's callback and log the exceptions that it raises. On the I/O thread a ``sys.exit()`` in a callback is
    only logged, because a user's function must not end that thread. On other threads, Ctrl-C and other BaseExceptions
    propagate to the caller."""
    global _inside
    is_io, before = on_io_thread(), _inside
    if is_io:
        _inside = name_of(callback)
    try:
        callback(*arguments)
    except BaseException as error:
        logger.exception("the callback %s raised an exception; the client continues", name_of(callback))
        if not is_io and not isinstance(error, Exception):
            raise
    finally:
        if is_io:
            _inside = before
