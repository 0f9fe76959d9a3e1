"""The two ways to take a group's steps: blocking, and from an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import TopicPartition

from .. import arguments
from ..engine.io_thread import IoThread
from .group import OnIoThread, Steps


def drive(steps: Steps, io: IoThread, timeout_s: float | None = None) -> None:
    """In the caller's thread. ``timeout_s``: for what runs on the I/O thread, together."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer = error = None
        try:
            if isinstance(step, OnIoThread):
                answer = io.run(step.work, None if deadline is None else max(deadline - time.monotonic(), 0.1))
            else:
                told = step.function(step.partitions)
                if inspect.iscoroutine(told):
                    told.close()
                    raise InvalidArgumentError("a Consumer's callbacks are plain functions; AsyncConsumer awaits them")
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


async def drive_async(steps: Steps, io: IoThread) -> None:
    """From an event loop; callbacks may be coroutine functions."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer = error = None
        try:
            if isinstance(step, OnIoThread):
                answer = await io.run_async(step.work)
            else:
                told = step.function(step.partitions)
                if inspect.isawaitable(told):
                    await told
        except GeneratorExit:  # nobody awaits this any more
            raise
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


#: The task in which a callback runs; what the callback starts inherits it.
_within: contextvars.ContextVar[asyncio.Task[None] | None] = contextvars.ContextVar("headrace-steps", default=None)


class AsyncSteps:
    """Takes an AsyncConsumer's steps in a task of their own, one after the other.

    Cancelling the caller (wait_for around a poll, a cancelled task) does not cancel a rebalance callback in the middle:
    it runs on, and the next call waits for it before it hands out records. What a callback raises reaches the caller
    that waits for it.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Is there a task that no caller has seen the end of? False within its own callbacks, which cannot wait for
        themselves."""
        return self._task is not None and _within.get() is not self._task

    async def take(self, steps: Steps, io: IoThread) -> None:
        """Call when nothing is under way."""

        async def work() -> None:
            _within.set(asyncio.current_task())
            await drive_async(steps, io)

        self._task = asyncio.create_task(work(), name="headrace-rebalance")
        await self.finish()

    async def finish(self) -> None:
        """Wait for the task that is under way; raises what it raised."""
        task = self._task
        if task is None:
            return
        if not task.done():
            await asyncio.wait([task])
        if self._task is task:
            self._task = None
        if not task.cancelled():  # (else its event loop has ended, and this is another one)
            task.result()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def committed_of(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[list[TopicPartition], bool]:
    """The partitions of a call of ``committed``, and whether it named one by itself. InvalidArgumentError."""
    if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
        return [arguments.partition(partitions)], True
    return arguments.partitions(partitions), False
