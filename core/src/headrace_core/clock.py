"""Time as an argument. Production code gets SystemClock; tests and the simulator inject their own (core.testing).

Leases and sessions use a clock that runs while the machine is suspended: CLOCK_BOOTTIME. On CLOCK_MONOTONIC a machine
that slept for an hour would not notice, while others have taken over its leases. Only Linux has that clock; elsewhere
it is the monotonic one, and a suspension is not counted.

Timers (asyncio, threads) run on CLOCK_MONOTONIC: a suspension delays them by its length. So a lease is compared with
this clock at the moment of use; a timer only makes that moment come soon.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Both readings in one place, so that tests can set the time of a component."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds since a fixed point; never goes back, and counts suspensions."""


def boottime_ns() -> int:
    """Nanoseconds since a fixed point; never goes back. On Linux it counts suspensions."""
    return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def boottime_s() -> float:
    """``boottime_ns`` in seconds, for leases. Do not mix it with time.monotonic() or an event loop's time."""
    return boottime_ns() / 1e9


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return boottime_ns() / 1e6
