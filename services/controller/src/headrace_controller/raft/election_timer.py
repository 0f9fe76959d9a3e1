"""The election timeout of a replica, in ticks (Raft, 5.2 and 9.3)."""

from __future__ import annotations

from .types import Draw

#: Maximum number of ticks from the break of the connection to the leader until an election begins.
LOST_LEADER_TICKS = 3


class ElectionTimer:
    """The election timer expires after a timeout between ``election_ticks`` and twice ``election_ticks``. The election
    timeout is drawn again at each reset, so that split votes are rare."""

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
        """Start the timer again with a newly drawn timeout."""
        self._elapsed = 0
        self._is_lost = False
        self._timeout = self._election_ticks + self._draw(self._election_ticks)

    def leader_contact(self) -> None:
        """Start the timer again; if the leader had been lost, with a newly drawn timeout."""
        if self._is_lost:
            self.reset()
        self._elapsed = 0

    def leader_lost(self) -> None:
        """Shorten the timeout, because the connection to the leader broke, or because no leader is known and enough
        voters for an election are connected."""
        if not self._is_lost:
            self._is_lost = True
            self._timeout = min(self._timeout, self._elapsed + 1 + self._draw(LOST_LEADER_TICKS))

    def vote_split(self) -> None:
        """Shorten the timeout, because another candidate is in the same term. Each candidate draws a different random
        time for its next election (the candidate back-off of KIP-996). The timeout is drawn from more ticks than in
        ``leader_lost``, whose range would make two candidates collide too often."""
        spread = max(LOST_LEADER_TICKS, self._election_ticks // 2)
        self._timeout = min(self._timeout, self._elapsed + 1 + self._draw(spread))

    @property
    def is_expired(self) -> bool:
        return self._elapsed >= self._timeout

    @property
    def ticks_left(self) -> int:
        """Ticks until the timer expires; 0 or less if it has expired."""
        return self._timeout - self._elapsed

    @property
    def hears_leader(self) -> bool:
        """Whether the leader sent a message within the minimum election timeout (6.2). A replica with recent contact to
        its leader refuses to vote for another candidate."""
        return not self._is_lost and self._elapsed < self._election_ticks
