"""Run a group's steps: blocking, or from an event loop."""

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
    """Run the steps in the caller's thread. ``timeout_s``: limit for all steps on the I/O thread together."""
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
                returned = step.function(step.partitions)
                if inspect.iscoroutine(returned):
                    returned.close()
                    raise InvalidArgumentError("a Consumer's callbacks are plain functions; AsyncConsumer awaits them")
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


async def drive_async(steps: Steps, io: IoThread) -> None:
    """Run the steps from an event loop; callbacks may be coroutine functions."""
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
                returned = step.function(step.partitions)
                if inspect.isawaitable(returned):
                    await returned
        except GeneratorExit:  # the caller dropped the coroutine
            raise
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


#: The task that runs a callback; what the callback starts inherits it.
_within: contextvars.ContextVar[asyncio.Task[None] | None] = contextvars.ContextVar("headrace-steps", default=None)


class AsyncSteps:
    """Runs the steps of an AsyncConsumer in a task, one at a time.

    Cancelling the caller (wait_for around a poll, a cancelled task) does not cancel a rebalance callback: it continues,
    and the next call waits for it before it returns records. That call raises what the callback raised.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a task runs, or no caller has seen its end. False within its callbacks, which cannot wait for it."""
        return self._task is not None and _within.get() is not self._task

    async def take(self, steps: Steps, io: IoThread) -> None:
        """Run these steps. The caller ensures that no other task is under way."""

        async def work() -> None:
            _within.set(asyncio.current_task())
            await drive_async(steps, io)

        self._task = asyncio.create_task(work(), name="headrace-rebalance")
        await self.finish()

    async def finish(self) -> None:
        """Wait for the task under way; raises its exception."""
        task = self._task
        if task is None:
            return
        if not task.done():
            await asyncio.wait([task])
        if self._task is task:
            self._task = None
        if not task.cancelled():  # (otherwise its event loop ended, and this is another loop)
            task.result()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def committed_of(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[list[TopicPartition], bool]:
    """The partitions of a ``committed`` call, and whether it named a single one. Raises InvalidArgumentError."""
    if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
        return [arguments.partition(partitions)], True
    return arguments.partitions(partitions), False
