"""Quotas of the gateway's clients that the gateway itself applies, in place of the brokers.

Brokers count the bytes of a stream that has one client, and return the wait in their responses. The gateway counts

* the bytes of Produce requests on streams that several connections share, for each broker separately, because a quota
  is a rate for each broker;
* the time that its event loop spends on a client's requests (KIP-124);
* new connections from an address (KIP-612).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.config import LONG_MAX
from headrace_core.metadata.security import SecurityImage
from headrace_core.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientLimits,
    QuotaManager,
    throttle_ms,
)

_OWN = -1  #: Stands for the gateway itself, in place of a broker's id.


class Quotas:
    """The quotas of all clients of a gateway. ``security`` returns the applied security image."""

    def __init__(
        self,
        security: Callable[[], SecurityImage],
        *,
        window_s: float = 1.0,
        windows: int = 11,
        defaults: Mapping[str, float] | None = None,
    ) -> None:
        self._security = security
        self._window_s, self._windows, self._defaults = window_s, windows, defaults or {}
        self._managers: dict[int, QuotaManager] = {}

    @classmethod
    def of(cls, security: Callable[[], SecurityImage], values: Mapping[str, Any]) -> Quotas:
        """The quotas of a configuration."""
        keys = {PRODUCER_BYTE_RATE: "quota.producer.default", CONSUMER_BYTE_RATE: "quota.consumer.default"}
        return cls(
            security,
            window_s=values["quota.window.size.seconds"],
            windows=values["quota.window.num"],
            defaults={rate: float(values[key]) for rate, key in keys.items() if values[key] < LONG_MAX},
        )

    def manager(self, broker_id: int = _OWN) -> QuotaManager:
        """The quotas for ``broker_id``, or the gateway's own quotas without a ``broker_id``; both follow the current
        metadata."""
        manager = self._managers.get(broker_id)
        if manager is None:
            manager = self._managers[broker_id] = QuotaManager(
                window_s=self._window_s, windows=self._windows, defaults=self._defaults
            )
        manager.apply(self._security().quotas)
        return manager

    @property
    def has_any(self) -> bool:
        """Whether there is any quota. Code that runs for each request checks this property first, because the check is
        cheap."""
        return bool(self._defaults) or bool(self._security().quotas)

    @property
    def times_fast(self) -> bool:
        """Whether the connection must time Produce and Fetch requests, too."""
        return self.measures_work

    @property
    def measures_work(self) -> bool:
        """Whether any client has a quota of time, so that requests must be timed."""
        return self.has_any and REQUEST_PERCENTAGE in self.manager().table.keys

    def connected_ms(self, host: str) -> int:
        """Count a new connection from ``host``; returns how many milliseconds its first request must wait."""
        return throttle_ms(self.manager().connected(host, time.monotonic()))


class ClientQuotas:
    """The quotas of one connection. The connection's user and client id may change."""

    __slots__ = ("_client_id", "_limits", "_quotas", "_user")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._user = self._client_id = ""
        self._limits: dict[int, ClientLimits] = {}

    def _of(self, broker_id: int, user: str, client_id: str) -> ClientLimits:
        manager = self._quotas.manager(broker_id)
        if (user, client_id) != (self._user, self._client_id):
            self._user, self._client_id = user, client_id
            self._limits.clear()
        limits = self._limits.get(broker_id)
        if limits is None:
            limits = self._limits[broker_id] = ClientLimits(manager, user, client_id)
        return limits

    @property
    def has_any(self) -> bool:
        """Whether there is any quota, of this client or of another client."""
        return self._quotas.has_any

    def produced_ms(self, broker_id: int, user: str, client_id: str, size: int) -> int:
        """Count bytes produced to a broker; returns the client's wait in milliseconds."""
        return throttle_ms(self._of(broker_id, user, client_id).produced(size, time.monotonic()))

    def worked_ms(self, user: str, client_id: str, seconds: float) -> int:
        """Count time that the event loop spent for the client; returns the client's wait in milliseconds."""
        return throttle_ms(self._of(_OWN, user, client_id).worked(seconds, time.monotonic()))
