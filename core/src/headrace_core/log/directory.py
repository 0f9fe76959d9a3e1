"""A log directory: the partitions that a broker keeps on one disk.

    <root>/meta.properties                     the directory's cluster and node
    <root>/.lock                               flock, held while a broker owns it
    <root>/.kafka_cleanshutdown                only between a clean stop and the next start
    <root>/.headrace_broker_epoch              the epoch of the broker that opened the directory last
    <root>/recovery-point-offset-checkpoint    recovery points, written periodically
    <root>/replication-offset-checkpoint       high watermarks
    <root>/log-start-offset-checkpoint         log starts, where records were deleted
    <root>/cleaner-offset-checkpoint           how far each log was compacted
    <root>/<topic>-<partition>/                a log, with partition.metadata and leader-epoch-checkpoint
    <root>/<topic>-<partition>.<id>-delete/    a deleted log; deleted files in a log end in .deleted
    <root>/<topic>-<partition>.<id>-stray/     a log that the metadata does not know; it stays until the operator acts

A directory with the name of a log may belong to the operator: a copy of files, or a log directory inside this one. The
contents decide (``has_only_foreign_files``), and the broker neither changes nor removes a directory that is no log.

All methods are synchronous, like the methods of the logs. Only the directory's one owner (``DirectoryWriter``) makes
changes.

Deleting records makes the new log start durable before it removes segments. After a crash any of the deleted segments
may still exist, because opening a log removes all segments wholly below the durable log start.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..clock import Clock
from ..errors import (
    CorruptLogError,
    HeadraceError,
    InconsistentTopicIdError,
    InvalidConfigError,
    ServerBusyError,
    StorageError,
)
from ..types import NO_EPOCH, TopicPartition
from .checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    QUARANTINE,
    RECOVERY_POINTS,
    CleanShutdown,
    DirectoryMeta,
    load_offsets,
    read_clean_shutdown,
    read_meta,
    read_offsets,
    read_partition_metadata,
    read_quarantine,
    write_broker_epoch,
    write_clean_shutdown,
    write_meta,
    write_offsets,
    write_partition_metadata,
    write_quarantine,
)
from .compaction.manager import CleanerManager
from .config import LogConfig
from .creating import NewLog, create_logs
from .deleting import DeletedFiles, Removed
from .epochs import LEADER_EPOCH_FILE
from .files import NO_SPACE, FileSystem, Lock, make_directories
from .partition_log import PartitionLog, close_together, flush_together
from .progress import OnProgress, OpeningMeter
from .retention import Expired

logger = logging.getLogger(__name__)

_DELETED = "-delete"
_STRAY = "-stray"  # Kafka's name, too
#: Pattern of the name of a deleted log's directory.
_DELETED_DIRECTORY = re.compile(rf".*\.[0-9a-f]{{32}}{_DELETED}\Z")
#: Pattern of a partition's directory name: <topic>-<partition>.
PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})\Z")
#: Pattern of the names of a log's files: segments, small files (``moved-to`` is that of moving.py), the metadata log's
#: snapshots and ``quorum-state``, which a controller writes before the first segment, and the temporary names of these
#: files.
_FILE_OF_A_LOG = re.compile(
    r"(\d{20}(-\d{10})?\.\w+|next\.log|quorum-state|moved-to"
    rf"|{re.escape(PARTITION_METADATA)}|{LEADER_EPOCH_FILE}|{QUARANTINE})(\.\w+)?\Z"
)
_NAME_BYTES_MAX = 255

#: Returns the settings of a topic; arguments: the topic's name and its id (None if unknown).
ConfigOf = Callable[[str, uuid.UUID | None], LogConfig]


def format_directory(
    fs: FileSystem, root: str, *, cluster_id: str, node_id: int, directory_id: uuid.UUID | None = None
) -> DirectoryMeta:
    """Format ``root`` as a log directory of this node and cluster; a broker starts only on formatted directories.
    Formatting a directory again changes nothing. Raises InvalidConfigError if the directory belongs to another cluster
    or node."""
    root = root.rstrip("/")
    make_directories(fs, root)
    found = read_meta(fs, root)
    if found is not None:
        if (found.cluster_id, found.node_id) != (cluster_id, node_id):
            raise InvalidConfigError(
                f"{root}/{META_PROPERTIES}: formatted for node {found.node_id} of cluster {found.cluster_id}, not for "
                f"node {node_id} of cluster {cluster_id}"
            )
        return found
    meta = DirectoryMeta(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id or uuid.uuid4())
    write_meta(fs, root, meta)
    return meta


class LogDirectory:
    """A log directory, as the module's docstring describes; created by ``open``."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        meta: DirectoryMeta,
        lock: Lock,
        *,
        clock: Clock,
        config_of: ConfigOf,
        rng: random.Random,
        last_stop: CleanShutdown | None,
    ) -> None:
        self.fs = fs
        self.root = root
        self.meta = meta
        #: Broker epoch that the last clean shutdown recorded; None when the last stop was not clean.
        self.clean_shutdown_epoch = None if last_stop is None else last_stop.broker_epoch
        self.logs: dict[TopicPartition, PartitionLog] = {}
        #: Partitions whose logs are damaged and not served, each with a description of the damage.
        self.quarantined: dict[TopicPartition, CorruptLogError] = {}
        self._quarantined_ids: dict[TopicPartition, uuid.UUID | None] = {}
        self._last_stop = last_stop
        self._clock = clock
        self._config_of = config_of
        self._rng = rng
        self._lock = lock
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._knows_log_starts = True
        self._high_watermarks: dict[TopicPartition, int] = {}
        #: End offset of the durable records of each log that is about to be renamed into this directory.
        self._expected: dict[TopicPartition, int] = {}
        #: Names of the checkpoints whose files are out of date, because the disk was full.
        self._unwritten: set[str] = set()
        self.compaction = CleanerManager(fs, root)
        self.deleted = DeletedFiles(fs)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        root: str,
        *,
        clock: Clock,
        config_of: ConfigOf,
        rng: random.Random | None = None,
        cluster_id: str | None = None,
        node_id: int | None = None,
        recovery_threads: int = 1,
        on_progress: OnProgress | None = None,
        broker_epoch: int | None = None,
    ) -> LogDirectory:
        """Lock the directory and open every log in it; damaged logs are listed in ``quarantined``.

        ``broker_epoch`` is written into the directory before anything else changes in it: it proves later that the
        directory is no older copy.

        After an unclean stop, ``recovery_threads`` logs are scanned at the same time. ``on_progress`` is called every
        few seconds, in any of the scanning threads. Raises InvalidConfigError (the directory is not formatted, or
        belongs to another node or cluster), StorageError (another process has locked the directory), OSError.
        """
        root = root.rstrip("/")
        meta = read_meta(fs, root) if fs.is_directory(root) else None
        if meta is None:
            raise InvalidConfigError(f"{root} is not formatted (no {META_PROPERTIES}); run `headrace format` first")
        for what, wanted, found in (
            ("cluster.id", cluster_id, meta.cluster_id),
            ("node.id", node_id, meta.node_id),
        ):
            if wanted is not None and wanted != found:
                raise InvalidConfigError(
                    f"{root}/{META_PROPERTIES} says {what}={found}, but this node has {what}={wanted}"
                )
        try:
            lock = fs.lock(f"{root}/{LOCK}")
        except BlockingIOError as error:
            raise StorageError(f"{root} is in use: another process holds {LOCK}") from error
        try:
            if broker_epoch is not None:
                write_broker_epoch(fs, root, broker_epoch)
            directory = cls(
                fs,
                root,
                meta,
                lock,
                clock=clock,
                config_of=config_of,
                rng=rng or random.Random(),
                last_stop=read_clean_shutdown(fs, root),
            )
            directory._open_logs(recovery_threads, on_progress)
        except BaseException:
            lock.release()
            raise
        return directory

    def _open_logs(self, threads: int, on_progress: OnProgress | None) -> None:
        self._recovery_points = read_offsets(self.fs, self._path(RECOVERY_POINTS))
        log_starts = load_offsets(self.fs, self._path(LOG_STARTS))
        self._log_starts, self._knows_log_starts = log_starts or {}, log_starts is not None
        self._high_watermarks = read_offsets(self.fs, self._path(HIGH_WATERMARKS))
        found: dict[TopicPartition, str] = {}
        for name in self.fs.listdir(self.root):
            path = self._path(name)
            if not self.fs.is_directory(path):
                continue
            if _DELETED_DIRECTORY.match(name):
                self.deleted.add(path, 0, due_ms=self._clock.monotonic_ms())
            elif match := PARTITION_DIRECTORY.match(name):
                partition = TopicPartition(match[1], int(match[2]))
                # A log that had flushed records has lost its files: the opening of the log reports the damage.
                if not self._recovery_points.get(partition) and has_only_foreign_files(self.fs.listdir(path)):
                    logger.warning("%s", _foreign(path, partition).message)
                else:
                    found[partition] = path
        if log_starts is None and not found:
            # Write the checkpoint of log starts even without logs, so that a later start detects a lost checkpoint.
            # Without the checkpoint of log starts, the log start offset is taken from the first entry of the epoch
            # checkpoint. In a copy of a compacted log, this offset can be above the real log start offset.
            with _full_disk_left_out(self.root):
                self._write(LOG_STARTS, self._log_starts)
                self._knows_log_starts = True
        self._open_found(found, threads, OpeningMeter(self.root, self._clock, on_progress))
        with _full_disk_left_out(self.root):
            self._forget(lambda partition: partition not in found)
        with _full_disk_left_out(self.root):
            self.compaction.keep_only(set(found))
        if self._last_stop is not None:  # files change after this point, so the next stop must write a new marker
            self.fs.unlink(self._path(CLEAN_SHUTDOWN))
        self.fs.sync_directory(self.root)
        with _full_disk_left_out(self.root):
            self.write_recovery_points()

    def _open_found(self, found: Mapping[TopicPartition, str], threads: int, meter: OpeningMeter) -> None:
        meter.logs = len(found)
        if threads < 2 or len(found) < 2 or self._last_stop is not None:
            for partition, path in found.items():
                self._open_log(partition, path, meter)
            return
        # Scan in several threads, because a scan mostly waits for the disk: for reads, and for the sync of the file.
        pool = ThreadPoolExecutor(threads, thread_name_prefix=f"recovery-{self.root.rpartition('/')[2]}")
        try:
            for opening in [pool.submit(self._open_log, partition, path, meter) for partition, path in found.items()]:
                opening.result()
        finally:
            pool.shutdown(cancel_futures=True)
        self.logs = {partition: self.logs[partition] for partition in found if partition in self.logs}

    def _open_log(self, partition: TopicPartition, path: str, meter: OpeningMeter) -> None:
        topic_id = None
        try:
            topic_id = read_partition_metadata(self.fs, path)
            why = read_quarantine(self.fs, path)
            if why is not None:
                raise CorruptLogError(why)
            log = self.logs[partition] = PartitionLog.open(
                self.fs,
                path,
                partition,
                self._config_of(partition.topic, topic_id),
                clock=self._clock,
                rng=self._rng,
                topic_id=topic_id,
                recovery_point=self._recovery_points.get(partition, 0),
                log_start_offset=self._log_starts.get(partition, 0) if self._knows_log_starts else None,
                clean=self._was_closed_cleanly(partition),
                high_watermark=self._high_watermarks.get(partition, 0),
                meter=meter,
            )
            if self._high_watermarks.get(partition, 0) > log.log_end_offset:  # the end was lost in a crash
                self._high_watermarks[partition] = log.log_end_offset
                self._unwritten.add(HIGH_WATERMARKS)
            if not self._knows_log_starts and log.log_start_offset > log.segments[0].base_offset:
                self._log_starts[partition] = log.log_start_offset
                self._unwritten.add(LOG_STARTS)
        except CorruptLogError as error:
            logger.error("%s is quarantined: %s", partition, error.message)
            self.quarantined[partition] = error
            self._quarantined_ids[partition] = topic_id
        meter.log_opened()

    def _was_closed_cleanly(self, partition: TopicPartition) -> bool:
        stop = self._last_stop
        return stop is not None and str(partition) not in stop.quarantined and partition in self._recovery_points

    # ---------------------------------------------------------------- logs come and go

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the partition's log; None if this directory does not have the log or the log is quarantined."""
        return self.logs.get(partition)

    def holdings(self) -> list[tuple[TopicPartition, uuid.UUID | None]]:
        """Return every log in this directory, also quarantined logs, with its topic's id if known."""
        return [*((partition, log.topic_id) for partition, log in self.logs.items()), *self._quarantined_ids.items()]

    def holds(self, partition: TopicPartition) -> bool:
        """Whether this directory has a log of the partition, in service or quarantined."""
        return partition in self.logs or partition in self.quarantined

    def create(self, partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig) -> PartitionLog:
        """Return the log of a partition; a missing log is created, durably. Raises InconsistentTopicIdError (the log
        belongs to another topic of the same name), CorruptLogError (the log is quarantined), StorageError (something
        that is no log has the log's name), OSError."""
        (outcome,) = self.create_all([(partition, topic_id, config)])
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome

    def create_all(self, wanted: Sequence[NewLog]) -> list[PartitionLog | HeadraceError]:
        """Create many logs as ``create`` does, with shared syncs; returns the log or the error for each partition.
        After an OSError some of the logs may exist; the call of ``create_all`` can be repeated."""
        missing: dict[TopicPartition, NewLog] = {}
        refused: dict[TopicPartition, StorageError] = {}
        for item in wanted:
            if item[0] not in self.quarantined and item[0] not in self.logs:
                missing.setdefault(item[0], item)
        left: list[TopicPartition] = []
        for partition in list(missing):
            path = self._path(str(partition))
            if len(str(partition)) > _NAME_BYTES_MAX:
                del missing[partition]
                refused[partition] = StorageError(
                    f"cannot create the log of {partition}: its name has more than {_NAME_BYTES_MAX} bytes, the limit "
                    "of a file's name; use a shorter topic name, or fewer partitions"
                )
                continue
            if not self.fs.exists(path):
                continue
            if self.fs.is_directory(path) and not has_only_foreign_files(self.fs.listdir(path)):
                left.append(partition)
                continue
            del missing[partition]
            refused[partition] = _foreign(path, partition)
        if missing:
            self._create_missing(missing, left)
        outcomes: list[PartitionLog | HeadraceError] = []
        for partition, topic_id, _ in wanted:
            try:
                outcomes.append(refused.get(partition) or self._of_topic(partition, topic_id))
            except HeadraceError as error:
                outcomes.append(error.copy())  # append a copy, whose traceback does not keep this frame
        return outcomes

    def _create_missing(self, missing: Mapping[TopicPartition, NewLog], left: Sequence[TopicPartition]) -> None:
        """Create logs. ``left``: those with a directory that an interrupted creation or deletion left."""
        # Clear the checkpoints first: a new log must not inherit the offsets of a deleted log of the same name.
        self._forget(missing.__contains__)
        self.compaction.forget(missing)
        self.compaction.write_pending()
        # Remove checkpoint entries that remained when a full disk stopped creations or deletions of logs.
        if left:
            self._remove(dict.fromkeys(left, (0, 0)))
        for logs in create_logs(self.fs, self.root, list(missing.values()), clock=self._clock, rng=self._rng):
            for log in logs:  # publish a log only when its name is durable: a second call must not get the log sooner
                self.logs[log.topic_partition] = log

    def _of_topic(self, partition: TopicPartition, topic_id: uuid.UUID) -> PartitionLog:
        if partition in self.quarantined:
            raise self.quarantined[partition].copy()
        log = self.logs[partition]
        if log.topic_id is None:
            write_partition_metadata(self.fs, log.directory, topic_id)
            log.topic_id = topic_id
        elif log.topic_id != topic_id:
            raise InconsistentTopicIdError(
                f"{log.directory} belongs to topic id {log.topic_id}, not to {topic_id}: the log is from an older "
                "topic with the same name"
            )
        return log

    def quarantine(self, partition: TopicPartition, error: CorruptLogError) -> bool:
        """Take a damaged log out of service, keep its files, and mark its directory: no start serves the log before the
        operator removes the marker. Returns False when the log is not in service."""
        log = self.logs.pop(partition, None)
        if log is None:
            return False
        self.quarantined[partition] = error
        self._quarantined_ids[partition] = log.topic_id
        logger.error("%s is quarantined: %s", partition, error.message)
        # Ignore damage here: closing would complete an index, perhaps from damaged data.
        with contextlib.suppress(CorruptLogError):
            log.close(flush=False)
        # On a full disk the quarantine file may not be written. Without a quarantine file, a clean stop records the
        # damage, and after an unclean stop the recovery finds the damage again.
        with _full_disk_left_out(self.root):
            path = log.directory
            why = (
                f"{error.message}. Found while the broker ran: the log is not served and its files are left as they "
                f"are. Restore them and remove {path}/{QUARANTINE}, or delete {path}: all its records on this broker "
                "are lost then (docs/operations/damage.md)"
            )
            write_quarantine(self.fs, path, why)
        return True

    def delete(self, partition: TopicPartition) -> bool:
        """Delete one partition's log like ``delete_all``; False when the directory has no log of the partition."""
        return bool(self.delete_all([partition]))

    def delete_all(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Delete logs, also quarantined logs. Renames the directories of the logs, durably; ``remove_deleted`` removes
        the files after the topic's file.delete.delay.ms. Running reads finish. Returns the partitions whose logs were
        deleted. Writes the checkpoints once for all logs."""
        found = self._close(partitions)
        if found:
            self._remove(found)
        return list(found)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Rename the directories of logs, also of quarantined logs, durably, so that the logs are neither served nor
        removed. Returns each log's new path. To restore a log, the operator renames its directory while the broker is
        stopped."""
        found = self._close(partitions)
        return self._rename(found, _STRAY) if found else {}

    def _close(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Close logs before their directories are renamed: {partition: (bytes, file.delete.delay.ms)}, without the
        partitions that have no log here."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for partition in dict.fromkeys(partitions):
            if not self.holds(partition):
                continue
            log = self.logs.pop(partition, None)
            if log is None:
                found[partition] = (0, LogConfig().file_delete_delay_ms)
            else:
                found[partition] = (log.size_bytes, log.config.file_delete_delay_ms)
                log.close(flush=False)
            self.quarantined.pop(partition, None)
            self._quarantined_ids.pop(partition, None)
        return found

    def _remove(self, partitions: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Delete the directories of closed logs, given as {partition: (bytes, delay in ms)}."""
        for partition, path in self._rename(partitions, _DELETED).items():
            self._remove_later(path, *partitions[partition])

    def _rename(self, partitions: Collection[TopicPartition], kind: str) -> dict[TopicPartition, str]:
        """Rename the directories of closed logs, durably; returns the new paths."""
        # First remove the closed logs' checkpoint entries, so that the entries are gone even if renaming a directory
        # fails.
        self._drop_entries(partitions.__contains__)
        renamed: dict[TopicPartition, str] = {}
        for partition in partitions:
            suffix = f".{self._rng.getrandbits(128):032x}{kind}"
            name = str(partition)
            renamed[partition] = self._path(name[: _NAME_BYTES_MAX - len(suffix)] + suffix)
            self.fs.rename(self._path(name), renamed[partition])
        self.fs.sync_directory(self.root)
        # A full disk must not stop a deletion of logs, so ignore a failed checkpoint write: ``create`` writes the
        # checkpoints again before it creates a log.
        with _full_disk_left_out(self.root):
            self._write_unwritten()
        with _full_disk_left_out(self.root):
            self.compaction.forget(partitions)
        return renamed

    def _remove_later(self, path: str, size: int, delay_ms: int) -> None:
        self.deleted.add(path, size, due_ms=self._clock.monotonic_ms() + delay_ms)

    def remove_deleted(self, *, everything: bool = False) -> Removed:
        """Remove files of deleted segments and logs whose delay is over, about 1 GiB in a call, which takes a second.
        ``everything``: remove all deleted files now; used when the disk is full. The removal may run in any thread,
        because no log uses deleted files."""
        return self.deleted.remove(None if everything else self._clock.monotonic_ms())

    def truncate(self, log: PartitionLog, offset: int, last_epoch: int = NO_EPOCH) -> None:
        """Truncate a log like ``PartitionLog.truncate_to``, and lower its recovery point and high watermark first. A
        log that ends below its recovery point would be reported as corrupt. A log that ends exactly at its recovery
        point would be treated as flushed, although a crash may come before the truncation is durable. With a high
        watermark above its end, a log would treat later records as committed."""
        self._check_held(log)
        end_offset = log.end_after_truncating(offset)
        self.compaction.truncated(log.topic_partition, end_offset)
        lowered = max(end_offset - 1, 0) if end_offset < log.log_end_offset else end_offset
        self._lower(RECOVERY_POINTS, log.topic_partition, lowered)
        self._lower(HIGH_WATERMARKS, log.topic_partition, end_offset)
        log.truncate_to(offset, last_epoch)
        if self._log_starts.get(log.topic_partition, 0) > log.log_start_offset:
            self._log_starts[log.topic_partition] = log.log_start_offset
            self._write(LOG_STARTS, self._log_starts)

    def restart(self, log: PartitionLog, offset: int, producers: bytes = b"") -> None:
        """Empty a log, durably; its next record gets ``offset``, which may be beyond the log's end because a snapshot
        holds the earlier records. A crash leaves the log unchanged, truncated, empty at its old start, or empty at
        ``offset``; the caller can repeat the call. ``producers``: a snapshot of the leader's producers at ``offset``
        (``ProducerTable.snapshot_at``), which the log cannot learn from records. Raises CorruptMessageError, without a
        change, if ``producers`` is damaged."""
        self._check_held(log)
        partition = log.topic_partition
        self.compaction.truncated(partition, min(log.log_start_offset, offset))
        # Lower the recovery point before the truncation: a log that ends below its recovery point counts as damaged.
        self._lower(RECOVERY_POINTS, partition, 0)
        self._lower(HIGH_WATERMARKS, partition, offset)

        def move_start() -> None:
            self._log_starts[partition] = offset
            self._write(LOG_STARTS, self._log_starts)

        log.restart_at(offset, move_start, producers)

    def delete_records(self, log: PartitionLog, before_offset: int) -> int:
        """Advance the log start, durably, and remove whole segments below the new start; returns the new log start."""
        self._check_held(log)
        start = log.delete_records(before_offset)
        if self._log_starts.get(log.topic_partition, 0) < start or LOG_STARTS in self._unwritten:
            self._log_starts[log.topic_partition] = max(self._log_starts.get(log.topic_partition, 0), start)
            self._write(LOG_STARTS, self._log_starts)
        self._drop(log)
        if start > log.segments[0].base_offset:
            # If no segment's name shows the log start, store the log start in the epoch checkpoint too. Without the log
            # start in the epoch checkpoint, a damaged checkpoint of log starts would bring deleted records back.
            log.epochs.restore(log.epochs.entries)
        return start

    def expire(self, verdicts: Iterable[tuple[PartitionLog, Expired]]) -> list[tuple[PartitionLog, Expired]]:
        """Delete the segments that retention found expired; returns the logs with the decisions that were applied. The
        new log starts are durable (one write for all logs) before the first file is renamed.

        If a log changed after the retention decision, ``expire`` skips a removed or truncated log, and keeps an active
        segment with newer records.
        """
        done: list[tuple[PartitionLog, Expired]] = []
        for log, judged in verdicts:
            start, end = judged.log_start_offset, log.log_end_offset
            if self.logs.get(log.topic_partition) is not log or not log.log_start_offset <= start <= end:
                continue
            if log.cuts != judged.cuts:
                continue
            verdict: Expired | None = judged
            if judged.roll_first and not (start == end and _is_rolled(log)):
                verdict = judged.without_active(min(start, log.active.base_offset), log.active.size)
            if verdict is None:
                continue
            start = log.delete_records(verdict.log_start_offset)
            self._log_starts[log.topic_partition] = max(self._log_starts.get(log.topic_partition, 0), start)
            done.append((log, verdict))
        if not done:
            return done
        one_by_one = False
        try:
            self._write(LOG_STARTS, self._log_starts)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            one_by_one = True  # an operation that frees space must not need any space
        for log, _ in done:
            self._drop(log, one_by_one=one_by_one)
        return done

    def _drop(self, log: PartitionLog, *, one_by_one: bool = False) -> None:
        for path, size in log.drop_segments_below_start(one_by_one=one_by_one):
            self._remove_later(path, size, log.config.file_delete_delay_ms)

    # ---------------------------------------------------------------- logs that change directories (moving.py)

    def expect(
        self,
        partition: TopicPartition,
        *,
        log_start: int,
        recovery_point: int,
        high_watermark: int,
        clean_offset: int | None,
    ) -> None:
        """Record, durably, the checkpoints of a log that is about to be renamed into the directory."""
        assert not self.holds(partition), f"{self.root} has a log of {partition} already"
        self._expected[partition] = self._recovery_points[partition] = recovery_point
        self._log_starts[partition] = log_start
        self._high_watermarks[partition] = high_watermark
        for name, offsets in self._checkpoints().items():
            self._write(name, offsets)
        self.compaction.adopt(partition, clean_offset)

    def expect_no_more(self, partition: TopicPartition) -> None:
        """Undo ``expect``, because the log's move to this directory failed."""
        if self._expected.pop(partition, None) is not None:
            self._forget(lambda other: other == partition)
            self.compaction.forget([partition])

    def adopt(self, partition: TopicPartition, config: LogConfig, *, end_offset: int) -> PartitionLog:
        """Open a log that was renamed into the directory; the log is complete and durable up to its end.
        CorruptLogError, OSError."""
        path = self._path(str(partition))
        self._expected.pop(partition, None)
        try:
            log = PartitionLog.open(
                self.fs,
                path,
                partition,
                config,
                clock=self._clock,
                rng=self._rng,
                topic_id=read_partition_metadata(self.fs, path),
                recovery_point=end_offset,
                log_start_offset=self._log_starts.get(partition, 0),
                clean=True,
                high_watermark=self._high_watermarks.get(partition, 0),
            )
        except CorruptLogError as error:
            self.quarantined[partition], self._quarantined_ids[partition] = error, None
            raise
        self.logs[partition] = log
        return log

    def release(self, log: PartitionLog) -> None:
        """Hand the log over to another directory. A released log stays open for its readers until ``remove_released``;
        later requests for the log in this directory are ignored."""
        self._check_held(log)
        del self.logs[log.topic_partition]

    def release_in_doubt(self, log: PartitionLog) -> None:
        """Release a log like ``release``, but keep its checkpoints: the next start may find that the log still belongs
        to the directory."""
        self.release(log)
        self._expected[log.topic_partition] = log.recovery_point

    def remove_released(self, log: PartitionLog) -> None:
        """Delete the files of a released log, like the files of a deleted log."""
        size = log.size_bytes
        log.close(flush=False)
        self._remove({log.topic_partition: (size, 0)})

    def _check_held(self, log: PartitionLog) -> None:
        """Refuse a change of a log that has been deleted: a new log of the same name would inherit the checkpoints."""
        if self.logs.get(log.topic_partition) is not log:
            raise log.closed_error()

    # ---------------------------------------------------------------- checkpoints

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the last checkpointed high watermark, at most the log's end; 0 if no high watermark was
        checkpointed."""
        offset = self._high_watermarks.get(partition, 0)
        log = self.logs.get(partition)
        return offset if log is None else min(offset, log.log_end_offset)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the given high watermarks. Partitions that are not given keep their checkpointed high watermarks;
        given partitions without a log are ignored."""
        held = {partition: offset for partition, offset in offsets.items() if partition in self.logs}
        merged = {**self._high_watermarks, **held}
        if merged != self._high_watermarks or HIGH_WATERMARKS in self._unwritten:
            self._high_watermarks = merged
            self._write(HIGH_WATERMARKS, merged)

    def write_recovery_points(self) -> None:
        """Checkpoint the flushed end of each log as its recovery point. Quarantined logs keep their recovery points."""
        points = {partition: log.recovery_point for partition, log in self.logs.items()}
        for partition in self.quarantined:
            if partition in self._recovery_points:
                points[partition] = self._recovery_points[partition]
        points |= self._expected
        if points != self._recovery_points or RECOVERY_POINTS in self._unwritten:
            self._recovery_points = points
            self._write(RECOVERY_POINTS, points)

    def close(self, *, broker_epoch: int = -1, clean: bool = True) -> None:
        """Close the directory and release its lock. ``clean``: flush and close every log and write the clean shutdown
        marker, so the next start need not scan. Without ``clean`` (after a failure), only close the files."""
        try:
            if clean:
                logs = list(self.logs.values())
                flush_together(self.fs, logs)
                self.write_recovery_points()
                close_together(self.fs, logs)
                quarantined = frozenset(map(str, self.quarantined))
                write_clean_shutdown(self.fs, self.root, CleanShutdown(broker_epoch, quarantined))
        finally:
            self.logs.clear()
            self._lock.release()

    def _forget(self, gone: Callable[[TopicPartition], bool]) -> None:
        """Remove partitions from the checkpoints, because a new log of the same name must not inherit their offsets."""
        self._drop_entries(gone)
        self._write_unwritten()

    def _drop_entries(self, gone: Callable[[TopicPartition], bool]) -> None:
        self._expected = {partition: end for partition, end in self._expected.items() if not gone(partition)}
        for name, offsets in self._checkpoints().items():
            dropped = [partition for partition in offsets if gone(partition)]
            for partition in dropped:
                del offsets[partition]
            if dropped:
                self._unwritten.add(name)

    def _write_unwritten(self) -> None:
        for name, offsets in self._checkpoints().items():
            if name in self._unwritten:
                self._write(name, offsets)

    def _lower(self, name: str, partition: TopicPartition, offset: int) -> None:
        """Lower the partition's checkpointed offset to at most ``offset``, durably."""
        offsets = self._checkpoints()[name]
        known = offsets.get(partition, 0)
        # If the last write failed on a full disk, the checkpoint file may have a higher offset than memory, so write
        # the file now.
        if known > offset or name in self._unwritten:
            offsets[partition] = min(known, offset)
            self._write(name, offsets)

    def _checkpoints(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            RECOVERY_POINTS: self._recovery_points,
            LOG_STARTS: self._log_starts,
            HIGH_WATERMARKS: self._high_watermarks,
        }

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._unwritten.add(name)
        write_offsets(self.fs, self._path(name), offsets)
        self._unwritten.discard(name)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def has_only_foreign_files(names: Sequence[str]) -> bool:
    """Whether a directory with a partition's name is no log, by the names of its files: it has files or directories,
    but none of a log's files. An empty directory is a log whose creation a crash interrupted."""
    return bool(names) and not any(map(_FILE_OF_A_LOG.match, names))


def _foreign(path: str, partition: TopicPartition) -> StorageError:
    return StorageError(
        f"{path} has the name of a log, but is not a log: the broker leaves it as it is, and cannot create the log of "
        f"{partition} there; move it away, then restart the broker"
    )


def _is_rolled(log: PartitionLog) -> bool:
    """Seal the log's active segment and begin a new segment; False when the disk lacks space for another segment."""
    try:
        log.roll()
    except HeadraceError as error:
        logger.warning("%s: cannot delete the expired active segment yet: %s", log.directory, error)
        return False
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return False
    return True


@contextlib.contextmanager
def _full_disk_left_out(root: str) -> Iterator[None]:
    """Ignore a full disk and a lack of file descriptors."""
    try:
        yield
    except ServerBusyError as error:
        logger.warning("%s: cannot write a checkpoint, trying again later: %s", root, error)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        logger.warning("%s: cannot write a checkpoint, the disk is full; trying again later", root)
