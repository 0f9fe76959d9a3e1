"""Return memory to the operating system after large refused requests.

Server processes keep freed buffers in the heap (``tune_malloc``), because record batches soon need them again. The
buffers of large refused requests, however, are not needed again. A thread trims the heap ``QUIET_S`` after the last
large refused request, and every ``PAUSE_S`` while large requests continue to be refused. (Each page that is returned to
the system costs a page fault at its next use.)
"""

from __future__ import annotations

import asyncio
import ctypes
import logging

logger = logging.getLogger(__name__)

QUIET_S = 10.0
PAUSE_S = 60.0

_due: asyncio.TimerHandle | None = None
_first_s = 0.0


def give_memory_back() -> None:
    """Schedule a trim of the heap, from an event loop; repeated calls delay the trim."""
    global _due, _first_s
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    if _due is None or _due.when() < now_s - PAUSE_S:  # the timer of a loop that has ended never fires
        _first_s = now_s
    else:
        _due.cancel()
    _due = loop.call_at(min(now_s + QUIET_S, _first_s + PAUSE_S), _trim_on_thread)


def _trim_on_thread() -> None:
    global _due
    _due = None
    asyncio.get_running_loop().run_in_executor(None, trim)


def trim() -> bool:
    """Trim the heap now; returns False where libc has no malloc_trim or no memory was returned."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    malloc_trim.argtypes, malloc_trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return bool(malloc_trim(0))
