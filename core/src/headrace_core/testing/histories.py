"""What clients saw, held against what was committed.

Every write has a mark that nobody else's has. Afterwards

* what was acknowledged is in the committed history, exactly once;
* what was refused is not in it;
* of what got no answer nobody knows: it is in it once, or not at all.

A read that began after a write was acknowledged, or after another read had shown it, sees it.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

from .verdicts import SafetyViolation


class Outcome(enum.Enum):
    #: No answer: it may have happened, or happen yet.
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


class HistoryViolation(SafetyViolation):
    """Somebody was told what is not so."""


@dataclass(slots=True)
class Write:
    mark: Hashable
    outcome: Outcome = Outcome.UNKNOWN
    #: The place in the log that the acknowledgement named (exclusive end).
    offset: int = -1
    #: Where the committed history has it.
    found: int = -1


class WriteHistory:
    """Fed while things happen, so that what is wrong is found at once: ``committed`` for every mark in the committed
    log, in its order; ``finish`` when nothing will be committed any more."""

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
        """The writer was told that everything below ``offset`` holds its write."""
        write = self._answered(mark, Outcome.ACKNOWLEDGED)
        write.offset = offset
        self.acknowledged += 1
        if write.found < 0:
            raise HistoryViolation(f"{mark} was acknowledged at {offset}, and is not committed")
        if write.found >= offset:
            raise HistoryViolation(f"{mark} is at {write.found}, and was acknowledged as being below {offset}")

    def refuse(self, mark: Hashable) -> None:
        """The writer was told that its write did not happen, and never will."""
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
        """The committed log holds this write at ``offset``; marks of nobody's are no matter of ours."""
        write = self._writes.get(mark)
        if write is None:
            return
        if write.found >= 0:
            raise HistoryViolation(f"{mark} is committed twice, at {write.found} and at {offset}")
        write.found = offset
        if write.outcome is Outcome.REFUSED:
            raise HistoryViolation(f"{mark} was refused, and then committed at {offset}")

    def finish(self) -> None:
        """Everything acknowledged is there (said when it was acknowledged; once more, in case somebody forgot)."""
        for write in self._writes.values():
            if write.outcome is Outcome.ACKNOWLEDGED and write.found < 0:
                raise HistoryViolation(f"{write.mark} was acknowledged, and is lost")


class ReadHistory:
    """Reads and what they must see, as offsets of the committed log."""

    def __init__(self) -> None:
        self._known = 0

    def acknowledged(self, offset: int) -> None:
        """Somebody was told of everything below ``offset``: a write was acknowledged, or a read has shown it."""
        self._known = max(self._known, offset)

    def begin(self) -> int:
        """A read is asked for; what it must see at least."""
        return self._known

    def served(self, must_see: int, saw: int, who: str) -> None:
        """A read that was asked for when ``must_see`` held is served by a state that has applied up to ``saw``."""
        if saw < must_see:
            raise HistoryViolation(f"{who} served a read from {saw}, and {must_see} was known when it was asked for")
        self.acknowledged(saw)
