"""Rounds of heartbeats, numbered within a term: what an answer proves is as old as the question.

Whoever answers a round was there, and in the leader's term, when that round was sent or later. When the *answer*
arrives says nothing: it may have been under way for long, or arrive a second time. So a leader counts a voter as heard
at the tick at which it sent what was answered (thesis, 6.2 and, for the same reason, the lease of 6.4.1), and serves a
read once a round is answered that began after the read was asked for (6.4).
"""

from __future__ import annotations

from collections import deque

#: Before every tick.
NEVER = -(1 << 62)


class Rounds:
    """Those of one term as leader. ``kept_ticks``: how long it is remembered when a round was sent; that of an older
    one is as good as NEVER."""

    __slots__ = ("_first_at", "_kept_ticks", "latest")

    def __init__(self, kept_ticks: int) -> None:
        self._kept_ticks = kept_ticks
        #: The number of the last round that was sent; 0: none.
        self.latest = 0
        #: (tick, first round that was sent at it), ascending.
        self._first_at: deque[tuple[int, int]] = deque()

    def begin(self, tick: int) -> int:
        """The number of the round that is sent now."""
        self.latest += 1
        if not self._first_at or self._first_at[-1][0] < tick:
            self._first_at.append((tick, self.latest))
            while self._first_at[0][0] < tick - self._kept_ticks:
                self._first_at.popleft()
        return self.latest

    def sent_at(self, number: int) -> int:
        """At which tick that round was sent; NEVER when it was none, or is long past."""
        for tick, first in reversed(self._first_at):
            if number >= first:
                return tick
        return NEVER

    def end(self) -> None:
        """It leads no more; the next term's begin at 1."""
        self.latest = 0
        self._first_at.clear()
