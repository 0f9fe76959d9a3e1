"""One segment: a ``.log`` file of record batches, back to back, and its two indexes.

The writer appends; readers in any thread look up and read, always below an end that the partition's owner gave them.
The writer publishes in an order that keeps this safe without a lock: bytes first, then index entries, then ``size``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import CorruptLogError, CorruptMessageError
from ..records import HEADER_BYTES, BatchHeader, read_header
from .files import Buffer, File, FileSystem
from .index import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex, TimestampOffset

LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".log", ".index", ".timeindex"

#: What a walk over headers reads at once: a whole index interval and then some.
_WALK_BYTES = 8192
#: Blocks are reserved ahead of a segment that is being filled: as much again as it has, up to this.
_AHEAD_BYTES_MAX = 64 * 1024 * 1024
_AHEAD_FROM_BYTES = 4 * 1024 * 1024


def segment_name(base_offset: int) -> str:
    """Twenty digits, as in Kafka."""
    return f"{base_offset:020d}"


class BatchMeta(NamedTuple):
    """What a segment has to know of a batch that it is given."""

    size: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


class Place(NamedTuple):
    """A batch found in a segment."""

    position: int
    header: BatchHeader


class LogSegment:
    """Files of one segment. Made by ``create`` (new, empty) or ``attach`` (found on the disk)."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, *, index_bytes_max: int, interval_bytes: int, log: File
    ) -> None:
        path = f"{directory}/{segment_name(base_offset)}"
        self.base_offset = base_offset
        self.log = log
        self.path = path + LOG_SUFFIX
        self.index = OffsetIndex(fs, path + INDEX_SUFFIX, base_offset, index_bytes_max)
        self.time_index = TimeIndex(fs, path + TIME_INDEX_SUFFIX, base_offset, index_bytes_max)
        self.interval_bytes = interval_bytes
        #: Bytes that readers may look at.
        self.size = 0
        #: Largest timestamp, and the last offset of the batch that has it; None: not known yet (a sealed segment).
        self._largest: TimestampOffset | None = TimestampOffset(-1, base_offset)
        #: Of the first batch (its max timestamp, as in Kafka), for segment.ms; None while empty or not looked up.
        self.first_timestamp_ms: int | None = None
        self.created_ms = 0
        self._bytes_since_index = 0
        self._reserved_end = 0
        #: May blocks be reserved ahead? Not on a disk that is nearly full.
        self.reserves_ahead = True
        self._fs = fs

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        interval_bytes: int,
        now_ms: int,
        reserve_bytes: int = 0,
    ) -> LogSegment:
        """A new, empty segment; the names are durable once the caller synced the directory. OSError leaves none of its
        files."""
        log = fs.open_lazily(f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}", create=True)
        assert log.size() == 0, f"{log.path} exists and is not empty"
        segment = cls(
            fs, directory, base_offset, index_bytes_max=index_bytes_max, interval_bytes=interval_bytes, log=log
        )
        try:
            segment.index.start_empty()
            segment.time_index.start_empty()
        except OSError:
            # The owner may go on with the segment before this one: a file that claims its next offset must not stay.
            with contextlib.suppress(OSError):
                segment.delete_files()
            raise
        segment.created_ms = now_ms
        if reserve_bytes:
            log.preallocate(0, reserve_bytes)
            segment._reserved_end = reserve_bytes
        return segment

    @classmethod
    def attach(
        cls, fs: FileSystem, directory: str, base_offset: int, *, index_bytes_max: int, interval_bytes: int, now_ms: int
    ) -> LogSegment:
        """A segment found on the disk, taken to be as long as its file."""
        path = f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}"
        size = fs.file_size(path)
        log = fs.open_lazily(path)
        segment = cls(
            fs, directory, base_offset, index_bytes_max=index_bytes_max, interval_bytes=interval_bytes, log=log
        )
        segment.size = size
        segment._largest = None
        segment.created_ms = now_ms
        return segment

    # ---------------------------------------------------------------- writing (one owner)

    def fits(self, last_offset: int) -> bool:
        """Can this offset still be told relative to the base offset in 31 bits?"""
        return last_offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Writes bytes behind the published end; they exist for nobody before ``publish``. OSError leaves a part."""
        end = self.size + size
        if end > self._reserved_end and end > _AHEAD_FROM_BYTES and self.reserves_ahead:
            # Growing by whole extents spares the file system an allocation in every flush.
            ahead = max(min(_AHEAD_BYTES_MAX, self.size), size)
            self.log.preallocate(self.size, ahead)
            self._reserved_end = self.size + ahead
        self.log.pwritev(buffers, self.size)

    def publish(self, batches: Sequence[BatchMeta]) -> None:
        """The batches just written are there: indexes, then the size. The order of Kafka's LogSegment.append."""
        position = self.size
        largest = self.largest_timestamp
        since = self._bytes_since_index
        if self.first_timestamp_ms is None and self.size == 0 and batches:
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        for size, _, last_offset, max_timestamp_ms in batches:
            if max_timestamp_ms > largest.timestamp_ms:
                self._largest = largest = TimestampOffset(max_timestamp_ms, last_offset)
            if since > self.interval_bytes:
                self.index.append(last_offset, position)
                self.time_index.maybe_append(largest.timestamp_ms, largest.offset)
                since = 0
            position += size
            since += size
        self._bytes_since_index = since
        self.size = position

    def undo_write(self) -> None:
        """Removes what ``write`` left behind the published end."""
        self.log.truncate(self.size)
        self._reserved_end = 0

    def give_back(self) -> None:
        """Frees the blocks that were reserved ahead, for a disk that has become full."""
        if self._reserved_end > self.size:
            self.undo_write()

    def seal(self) -> None:
        """No more appends: the last time entry, unused space given back, everything durable."""
        largest = self.largest_timestamp
        self.time_index.maybe_append(largest.timestamp_ms, largest.offset, sealing=True)
        if self._reserved_end > self.size:
            self.log.truncate(self.size)
            self._reserved_end = 0
        self.log.sync()
        self.index.file.sync()
        self.time_index.file.sync()
        self.index.file.close()
        self.time_index.file.close()

    def truncate_to(self, place: Place | None) -> None:
        """Cuts the log before ``place`` (None: keep all), and the indexes with it."""
        if place is None:
            return
        self.index.truncate_to(place.header.base_offset)
        self.time_index.truncate_to(place.header.base_offset)
        self.size = place.position
        self.log.truncate(place.position)
        self._reserved_end = 0
        self._largest = self._walk_for_largest(self.time_index.last_entry())
        if place.position == 0:
            self.first_timestamp_ms = None
        self._bytes_since_index = place.position - self.index.last_position()

    def rebuild_indexes(self, batches: Sequence[BatchMeta]) -> None:
        """Both indexes anew from all the batches in the segment, as an appender would have written them."""
        self.index.start_empty()
        self.time_index.start_empty()
        self.size = 0
        self._bytes_since_index = 0
        self._largest = TimestampOffset(-1, self.base_offset)
        self.first_timestamp_ms = None
        self.publish(batches)
        self.write_indexes()

    def write_indexes(self) -> None:
        """Hands pending index entries to the operating system."""
        self.index.file.write()
        self.time_index.file.write()

    def resume(self) -> None:
        """Makes a segment that was attached ready for appends."""
        self._bytes_since_index = self.size - self.index.last_position()

    def close(self) -> None:
        """Completes the indexes and gives their descriptors back; the log's closes with its last reader."""
        largest = self.largest_timestamp
        self.time_index.maybe_append(largest.timestamp_ms, largest.offset, sealing=True)
        self.index.file.sync()  # a clean stop means that the next start believes them
        self.time_index.file.sync()
        if self._reserved_end > self.size:
            self.log.truncate(self.size)
            self._reserved_end = 0
        self.index.file.close()
        self.time_index.file.close()

    def delete_files(self) -> None:
        """Unlinks the files; who reads them keeps them open."""
        for path in (self.index.file.path, self.time_index.file.path, self.path):
            if self._fs.exists(path):
                self._fs.unlink(path)

    # ---------------------------------------------------------------- reading (any thread)

    def indexes_fit(self) -> bool:
        """Can the index files be those of this log file? CorruptLogError when the log itself cannot be read."""
        try:
            offsets, positions = self.index.loaded()
            timestamps, _ = self.time_index.loaded()
        except CorruptLogError:
            return False
        if self.size == 0:
            return not offsets and not timestamps
        if not timestamps:
            return False  # every closed segment with records has its largest timestamp
        if not positions:
            return True
        if positions[-1] >= self.size:
            return False
        return self.header_at(positions[-1]).last_offset == self.base_offset + offsets[-1]

    def load_indexes(self) -> None:
        """Loads the indexes of a sealed segment; when they do not fit the log, others are made in memory in their place
        (the files stay: a reader changes nothing)."""
        if self.index.is_loaded and self.time_index.is_loaded:
            return
        if self.indexes_fit():
            return
        offsets: list[tuple[int, int]] = []
        times: list[TimestampOffset] = []
        largest = TimestampOffset(-1, self.base_offset)
        for position, header in self.places(0, self.size):
            offsets.append((header.last_offset, position))
            if header.max_timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(header.max_timestamp_ms, header.last_offset)
                times.append(largest)
        self.index.keep_in_memory(offsets)
        self.time_index.keep_in_memory(times)

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the batch that holds it; (-1, base offset) when empty."""
        found = self._largest
        if found is None:
            found = self._find_largest_timestamp()
            self._largest = found
        return found

    def _find_largest_timestamp(self) -> TimestampOffset:
        # The last time entry of a segment that was sealed or closed is its largest timestamp.
        was_loaded = self.index.is_loaded
        self.load_indexes()
        largest = self.time_index.last_entry()
        if largest.timestamp_ms < 0:
            largest = self._walk_for_largest(largest)
        if not was_loaded:
            self.unload_indexes()
        return largest

    def _walk_for_largest(self, largest: TimestampOffset) -> TimestampOffset:
        """From the last time entry to the end: batches behind it may be later than it says."""
        if self.size == 0:
            return TimestampOffset(-1, self.base_offset)
        position = self.find(largest.offset).position if largest.timestamp_ms >= 0 else 0
        for place in self.places(position, self.size):
            if place.header.max_timestamp_ms > largest.timestamp_ms:
                largest = TimestampOffset(place.header.max_timestamp_ms, place.header.last_offset)
        return largest

    def first_batch_timestamp(self) -> int | None:
        """The first batch's max timestamp; None while the segment is empty."""
        if self.first_timestamp_ms is None and self.size >= HEADER_BYTES:
            self.first_timestamp_ms = self.header_at(0).max_timestamp_ms
        return self.first_timestamp_ms

    def header_at(self, position: int) -> BatchHeader:
        """CorruptLogError when no batch starts there."""
        try:
            return read_header(self.log.pread(HEADER_BYTES, position))
        except CorruptMessageError as error:
            raise CorruptLogError(f"{self.path}, position {position}: {error.message}") from error

    def find(self, offset: int, not_before: int = 0) -> Place:
        """The first batch whose last offset is ``offset`` or more; ``offset`` must lie below the segment's end."""
        position = max(self.index.lookup(offset), not_before)
        for place in self.places(position, self.size):
            if place.header.last_offset >= offset:
                return place
        raise CorruptLogError(f"{self.path}: no batch from position {position} on holds offset {offset}")

    def find_or_end(self, offset: int) -> Place | None:
        """As ``find``, but None when every batch ends below ``offset``."""
        for place in self.places(self.index.lookup(offset), self.size):
            if place.header.last_offset >= offset:
                return place
        return None

    def cut(self, place: Place, limit: int) -> tuple[int, int]:
        """Where the last whole batch before position ``limit`` ends, and the offset after it.

        ``place`` is a batch at or before it, and is kept whole even if it alone passes the limit.
        """
        position, header = place
        end, next_offset = position + header.size, header.next_offset
        if end >= limit:
            return end, next_offset
        start = self.index.position_floor(limit - 1)
        if start < end:
            start = end
        for found, header in self.places(start, limit):
            if found + header.size > limit:
                return (found, header.base_offset) if found == start else (end, next_offset)
            end, next_offset = found + header.size, header.next_offset
        return end, next_offset

    def places(self, position: int, end: int) -> _Walk:
        """Batches from ``position`` (where one starts) on that start before ``end``; headers only."""
        return _Walk(self, position, end)

    def unload_indexes(self) -> None:
        """Frees the memory of a sealed segment's indexes."""
        self.index.unload()
        self.time_index.unload()


class _Walk:
    """Iterates over headers, a few of them for each read while batches are small."""

    __slots__ = ("_chunk", "_chunk_at", "_end", "_position", "_segment")

    def __init__(self, segment: LogSegment, position: int, end: int) -> None:
        self._segment = segment
        self._position = position
        self._end = end
        self._chunk = b""
        self._chunk_at = position

    def __iter__(self) -> _Walk:
        return self

    def __next__(self) -> Place:
        position = self._position
        if position >= self._end:
            raise StopIteration
        inside = position - self._chunk_at
        if inside + HEADER_BYTES > len(self._chunk):
            self._chunk = self._segment.log.pread(_WALK_BYTES, position)
            self._chunk_at, inside = position, 0
        try:
            header = read_header(self._chunk, inside)
        except CorruptMessageError as error:
            raise CorruptLogError(f"{self._segment.path}, position {position}: {error.message}") from error
        self._position = position + header.size
        return Place(position, header)
