"""Counters cheap enough for the data path: an attribute that is added to. Who wants them reads a snapshot."""

from __future__ import annotations

from collections.abc import Callable


class Counter:
    """A number that only grows. ``value += n`` from the event loop; no lock, since one thread owns it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics:
    """Counters by name, made on first use, and gauges; Kafka's names with dashes."""

    __slots__ = ("_counters", "_gauges")

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        """What ``read`` says whenever somebody looks: a number that grows and shrinks."""
        self._gauges[name] = read

    def counter(self, name: str) -> Counter:
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = Counter()
        return found

    def snapshot(self) -> dict[str, int]:
        """Every counter's and every gauge's value at this moment."""
        counters = {name: counter.value for name, counter in self._counters.items()}
        return counters | {name: read() for name, read in self._gauges.items()}
