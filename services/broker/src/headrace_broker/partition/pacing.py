"""How fast replicas that are far behind may be brought up (KIP-73): a bucket of bytes that fills by a clock.

Pure: the time comes in with every call, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

#: A throttle of so many bytes per second or more is none (Kafka's default is the largest long).
UNLIMITED = 2**63 - 1
#: How much may be sent at once after a rest: what the rate brings in so long a time. Kafka's window of 11 s lets a
#: burst of as much through; a link that somebody else needs is better off with short ones.
BURST_MS = 1_000


class Pacer:
    """A rate in bytes per second for whoever shares it. What is taken may overdraw it, for a batch is never split: the
    debt is waited for."""

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
        """From now on; what has accrued until now accrued at the old rate, and a debt stays one."""
        self._refill(now_ms)
        self._rate = max(bytes_per_second, 0)
        self._available = min(self._available, self._burst)

    def take(self, size: int, now_ms: float) -> None:
        """``size`` bytes are being sent."""
        if not self.is_unlimited:
            self._refill(now_ms)
            self._available -= size

    def ready_in_ms(self, now_ms: float) -> float | None:
        """In how many milliseconds something may be sent: 0.0: now; None: never at this rate (0)."""
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
