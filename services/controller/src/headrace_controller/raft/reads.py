"""Linearizable reads without a write (ReadIndex; thesis, 6.4).

A leader may have been deposed without knowing it. So a read notes the commit offset of now, waits until a majority has
answered a heartbeat that was sent *after* that, which proves that nobody else led then, and may be served once the
state machine has applied up to the noted offset. All reads that arrive before a round of heartbeats share it. A
deferred read begins no round: it goes with the next one, which another read begins or which is due anyway.

The rounds are those of ``Rounds``, by which a leader also knows whether it is still heard (6.2).
"""

from __future__ import annotations

from collections import deque

from .rounds import Rounds
from .types import ReadState


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
