"""Who waits until records that were deleted are gone from every replica (KIP-107).

A partition's low watermark is the smallest log start of the replicas that are there. It moves when a follower has
deleted, too, and says so, or when a follower goes away.
"""

from __future__ import annotations

import asyncio

from headrace_core.errors import RequestTimedOutError

from .partition import PartitionLeader


class LowWatermarks:
    """Owned by the event loop. ``recheck`` is called by the lanes that followers acknowledge on."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[PartitionLeader, list[asyncio.Future[None]]] = {}

    def recheck(self, leader: PartitionLeader) -> None:
        """Wake the waiters: a replica's log start moved, a replica left, or ``leader`` resigned."""
        for waiter in self._waiting.pop(leader, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, leader: PartitionLeader, offset: int, timeout_s: float) -> None:
        """Return when no replica that is there has records below ``offset``.

        Raises RequestTimedOutError (the leader's own are deleted, and the others follow), and what the leader resigned
        with.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while leader.low_watermark < offset:
                    leader.check_serving()
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(leader, []).append(waiter)
                    try:
                        await waiter
                    finally:
                        self._forget(leader, waiter)
        except TimeoutError:
            behind = [
                replica.broker_id for replica in leader.progress if replica.is_joined and replica.log_start < offset
            ]
            raise RequestTimedOutError(
                f"{leader.partition}: the records before {offset} are deleted here, but not by the replicas {behind} "
                "within the request's time; they follow"
            ) from None

    def _forget(self, leader: PartitionLeader, waiter: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(leader)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._waiting[leader]
