"""One segment: a ``.log`` file of record batches, back to back, and its indexes.

The writer appends. Readers in any thread look up and read batches, always below an end offset that the directory writer
published. The writer publishes bytes first, then ``size``, then index entries. Because entries are published after
their batches, an index entry is never visible before its batch, and no lock is needed.

An index entry is used only after a comparison with its batch. If an index entry and its batch differ, the index or the
log is damaged. To find out which of the two is damaged, the log reads the whole segment and checks every CRC. If a CRC
is wrong, CorruptLogError is raised; otherwise the indexes are rebuilt from the log, in memory.

An index entry is (last offset of a batch, position where the batch starts). A lookup may first find the batch that ends
just below the wanted offset, and skips that batch.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import CorruptLogError, CorruptMessageError, ServerBusyError
from ..records import HEADER_BYTES, BatchHeader, check_batch, read_header, without_position
from .files import Buffer, File, FileSystem, full_disk_tolerated
from .index import (
    RELATIVE_OFFSET_MAX,
    BatchMeta,
    IndexEntry,
    IndexFile,
    IndexPlan,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from .txn_index import TXN_INDEX_SUFFIX, AbortedTransaction, TransactionIndex

LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX = ".log", ".index", ".timeindex"

logger = logging.getLogger(__name__)

#: Suffix of the index names of a replaced segment. No file has the suffix ``.retired``, because the indexes of a
#: replaced segment are only in memory.
RETIRED_SUFFIX = ".retired"
_WALK_BYTES = 8192  #: Bytes that one read takes while the log walks over batch headers: more than an index interval.
_WINDOW_BYTES = 1024 * 1024  #: Bytes that one read takes while the log walks over whole batches.
#: Maximum number of bytes reserved ahead of a growing segment; for a smaller segment, the limit is the segment's size.
_AHEAD_BYTES_MAX = 64 * 1024 * 1024
AHEAD_FROM_BYTES = 4 * 1024 * 1024
#: Readers compute values (a largest timestamp, rebuilt indexes) and store the values in a segment; a truncation
#: discards the values. A reader holds ``_NOTING`` while it stores values, and a truncation holds ``_NOTING`` while it
#: discards values. All segments share one lock, because threads hold the lock only briefly.
_NOTING = threading.Lock()


def segment_name(base_offset: int) -> str:
    """Return the file name of a segment without suffix: the base offset as twenty digits, as in Kafka."""
    return f"{base_offset:020d}"


class Place(NamedTuple):
    """Position and header of a batch in a segment."""

    position: int
    header: BatchHeader


class IndexMismatchError(CorruptLogError):
    """An index contradicts its log: one of the two is damaged."""


class Cut(NamedTuple):
    """Where to truncate a segment: before the batch at ``place`` (None: keep all batches), so that the segment ends at
    ``end_offset``. ``end_offset`` is below the requested offset if the requested offset is inside a batch or in a
    compaction gap."""

    place: Place | None
    end_offset: int


class LogSegment:
    """The files of one segment. ``create`` makes a new, empty segment; ``attach`` opens a segment found on the disk."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, *, index_bytes_max: int, interval_bytes: int, log: File
    ) -> None:
        path = f"{directory}/{segment_name(base_offset)}"
        self.base_offset = base_offset
        self.log = log
        self.path = path + LOG_SUFFIX
        self.index = OffsetIndex(fs, path + INDEX_SUFFIX, base_offset, index_bytes_max)
        self.time_index = TimeIndex(fs, path + TIME_INDEX_SUFFIX, base_offset, index_bytes_max)
        self.txn_index = TransactionIndex(fs, path + TXN_INDEX_SUFFIX, base_offset)
        self.interval_bytes = interval_bytes
        self.size = 0  #: Number of bytes of the segment's published batches.
        #: The segment's largest timestamp, with the last offset of its batch; None until the first lookup.
        self._largest: TimestampOffset | None = TimestampOffset(-1, base_offset)
        #: Max timestamp of the segment's first batch, for segment.ms as in Kafka; None for an empty segment and before
        #: the first lookup.
        self.first_timestamp_ms: int | None = None
        self.created_ms = 0
        #: Description of a fault in the index files; None if no fault was found, or after the files were rebuilt.
        self.index_fault: str | None = None
        #: (size of the segment, offset after its last batch at this size); None before the first lookup.
        self._end: tuple[int, int] | None = None
        #: Whether the time index is known to match the log; True unless the index was loaded from its file and not
        #: checked.
        self._times_checked = True
        #: Whether the segment was written or truncated since it was opened, or since its indexes were last completed.
        self._is_changed = False
        self._bytes_since_index = 0
        self._reserved_end = 0
        #: Whether the segment may reserve blocks ahead; False on a disk that is nearly full.
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
        file: str | None = None,
    ) -> LogSegment:
        """Create an empty segment; the file names are durable once the caller has synced the directory. After an
        OSError of ``create``, no file of the segment is left. ``file``: path of an existing empty file that is renamed
        to the segment's log file, for a log that must get a new segment. With ``file``, a lack of disk space or
        descriptors for the index files is ignored, and the next start creates the index files."""
        if file is not None:
            fs.rename(file, f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}")
        log = fs.open_lazily(f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}", create=True)
        assert log.size() == 0, f"{log.path} exists and is not empty"
        segment = cls(
            fs, directory, base_offset, index_bytes_max=index_bytes_max, interval_bytes=interval_bytes, log=log
        )
        try:
            for index in (segment.index, segment.time_index):
                with _shortages_tolerated() if file is not None else contextlib.nullcontext():
                    index.create()
        except (OSError, ServerBusyError):
            # Remove the new segment's files, because the log may continue in the previous segment and grow beyond the
            # new segment's base offset.
            with contextlib.suppress(OSError, ServerBusyError):
                segment.delete_files()
            raise
        segment.created_ms = now_ms
        if reserve_bytes:
            log.preallocate(0, reserve_bytes)
            segment._reserved_end = reserve_bytes
        return segment

    @classmethod
    def attach(
        cls,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        interval_bytes: int,
        now_ms: int,
        has_txn_index: bool,
    ) -> LogSegment:
        """Open a segment found on the disk; its size is assumed to be that of its file."""
        path = f"{directory}/{segment_name(base_offset)}{LOG_SUFFIX}"
        size = fs.file_size(path)
        log = fs.open_lazily(path)
        segment = cls(
            fs, directory, base_offset, index_bytes_max=index_bytes_max, interval_bytes=interval_bytes, log=log
        )
        segment.size = size
        segment._largest = None
        segment._times_checked = False
        segment.created_ms = now_ms
        if has_txn_index:
            segment.txn_index.attach()
        return segment

    # ---------------------------------------------------------------- writing (one owner)

    def fits(self, last_offset: int) -> bool:
        """Whether ``last_offset`` fits into 31 bits relative to the segment's base offset."""
        return last_offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def has_room(self, last_offset: int = 0) -> bool:
        """Whether the indexes take a batch that ends with ``last_offset``."""
        offsets, times = self.index, self.time_index
        return (
            last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and len((offsets.columns or offsets.loaded())[0]) < offsets.full_at
            and len((times.columns or times.loaded())[0]) < times.full_at
        )

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Write bytes after the published end; readers see the bytes only after ``publish``. After an OSError a part of
        the bytes may be written; after other errors no byte is written."""
        # ``publish`` needs the largest timestamp. Look up the largest timestamp before the write, because the lookup
        # raises an error if the log is damaged.
        if self._largest is None:
            _ = self.largest_timestamp
        end = self.size + size
        if end > self._reserved_end and end > AHEAD_FROM_BYTES and self.reserves_ahead:
            # Reserve large blocks ahead, because a file system that must allocate space in every flush is slower.
            ahead = max(min(_AHEAD_BYTES_MAX, self.size), size)
            self.log.preallocate(self.size, ahead)
            self._reserved_end = self.size + ahead
        self.log.pwritev(buffers, self.size)

    def publish(self, batches: Sequence[BatchMeta]) -> None:
        """Make the written batches visible to readers: first the size, then the index entries that Kafka's
        LogSegment.append would write."""
        self._is_changed = True
        position = self.size
        largest = self._largest or self.largest_timestamp
        since = self._bytes_since_index
        entries: list[tuple[int, int, TimestampOffset]] = []
        if self.first_timestamp_ms is None and self.size == 0 and batches and batches[0].max_timestamp_ms >= 0:
            # Without first_timestamp_ms, a later lookup must read the header of the segment's first batch.
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        for size, _, last_offset, max_timestamp_ms in batches:
            if max_timestamp_ms > largest.timestamp_ms:
                self._largest = largest = TimestampOffset(max_timestamp_ms, last_offset)
            if since > self.interval_bytes:
                entries.append((last_offset, position, largest))
                since = 0
            position += size
            since += size
        self._bytes_since_index = since
        self.size = position
        if entries:
            self._add_entries(entries)

    def _add_entries(self, entries: Iterable[tuple[int, int, TimestampOffset]]) -> None:
        for last_offset, position, latest in entries:
            self.index.append(last_offset, position)
            self.time_index.maybe_append(latest.timestamp_ms, latest.offset)

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Index aborted transactions whose markers are about to be published."""
        for transaction in aborted:
            self.txn_index.append(transaction)

    def undo_write(self) -> None:
        """Remove bytes that a failed ``write`` left after the published end."""
        self.log.truncate(self.size)
        self._reserved_end = 0

    def give_back(self) -> None:
        """Free the blocks reserved ahead, when the disk is full."""
        if self._reserved_end > self.size:
            self.undo_write()

    def write_last_entries(self) -> None:
        """Write all pending index entries before a segment is sealed."""
        self._complete(sealing=True)
        self.write_indexes()

    def seal(self) -> None:
        """End the appends to the segment: write the last time index entry, free unused blocks, make log and indexes
        durable."""
        self._complete(sealing=True)
        self._sync([self.log, *self.begin_close()])

    def truncate_to(self, place: Place | None) -> None:
        """Truncate the segment's log, offset index and time index before ``place`` (None: keep all batches)."""
        if place is None:
            return
        self._is_changed = True
        self._check_times()
        with _NOTING:  # take the lock, so that a reader that rebuilt the indexes does not restore removed entries
            self.index.truncate_to(place.header.base_offset)
            self.time_index.truncate_to(place.header.base_offset)
            self.size = place.position
        self.log.truncate(place.position)
        self._end = None
        self._reserved_end = 0
        self._largest = self._walk_for_largest(self.time_index.last_entry())
        if place.position == 0:
            self.first_timestamp_ms = None
        self._bytes_since_index = place.position - self.index.last_position()

    def plan_indexes(self) -> IndexPlan:
        """Return an empty plan for ``rebuild_indexes``."""
        return IndexPlan(self.base_offset, self.interval_bytes, self.index.entries_max)

    def rebuild_indexes(self, plan: IndexPlan) -> None:
        """Rebuild the offset and the time index from a plan that has all batches of the segment, with the entries that
        appends would have written."""
        self.index.start_empty()
        self.time_index.start_empty()
        self._is_changed = True
        self._largest, self.first_timestamp_ms = plan.largest, plan.first_timestamp_ms
        self._bytes_since_index, self.size = plan.since, plan.size
        self._add_entries(plan.entries())
        with full_disk_tolerated():  # on a full disk, the entries stay in memory until the disk has room
            self.write_indexes()
        self.index_fault = None
        self._times_checked = True

    def write_indexes(self) -> None:
        """Write pending index entries to the operating system."""
        for file in self._index_files():
            file.write()

    def begin_empty(self) -> bool:
        """Prepare an attached, empty segment for appends without opening its files; returns False, without a change,
        when the index files are not empty."""
        for index in (self.index, self.time_index):
            with contextlib.suppress(FileNotFoundError):
                if self._fs.file_size(index.file.path):
                    return False
        if not self.txn_index.is_empty:
            return False
        self.index.begin_empty()
        self.time_index.begin_empty()
        self._largest = TimestampOffset(-1, self.base_offset)
        self._times_checked = True
        return True

    def resume(self) -> None:
        """Prepare a segment that was opened from its files for appends."""
        self._bytes_since_index = self.size - self.index.last_position()

    def close(self) -> None:
        """Complete and sync the indexes; descriptors close with the last reader. ``close`` has no effect on a segment
        without changes."""
        self._sync(self.begin_close())

    def begin_close(self) -> list[File]:
        """First half of ``close``, for callers that close several segments together: returns the files to sync before
        ``end_close``. After a clean stop the next start trusts the synced indexes."""
        if self._is_changed or self._reserved_end > self.size:
            self._complete()
        begun = (self.index.file.begin_sync(), self.time_index.file.begin_sync(), self.txn_index.begin_sync())
        return [file for file in begun if file is not None]

    def end_close(self, *, durable: bool) -> None:
        """Record whether the sync after ``begin_close`` succeeded."""
        for file in self._index_files():
            file.end_sync(durable=durable)

    def _complete(self, *, sealing: bool = False) -> None:
        largest = self.largest_timestamp
        if sealing and largest.timestamp_ms < 0 and self.size and not self.header_at(0).record_count:
            # Compaction has left only headers of batches, but a sealed segment needs an entry in its time index.
            for place in self.places(0, self.size):
                self.time_index.maybe_append(place.header.max_timestamp_ms, place.header.last_offset, sealing=True)
        self.time_index.maybe_append(largest.timestamp_ms, largest.offset, sealing=True)
        if self._reserved_end > self.size:
            self.log.truncate(self.size)
            self._reserved_end = 0
        self._is_changed = False

    def _sync(self, files: Sequence[File]) -> None:
        durable = False
        try:
            self._fs.sync_files(files)
            durable = True
        finally:
            self.end_close(durable=durable)

    def delete_files(self) -> None:
        """Unlink the segment's files without writing to the files, because the disk may be full. Readers of unlinked
        files keep the files open."""
        self.close_indexes()
        for path in (*(file.path for file in self._index_files()), self.path):
            if self._fs.exists(path):
                self._fs.unlink(path)

    def close_indexes(self) -> None:
        """Drop pending index entries, because the index files are being removed."""
        for file in self._index_files():
            file.close()

    def rename_indexes(self, suffix: str) -> None:
        """Append ``suffix`` to the paths of the index files."""
        for file in self._index_files():
            file.path += suffix

    def _index_files(self) -> tuple[IndexFile, IndexFile, IndexFile]:
        return self.index.file, self.time_index.file, self.txn_index.file

    # ---------------------------------------------------------------- reading (any thread)

    def indexes_fit(self) -> bool:
        """Whether the index files can belong to the segment's log; compares the last entry of the offset index with the
        batch that the entry names."""
        return self._what_does_not_fit() is None

    def _what_does_not_fit(self) -> str | None:
        try:
            offsets, positions = self.index.loaded()
            timestamps, _ = self.time_index.loaded()
            if self.size == 0 and (offsets or timestamps):
                return f"{self.path} is empty, but its indexes are not"
            if positions:
                last = IndexEntry(positions[-1], self.base_offset + offsets[-1])
                for place in self._walk_from(last, self.size):
                    if place.header.last_offset >= last.last_offset:
                        break
        except CorruptLogError as error:
            return error.message
        return None

    def _check_times(self) -> None:
        """Check once after each load that the time index ends with the largest timestamp."""
        size = self.size  # read the size first: a concurrent append marks the index as checked before it publishes
        self.load_indexes()
        if self._times_checked:
            return
        try:
            last = self.time_index.last_entry()
            start = self._time_place(*self.time_index.entries_around(last.timestamp_ms))
            for position, header in self.places(start, size):
                # A batch that compaction has emptied keeps its max timestamp but gets no time index entry.
                if header.max_timestamp_ms > last.timestamp_ms and header.record_count:
                    raise IndexMismatchError(
                        f"{self.time_index.file.path} ends with timestamp {last.timestamp_ms}, but the batch at "
                        f"position {position} has {header.max_timestamp_ms}"
                    )
        except CorruptLogError as error:
            self.distrust_indexes(error.message)
        self._times_checked = True

    def load_indexes(self) -> None:
        """Load a sealed segment's indexes. If the indexes contradict the log, the indexes are rebuilt in memory; a
        reader never changes the files. Raises CorruptLogError when the log is damaged."""
        if self.index.columns is not None and self.time_index.columns is not None:
            return
        self._times_checked = False
        fault = self._what_does_not_fit()
        if fault is not None:
            self.distrust_indexes(fault)

    def distrust_indexes(self, why: str) -> None:
        """Read every batch to decide whether the log or the indexes are damaged. Raises CorruptLogError if the log is
        damaged; if only the indexes are damaged, the indexes are rebuilt in memory."""
        offsets: list[tuple[int, int]] = []
        times: list[TimestampOffset] = []
        largest = TimestampOffset(-1, self.base_offset)
        size = self.size
        for position, header in self.sound_batches(0, size):
            offsets.append((header.last_offset, position))
            if header.max_timestamp_ms > largest.timestamp_ms and header.record_count:
                largest = TimestampOffset(header.max_timestamp_ms, header.last_offset)
                times.append(largest)
        with _NOTING:
            # If the segment is shorter now, it was truncated during the check: the bytes that were read are gone, and
            # the directory writer writes the indexes.
            if self.size < size:
                raise IndexMismatchError(why)
            self.index.keep_in_memory(offsets)
            self.time_index.keep_in_memory(times)
        if not self.index.file.path.endswith(RETIRED_SUFFIX):
            if self.index_fault is None:
                logger.error("%s. The log is intact, so the index is damaged: rebuilding it in memory", why)
            self.index_fault = why

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """The segment's largest timestamp, with the last offset of its batch; (-1, base offset) when the segment is
        empty."""
        found = self._largest
        if found is None:
            looked_up = self._find_largest_timestamp()
            # If the directory writer stored a timestamp during the search, keep that timestamp, because it also covers
            # batches appended since.
            with _NOTING:
                found = self._largest
                if found is None:
                    found = self._largest = looked_up
        return found

    def _find_largest_timestamp(self) -> TimestampOffset:
        # In a sealed or closed segment, the last time index entry has the largest timestamp.
        was_loaded = self.index.columns is not None
        self._check_times()
        largest = self.time_index.last_entry()
        if largest.timestamp_ms < 0:
            largest = self._walk_for_largest(largest)
        size = self.size
        self._end = size, self.offset_before(size)
        if not was_loaded:
            self.unload_indexes()
        return largest

    @property
    def end_offset(self) -> int:
        """The offset after the last batch, for a segment that gets no more appends."""
        found, size = self._end, self.size
        if found is None or found[0] != size:
            found = self._end = size, self.offset_before(size)
        return found[1]

    def _walk_for_largest(self, largest: TimestampOffset) -> TimestampOffset:
        """Find the largest timestamp: walk over headers from the last time index entry to the end, because later
        batches may have larger timestamps."""
        if self.size == 0:
            return TimestampOffset(-1, self.base_offset)
        position = self.find(largest.offset).position if largest.timestamp_ms >= 0 else 0
        for place in self.places(position, self.size):
            if place.header.max_timestamp_ms > largest.timestamp_ms and place.header.record_count:
                largest = TimestampOffset(place.header.max_timestamp_ms, place.header.last_offset)
        return largest

    def first_batch_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch; None while the segment is empty."""
        if self.first_timestamp_ms is None and self.size >= HEADER_BYTES:
            self.first_timestamp_ms = self.header_at(0).max_timestamp_ms
        return self.first_timestamp_ms

    def header_at(self, position: int) -> BatchHeader:
        """Read the batch header at ``position``; CorruptLogError when no batch starts there."""
        try:
            return read_header(self.log.pread(HEADER_BYTES, position))
        except CorruptMessageError as error:
            raise CorruptLogError(f"{self.path}, position {position}: {without_position(error.message)}") from error

    def find(self, offset: int) -> Place:
        """Find the first batch whose last offset is ``offset`` or more; ``offset`` must be below the segment's end
        offset."""
        place = self.find_or_end(offset)
        if place is None:
            raise CorruptLogError(f"{self.path}: the segment has no batch with offset {offset} or a higher one")
        return place

    def find_or_end(self, offset: int) -> Place | None:
        """Find a batch like ``find``, but return None when every batch ends below ``offset``."""
        self.load_indexes()
        try:
            return self.find_by_index(offset)
        except IndexMismatchError as mismatch:
            self.distrust_indexes(mismatch.message)
            return self.find_by_index(offset)

    def where_to_cut(self, offset: int, next_offset: int) -> Cut:
        """Return where to truncate the segment so that no record at or above ``offset`` stays. ``next_offset``: the
        base offset of the next segment, or the log end offset. A truncation cannot be undone, so the last kept and the
        first removed batch are checked first. The checks verify the CRCs of the two batches, and compare their base
        offsets (which no CRC covers) with the neighbouring batches. Raises CorruptLogError if a check fails."""
        self._check_times()  # check the indexes before the cut, which needs them and must not fail halfway
        try:
            return self._cut_by_index(offset, next_offset)
        except IndexMismatchError as mismatch:
            self.distrust_indexes(mismatch.message)
            return self._cut_by_index(offset, next_offset)

    def _cut_by_index(self, offset: int, next_offset: int) -> Cut:
        last = first_gone = None
        follows = next_offset
        for place in self._walk_from(self.index.entry_below(offset - 1), self.size):
            if first_gone is not None:
                follows = place.header.base_offset
                break
            if place.header.last_offset >= offset:
                first_gone = place
            else:
                last = place
        for relied_on in (last, first_gone):
            if relied_on is not None:
                self._check_sound(relied_on)
        end = last.header.next_offset if last is not None else self.base_offset
        behind = first_gone.header.next_offset if first_gone is not None else end
        if behind > follows:
            raise CorruptLogError(
                f"{self.path}: cannot truncate at offset {offset}: the batch with this offset ends at {behind}, but "
                f"the next batch begins at {follows}"
            )
        return Cut(first_gone, end)

    def _check_sound(self, place: Place) -> None:
        try:
            check_batch(self.log.pread(place.header.size, place.position), 0)
        except CorruptMessageError as error:
            raise CorruptLogError(
                f"{self.path}, position {place.position}, offset {place.header.base_offset}: "
                f"{without_position(error.message)}"
            ) from error

    def find_by_index(self, offset: int) -> Place | None:
        """Find a batch like ``find_or_end``, but raise IndexMismatchError when the index contradicts the log, because
        rebuilding the index takes long."""
        for place in self._walk_from(self.index.entry_below(offset), self.size):
            if place.header.last_offset >= offset:
                return place
        return None

    def floor(self, timestamp_ms: int) -> int:
        """Return a position such that no record before the position has a timestamp of ``timestamp_ms`` or later."""
        self._check_times()
        try:
            return self._time_place(*self.time_index.entries_around(timestamp_ms))
        except IndexMismatchError as mismatch:
            self.distrust_indexes(mismatch.message)
            return self._time_place(*self.time_index.entries_around(timestamp_ms))

    def _time_place(self, before: TimestampOffset, entry: TimestampOffset) -> int:
        """Return the position of the batch that a time index entry names. The named batch is the first batch with the
        entry's timestamp, after batches with earlier timestamps only. All batches from the entry ``before`` on are
        checked."""
        if entry.timestamp_ms < 0:
            return 0
        path = self.time_index.file.path
        for position, header in self._walk_from(self.index.entry_below(before.offset), self.size):
            if header.last_offset < entry.offset:
                if header.max_timestamp_ms >= entry.timestamp_ms and header.record_count:
                    raise IndexMismatchError(
                        f"{path}: records before offset {entry.offset} must have timestamps below "
                        f"{entry.timestamp_ms}, but the batch at position {position} has {header.max_timestamp_ms}"
                    )
            elif header.base_offset <= entry.offset and header.max_timestamp_ms == entry.timestamp_ms:
                return position
            else:
                break
        raise IndexMismatchError(f"{path}: no batch with offset {entry.offset} has timestamp {entry.timestamp_ms}")

    def offset_before(self, position: int) -> int:
        """Return the offset after the batch that ends at ``position``; the segment's base offset for position 0."""
        if position == 0:
            return self.base_offset
        self.load_indexes()
        try:
            return self._offset_before(position)
        except IndexMismatchError as mismatch:
            self.distrust_indexes(mismatch.message)
            return self._offset_before(position)

    def _offset_before(self, position: int) -> int:
        next_offset = self.base_offset
        for place in self._walk_from(self.index.entry_before(position - 1), position):
            next_offset = place.header.next_offset
        return next_offset

    def cut(self, place: Place, limit: int, end: int, end_offset: int) -> tuple[int, int]:
        """Find the position where the last whole batch before position ``limit`` ends, and the base offset of the next
        batch. The available batches end at position ``end``, beyond ``limit``, and the batch after ``end`` begins with
        ``end_offset``. The batch at ``place`` is kept whole even if this batch alone exceeds the limit of bytes."""
        position, header = place
        after = position + header.size
        if after > end:
            raise CorruptLogError(
                f"{self.path}, position {position}, offset {header.base_offset}: the header of the batch "
                f"says {header.size} bytes, only {end - position} are in the file"
            )
        if after < limit:
            entry = self.index.entry_before(limit)
            if entry.position < after:
                entry = IndexEntry(after, -1)
            for found, header in self._walk_from(entry, limit + 1):
                after = found
                if found + header.size > limit:
                    return found, header.base_offset
            after += header.size
        return (after, self.header_at(after).base_offset) if after < end else (end, end_offset)

    def sound_batches(self, position: int, end: int) -> Iterator[Place]:
        """Iterate over the batches that start between ``position`` and ``end``, and check each CRC; raises
        CorruptLogError for a damaged batch."""
        next_offset = self.base_offset
        window, window_at = b"", position
        while position < end:
            try:
                inside = position - window_at
                if inside + HEADER_BYTES > len(window):
                    window, window_at, inside = self.log.pread(_WINDOW_BYTES, position), position, 0
                header = read_header(window, inside)
                if header.size > end - position:
                    raise CorruptMessageError(
                        f"the header of the batch says {header.size} bytes, only {end - position} are in the file"
                    )
                if inside + header.size > len(window):
                    window = self.log.pread(max(_WINDOW_BYTES, header.size), position)
                    window_at, inside = position, 0
                check_batch(window, inside)
            except CorruptMessageError as error:
                raise CorruptLogError(
                    f"{self.path}, position {position}, offset {next_offset}: {without_position(error.message)}"
                ) from error
            if header.base_offset < next_offset or not self.fits(header.last_offset):
                raise _cannot_follow(self.path, position, header, next_offset)
            yield Place(position, header)
            next_offset = header.next_offset
            position += header.size

    def _walk_from(self, entry: IndexEntry, end: int) -> BatchWalk:
        return BatchWalk(self, entry.position, end, indexed_offset=entry.last_offset)

    def places(self, position: int, end: int) -> BatchWalk:
        """Iterate over the headers of the batches that start between ``position`` (where a batch begins) and
        ``end``."""
        return BatchWalk(self, position, end)

    def unload_indexes(self) -> None:
        """Free the memory of a sealed segment's indexes."""
        self.index.unload()
        self.time_index.unload()
        self.txn_index.unload()


