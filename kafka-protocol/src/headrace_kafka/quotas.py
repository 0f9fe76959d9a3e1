"""The quotas of Kafka's connections that no stream counts: the time that the event loop spends on requests other than
Produce and Fetch (KIP-124), and new connections from an address (KIP-612)."""

from __future__ import annotations

import time

from headrace_core.quotas import REQUEST_PERCENTAGE, ClientLimits, QuotaManager, throttle_ms


class ClientQuotas:
    """The quotas of one connection, whose user and client id may change. ``quotas``: the broker's, for both doors."""

    __slots__ = ("_client_id", "_limits", "_quotas", "_user")

    def __init__(self, quotas: QuotaManager) -> None:
        self._quotas = quotas
        self._user = self._client_id = ""
        self._limits: ClientLimits | None = None

    @property
    def measures_work(self) -> bool:
        """Whether any client has a quota of time, so that requests must be timed."""
        return REQUEST_PERCENTAGE in self._quotas.table.keys

    def worked_ms(self, user: str, client_id: str, seconds: float) -> int:
        """Count time that the event loop spent for the client; returns the client's wait in milliseconds."""
        if self._limits is None or (user, client_id) != (self._user, self._client_id):
            self._user, self._client_id = user, client_id
            self._limits = ClientLimits(self._quotas, user, client_id)
        return throttle_ms(self._limits.worked(seconds, time.perf_counter()))

    def connected_ms(self, host: str) -> int:
        """Count a new connection from ``host``; returns how many milliseconds its first request must wait."""
        return throttle_ms(self._quotas.connected(host, time.perf_counter()))
