"""How many bytes of requests the broker holds at once: above the limit, streams are not read any further."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Pausable(Protocol):
    """A stream that can be told to stop reading."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class UnreadAnswers:
    """Bytes of fetched records that clients have not read, of all streams together. Over ``limit`` nobody is stopped:
    each stream has one small answer at a time then, so that clients which do not read cost no others their memory."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0

    def changed(self, size: int) -> None:
        """A stream holds ``size`` bytes more (or less, when negative)."""
        self.used += size
        assert self.used >= 0, "more bytes read than were unread"

    @property
    def is_full(self) -> bool:
        return self.used > self.limit


class ByteBudget:
    """Bytes in flight, of all streams together. Over ``limit`` a stream that asks is paused; it resumes, in turn, when
    there is room again. One request may overshoot: it has arrived already when its size is known."""

    __slots__ = ("_emptied", "_paused", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._paused: deque[Pausable] = deque()
        self._emptied: Callable[[], None] | None = None

    def take(self, size: int, stream: Pausable) -> None:
        """``size`` bytes have arrived from ``stream``."""
        self.used += size
        if self.used > self.limit:
            stream.pause()
            self._paused.append(stream)

    def give_back(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, "more bytes given back than taken"
        if not self.used and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied()
        while self._paused and self.used <= self.limit:
            self._paused.popleft().resume()
            if self._paused and self.used > self.limit * 3 // 4:
                break  # the others follow as room is made, so that they do not all rush in at once

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, as soon as no request is under way; at once if none is."""
        if self.used:
            self._emptied = callback
        else:
            callback()

    def forget(self, stream: Pausable) -> None:
        """``stream`` is gone."""
        if stream in self._paused:
            self._paused.remove(stream)
