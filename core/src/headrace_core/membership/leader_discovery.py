"""Find the leading controller: the next address to ask, and the pause before the attempt."""

from __future__ import annotations

import random

from ..errors import HeadraceError, NetworkError, NotControllerError
from ..rpc.outage import Backoff
from .controllers import Controllers

#: Maximum number of successive NOT_CONTROLLER responses after which the node asks the named leader without a pause. The
#: limit matters when two controllers each name the other as leader.
_HOPS_MAX = 2


class LeaderDiscovery:
    """Finds the leading controller for one caller. The caller asks ``address``, and calls ``failed`` or ``worked``
    after each attempt.

    * A connection that worked and then breaks is opened again at once. Often only the connection failed, and the
      controller still leads. Asking the other controllers first would take longer than
      broker.session.disconnect.grace.ms.
    * When a NOT_CONTROLLER response names the leader, the named leader is asked at once, unless it has just failed.
    * After a failed attempt at an unreachable address, the next address is asked at once. When all addresses have
      failed, a pause follows, which grows to ``pause_ms_max`` and ends early when a leader becomes known.
    * A leader that became known during an attempt is asked next.
    """

    def __init__(self, controllers: Controllers, *, pause_ms_max: float = 500) -> None:
        self._controllers = controllers
        self._backoff = Backoff(most_ms=pause_ms_max)
        self._failures = 0
        self._hops = 0
        self._answered = ""  #: The address that has responded since the last failure; empty if none has.
        self._asked: set[str] = set()
        self._known = self._leader()
        self.address = controllers.leader_address or random.choice(controllers.candidates())

    def worked(self) -> None:
        self._backoff.reset()
        self._failures = self._hops = 0
        self._asked.clear()
        self._answered = self.address
        self._known = self._leader()

    def is_silent(self) -> None:
        """Record that the address no longer responds, although its connection did not break: do not ask that address
        first."""
        self._answered = ""

    def follow(self) -> None:
        """Ask the leader next, if the leader is known."""
        self.address = self._controllers.leader_address or self.address
        self._known = self._leader()
        self._hops = 0

    def failed(self, error: HeadraceError) -> float:
        """Choose the next address after a failed attempt; returns the seconds to ``pause`` before the next attempt."""
        controllers = self._controllers
        if self._leader() != self._known and controllers.leader_address is not None:
            self.follow()
            return 0.0
        pause_s = self._next(error)
        self._known = self._leader()
        return pause_s

    def _leader(self) -> tuple[int, int]:
        return self._controllers.leader_epoch, self._controllers.leader_id

    def _next(self, error: HeadraceError) -> float:
        controllers = self._controllers
        answered, self._answered = self._answered, ""
        if isinstance(error, NetworkError) and self.address == answered:
            return 0.0
        self._failures += 1
        self._asked.add(self.address)
        if isinstance(error, NotControllerError) and controllers.refused(error):
            leader = controllers.leader_address
            is_new = self._leader() != self._known or leader not in self._asked
            if leader is not None and leader != self.address and is_new and self._hops < _HOPS_MAX:
                self._hops += 1
                self.address = leader
                return 0.0
        self.address = controllers.after(self.address)
        if self._failures < len(controllers.candidates()):
            return 0.0
        self._failures = self._hops = 0
        self._asked.clear()
        return self._backoff.next_s()

    async def pause(self, seconds: float) -> None:
        """Wait for ``seconds``, or until a leader becomes known, which is then asked next."""
        if seconds > 0 and await self._controllers.wait_changed(seconds):
            self.follow()
