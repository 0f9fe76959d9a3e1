"""A clock that moves only when told."""

from __future__ import annotations


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
