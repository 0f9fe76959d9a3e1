"""Look for damage in all logs of the broker, with one thread that works in rounds.

A round reads every segment of every log, active segments included, at ``log.scrub.bytes.per.second`` for each
directory. The scrubber checks the batches as a read does, and also checks the indexes
(``headrace_core.log.scrubbing``). A log whose records are still damaged when they are read again is quarantined, as if
a reader had found the damage (``Roles.quarantine``). A damaged index is rebuilt by the directory writer. The scrubber's
position within a round is kept only in memory, so a restart begins a new round.

A round of the scrubber begins at least an hour after the start of the previous round.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable

from headrace_core.clock import Clock
from headrace_core.errors import CorruptLogError, HeadraceError, ServerBusyError
from headrace_core.log import PartitionLog
from headrace_core.log.compaction.windows import RateLimiter
from headrace_core.log.scrubbing import index_files, replace_index_files, scrub_segment
from headrace_core.log.segment import LogSegment
from headrace_core.log.writer import DirectoryWriter
from headrace_core.telemetry import Emitter, Event, IndexRebuilt, ScrubEnded

from ..leader_replica import OnDamage
from ..settings import BrokerSettings, LiveSettings

logger = logging.getLogger(__name__)

ROUND_S_MIN = 3600.0  #: Shortest time in seconds between the starts of two scrub rounds.


class Scrubber:
    """The scrubber's thread, and the limit on its reading rate. Call ``start`` and ``stop`` in the event loop; all
    other methods run on the scrubber's thread."""

    def __init__(
        self,
        writers: Callable[[], list[DirectoryWriter]],
        on_damage: OnDamage,
        *,
        clock: Clock,
        settings: LiveSettings,
        events: Emitter,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._writers = writers
        self._on_damage = on_damage
        self._clock = clock
        self._settings = settings
        self._events = events
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._woken = threading.Condition()
        self._limiter: tuple[float, RateLimiter] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start, after ``log.initial.task.delay.ms``."""
        self._unsubscribe = self._settings.subscribe(self._settings_changed)
        self._thread = threading.Thread(target=self._run, name="scrubber", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread. ``stop`` is idempotent, and may also be called before ``start``."""
        self._unsubscribe()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
        await asyncio.to_thread(thread.join)

    def _settings_changed(self, old: BrokerSettings, new: BrokerSettings) -> None:
        if old.scrub_bytes_per_second != new.scrub_bytes_per_second:
            with self._woken:
                self._woken.notify_all()

    def _run(self) -> None:
        self._rest(self._settings.current.initial_task_delay_ms / 1000)
        while not self._should_stop():
            if not self._rate():
                self._rest(None)
                continue
            began_ms = self._clock.monotonic_ms()
            try:
                self.scrub_all()
            except Exception:
                logger.exception("a scrubbing round failed; trying again later")
            self._rest(ROUND_S_MIN - (self._clock.monotonic_ms() - began_ms) / 1000, until_changed=False)

    def _rest(self, seconds: float | None, *, until_changed: bool = True) -> None:
        """Wait for ``seconds`` (without a limit, if None). Returns earlier if the scrubber stops or, with
        ``until_changed``, if the rate changes."""
        due_ms = None if seconds is None else self._clock.monotonic_ms() + seconds * 1000
        with self._woken:
            while not self._stopping:
                left_s = None if due_ms is None else (due_ms - self._clock.monotonic_ms()) / 1000
                if left_s is not None and left_s <= 0:
                    return
                self._woken.wait(left_s)
                if until_changed:
                    return

    def _should_stop(self) -> bool:
        return self._stopping

    def _rate(self) -> float:
        return self._settings.current.scrub_bytes_per_second

    def _spend(self, size: int) -> None:
        """Wait until the rate allows ``size`` more bytes; while the rate is 0, wait until the rate changes."""
        while not self._rate() and not self._stopping:
            self._rest(None)
        rate = self._rate() * max(len(self._writers()), 1)
        if self._limiter is None or self._limiter[0] != rate:
            if rate <= 0:
                return
            self._limiter = rate, RateLimiter(rate, self._clock, wait_s=self._rest)
        self._limiter[1].spend(size)

    def scrub_all(self) -> None:
        """Check all logs that exist now for damage, in one round."""
        began_ms, segments, size = self._clock.monotonic_ms(), 0, 0
        for writer in self._writers():
            for partition in sorted(writer.directory.logs):
                log = writer.directory.get(partition)
                for segment in () if log is None else log.segments:
                    if self._stopping or writer.failure is not None:
                        break
                    assert log is not None
                    segments += 1
                    size += self._scrub(writer, log, segment)
        if not self._stopping:
            seconds = (self._clock.monotonic_ms() - began_ms) / 1000
            self._emit(ScrubEnded(segments=segments, bytes=size, seconds=seconds))

    def _scrub(self, writer: DirectoryWriter, log: PartitionLog, segment: LogSegment) -> int:
        if segment not in log.segments:  # the segment was removed or replaced since the round began
            return 0
        fs, cuts = writer.directory.fs, log.cuts
        try:
            scrubbed = scrub_segment(fs, log, segment, spend=self._spend, should_stop=self._should_stop)
            if scrubbed.index_fault is not None:
                files = index_files(segment)
                self._rebuild(
                    writer,
                    log,
                    segment,
                    scrubbed.index_fault,
                    lambda: log.cuts == cuts and replace_index_files(fs, log, segment, files),
                )
            if scrubbed.txn_index_fault is not None:
                entries = log.aborted_by_log(segment)
                self._rebuild(
                    writer,
                    log,
                    segment,
                    scrubbed.txn_index_fault,
                    lambda: log.cuts == cuts and log.replace_aborted(segment, entries),
                )
            return scrubbed.size
        except CorruptLogError as error:
            # If ``cuts`` has changed or is odd, a truncation ran during the scrub, so the log may be undamaged.
            if log.cuts == cuts and not cuts % 2:
                self._call(functools.partial(self._on_damage, log, error))
        except (OSError, ServerBusyError) as error:
            # The segment cannot be read, because it was deleted, no file descriptor is free, or the disk fails. The
            # log's readers will report a failed disk.
            if segment in log.segments:
                logger.warning("cannot read segment %s to look for damage: %s", segment.path, error)
        return 0

    def _rebuild(
        self, writer: DirectoryWriter, log: PartitionLog, segment: LogSegment, fault: str, replace: Callable[[], bool]
    ) -> None:
        def ended(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and done.exception() is None and done.result():
                self._events.emit(IndexRebuilt(partition=log.topic_partition, path=segment.path, why=fault))

        def begin() -> None:
            try:
                writer.run(replace, log=log).add_done_callback(ended)
            except HeadraceError as error:
                logger.warning("segment %s: the index is damaged and cannot be rebuilt: %s", segment.path, error)

        self._call(begin)

    def _emit(self, event: Event) -> None:
        self._call(functools.partial(self._events.emit, event))

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # a closed loop raises RuntimeError: no receiver is left
            self._stopping = True
