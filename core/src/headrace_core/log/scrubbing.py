"""Check a whole segment for damage while its log is served: the part of scrubbing that reads the files.

``scrub_segment`` checks a whole segment, in windows of about 256 KiB, with the checks of a read (framing, CRC,
consecutive offsets, leader epochs). ``scrub_segment`` checks each entry of a sealed segment's index files, too.
``scrub_segment`` changes no file and keeps at most one window in memory. If a window was not in the page cache before,
``scrub_segment`` evicts the window from the page cache after the check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..errors import CorruptLogError, CorruptMessageError
from ..records import (
    ABORT,
    check_slice,
    decode_batch,
    iterate_headers,
    read_header,
    slice_fault,
    whole_batches_end,
)
from .files import FileSystem, read_file, write_file_atomically
from .index import OFFSET_ENTRY, TIME_ENTRY, parse_offset_entries, parse_time_entries
from .partition_log import PartitionLog
from .segment import RETIRED_SUFFIX, LogSegment, Place
from .txn_index import AbortedTransaction, check_entries, read_entries

WINDOW_BYTES = 256 * 1024
_OFFSET_MAX = 2**63 - 1


class Scrubbed(NamedTuple):
    """Bytes read of a segment, and the faults of its indexes (None: the indexes are sound)."""

    size: int
    index_fault: str | None = None
    txn_index_fault: str | None = None


def scrub_segment(
    fs: FileSystem,
    log: PartitionLog,
    segment: LogSegment,
    *,
    spend: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> Scrubbed:
    """Read all written bytes of ``segment``; ``spend(bytes)`` waits to limit the rate. Raises OSError. Raises
    CorruptLogError when a second read shows the damage again, and the segment was not replaced or truncated between the
    two reads."""
    cuts = log.cuts  # read this count first: a truncation changes what the following lines read
    segments = log.segments
    at = segments.index(segment) if segment in segments else len(segments)
    following = segments[at + 1].base_offset if at + 1 < len(segments) else None
    size = segment.size
    position, next_offset = 0, segment.base_offset
    indexes = _IndexesBeside(fs, segment) if following is not None else None
    has_markers = False
    while position < size and not should_stop():
        spend(min(WINDOW_BYTES, size - position))
        try:
            data = _window(log, segment, position, size, next_offset)
        except CorruptLogError:
            try:
                data = _window(log, segment, position, size, next_offset)
            except CorruptLogError:
                if segment not in log.segments or cuts % 2 or log.cuts != cuts:
                    return Scrubbed(position, None)
                raise
        for found, header in iterate_headers(data):
            if indexes is not None:
                indexes.follow(Place(position + found, header))
            has_markers |= header.is_control
            next_offset = header.next_offset
        position += len(data)
    if position < size:
        return Scrubbed(position, None)
    is_gap = following is not None and next_offset != following and segment in log.segments
    if is_gap and not log.may_have_gaps() and not log.was_compacted():
        raise CorruptLogError(
            f"{segment.path}, position {size}, offset {next_offset}: records are missing, because the file ends here "
            f"and the next segment begins with offset {following}"
        )
    if indexes is None:
        return Scrubbed(size)
    may_have_aborted = has_markers or not segment.txn_index.is_empty
    txn_index_fault = _txn_index_fault(fs, log, segment) if may_have_aborted else None
    return Scrubbed(size, indexes.ended(), txn_index_fault if segment in log.segments else None)


def _window(log: PartitionLog, segment: LogSegment, position: int, size: int, next_offset: int) -> memoryview:
    """Read whole batches from ``position`` on, up to one window; raises CorruptLogError for damaged batches."""
    wanted = min(WINDOW_BYTES, size - position)
    was_cached = segment.log.is_cached(wanted, position)
    try:
        data = segment.log.pread(wanted, position)
        end = whole_batches_end(data)
        if end == 0:
            wanted = min(read_header(data).size, size - position)
            data = segment.log.pread(wanted, position)
            end = wanted
        if len(data) != wanted:
            raise CorruptMessageError(f"the file has only {position + len(data)} of its {size} bytes")
        verdict = check_slice(memoryview(data)[:end], next_offset, _OFFSET_MAX, log.epochs.known)
        first = read_header(data)
        if verdict < 0 and first.base_offset < next_offset:
            verdict = 0
        if verdict >= 0:
            expected = next_offset
            for _, header in iterate_headers(memoryview(data)[:verdict]):
                expected = header.next_offset
            what = slice_fault(data, verdict, expected, _OFFSET_MAX, log.epochs.known)
            raise CorruptLogError(f"{segment.path}, position {position + verdict}, offset {expected}: {what}")
        return memoryview(data)[:end]
    except CorruptMessageError as error:
        raise CorruptLogError(f"{segment.path}, position {position}, offset {next_offset}: {error.message}") from error
    finally:
        if not was_cached:
            forget = getattr(segment.log, "drop_cache", None)  # a hint that not every file supports
            if forget is not None:
                forget(wanted, position)


class _IndexesBeside:
    """Compares a sealed segment's index files with its batches."""

    def __init__(self, fs: FileSystem, segment: LogSegment) -> None:
        self._path = segment.index.file.path
        self._time_path = segment.time_index.file.path
        self._base_offset = segment.base_offset
        self._fault: str | None = None
        self._latest_ms = self._last_entry_ms = -1
        self._is_retired = self._path.endswith(RETIRED_SUFFIX)
        try:
            offsets, positions = parse_offset_entries(read_file(fs, self._path), self._path)
            timestamps, time_offsets = parse_time_entries(read_file(fs, self._time_path), self._time_path)
        except FileNotFoundError as error:
            self._fault = f"{error.filename or self._path}: the index is missing"
            offsets = positions = timestamps = time_offsets = ()  # type: ignore[assignment]
        except CorruptLogError as error:
            self._fault = error.message
            offsets = positions = timestamps = time_offsets = ()  # type: ignore[assignment]
        self._offsets = zip(positions, offsets, strict=True)
        self._times = zip(time_offsets, timestamps, strict=True)
        self._next_offset_entry = next(self._offsets, None)
        self._next_time_entry = next(self._times, None)

    def follow(self, place: Place) -> None:
        position, header = place
        entry = self._next_offset_entry
        if entry is not None and entry[0] <= position:
            if entry != (position, header.last_offset - self._base_offset):
                self._blame(
                    f"{self._path}: offset {self._base_offset + entry[1]} should end a batch at position {entry[0]}, "
                    f"but the batch at {position} ends with {header.last_offset}"
                )
            self._next_offset_entry = next(self._offsets, None)
        time_entry = self._next_time_entry
        if time_entry is not None and self._base_offset + time_entry[0] <= header.last_offset:
            if header.max_timestamp_ms != time_entry[1] or self._latest_ms >= time_entry[1]:
                self._blame(
                    f"{self._time_path}: timestamp {time_entry[1]} should first occur at offset "
                    f"{self._base_offset + time_entry[0]}, whose batch has {header.max_timestamp_ms}"
                )
            self._last_entry_ms = time_entry[1]
            self._next_time_entry = next(self._times, None)
        if header.record_count:  # skip batches that compaction has emptied: they have the times of removed records
            self._latest_ms = max(self._latest_ms, header.max_timestamp_ms)

    def ended(self) -> str | None:
        """Finish the comparison; returns the fault of the index files, or None."""
        if self._next_offset_entry is not None or self._next_time_entry is not None:
            self._blame(f"{self._path}: this index, or the time index beside it, has entries beyond the log's end")
        elif self._last_entry_ms < self._latest_ms:
            self._blame(
                f"{self._time_path}: ends with {self._last_entry_ms}, but the log's largest timestamp is "
                f"{self._latest_ms}"
            )
        return None if self._is_retired else self._fault

    def _blame(self, fault: str) -> None:
        self._fault = self._fault or fault


