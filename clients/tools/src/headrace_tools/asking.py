"""One question to each of many nodes, at the same time, through a client that blocks: silent ones cost their time-out
once, and not one after the other. For those who look at whole clusters: `headrace top` and `headrace doctor`.

The threads are daemons, not a pool's: the interpreter waits for a pool's threads at its end, so Ctrl-C would wait for
nodes that are silent.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace_core.errors import HeadraceError

K = TypeVar("K")
T = TypeVar("T")

#: So many questions are under way at most: a hundred silent brokers take seven time-outs.
AT_ONCE_MAX = 16
#: Ctrl-C is noticed after at most this time.
_CTRL_C_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came back, or why nothing did, and when (``steady_s``, of time.monotonic())."""

    value: T | None
    error: HeadraceError | None
    steady_s: float


def ask_each(items: Iterable[K], question: Callable[[K], T]) -> dict[K, Answer[T]]:
    """In the order of ``items``. What is not a HeadraceError is raised, at once; so is Ctrl-C: who has not been asked
    yet is not asked any more, and nobody's answer is waited for."""

    def ask(item: K) -> Answer[T]:
        try:
            value = question(item)
        except HeadraceError as error:
            return Answer(None, error, time.monotonic())
        return Answer(value, None, time.monotonic())

    wanted = list(dict.fromkeys(items))
    if len(wanted) <= 1:
        return {item: ask(item) for item in wanted}
    waiting, ended = iter(wanted), threading.Event()
    turns = threading.Lock()
    told: queue.SimpleQueue[tuple[K, Answer[T] | BaseException]] = queue.SimpleQueue()

    def ask_on() -> None:
        while not ended.is_set():
            with turns:
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            try:
                told.put((item, ask(item)))
            except BaseException as error:  # noqa: BLE001 -- the caller raises it
                told.put((item, error))

    for number in range(min(len(wanted), AT_ONCE_MAX)):
        threading.Thread(target=ask_on, name=f"headrace-asks-{number}", daemon=True).start()
    found: dict[K, Answer[T]] = {}
    try:
        for _ in wanted:
            item, answer = _next(told)
            if isinstance(answer, BaseException):
                raise answer
            found[item] = answer
    finally:
        ended.set()
    return {item: found[item] for item in wanted}


def _next(told: queue.SimpleQueue[T]) -> T:
    """Wait for the next result in ``told``.

    A signal that comes just before the wait begins does not end it: Python handles signals after the wait. So each
    wait is short; otherwise Ctrl-C would wait for a silent node.
    """
    while True:
        try:
            return told.get(timeout=_CTRL_C_S)
        except queue.Empty:
            continue
