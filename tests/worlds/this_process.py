"""What a test asks of its own process and machine: a free port, its log records, objects that only the garbage
collector frees, the number of examples."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headrace_tools.local.ports import pick

_given: deque[int] = deque(maxlen=1_000)


def free_port() -> int:
    """A port that no other test worker and no outgoing connection takes, and that this function has not given lately: a
    server of another test would otherwise answer at the port of a stopped one."""
    (port,) = pick(1, avoid=_given)
    _given.append(port)
    return port


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records that the test has caused so far, except those of clients' background work: a client that an earlier
    test did not close may log at any time, on the I/O thread that all clients of a process share."""
    return [record for record in caplog.records if record.threadName != "headrace-io"]


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def is_error_freed(fail: Callable[[], Awaitable[object]]) -> bool:
    """Return whether the error that ``fail`` raises is freed together with its last reference. If the error is not
    freed, it is in a reference cycle with the frames of its traceback, and Python keeps them until the next garbage
    collection."""
    found: list[weakref.ref[Exception]] = []
    with without_collections():
        try:
            await fail()
        except Exception as error:  # noqa: BLE001 - any error
            found.append(weakref.ref(error))
        await asyncio.sleep(0)  # the event loop's call of this task refers to what the task awaited
        (reference,) = found  # it has failed
        return reference() is None


#: tools/test.sh sets it for `make test-deep`; `make test` draws a tenth, at least five.
ALL = bool(os.environ.get("HEADRACE_EXAMPLES"))


def examples(count: int) -> int:
    return count if ALL else max(5, count // 10)


def steps(first: int, last: int) -> range:
    """The steps at which a test of every step breaks something; `make test` takes every seventh."""
    return range(first, last + 1, 1 if ALL else 7)
