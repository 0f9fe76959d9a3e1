"""Which event loop our own threads turn: uvloop's (libuv) where there is one, else asyncio's.

Measured with one record in flight at three replicas, everything forced to the disk: 16 % less from send to received and
18 % less CPU on the nodes (docs/performance/replicas.md). A user's own loop is never touched.

What differs, and is allowed for: timers are of whole milliseconds, and ``loop.time()`` is the time at which the loop's
pass began. So no deadline of less than a millisecond is set on a loop, and nothing is measured by its clock.
"""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # Windows, PyPy: https://github.com/MagicStack/uvloop builds for neither
    uvloop = None  # type: ignore[assignment]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop for a thread of ours; the caller closes it."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
