"""Linearizable reads without a write (ReadIndex; thesis, 6.4).

A leader may have been deposed without knowing it. So a read takes the present commit offset, and waits until a majority
has answered a heartbeat sent *after* that, which proves that no other node led then. It may be served once the state
machine has applied up to that offset. All reads that arrive before a round of heartbeats share it. A deferred read
begins no round: it waits for the next one, which another read begins or which is due anyway.

**Rounds** of heartbeats are numbered within a term. An answer proves that the voter was alive, in the leader's term,
when that round was sent or later. The time when the *answer* arrives proves nothing: it may be delayed or repeated. So
the contact with a voter counts from the tick at which the leader sent the answered heartbeat (6.2 and, for the same
reason, the lease of 6.4.1).
"""

from __future__ import annotations

from collections import deque

from .types import ReadState

NEVER = -(1 << 62)  #: Before every tick.


class Rounds:
    """Rounds of one term as leader. ``kept_ticks``: how long send times are kept; older ones count as NEVER."""

    __slots__ = ("_first_at", "_kept_ticks", "latest")

    def __init__(self, kept_ticks: int) -> None:
        self._kept_ticks = kept_ticks
        self.latest = 0  #: Number of the last heartbeat round that was sent; 0 before the first round.
        self._first_at: deque[tuple[int, int]] = deque()  #: (tick, first round sent at it), ascending.

    def begin(self, tick: int) -> int:
        """Number of the round that is sent now."""
        self.latest += 1
        if not self._first_at or self._first_at[-1][0] < tick:
            self._first_at.append((tick, self.latest))
            while self._first_at[0][0] < tick - self._kept_ticks:
                self._first_at.popleft()
        return self.latest

    def sent_at(self, number: int) -> int:
        """Tick at which the round ``number`` was sent; NEVER for an invalid number or an old round."""
        for tick, first in reversed(self._first_at):
            if number >= first:
                return tick
        return NEVER

    def end(self) -> None:
        """Call when this node stops leading. The rounds of its next term as leader begin at 1."""
        self.latest = 0
        self._first_at.clear()


class Reads:
    """Reads that wait for their round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._asked: list[object] = []
        self._deferred: list[object] = []
        self._waiting: deque[tuple[int, ReadState]] = deque()

    def ask(self, token: object, *, is_deferred: bool = False) -> None:
        (self._deferred if is_deferred else self._asked).append(token)

    @property
    def are_asked(self) -> bool:
        """Whether a read needs a new round. Deferred reads do not."""
        return bool(self._asked)

    def await_next(self, committed: int) -> int:
        """Assign all new reads to the round that begins now (returned); they will see at least ``committed``."""
        number = self._rounds.latest + 1
        self._waiting += [(number, ReadState(token, committed)) for token in (*self._asked, *self._deferred)]
        self._asked.clear()
        self._deferred.clear()
        return number

    def confirmed(self, round_: int) -> tuple[ReadState, ...]:
        """A majority has answered this round; returns the reads that may be served."""
        done = []
        while self._waiting and self._waiting[0][0] <= round_:
            done.append(self._waiting.popleft()[1])
        return tuple(done)

    def drop(self) -> tuple[object, ...]:
        """Remove and return every unserved read."""
        tokens = (*(state.token for _, state in self._waiting), *self._asked, *self._deferred)
        self._waiting.clear()
        self._asked.clear()
        self._deferred.clear()
        return tokens
