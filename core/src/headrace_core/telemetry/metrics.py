"""Counters cheap enough for the data path: an attribute that is added to. Who wants them reads a snapshot."""

from __future__ import annotations


class Counter:
    """A number that only grows. ``value += n`` from the event loop; no lock, since one thread owns it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics:
    """Counters by name, made on first use; Kafka's names with dashes."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}

    def counter(self, name: str) -> Counter:
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = Counter()
        return found

    def snapshot(self) -> dict[str, int]:
        """Every counter's value at this moment."""
        return {name: counter.value for name, counter in self._counters.items()}
