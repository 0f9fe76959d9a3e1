"""The gateways that the leading controller knows.

Gateways keep no data, so nothing about them is in the metadata log: a new leader knows all living gateways after one
round of their announcements.
"""

from __future__ import annotations

import asyncio

from headrace_core.errors import ServerBusyError
from headrace_protos.v1 import cluster_pb2

HOLD_S = 0.3  #: Seconds for which an announcement waits for a change before it is answered.
#: A gateway that was not heard for this number of milliseconds is forgotten. A killed one is forgotten at once, because
#: the connection of its announcement breaks; a shorter time would forget living gateways when a machine is busy.
FORGET_MS = 3_000.0
COMPLETE_MS = 2_000.0  #: After this number of milliseconds, all living gateways have announced themselves to a leader.
GATEWAYS_MAX = 1_000


class GatewayDirectory:
    """One per controller. Times are monotonic, in milliseconds. ``version`` differs whenever the gateways differ."""

    def __init__(self) -> None:
        #: Gateway id -> (time, number of the announcement, gateway).
        self._known: dict[bytes, tuple[float, int, cluster_pb2.AnnouncedGateway]] = {}
        self._term = -1
        self._since_ms = 0.0
        self._announcements = 0
        self._changed = asyncio.Event()
        self.version = 0

    def announce(self, request: cluster_pb2.AnnounceGatewayRequest, term: int, now_ms: float) -> int:
        """Note what a gateway says to the leader of ``term``; returns the announcement's number. Raises
        ServerBusyError for a gateway above GATEWAYS_MAX."""
        if term != self._term:  # what was heard in an earlier term may be old
            self._term, self._since_ms = term, now_ms
            self._known.clear()
            self._note_change()
        self._forget(now_ms)
        gateway, self._announcements = request.gateway, self._announcements + 1
        before = self._known.get(gateway.gateway_id)
        if request.is_leaving:
            if before is not None:
                self._remove([gateway.gateway_id])
        elif before is None and len(self._known) >= GATEWAYS_MAX:
            raise ServerBusyError(f"the cluster has {GATEWAYS_MAX} gateways already; stop one of them first")
        else:
            self._known[gateway.gateway_id] = (now_ms, self._announcements, gateway)
            if before is None or before[2] != gateway:
                self._note_change()
        return self._announcements

    def lost(self, gateway_id: bytes, announcement: int) -> None:
        """Forget a gateway whose connection broke during this announcement, if the announcement is its last one."""
        if gateway_id in self._known and self._known[gateway_id][1] == announcement:
            self._remove([gateway_id])

    async def wait_changed(self, known_version: int) -> None:
        """Wait until ``version`` is not ``known_version``, for HOLD_S at most."""
        if self.version == known_version:
            try:
                async with asyncio.timeout(HOLD_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def answer(self, now_ms: float) -> cluster_pb2.AnnounceGatewayResponse:
        """All living gateways."""
        self._forget(now_ms)
        return cluster_pb2.AnnounceGatewayResponse(
            gateways=[self._known[gateway_id][2] for gateway_id in sorted(self._known)],
            is_complete=now_ms - self._since_ms > COMPLETE_MS,
            version=self.version,
        )

    def _forget(self, now_ms: float) -> None:
        silent = [each for each, (at_ms, _, _) in self._known.items() if now_ms - at_ms > FORGET_MS]
        if silent:
            self._remove(silent)

    def _remove(self, gateway_ids: list[bytes]) -> None:
        for gateway_id in gateway_ids:
            del self._known[gateway_id]
        self._note_change()

    def _note_change(self) -> None:
        self.version = max(self.version + 1, self._term << 32)
        self._changed.set()
        self._changed = asyncio.Event()
