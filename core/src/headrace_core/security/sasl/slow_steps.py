"""One thread for the slow steps of exchanges, such as PBKDF2.

Even if many clients guess passwords, they use only one core, and the other threads of the process can run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor

from .exchange import ServerExchange, Step


class SlowSteps:
    """Runs steps in one thread, one step of each waiting host after another."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-sasl")

    async def run(self, exchange: ServerExchange, data: bytes, host: str) -> Step:
        """Run ``exchange.step(data)`` for a client on ``host``. Raises what the step raises, and CancelledError after
        ``close``."""
        await self._turns.take(host)
        try:
            if self._is_closed:
                raise asyncio.CancelledError
            return await asyncio.get_running_loop().run_in_executor(self._thread, exchange.step, data)
        finally:
            self._turns.give()

    def close(self) -> None:
        """Drop the steps that have not begun. Idempotent."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


class Turns:
    """Lets one task run at a time, and serves the hosts in turn: a host with many tasks delays each other host by only
    one task."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False

    async def take(self, host: str) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """End the turn, so that the first task of the next host runs."""
        while self._waiting:
            host, tasks = next(iter(self._waiting.items()))
            turn = tasks.popleft()
            del self._waiting[host]
            if tasks:
                self._waiting[host] = tasks  # at the end
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