class BatchWalk:
    """Iterates over batch headers; one read gets several headers while batches are small. Raises CorruptLogError where
    batches are out of order. Raises IndexMismatchError where the first batch ends above ``indexed_offset`` (-1:
    unknown), or no batch has ``indexed_offset`` as its last offset."""

    __slots__ = ("_chunk", "_chunk_at", "_end", "_indexed_offset", "_next_offset", "_position", "_segment")

    def __init__(self, segment: LogSegment, position: int, end: int, *, indexed_offset: int = -1) -> None:
        self._segment = segment
        self._position = position
        self._end = end
        self._chunk = b""
        self._chunk_at = position
        self._next_offset = segment.base_offset
        self._indexed_offset = indexed_offset

    def __iter__(self) -> BatchWalk:
        return self

    def __next__(self) -> Place:
        position = self._position
        if position >= self._end:
            if self._indexed_offset >= 0 and position >= self._segment.size:
                raise self._mismatch(f"the log file has only {self._segment.size} bytes")
            raise StopIteration
        inside = position - self._chunk_at
        if inside + HEADER_BYTES > len(self._chunk):
            self._chunk = self._segment.log.pread(_WALK_BYTES, position)
            self._chunk_at, inside = position, 0
        try:
            header = read_header(self._chunk, inside)
        except CorruptMessageError as error:
            if self._indexed_offset >= 0:
                raise self._mismatch(error.message) from error
            raise CorruptLogError(
                f"{self._segment.path}, position {position}, offset {self._next_offset}: "
                f"{without_position(error.message)}"
            ) from error
        if self._indexed_offset >= 0:
            if header.last_offset > self._indexed_offset:
                raise self._mismatch(
                    f"the batch at this position has offsets {header.base_offset} to {header.last_offset}"
                )
            # A batch may end below the indexed offset: Kafka up to 3.9 writes one entry for several batches that it
            # appends together (on followers, and in compaction). Kafka's index entry for several batches has the
            # position of the first batch and the last offset of the last batch.
            if header.last_offset == self._indexed_offset:
                self._indexed_offset = -1
        if header.base_offset < self._next_offset or not self._segment.fits(header.last_offset):
            raise _cannot_follow(self._segment.path, position, header, self._next_offset)
        self._next_offset = header.next_offset
        self._position = position + header.size
        if self._position > self._segment.size:
            raise CorruptLogError(
                f"{self._segment.path}, position {position}, offset {header.base_offset}: the header of the "
                f"batch says {header.size} bytes, only {self._segment.size - position} are in the file"
            )
        return Place(position, header)

    def _mismatch(self, what: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"{self._segment.index.file.path}: the batch that ends with offset {self._indexed_offset} should lie at "
            f"position {self._position} of the log, but {what}"
        )


@contextlib.contextmanager
def _shortages_tolerated() -> Iterator[None]:
    """Ignore a full disk, and a lack of file descriptors."""
    with full_disk_tolerated(), contextlib.suppress(ServerBusyError):
        yield


def _cannot_follow(path: str, position: int, header: BatchHeader, next_offset: int) -> CorruptLogError:
    """Return the error for a batch whose offsets do not follow the previous batch."""
    return CorruptLogError(
        f"{path}, position {position}, offset {next_offset}: a batch with offsets {header.base_offset} to "
        f"{header.last_offset} cannot follow offset {next_offset - 1}"
    )


def show_compaction(segments: Iterable[LogSegment]) -> bool:
    """Whether compaction left a gap between or inside batches of the segments. ``show_compaction`` walks over headers
    up to the first gap. Raises CorruptLogError. (Gaps are possible because a topic may have been compacted before its
    policy changed, or before its files were copied to this broker.)"""
    for segment in segments:
        next_offset = segment.base_offset
        for _, header in segment.places(0, segment.size):
            if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
                return True
            next_offset = header.next_offset
    return False
