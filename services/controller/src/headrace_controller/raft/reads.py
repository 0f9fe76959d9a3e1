"""Linearizable reads without a write to the log (ReadIndex; thesis, 6.4).

A leader may have been deposed without knowing it. A read takes the current commit offset and waits until a majority has
answered a heartbeat that was sent *after* the read began. The answers of the majority prove that no other node led when
the answered heartbeat was sent. The read may be served when the state machine has applied all entries below the commit
offset that the read took. All reads that arrive before a heartbeat round share the round. A deferred read starts no
heartbeat round: it waits for the next round, which another read starts or which is due in any case.

Heartbeat rounds are numbered within a leader's term. An answer to a heartbeat proves that the voter was alive, in the
leader's term, when the heartbeat's round was sent or later. The time at which the leader receives an *answer* to a
heartbeat proves nothing, because the answer may be delayed or repeated. Because answers may be late, the contact with a
voter dates from the tick at which the leader sent the answered heartbeat (6.2). The leader lease of the Raft thesis
(6.4.1) also begins when the answered heartbeat was sent.
"""

from __future__ import annotations

from collections import deque

from .types import ReadState

NEVER = -(1 << 62)  #: Before every tick.


class Rounds:
    """The heartbeat rounds of one term as leader. ``kept_ticks``: for how many ticks send times are kept; older send
    times count as NEVER."""

    __slots__ = ("_first_at", "_kept_ticks", "latest")

    def __init__(self, kept_ticks: int) -> None:
        self._kept_ticks = kept_ticks
        self.latest = 0  #: Number of the last heartbeat round that was sent; 0 before the first round.
        #: Heartbeat rounds as (tick, first round sent at the tick), ascending.
        self._first_at: deque[tuple[int, int]] = deque()

    def begin(self, tick: int) -> int:
        """Start a heartbeat round; returns the round's number."""
        self.latest += 1
        if not self._first_at or self._first_at[-1][0] < tick:
            self._first_at.append((tick, self.latest))
            while self._first_at[0][0] < tick - self._kept_ticks:
                self._first_at.popleft()
        return self.latest

    def sent_at(self, number: int) -> int:
        """Tick at which round ``number`` was sent; NEVER for an invalid number or an old round."""
        for tick, first in reversed(self._first_at):
            if number >= first:
                return tick
        return NEVER

    def end(self) -> None:
        """Forget all rounds; call this when the node stops leading. The rounds of the node's next term as leader begin
        at 1 again."""
        self.latest = 0
        self._first_at.clear()


class Reads:
    """Reads that wait for a heartbeat round."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._asked: list[object] = []
        self._deferred: list[object] = []
        self._waiting: deque[tuple[int, ReadState]] = deque()

    def ask(self, token: object, *, is_deferred: bool = False) -> None:
        (self._deferred if is_deferred else self._asked).append(token)

    @property
    def are_asked(self) -> bool:
        """Whether a waiting read needs a new heartbeat round. Deferred reads do not need a new heartbeat round."""
        return bool(self._asked)

    def await_next(self, committed: int) -> int:
        """Assign all new reads to the heartbeat round that begins now, and return the round's number. The reads of the
        round will see at least all entries below ``committed``."""
        number = self._rounds.latest + 1
        self._waiting += [(number, ReadState(token, committed)) for token in (*self._asked, *self._deferred)]
        self._asked.clear()
        self._deferred.clear()
        return number

    def confirmed(self, round_: int) -> tuple[ReadState, ...]:
        """Called when a majority has answered the heartbeat round ``round_``. Returns the reads that may be served."""
        done = []
        while self._waiting and self._waiting[0][0] <= round_:
            done.append(self._waiting.popleft()[1])
        return tuple(done)

    def drop(self) -> tuple[object, ...]:
        """Remove and return every read that was not served."""
        tokens = (*(state.token for _, state in self._waiting), *self._asked, *self._deferred)
        self._waiting.clear()
        self._asked.clear()
        self._deferred.clear()
        return tokens
