"""Change the segments of a log: begin, seal, truncate, empty and delete them. Only the directory writer does this.

A change that is interrupted by a full disk or a lack of descriptors leaves the log as it was. Where that is not
possible, the change raises OSError, which takes the log directory offline.
"""

from __future__ import annotations

import contextlib
import errno
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..clock import Clock
from ..errors import CorruptLogError, CorruptMessageError, OffsetOutOfRangeError, ServerBusyError
from ..types import NO_EPOCH, TopicPartition
from .config import LogConfig
from .epochs import LeaderEpochs
from .fencing import KnownEpoch
from .files import NO_SPACE, FileSystem
from .producer_files import ProducerSnapshots, reload_producers
from .producer_state import SNAPSHOT_SUFFIX, ProducerTable
from .reading import LogReader
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, LogSegment
from .txn_index import TXN_INDEX_SUFFIX

DELETED_SUFFIX = ".deleted"  #: Suffix of files that the log will remove later.


class DeletedFile(NamedTuple):
    """A file that no log uses, and the bytes that its removal frees (0 for an index)."""

    path: str
    size: int


class SegmentedLog(LogReader):
    """The state of a partition's log, and the changes of its segments; ``PartitionLog`` adds opening, appending and
    closing."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        rng: random.Random,
        topic_id: uuid.UUID | None,
        segments: Sequence[LogSegment],
        epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        producers: ProducerTable | None = None,
        snapshots: ProducerSnapshots | None = None,
    ) -> None:
        if producers is None:
            producers = ProducerTable(next_offset=log_end_offset)
        super().__init__(
            fs, directory, topic_partition, tuple(segments), epochs, producers, log_start_offset, log_end_offset
        )
        self.config = config
        #: Time (monotonic) of the first append since the last flush; None when all records are flushed.
        self.unflushed_since_ms: float | None = None
        #: The log's largest shard epoch, if the log is a partition of ``__consumer_offsets`` or
        #: ``__transaction_state``. The log looks up its largest shard epoch on demand, and again when the epoch may
        #: have changed.
        self.shard_epoch: KnownEpoch | None = None
        self._snapshots = ProducerSnapshots(fs, directory) if snapshots is None else snapshots
        self._clock = clock
        self._rng = rng
        self.roll_ms = self._draw_roll_ms()  #: Longest time that the active segment may span, less a random time.
        self.topic_id = topic_id
        self.flushed_end = log_end_offset  #: Offset below which all records are durable.
        self._rolled_ms = -1  #: Time of the log's last roll; -1: no roll since the log was opened.

    @property
    def active(self) -> LogSegment:
        """The last segment, to which batches are appended."""
        if not self.segments:
            raise self.closed_error()
        return self.segments[-1]

    def _draw_roll_ms(self) -> int:
        roll_ms = self.config.roll_after_ms
        jitter_ms = min(self.config.segment_jitter_ms, roll_ms)
        return roll_ms - (self._rng.randrange(jitter_ms + 1) if jitter_ms else 0)

    def roll(self) -> LogSegment:
        """Seal the active segment and begin a new segment at the log's end. The old segment is durable before the new
        segment exists, and the new segment's name before its first write. ``roll`` has no effect when the active
        segment is empty."""
        old = self.active
        if old.size == 0:
            return old
        # Write the producer snapshot before the segment is sealed: on a full disk the roll then fails without a sealed
        # segment.
        self._snapshots.take(self.producers, self.log_end_offset, [segment.base_offset for segment in self.segments])
        old.write_last_entries()
        with final_failures():
            old.seal()
        self.flushed_end = self.log_end_offset
        self.unflushed_since_ms = None
        new = self._create_segment(self.log_end_offset)
        self.segments = (*self.segments, new)
        # Readers may still use the segment; the indexes of the last few rolled segments stay loaded.
        self._keep_warm(old)
        self.roll_ms = self._draw_roll_ms()
        self._rolled_ms = self._clock.now_ms()
        return new

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replace the neighbouring sealed segments ``old`` by ``new`` after a compaction has swapped the files. Readers
        of the old segments finish on the old files."""
        at = self.segments.index(old[0])
        after = at + len(old)
        assert self.segments[at:after] == tuple(old), f"{self.directory}: not the log's neighbouring segments"
        assert after < len(self.segments), f"{self.directory}: the active segment is never replaced"
        self.segments = (*self.segments[:at], new, *self.segments[after:])
        self._snapshots.forget([segment.base_offset for segment in old[1:]])
        self._forget_places()

    def force_newest_snapshot(self) -> bool:
        """Make the newest producer snapshot durable, before the log loses a snapshot, or batches from which the
        producer table could be rebuilt. After a power loss, snapshots that were not forced to the disk can be torn, and
        the log lacks the batches that compaction removed. Without a durable snapshot, the state of the removed batches'
        producers would be lost. Returns False if the disk is full or no descriptor is free."""
        newest = self._snapshots.offsets[-1:]
        if newest:
            self._fs.sync_directory(self.directory)  # the roll that wrote the snapshot did not force it to the disk
        return all(self._snapshots.force(each) for each in newest)

    def _create_segment(self, base_offset: int, file: str | None = None) -> LogSegment:
        """Create a segment. ``file``: the path that ``_next_segment_file`` returned before other segments were
        deleted."""
        segment = LogSegment.create(
            self._fs,
            self.directory,
            base_offset,
            index_bytes_max=self.config.segment_index_bytes,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
            reserve_bytes=self.config.segment_bytes if self.config.preallocate else 0,
            file=file,
        )
        try:
            with final_failures():
                self._fs.sync_directory(self.directory)
        # No descriptor is free: the log continues without the new segment, so no file of that segment may stay.
        except ServerBusyError:
            segment.delete_files()
            with contextlib.suppress(OSError, ServerBusyError):
                self._fs.sync_directory(self.directory)
            raise
        return segment

    def _next_segment_file(self) -> str:
        """Create the empty file of a segment that will replace other segments; returns the file's path. The file is
        created before other segments are deleted, so that on a full disk the log keeps its segments."""
        path = f"{self.directory}/next{LOG_SUFFIX}.tmp"
        self._fs.open(path, write=True, create=True).close()
        return path

    def truncate_to(self, offset: int, last_epoch: int = NO_EPOCH) -> None:
        """Remove records at and above ``offset``, durably; a batch that contains ``offset`` is removed as a whole. If
        the log ends at or below ``offset``, only epochs that begin at or after ``offset`` are removed, because they
        have no records. The caller must lower a higher persisted recovery point first, as ``LogDirectory.truncate``
        does.

        ``last_epoch``: the leader epoch of the record before ``offset``, if the caller knows it. If all records before
        ``offset`` were deleted earlier, the truncation leaves the log empty. The log then keeps ``last_epoch``, and the
        state of the deleted records' producers.

        After the truncation, the log ends at the end of its last batch, as a start after a crash would find. If
        ``offset`` is inside a gap that compaction left, the log therefore ends at the beginning of the gap. (Only an
        unclean election truncates compacted records.) The removed records had replaced the compacted records, so the
        leader must send the removed records again. If the log's start is at or below ``offset`` but above the end of
        the last batch that stays, the log becomes empty at its start. The truncation brings back no deleted record.

        Raises CorruptLogError, without a change, when the log around ``offset`` is damaged.
        """
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(offset, last_epoch)
            return
        # the count is odd during the cut: a reader that finds an odd count does not report the half-cut file as damaged
        self.cuts += 1
        try:
            end_offset = self.end_after_truncating(offset)
            if offset < self.segments[0].base_offset:
                self._restart_at(offset)
            elif end_offset < self.log_start_offset <= offset:  # nothing is left
                self._restart_at(self.log_start_offset)
            else:
                self._cut_at(offset, last_epoch)
        finally:
            self.cuts += 1

    def _cut_at(self, offset: int, last_epoch: int) -> None:
        keep = [segment for segment in self.segments if segment.base_offset < offset] or [self.segments[0]]
        last = keep[-1]
        place, end_offset = last.where_to_cut(offset, self._offset_behind(last))
        self._aborted_in(last)
        self._snapshots.drop_above(end_offset)
        producers = None
        # Load the producers before the truncation: if no descriptor is free for reading the snapshot, the log stays
        # unchanged.
        if len(self.producers) or self.producers.undecided_count:
            producers = reload_producers(self._fs, self._snapshots, keep, end_offset)
            self.force_newest_snapshot()
        with _half_done():
            self.log_end_offset = end_offset
            self.flushed_end = min(self.flushed_end, end_offset)
            self._forget_places()
            self._delete_from(len(keep))
            last.truncate_to(place)
            last.txn_index.truncate_to(end_offset)
            self._forget_places()  # forget the cached positions that were stored while file size and log end disagreed
            last.log.sync()
        if producers is not None:
            producers.inherit_undecided(self.producers, end_offset)
            producers.loaded(self._clock.monotonic_ms())
            self.producers = producers
        self.producers.next_offset = end_offset
        self.flushed_end = end_offset
        self.unflushed_since_ms = None
        self.epochs.truncate_from_end(end_offset, last_epoch)
        self.log_start_offset = min(self.log_start_offset, end_offset)

    def end_after_truncating(self, offset: int) -> int:
        """Return the end of the last batch that ``truncate_to(offset)`` would keep. The end of the kept batches is
        below ``offset`` if ``offset`` is inside a batch or in a gap. Raises CorruptLogError if the log around
        ``offset`` is damaged."""
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= self.segments[0].base_offset:
            return offset
        segment = next(segment for segment in reversed(self.segments) if segment.base_offset < offset)
        return segment.where_to_cut(offset, self._offset_behind(segment)).end_offset

    def _offset_behind(self, segment: LogSegment) -> int:
        """Return the base offset of the segment after ``segment``; the log end offset if ``segment`` is the last
        segment."""
        later = (each.base_offset for each in self.segments if each.base_offset > segment.base_offset)
        return next(later, self.log_end_offset)

    def _restart_at(self, offset: int) -> None:
        """Empty the log; its next record gets ``offset``."""
        file = self._next_segment_file()
        self._remove_all()
        self._begin_at(offset, file)

    def _remove_all(self) -> None:
        self._snapshots.drop_above(-1)
        self._forget_places()
        with _half_done():
            self._delete_from(0)
        # Clear the producer table only after the records are deleted: without the table's open transactions, all
        # records would seem committed.
        self.producers = ProducerTable()
        self.epochs.truncate_from_end(0)

    def _delete_from(self, first: int) -> None:
        """Delete the segments from index ``first`` on, newest first, so that a crash leaves a log without a gap."""
        gone, self.segments = self.segments[first:], self.segments[:first]
        for segment in reversed(gone):
            segment.delete_files()
            self._fs.sync_directory(self.directory)

    def _begin_at(self, offset: int, file: str) -> None:
        self.log_end_offset = self.flushed_end = self.log_start_offset = offset
        self.unflushed_since_ms = None
        self.producers.next_offset = offset
        with _half_done():
            self.segments = (self._create_segment(offset, file),)

    def begin_again_at(self, base_offset: int) -> None:
        """Replace the active segment, which is empty, by an empty segment with another base offset."""
        file = self._next_segment_file()
        self._forget_places()
        with _half_done():
            # Delete the old empty segment before the new segment is created: if both were left after a crash, recovery
            # would report lost records.
            self._delete_from(len(self.segments) - 1)
            self.segments = (*self.segments, self._create_segment(base_offset, file))

    def restart_at(self, offset: int, before_it_begins: Callable[[], None], producers: bytes = b"") -> None:
        """Empty the log, durably; its next record gets ``offset``, which may be above or below the log's end.
        ``LogDirectory.restart`` calls this. ``before_it_begins`` persists the new log start after the old segments are
        deleted and before the new segment exists. ``producers``: see ``LogDirectory.restart``."""
        table = ProducerTable(next_offset=offset)
        if producers:
            try:
                table = ProducerTable.from_snapshot(
                    producers, f"{self.topic_partition}: the leader's producers", offset
                )
            except CorruptLogError as error:  # the snapshot's error belongs to the leader's log: this log is sound
                raise CorruptMessageError(error.message) from error
            table.loaded(self._clock.monotonic_ms())
        file, start = self._next_segment_file(), self.log_start_offset
        self.cuts += 1
        try:
            self._remove_all()
            try:
                # Write the producer snapshot first: after a crash, a log that begins at ``offset`` must have the state
                # of the producers before ``offset``.
                self._snapshots.take(table, offset, ())
                self._snapshots.force(offset)
                self._fs.sync_directory(self.directory)
                before_it_begins()
                start, self.producers = offset, table
            finally:  # on a full disk the log stays empty at its old log start offset
                self._begin_at(start, file)
        finally:
            self.cuts += 1

    def delete_records(self, before_offset: int) -> int:
        """Advance the log start to ``before_offset``; returns the new log start. ``LogDirectory`` makes the new log
        start durable and then drops the segments below it. Raises OffsetOutOfRangeError for an offset above the log's
        end."""
        if before_offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: cannot delete records before {before_offset}, but the log ends at "
                f"{self.log_end_offset}"
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
        return self.log_start_offset

    def drop_segments_below_start(self, *, one_by_one: bool = False) -> list[DeletedFile]:
        """Remove segments below the log start, and the epochs that ended there, from the log. Renames the files of the
        dropped segments to .deleted, durably; the caller removes the renamed files. Readers of the dropped segments
        finish normally.

        Call ``drop_segments_below_start`` only once the log start is durable, because a crash may leave any of the
        removed segments. ``one_by_one``: used when a full disk kept the log start from becoming durable, and a segment
        begins at the log start. With ``one_by_one``, each rename is durable before the next rename, so a crash leaves a
        log without a gap.
        """
        self.epochs.truncate_from_start(self.log_start_offset)
        segments = self.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= self.log_start_offset:
            count += 1
        if not count:
            return []
        self._snapshots.force(segments[count].base_offset)
        gone, self.segments = segments[:count], segments[count:]
        self._snapshots.forget([segment.base_offset for segment in gone])
        self._forget_places()
        self._warm = tuple(segment for segment in self._warm if segment not in gone)
        deleted: list[DeletedFile] = []
        for segment in gone:
            deleted += self._rename_deleted(segment)
            if one_by_one:
                self._fs.sync_directory(self.directory)
        if not one_by_one:
            self._fs.sync_directory(self.directory)
        return deleted

    def _rename_deleted(self, segment: LogSegment) -> list[DeletedFile]:
        stem = segment.path.removesuffix(LOG_SUFFIX)
        deleted = []
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
            path = stem + suffix
            if self._fs.exists(path):
                try:
                    self._fs.rename(path, path + DELETED_SUFFIX)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    self._fs.unlink(path)  # an operation that frees space must not need any space
                    continue
                deleted.append(DeletedFile(path + DELETED_SUFFIX, segment.size if suffix == LOG_SUFFIX else 0))
        segment.path += DELETED_SUFFIX
        segment.rename_indexes(DELETED_SUFFIX)
        return deleted


@contextlib.contextmanager
def final_failures() -> Iterator[None]:
    """Turn ENOSPC of a failed flush into EIO, which takes the log directory offline: after a failed flush, the state of
    the bytes is unknown."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OSError(errno.EIO, f"flush failed: {error.strerror}", error.filename) from error
        raise


@contextlib.contextmanager
def _half_done() -> Iterator[None]:
    """Turn a full disk or a lack of descriptors into EIO: in the middle of a change, the log has neither its old nor
    its new state."""
    with final_failures():
        try:
            yield
        except ServerBusyError as error:
            raise OSError(
                errno.EIO, f"a change of the log was interrupted, so its log directory goes offline: {error.message}"
            ) from error
