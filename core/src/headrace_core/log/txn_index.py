"""The transaction index of a segment: the aborted transactions whose ABORT markers lie in it; Kafka's .txnindex file.

A read_committed reader skips aborted transactions by the entries of the index (KIP-98). Each entry of the index has 34
bytes, big-endian, as in Kafka. The entries are in the order of the markers:

    int16  version, 0
    int64  producer id
    int64  first offset           of the transaction's first record in this partition
    int64  last offset            of its ABORT marker
    int64  last stable offset     after the marker: start of the first transaction that is still open, else marker + 1

The file of a transaction index exists only if the index has entries. An empty file is the trace of a rebuild that
failed, and is reported as damaged. Memory holds the bytes of the file; the bytes of a sealed segment's file are loaded
on first use.

A damaged transaction index is rebuilt from the log's segments (``producer_files.aborted_by_segment``). A *missing*
transaction index file says that the index has no entry. Because a missing file means no entry, the file is durable,
with its name, before a segment is sealed or cleanly closed. An unclean start rebuilds the transaction indexes of all
segments that it scans.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import CorruptLogError
from .files import NO_SPACE, Buffer, File, FileSystem
from .index import STORING, IndexFile

TXN_INDEX_SUFFIX = ".txnindex"
ABORTED_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18


class AbortedTransaction(NamedTuple):
    """``first_offset``: offset of the transaction's first record; ``last_offset``: offset of its ABORT marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int = -1  #: Last stable offset after the transaction's marker; -1 if it is unknown.


class TransactionIndex:
    """One segment's index. The log's owner changes the index; readers in any thread search it."""

    def __init__(self, fs: FileSystem, path: str, base_offset: int) -> None:
        self.file = IndexFile(fs, path, ABORTED_ENTRY.size)
        self._fs = fs
        self._base_offset = base_offset
        #: All entries of the transaction index; None if the entries are only in the file.
        self._data: bytes | bytearray | None = b""
        self._changes = 0
        #: Whether the file, together with its pending entries, has the same entries as ``_data``.
        self._is_file_sound = True
        self._is_name_durable = True
        self._is_pinned = False
        #: Bounds of the entries, as (``changes`` when the bounds were computed, lowest first offset, highest last
        #: stable offset); None before the first use.
        self._bounds: tuple[int, int, int] | None = None

    def attach(self) -> None:
        """Use the transaction index file that exists on the disk."""
        self._data = None

    @property
    def is_empty(self) -> bool:
        """Whether the index is known to have no entry. Reads no file."""
        return self._data is not None and not self._data

    @property
    def loaded(self) -> Buffer | None:
        """All entries of the index, if they are in memory; else None. Reads no file."""
        return self._data

    def load(self) -> Buffer:
        """All entries of the index, read from the file unless they are in memory. Any thread. Raises CorruptLogError;
        FileNotFoundError when the file is gone (it existed when the log was opened)."""
        while (data := self._data) is None:
            changes = self._changes
            found = self.file.read()
            check_entries(found, self.file.path, self._base_offset)
            self._store_read(found, changes)
        return data

    def concerns(self, end: int) -> bool:
        """Whether a search that ends at ``end`` must look at the entries: False if no transaction of the index begins
        below ``end`` and no entry ends the search. The result is True until the entries have been in memory once. Any
        thread."""
        bounds, changes = self._bounds, self._changes
        if bounds is None or bounds[0] != changes:
            data = self._data
            if not data:
                return data is None
            bounds = self._bounds = _bounds(data, changes)
        return bounds[1] < end or bounds[2] >= end

    @property
    def changes(self) -> int:
        """Number of changes by the log's owner so far, for ``keep_in_memory``."""
        return self._changes

    def keep_in_memory(self, data: Buffer, changes: int) -> None:
        """Keep the given entries in memory; they were read from the file or the log after ``changes`` was read. The
        file stays unchanged. The call has no effect if the log's owner has changed the index since ``changes`` was
        read. Any thread."""
        self._store_read(data, changes, is_file_sound=False)

    def _store_read(self, data: Buffer, changes: int, *, is_file_sound: bool = True) -> None:
        with STORING:
            if self._data is None and self._changes == changes:
                self._data, self._is_file_sound = bytes(data), is_file_sound
                if data:
                    self._bounds = _bounds(data, changes)
                if is_file_sound:
                    self.file.has(len(data))

    def unload(self) -> None:
        """Free the entries of a sealed segment, if the file has all of them; the next use loads them."""
        with STORING:
            if self._data and self._is_file_sound and self.file.is_written and not self._is_pinned:
                self._data = None

    def pin(self) -> None:
        """Load the entries and keep the entries in memory, because the file is about to become the file of another
        segment."""
        self._is_pinned = True
        self.load()

    # ---------------------------------------------------------------- changes (the log's owner)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an entry to the index of the active segment."""
        data, entry = self.load(), pack_entries([aborted])
        self._changes += 1
        if not data:
            self._is_name_durable = False
        if isinstance(data, bytearray):
            data += entry
        else:
            self._data = bytearray(bytes(data) + entry)
        self.file.append(entry)

    def doubt(self) -> None:
        """Create a durable, empty file if the index has no file, before a rebuild. An empty file counts as damaged, a
        missing file says that there are no entries."""
        if self.is_empty:
            self.file.replace(b"")
            self._sync_name()
            self.attach()

    def replace(self, entries: Iterable[AbortedTransaction]) -> bool:
        """Replace all entries. The entries, and the name of the file, are durable when ``replace`` returns True. After
        a crash the file has the old entries, no entries, or the new entries. Returns False on a full disk: the entries
        are in memory, and the file is empty and counts as damaged until the entries are written. Raises OSError."""
        return self._replace(pack_entries(entries))

    def _replace(self, data: bytes) -> bool:
        self._store(data)
        self._is_file_sound = self._is_name_durable = False
        if not data:
            self.file.remove()
            self._sync_name()
            self._is_file_sound = True
            return True
        self.file.replace(b"")
        self._sync_name()
        self.file.append(data)
        self._is_file_sound = True  # the file is sound together with its pending entries
        try:
            self.file.write()
            self.file.sync()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        return True

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of markers at and above ``offset``, and repair a damaged file, because the segment is
        about to become the active one. The caller of ``truncate_to`` has loaded the entries."""
        data = self.load()
        count = _first_from(data, offset)
        if count * ABORTED_ENTRY.size == len(data) and self._is_file_sound:
            return
        kept = bytes(data[: count * ABORTED_ENTRY.size])
        if count and self._is_file_sound:
            self._store(kept)
            self.file.truncate(count)
        else:
            self._replace(kept)

    def _store(self, data: bytes) -> None:
        with STORING:
            self._changes += 1
            self._data = data

    def begin_sync(self) -> File | None:
        """Begin a sync as ``IndexFile.begin_sync`` does; the file's name is durable when the method returns."""
        file = self.file.begin_sync()
        if not self._is_name_durable:
            self._sync_name()
        return file

    def _sync_name(self) -> None:
        self._fs.sync_directory(self.file.path.rpartition("/")[0])
        self._is_name_durable = True


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join([ABORTED_ENTRY.pack(_VERSION, *entry) for entry in entries])


