"""Time as an argument. Production code gets SystemClock; tests and the simulator inject their own (core.testing)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Both readings in one place, so that a component can be given a time that a test owns."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed point; never goes backwards."""


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6
