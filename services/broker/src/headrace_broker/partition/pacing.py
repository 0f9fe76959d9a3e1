"""Throttle for replicas that are far behind (KIP-73): a token bucket of bytes.

Pure: each call passes the time, in milliseconds of a monotonic clock.
"""

from __future__ import annotations

#: This many bytes per second or more is no throttle (Kafka's default is the largest long).
UNLIMITED = 2**63 - 1
#: Burst after a rest: the rate times this. Kafka uses 11 s; shorter bursts are better for a shared link.
BURST_MS = 1_000


class Pacer:
    """A shared rate in bytes per second. ``take`` may overdraw it, because a batch is never split; later calls wait."""

    __slots__ = ("_available", "_rate", "_updated_ms")

    def __init__(self, bytes_per_second: int, now_ms: float) -> None:
        self._rate = max(bytes_per_second, 0)
        self._available = self._burst
        self._updated_ms = now_ms

    @property
    def is_unlimited(self) -> bool:
        return self._rate >= UNLIMITED

    @property
    def _burst(self) -> float:
        return self._rate * BURST_MS / 1000

    def set_rate(self, bytes_per_second: int, now_ms: float) -> None:
        """Set the rate; what has accrued, or is owed, stays."""
        self._refill(now_ms)
        self._rate = max(bytes_per_second, 0)
        self._available = min(self._available, self._burst)

    def take(self, size: int, now_ms: float) -> None:
        """``size`` bytes are being sent."""
        if not self.is_unlimited:
            self._refill(now_ms)
            self._available -= size

    def ready_in_ms(self, now_ms: float) -> float | None:
        """Milliseconds until something may be sent: 0.0: now; None: never at this rate (0)."""
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
