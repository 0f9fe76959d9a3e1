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


class UnansweredRequests:
    """Bytes that the broker keeps for unanswered produce requests besides their records (``ByteBudget``), summed over
    all streams: names, and the state of each partition. While more than ``limit`` bytes are kept, every stream
    continues, but with few requests at a time. A partition that commits nothing therefore neither uses up the broker's
    memory nor stops the producers of other partitions."""

    __slots__ = ("_emptied", "limit", "used")

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0
        self._emptied: Callable[[], None] | None = None

    def add(self, size: int) -> None:
        """Add the ``size`` bytes that a request keeps while it is in progress."""
        self.used += size

    def remove(self, size: int) -> None:
        """Subtract the ``size`` bytes of a request that has ended."""
        self.used -= size
        assert self.used >= 0, "more bytes removed than added"
        if not self.used and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied()

    @property
    def is_full(self) -> bool:
        return self.used > self.limit

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when no request is in progress, or immediately if no request is in progress now."""
        if self.used:
            self._emptied = callback
        else:
            callback()


class ByteBudget:
    """Bytes of the requests in memory, summed over all streams. While requests in memory have more than ``limit``
    bytes, a stream that calls ``take`` is paused. Paused streams resume, in the order of their pauses, when the
    requests in memory have at most ``limit`` bytes. One request may exceed the limit, because the size of a request is
    known only after its arrival.

    A request gives its bytes back as soon as its memory is free. If it kept them until it is answered, one follower
    that hangs would stop the producers of all partitions."""

    __slots__ = ("_paused", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._paused: dict[Pausable, None] = {}  # in the order of their pauses

    def take(self, size: int, stream: Pausable) -> None:
        """Add the ``size`` bytes of a request that arrived on ``stream`` to the bytes of the requests in memory."""
        self.used += size
        if self.used > self.limit:
            stream.pause()
            self._paused.setdefault(stream)

    def give_back(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, "more bytes given back than taken"
        while self._paused and self.used <= self.limit:
            first = next(iter(self._paused))
            del self._paused[first]
            first.resume()
            if self._paused and self.used > self.limit * 3 // 4:
                break  # the other paused streams resume one by one, as bytes become free

    def forget(self, stream: Pausable) -> None:
        """Remove a closed stream from the paused streams."""
        self._paused.pop(stream, None)
