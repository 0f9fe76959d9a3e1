"""Addresses of the controllers, and their leader: one object per node, shared by all code that calls controllers.

At first a node knows only the configured addresses (``controller.quorum.bootstrap.servers``). The metadata stream names
all voters, so a broker with one configured address survives the loss of that controller. The leader comes from the
metadata stream, and from every NOT_CONTROLLER error that names the leader; a leader of an older epoch is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ..errors import NotControllerError
from ..rpc.channel import PLAINTEXT, Channels
from ..types import NO_LEADER


class Controllers:
    """Addresses and leader of the controllers; use it in one event loop. Addresses are ``host:port`` of controllers'
    internal listeners."""

    def __init__(self, bootstrap: Sequence[str], channels: Channels = PLAINTEXT) -> None:
        """``channels`` opens the node's channels to controllers and other nodes."""
        assert bootstrap, "the address of at least one controller is needed"
        self.channels = channels
        self._bootstrap = tuple(dict.fromkeys(bootstrap))
        self._known: dict[int, str] = {}
        self._changed: list[Callable[[], None]] = []
        #: Id of the leading controller; ``leader_epoch`` is the epoch (term) of the leading controller.
        self.leader_id = NO_LEADER
        self.leader_epoch = -1

    @property
    def known(self) -> Mapping[int, str]:
        """Addresses of the known controllers, by id."""
        return self._known

    @property
    def leader_address(self) -> str | None:
        return self._known.get(self.leader_id)

    def candidates(self) -> list[str]:
        """Addresses to try, best first: the leader, then all other controllers."""
        leader = self.leader_address
        return list(dict.fromkeys([*([leader] if leader else []), *self._known.values(), *self._bootstrap]))

    def after(self, address: str | None) -> str:
        """Return the address to try after ``address`` failed, in rotation."""
        around = list(dict.fromkeys([*self._bootstrap, *self._known.values()]))
        return around[(around.index(address) + 1) % len(around)] if address in around else around[0]

    def named(self, addresses: Mapping[int, str]) -> None:
        """Set the addresses of all voters."""
        if addresses and addresses != self._known:
            self._known = dict(addresses)
            self._tell()

    def led_by(self, leader_id: int, epoch: int) -> None:
        """Record that ``leader_id`` (-1: unknown) leads in ``epoch``, unless a later epoch is known."""
        if epoch < self.leader_epoch or (epoch == self.leader_epoch and self.leader_id != NO_LEADER):
            return
        if (leader_id, epoch) != (self.leader_id, self.leader_epoch):
            self.leader_id, self.leader_epoch = leader_id, epoch
            self._tell()

    def refused(self, error: NotControllerError) -> bool:
        """Record a NOT_CONTROLLER error. Returns True if the error named the leader, so that the leader can be asked at
        once."""
        if error.leader is None:
            return False
        leader_id, epoch, address = error.leader
        if epoch >= self.leader_epoch and self._known.get(leader_id) != address:
            self._known = {**self._known, leader_id: address}
            self._tell()
        self.led_by(leader_id, epoch)
        return self.leader_address is not None

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` when the leader or the addresses change; returns a function that ends the subscription."""
        self._changed.append(changed)

        def unsubscribe() -> None:
            if changed in self._changed:
                self._changed.remove(changed)

        return unsubscribe

    async def wait_changed(self, timeout_s: float) -> bool:
        """Wait until the leader or an address changes; returns False after ``timeout_s``."""
        changed = asyncio.Event()
        unsubscribe = self.subscribe(changed.set)
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        finally:
            unsubscribe()
        return True

    def _tell(self) -> None:
        for changed in tuple(self._changed):
            changed()
