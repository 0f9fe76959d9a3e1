"""The futures of ``_pure.py``: nothing of their own to resolve, only a batch and an index to look up."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Protocol

from headrace_core.errors import HeadraceError

from ..arguments import seconds
from ..callbacks import check_callback, run_callback
from . import _watching
from ._pure_metadata import RecordMetadata


class Batch(Protocol):
    """What a future looks up: the batch that its record went into (``_pure.SendBatch``)."""

    queue: Any
    done: bool
    error: HeadraceError | None
    base_offset: int
    log_append_time_ms: int
    watch: Any

    def add_waiter(self, waiter: Any) -> bool: ...

    def wait(self, timeout: float | None) -> bool: ...


class RecordFuture(concurrent.futures.Future[RecordMetadata]):
    """The outcome of one record, to be: ask it, wait for it, or have a callback called.

    It is a concurrent.futures.Future to ``concurrent.futures.wait``, ``as_completed`` and ``asyncio.wrap_future``. It
    cannot be cancelled: the record is on its way.
    """

    def __init__(self, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done

    def running(self) -> bool:
        """Whether the outcome is not known yet."""
        return not self._batch.done

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        """False: the record is on its way."""
        return False

    @property
    def _state(self) -> str:  # type: ignore[override]
        return _watching.state_of(self, self._batch)

    @property
    def _condition(self) -> Any:  # type: ignore[override]
        return _watching.Condition(self, self._batch)

    @property
    def _waiters(self) -> Any:  # type: ignore[override]
        return _watching.Waiters(self, self._batch)

    def __repr__(self) -> str:
        return _watching.shown(self._batch, self._index, "RecordFuture")

    def __reduce__(self) -> Any:
        raise _watching.not_copied("RecordFuture")

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record went; waits up to ``timeout`` seconds (TimeoutError), raises the record's failure."""
        self._wait(timeout)
        if self._batch.error is not None:
            raise self._batch.error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """The record's failure, None when it was acknowledged; waits like result."""
        self._wait(timeout)
        return self._batch.error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` on the I/O thread once the outcome is known, at once when it is. Keep it short:
        nothing may wait there. What it raises is logged."""
        check_callback("callback", callback)
        if not self._batch.add_waiter((self, callback)):
            run_callback(callback, self)

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and not self._batch.done:
            timeout = seconds(timeout, negative=True)
        if not self._batch.done and not self._batch.wait(timeout):
            raise TimeoutError(f"no outcome after {timeout:g} s; the record is still being sent")

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        queue = batch.queue
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        timestamp = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else self._timestamp_ms
        return RecordMetadata(queue.topic.name, queue.partition, offset, timestamp)


class AsyncRecordFuture:
    """The outcome of one record for asyncio: await it, or give it to gather, wait, shield, as any asyncio future.

    Cancelling it only gives up waiting: the record is on its way.
    """

    _asyncio_future_blocking = False

    def __init__(self, batch: Batch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._callbacks: list[tuple[Any, Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False

    def done(self) -> bool:
        """Whether the outcome is known (or waiting for it was given up)."""
        return self._cancelled or self._batch.done

    def cancelled(self) -> bool:
        return self._cancelled

    def __repr__(self) -> str:
        return _watching.shown(self._batch, self._index, "AsyncRecordFuture")

    def __reduce__(self) -> Any:
        raise _watching.not_copied("AsyncRecordFuture")

    def result(self) -> RecordMetadata:
        """Where the record went; raises its failure, asyncio.InvalidStateError before the outcome is known."""
        error = self.exception()
        if error is not None:
            raise error
        return RecordFuture._metadata(self)  # type: ignore[arg-type]

    def exception(self) -> HeadraceError | None:
        """The record's failure, None when it was acknowledged."""
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._batch.done:
            raise asyncio.InvalidStateError("the outcome is not known yet")
        return self._batch.error

    def get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Call ``callback(self)`` soon, on the running loop, once the outcome is known."""
        loop = self.get_loop()
        if not self._cancelled:
            if self._callbacks is not None:
                self._callbacks.append((callback, context))
                return
            self._callbacks = [(callback, context)]
            if self._batch.add_waiter(self):
                return
            self._callbacks = None
        loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Take back add_done_callback; returns how many were taken back."""
        before = self._callbacks or []
        kept = [item for item in before if item[0] != callback]
        if self._callbacks is not None:
            self._callbacks = kept
        return len(before) - len(kept)

    def cancel(self, msg: Any = None) -> bool:
        """Give up waiting. The record is sent all the same."""
        if self.done():
            return False
        self._cancelled = True
        self.run_callbacks()
        return True

    def run_callbacks(self) -> None:
        """On the loop: schedule the callbacks."""
        callbacks, self._callbacks = self._callbacks or [], None
        for callback, context in callbacks:
            self.get_loop().call_soon(callback, self, context=context)

    def __await__(self) -> Any:
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__


class Sent:
    """What an asyncio send returns when it need not wait: a coroutine that has its result already."""

    def __init__(self, future: AsyncRecordFuture) -> None:
        self._future = future

    def __await__(self) -> Any:
        return self

    __iter__ = __await__

    def __next__(self) -> Any:
        raise StopIteration(self._future)

    def send(self, value: Any) -> Any:
        raise StopIteration(self._future)

    def throw(self, *error: Any) -> Any:
        raise error[1] if len(error) > 1 and error[1] is not None else error[0]

    def close(self) -> None: ...
