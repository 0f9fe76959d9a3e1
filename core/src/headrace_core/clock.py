"""Clocks, which components get as arguments. Production code gets SystemClock; tests and the simulator inject their own
clocks (core.testing).

Leases and sessions use CLOCK_BOOTTIME, which also runs while the machine is suspended. With CLOCK_MONOTONIC, a node on
a machine that was suspended for an hour would not notice that other nodes have taken over its leases. Only Linux has
CLOCK_BOOTTIME; on other systems the monotonic clock is used, which does not count suspensions.

Timers (asyncio, threads) run on CLOCK_MONOTONIC, so a suspension delays a timer by the suspension's length. Because a
timer may be late, code compares a lease with CLOCK_BOOTTIME whenever it uses the lease.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall-clock and monotonic time from one object, so that tests can set the time of a component."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds since a fixed point in time; the value never decreases, and includes the time of suspensions of
        the machine."""


def boottime_s() -> float:
    """Seconds since a fixed point in time, for leases; the value never decreases. On Linux, the value includes the time
    during which the machine was suspended. Do not compare it with time.monotonic() or an event loop's time."""
    return time.clock_gettime_ns(_BOOTTIME) / 1e9


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_BOOTTIME) / 1e6
