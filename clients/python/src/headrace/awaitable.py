"""Answers that are there at once, and may be awaited all the same.

An async client's method is awaited, whatever it does: nobody should have to know which of them wait. Those that never
do (assign, seek, pause, metrics, ...) act when they are called and give one of these back, so that ``await
consumer.pause(tp)`` and a plain ``consumer.pause(tp)`` both work, at the price of one method call and no task.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Done:
    """The answer of a method without one: awaiting it gives None."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # a generator that ends at once

    def __repr__(self) -> str:
        return "Done()"


DONE = Done()


class AwaitableSet(set[K]):
    """A set; awaiting it gives the set itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(set(self))

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield


class AwaitableDict(dict[K, V]):
    """A dict; awaiting it gives the dict itself."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield
