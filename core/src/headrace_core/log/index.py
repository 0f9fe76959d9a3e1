"""The two sparse indexes of a segment, in Kafka's file format.

    .index      relative offset u32, position u32     (8 bytes)
    .timeindex  timestamp i64, relative offset u32    (12 bytes)

All fields are big-endian; offsets are relative to the segment's base offset.

* An offset entry is (last offset of a batch, position where the batch starts). The index has about one entry for every
  ``index.interval.bytes`` of the log. ``entry_below(offset)`` gives a position at or before the batch that contains the
  offset.
* A time entry is (largest timestamp so far, last offset of the batch that has this timestamp). A time entry is written
  with an offset entry, and when the segment is sealed, but only if the largest timestamp has grown since the last time
  entry. Therefore the last time entry of a sealed segment has the segment's largest timestamp.

In memory, the entries are in two arrays that only grow while the segment is written. Other threads may therefore search
an index at any time. A load or a truncation replaces both arrays together. Entries are written to the file in groups. A
crash may lose the last index entries but no record, because an index can be rebuilt from the log. The arrays of a
sealed segment are loaded on first use.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import CorruptLogError, ServerBusyError
from ..records import BatchHeader
from .files import File, FileSystem, full_disk_tolerated, read_file

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qI")
RELATIVE_OFFSET_MAX = 2**31 - 1
#: Number of index entries collected in memory before a write, because each write opens the file. After a crash, the
#: next start rebuilds lost index entries.
_ENTRIES_PER_WRITE = 256
#: Lock for the entries of all indexes: a reader takes it to store loaded entries, and the directory writer takes it to
#: replace entries.
STORING = threading.Lock()


class TimestampOffset(NamedTuple):
    """An entry of a time index: a timestamp (-1: none), and the last offset of the batch that has this timestamp as its
    largest."""

    timestamp_ms: int
    offset: int


class IndexEntry(NamedTuple):
    """An entry of an offset index: a batch's position and its last offset. (0, -1) means the start of the segment: no
    entry is at or below the wanted offset."""

    position: int
    last_offset: int


class BatchMeta(NamedTuple):
    """The properties of an appended batch that a segment records in its indexes and totals."""

    size: int
    base_offset: int
    last_offset: int
    #: Largest timestamp of the batch's records; -1 when compaction has removed all records, although the header keeps a
    #: timestamp.
    max_timestamp_ms: int

    @classmethod
    def of(cls, header: BatchHeader) -> BatchMeta:
        """Make a BatchMeta from the header of a batch in a log, on this broker or on the leader."""
        latest_ms = header.max_timestamp_ms if header.record_count else -1
        return cls(header.size, header.base_offset, header.last_offset, latest_ms)


_PLAN_FIELDS = 4  #: Numbers of one entry in an IndexPlan.


class IndexPlan:
    """The index entries that appends of a segment's batches would write, collected batch by batch (Kafka's
    LogSegment.append). The entries need little memory; a segment of small batches may have ten million batches."""

    __slots__ = ("_entries", "_entries_max", "_interval_bytes", "first_timestamp_ms", "largest", "since", "size")

    def __init__(self, base_offset: int, interval_bytes: int, entries_max: int) -> None:
        self._interval_bytes = interval_bytes
        self._entries_max = entries_max
        self._entries = array("q")
        self.size = 0  #: Bytes of all batches.
        self.since = 0  #: Bytes from the batch of the last entry on.
        self.largest = TimestampOffset(-1, base_offset)
        self.first_timestamp_ms: int | None = None

    def add(self, batch: BatchMeta) -> None:
        size, _, last_offset, max_timestamp_ms = batch
        if max_timestamp_ms > self.largest.timestamp_ms:
            self.largest = TimestampOffset(max_timestamp_ms, last_offset)
        if self.size == 0 and max_timestamp_ms >= 0:
            self.first_timestamp_ms = max_timestamp_ms
        if self.since > self._interval_bytes:
            if len(self._entries) < _PLAN_FIELDS * self._entries_max:
                self._entries.extend((last_offset, self.size, *self.largest))
            self.since = 0
        self.size += size
        self.since += size

    def entries(self) -> Iterator[tuple[int, int, TimestampOffset]]:
        """(last offset of a batch, its position, largest timestamp up to the batch) of each entry."""
        values = iter(self._entries)
        for last_offset, position, timestamp_ms, offset in zip(*[values] * _PLAN_FIELDS, strict=True):
            yield last_offset, position, TimestampOffset(timestamp_ms, offset)


class IndexFile:
    """The file of an index, to which entries are written in groups. The file is open only during a write or a sync, so
    an idle partition holds no descriptors for its indexes. A clean stop syncs only index files that have changed."""

    __slots__ = ("_entry_bytes", "_fs", "_pending", "_size", "_syncing", "_unsynced", "path")

    def __init__(self, fs: FileSystem, path: str, entry_bytes: int) -> None:
        self.path = path
        self._fs = fs
        self._entry_bytes = entry_bytes
        self._size = 0
        self._pending: bytearray | None = None
        #: Whether this process has changed the index file since its last sync. Earlier changes do not count: a clean
        #: stop synced them, and after a crash the start rebuilds the index.
        self._unsynced = False
        self._syncing: File | None = None

    def read(self) -> bytes:
        """Read the file. Any thread may call ``read``. Raises FileNotFoundError."""
        return read_file(self._fs, self.path)

    def has(self, size: int) -> None:
        """Record the size of the index file, after a reader has loaded the entries from it."""
        self._size = size

    def append(self, entry: bytes) -> None:
        pending = self._pending
        if pending is None:
            pending = self._pending = bytearray()
        pending += entry
        if len(pending) >= _ENTRIES_PER_WRITE * self._entry_bytes:
            # If the disk is full or no descriptor is free, keep the entry in memory: the batch is in the log already.
            with full_disk_tolerated(), contextlib.suppress(ServerBusyError):
                self.write()

    @property
    def is_written(self) -> bool:
        """Whether all entries of the index are written to the file."""
        return not self._pending

    def write(self) -> None:
        """Write pending entries to the operating system."""
        if self._pending:
            self._change(self._write_pending)

    def _write_pending(self, file: File) -> None:
        if self._pending:
            file.pwritev([bytes(self._pending)], self._size)
            self._size += len(self._pending)
            self._pending = None

    def replace(self, data: bytes) -> None:
        """Replace the file's contents."""
        self._pending = None

        def rewrite(file: File) -> None:
            file.truncate(0)
            if data:
                file.pwritev([data], 0)

        self._change(rewrite)
        self._size = len(data)

    def truncate(self, entries: int) -> None:
        size = entries * self._entry_bytes
        if size >= self._size:
            if self._pending is not None:
                del self._pending[size - self._size :]
            return
        self._pending = None
        self._change(lambda file: file.truncate(size))
        self._size = size

    def create(self) -> None:
        """Create the index file, empty; if a file with this name exists, empty it."""
        file = self._open()
        try:
            if file.size():
                self._unsynced = True
                file.truncate(0)
        finally:
            file.close()
        self._pending, self._size = None, 0

    def remove(self) -> None:
        """Remove the file, if there is one; the caller syncs the directory."""
        self._pending, self._size, self._unsynced = None, 0, False
        if self._fs.exists(self.path):
            self._fs.unlink(self.path)

    def sync(self) -> None:
        """Make all bytes of the file durable, also bytes that an earlier process wrote."""
        file = self.begin_sync()
        if file is None:
            return
        durable = False
        try:
            file.sync()
            durable = True
        finally:
            self.end_sync(durable=durable)

    def begin_sync(self) -> File | None:
        """Write all pending entries and return the file, for a caller that syncs several files together and then calls
        ``end_sync``. Returns None if the file is unchanged since its last sync."""
        if not self._unsynced and not self._pending:
            return None
        file = self._syncing = self._open()
        self._unsynced = True
        self._write_pending(file)
        return file

    def end_sync(self, *, durable: bool) -> None:
        """Record whether the sync after ``begin_sync`` succeeded."""
        if self._syncing is not None:
            self._syncing.close()
            self._syncing = None
            self._unsynced = not durable

    def close(self) -> None:
        """Drop pending entries. After ``close``, do not use the index file, because another file may get its name."""
        self._pending = None

    def _change(self, change: Callable[[File], None]) -> None:
        self._unsynced = True
        file = self._open()
        try:
            change(file)
        finally:
            file.close()

    def _open(self) -> File:
        return self._fs.open(self.path, write=True, create=True)


