"""The first moment of a stream that this process opens."""

from __future__ import annotations

import asyncio
from typing import Any


async def connected(stream: Any, reader: asyncio.Task[Any]) -> None:
    """Wait until the call ``stream`` has a connection, or ``reader``, which reads from it, has ended and knows why not.

    To be awaited before the first write. A write that waits for a connection by itself is not told when its call is
    cancelled (grpc.aio 1.85), and would wait for ever; this wait holds nothing of gRPC's, and may be cancelled.
    """
    waiting = asyncio.ensure_future(stream.wait_for_connection())
    try:
        await asyncio.wait({waiting, reader}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
