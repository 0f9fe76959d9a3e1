"""Looking for the controller that leads: whom to ask next, and after which pause."""

from __future__ import annotations

import random

from ..errors import HeadraceError, NetworkError, NotControllerError
from ..rpc.backoff import Backoff
from .controllers import Controllers

#: Refusals that are followed at once; two controllers that each take the other for the leader end a chase.
_HOPS_MAX = 2


class Pursuit:
    """One caller's. ``address`` is whom to ask; ``failed`` after each attempt in vain, ``worked`` after each other.

    A connection that has worked and breaks is made again at once: it may be all that is broken, and to ask around among
    those that do not lead takes longer than brokers are waited for (broker.session.disconnect.grace.ms). A refusal that
    names the leader is followed at once, unless that one was asked in vain just now; so is the next address when
    somebody cannot be reached. When all were asked in vain there is a pause, growing to ``pause_ms_max``,
    which ends early when a leader is heard of. One that was heard of during an attempt is asked next, for that news
    ends no pause that begins after it.
    """

    def __init__(self, controllers: Controllers, *, pause_ms_max: float = 500) -> None:
        self._controllers = controllers
        self._backoff = Backoff(most_ms=pause_ms_max)
        self._in_vain = 0
        self._hops = 0
        #: Who has answered since the last failure.
        self._answered = ""
        self._asked: set[str] = set()
        self._known = self._leader()
        self.address = controllers.leader_address or random.choice(controllers.candidates())

    def worked(self) -> None:
        self._backoff.reset()
        self._in_vain = self._hops = 0
        self._asked.clear()
        self._answered = self.address
        self._known = self._leader()

    def is_silent(self) -> None:
        """Who was asked has answered before, and does not any more, though nothing broke: not to be asked again
        first."""
        self._answered = ""

    def follow(self) -> None:
        """Who leads, if that is known, is asked next."""
        self.address = self._controllers.leader_address or self.address
        self._known = self._leader()
        self._hops = 0

    def failed(self, error: HeadraceError) -> float:
        """Chooses the next address; seconds to pause before it is asked (``pause`` does), 0: none."""
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
        self._in_vain += 1
        self._asked.add(self.address)
        if isinstance(error, NotControllerError) and controllers.refused(error):
            leader = controllers.leader_address
            is_new = self._leader() != self._known or leader not in self._asked
            if leader is not None and leader != self.address and is_new and self._hops < _HOPS_MAX:
                self._hops += 1
                self.address = leader
                return 0.0
        self.address = controllers.after(self.address)
        if self._in_vain < len(controllers.candidates()):
            return 0.0
        self._in_vain = self._hops = 0
        self._asked.clear()
        return self._backoff.next_s()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until a leader is heard of, who is then asked."""
        if seconds > 0 and await self._controllers.wait_changed(seconds):
            self.follow()