_NO_ENTRY = IndexEntry(0, -1)


class _SparseIndex:
    """Base class of offset index and time index: two columns in memory, loaded on first use, and the index file."""

    _entry: struct.Struct
    _column_types: tuple[str, str]
    _kept_for_seal = 0  #: Number of an index's last entries that are reserved for a call with ``sealing``, as in Kafka.

    def __init__(self, fs: FileSystem, path: str, base_offset: int, size_max_bytes: int) -> None:
        self.base_offset = base_offset
        self.entries_max = size_max_bytes // self._entry.size
        #: Number of entries after which the segment is sealed.
        self.full_at = self.entries_max - self._kept_for_seal
        self.file = IndexFile(fs, path, self._entry.size)
        self.columns: tuple[array[int], array[int]] | None = None  #: None until ``loaded``.
        self._changes = 0  #: Number of times that the entries were replaced, so that no reader stores older entries.

    @staticmethod
    def _parse(data: bytes, path: str) -> tuple[array[int], array[int]]:
        raise NotImplementedError

    def create(self) -> None:
        self.begin_empty()
        self.file.create()

    def begin_empty(self) -> None:
        """Start with no entries, for a file that is known to be empty."""
        first, second = self._column_types
        self._store((array(first), array(second)))

    def _store(self, entries: tuple[array[int], array[int]]) -> None:
        with STORING:
            self._changes += 1
            self.columns = entries

    def start_empty(self) -> None:
        """Start a rebuild."""
        self.begin_empty()
        self.file.replace(b"")

    def loaded(self) -> tuple[array[int], array[int]]:
        """Return the columns; reads the file if the columns are not loaded. Raises CorruptLogError for a file that is
        not an index."""
        while (entries := self.columns) is None:
            changes = self._changes
            try:
                data = self.file.read()
            except FileNotFoundError:
                data = b""
            entries = self._parse(data, self.file.path)
            with STORING:
                if self.columns is None and self._changes == changes:
                    self.columns = entries
                    self.file.has(len(data))
        return entries

    def unload(self) -> None:
        """Free the columns of a sealed segment; the next use of the index loads them."""
        self.columns = None

    def __len__(self) -> int:
        return len(self.loaded()[0])

    @property
    def is_full(self) -> bool:
        return len(self) >= self.full_at


