"""Bytes of requests and of unread answers in memory, of all connections of a gateway.

Bytes of requests count from their arrival until the request is answered. When the limit is reached, connections with an
unfinished large frame stop reading and queue. To guarantee progress, one connection at a time may read its frame to the
end beyond the limit; the sweep of connection.py closes that connection if it stalls. Small frames never wait: the
number of connections bounds them.
"""

from __future__ import annotations

from typing import Protocol

SMALL_FRAME_BYTES = 16 * 1024
UNREAD_BYTES = 64 * 1024 * 1024  #: At this number of unread answer bytes, memory for answers is short.
FETCH_BYTES_MIN = 64 * 1024  #: Minimum max_bytes of a fetch, even while memory for answers is short.


class Reader(Protocol):
    """A connection that waits to read on."""

    def read_on(self) -> None: ...


class Answers:
    """Bytes of answers that clients have not read, and the fetches in progress. The fewer bytes are left of ``limit``
    for each fetch, the less a fetch asks for. So clients that read nothing keep little memory, and no client waits for
    them. A broker answers with more than a fetch asks for if the first batch is larger."""

    __slots__ = ("fetches", "limit", "unread")

    def __init__(self, limit: int = UNREAD_BYTES) -> None:
        self.limit = limit
        self.unread = 0
        self.fetches = 0

    @property
    def is_short(self) -> bool:
        return self.unread >= self.limit

    def fetch_bytes(self) -> int:
        """Maximum bytes of records that one more fetch may ask for."""
        return max((self.limit - self.unread) // (self.fetches + 1), FETCH_BYTES_MIN)


class Budget:
    """Use in one event loop. ``used``: bytes in memory; ``ahead``: the connection that may read beyond ``limit``."""

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
        """Whether a connection with an unfinished large frame may read on. If not, ``read_on`` is called later."""
        if self.used < self.limit or self.ahead is reader:
            return True
        if self.ahead is None:
            self.ahead = reader
            return True
        self._waiting[reader] = None
        return False

    def finished(self, reader: Reader) -> None:
        """The connection has its whole frame, or has ended: it needs no more bytes."""
        self._waiting.pop(reader, None)
        if self.ahead is reader:
            self.ahead = None
            self._wake()

    def release(self, size: int) -> None:
        """Give back ``size`` bytes of an answered request."""
        self.used -= size
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Let connections read in order of arrival: all of them below the limit, else the first."""
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