def _txn_index_fault(fs: FileSystem, log: PartitionLog, segment: LogSegment) -> str | None:
    """Compare a sealed segment's transaction index file with the log. An entry's first offset and last stable offset
    may be lower than the offsets that the log shows now. Compaction or a deletion may have removed a transaction's
    first records."""
    path = segment.txn_index.file.path
    found: dict[int, AbortedTransaction] = {}
    try:
        data = read_file(fs, path)
        check_entries(data, path, segment.base_offset)
        found = {entry.last_offset: entry for entry in read_entries(data)}
    except FileNotFoundError:
        pass  # a file that is missing has no entries
    except CorruptLogError as error:
        return error.message
    expected = log.aborted_by_log(segment)
    if list(found.values()) == expected:
        return None
    has_gaps = log.may_have_gaps() or log.was_compacted()
    for entry in expected:
        known = found.pop(entry.last_offset, None)
        if known is None and has_gaps and entry.first_offset < segment.base_offset:
            continue  # compaction may have removed the transaction's data and its index entry
        if (
            known is None
            or known.producer_id != entry.producer_id
            or known.first_offset > entry.first_offset
            or known.last_stable_offset > entry.last_stable_offset
        ):
            return f"{path}: the log has the aborted transaction {tuple(entry)}, the index has {known and tuple(known)}"
    for known in found.values():
        if not _has_abort_marker(segment, known):
            return f"{path}: the log has no ABORT marker of the entry {tuple(known)}"
    return None


