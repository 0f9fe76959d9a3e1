"""Compare what clients saw with what was committed.

Every write has a unique mark. Afterwards

* an acknowledged write is in the committed history, exactly once;
* a refused write is not in it;
* a write without an answer is in it once, or not at all.

A read that began after a write was acknowledged, or after another read had shown it, sees it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

from .verdicts import SafetyViolation


class Outcome(enum.Enum):
    UNKNOWN = "unknown"  #: No answer: it may have happened, or happen later.
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


class HistoryViolation(SafetyViolation):
    """An answer contradicts the committed history."""


@dataclass(slots=True)
class Write:
    mark: Hashable
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1  #: The place in the log in the acknowledgement (exclusive end).
    found: int = -1  #: Its place in the committed history.


class WriteHistory:
    """Called while things happen, so that faults are found at once: ``committed`` for every mark in the committed log,
    in its order; ``finish`` when nothing more will be committed."""

    def __init__(self) -> None:
        self._writes: dict[Hashable, Write] = {}
        self.acknowledged = 0
        self.refused = 0

    def begin(self, mark: Hashable) -> None:
        if mark in self._writes:
            raise ValueError(f"{mark} is written twice")
        self._writes[mark] = Write(mark)

    def __getitem__(self, mark: Hashable) -> Write:
        return self._writes[mark]

    def __contains__(self, mark: Hashable) -> bool:
        return mark in self._writes

    def acknowledge(self, mark: Hashable, offset: int) -> None:
        """The writer's acknowledgement: everything below ``offset`` contains its write."""
        write = self._answered(mark, Outcome.ACKNOWLEDGED)
        write.offset = offset
        self.acknowledged += 1
        if write.found < 0:
            raise HistoryViolation(f"{mark} was acknowledged at {offset}, and is not committed")
        if write.found >= offset:
            raise HistoryViolation(f"{mark} is at {write.found}, and was acknowledged as being below {offset}")

    def refuse(self, mark: Hashable) -> None:
        """The writer's final refusal."""
        write = self._answered(mark, Outcome.REFUSED)
        self.refused += 1
        if write.found >= 0:
            raise HistoryViolation(f"{mark} was refused, and is committed at {write.found}")

    def _answered(self, mark: Hashable, outcome: Outcome) -> Write:
        write = self._writes[mark]
        if write.outcome is not Outcome.UNKNOWN:
            raise HistoryViolation(f"{mark} was {write.outcome.value}, and now {outcome.value}: answered twice")
        write.outcome = outcome
        return write

    def committed(self, mark: Hashable, offset: int) -> None:
        """The committed log holds this write at ``offset``; unknown marks are ignored."""
        write = self._writes.get(mark)
        if write is None:
            return
        if write.found >= 0:
            raise HistoryViolation(f"{mark} is committed twice, at {write.found} and at {offset}")
        write.found = offset
        if write.outcome is Outcome.REFUSED:
            raise HistoryViolation(f"{mark} was refused, and then committed at {offset}")

    def finish(self) -> None:
        """Check that everything acknowledged is there."""
        for write in self._writes.values():
            if write.outcome is Outcome.ACKNOWLEDGED and write.found < 0:
                raise HistoryViolation(f"{write.mark} was acknowledged, and is lost")


class ReadHistory:
    """Reads and what they must see, as offsets of the committed log."""

    def __init__(self) -> None:
        self._known = 0

    def acknowledged(self, offset: int) -> None:
        """A client knows everything below ``offset``: a write was acknowledged, or a read has shown it."""
        self._known = max(self._known, offset)

    def begin(self) -> int:
        """A read begins; returns what it must see at least."""
        return self._known

    def served(self, must_see: int, saw: int, who: str) -> None:
        """A read that began at ``must_see`` is served by a state that has applied up to ``saw``."""
        if saw < must_see:
            raise HistoryViolation(f"{who} served a read from {saw}, and {must_see} was known when it was asked for")
        self.acknowledged(saw)
