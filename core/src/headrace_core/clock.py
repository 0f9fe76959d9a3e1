"""Time as an argument. Production code gets SystemClock; tests and the simulator inject their own (core.testing).

Leases and sessions are counted by a clock that goes on while the machine is suspended: CLOCK_BOOTTIME. On
CLOCK_MONOTONIC a machine that slept for an hour believes that no time has passed, while others have taken over what it
had. Only Linux has the clock; elsewhere it is the monotonic one, and a suspension is not counted.

Timers (asyncio, threads) run on CLOCK_MONOTONIC: after a suspension they are late by its length. So a lease is compared
with this clock at the moment of use; a timer only makes that moment come soon.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Both readings in one place, so that a component can be given a time that a test owns."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed point; never goes backwards, and counts the time of a suspension."""


def boottime_ns() -> int:
    """Nanoseconds since some fixed point; never goes backwards. On Linux the time of a suspension counts."""
    return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def boottime_s() -> float:
    """``boottime_ns`` in seconds: for leases. Not to be mixed with time.monotonic() or an event loop's time."""
    return boottime_ns() / 1e9


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return boottime_ns() / 1e6
