"""Reading a log: by offset, by time. Everything here may run in any thread while the owner appends.

A read is one pread of exactly the bytes that go out: where the last whole batch ends is found first, by the offset
index and a short walk over headers, so that nothing is copied and then cut. Readers mostly go on where they stopped,
and consumers at the tail read what was just appended: both places are remembered, and need no lookup.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ..errors import CorruptLogError, CorruptMessageError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from ..records import Record, decode_batch, read_header
from ..types import TopicPartition
from .index import TimestampOffset
from .segment import LogSegment, Place

_PLACES_MAX = 128
#: How many sealed segments keep their indexes in memory.
_WARM_SEGMENTS = 4


class ReadResult(NamedTuple):
    """A slice of the log."""

    #: Whole batches, back to back, as they stand in the log; the first may begin below the offset asked for.
    records: bytes
    #: Where to go on.
    next_offset: int


class FoundTimestamp(NamedTuple):
    """A record found by its time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class _Places:
    """Positions of batches, by the offset that they begin with: the last ones that were read to or appended.

    Forgotten as a whole, by a new one in its place: a reader that was under way meanwhile writes into the old one.
    """

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._now: dict[int, tuple[LogSegment, int]] = {}
        self._before: dict[int, tuple[LogSegment, int]] = {}

    def put(self, offset: int, segment: LogSegment, position: int) -> None:
        if len(self._now) >= _PLACES_MAX:
            self._before, self._now = self._now, {}
        self._now[offset] = (segment, position)

    def get(self, offset: int, segment: LogSegment) -> int | None:
        found = self._now.get(offset) or self._before.get(offset)
        return found[1] if found is not None and found[0] is segment else None


