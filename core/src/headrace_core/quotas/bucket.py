"""A token bucket: the rate of a quota, and how long a client over its quota must wait.

The bucket fills with ``rate`` tokens per second up to ``burst``. Spending may make the tokens negative; the client then
waits until they are 0 again. Over any time t, a client that observes the waits gets at most ``burst + rate * t``
tokens, plus the amount of one ``spend``.

Kafka measures bytes as an average over ``quota.window.num`` windows of ``quota.window.size.seconds``. In Kafka, a
client that was idle can therefore send the bytes of ten seconds at once, and still gets the full rate afterwards.
Headrace's burst for bytes and time is one window, so a client is held to its rate from the first second on. For
controller mutations, Headrace has the same token bucket as Kafka: its burst is all windows (KIP-599).
"""

from __future__ import annotations

import math


def throttle_ms(wait_s: float) -> int:
    """Convert a wait to ``throttle_time_ms``: rounded up, and at most the largest int32."""
    return min(math.ceil(wait_s * 1000), 2**31 - 1) if wait_s > 0 else 0


class TokenBucket:
    """One token bucket, which is full at first. Times are seconds of a monotonic clock."""

    __slots__ = ("_at_s", "_tokens", "burst", "excused_s", "rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._at_s = now_s
        #: Time at which a stream last waited only FIRST_WAIT_S_MAX, less than the client's whole debt
        #: (ClientLimits.first_wait_s).
        self.excused_s = -math.inf

    def set_rate(self, rate: float, burst: float, now_s: float) -> None:
        """Change the rate and the burst. A full bucket stays full, and the present wait of a client does not change."""
        tokens = self._refilled(now_s)
        if tokens < 0:
            tokens *= rate / self.rate
        elif tokens >= self.burst:
            tokens = burst
        self.rate, self.burst = rate, burst
        self._tokens = min(tokens, burst)

    def spend(self, amount: float, now_s: float) -> float:
        """Take ``amount`` tokens; returns how many seconds the client must wait."""
        self._tokens = tokens = self._refilled(now_s) - amount
        return -tokens / self.rate if tokens < 0 else 0.0

    def give(self, amount: float, now_s: float) -> None:
        """Put back ``amount`` tokens that ``spend`` has taken."""
        self._tokens = min(self._refilled(now_s) + amount, self.burst)

    def wait_s(self, now_s: float) -> float:
        """Return how many seconds the client must wait now."""
        tokens = self._refilled(now_s)
        return -tokens / self.rate if tokens < 0 else 0.0

    def is_full(self, now_s: float) -> bool:
        return self._refilled(now_s) >= self.burst

    def _refilled(self, now_s: float) -> float:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self._tokens = min(self._tokens + elapsed_s * self.rate, self.burst)
            self._at_s = now_s
        return self._tokens
