"""The limits on the records that a run of ``process`` takes from its consumer, and the consumer's positions after the
run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from ...models import OffsetAndMetadata
from ..reading import Reading
from .book import Book, Work
from .progress import WINDOW
from .settings import Settings

logger = logging.getLogger("headrace")

POLL_S = 0.1  #: Seconds that one poll waits for records; a retry may start up to this many seconds late.
POLL_RECORDS = 500  #: Maximum number of records of one poll.
#: Seconds for which ``process`` waits for running handlers when it ends, or when a partition is revoked.
DRAIN_S = 30.0
#: A handler that runs for this number of seconds is named in the log; the next such line follows LONG_S seconds later.
LONG_S = 60.0
BYTES_MAX = 64 * 1024 * 1024  #: ``process`` takes no more records while unfinished records have this many bytes.


class Flow:
    """The limits of a run: records and bytes in progress, and how far finished offsets may be from a partition's first
    unfinished offset."""

    def __init__(self, book: Book, reading: Reading, settings: Settings) -> None:
        self._book, self._reading, self._settings = book, reading, settings
        self._paused: set[TopicPartition] = set()
        self._named_at = float("-inf")  # when the log last named a handler that has not returned

    def room(self) -> int:
        """The number of records that may be taken now."""
        return 0 if self._book.bytes >= BYTES_MAX else self._settings.records_max - self._book.unfinished

    def regulate(self) -> None:
        """Pause each partition whose last offset is too far from its first unfinished offset, and resume all other
        partitions. A partition that the program has paused stays paused."""
        far = self._book.too_far()
        for tp in far - self._paused:
            assigned = self._reading.partitions.get(tp)
            if assigned is not None and not assigned.paused:
                self._reading.pause([tp])
                self._paused.add(tp)
                logger.warning(
                    "process: reading of %s-%d pauses: its first unfinished record is %d offsets behind the last "
                    "record that was read",
                    *tp,
                    WINDOW,
                )
        self._resume(self._paused - far)

    def name_long(self, now: float) -> None:
        """Log a handler that has not returned for LONG_S. Later records of the same chain wait for this handler, and a
        run that has reached its limits takes no more records. ``now``: the clock of ``Book.take``."""
        work, begun_at = next(iter(self._book.begun.items()), (None, now))
        if work is None or now - max(begun_at, self._named_at) < LONG_S:
            return
        self._named_at = now
        logger.warning(
            "process: %s for %.0f s; running: %s, unfinished: %s%s",
            f"the dead letter of {work} is not stored"
            if work.has_failed
            else f"the handler of {work} has not returned",
            now - begun_at,
            counted(self._book.running, "handler"),
            counted(self._book.unfinished, "record"),
            "" if self.room() > 0 else ", and process() takes no more records until a handler returns",
        )

    def release(self) -> None:
        """Resume all partitions, at the end of a run."""
        self._resume(set(self._paused))

    def _resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._paused.discard(tp)
            if tp in self._reading.partitions:
                self._reading.resume([tp])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def still_valid(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of partitions from which the consumer has returned no record since the commit."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for tp, each in committed.items():
            position = self._reading.known_position(tp) if tp in self._reading.partitions else None
            found[tp] = each if each is not None and position in (None, each.offset) else None
        return found


def name_unfinished(running: list[Work]) -> None:
    """Log the records whose handlers did not return within DRAIN_S."""
    if running:
        logger.warning(
            "process: %s did not return within %g s (%s%s); each of these records will be handled again, "
            "possibly while its handler still runs",
            counted(len(running), "handler"),
            DRAIN_S,
            ", ".join(map(str, running[:5])),
            ", ..." if len(running) > 5 else "",
        )


def go_back(reading: Reading, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Set each partition's position to its first unfinished record, so that the consumer's next call returns that
    record."""
    for tp, each in positions.items():
        if tp in reading.partitions and reading.known_position(tp) != each.offset:
            reading.seek(tp, each.offset)
