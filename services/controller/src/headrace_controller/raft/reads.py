"""Linearizable reads without a write (ReadIndex; thesis, 6.4).

A leader may have been deposed without knowing it. So a read notes the commit offset of now, waits until a majority has
answered a heartbeat that was sent *after* that, which proves that nobody else led then, and may be served once the
state machine has applied up to the noted offset. All reads that arrive before a round of heartbeats share it. A
deferred read begins no round: it goes with the next one, which another read begins or which is due anyway.

**Rounds** of heartbeats are numbered within a term. What an answer proves is as old as the question: a voter that
answers a round was there, and in the leader's term, when that round was sent or later. When the *answer* arrives says
nothing: it may have been under way for long, or arrive a second time. So a leader counts a voter as heard at the tick
at which it sent what was answered (6.2 and, for the same reason, the lease of 6.4.1).
"""

from __future__ import annotations

from collections import deque

from .types import ReadState

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


class Reads:
    """Those that wait for their round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._asked: list[object] = []
        self._deferred: list[object] = []
        self._waiting: deque[tuple[int, ReadState]] = deque()

    def ask(self, token: object, *, is_deferred: bool = False) -> None:
        (self._deferred if is_deferred else self._asked).append(token)

    @property
    def are_asked(self) -> bool:
        """Does a read wait for a round to begin? Deferred reads do not."""
        return bool(self._asked)

    def await_next(self, committed: int) -> int:
        """What was asked waits for the round that begins now (returned), and will see at least ``committed``."""
        number = self._rounds.latest + 1
        self._waiting += [(number, ReadState(token, committed)) for token in (*self._asked, *self._deferred)]
        self._asked.clear()
        self._deferred.clear()
        return number

    def confirmed(self, round_: int) -> tuple[ReadState, ...]:
        """A majority has answered this round: the reads that may be served now."""
        done = []
        while self._waiting and self._waiting[0][0] <= round_:
            done.append(self._waiting.popleft()[1])
        return tuple(done)

    def drop(self) -> tuple[object, ...]:
        """Every read that was not served, forgotten."""
        tokens = (*(state.token for _, state in self._waiting), *self._asked, *self._deferred)
        self._waiting.clear()
        self._asked.clear()
        self._deferred.clear()
        return tokens
