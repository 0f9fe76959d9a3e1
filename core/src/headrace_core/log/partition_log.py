"""The log of one partition: an ordered list of segments, appended to at one end.

    log start        recovery point    flushed        log end
       |                  |               |              |
    [ segment ][ segment ][ segment ][ active segment .. ]

    log_start_offset <= recovery point <= flushed_end <= log_end_offset

PartitionLog uses no threads and no locks. Only one task (``DirectoryWriter``) changes the log, one change after
another. Readers in any thread may read offsets below an end offset that the directory writer has published. Batches,
index entries and the list of segments become visible only when complete. A reader that holds a segment keeps the
segment's file open even after the file was deleted.

Appends to the same segment become one write (``group``).
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from ..clock import Clock
from ..errors import (
    HeadraceError,
)
from ..types import FlushPolicy, TopicPartition
from .appending import Append, AppendInfo, Outcomes
from .config import LogConfig
from .epochs import EpochEnd
from .files import Buffer, FileSystem, write_files_atomically
from .group import Group
from .opening import open_segments
from .producer_files import (
    heal_txn_indexes,
    load_producers,
)
from .progress import OpeningMeter
from .retention import Expired, SegmentFacts, expired, is_waiting_for_compaction, time_of_segment
from .segments import SegmentedLog, final_failures

logger = logging.getLogger(__name__)

_CLOSED_AT_ONCE = 64  #: Maximum number of logs closed at the same time, because each closing log holds two descriptors.


class PartitionLog(SegmentedLog):
    """One partition's log (see the module's docstring); created by ``open``. End offsets are exclusive unless stated
    otherwise."""

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
    def is_closed(self) -> bool:
        return not self.segments

    @property
    def recovery_point(self) -> int:
        """The offset to persist as the recovery point; all records below the recovery point are durable. An empty log
        has the recovery point 0. An empty log has no records to recover, and the first batch that a replica appends may
        begin below the log's present end."""
        return 0 if len(self.segments) == 1 and self.segments[0].size == 0 else self.flushed_end

    @property
    def durable_end(self) -> int:
        """The offset below which records are as durable as ``log.flush`` demands. Records below ``durable_end`` may be
        acknowledged, and the high watermark may pass them."""
        return self.flushed_end if self.config.flush is FlushPolicy.COMMIT else self.log_end_offset

    def may_have_gaps(self) -> bool:
        return self.config.cleanup_compact or self._was_compacted

    @property
    def size_bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    def reconfigure(self, config: LogConfig) -> None:
        """Set the configuration, which applies from the next append or roll on."""
        self.config = config
        for segment in self.segments[-1:]:
            segment.interval_bytes = config.index_interval_bytes
        self.roll_ms = self._draw_roll_ms()

    def append(self, data: Buffer, leader_epoch: int) -> AppendInfo:
        """Validate whole batches, assign offsets and the leader epoch, and append the batches. The batches are not
        durable before ``flush``. Raises the errors that ``append_many`` returns."""
        (outcome,) = self.append_many([Append(data=data, leader_epoch=leader_epoch)])
        if isinstance(outcome, HeadraceError):
            raise outcome
        assert isinstance(outcome, AppendInfo)
        return outcome

    def append_many(self, appends: Sequence[Append], *, start_writeback: bool = False) -> list[Outcomes]:
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
        if not self.segments:
            return [self.closed_error() for _ in appends]
        before = self.segments[-1]
        size_before = before.size
        self.producers.local_ms = self._clock.monotonic_ms()
        outcomes = Group(self, self._clock.now_ms()).append(appends)
        if start_writeback:
            segment = self.segments[-1]
            position = size_before if segment is before else 0
            if segment.size > position:
                segment.log.start_writeback(position, segment.size - position)
        return outcomes

    def flush(self) -> int:
        """Force all records appended so far to the disk; returns the flushed end. After a failed flush (OSError), the
        flush must not be retried, and the log must not be used."""
        flush_together(self._fs, (self,))
        return self.flushed_end

    def expired(self, high_watermark: int) -> Expired | None:
        """Find the segments that retention would delete now, for ``LogDirectory.expire``; None: no segments. Changes no
        state. ``expired`` may run in any thread and may read from the disk. Raises OSError, CorruptLogError."""
        cuts, config, segments, log_end_offset = self.cuts, self.config, self.segments, self.log_end_offset
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
        segments = self.segments
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
        if not self.segments or not self._snapshots.is_wanted(self.producers, end):
            return []
        return [(self._snapshots.path(end), self.producers.snapshot())]

    def closing_snapshot_written(self) -> None:
        """Record that the producer snapshot of a clean stop is durable."""
        if self.segments and self._snapshots.is_wanted(self.producers, self.log_end_offset):
            self._snapshots.written(self.log_end_offset)

    def expire_producers(self, expiration_ms: int, candidates: Iterable[int]) -> int:
        """Remove the expired producers among ``candidates`` (from ``producers.expired``) that have not written
        since they were found; returns how many producers were removed."""
        return len(self.producers.expire(self._clock.monotonic_ms(), expiration_ms, candidates))

    def close(self, *, flush: bool = True) -> None:
        """Flush, complete the indexes and close the files; running reads finish because readers hold references to the
        files. ``flush=False``: write no bytes, for a log that is being deleted while the disk may be full."""
        if not self.segments:
            return
        if flush:
            self.flush()
            write_files_atomically(self._fs, self.closing_snapshot())
            self.closing_snapshot_written()
        segments, self.segments = self.segments, ()
        self._forget_places()
        if flush:
            segments[-1].close()
        else:
            segments[-1].close_indexes()


def flush_together(fs: FileSystem, logs: Sequence[PartitionLog]) -> None:
    """Flush several logs of one file system at the same time. After a failure (OSError), none of the logs must be
    used."""
    unflushed = [(log, log.log_end_offset) for log in logs if log.log_end_offset > log.flushed_end]
    if not unflushed:
        return
    try:
        fs.sync_files([log.active.log for log, _ in unflushed])  # older segments were flushed when they rolled
    except OSError:
        with final_failures():
            raise
    for log, end in unflushed:
        log.flushed_end, log.unflushed_since_ms = end, None


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