def check_entries(data: Buffer, path: str, base_offset: int) -> None:
    """Raise CorruptLogError, with file and entry, unless ``data`` are the bytes of a transaction index."""
    if not data:
        raise CorruptLogError(f"{path}: the file is empty")
    if len(data) % ABORTED_ENTRY.size:
        raise CorruptLogError(f"{path}: {len(data)} bytes are not a whole number of {ABORTED_ENTRY.size}-byte entries")
    before = base_offset - 1
    for number, (version, producer_id, first, last, stable) in enumerate(ABORTED_ENTRY.iter_unpack(data)):
        what = None
        if version != _VERSION:
            what = f"version {version}; only {_VERSION} is understood"
        elif last <= before:
            what = f"last offset {last}, not above {before}"
        elif not (producer_id >= 0 and 0 <= first < last and 0 <= stable <= last + 1):
            what = f"producer {producer_id}, offsets {first} to {last}, last stable offset {stable}: impossible"
        if what is not None:
            raise CorruptLogError(f"{path}, position {number * ABORTED_ENTRY.size}: entry {number} has {what}")
        before = last


def read_entries(data: Buffer) -> list[AbortedTransaction]:
    """The entries of a sound transaction index file."""
    return [AbortedTransaction(*values) for _, *values in ABORTED_ENTRY.iter_unpack(data)]


def _bounds(data: Buffer, changes: int) -> tuple[int, int, int]:
    entries = read_entries(data)
    lowest = min(entry.first_offset for entry in entries)
    return changes, lowest, max(entry.last_stable_offset for entry in entries)


def overlapping(data: Buffer, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
    """The entries of transactions with records in [start, end), and whether no later segment can have an entry of a
    transaction in that range. (Kafka's TransactionIndex.collectAbortedTxns.)"""
    found = []
    for number in range(_first_from(data, start), len(data) // ABORTED_ENTRY.size):
        _, *values = ABORTED_ENTRY.unpack_from(data, number * ABORTED_ENTRY.size)
        entry = AbortedTransaction(*values)
        if entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            return found, True
    return found, False


def _first_from(data: Buffer, offset: int) -> int:
    """Number of the first entry whose marker is at or above ``offset``."""

    def last_offset(number: int) -> int:
        found: int = _LAST_OFFSET.unpack_from(data, number * ABORTED_ENTRY.size + _LAST_OFFSET_AT)[0]
        return found

    return bisect_left(range(len(data) // ABORTED_ENTRY.size), offset, key=last_offset)