class OffsetIndex(_SparseIndex):
    """Index from offsets to positions, as columns of relative offsets and positions. ``size_max_bytes``:
    ``segment.index.bytes``."""

    _entry = OFFSET_ENTRY
    _column_types = ("I", "I")

    @staticmethod
    def _parse(data: bytes, path: str) -> tuple[array[int], array[int]]:
        return parse_offset_entries(data, path)

    def keep_in_memory(self, entries: list[tuple[int, int]]) -> None:
        """Use the given (offset, position) entries in place of a damaged index file, which stays unchanged."""
        offsets = array("I", [offset - self.base_offset for offset, _ in entries])
        self._store((offsets, array("I", [position for _, position in entries])))

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batch at ``position`` has the last offset ``offset``. ``append`` has no effect when the
        index is full."""
        offsets, positions = self.loaded()
        relative = offset - self.base_offset
        if len(offsets) >= self.entries_max:
            return
        assert 0 <= relative <= RELATIVE_OFFSET_MAX, f"{self.file.path}: offset {offset} is out of the segment's range"
        assert not offsets or relative > offsets[-1], f"{self.file.path}: offset {offset} is not above the last entry"
        # Append the position before the offset: a concurrent reader searches the offsets, then takes the position.
        positions.append(position)
        offsets.append(relative)
        self.file.append(OFFSET_ENTRY.pack(relative, position))

    def truncate_to(self, offset: int) -> None:
        offsets, positions = self.loaded()
        keep = bisect_right(offsets, offset - 1 - self.base_offset) if offset > self.base_offset else 0
        self._store((offsets[:keep], positions[:keep]))
        self.file.truncate(keep)

    def entry_below(self, offset: int) -> IndexEntry:
        """Return the last entry at or below ``offset``, not compared with the log; (0, -1) if all entries are above
        ``offset``."""
        offsets, positions = self.loaded()
        found = bisect_right(offsets, offset - self.base_offset) - 1 if offset >= self.base_offset else -1
        return IndexEntry(positions[found], self.base_offset + offsets[found]) if found >= 0 else _NO_ENTRY

    def entry_before(self, position: int) -> IndexEntry:
        """Return the last entry at or below ``position``."""
        offsets, positions = self.loaded()
        # Ignore a position that has no offset yet: the writer appends the position first.
        found = bisect_right(positions, position, 0, len(offsets)) - 1
        return IndexEntry(positions[found], self.base_offset + offsets[found]) if found >= 0 else _NO_ENTRY

    def last_position(self) -> int:
        positions = self.loaded()[1]
        return positions[-1] if positions else 0


class TimeIndex(_SparseIndex):
    """Index from timestamps to offsets, as columns of timestamps and relative offsets."""

    _entry = TIME_ENTRY
    _column_types = ("q", "I")
    _kept_for_seal = 1

    @staticmethod
    def _parse(data: bytes, path: str) -> tuple[array[int], array[int]]:
        return parse_time_entries(data, path)

    def keep_in_memory(self, entries: list[TimestampOffset]) -> None:
        """Use the given entries in place of a damaged index file, which stays unchanged."""
        timestamps = array("q", [entry.timestamp_ms for entry in entries])
        self._store((timestamps, array("I", [entry.offset - self.base_offset for entry in entries])))

    def maybe_append(self, timestamp_ms: int, offset: int, *, sealing: bool = False) -> None:
        """Add an entry if its timestamp is larger than the timestamp of the last entry. The last free entry of the
        index is kept for ``sealing``."""
        timestamps, offsets = self.loaded()
        if timestamp_ms < 0 or (timestamps and timestamp_ms <= timestamps[-1]):
            return
        if len(timestamps) >= (self.entries_max if sealing else self.full_at):
            return
        relative = offset - self.base_offset
        assert 0 <= relative <= RELATIVE_OFFSET_MAX, f"{self.file.path}: offset {offset} is out of the segment's range"
        offsets.append(relative)
        timestamps.append(timestamp_ms)
        self.file.append(TIME_ENTRY.pack(timestamp_ms, relative))

    def truncate_to(self, offset: int) -> None:
        timestamps, offsets = self.loaded()
        keep = bisect_right(offsets, offset - 1 - self.base_offset) if offset > self.base_offset else 0
        self._store((timestamps[:keep], offsets[:keep]))
        self.file.truncate(keep)

    def entries_around(self, timestamp_ms: int) -> tuple[TimestampOffset, TimestampOffset]:
        """Return a pair of neighbouring entries, of which the second is the last entry at or below ``timestamp_ms``. A
        missing entry is returned as (-1, base offset)."""
        timestamps, offsets = self.loaded()
        found = bisect_right(timestamps, timestamp_ms) - 1
        none = TimestampOffset(-1, self.base_offset)
        if found < 0:
            return none, none
        before = TimestampOffset(timestamps[found - 1], self.base_offset + offsets[found - 1]) if found else none
        return before, TimestampOffset(timestamps[found], self.base_offset + offsets[found])

    def last_entry(self) -> TimestampOffset:
        """Return the last entry; (-1, base offset) when the index is empty."""
        timestamps, offsets = self.loaded()
        if not timestamps:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(timestamps[-1], self.base_offset + offsets[-1])


def parse_offset_entries(data: bytes, path: str) -> tuple[array[int], array[int]]:
    """Parse an offset index file to (relative offsets, positions); CorruptLogError names the file and the entry."""
    if len(data) % OFFSET_ENTRY.size:
        raise CorruptLogError(f"{path}: {len(data)} bytes are not a whole number of {OFFSET_ENTRY.size}-byte entries")
    flat = array("I", data)
    if sys.byteorder == "little":
        flat.byteswap()
    offsets, positions = flat[0::2], flat[1::2]
    _check_ascending(offsets, "offset", path)
    _check_ascending(positions, "position", path)
    return offsets, positions


def parse_time_entries(data: bytes, path: str) -> tuple[array[int], array[int]]:
    """Parse a time index file to (timestamps, relative offsets); CorruptLogError names the file and the entry."""
    if len(data) % TIME_ENTRY.size:
        raise CorruptLogError(f"{path}: {len(data)} bytes are not a whole number of {TIME_ENTRY.size}-byte entries")
    timestamps, offsets = array("q"), array("I")
    for timestamp_ms, offset in TIME_ENTRY.iter_unpack(data):
        timestamps.append(timestamp_ms)
        offsets.append(offset)
    _check_ascending(timestamps, "timestamp", path)
    _check_ascending(offsets, "offset", path)
    return timestamps, offsets


def _check_ascending(values: array[int], what: str, path: str) -> None:
    if not any(map(operator.le, values[1:], values)):
        return
    for number in range(1, len(values)):
        if values[number] <= values[number - 1]:
            raise CorruptLogError(
                f"{path}: entry {number} has {what} {values[number]}, which must be above {values[number - 1]}, the "
                "value of the entry before"
            )
