"""Clocks for tests: a manual clock, and the clock of a simulated machine."""

from __future__ import annotations

from .scheduler import Scheduler


class ManualClock:
    """A headrace_core.clock.Clock that tests set. ``advance`` advances wall-clock and monotonic time, ``jump`` only the
    wall clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        if ms < 0:
            raise ValueError(f"ms={ms}: must be 0 or more; use jump() to set a clock back")
        self._monotonic_ms += ms
        self._now_ms += int(ms)

    def jump(self, ms: int) -> None:
        """Change the wall clock by ``ms``, as an administrator or NTP does."""
        self._now_ms += ms


EPOCH_MS = 1_700_000_000_000  #: Wall-clock time at the beginning of a simulation, in milliseconds since 1970.


class NodeClock:
    """A headrace_core.clock.Clock on virtual time. The clock's monotonic time never decreases."""

    __slots__ = ("_base_ms", "_now_offset_ms", "_rate", "_scheduler", "_since_ms")

    def __init__(self, scheduler: Scheduler, *, started_ms: float = 0.0) -> None:
        """``started_ms``: the first value of the monotonic time, which differs between machines."""
        self._scheduler = scheduler
        self._base_ms = started_ms
        self._since_ms = scheduler.now_ms
        self._rate = 1.0
        self._now_offset_ms = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._scheduler.now_ms + self._now_offset_ms)

    def monotonic_ms(self) -> float:
        return self._base_ms + (self._scheduler.now_ms - self._since_ms) * self._rate

    def drift(self, rate: float) -> None:
        """Let the clock run at ``rate`` from now on."""
        if rate <= 0:
            raise ValueError(f"the rate of a clock must be above 0, not {rate}")
        self._base_ms, self._since_ms, self._rate = self.monotonic_ms(), self._scheduler.now_ms, rate

    def jump(self, ms: float) -> None:
        """Change the wall-clock time by ``ms``."""
        self._now_offset_ms += ms

    def leap(self, ms: float) -> None:
        """Advance the monotonic time at once, as after the suspension of a virtual machine."""
        if ms < 0:
            raise ValueError(f"ms={ms}: must be 0 or more, because a monotonic clock never goes back")
        self._base_ms += ms

    @property
    def rate(self) -> float:
        """Milliseconds of the simulated clock per virtual millisecond."""
        return self._rate

    def due_in_ms(self, monotonic_ms: float) -> float:
        """Return the virtual time until the simulated clock reaches the monotonic time ``monotonic_ms``; 0 if it has
        reached that time."""
        now_ms = self._base_ms + (self._scheduler.now_ms - self._since_ms) * self._rate
        return (monotonic_ms - now_ms) / self._rate if monotonic_ms > now_ms else 0.0
