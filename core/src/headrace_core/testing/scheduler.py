"""Virtual time for simulations: one heap of planned actions.

A simulation has one ``Scheduler``; every event of the simulation (messages, ticks, slow disks, faults) is an action at
a virtual time. Actions with the same time run in the order in which they were planned. A run depends only on its seed,
and not on the machine, its load, or ``PYTHONHASHSEED`` (if no code iterates over sets of strings).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Planned:
    """An action planned for a time; ``cancel`` prevents the action."""

    __slots__ = ("action", "arguments", "at_ms")

    def __init__(self, at_ms: float, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.at_ms = at_ms
        self.action: Callable[..., object] | None = action
        self.arguments = arguments

    def cancel(self) -> None:
        """Cancel the action. ``cancel`` is idempotent, and has no effect after the action ran."""
        self.action = None
        self.arguments = ()


class Scheduler:
    """Runs planned actions in virtual time. Times are milliseconds since the simulation began."""

    __slots__ = ("_heap", "_number", "events", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.events = 0  #: Number of actions that the scheduler has run.
        self._heap: list[tuple[float, int, Planned]] = []
        self._number = 0

    def at(self, at_ms: float, action: Callable[..., object], *arguments: Any) -> Planned:
        """Plan ``action(*arguments)`` for the virtual time ``at_ms``. A time in the past means now, after all other
        actions that are due."""
        now_ms = self.now_ms
        if at_ms < now_ms:
            at_ms = now_ms
        planned = Planned(at_ms, action, arguments)
        self._number = number = self._number + 1
        heappush(self._heap, (at_ms, number, planned))
        return planned

    def after(self, delay_ms: float, action: Callable[..., object], *arguments: Any) -> Planned:
        """Plan ``action(*arguments)`` for ``delay_ms`` from now."""
        at_ms = self.now_ms  # (the same as ``at``, inlined for speed)
        if delay_ms > 0.0:
            at_ms += delay_ms
        planned = Planned(at_ms, action, arguments)
        self._number = number = self._number + 1
        heappush(self._heap, (at_ms, number, planned))
        return planned

    @property
    def next_ms(self) -> float | None:
        """Time of the next action; None if no action is left."""
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_one(self, until_ms: float) -> bool:
        """Run the next action. If no action is due up to ``until_ms``, set the time to ``until_ms`` and return
        False."""
        heap = self._heap
        while heap:
            at_ms, _, planned = heap[0]
            action = planned.action
            if action is None:
                heappop(heap)
                continue
            if at_ms > until_ms:
                break
            heappop(heap)
            self.now_ms = at_ms
            self.events += 1
            arguments = planned.arguments
            planned.action, planned.arguments = None, ()
            action(*arguments)
            return True
        self.now_ms = max(self.now_ms, until_ms)
        return False

    def run(self, until_ms: float, after_each: Callable[[], object] | None = None, *, events_max: int = 0) -> bool:
        """Run all actions that are due up to ``until_ms``; ``after_each`` is called after every action. Returns False
        if the scheduler has run more than ``events_max`` actions in all (0: unlimited), which ends the run early."""
        heap = self._heap
        while heap:
            at_ms, _, planned = heap[0]
            action = planned.action
            if action is None:
                heappop(heap)
                continue
            if at_ms > until_ms:
                break
            heappop(heap)
            self.now_ms = at_ms
            self.events += 1
            arguments = planned.arguments
            planned.action, planned.arguments = None, ()
            action(*arguments)
            if after_each is not None:
                after_each()
            if events_max and self.events > events_max:
                return False
        self.now_ms = max(self.now_ms, until_ms)
        return True
