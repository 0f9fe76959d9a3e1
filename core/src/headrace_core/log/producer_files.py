"""Producer snapshots of one log: when they are written, which are believed, and the table that follows from them.

``<offset>.snapshot`` holds the table before that offset. One is written at each roll, for the offset that the new
segment begins with, and one at the log's end when it is closed cleanly, as Kafka does. So whoever opens the log replays
no more than the headers of the active segment; after a clean stop, none.

    found at the start                          the table
    ----------------------------------------    ---------------------------------------------------------------
    a sound snapshot, at the end or before      the newest one, and what the batches behind it say
    snapshots, but none is sound                what all batches say
    none at all, the last stop was clean        empty: who knows a producer leaves a snapshot when it is closed
    none at all, else                           what the active segment says: nobody was known when it was begun

A log that never met a producer has no snapshots: that is why "none at all" can mean what it says. Snapshots are not
forced at a roll: each has a checksum, and a torn one only sends us to the one before it. Those above the log's end must
be gone for good before the log can grow over their offsets again. What only a snapshot tells, because the batches
before it are deleted, is forced before they are.

A control batch whose CRC is right and whose records cannot be read is as its writer made it: no damage, and the other
replicas have the same one. A leader does not take it; where it is in a log it ends no transaction, and a note says so.
(Refusing the log for it would lose the partition on all its replicas, after its torn tail was cut.)
"""

from __future__ import annotations

import contextlib
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from ..errors import CorruptLogError, CorruptMessageError, HeadraceError, InvalidRecordError, ServerBusyError
from ..records import ABORT, COMMIT, BatchHeader, decode_batch, without_position
from .files import NO_SPACE, File, FileSystem, read_file, write_file_atomically
from .producer_state import BATCHES_KEPT, SNAPSHOT_SUFFIX, ProducerBatch, ProducerEntry, ProducerTable, sequence_after
from .segment import LogSegment, segment_name

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot\Z")
_INT16 = struct.Struct(">h")
_TYPE_AT = 2
#: A marker's value: version int16, coordinator epoch int32.
_MARKER = struct.Struct(">hi")
#: How far back a producer's batches are looked for that a snapshot does not tell of.
_LOOK_BACK_BYTES = 16 * 1024 * 1024


