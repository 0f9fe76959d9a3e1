"""Send a request to many nodes at once with a blocking client, so that all silent nodes together cost one timeout.
`headrace top` and `headrace doctor` use this module.

The requests run in daemon threads, not in a thread pool. At its exit the interpreter waits for the threads of a pool,
so Ctrl-C would have to wait for silent nodes.
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

#: Maximum number of concurrent requests to nodes: with this number, a hundred silent brokers take seven timeouts.
AT_ONCE_MAX = 16
#: Seconds within which Ctrl-C takes effect.
_CTRL_C_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The result or the error for one item, and its time of arrival ``steady_s`` (time.monotonic())."""

    value: T | None
    error: HeadraceError | None
    steady_s: float


def ask_each(items: Iterable[K], question: Callable[[K], T]) -> dict[K, Answer[T]]:
    """Call ``question`` for each item, all items in parallel; return the answers in the order of ``items``. Ctrl-C, and
    any error other than HeadraceError, are raised at once: no further call starts, and the results of running calls are
    dropped."""

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
    answers: queue.SimpleQueue[tuple[K, Answer[T] | BaseException]] = queue.SimpleQueue()

    def ask_on() -> None:
        while not ended.is_set():
            with turns:
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            try:
                answers.put((item, ask(item)))
            except BaseException as error:  # noqa: BLE001 -- the caller raises it
                answers.put((item, error))

    for number in range(min(len(wanted), AT_ONCE_MAX)):
        threading.Thread(target=ask_on, name=f"headrace-asks-{number}", daemon=True).start()
    found: dict[K, Answer[T]] = {}
    try:
        for _ in wanted:
            item, answer = _next(answers)
            if isinstance(answer, BaseException):
                raise answer
            found[item] = answer
    finally:
        ended.set()
    return {item: found[item] for item in wanted}


def _next(answers: queue.SimpleQueue[T]) -> T:
    """Wait for the next result in ``answers``.

    A signal that arrives just before a wait begins does not end the wait, because Python handles the signal only after
    the wait. Each wait for an answer is short, because during a long wait Ctrl-C would have to wait for a silent node.
    """
    while True:
        try:
            return answers.get(timeout=_CTRL_C_S)
        except queue.Empty:
            continue
