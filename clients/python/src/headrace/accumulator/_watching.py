"""Support for ``concurrent.futures.wait`` and ``as_completed`` with record futures.

``wait`` and ``as_completed`` lock every future (``_condition``), read its ``_state``, add a waiter (``_waiters``) and
unlock the future. A record future has no lock: it creates ``_condition``, ``_state`` and ``_waiters`` on demand and
drops them after use. "Locking" a record future never blocks; it only freezes the state that the future reports.
Unlocking a record future calls its waiters if its state changed while it was frozen.
"""

from __future__ import annotations

import threading
from typing import Any

from ..callbacks import refuse_to_wait

#: Guards all entries. A thread holds ``_lock`` only briefly; meanwhile it takes no other lock and calls no foreign
#: code.
_lock = threading.Lock()


class _Entry:
    __slots__ = ("frozen", "waiters")

    def __init__(self) -> None:
        self.frozen = 0
        self.waiters: list[Any] = []


class Watch:
    """The frozen and awaited futures of one batch; a Watch is registered as a waiter of that batch."""

    __slots__ = ("entries", "is_over")

    def __init__(self) -> None:
        self.entries: dict[Any, _Entry] = {}
        self.is_over = False

    def __call__(self, _: object = None) -> None:
        with _lock:
            self.is_over = True
            watching = {future: entry.waiters for future, entry in self.entries.items() if not entry.frozen}
            for future in watching:
                del self.entries[future]
        for future, waiters in watching.items():
            _notify(future, waiters)


def state_of(future: Any, batch: Any) -> str:
    """The ``_state`` of a future: RUNNING or FINISHED; while the future is frozen, its state when it was frozen."""
    if not batch.done:
        return "RUNNING"
    entry = None if batch.watch is None else batch.watch.entries.get(future)
    return "RUNNING" if entry is not None and entry.frozen else "FINISHED"


class Condition:
    """The ``_condition`` attribute of a record future: acquiring it freezes the future."""

    __slots__ = ("_batch", "_future")

    def __init__(self, future: Any, batch: Any) -> None:
        self._future, self._batch = future, batch

    def acquire(self, *_: object) -> bool:
        batch, is_new = self._batch, False
        if batch.done and batch.watch is None:
            return True
        with _lock:
            if batch.watch is None:
                batch.watch, is_new = Watch(), True
            watch = batch.watch
            if not watch.is_over or self._future in watch.entries:
                watch.entries.setdefault(self._future, _Entry()).frozen += 1
        if is_new and not batch.add_waiter((None, watch)):
            watch()
        return True

    def release(self) -> None:
        watch = self._batch.watch
        if watch is None:
            return
        with _lock:
            entry = watch.entries.get(self._future)
            if entry is None:
                return
            entry.frozen -= 1
            if entry.frozen or (entry.waiters and not watch.is_over):
                return
            del watch.entries[self._future]
        _notify(self._future, entry.waiters)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Waiters:
    """The ``_waiters`` attribute of a frozen record future."""

    __slots__ = ("_batch", "_future")

    def __init__(self, future: Any, batch: Any) -> None:
        self._future, self._batch = future, batch

    def append(self, waiter: Any) -> None:
        entry = self._entry()
        if entry is not None:
            refuse_to_wait("concurrent.futures.wait()")
            entry.waiters.append(waiter)

    def remove(self, waiter: Any) -> None:
        entry = self._entry()
        if entry is not None and waiter in entry.waiters:
            entry.waiters.remove(waiter)

    def _entry(self) -> _Entry | None:
        watch = self._batch.watch
        found: _Entry | None = None if watch is None else watch.entries.get(self._future)
        return found


def _notify(future: Any, waiters: list[Any]) -> None:
    if waiters:
        failed = future.exception() is not None
        for waiter in waiters:
            waiter.add_exception(future) if failed else waiter.add_result(future)


def shown(batch: Any, index: int, name: str) -> str:
    where = f"{batch.queue.topic.name}-{batch.queue.partition}"
    if not batch.done:
        state = "pending"
    elif batch.error is not None:
        state = f"failed: {batch.error.code}"
    else:
        state = f"acknowledged at offset {batch.base_offset + index}" if batch.base_offset >= 0 else "acknowledged"
    return f"<{name} {where} {state}>"


def not_copied(name: str) -> TypeError:
    return TypeError(f"a {name} cannot be pickled or copied: call result() and pass on the value that it returns")
