"""A client's stream of requests to one address, which opens again after it broke.

``Stream`` owns what every such stream needs: it connects, waits longer after each failure, ends a stream whose peer is
silent, and numbers the requests. A subclass says what to write (``has_work``, ``next_request``) and what happens to it
(``received``, ``lost``). One task writes: it asks for the next request when gRPC has taken the last one, so unsent work
waits where it can still be joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..errors import HeadraceError, NetworkError, RequestTimedOutError
from .duplex import Duplex

#: The types of a stream's requests and responses; each message has a field ``correlation_id``.
Request = TypeVar("Request", bound=Any)
Response = TypeVar("Response", bound=Any)

#: Starts a background task with a name.
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

#: Seconds beyond ``wait_s`` without a response after which ``is_silent`` is called.
SILENT_S = 2.0


class Stream(Generic[Request, Response]):
    """One stream, from its first request to ``close``. All methods run in one event loop."""

    logger = logging.getLogger(__name__)
    #: The kind of the stream in log lines, and the error of a request without a response (a time in seconds follows).
    what = overdue = ""

    def __init__(
        self,
        address: str,
        name: str,
        spawn: Spawn,
        delay_s: Callable[[int], float],
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> None:
        """``delay_s(n)``: seconds before the next stream after n + 1 failures in a row. ``timeout_s``: seconds without
        a response after which the stream ends, beyond ``wait_s``, for which the peer may hold a request; None: no
        limit."""
        self.address = address
        self.duplex: Duplex[Request, Response] | None = None
        self.correlation = 0  # the number of the last request
        #: When each request without a response was sent, in time.monotonic(), oldest first.
        self.sent_at: dict[int, float] = {}
        self.event = asyncio.Event()  # there may be something to write
        self._news = asyncio.Event()
        self._failures = 0
        self._name, self._spawn, self._delay_s = name, spawn, delay_s
        self._timeout_s, self._wait_s = timeout_s, wait_s
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    # --- what a subclass does ----------------------------------------------------------------------------------------

    def open(self) -> Duplex[Request, Response]:
        raise NotImplementedError

    def has_work(self) -> bool:
        """Whether a stream is needed; while it is not, a broken stream does not open again."""
        raise NotImplementedError

    async def next_request(self) -> Request | None:
        """The next request; None: wait for ``nudge``. The call also says that gRPC has taken the last request."""
        raise NotImplementedError

    def received(self, response: Response) -> None:
        raise NotImplementedError

    def lost(self, error: HeadraceError) -> None:
        """The stream broke: the outcome of the requests without a response is unknown."""
        raise NotImplementedError

    def is_silent(self) -> None:
        """The peer has not answered for SILENT_S."""

    # --- what its owner does -----------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """There may be something to write."""
        self.event.set()
        if self._task is None and not self._is_closed and self.has_work():
            self._task = self._spawn(self._run(), self._name)

    def has_news(self) -> None:
        """End the wait before the next stream: the failures so far no longer count."""
        self._failures = 0
        self._news.set()

    def end(self) -> asyncio.Task[None] | None:
        """End the stream for good; returns the task that ends it. The task is dropped: its traceback would keep gRPC's
        objects alive."""
        self._is_closed = True
        if self.duplex is not None:
            self.duplex.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    async def close(self) -> None:
        if (task := self.end()) is not None:
            await asyncio.gather(task, return_exceptions=True)

    def throttled_until(self, moment: float) -> None:
        """The peer reads nothing until ``moment``, because of a quota (KIP-219): the time-outs begin then."""
        self.sent_at = {number: max(at, moment) for number, at in self.sent_at.items()}

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.has_work() and not self._is_closed:
            before = self.correlation
            self._news.clear()
            try:
                duplex = self.duplex = self.open()
                try:
                    watch = () if self._timeout_s is None else (self._watch(self._timeout_s + self._wait_s),)
                    await duplex.run(self._read(duplex), self._write(duplex), *watch)
                finally:
                    self.duplex = None
                    del duplex
            except HeadraceError as error:
                self._failures = 0 if self.correlation > before + 1 else self._failures + 1
                self.logger.info("%s to %s failed: %s", self.what, self.address, error)
                self.lost(error.with_traceback(None))  # a traceback would keep the frames of this stream in memory
            except Exception as error:  # a bug of this side or of the peer: the requests need an outcome all the same
                self._failures += 1
                self.logger.exception("%s to %s: unexpected error; reconnecting", self.what, self.address)
                self.lost(NetworkError(f"{self.address}: {type(error).__name__}: {error}"))
            await pause(self._delay_s(max(self._failures - 1, 0)), self._news)
        self._task = None

    async def _read(self, duplex: Duplex[Request, Response]) -> None:
        while True:
            self.received(await duplex.read())

    async def _write(self, duplex: Duplex[Request, Response]) -> None:
        await duplex.connected()
        while True:
            self.event.clear()
            if (request := await self.next_request()) is not None:
                await duplex.write(request)
            else:
                await self.event.wait()

    async def _watch(self, limit_s: float) -> None:
        while True:
            await asyncio.sleep(min(limit_s / 4, 0.5))
            self.check_silence(time.monotonic(), limit_s)

    def check_silence(self, now: float, limit_s: float) -> None:
        """End the stream when a response is overdue."""
        waited_s = now - next(iter(self.sent_at.values()), now)
        if waited_s > self._wait_s + SILENT_S:
            self.is_silent()
        if waited_s > limit_s and self.duplex is not None:
            self.duplex.cancel(RequestTimedOutError(f"{self.address}: {self.overdue} {limit_s:g} s"))


async def pause(seconds: float, news: asyncio.Event) -> None:
    """Wait before the next stream is opened; the event ``news`` ends the wait early."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