def _has_abort_marker(segment: LogSegment, entry: AbortedTransaction) -> bool:
    place = segment.find_or_end(entry.last_offset)
    if place is None or place.header.producer_id != entry.producer_id or not place.header.is_control:
        return False
    records = decode_batch(segment.log.pread(place.header.size, place.position))
    key = (records[0].key or b"") if records else b""
    return not records or int.from_bytes(key[2:4], "big") == ABORT


def index_files(segment: LogSegment) -> tuple[bytes, bytes]:
    """Return the correct contents of a sealed segment's index files: an entry for every ``interval_bytes`` of its log,
    as appends write the entries. Reads every batch, and raises CorruptLogError for a damaged batch."""
    offsets, times = bytearray(), bytearray()
    latest_ms, latest_offset, indexed_ms, since = -1, segment.base_offset, -1, 0
    for place in segment.sound_batches(0, segment.size):
        position, header = place
        relative = header.last_offset - segment.base_offset
        if header.record_count and header.max_timestamp_ms > latest_ms:
            latest_ms, latest_offset = header.max_timestamp_ms, relative
        if since > segment.interval_bytes and len(offsets) // OFFSET_ENTRY.size < segment.index.entries_max:
            offsets += OFFSET_ENTRY.pack(relative, position)
            if latest_ms > indexed_ms and len(times) // TIME_ENTRY.size < segment.time_index.entries_max - 1:
                times += TIME_ENTRY.pack(latest_ms, latest_offset)
                indexed_ms = latest_ms
            since = 0
        since += header.size
    if latest_ms > indexed_ms:
        times += TIME_ENTRY.pack(latest_ms, latest_offset)
    return bytes(offsets), bytes(times)


def replace_index_files(fs: FileSystem, log: PartitionLog, segment: LogSegment, files: tuple[bytes, bytes]) -> bool:
    """Replace a sealed segment's index files; False when the log no longer has the segment. Call
    ``replace_index_files`` through ``DirectoryWriter.run``."""
    if segment not in log.segments[:-1]:
        return False
    write_file_atomically(fs, segment.index.file.path, files[0])
    write_file_atomically(fs, segment.time_index.file.path, files[1])
    segment.unload_indexes()
    segment.index_fault = None
    return True
