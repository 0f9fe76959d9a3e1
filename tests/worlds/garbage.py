"""Find objects that only the garbage collector frees."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator


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
