"""The log of one partition: an ordered list of segments, appended to at one end.

    log start        recovery point    flushed        log end
       |                  |               |              |
    [ segment ][ segment ][ segment ][ active segment .. ]

    log_start_offset <= recovery point <= flushed_end <= log_end_offset

PartitionLog uses no threads and no locks. Only one task (``DirectoryWriter``) changes the log, one change after
another. Readers in any thread may read offsets below an end offset that the directory writer has published. Batches,
index entries and the list of segments become visible only when complete. A reader that holds a segment keeps the
segment's file open even after the file was deleted.

Appends to the same segment become one write (``Write``). Each append succeeds as a whole or is refused; a refused
append does not stop other appends.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, overload

from ..clock import Clock
from ..errors import (
    CorruptLogError,
    CorruptMessageError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    ServerBusyError,
)
from ..records import BatchHeader
from ..types import NO_EPOCH, FlushPolicy, TimestampType, TopicPartition
from .appending import Append, AppendInfo, AppendOutcome, Write, prepare, validate
from .config import LogConfig
from .epochs import EpochEnd, EpochStart, LeaderEpochs
from .fencing import Fence, KnownEpoch, check_fence, largest_epoch
from .files import NO_SPACE, Buffer, FileSystem, write_files_atomically
from .opening import open_segments
from .producer_files import (
    ProducerSnapshots,
    aborted_by_segment,
    complete_window,
    heal_txn_indexes,
    load_producers,
    reload_producers,
    snapshots_in,
    tell_kept_marker,
    tell_marker,
)
from .producer_state import SNAPSHOT_SUFFIX, Check, Checked, ProducerTable, Remembered
from .progress import OpeningMeter
from .reading import LogReader, ReadResult
from .replicated import UnexpectedOffsetError, check_order, check_replicated, epoch_starts, prepare_replicated
from .retention import Expired, SegmentFacts, expired, is_waiting_for_compaction, time_of_segment
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, BatchMeta, LogSegment
from .transactions import Marker, TransactionalAppend, check_in_transaction, must_append
from .txn_index import TXN_INDEX_SUFFIX, AbortedTransaction, overlapping, pack_entries, read_entries

logger = logging.getLogger(__name__)

_CLOSED_AT_ONCE = 64  #: Maximum number of logs closed at the same time, because each closing log holds two descriptors.

DELETED_SUFFIX = ".deleted"  #: Suffix of files that the log will remove later.


#: Error class for each reason to refuse a producer's batch.
_REFUSALS: dict[Check, type[HeadraceError]] = {
    Check.FENCED: InvalidProducerEpochError,
    Check.OUT_OF_ORDER: OutOfOrderSequenceNumberError,
    Check.NOT_IN_TRANSACTION: InvalidTxnStateError,
}


class DeletedFile(NamedTuple):
    """A file that no log uses, and the bytes that its removal frees (0 for an index)."""

    path: str
    size: int


class PartitionLog(LogReader):
    """One partition's log (see the module's docstring); created by ``open``. End offsets are exclusive unless stated
    otherwise."""

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
        super().__init__(topic_partition, tuple(segments), log_start_offset, log_end_offset)
        self.directory = directory
        self.config = config
        self.epochs = epochs
        #: The producer table: the state of each producer that wrote to this log; only the directory writer changes the
        #: table.
        self.producers = producers or ProducerTable(next_offset=log_end_offset)
        #: Time (monotonic) of the first append since the last flush; None when all records are flushed.
        self.unflushed_since_ms: float | None = None
        #: The log's largest shard epoch, if the log is a partition of ``__consumer_offsets`` or
        #: ``__transaction_state``. The log looks up its largest shard epoch on demand, and again when the epoch may
        #: have changed.
        self._shard_epoch: KnownEpoch | None = None
        self._snapshots = snapshots or ProducerSnapshots(fs, directory)
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._roll_jitter_ms = self._draw_jitter()
        self.topic_id = topic_id
        self.flushed_end = log_end_offset  #: Offset below which all records are durable.
        #: The pair (all segments, segments whose transaction indexes may have entries).
        self._known_with_aborted: tuple[tuple[LogSegment, ...], tuple[LogSegment, ...]] = (), ()
        self._rolled_ms = -1  #: Time of the log's last roll; -1: no roll since the log was opened.

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
        high_watermark: int | None = None,
        meter: OpeningMeter | None = None,
    ) -> PartitionLog:
        """Open the log in ``directory`` (which exists); create its first segment if it has none.

        ``clean``: the last owner closed the log, and ``recovery_point`` is the log's end. If ``clean`` is False, the
        segments beyond the recovery point are scanned, a torn tail is truncated and indexes are rebuilt.
        ``log_start_offset=None``: the checkpoint of log starts is lost, and the epoch checkpoint gives the start.
        ``high_watermark``: the last known high watermark; None: all records of the log count as committed. ``meter``
        counts scanned bytes. Raises CorruptLogError (without a change of the files), OSError.
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
        segments, end = opened.segments, opened.log_end_offset
        producers, snapshots, notes = load_producers(
            fs, directory, segments, end, clean=clean, high_watermark=high_watermark
        )
        producers.loaded(clock.monotonic_ms())
        healed = heal_txn_indexes(fs, snapshots, segments, opened.scanned, end)
        for note in (*opened.notes, *notes, *healed):
            logger.warning("%s", note)
        return cls(
            fs,
            directory,
            topic_partition,
            config,
            clock,
            rng or random.Random(),
            topic_id,
            segments,
            opened.epochs,
            opened.log_start_offset,
            end,
            producers,
            snapshots,
        )

    @property
    def active(self) -> LogSegment:
        """The last segment, to which batches are appended."""
        if not self._segments:
            raise self.closed_error()
        return self._segments[-1]

    @property
    def is_closed(self) -> bool:
        return not self._segments

    @property
    def recovery_point(self) -> int:
        """The offset to persist as the recovery point; all records below the recovery point are durable. An empty log
        has the recovery point 0. An empty log has no records to recover, and the first batch that a replica appends may
        begin below the log's present end."""
        return 0 if len(self._segments) == 1 and self._segments[0].size == 0 else self.flushed_end

    @property
    def durable_end(self) -> int:
        """The offset below which records are as durable as ``log.flush`` demands. Records below ``durable_end`` may be
        acknowledged, and the high watermark may pass them."""
        return self.flushed_end if self.config.flush is FlushPolicy.COMMIT else self.log_end_offset

    def known_epochs(self) -> tuple[EpochStart, ...] | None:
        # Without entries in the epoch checkpoint, do not check epochs: the log was truncated at its start, and the
        # epochs of earlier batches are unknown.
        return (self.epochs.entries or None) if self.epochs.is_checksummed else None

    def may_have_gaps(self) -> bool:
        return self.config.cleanup_compact or self._was_compacted

    @property
    def size_bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def reconfigure(self, config: LogConfig) -> None:
        """Set the configuration, which applies from the next append or roll on."""
        self.config = config
        for segment in self._segments[-1:]:
            segment.interval_bytes = config.index_interval_bytes
        self._roll_jitter_ms = self._draw_jitter()

    def append(self, data: Buffer, leader_epoch: int) -> AppendInfo:
        """Validate whole batches, assign offsets and the leader epoch, and append the batches. The batches are not
        durable before ``flush``. Raises the errors that ``append_many`` returns."""
        (outcome,) = self.append_many([Append(data=data, leader_epoch=leader_epoch)])
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome

    def append_many(self, appends: Sequence[Append], *, start_writeback: bool = False) -> list[AppendOutcome]:
        """Append the batches of several requests in order, each request whole or not at all; one writev for all batches
        of the same segment.

        The outcome of a refused append is its error, and the other appends still succeed. The errors are:

        * CorruptMessageError, InvalidRecordError, InvalidTimestampError, UnsupportedVersionError, RecordTooLargeError,
          RecordListTooLargeError, OutOfOrderSequenceNumberError, InvalidProducerEpochError, InvalidTxnStateError;
          InvalidArgumentError (the leader epoch is older than the log's), UnknownTopicOrPartitionError (the log is
          closed), ServerBusyError (no descriptor is free), CorruptLogError (the log is damaged)
        * with a transaction: the errors of ``transactions.must_append`` and ``transactions.check_in_transaction``
        * DiskFullError: the bytes already written are removed again (of a replicated append larger than a segment, the
          first batches may stay)
        * with a fence: FencedShardEpochError, UnexpectedLogEndError
        * replicated: UnexpectedOffsetError, UnexpectedEpochError

        Raises OSError when the disk fails and is not full. After the OSError the state of the file is unknown, and the
        log must not be used. ``start_writeback``: start the disk's write of the appended bytes at once, because other
        files are written before the log is flushed.
        """
        if self.is_closed:
            return [self.closed_error() for _ in appends]
        before = self.active
        size_before = before.size
        outcomes = self._append_many(appends)
        segment = self.active
        position = size_before if segment is before else 0
        if start_writeback and segment.size > position:
            segment.log.start_writeback(position, segment.size - position)
        return outcomes

    def _append_many(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        now_ms = self._clock.now_ms()
        self.producers.local_ms = self._clock.monotonic_ms()
        outcomes: list[AppendOutcome] = []
        group = Write([], [])
        for append in appends:
            try:
                self.epochs.catch_up()
                outcome = (self._add_replicated if append.replicated else self._add)(append, group, outcomes, now_ms)
            except HeadraceError as error:
                outcome = error
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                outcome = self._disk_full(error)
            if outcome is not None:
                outcomes += [*self._write(group), outcome]
        return outcomes + self._write(group)

    def _add(self, append: Append, group: Write, outcomes: list[AppendOutcome], now_ms: int) -> AppendOutcome | None:
        """Add a producer's batches to the group of the next write. For a duplicate append, ``_add`` adds nothing and
        returns an outcome."""
        if append.fence is not None:
            self._check_fence(append.fence, group)
        prepared = self._prepare(append, group, now_ms)
        if self._should_roll(group, prepared, now_ms):
            outcomes += self._write(group)
            self.roll()
            # The log refused the preceding group of appends, so the prepared offsets are wrong.
            if prepared.metas[0].base_offset != self.log_end_offset:
                if append.fence is not None:
                    self._check_fence(append.fence, group)
                prepared = self._prepare(append, group, now_ms)
        self._check_epoch(append.leader_epoch)
        at_first = len(group.remembered)
        if prepared.producers:
            duplicate = self._admit(prepared, group, append.transaction)
            if duplicate is not None:
                if duplicate.next_offset <= self.log_end_offset:
                    return duplicate
                # The append repeats a batch of the group whose write may still fail, so write the group first.
                outcomes += self._write(group)
                return self._add(append, group, outcomes, now_ms)
        try:  # add the epoch only now: a refused or repeated append adds no record of the epoch, and forces no file
            self.epochs.assign(append.leader_epoch, prepared.metas[0].base_offset)
        except (OSError, HeadraceError):  # no descriptor is free: ServerBusyError
            self._take_back(group, at_first)
            raise
        group.add(prepared, self.log_start_offset)
        if append.fence is not None:
            self._shard_epoch = KnownEpoch(append.fence.epoch, prepared.next_offset, self.cuts)
        return None

    def _check_fence(self, fence: Fence, group: Write) -> None:
        end = self._end_with(group)
        check_fence(fence, self._largest_shard_epoch(end), end, self.topic_partition)

    def _largest_shard_epoch(self, end: int) -> int:
        """Return the largest shard epoch of the log and of the group to be written next, which ends at ``end``."""
        known = self._shard_epoch
        if known is not None and known.cuts == self.cuts:
            if known.end == end:
                return known.epoch
            # ``known`` comes from an earlier append of the group, and the segments do not have the group's batches yet.
            if known.end > self.log_end_offset:
                return max(known.epoch, largest_epoch(self._segments))
        found = largest_epoch(self._segments)
        self._shard_epoch = KnownEpoch(found, end, self.cuts)
        return found

    def _prepare(self, append: Append, group: Write, now_ms: int) -> Write:
        data, headers = append.data, append.headers
        if headers is None:
            data, headers = validate(data, self.config, now_ms)
        return prepare(
            data,
            headers,
            self.config,
            base_offset=self._end_with(group),
            leader_epoch=append.leader_epoch,
            now_ms=now_ms,
        )

    def _end_with(self, group: Write) -> int:
        """The log end offset once the group is written."""
        return group.next_offset if group.metas else self.log_end_offset

    def _check_epoch(self, epoch: int) -> None:
        latest = self.epochs.latest_epoch
        if epoch < latest:
            raise InvalidArgumentError(
                f"{self.topic_partition}: cannot append with leader epoch {epoch}: the log has records of the later "
                f"epoch {latest}"
            )

    def _add_replicated(
        self, append: Append, group: Write, outcomes: list[AppendOutcome], now_ms: int
    ) -> AppendOutcome | None:
        end = self._end_with(group)
        is_empty = end == self.log_end_offset and len(self._segments) == 1 and self.active.size == 0
        if append.follows is not None and append.follows != end:
            raise UnexpectedOffsetError(
                f"{self.topic_partition}: cannot append batches that begin at offset {append.follows}: the log ends "
                f"at {end}"
            )
        headers, latest_epoch = append.headers, self.epochs.latest_epoch
        if headers is None:
            headers = check_replicated(
                append.data,
                log_end_offset=end,
                leader_epoch=append.leader_epoch,
                latest_epoch=latest_epoch,
                is_empty=is_empty,
            )
        else:
            check_order(headers, end, append.leader_epoch, latest_epoch, is_empty=is_empty)
        parts = list(prepare_replicated(append.data, headers, self.config.segment_bytes))
        if headers[0].base_offset < end:
            self._begin_again_at(headers[0].base_offset)
        for epoch, start_offset in epoch_starts(headers, latest_epoch, end):
            self.epochs.assign(epoch, start_offset)
        if len(parts) == 1:
            self._add_part(parts[0], group, outcomes, now_ms)
            return None
        outcomes += self._write(group)
        written = []
        for part in parts:
            refused: list[AppendOutcome] = []
            self._add_part(part, group, refused, now_ms)
            (outcome,) = self._write(group)
            if isinstance(outcome, HeadraceError):
                return outcome
            written.append(outcome)
        first, last = written[0], written[-1]
        return AppendInfo(
            first.base_offset,
            last.next_offset,
            -1,
            sum(info.size for info in written),
            self.log_start_offset,
            max(info.max_timestamp_ms for info in written),
        )

    def _add_part(self, part: Write, group: Write, outcomes: list[AppendOutcome], now_ms: int) -> None:
        if self._should_roll(group, part, now_ms):
            end = self._end_with(group)
            outcomes += self._write(group)
            if end != self.log_end_offset:
                raise UnexpectedOffsetError(
                    f"{self.topic_partition}: cannot append batches from offset {part.metas[0].base_offset} on: the "
                    f"batches before them could not be written, and the log ends at {self.log_end_offset}"
                )
            self.roll()
        if not self.active.size and not group.metas and not self.active.fits(part.next_offset - 1):
            # The batches begin after a gap that is too large for the segment's indexes.
            self._begin_again_at(part.metas[0].base_offset)
        at_first = len(group.remembered)
        try:
            for header, meta in part.producers:
                group.remembered.append(self.producers.remember(header.producer_id))
                if header.is_control:
                    at = sum(other.size for other in part.metas[: part.metas.index(meta)])
                    tell_kept_marker(self.producers, header, memoryview(part.buffers[0])[at : at + meta.size])
                else:
                    self.producers.appended(header)
        except HeadraceError:  # a marker was damaged after the check of its batches, so append none of these batches
            self._take_back(group, at_first)
            raise
        group.add(part, self.log_start_offset)

    def _admit(
        self, prepared: Write, group: Write, transaction: TransactionalAppend | Marker | None
    ) -> AppendInfo | None:
        """Check the batches of idempotent producers, and record the batches in the producer table. For batches that the
        log already has, return the AppendInfo of the first append. Raises OutOfOrderSequenceNumberError,
        InvalidProducerEpochError, InvalidTxnStateError, and the errors of ``must_append`` and
        ``check_in_transaction``."""
        table = self.producers
        if transaction is not None and isinstance(transaction, Marker):
            if not must_append(transaction, table.get(transaction.producer_id), self.topic_partition):
                return self._nothing_to_append(group)
            transaction = None
        at_first = len(group.remembered)
        duplicates: list[Checked] = []
        try:
            for header, meta in prepared.producers:
                if header.is_control:  # a marker has no sequence number
                    group.remembered.append(table.remember(header.producer_id))
                    at = 2 * prepared.metas.index(meta)
                    placed = header._replace(base_offset=meta.base_offset)
                    tell_marker(table, placed, b"".join(prepared.buffers[at : at + 2]))
                    continue
                checked = self._check_sequence(header)
                if checked.check is Check.DUPLICATE:
                    duplicates.append(checked)
                    continue
                if transaction is not None and checked.check is not Check.FENCED:
                    check_in_transaction(header, table.get(header.producer_id), transaction, self.topic_partition)
                if checked.check is not Check.NEXT:
                    raise _REFUSALS[checked.check](f"{self.topic_partition}: {checked.why}")
                group.remembered.append(table.remember(header.producer_id))
                table.appended(header, base_offset=meta.base_offset, max_timestamp_ms=meta.max_timestamp_ms)
            if duplicates and len(duplicates) < len(prepared.metas):
                raise OutOfOrderSequenceNumberError(
                    f"{self.topic_partition}: {len(duplicates)} of the request's {len(prepared.metas)} batches are "
                    "already in the log, the others are not: a retry must send the same batches in one request"
                )
        except HeadraceError:
            self._take_back(group, at_first)
            raise
        if not duplicates:
            return None
        first, last = duplicates[0].batch, duplicates[-1].batch
        assert first is not None
        assert last is not None
        gives_time = self.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        return AppendInfo(
            first.base_offset,
            last.last_offset + 1,
            first.timestamp_ms if gives_time else -1,
            0,
            self.log_start_offset,
            last.timestamp_ms,
            is_duplicate=True,
        )

    def _nothing_to_append(self, group: Write) -> AppendInfo:
        """Return the outcome for a marker that the log already has. The outcome's end offset is the log's end: the
        marker counts as committed when all records of the log are committed."""
        return AppendInfo(-1, self._end_with(group), -1, 0, self.log_start_offset, -1, is_duplicate=True)

    def _check_sequence(self, header: BatchHeader) -> Checked:
        checked = self.producers.check(header)
        if checked.check is Check.OUT_OF_ORDER:
            entry = self.producers.get(header.producer_id)
            if entry is not None and entry.is_cut_short and header.producer_epoch == entry.epoch:
                complete_window(entry, self._segments)
                checked = self.producers.check(header)
        return checked

    def _take_back(self, group: Write, at_first: int = 0) -> None:
        """Remove the group's batches from the producer table; called when the group is not written."""
        remembered = group.remembered[at_first:]
        del group.remembered[at_first:]
        self.producers.take_back(reversed(remembered), self._end_with(group))

    def _write(self, group: Write) -> list[AppendOutcome]:
        """Write, publish and empty the group; returns the outcome of each append."""
        if not group.metas:
            return []
        write, segment = group.empty(), self.active
        try:
            segment.write(write.buffers, write.size)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            segment.undo_write()
            self._not_written(write.remembered)
            return [self._disk_full(error) for _ in write.infos]
        # No descriptor is free, or the log is damaged: the append has written nothing.
        except (ServerBusyError, CorruptLogError) as error:
            self._not_written(write.remembered)
            return [error for _ in write.infos]
        self._published(segment, write.metas)
        return list(write.infos)

    def _not_written(self, remembered: list[Remembered]) -> None:
        self.producers.take_back(reversed(remembered), self.log_end_offset)
        self._shard_epoch = None

    def _published(self, segment: LogSegment, metas: Sequence[BatchMeta]) -> None:
        base_offset, next_offset = metas[0].base_offset, metas[-1].last_offset + 1
        # (In a follower's log, batches may leave a gap, and the first batch may begin below the log's start.)
        assert next_offset > self.log_end_offset, f"{self.directory}: {next_offset} is not after the end of the log"
        self._places.put(base_offset, segment, segment.size)
        segment.publish(metas)
        self._places.put(next_offset, segment, segment.size)
        if self.producers.aborted:  # write the entries before the log's end advances, so that readers find them
            segment.add_aborted(self.producers.aborted)
            self.producers.aborted.clear()
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = self._clock.monotonic_ms()
        self.log_end_offset = self.producers.next_offset = next_offset

    def _disk_full(self, error: OSError) -> DiskFullError:
        return DiskFullError(
            f"{self.directory}: no space left on the disk ({error.strerror}): nothing was appended; free some space, "
            "or lower the topics' retention"
        )

    def _should_roll(self, group: Write, prepared: Write, now_ms: int) -> bool:
        """Whether to begin a new segment before ``prepared`` is appended after ``group``, by the rules of Kafka's
        LogSegment.shouldRoll."""
        segment = self.active
        size = segment.size + group.size
        if size == 0:
            return False
        if size + prepared.size > self.config.segment_bytes or not segment.fits(prepared.next_offset - 1):
            return True
        if segment.index.is_full or segment.time_index.is_full:
            return True
        first_ms = segment.first_batch_timestamp() if segment.size else group.metas[0].max_timestamp_ms
        if first_ms is not None and first_ms >= 0:
            waited_ms = prepared.max_timestamp_ms - first_ms
        else:
            waited_ms = now_ms - segment.created_ms
        return waited_ms > self.config.roll_after_ms - self._roll_jitter_ms

    def _draw_jitter(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.roll_after_ms)
        return self._rng.randrange(jitter_ms + 1) if jitter_ms else 0

    def roll(self) -> LogSegment:
        """Seal the active segment and begin a new segment at the log's end. The old segment is durable before the new
        segment exists, and the new segment's name before its first write. ``roll`` has no effect when the active
        segment is empty."""
        old = self.active
        if old.size == 0:
            return old
        # Write the producer snapshot before the segment is sealed: on a full disk the roll then fails without a sealed
        # segment.
        self._snapshots.take(self.producers, self.log_end_offset, [segment.base_offset for segment in self._segments])
        old.write_last_entries()
        with _final_failures():
            old.seal()
        self.flushed_end = self.log_end_offset
        self.unflushed_since_ms = None
        new = self._create_segment(self.log_end_offset)
        self._segments = (*self._segments, new)
        # Readers may still use the segment; the indexes of the last few rolled segments stay loaded.
        self._keep_warm(old, is_active=False)
        self._roll_jitter_ms = self._draw_jitter()
        self._rolled_ms = self._clock.now_ms()
        return new

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replace the neighbouring sealed segments ``old`` by ``new`` after a compaction has swapped the files. Readers
        of the old segments finish on the old files."""
        at = self._segments.index(old[0])
        after = at + len(old)
        assert self._segments[at:after] == tuple(old), f"{self.directory}: not the log's neighbouring segments"
        assert after < len(self._segments), f"{self.directory}: the active segment is never replaced"
        self._segments = (*self._segments[:at], new, *self._segments[after:])
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
            with _final_failures():
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

    def flush(self) -> int:
        """Force all records appended so far to the disk; returns the flushed end. After a failed flush (OSError), the
        flush must not be retried, and the log must not be used."""
        flush_together(self._fs, (self,))
        return self.flushed_end

    def flushed_to(self, end: int) -> None:
        """Record that all records below ``end`` are durable."""
        self.flushed_end = end
        self.unflushed_since_ms = None

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
            if offset < self._segments[0].base_offset:
                self._restart_at(offset)
            elif end_offset < self.log_start_offset <= offset:  # nothing is left
                self._restart_at(self.log_start_offset)
            else:
                self._cut_at(offset, last_epoch)
        finally:
            self.cuts += 1

    def _cut_at(self, offset: int, last_epoch: int) -> None:
        keep = [segment for segment in self._segments if segment.base_offset < offset] or [self._segments[0]]
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
        if offset <= self._segments[0].base_offset:
            return offset
        segment = next(segment for segment in reversed(self._segments) if segment.base_offset < offset)
        return segment.where_to_cut(offset, self._offset_behind(segment)).end_offset

    def _offset_behind(self, segment: LogSegment) -> int:
        """Return the base offset of the segment after ``segment``; the log end offset if ``segment`` is the last
        segment."""
        later = (each.base_offset for each in self._segments if each.base_offset > segment.base_offset)
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
        gone, self._segments = self._segments[first:], self._segments[:first]
        for segment in reversed(gone):
            segment.delete_files()
            self._fs.sync_directory(self.directory)

    def _begin_at(self, offset: int, file: str) -> None:
        self.log_end_offset = self.flushed_end = self.log_start_offset = offset
        self.unflushed_since_ms = None
        self.producers.next_offset = offset
        with _half_done():
            self._segments = (self._create_segment(offset, file),)

    def _begin_again_at(self, base_offset: int) -> None:
        """Replace the active segment, which is empty, by an empty segment with another base offset."""
        file = self._next_segment_file()
        self._forget_places()
        with _half_done():
            # Delete the old empty segment before the new segment is created: if both were left after a crash, recovery
            # would report lost records.
            self._delete_from(len(self._segments) - 1)
            self._segments = (*self._segments, self._create_segment(base_offset, file))

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

    # ---------------------------------------------------------------- transactions

    def last_stable_offset(self, high_watermark: int) -> int:
        """End of the records for read_committed consumers: the start of the first transaction that is open, or whose
        marker is not committed. If no transaction is open or undecided, the last stable offset is the high watermark.
        Any thread."""
        stable_offset = self.producers.last_stable_offset(high_watermark)
        if stable_offset == high_watermark:
            return high_watermark
        return max(stable_offset, min(self.log_start_offset, high_watermark))

    @overload
    def read_committed(self, offset: int, max_bytes: int, high_watermark: int) -> ReadResult: ...

    @overload
    def read_committed(self, offset: int, max_bytes: int, high_watermark: int, *, wait: bool) -> ReadResult | None: ...

    def read_committed(
        self, offset: int, max_bytes: int, high_watermark: int, *, wait: bool = True
    ) -> ReadResult | None:
        """Read like ``read``, up to the last stable offset, with the aborted transactions among the records. The last
        stable offset, the records and the aborted transactions are of the same state of the log. The read is repeated
        if a compaction, a deletion or a roll changed the segments during the read. Raises OffsetNotAvailableError if
        the log was truncated during the read. Any thread."""
        while True:
            cuts, segments = self.cuts, self._segments
            found = self.read(offset, max_bytes, self.last_stable_offset(high_watermark), wait=wait)
            if found is None:
                return None
            aborted = self.aborted_transactions(offset, found.next_offset, wait=wait) if found.records else []
            if aborted is None:
                return None
            if cuts % 2 or self.cuts != cuts:
                raise self._cut_error()
            if self._segments is segments:
                return found._replace(aborted=aborted) if aborted else found

    def committed_to(self, high_watermark: int) -> None:
        """Record that all records below the high watermark are committed, so that the log forgets transactions that
        ended below it."""
        self.producers.committed_end = high_watermark

    @overload
    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]: ...

    @overload
    def aborted_transactions(self, start: int, end: int, *, wait: bool) -> list[AbortedTransaction] | None: ...

    def aborted_transactions(self, start: int, end: int, *, wait: bool = True) -> list[AbortedTransaction] | None:
        """The aborted transactions with records in [start, end), by first offset. ``end`` is at most the last stable
        offset. ``wait=False`` returns None when a transaction index is not in memory. Any thread.

        Raises OffsetOutOfRangeError if the records were deleted, CorruptLogError, OSError, and OffsetNotAvailableError
        (the log was truncated). The method ``read_committed`` returns the records and the aborted transactions
        together.
        """
        cuts = self.cuts
        while True:
            segments = self._segments
            if not segments:
                raise self.closed_error()
            if start < segments[0].base_offset:
                raise OffsetOutOfRangeError(
                    f"{self.topic_partition}: the records from offset {start} on were deleted during the read: the log "
                    f"starts at {self.log_start_offset}"
                )
            found: list[AbortedTransaction] = []
            try:
                base_offset = segments[bisect_right(segments, start, key=_base_offset) - 1].base_offset
                indexed = self._with_aborted(segments)
                for segment in indexed[bisect_left(indexed, base_offset, key=_base_offset) :]:
                    if segment is not segments[-1] and not segment.txn_index.concerns(end):
                        continue
                    data = segment.txn_index.loaded
                    if data is None:
                        if not wait:
                            return None
                        data = self._aborted_in(segment)
                    if data:
                        some, is_complete = overlapping(data, start, end)
                        found += some
                        if is_complete:
                            break
            except FileNotFoundError:
                if self._segments is segments:
                    raise
                continue  # the segment was compacted or deleted during the read
            except CorruptLogError as error:
                raise self._unless_cut(error, cuts) from error
            if len(found) > 1:
                found.sort(key=_first_offset)
            return found

    def _with_aborted(self, segments: tuple[LogSegment, ...]) -> tuple[LogSegment, ...]:
        """The segments whose transaction indexes may have entries, so that a read does not look at all segments."""
        known = self._known_with_aborted
        if known[0] is not segments:
            found = (*(each for each in segments[:-1] if not each.txn_index.is_empty), segments[-1])
            known = self._known_with_aborted = segments, found
        return known[1]

    def _aborted_in(self, segment: LogSegment) -> Buffer:
        """The entries of a segment's transaction index. A damaged or missing transaction index is rebuilt in memory
        from the log. Raises CorruptLogError (the log is damaged), FileNotFoundError (the log no longer has the
        segment)."""
        index = segment.txn_index
        while True:
            changes = index.changes
            try:
                return index.load()
            except (CorruptLogError, FileNotFoundError) as error:
                segments = self._segments
                if segment not in segments:
                    raise
                logger.error("%s: rebuilding the transaction index from the log, in memory", error)
                index.keep_in_memory(pack_entries(self._aborted_by_log(segments, segment)), changes)

    def _aborted_by_log(self, segments: Sequence[LogSegment], segment: LogSegment) -> list[AbortedTransaction]:
        snapshots = snapshots_in(self._fs, self.directory)
        return aborted_by_segment(self._fs, snapshots, segments, [segment], self.log_end_offset)[segment]

    def aborted_by_log(self, segment: LogSegment) -> list[AbortedTransaction]:
        """Compute from the log the entries that a segment's transaction index must have. Any thread. Raises
        CorruptLogError; FileNotFoundError when the log no longer has the segment."""
        segments = self._segments
        if segment not in segments:
            raise FileNotFoundError(segment.path)
        return self._aborted_by_log(segments, segment)

    def replace_aborted(self, segment: LogSegment, entries: Sequence[AbortedTransaction]) -> bool:
        """Replace the transaction index of a sealed segment, whose file is damaged; False when the log no longer has
        the segment."""
        if segment not in self._segments[:-1]:
            return False
        segment.txn_index.replace(entries)
        self._known_with_aborted = (), ()
        return True

    def aborted_in(self, segment: LogSegment) -> list[AbortedTransaction]:
        """The entries of a segment's transaction index, for compaction. Raises CorruptLogError, FileNotFoundError."""
        return read_entries(self._aborted_in(segment))

    def pin_aborted(self, segment: LogSegment) -> None:
        """Keep in memory the index entries of a segment that compaction is about to replace. Raises CorruptLogError."""
        self._aborted_in(segment)
        segment.txn_index.pin()

    def expired(self, high_watermark: int) -> Expired | None:
        """Find the segments that retention would delete now, for ``LogDirectory.expire``; None: no segments. Changes no
        state. ``expired`` may run in any thread and may read from the disk. Raises OSError, CorruptLogError."""
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
        """Whether to roll the idle active segment because one of its records has waited too long for compaction.
        ``waits_for_compaction`` may run in any thread and may read from the disk."""
        segments = self._segments
        if not segments or not self.config.cleanup_compact:
            return False
        first_ms = segments[-1].first_batch_timestamp()
        if first_ms is not None:  # old records that arrive now have not waited, so a few of them cause no roll
            first_ms = max(first_ms, self._rolled_ms)
        return is_waiting_for_compaction(self.config, first_ms, self._clock.now_ms())

    def epoch_end_offset(self, epoch: int) -> EpochEnd:
        """Return the end offset of a leader epoch (KIP-101, KIP-320)."""
        return self.epochs.end_of(epoch, self.log_end_offset)

    def closing_snapshot(self) -> list[tuple[str, bytes]]:
        """Return (path, bytes) of the producer snapshot for a clean stop; an empty list when the snapshot exists or is
        not needed."""
        end = self.log_end_offset
        if not self._segments or not self._snapshots.is_wanted(self.producers, end):
            return []
        return [(self._snapshots.path(end), self.producers.snapshot())]

    def closing_snapshot_written(self) -> None:
        """Record that the producer snapshot of a clean stop is durable."""
        if self._segments and self._snapshots.is_wanted(self.producers, self.log_end_offset):
            self._snapshots.written(self.log_end_offset)

    def expire_producers(self, expiration_ms: int, candidates: Iterable[int]) -> int:
        """Remove the expired producers among ``candidates`` (from ``producers.expired``) that have not written
        since they were found; returns how many producers were removed."""
        return len(self.producers.expire(self._clock.monotonic_ms(), expiration_ms, candidates))

    def close(self, *, flush: bool = True) -> None:
        """Flush, complete the indexes and close the files; running reads finish because readers hold references to the
        files. ``flush=False``: write no bytes, for a log that is being deleted while the disk may be full."""
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
            segments[-1].close_indexes()


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


def flush_together(fs: FileSystem, logs: Sequence[PartitionLog]) -> None:
    """Flush several logs of one file system at the same time. After a failure (OSError), none of the logs must be
    used."""
    unflushed = [(log, log.log_end_offset) for log in logs if log.log_end_offset > log.flushed_end]
    with _final_failures():
        fs.sync_files([log.active.log for log, _ in unflushed])  # older segments were flushed when they were rolled
    for log, end in unflushed:
        log.flushed_to(end)


def close_together(fs: FileSystem, logs: Iterable[PartitionLog]) -> None:
    """Close several flushed logs of one file system, and sync their indexes at the same time."""
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
    with _final_failures():
        try:
            yield
        except ServerBusyError as error:
            raise OSError(
                errno.EIO, f"a change of the log was interrupted, so its log directory goes offline: {error.message}"
            ) from error
