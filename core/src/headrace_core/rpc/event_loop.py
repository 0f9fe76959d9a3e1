"""Event loop of our own threads: uvloop's (libuv) where available, else asyncio's.

Measured with one record in flight at three replicas, everything flushed: 16 % less from send to receive and 18 % less
CPU on the nodes (docs/performance/replicas.md). A user's own loop is never changed.

What differs, and is allowed for: timers are of whole milliseconds, and ``loop.time()`` is the time at which the loop's
pass began. So no deadline of less than a millisecond is set on a loop, and nothing is measured by its clock.

**Threads.** A loop of ours has its threads for blocking work (``asyncio.to_thread``) from the start. asyncio's own pool
grows with each call that overlaps another one, for hours: then nothing tells a leak of threads from a busy moment.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

try:
    import uvloop
except ImportError:  # Windows, PyPy: https://github.com/MagicStack/uvloop builds for neither
    uvloop = None  # type: ignore[assignment]


#: Threads for blocking work of a loop: snapshots of the metadata, compression in the SDK, memory given back.
BLOCKING_THREADS = 4


class StartedThreads(ThreadPoolExecutor):
    """A pool whose threads all start with it, so that their number does not depend on the load."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, thread_name_prefix=name)
        started = threading.Barrier(size + 1)
        for _ in range(size):
            self.submit(started.wait)
        started.wait()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for a thread of ours; the caller closes it."""
    loop: asyncio.AbstractEventLoop = asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
    loop.set_default_executor(StartedThreads(BLOCKING_THREADS, "blocking"))
    return loop
