"""The log of one partition: an ordered list of segments, appended to at one end.

    log start        recovery point    flushed        log end
       |                  |               |              |
    [ segment ][ segment ][ segment ][ active segment .. ]

    log_start_offset <= recovery point <= flushed_offset <= log_end_offset

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
from ..errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    ServerBusyError,
)
from ..types import FlushPolicy, TopicPartition
from .appending import Append, AppendInfo, AppendOutcome, Prepared, prepare, validate
from .compaction.swap import TXN_INDEX_SUFFIX
from .config import LogConfig
from .epochs import EpochEnd, EpochStart, LeaderEpochs
from .files import NO_SPACE, Buffer, FileSystem
from .opening import open_segments
from .producer_state import SNAPSHOT_SUFFIX
from .progress import OpeningMeter
from .reading import LogReader
from .retention import Expired, SegmentFacts, expired, is_waiting_for_compaction, time_of_segment
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, BatchMeta, LogSegment
from .walking import Place

logger = logging.getLogger(__name__)

#: Logs that are closed at the same time: each holds two descriptors meanwhile.
_CLOSED_AT_ONCE = 64

#: Of files that are on their way out.
DELETED_SUFFIX = ".deleted"


class DeletedFile(NamedTuple):
    """A file that belongs to no log any more, and what removing it gives back (indexes count for nothing)."""

    path: str
    size: int


class _Group:
    """Appends that go into the active segment with one write."""

    __slots__ = ("entries", "size")

    def __init__(self) -> None:
        self.entries: list[Prepared] = []
        self.size = 0

    def add(self, prepared: Prepared) -> None:
        self.entries.append(prepared)
        self.size += prepared.size

    def take(self) -> tuple[list[Prepared], int]:
        """All of it; the group is empty afterwards."""
        taken = self.entries, self.size
        self.entries, self.size = [], 0
        return taken


class PartitionLog(LogReader):
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
    ) -> None:
        super().__init__(topic_partition, tuple(segments), log_start_offset, log_end_offset)
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self.epochs = epochs
        #: Everything below is durable.
        self.flushed_offset = log_end_offset
        #: Records appended since the last flush, and when the first of them was (None: none are).
        self.unflushed_since_ms: float | None = None
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._roll_jitter_ms = self._draw_jitter()
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
        for note in opened.notes:
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
        )

    # ---------------------------------------------------------------- state

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        if not self._segments:
            raise self.closed_error()
        return self._segments[-1]

    @property
    def recovery_point(self) -> int:
        """What may be persisted as the recovery point: everything below it is durable."""
        return self.flushed_offset

    @property
    def settled_offset(self) -> int:
        """One past the last record that has what the topic's ``log.flush`` promises: such records may be acknowledged,
        and count in the high watermark."""
        return self.flushed_offset if self.config.flush is FlushPolicy.COMMIT else self.log_end_offset

    def known_epochs(self) -> tuple[EpochStart, ...] | None:
        # None at all: the log was cut at its start, and batches below it, which are still in its first file, have had
        # epochs of which nothing is known any more.
        return (self.epochs.entries or None) if self.epochs.is_vouched_for else None

    def may_have_gaps(self) -> bool:
        return self.config.cleanup_compact or self._was_compacted

    @property
    def is_closed(self) -> bool:
        return not self._segments

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

    # ---------------------------------------------------------------- append

    def append(self, data: Buffer, leader_epoch: int) -> AppendInfo:
        """Validates and appends whole batches as their leader: gives them offsets and the epoch. Not durable yet: see
        ``flush``. Raises what ``append_many`` gives as the outcome of one append."""
        (outcome,) = self.append_many([Append(data=data, leader_epoch=leader_epoch)])
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome

    def append_many(self, appends: Sequence[Append], *, start_writeback: bool = False) -> list[AppendOutcome]:
        """Appends several requests in order, each of them whole or not at all, with one writev for all that go into the
        same segment.

        The outcome of a refused one is its error: CorruptMessageError, InvalidRecordError, InvalidTimestampError,
        RecordTooLargeError, RecordListTooLargeError, DiskFullError (what had been written of it is removed again). The
        others are appended all the same. Raises OSError when the disk fails in another way: then the state of the file
        is unknown and the log must not be used any more.

        ``start_writeback``: the disk may begin at once; for when other files are written before this one is flushed.
        """
        if self.is_closed:
            return [self.closed_error() for _ in appends]
        before, size_before = self.active, self.active.size
        outcomes = self._append_many(appends)
        segment = self.active
        position = size_before if segment is before else 0
        if start_writeback and segment.size > position:
            segment.log.start_writeback(position, segment.size - position)
        return outcomes

    def _append_many(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        now_ms = self._clock.now_ms()
        outcomes: list[AppendOutcome] = []
        group = _Group()
        for append in appends:
            try:
                prepared = self._prepare(append, group, now_ms)
                if self._should_roll(group, prepared, now_ms):
                    outcomes += self._write(group)
                    self.roll()
                    if prepared.metas[0].base_offset != self.log_end_offset:  # the group before it was refused
                        prepared = self._prepare(append, group, now_ms)
                self._assign_epoch(append.leader_epoch, prepared.metas[0].base_offset)
            except HeadraceError as error:
                outcomes += [*self._write(group), error]
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                outcomes += [*self._write(group), self._disk_full(error)]
            else:
                group.add(prepared)
        return outcomes + self._write(group)

    def _prepare(self, append: Append, group: _Group, now_ms: int) -> Prepared:
        data, headers = append.data, append.headers
        if headers is None:
            data, headers = validate(data, self.config, now_ms)
        base_offset = group.entries[-1].next_offset if group.entries else self.log_end_offset
        return prepare(
            data, headers, self.config, base_offset=base_offset, leader_epoch=append.leader_epoch, now_ms=now_ms
        )

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        latest = self.epochs.latest_epoch
        if epoch >= latest:
            self.epochs.assign(epoch, start_offset)
        else:
            raise InvalidArgumentError(
                f"{self.topic_partition}: an append with leader epoch {epoch}, but the log has records of {latest}"
            )

    def _write(self, group: _Group) -> list[AppendOutcome]:
        """Writes and publishes what is in the group, and empties it; the outcome of each."""
        entries, size = group.take()
        if not entries:
            return []
        segment = self.active
        if len(entries) == 1:
            buffers, metas = entries[0].buffers, entries[0].metas
        else:
            buffers = [buffer for prepared in entries for buffer in prepared.buffers]
            metas = [meta for prepared in entries for meta in prepared.metas]
        try:
            segment.write(buffers, size)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            segment.undo_write()
            return [self._disk_full(error) for _ in entries]
        except (ServerBusyError, CorruptLogError) as error:  # no descriptor for it, or damage: nothing was written
            return [error for _ in entries]
        self._published(segment, metas)
        return [
            AppendInfo(
                prepared.metas[0].base_offset,
                prepared.next_offset,
                prepared.log_append_time_ms,
                prepared.size,
                self.log_start_offset,
                prepared.max_timestamp_ms,
            )
            for prepared in entries
        ]

    def _published(self, segment: LogSegment, metas: Sequence[BatchMeta]) -> None:
        base_offset, next_offset = metas[0].base_offset, metas[-1].last_offset + 1
        assert base_offset == self.log_end_offset, f"{self.directory}: {base_offset} is not the end of the log"
        self._places.put(base_offset, segment, segment.size)
        segment.publish(metas)
        self._places.put(next_offset, segment, segment.size)
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = self._clock.monotonic_ms()
        self.log_end_offset = next_offset

    def _disk_full(self, error: OSError) -> DiskFullError:
        return DiskFullError(
            f"{self.directory}: no space left on the disk ({error.strerror}): nothing was appended; free some space, "
            "or lower the topics' retention"
        )

    # ---------------------------------------------------------------- roll

    def _should_roll(self, group: _Group, prepared: Prepared, now_ms: int) -> bool:
        """Kafka's LogSegment.shouldRoll, for what would come behind ``group``."""
        segment = self.active
        size = segment.size + group.size
        if size == 0:
            return False
        if size + prepared.size > self.config.segment_bytes or not segment.fits(prepared.next_offset - 1):
            return True
        if segment.index.is_full or segment.time_index.is_full:
            return True
        first_ms = segment.first_batch_timestamp() if segment.size else group.entries[0].metas[0].max_timestamp_ms
        if first_ms is not None and first_ms >= 0:
            waited_ms = prepared.max_timestamp_ms - first_ms
        else:
            waited_ms = now_ms - segment.created_ms
        return waited_ms > self.config.roll_after_ms - self._roll_jitter_ms

    def roll(self) -> LogSegment:
        """Seals the active segment and begins a new one at the log's end. The old segment and then the directory are
        durable before anything can be written to the new one. No change when the active segment is empty."""
        old = self.active
        if old.size == 0:
            return old
        old.write_last_entries()  # a full disk shows here, before anything is sealed
        with _final_failures():
            old.seal()
        self.flushed_offset = self.log_end_offset
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

    def _draw_jitter(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.roll_after_ms)
        return self._rng.randrange(jitter_ms + 1) if jitter_ms else 0

    # ---------------------------------------------------------------- flush, truncate, delete, close

    def flush(self) -> int:
        """Forces everything appended so far to the disk; returns the flushed offset. A failure (OSError) is final."""
        flush_together(self._fs, (self,))
        return self.flushed_offset

    def flushed_to(self, end: int) -> None:
        """Everything below ``end`` has become durable."""
        self.flushed_offset = end
        self.unflushed_since_ms = None

    def truncate_to(self, offset: int) -> None:
        """Removes records at and above ``offset``, durably; a batch that straddles it goes as a whole. No change when
        the log ends there or earlier. Who persisted a higher recovery point must lower it first
        (``LogDirectory.truncate`` does)."""
        if offset >= self.log_end_offset:
            return
        self.cuts += 1  # odd from here on: a reader that meets what is half cut knows that it is no damage
        try:
            if offset <= self._segments[0].base_offset:
                self._restart_at(offset)
            else:
                self._cut_at(offset)
        finally:
            self.cuts += 1

    def _cut_at(self, offset: int) -> None:
        keep = [segment for segment in self._segments if segment.base_offset < offset]
        last = keep[-1]
        place = last.find_or_end(offset)
        end_offset = _end_before(place, offset)
        self.log_end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._forget_places()
        for segment in reversed(self._segments[len(keep) :]):  # the newest first: a crash leaves a log without a gap
            self._segments = self._segments[:-1]
            segment.close()
            segment.delete_files()
            self._fs.sync_directory(self.directory)
        last.truncate_to(place)
        self._forget_places()  # what was remembered while the file's size and the log's end told different stories
        last.log.sync()
        self.flushed_offset = end_offset
        self.unflushed_since_ms = None
        self.epochs.truncate_from_end(end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)

    def end_after_truncating(self, offset: int) -> int:
        """Where the log would end after ``truncate_to(offset)``: below ``offset`` if that lies inside a batch."""
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= self._segments[0].base_offset:
            return offset
        segment = next(segment for segment in reversed(self._segments) if segment.base_offset < offset)
        place = segment.find_or_end(offset)
        return _end_before(place, offset)

    def _restart_at(self, offset: int) -> None:
        """Empties the log; its next record gets ``offset``."""
        self._remove_all()
        self._begin_at(offset)

    def _remove_all(self) -> None:
        old, self._segments = self._segments, ()
        self._forget_places()
        for segment in reversed(old):  # the newest first: a crash leaves a log without a gap
            segment.close()
            segment.delete_files()
            self._fs.sync_directory(self.directory)
        self.epochs.replace(())

    def _begin_at(self, offset: int) -> None:
        self.log_end_offset = self.flushed_offset = self.log_start_offset = offset
        self.unflushed_since_ms = None
        self._segments = (self._create_segment(offset),)

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
        gone, self._segments = segments[:count], segments[count:]
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

    def close(self, *, flush: bool = True) -> None:
        """Flushes, completes the indexes and lets go of the files; readers at work finish on their own references.
        ``flush=False``: nothing is written, for a log that goes for good (the disk may be full)."""
        if not self._segments:
            return
        if flush:
            self.flush()
        segments, self._segments = self._segments, ()
        self._forget_places()
        if flush:
            segments[-1].close()
        else:
            segments[-1].index.file.close()
            segments[-1].time_index.file.close()


def _end_before(place: Place | None, offset: int) -> int:
    """The end of a log that is cut at ``offset``, where ``place`` is the first batch that reaches to it: the batch's
    start if it straddles the cut, else the cut itself (after a gap that compaction left)."""
    return offset if place is None else min(offset, place.header.base_offset)


def flush_together(fs: FileSystem, logs: Sequence[PartitionLog]) -> None:
    """``flush`` of several logs of one file system, at the same time. A failure (OSError) is final for all of them."""
    unflushed = [(log, log.log_end_offset) for log in logs if log.log_end_offset > log.flushed_offset]
    with _final_failures():
        fs.sync_files([log.active.log for log, _ in unflushed])  # older segments were flushed when they were rolled
    for log, end in unflushed:
        log.flushed_to(end)


def close_together(fs: FileSystem, logs: Iterable[PartitionLog]) -> None:
    """``close`` of several flushed logs of one file system, their indexes forced at the same time."""
    rest = iter([log for log in logs if not log.is_closed])
    while some := list(islice(rest, _CLOSED_AT_ONCE)):
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
