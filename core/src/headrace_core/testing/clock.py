"""Clocks: a manual one, and that of a simulated machine."""

from __future__ import annotations

from .scheduler import Scheduler


class ManualClock:
    """Implements headrace_core.clock.Clock; ``advance`` moves both readings, ``jump`` only the wall clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: float) -> None:
        if ms < 0:
            raise ValueError(f"a clock advances forwards only, not by {ms} ms; see jump()")
        self._monotonic_ms += ms
        self._now_ms += int(ms)

    def jump(self, ms: int) -> None:
        """An administrator, or NTP, sets the wall clock."""
        self._now_ms += ms


EPOCH_MS = 1_700_000_000_000  #: Wall time at the beginning of a simulation.


class NodeClock:
    """Implements headrace_core.clock.Clock on virtual time. The monotonic reading never goes back."""

    __slots__ = ("_base_ms", "_now_offset_ms", "_rate", "_scheduler", "_since_ms")

    def __init__(self, scheduler: Scheduler, *, started_ms: float = 0.0) -> None:
        """``started_ms``: the first monotonic reading, different on each machine."""
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
        """From now on the clock runs at ``rate``."""
        if rate <= 0:
            raise ValueError(f"a clock goes forwards, not at {rate} times the time's pace")
        self._base_ms, self._since_ms, self._rate = self.monotonic_ms(), self._scheduler.now_ms, rate

    def jump(self, ms: float) -> None:
        """Set the wall time."""
        self._now_offset_ms += ms

    def leap(self, ms: float) -> None:
        """Advance the monotonic reading at once, as after the suspension of a virtual machine."""
        if ms < 0:
            raise ValueError(f"a monotonic clock does not go back, by {ms} ms")
        self._base_ms += ms

    @property
    def rate(self) -> float:
        """Its milliseconds per virtual millisecond."""
        return self._rate

    def due_in_ms(self, monotonic_ms: float) -> float:
        """Virtual time until this clock reads ``monotonic_ms``; 0 when it does already."""
        now_ms = self._base_ms + (self._scheduler.now_ms - self._since_ms) * self._rate
        return (monotonic_ms - now_ms) / self._rate if monotonic_ms > now_ms else 0.0
