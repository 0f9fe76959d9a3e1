"""One question to each of many nodes, at the same time, through a client that blocks: silent ones cost their time-out
once, and not one after the other. For those who look at whole clusters: `headrace top` and `headrace doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace_core.errors import HeadraceError

K = TypeVar("K")
T = TypeVar("T")

#: So many questions are under way at most: a hundred silent brokers take seven time-outs.
AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came back, or why nothing did, and when (``steady_s``, of time.monotonic())."""

    value: T | None
    error: HeadraceError | None
    steady_s: float


def ask_each(items: Iterable[K], question: Callable[[K], T]) -> dict[K, Answer[T]]:
    """In the order of ``items``. What is not a HeadraceError is raised."""

    def ask(item: K) -> Answer[T]:
        try:
            value = question(item)
        except HeadraceError as error:
            return Answer(None, error, time.monotonic())
        return Answer(value, None, time.monotonic())

    wanted = list(dict.fromkeys(items))
    if len(wanted) <= 1:
        return {item: ask(item) for item in wanted}
    threads = ThreadPoolExecutor(min(len(wanted), AT_ONCE_MAX), thread_name_prefix="headrace-asks")
    try:
        return dict(zip(wanted, threads.map(ask, wanted), strict=True))
    finally:  # (Ctrl-C: who has not been asked yet is not asked any more)
        threads.shutdown(wait=False, cancel_futures=True)
