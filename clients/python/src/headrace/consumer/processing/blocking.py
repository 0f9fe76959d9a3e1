"""``Consumer.process``: handlers run in threads, and the caller's thread polls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

from headrace_core.errors import HeadraceError, ProcessingError
from headrace_core.records import Record
from headrace_core.types import TopicPartition

from ...models import OffsetAndMetadata
from ...producer import Producer
from ...serializers import WouldWait
from ..core import ConsumerCore
from ..group import GroupConsumer
from .book import Book, Work
from .flow import DRAIN_S, POLL_RECORDS, POLL_S, Flow, go_back, name_unfinished
from .settings import BuryError, Settings, described, failure_of, letter_of, producer_config

logger = logging.getLogger("headrace")

_UNTRACED: AbstractContextManager[None] = nullcontext()


class Run:
    """One run of ``process``. The class implements ``Progress``, from which the consumer's group takes the offsets to
    commit. ``poll(timeout_s, max_records)`` returns records; ``begin_poll()`` only handles the group's events."""

    def __init__(
        self,
        core: ConsumerCore,
        poll: Callable[[float, int], list[Record]],
        begin_poll: Callable[[], None],
        handler: Callable[[Record], object],
        settings: Settings,
    ) -> None:
        self._core, self._poll, self._begin_poll = core, poll, begin_poll
        self._handler, self._settings = handler, settings
        self._group: GroupConsumer = core.in_group("process")
        self._book = Book(settings.order)
        self._flow = Flow(self._book, core.reading, settings)
        self._deserializes = not core.reading.plain
        self._changed = threading.Condition()  # guards the book
        self._failure: ProcessingError | None = None
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="headrace-process")
        self._dead_letters: Producer | None = None
        self._opening = threading.Lock()
        #: The consumer's positions before its last poll, until the poll's records are in the Book; None: all polled
        #: records are in the Book.
        self._before_poll: dict[TopicPartition, int] | None = None
        self._has_ended = False
        self._in_handlers: set[Work] = set()  # records whose handlers run

    def run(self, stop: threading.Event | None) -> None:
        """Process records until ``stop`` is set, or an error is raised."""
        group, interval_s = self._group, self._core.config["auto.commit.interval.ms"] / 1000
        group.begin_progress(self, self._settings.commit_interval)
        self._core.reading.plain = True  # polls return bytes: handler calls deserialize
        try:
            self._take_over()
            while self._failure is None and not (stop is not None and stop.is_set()):
                self._turn()
            if self._failure is not None:
                raise self._failure
        finally:
            try:
                self._end()
            finally:
                self._core.reading.plain = not self._deserializes
                group.end_progress(interval_s)

    def _take_over(self) -> None:
        """Read which records are already finished in the partitions that are already assigned to the consumer."""
        partitions = sorted(self._core.reading.partitions)
        if partitions:
            committed = self._core.engine.io.run(self._group.fetch_work(partitions, None))
            self.assigned(self._flow.still_valid(committed))

    def _turn(self) -> None:
        """Poll once. If too many records are in progress, handle only the group's events, and wait until handlers have
        finished some records."""
        with self._changed:
            self._flow.regulate()
            self._flow.name_long(time.monotonic())
            room = self._flow.room()
            self._start_ready()
        has_failed = False
        try:
            if room > 0:
                self._take(min(room, POLL_RECORDS))
                return
            self._begin_poll()
        except HeadraceError as error:
            if not error.retriable:
                raise
            has_failed = True
            logger.warning("process: %s; retrying", error)
        with self._changed:
            self._changed.wait_for(
                lambda: (self._flow.room() > 0 and not has_failed) or self._failure is not None, POLL_S
            )

    def _take(self, most: int) -> None:
        """Poll, and add the records to the book. If Ctrl-C comes after the poll, but before the book has the records,
        ``_before_poll`` still has the positions before the poll."""
        reading = self._core.reading
        known = {tp: reading.known_position(tp) for tp in list(reading.partitions)}
        self._before_poll = {tp: position for tp, position in known.items() if position is not None}
        try:
            records = self._poll(POLL_S, most)
        except Exception:
            self._before_poll = None
            raise
        if records:
            with self._changed:
                self._book.add(records)
                self._before_poll = None
                self._start_ready()
        self._before_poll = None

    def _start_ready(self) -> None:
        """Start a handler in a thread for each record that is ready, up to ``concurrency`` threads at a time."""
        while self._failure is None and not self._has_ended and self._book.running < self._settings.concurrency:
            work = self._book.take(time.monotonic())
            if work is None:
                return
            self._pool.submit(self._handle, work)

    def _handle(self, work: Work) -> None:
        """Handle one record, in a thread of the pool."""
        with self._changed:
            if self._has_ended:  # the run ended before this thread began: the record will be handled again
                return
            self._in_handlers.add(work)
        error = self._try(work)
        with self._changed:
            self._in_handlers.discard(work)
            if error is None:
                self._book.finish(work)
            elif isinstance(error, Exception) and self._settings.may_retry(work, error):
                logger.info("process: %s: try %d failed: %s", work, work.attempts, described(error))
                self._book.again(work, time.monotonic() + self._settings.delay_s(work))
            else:
                self._book.give_back(work)
                self._failure = self._failure or failure_of(work, error)
            self._start_ready()
            self._changed.notify_all()

    def _try(self, work: Work) -> BaseException | None:
        """Call the handler; after its last try, store the record as a dead letter. Returns None if the record is
        finished, otherwise the error."""
        traces = self._core.reading.traces
        try:
            with _UNTRACED if traces is None else traces.processing(work.record):
                self._handler(self._record_of(work))
        except Exception as error:  # noqa: BLE001 - it decides what becomes of the record
            return error if self._settings.may_retry(work, error) else self._bury(work, error)
        except BaseException as error:  # noqa: BLE001 - SystemExit ends the run, not only this thread
            return error
        return None

    def _record_of(self, work: Work) -> Record:
        reading, record = self._core.reading, work.record
        while self._deserializes:
            record.key, record.value = work.key, work.value
            try:
                return reading.deserialize(record)
            except WouldWait as waiting:
                waiting.block(float("inf"))
        return record

    def _bury(self, work: Work, error: Exception) -> Exception | None:
        """Store a record as a dead letter; returns the error of a record that cannot be stored."""
        topic = self._settings.dead_letters
        if topic is None:
            return error
        work.has_failed = True
        try:
            with self._opening:
                if self._dead_letters is None:
                    self._dead_letters = Producer(producer_config(self._core.config))
            self._dead_letters.send(topic, **letter_of(work, error)).result()
        except Exception as failure:  # noqa: BLE001 - any error ends the run; a thread that died would hang it
            found = BuryError(topic, error)
            found.__cause__ = failure
            return found
        logger.warning("process: %s is a dead letter in %s: %s", work, topic, described(error))
        return None

    def _end(self) -> None:
        """Wait for running handlers, set the positions to the first unfinished records, and commit."""
        reading = self._core.reading
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        self._has_ended = True
        try:
            with self._changed:
                self._book.close()
                self._pool.shutdown(wait=False, cancel_futures=True)
                # (the book may count records as running that no thread handles: after Ctrl-C, or because a thread
                # started late)
                if not self._changed.wait_for(lambda: not self._in_handlers, DRAIN_S):
                    name_unfinished([work for work in self._book.running_of() if work in self._in_handlers])
        finally:  # also after a second Ctrl-C: close() commits the positions
            if reading.state == "open":
                positions = self._group.positions()
                go_back(reading, positions)
                if self._before_poll is not None:  # partitions whose first poll was interrupted
                    new = [tp for tp in reading.partitions if tp not in positions]
                    self._core.seek_to_offsets(dict.fromkeys(new))
                self._flow.release()
        try:
            if reading.state == "open":
                self._core.engine.io.run(self._group.commit_work(positions))
        except HeadraceError as error:
            logger.warning("process: the last commit failed, so its records may be read again: %s", error)
        finally:
            if self._dead_letters is not None:
                self._dead_letters.close()

    # --- Progress ----------------------------------------------------------------------------------------------------

    def assigned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        with self._changed:
            self._book.assigned(offsets)
            if self._before_poll is not None:
                self._before_poll.update({tp: each.offset for tp, each in offsets.items() if each is not None})

    def revoking(self, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._book.close(partitions)
            if not self._changed.wait_for(lambda: not self._book.is_running(partitions), DRAIN_S):
                name_unfinished(self._book.running_of(partitions))

    def forget(self, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._book.forget(partitions)
            self._flow.forget(partitions)

    def positions(self, read: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._changed:
            before = self._before_poll
            if before is not None and self._has_ended:  # the book lacks records of an interrupted poll
                read = {
                    tp: OffsetAndMetadata(min(each.offset, before[tp])) for tp, each in read.items() if tp in before
                }
            return self._book.positions(read)
