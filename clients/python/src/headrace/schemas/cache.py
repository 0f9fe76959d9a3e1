"""A bounded cache that a hot path reads without a lock."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """The last ``capacity`` entries that were put. ``get`` does not change the order, so that it needs no lock."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: dict[K, V] = {}
        self._lock = threading.Lock()
        self.get = self._entries.get

    def put(self, key: K, value: V) -> V:
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = value
            if len(self._entries) > self.capacity:
                del self._entries[next(iter(self._entries))]
        return value

    def remove(self, key: K) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def after_fork(self) -> None:
        """After a fork, make a new lock, because another thread of the parent may hold the old lock."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Bounded[K, V]], tuple[int]]:
        """Pickle the cache without its entries."""
        return Bounded, (self.capacity,)

    def __len__(self) -> int:
        return len(self._entries)
