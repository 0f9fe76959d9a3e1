"""The clock of members' timeouts. Pure."""

from __future__ import annotations

#: A check that is later than this number of milliseconds means that the process was paused or the clock jumped.
LATE_MS = 2_000


class SteadyClock:
    """Derives a steady clock from a wall clock that may jump. The steady clock does not advance during a jump of the
    wall clock or a pause of the process. No heartbeat could arrive during a jump of the clock or a pause of the
    process, so no member is late."""

    def __init__(self) -> None:
        self._ahead_ms = 0  # wall clock minus steady clock, in milliseconds
        self._last_ms: int | None = None

    def was_set(self, by_ms: int) -> None:
        """Report that the wall clock was set, as a comparison with a second clock has shown. Guard: ``read`` does not
        detect a step of less than LATE_MS, which would shorten a member's grace period. A member reads until its full
        grace period is over."""
        self._ahead_ms += by_ms

    def read(self, wall_ms: int, due_ms: int | None) -> int:
        """Return the steady time for the wall-clock time ``wall_ms``. ``due_ms`` is the latest steady time at which
        this call should have happened."""
        last = self._last_ms
        now_ms = wall_ms - self._ahead_ms
        if last is not None and (now_ms < last or (due_ms is not None and now_ms > max(due_ms, last) + LATE_MS)):
            self._ahead_ms += now_ms - last
            now_ms = last
        self._last_ms = now_ms
        return now_ms

    def wall(self, steady_ms: int) -> int:
        return steady_ms + self._ahead_ms
