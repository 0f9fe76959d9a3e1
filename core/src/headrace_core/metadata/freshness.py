"""Upper bound of the age of a copy of the metadata.

A *confirmation*: everything that was committed at ``began_ms`` lies below ``offset``. It comes from a ReadIndex
barrier: the leader has committed up to ``offset``, and a majority confirmed after the request that it still led.
``began_ms`` is when the copy's owner sent the request, so neither a slow answer nor a suspended process makes the copy
look younger. A copy that has applied everything below ``offset`` is as of ``began_ms`` at least. From then on it ages
until it reaches a later confirmation.

A request for the age alone gets a controller's recent barrier, and subtracts that barrier's age from ``began_ms``. The
age is by the controller's clock, which counts the suspensions of its machine (core/clock.py; on Linux only). A request
that must be exact asks for a barrier of its own (``wait_current``).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_WAITING_MAX = 64  #: Confirmations that wait for their offset. A copy far behind reaches the oldest ones first.


class MetadataLag(NamedTuple):
    """Lag of a copy. ``records``: known to be committed and not applied. ``ms``: the copy contains everything committed
    so long ago; None: not confirmed so far."""

    records: int
    ms: float | None


class Freshness:
    """Freshness of one copy. Times are milliseconds of its owner's monotonic clock; offsets are exclusive ends."""

    def __init__(self, applied: int = 0) -> None:
        self._applied = applied
        self._known = applied
        self._as_of_ms: float | None = None
        self._waiting: deque[tuple[int, float]] = deque()

    @property
    def known_offset(self) -> int:
        """The log is known to be committed up to here."""
        return self._known

    @property
    def as_of_ms(self) -> float | None:
        """The copy contains everything committed at this time; None: unknown."""
        return self._as_of_ms

    def committed(self, offset: int) -> None:
        """Everything below ``offset`` is committed."""
        self._known = max(self._known, offset)

    def confirmed(self, offset: int, began_ms: float) -> None:
        """Everything committed at ``began_ms`` lies below ``offset``."""
        self.committed(offset)
        if offset <= self._applied:
            self._reached(began_ms)
            return
        if self._waiting and self._waiting[-1][0] == offset:
            # Keep the younger one of the same offset; a later answer may carry an older, recent barrier.
            began_ms = max(began_ms, self._waiting.pop()[1])
        if len(self._waiting) < _WAITING_MAX:
            self._waiting.append((offset, began_ms))
        else:
            self._waiting[-1] = (offset, began_ms)

    def applied(self, offset: int) -> None:
        """The copy contains everything below ``offset``."""
        self._applied = max(self._applied, offset)
        self.committed(offset)
        while self._waiting and self._waiting[0][0] <= self._applied:
            self._reached(self._waiting.popleft()[1])

    def lag(self, now_ms: float) -> MetadataLag:
        ms = None if self._as_of_ms is None else max(now_ms - self._as_of_ms, 0.0)
        return MetadataLag(self._known - self._applied, ms)

    def _reached(self, began_ms: float) -> None:
        self._as_of_ms = began_ms if self._as_of_ms is None else max(self._as_of_ms, began_ms)
