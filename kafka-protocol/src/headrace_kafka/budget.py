"""Limits on the memory for requests and for unread answers of all connections of a broker.

The bytes of a request count from their arrival until the broker has answered the request. When the limit is reached,
connections with an unfinished large frame stop reading and queue. To guarantee progress, one connection at a time may
read its whole frame beyond the limit. The sweep of connection.py closes a connection whose client stalls during such a
read. Small frames never wait: the number of connections bounds them.
"""

from __future__ import annotations

from typing import Protocol

SMALL_FRAME_BYTES = 16 * 1024
UNREAD_BYTES = 64 * 1024 * 1024  #: At this number of unread answer bytes, memory for answers is short.
#: Every fetch may ask for this number of bytes of records, even while memory for answers is short.
FETCH_BYTES_MIN = 64 * 1024


class Reader(Protocol):
    """A connection that waits until it may continue to read."""

    def read_on(self) -> None: ...


class Answers:
    """Counts the answer bytes that clients have not read, and the fetches in progress. The fewer bytes of ``limit`` are
    free, the fewer bytes each fetch asks for. Smaller fetches keep the memory small for clients that read no answers,
    so that these clients delay no other client. A broker returns more bytes than a fetch asks for if the first batch is
    larger."""

    __slots__ = ("fetches", "limit", "unread")

    def __init__(self, limit: int = UNREAD_BYTES) -> None:
        self.limit = limit
        self.unread = 0
        self.fetches = 0

    @property
    def is_short(self) -> bool:
        return self.unread >= self.limit

    def fetch_bytes(self) -> int:
        """Maximum bytes of records that the next fetch may ask for."""
        return max((self.limit - self.unread) // (self.fetches + 1), FETCH_BYTES_MIN)


class Budget:
    """Limits the bytes of requests in memory; for one event loop. ``used``: bytes in memory; ``ahead``: the connection
    that may read beyond ``limit``."""

    __slots__ = ("_waiting", "ahead", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.ahead: Reader | None = None
        self._waiting: dict[Reader, None] = {}

    @property
    def is_short(self) -> bool:
        return self.used >= self.limit

    def may_read(self, reader: Reader) -> bool:
        """Whether a connection with an unfinished large frame may continue to read. If the result is False, the budget
        calls ``read_on`` later."""
        if self.used < self.limit or self.ahead is reader:
            return True
        if self.ahead is None:
            self.ahead = reader
            return True
        self._waiting[reader] = None
        return False

    def finished(self, reader: Reader) -> None:
        """Call when the connection has its whole frame, or has ended, and so needs no more bytes."""
        self._waiting.pop(reader, None)
        if self.ahead is reader:
            self.ahead = None
            self._wake()

    def release(self, size: int) -> None:
        """Release ``size`` bytes of an answered request."""
        self.used -= size
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Let waiting connections read: all connections if memory is below the limit, otherwise only the first in the
        queue."""
        if not self._waiting:
            return
        if self.used < self.limit:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.read_on()
        elif self.ahead is None:
            self.ahead = next(iter(self._waiting))
            del self._waiting[self.ahead]
            self.ahead.read_on()
