"""Compare the responses that clients got with the committed history.

Every write of a test has a unique mark (an identifier). At the end of a test

* an acknowledged write is in the committed history, exactly once;
* a refused write is not in the history;
* a write without a response is in the history once, or not at all.

A read that began after a write was acknowledged, or after another read returned the write, returns the write too.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

from .verdicts import SafetyViolation


class Outcome(enum.Enum):
    #: The client got no response to the write: the write may be committed already, or may be committed later.
    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


class HistoryViolation(SafetyViolation):
    """Raised when a response contradicts the committed history."""


@dataclass(slots=True)
class Write:
    mark: Hashable
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1  #: End offset (exclusive) in the write's acknowledgement.
    found: int = -1  #: Offset of the write in the committed history; -1 if the history lacks the write.


class WriteHistory:
    """Checks writes while a test runs, so that a fault is found at once. Call ``committed`` for every mark in the
    committed log, in the log's order, and ``finish`` when no more writes will be committed."""

    def __init__(self) -> None:
        self._writes: dict[Hashable, Write] = {}
        self.acknowledged = 0
        self.refused = 0

    def begin(self, mark: Hashable) -> None:
        if mark in self._writes:
            raise ValueError(f"write {mark} is sent twice")
        self._writes[mark] = Write(mark)

    def __getitem__(self, mark: Hashable) -> Write:
        return self._writes[mark]

    def __contains__(self, mark: Hashable) -> bool:
        return mark in self._writes

    def acknowledge(self, mark: Hashable, offset: int) -> None:
        """Record the acknowledgement of a write: the records below ``offset`` contain the write."""
        write = self._answered(mark, Outcome.ACKNOWLEDGED)
        write.offset = offset
        self.acknowledged += 1
        if write.found < 0:
            raise HistoryViolation(f"write {mark} was acknowledged at {offset}, but is not committed")
        if write.found >= offset:
            raise HistoryViolation(f"write {mark} is at {write.found}, but was acknowledged as below {offset}")

    def refuse(self, mark: Hashable) -> None:
        """Record that a write was permanently refused."""
        write = self._answered(mark, Outcome.REFUSED)
        self.refused += 1
        if write.found >= 0:
            raise HistoryViolation(f"write {mark} was refused, but is committed at {write.found}")

    def _answered(self, mark: Hashable, outcome: Outcome) -> Write:
        write = self._writes[mark]
        if write.outcome is not Outcome.UNKNOWN:
            raise HistoryViolation(f"write {mark} was answered twice: first {write.outcome.value}, now {outcome.value}")
        write.outcome = outcome
        return write

    def committed(self, mark: Hashable, offset: int) -> None:
        """Record that the committed log has the write at ``offset``; unknown marks are ignored."""
        write = self._writes.get(mark)
        if write is None:
            return
        if write.found >= 0:
            raise HistoryViolation(f"write {mark} is committed twice, at {write.found} and at {offset}")
        write.found = offset
        if write.outcome is Outcome.REFUSED:
            raise HistoryViolation(f"write {mark} was refused, and then committed at {offset}")

    def finish(self) -> None:
        """Check that every acknowledged write is in the committed history."""
        for write in self._writes.values():
            if write.outcome is Outcome.ACKNOWLEDGED and write.found < 0:
                raise HistoryViolation(f"write {write.mark} was acknowledged, but is lost")


class ReadHistory:
    """Checks that each read includes all committed records that a client knew when the read began."""

    def __init__(self) -> None:
        self._known = 0

    def acknowledged(self, offset: int) -> None:
        """Record that a client knows all records below ``offset``, from an acknowledgement or from a read."""
        self._known = max(self._known, offset)

    def begin(self) -> int:
        """Record the beginning of a read; returns the end offset that the read must include."""
        return self._known

    def served(self, must_see: int, saw: int, who: str) -> None:
        """Record that a read was served from a state that has applied the log up to ``saw``; ``must_see`` is the result
        of ``begin``."""
        if saw < must_see:
            raise HistoryViolation(
                f"{who} served a read from offset {saw}, but offset {must_see} was known when the read began"
            )
        self.acknowledged(saw)
