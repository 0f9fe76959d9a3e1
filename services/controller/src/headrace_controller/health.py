"""The health status of this controller. The status of a leader is SERVING. The status of a follower is SERVING when it
has a leader and has applied all entries that were committed when this controller started. The status is not SERVING
while the controller waits for a quorum."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace_core.rpc.server import Listener

from .quorum_controller import QuorumController

logger = logging.getLogger("headrace.controller")


class Health:
    """``look`` costs little, so the controller calls it after each turn; ``run`` updates the listeners."""

    def __init__(self, controller: QuorumController, listeners: Sequence[Listener]) -> None:
        self._controller = controller
        self._listeners = listeners
        self._seen = False
        self._changed = asyncio.Event()
        self._serves = asyncio.Event()

    def look(self) -> None:
        if self._controller.is_serving is not self._seen:
            self._seen = not self._seen
            self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        said = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._seen is said:
                continue
            said = self._seen
            for listener in self._listeners:
                await listener.serving(said)
            if said:
                if self._serves.is_set():
                    found = self._controller
                    logger.info(
                        "controller %d serves again: controller %d leads in term %d",
                        found.node_id,
                        found.leader_id,
                        found.term,
                    )
                self._serves.set()
            else:
                logger.warning(
                    "controller %d has no leader: not serving; check that a majority of the controllers runs",
                    self._controller.node_id,
                )

    async def serves(self) -> None:
        """Wait until the status is SERVING for the first time."""
        await self._serves.wait()
