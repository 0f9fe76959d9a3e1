"""Limits on the bytes that requests and unread responses keep in the broker's memory; above a limit, the broker stops
reading streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Pausable(Protocol):
    """A client's stream that the broker can stop reading for a time."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class UnreadAnswers:
    """Bytes of fetch responses that clients have not read, summed over all streams. While more than ``limit`` bytes are
    unread, every stream continues, but with one small response at a time. Because the unread bytes are limited, clients
    that do not read cannot use up the broker's memory."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0

    def changed(self, size: int) -> None:
        """Add ``size`` bytes of a stream's unread responses; a negative size removes bytes."""
        self.used += size
        assert self.used >= 0, "more bytes read than were unread"

    @property
    def is_full(self) -> bool:
        return self.used > self.limit


class ByteBudget:
    """Bytes of the requests in progress, summed over all streams. While requests in progress have more than ``limit``
    bytes, a stream that calls ``take`` is paused. Paused streams resume, in the order of their pauses, when the
    requests in progress have at most ``limit`` bytes. One request may exceed the limit, because the size of a request
    is known only after its arrival."""

    __slots__ = ("_emptied", "_paused", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._paused: dict[Pausable, None] = {}  # in the order of their pauses
        self._emptied: Callable[[], None] | None = None

    def take(self, size: int, stream: Pausable) -> None:
        """Add the ``size`` bytes of a request that arrived on ``stream`` to the bytes of the requests in progress."""
        self.used += size
        if self.used > self.limit:
            stream.pause()
            self._paused.setdefault(stream)

    def give_back(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, "more bytes given back than taken"
        if not self.used and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied()
        while self._paused and self.used <= self.limit:
            first = next(iter(self._paused))
            del self._paused[first]
            first.resume()
            if self._paused and self.used > self.limit * 3 // 4:
                break  # the other paused streams resume one by one, as bytes become free

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when no request is in progress, or immediately if no request is in progress now."""
        if self.used:
            self._emptied = callback
        else:
            callback()

    def forget(self, stream: Pausable) -> None:
        """Remove a closed stream from the paused streams."""
        self._paused.pop(stream, None)
