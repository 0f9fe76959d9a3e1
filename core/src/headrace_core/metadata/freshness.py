"""An upper bound of the age of a node's copy of the metadata.

A *confirmation* says that all records committed at the time ``began_ms`` are below ``offset``. A confirmation comes
from a ReadIndex barrier: the leader has committed up to ``offset``, and a majority confirmed, after the request, that
the leader still leads. ``began_ms`` is the time when the node sent the request. A slow response, or a suspended
process, therefore never makes the node's copy of the metadata look younger than it is. A copy that has applied all
records below the confirmed ``offset`` was up to date at ``began_ms``. After ``began_ms`` the metadata copy ages until
it reaches the offset of a later confirmation.

For a request that only asks for the age, a controller may return a recent barrier; the age of that barrier is
subtracted from ``began_ms``. The controller's clock measures the age of the barrier and counts suspensions of its
machine (core/clock.py; on Linux only). A request for an exact image asks for a new barrier (``wait_current``).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Maximum number of remembered confirmations whose offset the metadata copy has not reached yet. The metadata copy
#: reaches the offsets of the oldest confirmations first.
_WAITING_MAX = 64


class MetadataLag(NamedTuple):
    """Lag of a copy of the metadata. ``records``: number of records known to be committed but not applied. ``ms``: an
    upper bound of the copy's age: the copy contains all records that were committed this many milliseconds ago or
    earlier. ``ms`` is None before the first confirmation."""

    records: int
    ms: float | None


class Freshness:
    """Freshness of one copy of the metadata. Times are milliseconds of the node's monotonic clock; offsets are
    exclusive ends."""

    def __init__(self, applied: int = 0) -> None:
        self._applied = applied
        self._known = applied
        self._as_of_ms: float | None = None
        self._waiting: deque[tuple[int, float]] = deque()

    @property
    def known_offset(self) -> int:
        """Offset up to which the metadata log is known to be committed."""
        return self._known

    @property
    def as_of_ms(self) -> float | None:
        """A time at which the metadata copy was up to date: it contains all records committed before that time; None:
        unknown."""
        return self._as_of_ms

    def committed(self, offset: int) -> None:
        """Record that all records below ``offset`` are committed."""
        self._known = max(self._known, offset)

    def confirmed(self, offset: int, began_ms: float) -> None:
        """Record a confirmation: all records committed at ``began_ms`` are below ``offset``."""
        self.committed(offset)
        if offset <= self._applied:
            self._reached(began_ms)
            return
        if self._waiting and self._waiting[-1][0] == offset:
            # For two confirmations with the same offset, keep the later ``began_ms``: a later response may report an
            # older barrier.
            began_ms = max(began_ms, self._waiting.pop()[1])
        if len(self._waiting) < _WAITING_MAX:
            self._waiting.append((offset, began_ms))
        else:
            self._waiting[-1] = (offset, began_ms)

    def applied(self, offset: int) -> None:
        """Record that the copy contains all records below ``offset``."""
        self._applied = max(self._applied, offset)
        self.committed(offset)
        while self._waiting and self._waiting[0][0] <= self._applied:
            self._reached(self._waiting.popleft()[1])

    def lag(self, now_ms: float) -> MetadataLag:
        ms = None if self._as_of_ms is None else max(now_ms - self._as_of_ms, 0.0)
        return MetadataLag(self._known - self._applied, ms)

    def _reached(self, began_ms: float) -> None:
        self._as_of_ms = began_ms if self._as_of_ms is None else max(self._as_of_ms, began_ms)
