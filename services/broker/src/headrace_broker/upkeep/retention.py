"""Remove old segments, with one task for all logs of the broker.

Every ``log.retention.check.interval.ms`` the task checks all logs, a few at a time, so that 5,000 logs never stall the
event loop. A thread finds the logs with expired segments, because the check may read from the disk. The directory
writer removes expired segments, and the partition leaders get the new log start. The retention task also deletes the
files of removed segments when their delay is over.

A follower's log starts where its leader's log starts (``FollowerReplica``), so the retention task skips followers.

In a full directory, the files of removed segments are deleted at once, without the delay. Retention checks a full
directory's logs at once and at every tick until the directory has free space again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.log import PartitionLog
from headrace_core.log.directory import LogDirectory
from headrace_core.log.retention import Expired
from headrace_core.log.writer import DirectoryWriter
from headrace_core.telemetry import Emitter, SegmentsDeleted

from ..partition_table import PartitionTable
from ..settings import BrokerSettings, LiveSettings
from ..threads import WorkThreads

logger = logging.getLogger(__name__)

LOGS_AT_ONCE = 64  #: Logs judged together.
#: Maximum number of logs that the directory writer changes in one step. Each step that changes logs delays appends to
#: the directory by some milliseconds.
CHANGED_AT_ONCE = 8
#: Longest time in seconds between two rounds; each round checks full directories, and the files whose deletion is due.
TICK_S = 5.0


def high_watermark_of(log: PartitionLog, directory: LogDirectory, partitions: PartitionTable) -> int:
    """High watermark of a partition that this broker leads; for any other partition the checkpointed high watermark,
    which is never higher."""
    leader = partitions.leader_of(log)
    return directory.high_watermark(log.topic_partition) if leader is None else leader.high_watermark


class Retention:
    """See the module. The task that removes old segments; call its methods in the event loop."""

    def __init__(
        self,
        writers: Callable[[], list[DirectoryWriter]],
        partitions: PartitionTable,
        *,
        clock: Clock,
        settings: LiveSettings,
        events: Emitter,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._writers = writers
        self._partitions = partitions
        self._clock = clock
        self._settings = settings
        self._events = events
        self._threads = WorkThreads(loop, size=1)
        self._changed = asyncio.Event()
        self._is_first = True

    def begin(self) -> None:
        """Start the thread of the checks; call ``begin`` before ``run``."""
        self._threads.begin()

    async def run(self) -> None:
        """Run until cancelled."""
        unsubscribe = self._settings.subscribe(self._settings_changed)
        since_ms, delay_ms = self._clock.monotonic_ms(), self._settings.current.initial_task_delay_ms
        try:
            while True:
                await self._tick(since_ms + delay_ms)
                is_due = self._clock.monotonic_ms() >= since_ms + delay_ms
                if is_due:
                    since_ms, self._is_first = self._clock.monotonic_ms(), False
                if not self._is_first:
                    delay_ms = self._settings.current.retention_check_interval_ms
                try:
                    await self.make_room()  # first: a full directory refuses records
                    await self.remove_due()
                    if is_due:
                        await self.check()
                except Exception:  # a bug in the retention check must not end the broker
                    logger.exception("a retention round failed; trying again later")
        finally:
            unsubscribe()
            for writer in self._writers():
                writer.directory.deleted.end()
            self._threads.close()

    def disk_is_full(self) -> None:
        """Check full directories at once, without waiting for the next tick or for the gradual removal of files."""
        for writer in self._writers():
            writer.directory.deleted.hurry()
        self._changed.set()

    def _settings_changed(self, old: BrokerSettings, new: BrokerSettings) -> None:
        if old.retention_check_interval_ms != new.retention_check_interval_ms:
            self._changed.set()

    async def _tick(self, due_ms: float) -> None:
        """Wait until a check may be due: the regular check, the deletion of a file, or the check of a full directory at
        each tick."""
        deleted = [at_ms for writer in self._writers() if (at_ms := writer.directory.deleted.next_due_ms) is not None]
        wait_ms = min([due_ms, *deleted]) - self._clock.monotonic_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(wait_ms / 1000, 0.01), TICK_S)):
                await self._changed.wait()
        self._changed.clear()

    async def check(self) -> None:
        """Check all logs for expired segments once."""
        for writer in self._writers():
            await self._check_directory(writer)

    async def make_room(self) -> None:
        """Delete removed segments' files and expired segments in full directories."""
        for writer in self._writers():
            space = writer.space
            if space is None or not space.is_full:
                continue
            remove = partial(writer.directory.remove_deleted, everything=True)
            removed = await self._threads.run(remove)
            if await self._check_directory(writer):
                removed = await self._threads.run(remove)
            if removed.names:
                with contextlib.suppress(HeadraceError):  # the directory has failed or is being closed
                    await writer.run(space.measure)

    async def remove_due(self) -> None:
        """Delete the files of removed segments whose delay is over, about a GiB of each directory. Returns early when a
        directory is full."""
        now_ms = self._clock.monotonic_ms()
        for writer in self._writers():
            at_ms = writer.directory.deleted.next_due_ms
            if at_ms is not None and at_ms <= now_ms:
                await self._threads.run(writer.directory.remove_deleted)
                if self._changed.is_set():
                    return

    async def _check_directory(self, writer: DirectoryWriter) -> int:
        """Check the logs of one directory for expired segments; returns how many logs lost segments."""
        directory, changed = writer.directory, 0
        logs = [log for log in list(directory.logs.values()) if not self._partitions.is_followed(log)]
        for start in range(0, len(logs), LOGS_AT_ONCE):
            some = [(log, high_watermark_of(log, directory, self._partitions)) for log in logs[start:][:LOGS_AT_ONCE]]
            verdicts = await self._threads.run(partial(_judge, some))
            try:
                for first in range(0, len(verdicts), CHANGED_AT_ONCE):
                    share = verdicts[first : first + CHANGED_AT_ONCE]
                    done = await writer.run(partial(directory.expire, share))
                    self._log_starts_moved(done)
                    changed += len(done)
            except HeadraceError as error:  # the directory has failed, or is being closed
                logger.warning("log directory %s: retention could not check all logs: %s", directory.root, error)
                break
        return changed

    def _log_starts_moved(self, done: Iterable[tuple[PartitionLog, Expired]]) -> None:
        for log, verdict in done:
            leader = self._partitions.leader_of(log)
            if leader is not None:
                leader.advance_log_start(log.log_start_offset)
            for share in verdict.shares:
                self._events.emit(
                    SegmentsDeleted(
                        partition=log.topic_partition,
                        count=share.segments,
                        bytes=share.size,
                        why=share.why.value,
                        log_start_offset=log.log_start_offset,
                    )
                )


def _judge(logs: Iterable[tuple[PartitionLog, int]]) -> list[tuple[PartitionLog, Expired]]:
    """Find the expired segments of each (log, high watermark), on a thread. A log whose retention check fails keeps all
    its segments."""
    verdicts = []
    for log, high_watermark in logs:
        try:
            verdict = log.expired(high_watermark)
        except (HeadraceError, OSError) as error:
            if not log.is_closed:
                logger.warning(
                    "log %s: retention cannot read the age of the log's segments, and keeps them: %s",
                    log.directory,
                    error,
                )
        else:
            if verdict is not None:
                verdicts.append((log, verdict))
    return verdicts
