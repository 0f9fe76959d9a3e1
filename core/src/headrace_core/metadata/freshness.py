"""How old a copy of the metadata may be: an upper bound.

A *vouch* says: all that was committed at the moment ``began_ms`` lies below ``offset``. It comes from a barrier (the
leader commits up to ``offset``, and a majority confirmed after the question arrived that it still led), and
``began_ms`` is when the owner of the copy asked, so neither the way of the answer nor a process that stood still makes
the copy look younger than it is. A copy that has applied everything below ``offset`` is therefore as of ``began_ms`` at
least; from then on it ages, until a later vouch is reached.

Who only wants to know how old it is gets the newest vouch of a controller, and takes that one's age off ``began_ms``:
the age is by the controller's clock, which counts the suspensions of its machine (core/clock.py; on Linux only). Who
needs to be sure asks for a barrier of its own (``wait_current``).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Vouches that wait for their offset: when a copy falls far behind, the oldest are the next to be reached.
_WAITING_MAX = 64


class MetadataLag(NamedTuple):
    """How far a copy is behind: ``records`` that are known to be committed and are not applied; ``ms``: it shows all
    that was committed so long ago (None: nobody has vouched for it yet)."""

    records: int
    ms: float | None


class Freshness:
    """Of one copy. Times are milliseconds of its owner's monotonic clock; offsets are exclusive ends."""

    def __init__(self, applied: int = 0) -> None:
        self._applied = applied
        self._known = applied
        self._as_of_ms: float | None = None
        self._waiting: deque[tuple[int, float]] = deque()

    @property
    def known_offset(self) -> int:
        """Up to here the log is known to be committed."""
        return self._known

    @property
    def as_of_ms(self) -> float | None:
        """The copy shows all that was committed at this moment; None: of no moment is that known."""
        return self._as_of_ms

    def committed(self, offset: int) -> None:
        """Everything below ``offset`` is committed, since whenever."""
        self._known = max(self._known, offset)

    def vouched(self, offset: int, began_ms: float) -> None:
        """All that was committed at ``began_ms`` lies below ``offset``."""
        self.committed(offset)
        if offset <= self._applied:
            self._reached(began_ms)
            return
        if self._waiting and self._waiting[-1][0] == offset:
            # The younger one of the same place says more; what is heard later may be a vouch of late, and older.
            began_ms = max(began_ms, self._waiting.pop()[1])
        if len(self._waiting) < _WAITING_MAX:
            self._waiting.append((offset, began_ms))
        else:
            self._waiting[-1] = (offset, began_ms)

    def applied(self, offset: int) -> None:
        """The copy has seen everything below ``offset``."""
        self._applied = max(self._applied, offset)
        self.committed(offset)
        while self._waiting and self._waiting[0][0] <= self._applied:
            self._reached(self._waiting.popleft()[1])

    def lag(self, now_ms: float) -> MetadataLag:
        ms = None if self._as_of_ms is None else max(now_ms - self._as_of_ms, 0.0)
        return MetadataLag(self._known - self._applied, ms)

    def _reached(self, began_ms: float) -> None:
        self._as_of_ms = began_ms if self._as_of_ms is None else max(self._as_of_ms, began_ms)
