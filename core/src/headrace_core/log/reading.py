"""Read a log by offset or by time. All reads may run in any thread while the directory writer appends.

A read is one pread of exactly the bytes to return. To read no more bytes than needed, the reader first finds the end of
the last whole batch, by offset index and batch headers. Sequential readers and consumers at the log's end need no
lookup, because the log remembers the positions of the last reads and appends.

A read never returns a damaged batch. ``check_slice`` checks the CRC of each batch, and compares the fields without CRC
protection with the neighbouring batches. The offsets of the batches must reach the next known offset without a gap. The
next known offset is the next batch's base offset, the next segment's base offset, or the high watermark. If the offsets
of the batches have a gap, the batch before the first returned batch is checked, too. The batches' leader epochs must
match the epoch checkpoint. Where compaction removed no records, a batch with wrong offsets is always detected. (Next to
a compaction gap, a batch whose damaged offset lies inside the gap is not detected.) A search by time checks every batch
that it passes. Bytes that fail a check are read a second time; if the check fails again, CorruptLogError names file,
position and offset.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, overload

from ..errors import (
    CorruptLogError,
    CorruptMessageError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from ..records import (
    SLICE_EXACT,
    Buffer,
    Record,
    check_slice,
    decode_batch,
    iterate_headers,
    read_header,
    slice_fault,
    without_position,
)
from ..types import TopicPartition
from .epochs import EpochStart, LeaderEpochs
from .files import FileSystem
from .index import TimestampOffset
from .producer_files import aborted_by_segment, snapshots_in
from .producer_state import ProducerTable
from .segment import IndexMismatchError, LogSegment, Place, show_compaction
from .txn_index import AbortedTransaction, overlapping, pack_entries, read_entries

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Maximum number of remembered positions of one log.
PLACES_MAX = 256
#: Maximum number of attempts of one read: the first, one after an error that shows damage, and two after the rebuilt
#: indexes of two segments.
_READS_MAX = 4
_WARM_SEGMENTS = 4  #: Number of sealed segments per log whose indexes stay in memory.


class MissingRecordsError(CorruptLogError):
    """A segment ends below the base offset of the next segment, so records are missing."""


class ReadResult(NamedTuple):
    records: bytes  #: Whole batches, byte for byte as in the log; the first batch may begin below the requested offset.
    next_offset: int  #: Offset from which the next read continues.
    #: For ``read_committed``: the aborted transactions with records in the result, by first offset.
    aborted: Sequence[AbortedTransaction] = ()


Places = dict[int, tuple[LogSegment, int]]  #: (segment, position) by base offset.


class FoundTimestamp(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class LogReader:
    """The read methods of a partition's log."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        segments: tuple[LogSegment, ...],
        epochs: LeaderEpochs,
        producers: ProducerTable,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self.topic_partition = topic_partition
        #: The log's segments, oldest first; the last segment is the active one. Empty when the log is closed. The tuple
        #: is replaced as a whole.
        self.segments = segments
        self.epochs = epochs
        #: The producer table: the state of each producer that wrote to this log; only the directory writer changes the
        #: table.
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset  #: The offset after the last record written to the log.
        #: Count of a log's truncations: it grows by one when a truncation begins, and by one when the truncation ends.
        self.cuts = 0
        #: Positions of the last read or appended batches: (segment, position) by base offset. To discard them, the log
        #: replaces the dict, so that a concurrent reader writes into the discarded one.
        self.places: Places = {}
        #: The pair (all segments, segments whose transaction indexes may have entries).
        self._known_with_aborted: tuple[tuple[LogSegment, ...], tuple[LogSegment, ...]] = (), ()
        self._warm: tuple[LogSegment, ...] = ()
        self._was_compacted = False  #: Whether a compaction gap was found in this log.

    def closed_error(self) -> UnknownTopicOrPartitionError:
        """Return the error for a call to a closed or deleted log."""
        return UnknownTopicOrPartitionError(
            f"the log of {self.topic_partition} is closed: it was deleted, or the broker is stopping"
        )

    def may_have_gaps(self) -> bool:
        """Whether a segment may end below the base offset of the next segment."""
        return True

    def was_compacted(self) -> bool:
        """Whether any sealed segment has a gap. ``was_compacted`` may read all headers; it is called before missing
        records are reported. Raises CorruptLogError."""
        self._was_compacted = self._was_compacted or show_compaction(self.segments[:-1])
        return self._was_compacted

    # ---------------------------------------------------------------- by offset

    def first_offset_from(self, offset: int) -> int:
        """Return ``offset`` if a batch contains it, else the base offset of the next batch, else the log end offset.
        (No batch contains an offset whose batch compaction has removed.) Raises CorruptLogError."""
        segments = self.segments
        for number, segment in enumerate(segments):
            if number + 1 < len(segments) and segments[number + 1].base_offset <= offset:
                continue
            place = segment.find_or_end(offset)
            if place is not None:
                return max(offset, place.header.base_offset)
        return max(offset, self.log_end_offset)

    def read(self, offset: int, max_bytes: int, up_to: int | None = None, *, wait: bool = True) -> ReadResult | None:
        """Read whole batches, beginning with the batch that contains ``offset``. Returns at most ``max_bytes``, but
        always a whole first batch. All returned batches end below ``up_to`` (default: the log's end).

        ``wait=False`` returns None when the bytes are not in the page cache or are damaged; the caller then reads again
        in a thread that may block. Raises OffsetOutOfRangeError (below the log start or above the log end),
        CorruptLogError.
        """
        if not wait:
            try:
                return self._read(offset, max_bytes, up_to, wait=False)
            except CorruptLogError:
                return None
        return self._twice(lambda: self._read(offset, max_bytes, up_to, wait=True))

    def _twice(self, read: Callable[[], T]) -> T:
        """Run ``read()``, and run it again if it finds damage: a truncation or compaction may have changed the files,
        or a disk read may have failed once. An index that contradicts its log is rebuilt between the two reads."""
        cuts, is_second = self.cuts, False
        for _ in range(_READS_MAX - 1):
            try:
                return read()
            except IndexMismatchError as mismatch:
                self._doubt(mismatch, cuts)
            except CorruptLogError as error:
                if is_second:
                    raise self._unless_cut(error, cuts) from error
                if isinstance(error, MissingRecordsError) and self._is_gap(cuts):
                    continue
                is_second = True
                logger.warning("%s: %s; reading the batch again", self.topic_partition, error.message)
        try:
            return read()
        except CorruptLogError as error:
            raise self._unless_cut(error, cuts) from error

    def _is_gap(self, cuts: int) -> bool:
        try:
            return self.was_compacted()
        except CorruptLogError as error:
            raise self._unless_cut(error, cuts) from error

    def _doubt(self, mismatch: IndexMismatchError, cuts: int) -> None:
        for segment in self.segments:
            if segment.index.file.path in mismatch.message:
                try:
                    segment.distrust_indexes(mismatch.message)
                except CorruptLogError as error:
                    raise self._unless_cut(error, cuts) from error

    def _unless_cut(self, error: CorruptLogError, cuts: int) -> CorruptLogError | OffsetNotAvailableError:
        """Return ``error``, or OffsetNotAvailableError if the log was truncated after ``cuts`` was read."""
        if cuts % 2 == 0 and self.cuts == cuts:
            return error
        return self._cut_error()

    def _cut_error(self) -> OffsetNotAvailableError:
        return OffsetNotAvailableError(f"{self.topic_partition} was truncated during the read: read again")

    def _read(self, offset: int, max_bytes: int, up_to: int | None, *, wait: bool) -> ReadResult | None:
        cuts, places, segments = self.cuts, self.places, self.segments
        if not segments:
            raise self.closed_error()
        end_offset = self.log_end_offset
        if up_to is None or up_to > end_offset:
            up_to = end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: offset {offset} is out of range, the log has "
                f"{self.log_start_offset} to {end_offset}"
            )
        if offset >= up_to:
            return ReadResult(b"", offset)
        at = len(segments) - 1
        if offset < segments[at].base_offset:
            at = bisect_right(segments, offset, key=_base_offset) - 1
        while 0 <= at < len(segments):
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            if not wait and segment.index.columns is None:
                return None
            if following is not None and segment not in self._warm:
                self._keep_warm(segment)
            known = places.get(offset)
            if known is None or known[0] is not segment:
                place = segment.find_by_index(offset)
                known = None if place is None else (segment, place.position)
            if known is not None:
                return self._read_segment(segment, following, known[1], offset, max_bytes, up_to, wait, places)
            if following is not None:
                self._check_end(segment, following)
            at += 1  # compaction has removed the segment's records at and above the offset
        if cuts % 2 or self.cuts != cuts:
            raise self._cut_error()
        if self.segments is not segments:  # a new segment was begun after the lookup
            return self._read(offset, max_bytes, up_to, wait=wait)
        return ReadResult(b"", up_to)  # the log was cut in a gap, so the log ends above its last batch

    def _end_of(self, up_to: int, segment: LogSegment, following: int | None, places: Places) -> int:
        """Return the position of the first batch that has a record at or above ``up_to``. ``following``: the next
        segment's base offset."""
        # Read the size before the search: batches that are appended after the read of the size must not be returned.
        size = segment.size
        if following is not None and up_to >= following:
            return size
        known = places.get(up_to)
        if known is not None and known[0] is segment:
            return known[1]
        place = segment.find_by_index(up_to)
        if place is None:
            places[up_to] = segment, size
            return size
        position, header = place
        # A batch whose position is cached was appended or checked recently, so its offsets need no check.
        if places.get(header.base_offset) != (segment, position):
            after = position + header.size
            if after < segment.size:
                next_offset = segment.header_at(after).base_offset
            else:
                next_offset = self.log_end_offset if following is None else following
            if header.next_offset > next_offset:
                raise CorruptLogError(
                    f"{segment.path}, position {position}: the batch with offsets {header.base_offset} to "
                    f"{header.last_offset} overlaps the data that follow, which begin with offset {next_offset}"
                )
        return position

    def _read_segment(
        self,
        segment: LogSegment,
        following: int | None,
        position: int,
        offset: int,
        max_bytes: int,
        up_to: int,
        wait: bool,
        places: Places,
    ) -> ReadResult | None:
        known = places.get(up_to) if following is None else None
        if known is None or known[0] is not segment:
            known = segment, self._end_of(up_to, segment, following, places)
        data_end = end = known[1]
        next_offset = up_to if following is None else min(up_to, following)
        if end <= position:
            # Return no records: the batch at ``position`` does not lie below ``up_to``, or a compaction has just
            # removed all records from ``offset`` on.
            is_gap = end < segment.size and segment.header_at(end).base_offset >= up_to
            return ReadResult(b"", up_to if is_gap else offset)
        if end - position > max_bytes:
            header = segment.header_at(position)
            end, next_offset = segment.cut(Place(position, header), position + max_bytes, end, next_offset)
        read = segment.log.pread if wait else segment.log.pread_cached
        records = read(end - position, position)
        if records is None:
            return None
        if len(records) != end - position:
            raise CorruptLogError(
                f"{segment.path}: {end - position} bytes expected at position {position}, the file has only "
                f"{len(records)}"
            )
        # Get the epoch entries after the read: the log writes an epoch entry before the batches of the epoch.
        entries = self.epochs.known
        verdict = check_slice(records, offset, next_offset, entries)
        is_exact = verdict == SLICE_EXACT
        if not is_exact:
            self._check_gaps(verdict, entries, records, segment, following, position, offset, next_offset)
        # The next batch's header alone does not prove that compaction removed the offsets before the batch, so the
        # reader continues directly after the returned records.
        if not is_exact and end < data_end:
            next_offset = _end_offset(records)
        if len(places) >= PLACES_MAX:
            places.clear()
        places[next_offset] = segment, end
        return ReadResult(records, next_offset)

    def _check_gaps(
        self,
        verdict: int,
        entries: Sequence[EpochStart] | None,
        records: bytes,
        segment: LogSegment,
        following: int | None,
        position: int,
        offset: int,
        next_offset: int,
    ) -> None:
        """Raise CorruptLogError if ``verdict``, of ``check_slice``, is a fault of ``records``, which were read at
        ``position``, or if their offsets have a gap that no compaction left."""
        if verdict >= 0:
            expected = _end_offset(memoryview(records)[:verdict]) if verdict else offset
            what = slice_fault(records, verdict, expected, next_offset, entries)
            raise CorruptLogError(f"{segment.path}, position {position + verdict}, offset {expected}: {what}")
        # If the records have a gap, ``check_slice`` cannot detect whether damage has lowered the first batch's base
        # offset.
        before, first = segment.offset_before(position), read_header(records)
        if first.base_offset < before:
            raise CorruptLogError(
                f"{segment.path}, position {position}, offset {before}: a batch with offsets {first.base_offset} to "
                f"{first.last_offset} cannot follow offset {before - 1}"
            )
        if following is not None and position + len(records) == segment.size:
            self._check_end(segment, following)

    def _check_end(self, segment: LogSegment, following: int) -> None:
        """Raise MissingRecordsError if the segment ends below the base offset of the next segment, because a part of
        the file is then missing. Only Kafka's compaction may leave a gap at the end of a segment; Headrace's compaction
        keeps the last batch of a segment."""
        if self.may_have_gaps():
            return
        next_offset = segment.end_offset
        if next_offset != following:
            raise MissingRecordsError(
                f"{segment.path}, position {segment.size}, offset {next_offset}: the file ends here, the next segment "
                f"begins with offset {following}: records are missing"
            )

    # ---------------------------------------------------------------- by time

    def offset_for_timestamp(self, timestamp_ms: int, up_to: int | None = None) -> FoundTimestamp | None:
        """Find the first record below ``up_to`` with a timestamp at or after ``timestamp_ms``; None when all records
        are earlier."""
        return self._twice(lambda: self._offset_for_timestamp(timestamp_ms, up_to))

    def _offset_for_timestamp(self, timestamp_ms: int, up_to: int | None) -> FoundTimestamp | None:
        # First get the cache of batch positions: if the log is truncated during the search, the found positions must go
        # into the discarded cache.
        places, end_offset = self.places, self.log_end_offset
        up_to = end_offset if up_to is None else min(up_to, end_offset)
        segments = self.segments
        for number, segment in enumerate(segments):
            if segment.base_offset >= up_to:
                return None
            largest = segment.largest_timestamp
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if following is not None:
                self._check_end(segment, following)
            if segment.size == 0 or largest.timestamp_ms < timestamp_ms:
                continue
            if following is not None:
                self._keep_warm(segment)
            start = segment.floor(timestamp_ms)
            if segment.base_offset < self.log_start_offset:
                from_start = segment.find_or_end(self.log_start_offset)
                start = segment.size if from_start is None else max(start, from_start.position)
            for place in segment.sound_batches(start, self._end_of(up_to, segment, following, places)):
                if place.header.max_timestamp_ms >= timestamp_ms:
                    found = self._first_record(segment, following, place, timestamp_ms)
                    if found is not None:
                        return found
        return None

    def offset_of_max_timestamp(self, up_to: int | None = None) -> FoundTimestamp | None:
        """Find the first record with the largest timestamp of all records below ``up_to`` (KIP-734); None for an empty
        log."""
        return self._twice(lambda: self._offset_of_max_timestamp(up_to))

    def _offset_of_max_timestamp(self, up_to: int | None) -> FoundTimestamp | None:
        # First get the cache of batch positions: if the log is truncated during the search, the found positions must go
        # into the discarded cache.
        places, end_offset = self.places, self.log_end_offset
        up_to = end_offset if up_to is None else min(up_to, end_offset)
        segments = self.segments
        followings = [segment.base_offset for segment in segments[1:]] + [None]
        #: Heap of candidate batches, latest timestamp first: (-timestamp, index of the segment, offset, whether the
        #: search read every batch).
        candidates: list[tuple[int, int, int, bool]] = []

        def look_at_all(number: int) -> TimestampOffset:
            end = self._end_of(up_to, segments[number], followings[number], places)
            return self._largest_within(segments[number], end)

        for number, segment in enumerate(segments):
            if segment.base_offset >= up_to:
                continue
            largest, is_exact = segment.largest_timestamp, False
            if (following := followings[number]) is not None:
                self._check_end(segment, following)
            if segment.size == 0:
                continue
            if segment.base_offset < self.log_start_offset or largest.offset >= up_to:
                largest, is_exact = look_at_all(number), True
            if largest.timestamp_ms >= 0:
                heapq.heappush(candidates, (-largest.timestamp_ms, number, largest.offset, is_exact))
        while candidates:
            negative_ms, number, offset, is_exact = heapq.heappop(candidates)
            segment, following = segments[number], followings[number]
            if following is not None:
                self._keep_warm(segment)
            found = self._first_record(segment, following, segment.find(offset), -negative_ms)
            if found is not None:
                return found
            # No record has the timestamp: compaction has left only the batch's header, which keeps the timestamp of
            # removed records.
            if not is_exact and (largest := look_at_all(number)).timestamp_ms >= 0:
                heapq.heappush(candidates, (-largest.timestamp_ms, number, largest.offset, True))
        return None

    def _largest_within(self, segment: LogSegment, end: int) -> TimestampOffset:
        """Return the segment's largest timestamp among records from the log start to position ``end``."""
        start = self.log_start_offset
        largest = TimestampOffset(-1, segment.base_offset)
        first = segment.find_or_end(start)
        for place in segment.sound_batches(segment.size if first is None else first.position, end):
            header = place.header
            timestamp_ms = header.max_timestamp_ms
            if timestamp_ms <= largest.timestamp_ms or header.record_count == 0:
                continue
            # some records of the batch were deleted, perhaps the record with the largest timestamp
            if header.base_offset < start:
                records = self._records(segment, place, segment.log.pread(header.size, place.position))
                timestamp_ms = max((record.timestamp_ms for record in records), default=-1)
            if timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(timestamp_ms, header.last_offset)
        return largest

    def _first_record(
        self, segment: LogSegment, following: int | None, place: Place, timestamp_ms: int
    ) -> FoundTimestamp | None:
        position, header = place
        batch = segment.log.pread(header.size, position)
        if len(batch) != header.size:
            raise CorruptLogError(
                f"{segment.path}, position {position}, offset {header.base_offset}: the header of the batch "
                f"says {header.size} bytes, only {len(batch)} are in the file"
            )
        end = position + header.size
        if end < segment.size:
            next_offset = segment.header_at(end).base_offset
        else:
            next_offset = self.log_end_offset if following is None else following
        entries = self.epochs.known
        verdict = check_slice(batch, header.base_offset, next_offset, entries)
        if verdict != SLICE_EXACT:
            self._check_gaps(verdict, entries, batch, segment, following, position, header.base_offset, next_offset)
        for record in self._records(segment, place, batch):
            if record.timestamp_ms >= timestamp_ms:
                return FoundTimestamp(record.timestamp_ms, record.offset, header.leader_epoch)
        return None

    def _records(self, segment: LogSegment, place: Place, batch: bytes) -> list[Record]:
        """Decode a batch's records from the log start on."""
        try:
            return decode_batch(batch, start_offset=self.log_start_offset)
        except CorruptMessageError as error:
            raise CorruptLogError(
                f"{segment.path}, position {place.position}, offset {place.header.base_offset}: "
                f"{without_position(error.message)}"
            ) from error

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
            cuts, segments = self.cuts, self.segments
            found = self.read(offset, max_bytes, self.last_stable_offset(high_watermark), wait=wait)
            if found is None:
                return None
            aborted = self.aborted_transactions(offset, found.next_offset, wait=wait) if found.records else []
            if aborted is None:
                return None
            if cuts % 2 or self.cuts != cuts:
                raise self._cut_error()
            if self.segments is segments:
                return found._replace(aborted=aborted) if aborted else found

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
            segments = self.segments
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
                if self.segments is segments:
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
                segments = self.segments
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
        segments = self.segments
        if segment not in segments:
            raise FileNotFoundError(segment.path)
        return self._aborted_by_log(segments, segment)

    def replace_aborted(self, segment: LogSegment, entries: Sequence[AbortedTransaction]) -> bool:
        """Replace the transaction index of a sealed segment, whose file is damaged; False when the log no longer has
        the segment."""
        if segment not in self.segments[:-1]:
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

    # ---------------------------------------------------------------- memory of places

    def _forget_places(self) -> None:
        self.places = {}
        cold, self._warm = self._warm, ()
        sealed = self.segments[:-1]  # the cached places of active and of replaced segments stay in memory
        for segment in cold:
            if segment in sealed:
                segment.unload_indexes()

    def _keep_warm(self, segment: LogSegment) -> None:
        """Keep the indexes of a sealed segment in memory while it is one of the last few segments that were read."""
        if segment in self._warm:
            return
        segment.load_indexes()
        warm = (*self._warm, segment)
        for cold in warm[:-_WARM_SEGMENTS]:
            cold.unload_indexes()
        self._warm = warm[-_WARM_SEGMENTS:]


def _end_offset(batches: Buffer) -> int:
    end_offset = 0
    for _, header in iterate_headers(batches):
        end_offset = header.next_offset
    return end_offset


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