class LogReader:
    """The reading half of a partition's log."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: tuple[LogSegment, ...],
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.log_start_offset = log_start_offset
        #: One past the last record that was written.
        self.log_end_offset = log_end_offset
        self._segments = segments
        self._places = _Places()
        self._warm: tuple[LogSegment, ...] = ()

    def closed_error(self) -> UnknownTopicOrPartitionError:
        """What becomes of a call to a log that was closed or deleted."""
        return UnknownTopicOrPartitionError(
            f"the log of {self.topic_partition} is closed: it was deleted, or the broker stops"
        )

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """Oldest first; the last one is the active one."""
        return self._segments

    # ---------------------------------------------------------------- by offset

    def read(self, offset: int, max_bytes: int, up_to: int | None = None, *, wait: bool = True) -> ReadResult | None:
        """Whole batches from the one that holds ``offset`` on: at most ``max_bytes`` of them, but the first one whole
        even if it is larger; none that reaches to ``up_to`` (default: the log's end) or above.

        ``wait=False`` answers None when the bytes are not in the page cache: read again, in a thread that may block.
        Raises OffsetOutOfRangeError for an offset below the log start or above the log end, CorruptLogError.
        """
        places, segments = self._places, self._segments
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
        at = bisect_right(segments, offset, key=_base_offset) - 1
        while 0 <= at < len(segments):
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            if not wait and not segment.index.is_loaded:
                return None
            self._keep_warm(segment, is_active=following is None)
            position = self._position_of(offset, segment, places)
            if position is not None:
                return self._read_segment(segment, following, position, offset, max_bytes, up_to, wait, places)
            at += 1  # nothing at or above the offset in here: the records were compacted away
        raise OffsetOutOfRangeError(f"{self.topic_partition}: the segments that held offset {offset} are gone")

    def _position_of(self, offset: int, segment: LogSegment, places: _Places) -> int | None:
        """Where the batch that holds ``offset`` starts; None when every batch of the segment ends below it."""
        position = places.get(offset, segment)
        if position is not None:
            return position
        place = segment.find_or_end(offset)
        return None if place is None else place.position

    def _end_of(self, up_to: int, segment: LogSegment, places: _Places) -> int:
        """Where the bytes end that lie wholly below ``up_to``."""
        size = segment.size  # before the search: a batch that is appended meanwhile must not count
        end = self._position_of(up_to, segment, places)
        if end is None:
            end = size
            places.put(up_to, segment, end)
        return end

    def _read_segment(
        self,
        segment: LogSegment,
        following: int | None,
        position: int,
        offset: int,
        max_bytes: int,
        up_to: int,
        wait: bool,
        places: _Places,
    ) -> ReadResult | None:
        if following is not None and up_to >= following:
            end, next_offset = segment.size, following
        else:
            end, next_offset = self._end_of(up_to, segment, places), up_to
        if end <= position:
            return ReadResult(b"", offset)
        if end - position > max_bytes:
            header = segment.header_at(position)
            end, next_offset = segment.cut(Place(position, header), position + max_bytes)
        if not wait and not segment.log.is_cached(end - position, position):
            return None
        records = segment.log.pread(end - position, position)
        self._check(records, end - position, segment, position, offset)
        places.put(next_offset, segment, end)
        return ReadResult(records, next_offset)

    def _check(self, records: bytes, size: int, segment: LogSegment, position: int, offset: int) -> None:
        if len(records) != size:
            raise CorruptLogError(
                f"{segment.path}: {size} bytes expected at position {position}, the file has only {len(records)}"
            )
        try:
            header = read_header(records)
        except CorruptMessageError as error:
            raise CorruptLogError(f"{segment.path}, position {position}: {error.message}") from error
        if header.last_offset < offset:
            raise CorruptLogError(
                f"{segment.path}, position {position}: offsets {header.base_offset} to {header.last_offset} "
                f"instead of {offset}"
            )

    # ---------------------------------------------------------------- by time

    def offset_for_timestamp(self, timestamp_ms: int, up_to: int | None = None) -> FoundTimestamp | None:
        """The first record with a timestamp at or after ``timestamp_ms``, below ``up_to``; None when there is none."""
        up_to = self.log_end_offset if up_to is None else up_to
        segments = self._segments
        for segment in segments:
            if segment.base_offset >= up_to:
                return None
            if segment.size == 0 or segment.largest_timestamp.timestamp_ms < timestamp_ms:
                continue
            self._keep_warm(segment, is_active=segment is segments[-1])
            before = segment.time_index.lookup(timestamp_ms)
            start = segment.index.lookup(max(before.offset, self.log_start_offset))
            for place in segment.places(start, segment.size):
                if place.header.base_offset >= up_to:
                    return None
                if place.header.max_timestamp_ms >= timestamp_ms and place.header.last_offset >= self.log_start_offset:
                    found = self._first_record(segment, place, timestamp_ms)
                    if found is not None:
                        return found
        return None

    def offset_of_max_timestamp(self, up_to: int | None = None) -> FoundTimestamp | None:
        """The first record that has the largest timestamp of all below ``up_to`` (KIP-734); None for an empty log."""
        up_to = self.log_end_offset if up_to is None else up_to
        best: tuple[LogSegment, TimestampOffset] | None = None
        for segment in self._segments:
            if segment.base_offset >= up_to or segment.size == 0:
                continue
            largest = segment.largest_timestamp
            if segment.base_offset < self.log_start_offset or largest.offset >= up_to:
                largest = self._largest_within(segment, up_to)
            if largest.timestamp_ms >= 0 and (best is None or largest.timestamp_ms > best[1].timestamp_ms):
                best = (segment, largest)
        if best is None:
            return None
        segment, largest = best
        self._keep_warm(segment, is_active=segment is self._segments[-1])
        return self._first_record(segment, segment.find(largest.offset), largest.timestamp_ms)

    def _largest_within(self, segment: LogSegment, up_to: int) -> TimestampOffset:
        """As the segment's largest timestamp, but only of records from the log start to below ``up_to``."""
        start = self.log_start_offset
        largest = TimestampOffset(-1, segment.base_offset)
        for place in segment.places(segment.index.lookup(start), segment.size):
            header = place.header
            if header.last_offset >= up_to:
                break
            timestamp_ms = header.max_timestamp_ms
            if header.last_offset < start or timestamp_ms <= largest.timestamp_ms:
                continue
            if header.base_offset < start:  # some of its records were deleted, perhaps the latest
                records = self._records(segment, place)
                timestamp_ms = max((record.timestamp_ms for record in records), default=-1)
            if timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(timestamp_ms, header.last_offset)
        return largest

    def _first_record(self, segment: LogSegment, place: Place, timestamp_ms: int) -> FoundTimestamp | None:
        for record in self._records(segment, place):
            if record.timestamp_ms >= timestamp_ms:
                return FoundTimestamp(record.timestamp_ms, record.offset, place.header.leader_epoch)
        return None

    def _records(self, segment: LogSegment, place: Place) -> list[Record]:
        """Of one batch, from the log start on."""
        batch = segment.log.pread(place.header.size, place.position)
        try:
            return decode_batch(batch, start_offset=self.log_start_offset)
        except CorruptMessageError as error:
            raise CorruptLogError(f"{segment.path}, position {place.position}: {error.message}") from error

    # ---------------------------------------------------------------- memory of places

    def _forget_places(self) -> None:
        self._places = _Places()

    def _keep_warm(self, segment: LogSegment, *, is_active: bool) -> None:
        """Sealed segments that are read keep their indexes loaded, but only the last few of them."""
        if is_active or segment in self._warm:
            return
        segment.load_indexes()
        warm = (*self._warm, segment)
        for cold in warm[:-_WARM_SEGMENTS]:
            cold.unload_indexes()
        self._warm = warm[-_WARM_SEGMENTS:]


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset
