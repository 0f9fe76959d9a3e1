"""Compaction, by ``log.cleaner.threads`` threads for all directories of the broker (Kafka's LogCleaner).

    plan      the logs worth a cleaning, over all directories, most urgent first; rolls an active segment, also an idle
              one, whose records have waited longer than max.compaction.lag.ms
    clean     each thread takes the next one; only the swaps run in the directory's turns (``DirectoryWriter.run``)
    rest      no log is left: free the maps' memory, and plan again after log.cleaner.backoff.ms, or when a topic's
              settings change

A log that cannot be compacted is reported once (``LogUncleanable``) and then skipped; the compaction of other logs
continues. A *crew* is the set of threads that run under one value of the ``log.cleaner.*`` settings. When a setting
changes, the crew ends after the part of a log that it is reading, and a crew with the new settings starts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import (
    DiskFullError,
    HeadraceError,
    ServerBusyError,
    ServerShuttingDownError,
    StorageError,
)
from headrace_core.log import PartitionLog
from headrace_core.log.compaction.cleaner import Cleaner, CleaningReport
from headrace_core.log.compaction.planning import CleanerConfig, Target
from headrace_core.log.compaction.windows import RateLimiter
from headrace_core.log.directory import LogDirectory
from headrace_core.log.writer import DirectoryWriter
from headrace_core.telemetry import Counter, Emitter, Event, LogCleaned, LogUncleanable
from headrace_core.types import TopicPartition

from ..partition_table import PartitionTable
from ..settings import BrokerSettings, LiveSettings
from .retention import high_watermark_of

logger = logging.getLogger(__name__)

_IO_BUFFER_BYTES_MIN = 4096
#: Shortest pause in seconds between two cleaning plans. A cleaning plan examines every log, so log.cleaner.backoff.ms=0
#: would use a whole core.
_BACKOFF_S_MIN = 0.1


class _Job(NamedTuple):
    """A log that needs cleaning, with the writer of its directory."""

    writer: DirectoryWriter
    partition: TopicPartition


class Cleaners:
    """See the module. Call ``start``, ``stop``, ``wake`` and ``retry`` in the event loop. ``uncleanable`` counts the
    logs that are skipped."""

    def __init__(
        self,
        writers: Callable[[], list[DirectoryWriter]],
        partitions: PartitionTable,
        *,
        clock: Clock,
        settings: LiveSettings,
        events: Emitter,
        loop: asyncio.AbstractEventLoop,
        uncleanable: Counter | None = None,
    ) -> None:
        self._writers = writers
        self._partitions = partitions
        self._clock = clock
        self._settings = settings
        self._events = events
        self._loop = loop
        self._uncleanable = uncleanable or Counter()
        #: One random hash key for the process: with predictable hashes, a client could make two record keys collide on
        #: purpose.
        self._secret = os.urandom(16)
        self._crew: _Crew | None = None
        self._changing: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._reported: dict[TopicPartition, str] = {}
        self._reporting = threading.Lock()

    def start(self) -> None:
        """Start cleaning, if ``log.cleaner.enable`` is set."""
        self._unsubscribe = self._settings.subscribe(self._settings_changed)
        self._begin()

    async def stop(self) -> None:
        """Stop cleaning; returns when no thread cleans any more. Call ``stop`` before the directory writers stop,
        because a swap of cleaned segments that has begun must finish."""
        self._unsubscribe()
        if self._changing is not None:
            await self._changing
        await self._end()

    def wake(self) -> None:
        """Plan the cleaning at once, because a topic's settings have changed."""
        if self._crew is not None:
            self._crew.wake()

    def retry(self, topics: Iterable[str] | None = None) -> None:
        """Try again to clean the failed logs of ``topics`` (of all topics, if None)."""
        chosen = None if topics is None else frozenset(topics)
        for writer in self._writers():
            manager = writer.directory.compaction
            for partition in manager.uncleanable:
                if chosen is None or partition.topic in chosen:
                    manager.retry(partition)
                    with self._reporting:
                        self._reported.pop(partition, None)
        self.wake()

    def _settings_changed(self, old: BrokerSettings, new: BrokerSettings) -> None:
        if all(
            getattr(old, field) == getattr(new, field)
            for field in BrokerSettings.__dataclass_fields__
            if field.startswith("cleaner_")
        ):
            return
        if self._changing is None or self._changing.done():
            self._changing = self._loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        settings = None
        # Repeat, because the settings may change while the old cleaner threads end.
        while settings is not self._settings.current:
            await self._end()
            settings = self._settings.current
        self.retry()
        self._begin()

    def _begin(self) -> None:
        settings = self._settings.current
        if settings.cleaner_enable and settings.cleaner_threads > 0:
            self._crew = _Crew(self, settings)

    async def _end(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.dismiss()
            await asyncio.gather(*[self._ended(thread) for thread in crew.threads])

    async def _ended(self, thread: threading.Thread) -> None:
        await asyncio.to_thread(thread.join)

    def plan(self) -> list[_Job]:
        """Every log that needs cleaning now, most urgent first."""
        found: list[tuple[Target, DirectoryWriter]] = []
        for writer in self._writers():
            directory = writer.directory
            logs = dict(directory.logs)
            self._roll_overdue(writer, logs.values())
            targets = self._targets(directory, logs)
            found += [(target, writer) for target in targets]
        self._report_uncleanable()
        found.sort(key=lambda item: (not item[0].is_overdue, -item[0].dirty_ratio))
        return [_Job(writer, target.topic_partition) for target, writer in found]

    def _roll_overdue(self, writer: DirectoryWriter, logs: Iterable[PartitionLog]) -> None:
        """Roll active segments with records that have waited too long for compaction, even in idle logs, because only
        closed segments are compacted."""
        for log in logs:
            try:
                if log.waits_for_compaction():
                    self._in_turn(writer, log, functools.partial(_roll, log))
            except (HeadraceError, OSError) as error:
                if not log.is_closed:
                    logger.warning(
                        "log %s: cannot roll the active segment for compaction yet: %s", log.directory, error
                    )

    def _targets(self, directory: LogDirectory, logs: dict[TopicPartition, PartitionLog]) -> list[Target]:
        def stable_offset_of(log: PartitionLog) -> int:
            return log.last_stable_offset(high_watermark_of(log, directory, self._partitions))

        return directory.compaction.plan(logs, stable_offset_of=stable_offset_of, now_ms=self._clock.now_ms())

    def clean(self, cleaner: Cleaner, job: _Job, should_stop: Callable[[], bool]) -> bool:
        """Clean one log; returns True if the cleaning made progress."""
        writer, partition = job
        directory = writer.directory
        log = directory.get(partition)
        # The cleaning plan is outdated if the log was truncated or cleaned after the plan was made, so choose the
        # targets again.
        targets = [] if log is None else self._targets(directory, {partition: log})
        if log is None or not targets:
            return False
        started = time.perf_counter()
        try:
            report = directory.compaction.clean(
                cleaner,
                log,
                targets[0],
                execute=lambda action: self._in_turn(writer, log, action),
                # Read the producers after the plan, so that every producer in the cleaned part is included.
                producers=log.producers.last_records(),
                should_stop=should_stop,
            )
        except ServerShuttingDownError:
            return False
        except (DiskFullError, ServerBusyError, StorageError) as error:
            logger.warning("partition %s: compaction failed, retrying later: %s", partition, error)
            return False
        except Exception as error:
            if not isinstance(error, HeadraceError | OSError):
                logger.exception("partition %s: compaction failed unexpectedly", partition)
            self._report_uncleanable()
            return False
        if report is None or report.is_interrupted or report.clean_offset <= targets[0].first_dirty_offset:
            return False
        self._emit(_event(report, time.perf_counter() - started))
        return True

    def _in_turn(self, writer: DirectoryWriter, log: PartitionLog, action: Callable[[], bool]) -> bool:
        """Run ``action`` on the directory writer, while the writer does nothing else, and wait for the result."""
        result: concurrent.futures.Future[bool] = concurrent.futures.Future()

        def ended(done: asyncio.Future[bool]) -> None:
            if (error := done.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(done.result())

        def begin() -> None:
            try:
                writer.run(action, log=log).add_done_callback(ended)
            except HeadraceError as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(begin)
        return result.result()

    def _report_uncleanable(self) -> None:
        present = {
            partition: reason
            for writer in self._writers()
            for partition, reason in writer.directory.compaction.uncleanable.items()
        }
        with self._reporting:
            new = {
                partition: reason for partition, reason in present.items() if self._reported.get(partition) != reason
            }
            self._reported = present
        for partition, reason in new.items():
            self._emit(LogUncleanable(partition=partition, reason=reason))
        self._uncleanable.value = len(present)

    def _emit(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._events.emit, event)


class _Crew:
    """The threads that clean under one value of the settings."""

    def __init__(self, cleaners: Cleaners, settings: BrokerSettings) -> None:
        self._cleaners = cleaners
        self._backoff_s = max(settings.cleaner_backoff_ms / 1000, _BACKOFF_S_MIN)
        count = settings.cleaner_threads
        self._config = CleanerConfig(
            dedupe_buffer_bytes=settings.cleaner_dedupe_buffer_bytes // count,
            load_factor=settings.cleaner_load_factor,
            io_buffer_bytes=max(settings.cleaner_io_buffer_bytes // count, _IO_BUFFER_BYTES_MIN),
        )
        self._stop = threading.Event()
        self._limiter: RateLimiter | None = None
        if math.isfinite(settings.cleaner_io_bytes_per_second):
            self._limiter = RateLimiter(settings.cleaner_io_bytes_per_second, cleaners._clock, wait_s=self._pause)
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._is_planning = False
        self._plan_again = True  #: Whether the cleaners should make a new cleaning plan before the backoff ends.
        self.threads = [
            threading.Thread(target=self._work, name=f"cleaner-{number}", daemon=True) for number in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def dismiss(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._plan_again = True
            self._changed.notify_all()

    def _work(self) -> None:
        cleaner: Cleaner | None = None
        while not self._stop.is_set():
            try:
                job = self._next_job()
                if job is None:
                    cleaner = None  # frees its map
                    self._rest()
                    continue
                directory = job.writer.directory
                if cleaner is None or cleaner.fs is not directory.fs:
                    cleaner = self._new_cleaner(directory)
                if self._cleaners.clean(cleaner, job, self._stop.is_set):
                    self._plan_again = True
            except RuntimeError:
                if self._cleaners._loop.is_closed():
                    return  # the event loop has ended
                logger.exception("a cleaner thread failed; trying again later")
                self._rest()
            except Exception:
                logger.exception("a cleaner thread failed; trying again later")
                self._rest()

    def _new_cleaner(self, directory: LogDirectory) -> Cleaner:
        cleaners = self._cleaners
        return Cleaner(
            directory.fs, self._config, clock=cleaners._clock, secret=cleaners._secret, limiter=self._limiter
        )

    def _next_job(self) -> _Job | None:
        """The next log to clean. The crew plans again when no log is left and a change makes a new plan useful. None:
        rest."""
        with self._changed:
            while self._is_planning and not self._stop.is_set():
                self._changed.wait()
            if self._jobs:
                return self._jobs.popleft()
            if not self._plan_again:
                return None
            self._is_planning, self._plan_again = True, False
        jobs: list[_Job] = []
        try:
            jobs = self._cleaners.plan()
        finally:
            with self._changed:
                self._is_planning = False
                self._jobs.extend(jobs)
                self._changed.notify_all()
        with self._changed:
            return self._jobs.popleft() if self._jobs else None

    def _rest(self) -> None:
        with self._changed:
            if self._stop.is_set() or self._plan_again or self._jobs:
                return
            self._changed.wait(self._backoff_s)
            self._plan_again = True


def _roll(log: PartitionLog) -> bool:
    if not log.is_closed:
        log.roll()
    return True


def _event(report: CleaningReport, seconds: float) -> LogCleaned:
    return LogCleaned(
        partition=report.topic_partition,
        clean_offset=report.clean_offset,
        segments_before=report.segments_before,
        segments_after=report.segments_after,
        bytes_read=report.bytes_read,
        bytes_written=report.bytes_written,
        records_read=report.records_read,
        records_kept=report.records_kept,
        seconds=seconds,
        partial=report.is_partial,
    )
