"""The future of many records, and the outcome of a batch for those who wait for it; the future of one record is in
``headrace.accumulator``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError

from ..accumulator import AsyncRecordFuture, RecordFuture, SendBatch
from ..callbacks import check_callback, run_callback
from ..models import ManyMetadata, RecordRange

if TYPE_CHECKING:
    from ..tracing import SendTrace

logger = logging.getLogger("headrace")

__all__ = ["AsyncRecordFuture", "ManyFuture", "RecordFuture", "finish"]


class ManyFuture:
    """The outcome of all records of one send_many or send_arrow call; the future is done when the outcome of each
    record is known.

    Blocking callers call ``result``; asyncio callers await the future. If records fail, the future raises the first
    failure in the order of sending.
    """

    def __init__(self, topic: str, runs: list[list[Any]]) -> None:
        self._topic = topic
        self._runs = runs  # runs of records as [batch, first index, count]
        self._trace: SendTrace | None = None
        self._is_read = False

    def traced(self, trace: SendTrace | None) -> ManyFuture:
        """End the spans of the call, if it has any, when every outcome is known, and before ``result`` returns.
        Returns this future."""
        if trace is not None:
            self._trace = trace
            self.add_done_callback(trace.many_done)
        return self

    def done(self) -> bool:
        """Whether the outcome of every record is known."""
        return all(run[0].done for run in self._runs)

    def result(self, timeout: float | None = None) -> ManyMetadata:
        """The partitions and offsets of the records. Waits up to ``timeout`` seconds, then raises TimeoutError; raises
        the first failure of a record."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """The first failure of a record, or None if all records were acknowledged. Waits like result."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for batch, _, _ in self._runs:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not batch.done and not batch.wait(left):
                raise TimeoutError(
                    f"no acknowledgement within {timeout:g} s; the producer still sends the records: wait longer"
                )
        if self._trace is not None:
            self._trace.many_done(self)
        if not self._is_read:
            self._is_read = True
            for batch, _, count in self._runs:
                batch.reads += count
        return self._failure()

    def _failure(self) -> HeadraceError | None:
        """The first failure of the records, whose outcomes are known. The records count as unread."""
        return next((batch.failure() for batch, _, _ in self._runs if batch.error is not None), None)

    def add_done_callback(self, callback: Callable[[ManyFuture], object]) -> None:
        """Call ``callback(self)`` on the I/O thread once every outcome is known, or at once if all are known now.
        Exceptions of the callback are logged."""
        check_callback("callback", callback)
        batches = {id(run[0]): run[0] for run in self._runs}
        left = len(batches) + 1
        lock = threading.Lock()

        def one_done(_: Any = None) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                run_callback(callback, self)

        for batch in batches.values():
            if not batch.add_waiter((None, one_done)):
                one_done()
        one_done()

    def __await__(self) -> Generator[Any, None, ManyMetadata]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            self.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
            yield from waiter.__await__()
        return self.result(0)

    def _metadata(self) -> ManyMetadata:
        ranges = tuple(
            RecordRange(
                self._topic,
                batch.queue.partition,
                batch.base_offset + first if batch.base_offset >= 0 else -1,
                count,
            )
            for batch, first, count in self._runs
        )
        return ManyMetadata(self._topic, sum(run[2] for run in self._runs), ranges)


def finish(batch: SendBatch, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> None:
    """Set the outcome of a batch and notify its waiters: a callback is called, an asyncio future is completed on its
    event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[AsyncRecordFuture]] = {}
    for waiter in batch.finish(base_offset, log_append_time_ms, error):
        if isinstance(waiter, tuple):
            future, callback = waiter
            run_callback(callback, future)
        else:
            loops.setdefault(waiter.get_loop(), []).append(waiter)
    for loop, waiters in loops.items():
        try:
            loop.call_soon_threadsafe(_run_all, waiters)
        except RuntimeError:
            logger.debug("the event loop of %d waiting sends is closed", len(waiters))


def _run_all(waiters: Iterable[AsyncRecordFuture]) -> None:
    for waiter in waiters:
        waiter.run_callbacks()
