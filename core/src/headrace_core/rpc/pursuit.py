"""Looking for the controller that leads: whom to ask next, and after which pause."""

from __future__ import annotations

import random

from ..errors import HeadraceError, NotControllerError
from .backoff import Backoff
from .controllers import Controllers

#: Refusals that are followed at once; two controllers that each take the other for the leader end a chase.
_HOPS_MAX = 2


class Pursuit:
    """One caller's. ``address`` is whom to ask; ``failed`` after each attempt in vain, ``worked`` after each other.

    A refusal that names the leader is followed at once; so is the next address when somebody cannot be reached. When
    all were asked in vain there is a pause, growing to ``pause_ms_max``, which ends early when a leader is heard of.
    """

    def __init__(self, controllers: Controllers, *, pause_ms_max: float = 500) -> None:
        self._controllers = controllers
        self._backoff = Backoff(most_ms=pause_ms_max)
        self._in_vain = 0
        self._hops = 0
        self.address = controllers.leader_address or random.choice(controllers.candidates())

    def worked(self) -> None:
        self._backoff.reset()
        self._in_vain = self._hops = 0

    def failed(self, error: HeadraceError) -> float:
        """Chooses the next address; seconds to pause before it is asked (``pause`` does), 0: none."""
        controllers = self._controllers
        self._in_vain += 1
        if isinstance(error, NotControllerError) and controllers.refused(error):
            leader = controllers.leader_address
            if leader is not None and leader != self.address and self._hops < _HOPS_MAX:
                self._hops += 1
                self.address = leader
                return 0.0
        self.address = controllers.after(self.address)
        if self._in_vain < len(controllers.candidates()):
            return 0.0
        self._in_vain = self._hops = 0
        return self._backoff.next_s()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until a leader is heard of, who is then asked."""
        if seconds > 0 and await self._controllers.wait_changed(seconds):
            self.address = self._controllers.leader_address or self.address
            self._hops = 0
