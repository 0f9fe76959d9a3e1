"""Throttle for replicas that are far behind (KIP-73), as a token bucket of bytes.

Pure: the caller passes the time to each call, in milliseconds of a monotonic clock.
"""

from __future__ import annotations

#: A rate of at least this number of bytes per second means no throttle (Kafka's default, the largest long).
UNLIMITED = 2**63 - 1
#: Maximum burst after an idle time, in milliseconds of the allowed rate. Kafka allows bursts of 11 s; shorter bursts
#: are better for a network link that has other users.
BURST_MS = 1_000


class Pacer:
    """A rate in bytes per second that several replicas share. ``take`` may overdraw the rate, because a batch is never
    split; later calls then wait."""

    __slots__ = ("_available", "_rate", "_updated_ms", "is_unlimited")

    def __init__(self, bytes_per_second: int, now_ms: float) -> None:
        self._rate = max(bytes_per_second, 0)
        self.is_unlimited = self._rate >= UNLIMITED
        self._available = self._burst
        self._updated_ms = now_ms

    @property
    def _burst(self) -> float:
        return self._rate * BURST_MS / 1000

    def set_rate(self, bytes_per_second: int, now_ms: float) -> None:
        """Set the rate. The bucket keeps its debt, and its unused bytes up to the burst of the new rate."""
        self._refill(now_ms)
        self._rate = max(bytes_per_second, 0)
        self.is_unlimited = self._rate >= UNLIMITED
        self._available = min(self._available, self._burst)

    def take(self, size: int, now_ms: float) -> None:
        """Take ``size`` bytes, which are about to be sent, from the bucket."""
        if not self.is_unlimited:
            self._refill(now_ms)
            self._available -= size

    def ready_in_ms(self, now_ms: float) -> float | None:
        """Milliseconds until the next bytes may be sent: 0.0 for now, None for never (the rate is 0)."""
        if self.is_unlimited:
            return 0.0
        self._refill(now_ms)
        if not self._rate:
            return None
        return 0.0 if self._available > 0 else (1 - self._available) * 1000 / self._rate

    def _refill(self, now_ms: float) -> None:
        elapsed_ms = now_ms - self._updated_ms
        if elapsed_ms > 0:
            self._updated_ms = now_ms
            self._available = min(self._available + elapsed_ms * self._rate / 1000, self._burst)
