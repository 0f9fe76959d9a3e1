"""The log of one partition: an ordered list of segments, appended to at one end.

    log start        recovery point    flushed        log end
       |                  |               |              |
    [ segment ][ segment ][ segment ][ active segment .. ]

    log_start_offset <= recovery point <= flushed_end <= log_end_offset

Synchronous, without threads or locks of its own. One owner (``DirectoryWriter``) makes all changes, one after the
other; readers in any thread may call the reading methods meanwhile, for offsets below an end that the owner has
published: batches, index entries and the list of segments only become visible when they are complete, and a reader that
holds a segment keeps its file open even when the segment is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from ..clock import Clock
from ..errors import OffsetOutOfRangeError, ServerBusyError
from ..types import FlushPolicy, TopicPartition
from .appender import LogAppender
from .config import LogConfig
from .epochs import EpochEnd, EpochStart, LeaderEpochs
from .files import NO_SPACE, FileSystem, write_files_atomically
from .opening import open_segments
from .producer_files import ProducerSnapshots, load_producers, reload_producers
from .producer_state import SNAPSHOT_SUFFIX, ProducerTable
from .progress import OpeningMeter
from .retention import Expired, SegmentFacts, expired, is_waiting_for_compaction, time_of_segment
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, LogSegment
from .swap import TXN_INDEX_SUFFIX

logger = logging.getLogger(__name__)

#: Logs that are closed at the same time: each holds two descriptors meanwhile.
_CLOSED_AT_ONCE = 64

#: Of files that are on their way out.
DELETED_SUFFIX = ".deleted"


class DeletedFile(NamedTuple):
    """A file that belongs to no log any more, and what removing it gives back (indexes count for nothing)."""

    path: str
    size: int


class PartitionLog(LogAppender):
    """See the module. Made by ``open``; all offsets are exclusive ends unless they say otherwise."""

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
        super().__init__(
            fs,
            directory,
            topic_partition,
            config,
            clock,
            rng,
            segments,
            epochs,
            log_start_offset,
            log_end_offset,
            producers,
            snapshots,
        )
        self.topic_id = topic_id
        #: Everything below is durable.
        self.flushed_end = log_end_offset
        #: When it was rolled last; -1: not since it was opened.
        self._rolled_ms = -1

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        clock: Clock,
        rng: random.Random | None = None,
        topic_id: uuid.UUID | None = None,
        recovery_point: int = 0,
        log_start_offset: int | None = 0,
        clean: bool = False,
        meter: OpeningMeter | None = None,
    ) -> PartitionLog:
        """Opens the log in ``directory`` (which exists), creating its first segment if it has none.

        ``clean``: the last owner closed it and ``recovery_point`` is its end; else what lies beyond the recovery point
        is scanned, a torn tail is cut and indexes are rebuilt. ``log_start_offset=None``: the checkpoint that tells it
        is lost, and the epoch checkpoint tells it. ``meter`` counts what is scanned. Raises CorruptLogError (nothing is
        changed then) and OSError.
        """
        opened = open_segments(
            fs,
            directory,
            config,
            now_ms=clock.now_ms(),
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            meter=meter,
        )
        producers, snapshots, notes = load_producers(fs, directory, opened.segments, opened.log_end_offset, clean=clean)
        producers.loaded(clock.monotonic_ms())
        for note in (*opened.notes, *notes):
            logger.warning("%s", note)
        return cls(
            fs,
            directory,
            topic_partition,
            config,
            clock,
            rng or random.Random(),
            topic_id,
            opened.segments,
            opened.epochs,
            opened.log_start_offset,
            opened.log_end_offset,
            producers,
            snapshots,
        )

    # ---------------------------------------------------------------- state

    @property
    def recovery_point(self) -> int:
        """What may be persisted as the recovery point: everything below it is durable. (Of a log without a batch there
        is nothing that could be missing, and a replica's first batch may begin below its end.)"""
        return 0 if len(self._segments) == 1 and self._segments[0].size == 0 else self.flushed_end

    @property
    def durable_end(self) -> int:
        """Records below it are as durable as the topic's ``log.flush`` asks: they may be acknowledged, and count in the
        high watermark."""
        return self.flushed_end if self.config.flush is FlushPolicy.COMMIT else self.log_end_offset

    def known_epochs(self) -> tuple[EpochStart, ...] | None:
        # None at all: the log was cut at its start, and batches below it, which are still in its first file, have had
        # epochs of which nothing is known any more.
        return (self.epochs.entries or None) if self.epochs.is_vouched_for else None

    def may_have_gaps(self) -> bool:
        return self.config.cleanup_compact or self._was_compacted

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def reconfigure(self, config: LogConfig) -> None:
        """New settings, in force from the next append or roll on."""
        self.config = config
        for segment in self._segments[-1:]:
            segment.interval_bytes = config.index_interval_bytes
        self._roll_jitter_ms = self._draw_jitter()

    # ---------------------------------------------------------------- roll

    def roll(self) -> LogSegment:
        """Seals the active segment and begins a new one at the log's end. The old segment and then the directory are
        durable before anything can be written to the new one. No change when the active segment is empty."""
        old = self.active
        if old.size == 0:
            return old
        # A full disk shows here, before anything is sealed.
        self._snapshots.take(self.producers, self.log_end_offset, [segment.base_offset for segment in self._segments])
        old.write_last_entries()
        with _final_failures():
            old.seal()
        self.flushed_end = self.log_end_offset
        self.unflushed_since_ms = None
        new = self._create_segment(self.log_end_offset)
        self._segments = (*self._segments, new)
        self._keep_warm(old, is_active=False)  # it may go on being read; but not all that were ever rolled stay loaded
        self._roll_jitter_ms = self._draw_jitter()
        self._rolled_ms = self._clock.now_ms()
        return new

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """``new`` stands for ``old``, sealed neighbours, from now on (compaction; the files were swapped already). Who
        reads the old ones goes on with them."""
        at = self._segments.index(old[0])
        after = at + len(old)
        assert self._segments[at:after] == tuple(old), f"{self.directory}: not the log's neighbouring segments"
        assert after < len(self._segments), f"{self.directory}: the active segment is never replaced"
        self._segments = (*self._segments[:at], new, *self._segments[after:])
        self._forget_places()

    def _create_segment(self, base_offset: int) -> LogSegment:
        segment = LogSegment.create(
            self._fs,
            self.directory,
            base_offset,
            index_bytes_max=self.config.segment_index_bytes,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
            reserve_bytes=self.config.segment_bytes if self.config.preallocate else 0,
        )
        try:
            with _final_failures():
                self._fs.sync_directory(self.directory)
        except ServerBusyError:  # no descriptor: the log goes on without it, so its files must not claim an offset
            segment.close()
            segment.delete_files()
            with contextlib.suppress(OSError, ServerBusyError):
                self._fs.sync_directory(self.directory)
            raise
        return segment

    # ---------------------------------------------------------------- flush, truncate, delete, close

    def flush(self) -> int:
        """Forces everything appended so far to the disk; returns the flushed offset. A failure (OSError) is final."""
        flush_together(self._fs, (self,))
        return self.flushed_end

    def flushed_to(self, end: int) -> None:
        """Everything below ``end`` has become durable."""
        self.flushed_end = end
        self.unflushed_since_ms = None

    def truncate_to(self, offset: int) -> None:
        """Removes records at and above ``offset``, durably; a batch that straddles it goes as a whole. When the log
        ends there or earlier, only epochs that begin there go: no record was written in them. Who persisted a higher
        recovery point must lower it first (``LogDirectory.truncate`` does).

        The log ends where its last batch does, for no crash finds another end again. So a cut into a gap that
        compaction left (only an unclean election cuts what was compacted) ends it where the gap begins: what is missing
        was superseded by records that are cut now, so it has to come from the leader again, if it has it. A log whose
        start lies behind that end, and not behind the cut, is empty at its start: nothing deleted comes back.

        CorruptLogError when what is around the cut is damaged: nothing is cut then."""
        if offset >= self.log_end_offset:
            if self.log_start_offset < self.log_end_offset:  # else it is the epoch of records that were deleted
                self.epochs.truncate_from_end(offset)
            return
        self.cuts += 1  # odd from here on: a reader that meets what is half cut knows that it is no damage
        try:
            end_offset = self.end_after_truncating(offset)
            if offset <= self._segments[0].base_offset:
                self._restart_at(offset)
            elif end_offset < self.log_start_offset <= offset:  # nothing is left
                self._restart_at(self.log_start_offset)
            else:
                self._cut_at(offset)
        finally:
            self.cuts += 1

    def _cut_at(self, offset: int) -> None:
        keep = [segment for segment in self._segments if segment.base_offset < offset]
        last = keep[-1]
        place, end_offset = last.where_to_cut(offset, self._offset_behind(last))
        self._snapshots.drop_above(end_offset)
        self.log_end_offset = end_offset
        self.flushed_end = min(self.flushed_end, end_offset)
        self._forget_places()
        for segment in reversed(self._segments[len(keep) :]):  # the newest first: a crash leaves a log without a gap
            self._segments = self._segments[:-1]
            segment.close()
            segment.delete_files()
            self._fs.sync_directory(self.directory)
        last.truncate_to(place)
        self._forget_places()  # what was remembered while the file's size and the log's end told different stories
        with _final_failures():
            last.log.sync()
        self.flushed_end = end_offset
        self.unflushed_since_ms = None
        self.epochs.truncate_from_end(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        if len(self.producers):
            self.producers = reload_producers(self._fs, self._snapshots, self._segments, end_offset)
            self.producers.loaded(self._clock.monotonic_ms())

    def end_after_truncating(self, offset: int) -> int:
        """Where the last batch would end after ``truncate_to(offset)``: below ``offset`` if that lies inside a batch or
        in a gap. (The log ends at its start, if that is behind the batch and the cut is not.) CorruptLogError when what
        is around the cut is damaged."""
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= self._segments[0].base_offset:
            return offset
        segment = next(segment for segment in reversed(self._segments) if segment.base_offset < offset)
        return segment.where_to_cut(offset, self._offset_behind(segment)).end_offset

    def _offset_behind(self, segment: LogSegment) -> int:
        """Where the next segment begins, or will."""
        later = (each.base_offset for each in self._segments if each.base_offset > segment.base_offset)
        return next(later, self.log_end_offset)

    def _restart_at(self, offset: int) -> None:
        """Empties the log; its next record gets ``offset``."""
        self._remove_all()
        self._begin_at(offset)

    def _remove_all(self) -> None:
        self._snapshots.drop_above(-1)
        self.producers = ProducerTable()
        old, self._segments = self._segments, ()
        self._forget_places()
        for segment in reversed(old):  # the newest first: a crash leaves a log without a gap
            segment.close()
            segment.delete_files()
            self._fs.sync_directory(self.directory)
        self.epochs.replace(())

    def _begin_at(self, offset: int) -> None:
        self.log_end_offset = self.flushed_end = self.log_start_offset = offset
        self.unflushed_since_ms = None
        self.producers.next_offset = offset
        self._segments = (self._create_segment(offset),)

    def _begin_again_at(self, base_offset: int) -> None:
        old, self._segments = self._segments[-1], self._segments[:-1]
        self._forget_places()
        old.close()
        old.delete_files()  # before the new one has its name: of two empty ones, the first would seem to lack records
        self._fs.sync_directory(self.directory)
        self._segments = (*self._segments, self._create_segment(base_offset))

    def restart_at(self, offset: int, before_it_begins: Callable[[], None]) -> None:
        """Empties the log, durably; its next record gets ``offset``, wherever it ended before. Through
        ``LogDirectory.restart``: between the two steps, ``before_it_begins`` says on the disk where it starts."""
        self.cuts += 1
        try:
            self._remove_all()
            before_it_begins()
            self._begin_at(offset)
        finally:
            self.cuts += 1

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start to ``before_offset`` and drops the segments that lie wholly below it; returns the new log
        start. The start becomes durable through ``LogDirectory``. OffsetOutOfRangeError above the log's end."""
        if before_offset > self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: records before {before_offset} cannot be deleted, the log ends at "
                f"{self.log_end_offset}"
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
        return self.log_start_offset

    def drop_segments_below_start(self, *, one_by_one: bool = False) -> list[DeletedFile]:
        """Takes whole segments below the log start, and the epochs that ended there, out of the log. Their files have
        names that end in .deleted when this returns, durably, and are the caller's to remove. Readers of theirs go on.

        Call once the start is durable: then a crash may leave any of them. ``one_by_one``: the start could not be made
        durable (the disk is full) and is where a segment begins; each one goes before the next, so that a crash leaves
        a log without a gap, which starts where its first segment does.
        """
        self.epochs.truncate_from_start(self.log_start_offset)
        segments = self._segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= self.log_start_offset:
            count += 1
        if not count:
            return []
        self._snapshots.force(segments[count].base_offset)
        gone, self._segments = segments[:count], segments[count:]
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
                self._fs.rename(path, path + DELETED_SUFFIX)
                deleted.append(DeletedFile(path + DELETED_SUFFIX, segment.size if suffix == LOG_SUFFIX else 0))
        segment.path += DELETED_SUFFIX
        segment.index.file.path += DELETED_SUFFIX
        segment.time_index.file.path += DELETED_SUFFIX
        return deleted

    def expired(self, high_watermark: int) -> Expired | None:
        """What retention lets go now, for ``LogDirectory.expire``; None: nothing. Changes nothing; any thread, but it
        may read from the disk. Raises OSError, CorruptLogError."""
        cuts, config, segments, log_end_offset = self.cuts, self.config, self._segments, self.log_end_offset
        if not segments:
            return None
        now_ms = self._clock.now_ms()

        def time_of(place: int) -> int:
            segment = segments[place]
            return time_of_segment(
                segment.largest_timestamp.timestamp_ms,
                lambda: self._fs.modified_ms(segment.path),
                config=config,
                now_ms=now_ms,
            )

        verdict = expired(
            [SegmentFacts(segment.base_offset, segment.size) for segment in segments],
            config,
            log_start_offset=self.log_start_offset,
            log_end_offset=log_end_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
            time_of=time_of,
        )
        return verdict and replace(verdict, cuts=cuts)

    def waits_for_compaction(self) -> bool:
        """Must the active segment be rolled although nobody appends, because a record in it has waited for compaction
        too long? Any thread, but it may read from the disk."""
        segments = self._segments
        if not segments or not self.config.cleanup_compact:
            return False
        first_ms = segments[-1].first_batch_timestamp()
        if first_ms is not None:  # records of long ago that come now have not waited: no roll for each few of them
            first_ms = max(first_ms, self._rolled_ms)
        return is_waiting_for_compaction(self.config, first_ms, self._clock.now_ms())

    def epoch_end_offset(self, epoch: int) -> EpochEnd:
        """Where a leader epoch ended (KIP-101, KIP-320)."""
        return self.epochs.end_of(epoch, self.log_end_offset)

    def closing_snapshot(self) -> list[tuple[str, bytes]]:
        """(path, bytes) of the producer snapshot that a clean stop needs; empty when it is there, or not needed."""
        end = self.log_end_offset
        if not self._segments or not self._snapshots.is_wanted(self.producers, end):
            return []
        return [(self._snapshots.path(end), self.producers.snapshot())]

    def closing_snapshot_written(self) -> None:
        """It is there, durably."""
        if self._segments and self._snapshots.is_wanted(self.producers, self.log_end_offset):
            self._snapshots.written(self.log_end_offset)

    def expire_producers(self, expiration_ms: int, candidates: Iterable[int]) -> int:
        """Forgets those of the ``candidates`` (from ``producers.expired``) that have written nothing since either; how
        many these were."""
        return len(self.producers.expire(self._clock.monotonic_ms(), expiration_ms, candidates))

    def close(self, *, flush: bool = True) -> None:
        """Flushes, completes the indexes and lets go of the files; readers at work finish on their own references.
        ``flush=False``: nothing is written, for a log that goes for good (the disk may be full)."""
        if not self._segments:
            return
        if flush:
            self.flush()
            write_files_atomically(self._fs, self.closing_snapshot())
            self.closing_snapshot_written()
        segments, self._segments = self._segments, ()
        self._forget_places()
        if flush:
            segments[-1].close()
        else:
            segments[-1].index.file.close()
            segments[-1].time_index.file.close()


def flush_together(fs: FileSystem, logs: Sequence[PartitionLog]) -> None:
    """``flush`` of several logs of one file system, at the same time. A failure (OSError) is final for all of them."""
    unflushed = [(log, log.log_end_offset) for log in logs if log.log_end_offset > log.flushed_end]
    with _final_failures():
        fs.sync_files([log.active.log for log, _ in unflushed])  # older segments were flushed when they were rolled
    for log, end in unflushed:
        log.flushed_to(end)


def close_together(fs: FileSystem, logs: Iterable[PartitionLog]) -> None:
    """``close`` of several flushed logs of one file system, their indexes forced at the same time."""
    rest = iter([log for log in logs if not log.is_closed])
    while some := list(islice(rest, _CLOSED_AT_ONCE)):
        write_files_atomically(fs, [item for log in some for item in log.closing_snapshot()])
        for log in some:
            log.closing_snapshot_written()
        durable = False
        try:
            fs.sync_files([file for log in some for file in log.active.begin_close()])
            durable = True
        finally:
            for log in some:
                log.active.end_close(durable=durable)
        for log in some:
            log.close(flush=False)


@contextlib.contextmanager
def _final_failures() -> Iterator[None]:
    """A failed flush is final, also when the disk gives "no space" as its reason: what became of the bytes is
    unknown."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OSError(errno.EIO, f"flush failed: {error.strerror}", error.filename) from error
        raise
