"""A cache before a slow call: at most ``size`` values, each at most ``ttl_s`` seconds old. The class is pure: the
caller passes the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from headrace_core.errors import InvalidArgumentError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """When the cache is full, a new value replaces the least recently used value. Raises InvalidArgumentError."""

    def __init__(self, size: int, ttl_s: float) -> None:
        if size < 1 or ttl_s <= 0:
            raise InvalidArgumentError(f"size={size}, ttl_s={ttl_s}: size must be at least 1, and ttl_s above 0")
        self._size, self._ttl_s = size, ttl_s
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, now_s: float) -> V | None:
        """The value; None if the cache has no value for the key, or only a value that is too old."""
        found = self._values.get(key)
        if found is None:
            return None
        loaded_s, value = found
        if now_s - loaded_s >= self._ttl_s:
            del self._values[key]
            return None
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V, now_s: float) -> None:
        """Keep a value that was loaded at ``now_s``."""
        self._values[key] = (now_s, value)
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)
