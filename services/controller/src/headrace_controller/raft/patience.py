"""How long a replica waits for a leader before it stands for election itself (Raft, 5.2 and 9.3), in ticks."""

from __future__ import annotations

from .types import Draw

#: Who has lost the connection to the leader waits for one tick to so many.
LOST_LEADER_TICKS = 3


class Patience:
    """From ``election_ticks`` to below twice that, drawn anew each time, so that votes are seldom split."""

    __slots__ = ("_draw", "_elapsed", "_election_ticks", "_is_lost", "_timeout")

    def __init__(self, election_ticks: int, draw: Draw) -> None:
        self._election_ticks = election_ticks
        self._draw = draw
        self._elapsed = 0
        self._timeout = 0
        self._is_lost = False
        self.reset()

    def tick(self) -> None:
        self._elapsed += 1

    def reset(self) -> None:
        """It begins anew."""
        self._elapsed = 0
        self._is_lost = False
        self._timeout = self._election_ticks + self._draw(self._election_ticks)

    def hear(self) -> None:
        """From the leader. If it had been lost, it is back, and patience is what it was."""
        if self._is_lost:
            self.reset()
        self._elapsed = 0

    def lose(self) -> None:
        """The connection to the leader broke; or there is none, and those who would elect one are there."""
        if not self._is_lost:
            self._is_lost = True
            self._timeout = min(self._timeout, self._elapsed + 1 + self._draw(LOST_LEADER_TICKS))

    def split(self) -> None:
        """Somebody else stands too, at the same time: both stand again soon, and this time not together (KIP-996's
        back-off of candidates). Drawn from more ticks than ``lose``, which is how they came to meet."""
        spread = max(LOST_LEADER_TICKS, self._election_ticks // 2)
        self._timeout = min(self._timeout, self._elapsed + 1 + self._draw(spread))

    @property
    def is_over(self) -> bool:
        return self._elapsed >= self._timeout

    @property
    def left(self) -> int:
        """Ticks until it is over; 0 or less: it is."""
        return self._timeout - self._elapsed

    @property
    def hears(self) -> bool:
        """Has the leader been heard of late (6.2)? Then nobody is helped to depose it."""
        return not self._is_lost and self._elapsed < self._election_ticks
