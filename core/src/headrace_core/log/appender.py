"""The appending half of a partition's log: what a leader or a replica appends, and what it makes of producers.

Several requests become one write wherever they go into the same segment (``Write``). Each of them is appended whole or
not at all; one that is refused does not keep the others out.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence

from ..clock import Clock
from ..errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    OutOfOrderSequenceNumberError,
    ServerBusyError,
)
from ..records import BatchHeader
from ..types import TimestampType, TopicPartition
from .appending import Append, AppendInfo, AppendOutcome, Write, prepare, validate
from .config import LogConfig
from .epochs import LeaderEpochs
from .fencing import Fence, KnownEpoch, check_fence, largest_epoch
from .files import NO_SPACE, Buffer, FileSystem
from .producer_files import ProducerSnapshots, complete_window, tell_kept_marker, tell_marker
from .producer_state import Check, Checked, ProducerTable, Remembered
from .reading import LogReader
from .replicated import UnexpectedOffsetError, check_order, check_replicated, epoch_starts, prepare_replicated
from .segment import BatchMeta, LogSegment


class LogAppender(LogReader):
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        clock: Clock,
        rng: random.Random,
        segments: Sequence[LogSegment],
        epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        producers: ProducerTable | None,
        snapshots: ProducerSnapshots | None,
    ) -> None:
        super().__init__(topic_partition, tuple(segments), log_start_offset, log_end_offset)
        self.directory = directory
        self.config = config
        self.epochs = epochs
        #: What is known of each producer that wrote to this log; changed in the owner's turn.
        self.producers = producers or ProducerTable(next_offset=log_end_offset)
        #: Records appended since the last flush, and when the first of them was (None: none are).
        self.unflushed_since_ms: float | None = None
        #: Of a shard: looked up in the log when it is asked for, and when it may have changed otherwise.
        self._shard_epoch: KnownEpoch | None = None
        self._snapshots = snapshots or ProducerSnapshots(fs, directory)
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._roll_jitter_ms = self._draw_jitter()

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        if not self._segments:
            raise self.closed_error()
        return self._segments[-1]

    @property
    def is_closed(self) -> bool:
        return not self._segments

    @abstractmethod
    def roll(self) -> LogSegment:
        """Seals the active segment and begins a new one."""

    @abstractmethod
    def _begin_again_at(self, base_offset: int) -> None:
        """The active segment is empty, and the next batch cannot go into it: one that begins with this offset."""

    def _draw_jitter(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.roll_after_ms)
        return self._rng.randrange(jitter_ms + 1) if jitter_ms else 0

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
        RecordTooLargeError, RecordListTooLargeError, OutOfOrderSequenceNumberError, InvalidProducerEpochError,
        DiskFullError (what had been written of it is removed again); of one with a fence FencedShardEpochError,
        UnexpectedLogEndError; of a replicated one UnexpectedOffsetError, UnexpectedEpochError. The others are appended
        all the same. (A replicated append that is larger than a segment may leave its first batches when the disk
        becomes full.) Raises OSError when the disk fails in another way: then the state of the file is unknown and the
        log must not be used any more.

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
        self.producers.local_ms = self._clock.monotonic_ms()
        outcomes: list[AppendOutcome] = []
        group = Write([], [])
        for append in appends:
            try:
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
        """Puts a producer's batches into the group, or says what became of them instead."""
        if append.fence is not None:
            self._check_fence(append.fence, group)
        prepared = self._prepare(append, group, now_ms)
        if self._should_roll(group, prepared, now_ms):
            outcomes += self._write(group)
            self.roll()
            if prepared.metas[0].base_offset != self.log_end_offset:  # the group before it was refused
                if append.fence is not None:
                    self._check_fence(append.fence, group)
                prepared = self._prepare(append, group, now_ms)
        self._check_epoch(append.leader_epoch)
        at_first = len(group.remembered)
        if prepared.producers:
            duplicate = self._admit(prepared, group, now_ms)
            if duplicate is not None:
                if duplicate.next_offset <= self.log_end_offset:
                    return duplicate
                outcomes += self._write(group)  # what it repeats is not written yet, and may fail
                return self._add(append, group, outcomes, now_ms)
        try:  # only now: what is refused, or was appended before, is no record of this epoch, and forces no file
            self.epochs.assign(append.leader_epoch, prepared.metas[0].base_offset)
        except OSError:
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
        """Of the log and what is in the group behind it, which ends at ``end``."""
        known = self._shard_epoch
        if known is not None and known.cuts == self.cuts:
            if known.end == end:
                return known.epoch
            if known.end > self.log_end_offset:  # it is in the group, and somebody else's batches behind it
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
        """Where the log ends once the group is written."""
        return group.next_offset if group.metas else self.log_end_offset

    def _check_epoch(self, epoch: int) -> None:
        latest = self.epochs.latest_epoch
        if epoch < latest:
            raise InvalidArgumentError(
                f"{self.topic_partition}: an append with leader epoch {epoch}, but the log has records of {latest}"
            )

    # ---------------------------------------------------------------- what comes from a leader

    def _add_replicated(
        self, append: Append, group: Write, outcomes: list[AppendOutcome], now_ms: int
    ) -> AppendOutcome | None:
        end = self._end_with(group)
        is_empty = end == self.log_end_offset and len(self._segments) == 1 and self.active.size == 0
        if append.follows is not None and append.follows != end:
            raise UnexpectedOffsetError(
                f"{self.topic_partition}: batches that go on at offset {append.follows}, but the log ends at {end}"
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
        for epoch, start_offset in epoch_starts(headers, latest_epoch):
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
                    f"{self.topic_partition}: batches from offset {part.metas[0].base_offset} on, but those before "
                    f"them could not be written: the log ends at {self.log_end_offset}"
                )
            self.roll()
        if not self.active.size and not group.metas and not self.active.fits(part.next_offset - 1):
            self._begin_again_at(part.metas[0].base_offset)  # behind a gap that a segment's indexes cannot tell
        at_first = len(group.remembered)
        try:
            for header, meta in part.producers:
                group.remembered.append(self.producers.remember(header.producer_id))
                if header.is_control:
                    at = sum(other.size for other in part.metas[: part.metas.index(meta)])
                    tell_kept_marker(self.producers, header, memoryview(part.buffers[0])[at : at + meta.size])
                else:
                    self.producers.appended(header)
        except HeadraceError:  # a marker that has rotted since its batches were checked: none of them is appended
            self._take_back(group, at_first)
            raise
        group.add(part, self.log_start_offset)

    # ---------------------------------------------------------------- what comes from a producer

    def _admit(self, prepared: Write, group: Write, now_ms: int) -> AppendInfo | None:
        """Checks the batches of idempotent producers and tells the table of them; of batches that were appended before,
        where that was. Raises OutOfOrderSequenceNumberError, InvalidProducerEpochError."""
        table = self.producers
        at_first = len(group.remembered)
        duplicates: list[Checked] = []
        try:
            for header, meta in prepared.producers:
                if header.is_control:  # a marker: it has no sequence
                    group.remembered.append(table.remember(header.producer_id))
                    at = 2 * prepared.metas.index(meta)
                    placed = header._replace(base_offset=meta.base_offset)
                    tell_marker(table, placed, b"".join(prepared.buffers[at : at + 2]))
                    continue
                checked = self._check_sequence(header)
                if checked.check is Check.DUPLICATE:
                    duplicates.append(checked)
                elif checked.check is not Check.NEXT:
                    refusal = (
                        InvalidProducerEpochError if checked.check is Check.FENCED else OutOfOrderSequenceNumberError
                    )
                    raise refusal(f"{self.topic_partition}: {checked.why}")
                else:
                    group.remembered.append(table.remember(header.producer_id))
                    table.appended(header, base_offset=meta.base_offset, max_timestamp_ms=meta.max_timestamp_ms)
            if duplicates and len(duplicates) < len(prepared.metas):
                raise OutOfOrderSequenceNumberError(
                    f"{self.topic_partition}: of {len(prepared.metas)} batches in one request, {len(duplicates)} are "
                    "in the log already and the others are not: send again together what was sent together"
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

    def _check_sequence(self, header: BatchHeader) -> Checked:
        checked = self.producers.check(header)
        if checked.check is Check.OUT_OF_ORDER:
            entry = self.producers.get(header.producer_id)
            if entry is not None and entry.is_cut_short and header.producer_epoch == entry.epoch:
                complete_window(entry, self._segments)
                checked = self.producers.check(header)
        return checked

    def _take_back(self, group: Write, at_first: int = 0) -> None:
        """What the table was told of these batches is not so."""
        remembered = group.remembered[at_first:]
        del group.remembered[at_first:]
        self.producers.take_back(reversed(remembered), self._end_with(group))

    # ---------------------------------------------------------------- writing

    def _write(self, group: Write) -> list[AppendOutcome]:
        """Writes and publishes what is in the group, and empties it; the outcome of each."""
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
        except (ServerBusyError, CorruptLogError) as error:  # no descriptor for it, or damage: nothing was written
            self._not_written(write.remembered)
            return [error for _ in write.infos]
        self._published(segment, write.metas)
        return list(write.infos)

    def _not_written(self, remembered: list[Remembered]) -> None:
        self.producers.take_back(reversed(remembered), self.log_end_offset)
        self._shard_epoch = None

    def _published(self, segment: LogSegment, metas: Sequence[BatchMeta]) -> None:
        base_offset, next_offset = metas[0].base_offset, metas[-1].last_offset + 1
        # (A replica's batches may leave a gap; its first one may begin below the log's start.)
        assert next_offset > self.log_end_offset, f"{self.directory}: {next_offset} is not behind the end of the log"
        self._places.put(base_offset, segment, segment.size)
        segment.publish(metas)
        self._places.put(next_offset, segment, segment.size)
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = self._clock.monotonic_ms()
        self.log_end_offset = self.producers.next_offset = next_offset

    def _disk_full(self, error: OSError) -> DiskFullError:
        return DiskFullError(
            f"{self.directory}: no space left on the disk ({error.strerror}): nothing was appended; free some space, "
            "or lower the topics' retention"
        )

    # ---------------------------------------------------------------- when to roll

    def _should_roll(self, group: Write, prepared: Write, now_ms: int) -> bool:
        """Kafka's LogSegment.shouldRoll, for what would come behind ``group``."""
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
