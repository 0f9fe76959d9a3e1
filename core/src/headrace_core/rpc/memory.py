"""Memory given back to the operating system after large requests were refused.

Our processes keep freed buffers in the heap (``tune_malloc``), because record batches need them again at once. After a
flood of large refused requests nothing needs them again, so the heap is trimmed then: on a thread, and not more often
than every ``PAUSE_S``.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging

logger = logging.getLogger(__name__)

#: Between a refusal and the trim, so that gRPC has dropped the message; and between two trims.
PAUSE_S = 1.0

_due: asyncio.TimerHandle | None = None


def give_memory_back() -> None:
    """Have the heap trimmed soon. In an event loop; further calls until then change nothing."""
    global _due
    loop = asyncio.get_running_loop()
    if _due is None or _due.when() < loop.time() - PAUSE_S:  # a loop that has ended takes its timer along
        _due = loop.call_later(PAUSE_S, _trim_on_thread)


def _trim_on_thread() -> None:
    global _due
    _due = None
    asyncio.get_running_loop().run_in_executor(None, trim)


def trim() -> bool:
    """Trim the heap now. False where libc cannot."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    malloc_trim.argtypes, malloc_trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return bool(malloc_trim(0))
