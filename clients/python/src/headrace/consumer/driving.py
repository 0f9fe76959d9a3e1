"""Run the steps of a GroupConsumer: in the caller's thread, or from an event loop."""

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
    """Run a group's steps in the caller's thread. ``timeout_s``: time limit in seconds for all steps on the I/O thread
    together."""
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
                    raise InvalidArgumentError(
                        "Consumer callbacks must be plain functions; use AsyncConsumer for callbacks that must be "
                        "awaited"
                    )
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


async def drive_async(steps: Steps, io: IoThread) -> None:
    """Run a group's steps from an event loop; callbacks may be coroutine functions."""
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
        except GeneratorExit:  # the caller dropped the coroutine of the callback
            raise
        except BaseException as failure:  # noqa: BLE001 - the steps clean up, and raise it again
            error = failure


#: The task that runs the current callback; tasks that the callback starts inherit this context variable.
_within: contextvars.ContextVar[asyncio.Task[None] | None] = contextvars.ContextVar("headrace-steps", default=None)


class AsyncSteps:
    """Runs the group's steps of an AsyncConsumer in a task, one task at a time.

    Cancelling the caller (wait_for around a poll, a cancelled task) does not cancel a rebalance callback. The rebalance
    callback continues, and the next call of the consumer waits for the end of the callback before it returns records.
    The call that waits for a rebalance callback raises the callback's exception.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a task runs, or has ended and no call has received its result yet. ``is_under_way`` is False within
        the task's own callbacks, which cannot wait for their task."""
        return self._task is not None and _within.get() is not self._task

    @property
    def is_inside(self) -> bool:
        """Whether the current task runs a callback of the steps."""
        return self._task is not None and _within.get() is self._task

    async def take(self, steps: Steps, io: IoThread) -> None:
        """Run these steps. The steps run in a new task; the caller ensures that no other task is under way."""

        async def work() -> None:
            _within.set(asyncio.current_task())
            await drive_async(steps, io)

        self._task = asyncio.create_task(work(), name="headrace-rebalance")
        await self.finish()

    async def finish(self) -> None:
        """Wait for the running task; raise the task's exception."""
        task = self._task
        if task is None:
            return
        if not task.done():
            await asyncio.wait([task])
        if self._task is task:
            self._task = None
        if not task.cancelled():  # (a cancelled task belongs to an event loop that has ended)
            task.result()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def committed_of(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[list[TopicPartition], bool]:
    """The partitions in the argument of ``committed``, and whether the argument was a single partition. Raises
    InvalidArgumentError."""
    if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
        return [arguments.partition(partitions)], True
    return arguments.partitions(partitions), False
