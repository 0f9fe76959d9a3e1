"""Plans and runs compaction for a log directory, and records how far each log is clean.

A broker has one manager for each log directory (the LogDirectory owns its manager), and a pool of threads with a
``Cleaner`` each:

    manager = directory.compaction
    for target in manager.plan(directory.logs, stable_offset_of=..., now_ms=clock.now_ms()):
        manager.clean(cleaner, log, target, execute=on_owner, producers=table.last_records())     on a thread

``plan`` and ``clean`` may be called from any thread. ``truncated`` and ``forget`` change files: ``LogDirectory`` calls
the two methods when a log is truncated or removed. ``truncated``, ``forget`` and ``execute`` run while the directory
writer makes no other change (``DirectoryWriter.run``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from ...config import LONG_MAX
from ...errors import DiskFullError, HeadraceError, ServerBusyError, ServerShuttingDownError, StorageError
from ...types import TopicPartition
from ..checkpoints import read_offsets, write_offsets
from ..files import FileSystem
from ..partition_log import PartitionLog
from ..producer_state import LastRecord
from .cleaner import Cleaner, CleaningReport, Execute
from .planning import CleanableSegment, Target, in_order, target_of

logger = logging.getLogger(__name__)

#: Name of the checkpoint file in a log directory's root with, for each partition, the first offset that no cleaning has
#: read.
CLEANER_OFFSETS = "cleaner-offset-checkpoint"


class CleanerManager:
    """Plans and runs the compaction of one log directory, as the module's docstring describes."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._path = f"{root}/{CLEANER_OFFSETS}"
        self._lock = threading.Lock()
        self._offsets = read_offsets(fs, self._path)
        self._in_progress: set[TopicPartition] = set()
        #: Partitions whose log was truncated or deleted during a cleaning; the manager does not record the end of a
        #: cleaning of these partitions.
        self._changed: set[TopicPartition] = set()
        self._is_unwritten = False  #: Whether the checkpoint file is out of date, because the disk was full.
        self._uncleanable: dict[TopicPartition, str] = {}

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Partitions whose cleaning failed, and why; skipped until ``retry``."""
        with self._lock:
            return dict(self._uncleanable)

    def clean_offset(self, partition: TopicPartition) -> int | None:
        """End offset of a log's last cleaning; None: the log was never cleaned."""
        with self._lock:
            return self._offsets.get(partition)

    def plan(
        self,
        logs: Mapping[TopicPartition, PartitionLog],
        *,
        stable_offset_of: Callable[[PartitionLog], int],
        now_ms: int,
    ) -> list[Target]:
        """List the logs worth cleaning now, most urgent first, without logs whose cleaning is in progress or failed.
        ``stable_offset_of``: returns a partition's last stable offset, at most the high watermark."""
        with self._lock:
            left_out = self._in_progress | self._uncleanable.keys()
            offsets = dict(self._offsets)
        found = []
        for partition, log in list(logs.items()):
            if partition in left_out or not log.config.cleanup_compact or len(log.segments) < 2:
                continue
            try:
                target = _target(log, offsets.get(partition), stable_offset_of(log), now_ms)
            except ServerBusyError as error:
                logger.warning("%s: compaction failed, retrying later: %s", partition, error)
                continue
            except (HeadraceError, OSError) as error:
                if not log.is_closed:
                    self._leave_alone(partition, error)
                continue
            if target is not None:
                found.append((target, log.config))
        return in_order(found)

    def clean(
        self,
        cleaner: Cleaner,
        log: PartitionLog,
        target: Target,
        *,
        execute: Execute,
        producers: Mapping[int, LastRecord],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> CleaningReport | None:
        """Clean a log and record the end of the cleaning; None when another thread is cleaning this log already.

        Raises the errors of ``Cleaner.clean``. An error makes the partition ``uncleanable``, except for four errors
        that the partition's log does not cause: ServerShuttingDownError, DiskFullError, ServerBusyError (no descriptor
        is left) and StorageError (the directory failed).
        """
        partition = target.topic_partition
        with self._lock:
            if partition in self._in_progress:
                return None
            self._in_progress.add(partition)
        try:
            report = cleaner.clean(log, target, execute=execute, producers=producers, should_stop=should_stop)
            if not report.is_interrupted:
                execute(lambda: self._cleaned(log, report.clean_offset))
            return report
        except (ServerShuttingDownError, DiskFullError, ServerBusyError, StorageError):
            raise
        except Exception as error:
            self._leave_alone(partition, error)
            raise
        finally:
            with self._lock:
                self._in_progress.discard(partition)
                self._changed.discard(partition)

    def _leave_alone(self, partition: TopicPartition, error: Exception) -> None:
        logger.error("log %s cannot be compacted, and compaction skips it from now on: %s", partition, error)
        with self._lock:
            self._uncleanable[partition] = str(error)

    def retry(self, partition: TopicPartition) -> None:
        """Plan cleanings of a partition again, after an earlier cleaning failed."""
        with self._lock:
            self._uncleanable.pop(partition, None)

    # ---------------------------------------------------------------- by the directory's owner

    def truncated(self, partition: TopicPartition, offset: int) -> None:
        """Record that a log is truncated to ``offset``, because records that are appended after the truncation are not
        clean. The checkpoint's entry with ``offset`` is durable when ``truncated`` returns."""
        with self._lock:
            self._changed.update(self._in_progress & {partition})
            if self._offsets.get(partition, 0) <= offset:
                return
            self._offsets[partition] = offset
            self._write()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget removed logs, because a new log of the same name is not clean."""
        with self._lock:
            before = len(self._offsets)
            for partition in partitions:
                self._changed.update(self._in_progress & {partition})
                self._offsets.pop(partition, None)
                self._uncleanable.pop(partition, None)
            if len(self._offsets) != before:
                self._write()

    def adopt(self, partition: TopicPartition, offset: int | None) -> None:
        """Add a log that was moved from another log directory, where the log was cleaned up to ``offset``. The entry of
        the log is durable when ``adopt`` returns."""
        if offset is None:
            self.forget([partition])
            return
        with self._lock:
            self._offsets[partition] = offset
            self._write()

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all logs except those of the given partitions."""
        with self._lock:
            gone = [partition for partition in self._offsets if partition not in partitions]
        self.forget(gone)

    def write_pending(self) -> None:
        """Write the changes of checkpoints that a full disk delayed; OSError if the disk is still full."""
        with self._lock:
            if self._is_unwritten:
                self._write()

    def _cleaned(self, log: PartitionLog, offset: int) -> bool:
        partition = log.topic_partition
        with self._lock:
            if log.is_closed or partition in self._changed or self._offsets.get(partition) == offset:
                return False
            self._offsets[partition] = offset
            self._write()
        return True

    def _write(self) -> None:
        self._is_unwritten = True
        write_offsets(self._fs, self._path, self._offsets)
        self._is_unwritten = False


def _target(log: PartitionLog, checkpoint: int | None, stable_offset: int, now_ms: int) -> Target | None:
    """Describe the log as a cleaning target; None if the log is closed. Reads timestamps, perhaps from the disk, only
    where the topic sets a compaction lag."""
    config, segments = log.config, log.segments
    if not segments:
        return None
    facts = [
        CleanableSegment(
            segment.base_offset,
            segment.size,
            segment.largest_timestamp.timestamp_ms if config.min_compaction_lag_ms > 0 else -1,
            segment.first_batch_timestamp() if config.max_compaction_lag_ms < LONG_MAX else None,
        )
        for segment in segments
    ]
    return target_of(
        log.topic_partition,
        facts,
        config,
        checkpoint=checkpoint,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        stable_offset=stable_offset,
        now_ms=now_ms,
    )
