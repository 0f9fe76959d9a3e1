"""The two ways to take a group's steps: blocking, and from an event loop."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import TopicPartition

from ..engine.io_thread import IoThread
from .consumer import OnIoThread, Steps


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


def committed_of(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[list[TopicPartition], bool]:
    """The partitions of a call of ``committed``, and whether it named one by itself. InvalidArgumentError."""
    if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
        return [TopicPartition(partitions[0], partitions[1])], True
    found = [TopicPartition(*each) for each in partitions]
    for tp in found:
        if not isinstance(tp.topic, str) or not isinstance(tp.partition, int):
            raise InvalidArgumentError(f"{tp!r} is no partition: give TopicPartition(topic, number)")
    return found, False
