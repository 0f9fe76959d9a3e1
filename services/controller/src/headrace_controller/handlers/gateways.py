"""The directory of gateways, which the leading controller keeps in memory.

Gateways store no data, so the metadata log has no records about gateways. A new leader knows all running gateways after
each gateway has announced itself once.
"""

from __future__ import annotations

import asyncio

from headrace_core.errors import ServerBusyError
from headrace_protos.v1 import cluster_pb2

HOLD_S = 0.3  #: Longest time in seconds that an announcement waits for a change of the gateways before it is answered.
#: Milliseconds without an announcement after which a gateway is removed. A killed gateway is removed at once, because
#: the connection of its announcement breaks. With a shorter timeout, running gateways on a busy machine would be
#: removed.
FORGET_MS = 3_000.0
COMPLETE_MS = 2_000.0  #: Milliseconds after an election until the leader knows all running gateways.
GATEWAYS_MAX = 1_000


class GatewayDirectory:
    """The known gateways. Times are monotonic, in milliseconds. Each change of the gateways increments ``version``."""

    def __init__(self) -> None:
        #: Maps a gateway id to (time of the last announcement, number of this announcement, the gateway).
        self._known: dict[bytes, tuple[float, int, cluster_pb2.AnnouncedGateway]] = {}
        self._term = -1
        self._since_ms = 0.0
        self._announcements = 0
        self._changed = asyncio.Event()
        self.version = 0

    def announce(self, request: cluster_pb2.AnnounceGatewayRequest, term: int, now_ms: float) -> int:
        """Record a gateway's announcement to the leader of ``term``; returns the announcement's number. Raises
        ServerBusyError for a gateway above GATEWAYS_MAX."""
        if term != self._term:  # announcements of an earlier term may be outdated
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
        """Remove a gateway whose connection broke during this announcement, unless the gateway has sent a later
        announcement."""
        if gateway_id in self._known and self._known[gateway_id][1] == announcement:
            self._remove([gateway_id])

    async def wait_changed(self, known_version: int) -> None:
        """Wait until ``version`` differs from ``known_version``, for at most HOLD_S seconds."""
        if self.version == known_version:
            try:
                async with asyncio.timeout(HOLD_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def answer(self, now_ms: float) -> cluster_pb2.AnnounceGatewayResponse:
        """The answer with all running gateways."""
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