class ProducerSnapshots:
    """The snapshot files of one log. Belongs to the log's owner."""

    def __init__(self, fs: FileSystem, directory: str, offsets: Iterable[int] = ()) -> None:
        self._fs = fs
        self._directory = directory
        self._offsets = set(offsets)
        #: Written by a process before this one: a flush of them may have failed, and another would write nothing.
        self._inherited = set(self._offsets)

    @property
    def offsets(self) -> list[int]:
        """Ascending; some may have gone with their segments."""
        return sorted(self._offsets)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"

    def is_wanted(self, table: ProducerTable, offset: int) -> bool:
        """Has the table before ``offset`` to be written?"""
        return offset not in self._offsets and bool(len(table) or self._offsets)

    def take(self, table: ProducerTable, offset: int, bases: Iterable[int]) -> None:
        """Writes the table before ``offset``, not durably, and removes those that are neither the newest nor that of a
        segment (``bases``). Raises OSError (a full disk), ServerBusyError: nothing is left of it then."""
        if not self.is_wanted(table, offset):
            return
        path = self.path(offset)
        temporary = f"{path}.tmp"
        try:
            file = self._fs.open(temporary, write=True, create=True)
            try:
                file.truncate(0)
                file.pwritev([table.snapshot()], 0)
            finally:
                file.close()
            self._fs.rename(temporary, path)
        except (OSError, HeadraceError):
            with contextlib.suppress(OSError, HeadraceError):
                self._fs.unlink(temporary)
            raise
        self.written(offset)
        for stray in self._offsets.difference(bases, (offset,)):
            self._remove(stray)

    def written(self, offset: int) -> None:
        """There is one more."""
        self._offsets.add(offset)
        self._inherited.discard(offset)

    def drop_above(self, offset: int) -> None:
        """The log is about to be cut at ``offset``: no snapshot of what lies above it is left, durably."""
        above = [found for found in self.offsets if found > offset]
        for found in reversed(above):
            self._remove(found)
        if above:
            self._fs.sync_directory(self._directory)

    def force(self, offset: int) -> None:
        """The batches before ``offset`` are about to go: what only they and the snapshots tell of producers is durable
        when this returns, for whoever reads the newest snapshot, and for whoever cuts the log. As far as the disk has
        room and descriptors are left: what makes room is not kept waiting."""
        files: list[File] = []
        try:
            for found in sorted({offset, *self.offsets[-1:]} & self._offsets):
                with contextlib.suppress(FileNotFoundError, ServerBusyError):
                    files.append(file := self._fs.open(self.path(found), write=True))
                    if found in self._inherited:  # the same bytes again: its pages are dirty now (``opening``)
                        file.pwritev([file.pread(file.size(), 0)], 0)
            self._fs.sync_files(files)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        finally:
            for file in files:
                file.close()

    def forget(self, offsets: Iterable[int]) -> None:
        """These went with their segments."""
        self._offsets.difference_update(offsets)

    def _remove(self, offset: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(self.path(offset))
        self._offsets.discard(offset)


def snapshots_in(fs: FileSystem, directory: str) -> ProducerSnapshots:
    """The snapshots that a log's directory has."""
    matches = map(_SNAPSHOT.match, fs.listdir(directory))
    return ProducerSnapshots(fs, directory, [int(match[1]) for match in matches if match])


def load_producers(
    fs: FileSystem, directory: str, segments: Sequence[LogSegment], log_end_offset: int, *, clean: bool
) -> tuple[ProducerTable, ProducerSnapshots, list[str]]:
    """The table of an opened log, by the table above; its snapshots; and what was wrong with them. ``clean``: it was
    closed cleanly. CorruptLogError: a batch that had to be read is damaged."""
    snapshots = snapshots_in(fs, directory)
    snapshots.drop_above(log_end_offset)
    return (*_believed(fs, snapshots, segments, log_end_offset, clean=clean),)


def reload_producers(
    fs: FileSystem, snapshots: ProducerSnapshots, segments: Sequence[LogSegment], log_end_offset: int
) -> ProducerTable:
    """The table of a log that was just cut. CorruptLogError."""
    table, _, _ = _believed(fs, snapshots, segments, log_end_offset, clean=False)
    return table


def _believed(
    fs: FileSystem, snapshots: ProducerSnapshots, segments: Sequence[LogSegment], log_end_offset: int, *, clean: bool
) -> tuple[ProducerTable, ProducerSnapshots, list[str]]:
    notes: list[str] = []
    unsound: list[int] = []
    table: ProducerTable | None = None
    for offset in reversed(snapshots.offsets):
        path = snapshots.path(offset)
        try:
            table = ProducerTable.from_snapshot(read_file(fs, path), path, offset)
            break
        except FileNotFoundError:
            continue
        except CorruptLogError as error:
            notes.append(f"{error.message}; the producers are taken from the log behind the snapshot before it")
            unsound.append(offset)
    if table is None:
        table = ProducerTable(next_offset=log_end_offset)
        if not unsound and clean:
            return table, snapshots, notes
        table.next_offset = segments[0].base_offset if unsound else _begin_of_active(segments)
    for offset in reversed(unsound):
        replay(table, segments, max(offset, segments[0].base_offset), notes)
        _replace(fs, snapshots, table, offset, notes)
    replay(table, segments, log_end_offset, notes)
    return table, snapshots, notes


def _begin_of_active(segments: Sequence[LogSegment]) -> int:
    """Where the active segment begins; the one before it, if nothing was written to it yet: a crash may have kept its
    name, and not that of the snapshot beside it."""
    at = len(segments) - 1
    while at and segments[at].size == 0:
        at -= 1
    return segments[at].base_offset


def _replace(
    fs: FileSystem, snapshots: ProducerSnapshots, table: ProducerTable, unsound: int, notes: list[str]
) -> None:
    """A sound snapshot for one that is not. This one tells that there were producers: it stays until the other is
    durable. Each has its own: were there but one for the log's end, a cut below it would leave none, and "none at all"
    says that nobody was known."""
    try:
        write_file_atomically(fs, snapshots.path(table.next_offset), table.snapshot())
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        notes.append(f"{snapshots.path(table.next_offset)} could not be written, the disk is full")
        return
    snapshots.written(table.next_offset)
    if unsound != table.next_offset:
        snapshots._remove(unsound)


def replay(table: ProducerTable, segments: Sequence[LogSegment], end_offset: int, notes: list[str]) -> None:
    """Tells the table of all batches from its offset on, up to this one, and ``notes`` what could not be told. Reads
    headers, and markers. CorruptLogError."""
    start = table.next_offset
    bases = [segment.base_offset for segment in segments]
    for segment in segments[max(bisect_right(bases, start) - 1, 0) : bisect_left(bases, end_offset)]:
        position = 0
        was_loaded = segment.index.is_loaded
        if segment.base_offset < start:
            place = segment.find_or_end(start)
            position = segment.size if place is None else place.position
        for at, header in segment.places(position, segment.size):
            if header.base_offset >= end_offset:
                break
            if header.producer_id >= 0:
                tell(table, header, segment, at, notes)
        if not was_loaded and segment is not segments[-1]:
            segment.unload_indexes()
    table.next_offset = end_offset


def tell(table: ProducerTable, header: BatchHeader, segment: LogSegment, position: int, notes: list[str]) -> None:
    """Tells the table of a batch in the log. CorruptLogError: a damaged marker."""
    if not header.is_control:
        table.appended(header)
        return
    where = f"{segment.path}, position {position}, offset {header.base_offset}"
    try:
        unread = tell_kept_marker(table, header, segment.log.pread(header.size, position))
    except CorruptMessageError as error:
        raise CorruptLogError(f"{where}: {without_position(error.message)}") from error
    if unread is not None:
        notes.append(f"{where}: a control batch that ends no transaction, for it was written so: {unread}")


def tell_kept_marker(table: ProducerTable, header: BatchHeader, batch: bytes | memoryview) -> str | None:
    """Tells the table of a control batch that this log has, or its leader's. Why it tells nothing, if its records
    cannot be read; see the module. CorruptMessageError: its CRC is wrong."""
    try:
        tell_marker(table, header, batch)
    except InvalidRecordError as error:
        return error.message
    return None


def tell_marker(table: ProducerTable, header: BatchHeader, batch: bytes | memoryview) -> None:
    """Tells the table of a control batch; only the end of a transaction concerns it. CorruptMessageError,
    InvalidRecordError: the table is as it was. One without records is what compaction leaves of a marker, so that its
    epoch stays known; of which coordinator it was is gone."""
    if header.record_count == 0:
        table.marker_appended(header, None)
    for record in decode_batch(batch):
        key, value = record.key or b"", record.value or b""
        if len(key) < _TYPE_AT + _INT16.size or len(value) < _MARKER.size:
            continue
        if _INT16.unpack_from(key, _TYPE_AT)[0] in (ABORT, COMMIT):
            table.marker_appended(header, _MARKER.unpack_from(value)[1])


def complete_window(entry: ProducerEntry, segments: Sequence[LogSegment]) -> None:
    """Looks up in the log the batches of a producer that come before those that its snapshot told of, so that one that
    is sent again is known. Once for each producer after a start, when something of its comes out of order. Reads
    headers, no further back than some MiB. CorruptLogError."""
    entry.is_cut_short = False
    known = entry.batches
    if not known:
        return
    budget = _LOOK_BACK_BYTES
    found: list[ProducerBatch] = []
    at = bisect_right([segment.base_offset for segment in segments], known[0].base_offset) - 1
    offset = known[0].base_offset
    while at >= 0 and budget > 0 and len(found) + len(known) < BATCHES_KEPT:
        segment = segments[at]
        place = segment.find_or_end(offset)
        end = segment.size if place is None else place.position
        segment.load_indexes()
        start = 0 if end <= budget else segment.index.entry_before(end - budget).position
        budget -= end - start
        found = [*_batches_of(entry, segment, start, end), *found]
        at -= 1
    entry.batches = (*found, *known)[-BATCHES_KEPT:]


def _batches_of(entry: ProducerEntry, segment: LogSegment, start: int, end: int) -> list[ProducerBatch]:
    found = []
    for _, header in segment.places(start, end):
        is_its = header.producer_id == entry.producer_id and header.producer_epoch == entry.epoch
        if is_its and not header.is_control:
            found.append(
                ProducerBatch(
                    sequence_after(header.base_sequence, header.last_offset_delta),
                    header.last_offset,
                    header.last_offset_delta,
                    header.max_timestamp_ms,
                )
            )
    return found
