"""A bounded cache for the results of pure functions: it changes the speed of a decision, never its answer."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used results, up to ``entries_max`` entries and ``characters_max`` characters. The most recent
    result stays even if it is longer than ``characters_max``. ``lock`` guards a cache that threads share."""

    def __init__(
        self, entries_max: int, characters_max: int, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._entries_max = entries_max
        self._characters_max = characters_max
        self._results: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._characters = 0
        self._lock = lock or nullcontext()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: bytes) -> T | None:
        with self._lock:
            found = self._results.get(key)
            if found is None:
                return None
            self._results.move_to_end(key)
            return found[0]

    def put(self, key: bytes, result: T, characters: int) -> T:
        """Keep a result with the size ``characters``; return it."""
        with self._lock:
            if key in self._results:
                self._characters -= self._results.pop(key)[1]
            self._results[key] = (result, characters)
            self._characters += characters
            while len(self._results) > 1 and (
                len(self._results) > self._entries_max or self._characters > self._characters_max
            ):
                self._characters -= self._results.popitem(last=False)[1][1]
        return result
