"""Producer snapshots of one log: when to write a snapshot, which snapshots are valid, and how to load the producer
table from the snapshots.

``<offset>.snapshot`` holds the producer table for the records below that offset. As in Kafka, each roll writes a
snapshot for the new segment's base offset, and a clean close writes a snapshot for the log's end. Because of the
snapshots, opening a log replays at most the headers of the active segment, and no headers after a clean stop.

    the log has, when it is opened               the producer table is loaded from
    -----------------------------------------    ---------------------------------------------------------------
    a sound snapshot at or before its end        the newest sound snapshot, and the batches after it
    snapshots, but no sound one                  all batches
    no snapshot, and the last stop was clean     nothing: a log with producers writes a snapshot when it is closed
    no snapshot, and no clean stop               the active segment: no producer was known when the segment began

A log without producers never has snapshots, so a log without any snapshot had no producers. Rolls do not force
snapshots to the disk. If a snapshot is torn, its checksum shows the damage, and the snapshot before it is used.
Snapshots above the log's end must be removed durably before the log can grow over their offsets again. Before batches
are deleted, the snapshot that replaces the batches is forced to the disk. The newest remaining snapshot is forced to
the disk before the log is truncated, and before compaction merges segments and so removes their snapshots. Without a
durable snapshot, the producer table could not be rebuilt: compaction may have removed batches that a snapshot names.
A roll also forces its snapshot to the disk before it removes a snapshot that belongs to no segment.

A snapshot can be older than a compaction. A snapshot from before a compaction may say that a transaction is open
although compaction has removed the transaction's data and, later, the transaction's marker. Without the marker, the
transaction would seem to stay open, and the producer's next transaction would seem to continue it. When a snapshot is
loaded, each of its open transactions is therefore compared with the log. A transaction is open from its first batch in
the log; a transaction without a batch is not open. (The cleaner stops before the first open transaction and removes no
marker before its data, so a compaction cannot hide an open transaction. A crash at any step of a swap leaves a
transaction's data and marker, the marker alone, or neither.) Kafka trusts the snapshot: its read_committed readers wait
at the transaction's first offset until an operator ends the transaction.

A control batch with a correct CRC and unreadable records is no damage: the batch was written like this, and all
replicas have it. A leader refuses a control batch with unreadable records. In a log, a control batch with unreadable
records ends no transaction, and a note reports it. (If brokers refused a log with an unreadable control batch, all
replicas of the partition would be lost.)
"""

from __future__ import annotations

import contextlib
import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..errors import CorruptLogError, CorruptMessageError, HeadraceError, InvalidRecordError, ServerBusyError
from ..records import ABORT, COMMIT, BatchHeader, decode_batch, without_position
from .files import NO_SPACE, File, FileSystem, read_file, write_file_atomically
from .producer_state import BATCHES_KEPT, SNAPSHOT_SUFFIX, ProducerBatch, ProducerEntry, ProducerTable, sequence_after
from .segment import LogSegment, Place, segment_name
from .txn_index import AbortedTransaction

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot\Z")
_INT16 = struct.Struct(">h")
_TYPE_AT = 2
_MARKER = struct.Struct(">hi")  #: Layout of a transaction marker's value: version int16, coordinator epoch int32.
#: Maximum number of bytes before a producer snapshot in which the log looks up earlier batches of a producer.
_LOOK_BACK_BYTES = 16 * 1024 * 1024


class ProducerSnapshots:
    """The snapshot files of one log. Only the thread that writes to the log directory calls the methods of this
    class."""

    def __init__(self, fs: FileSystem, directory: str, offsets: Iterable[int] = ()) -> None:
        self._fs = fs
        self._directory = directory
        self._offsets = set(offsets)
        #: Offsets of producer snapshots that an earlier process wrote and perhaps failed to flush. A flush alone would
        #: not write the snapshots' pages again, because the kernel counts the pages as clean.
        self._inherited = set(self._offsets)

    @property
    def offsets(self) -> list[int]:
        """Offsets of the snapshots, ascending; the files of some snapshots may have been removed with their
        segments."""
        return sorted(self._offsets)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"

    def is_wanted(self, table: ProducerTable, offset: int) -> bool:
        """Whether a snapshot for ``offset`` must be written."""
        return offset not in self._offsets and bool(len(table) or self._offsets)

    def take(self, table: ProducerTable, offset: int, bases: Iterable[int]) -> None:
        """Write a snapshot for ``offset``, and remove older snapshots that do not belong to a segment (``bases``: the
        segments' base offsets). The new snapshot is forced to the disk only if older snapshots are to be removed.
        Raises OSError (a full disk) or ServerBusyError, and then leaves no part of the snapshot."""
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
        strays = self._offsets.difference(bases, (offset,))
        if strays:  # the newest of the old snapshots may be the only durable one
            self._fs.sync_directory(self._directory)
            if self.force(offset):
                for stray in strays:
                    self._remove(stray)

    def written(self, offset: int) -> None:
        """Record that the snapshot for ``offset`` was written."""
        self._offsets.add(offset)
        self._inherited.discard(offset)

    def drop_above(self, offset: int) -> None:
        """Remove, durably, all snapshots above ``offset``, because the log is about to be truncated at ``offset``."""
        above = [found for found in self.offsets if found > offset]
        for found in reversed(above):
            self._remove(found)
        if above:
            self._fs.sync_directory(self._directory)

    def force(self, offset: int) -> bool:
        """Make two snapshots durable: the snapshot for ``offset``, which replaces the batches before ``offset``, and
        the newest snapshot. Returns False if the disk is full or no descriptor is free, and the snapshots are not
        durable: a deletion that frees space must not wait."""
        files: list[File] = []
        forced: list[int] = []
        wanted = sorted({offset, *self.offsets[-1:]} & self._offsets)
        try:
            for found in wanted:
                with contextlib.suppress(FileNotFoundError, ServerBusyError):
                    files.append(file := self._fs.open(self.path(found), write=True))
                    # Write the same bytes again, so that the pages of the file are dirty and reach the disk (see
                    # opening.py).
                    if found in self._inherited:
                        file.pwritev([file.pread(file.size(), 0)], 0)
                    forced.append(found)
            self._fs.sync_files(files)
            self._inherited.difference_update(forced)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        finally:
            for file in files:
                file.close()
        return forced == wanted

    def forget(self, offsets: Iterable[int]) -> None:
        """Forget snapshots whose files were removed with their segments."""
        self._offsets.difference_update(offsets)

    def _remove(self, offset: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.unlink(self.path(offset))
        self._offsets.discard(offset)


def snapshots_in(fs: FileSystem, directory: str) -> ProducerSnapshots:
    matches = map(_SNAPSHOT.match, fs.listdir(directory))
    return ProducerSnapshots(fs, directory, [int(match[1]) for match in matches if match])


def load_producers(
    fs: FileSystem,
    directory: str,
    segments: Sequence[LogSegment],
    log_end_offset: int,
    *,
    clean: bool,
    high_watermark: int | None = None,
) -> tuple[ProducerTable, ProducerSnapshots, list[str]]:
    """Load the producer table of an opened log (see the module's docstring); returns the table, the snapshots, and
    notes on faulty snapshots. ``clean``: the log was closed cleanly. ``high_watermark``: the last known high watermark;
    the log is searched for transactions that ended at or above it. Raises CorruptLogError when a batch that must be
    read is damaged."""
    snapshots = snapshots_in(fs, directory)
    snapshots.drop_above(log_end_offset)
    table, known_from, notes = _believed(fs, snapshots, segments, log_end_offset, clean=clean)
    table.aborted.clear()
    if high_watermark is not None and high_watermark < known_from and table.has_markers:
        # Of the transactions, a producer snapshot contains only the open ones. Find the ended transactions whose
        # markers may be uncommitted in the log before the snapshot.
        try:
            begin = max(high_watermark, segments[0].base_offset)
            before = _table_at(fs, snapshots, segments, begin, log_end_offset, notes)
            replay(before, segments, known_from, notes)
            table.inherit_undecided(before, known_from)
        except CorruptLogError as error:
            notes.append(f"{error.message}; read_committed readers wait until offset {known_from} is committed")
            table.forget_undecided(known_from)
    return table, snapshots, notes


def reload_producers(
    fs: FileSystem, snapshots: ProducerSnapshots, segments: Sequence[LogSegment], log_end_offset: int
) -> ProducerTable:
    """Load the producer table of a log that is about to be truncated at ``log_end_offset``; ``segments`` are the
    segments that stay. Raises CorruptLogError."""
    table, _, _ = _believed(fs, snapshots, segments, log_end_offset, clean=False)
    table.aborted.clear()
    return table


def heal_txn_indexes(
    fs: FileSystem,
    snapshots: ProducerSnapshots,
    segments: Sequence[LogSegment],
    scanned: Mapping[LogSegment, bool],
    log_end_offset: int,
) -> list[str]:
    """Rebuild those transaction indexes of an opened log that a crash may have damaged; returns notes. The indexes to
    rebuild are those of ``scanned`` segments, and a damaged index of the active segment. For each scanned segment the
    caller says whether it has a control batch. Raises CorruptLogError, OSError."""
    notes: list[str] = []
    wanted = [segment for segment in segments if scanned.get(segment)]
    active = segments[-1]
    if active not in scanned:
        try:
            active.txn_index.load()
        except (CorruptLogError, FileNotFoundError) as error:
            notes.append(f"{error}: rebuilt from the log")
            wanted.append(active)
    rebuilt = aborted_by_segment(fs, snapshots, segments, wanted, log_end_offset) if wanted else {}
    for segment in dict.fromkeys((*scanned, *wanted)):
        entries = rebuilt.get(segment, [])
        index = segment.txn_index
        if (entries or not index.is_empty) and not index.replace(entries):
            notes.append(f"{index.file.path}: the disk is full, so its entries are in memory only")
        if segment is not active:
            index.unload()
    return notes


def aborted_by_segment(
    fs: FileSystem,
    snapshots: ProducerSnapshots,
    segments: Sequence[LogSegment],
    wanted: Sequence[LogSegment],
    log_end_offset: int,
) -> dict[LogSegment, list[AbortedTransaction]]:
    """Compute from the log the entries that the transaction indexes of the ``wanted`` segments must have. Reads headers
    and markers of the ``wanted`` segments, and of earlier segments back to the last valid snapshot. Raises
    CorruptLogError."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    table = _table_at(fs, snapshots, segments, wanted[0].base_offset, log_end_offset, [])
    found = {}
    for segment, end in zip(segments, ends, strict=True):
        if segment.base_offset < wanted[0].base_offset:
            continue
        if segment.base_offset > wanted[-1].base_offset:
            break
        table.aborted.clear()
        replay(table, segments, end, [])
        if segment in wanted:
            found[segment] = list(table.aborted)
    return found


def _table_at(
    fs: FileSystem,
    snapshots: ProducerSnapshots,
    segments: Sequence[LogSegment],
    offset: int,
    log_end_offset: int,
    notes: list[str],
) -> ProducerTable:
    """Load the producer table for the records below ``offset``: from the newest valid snapshot at or below ``offset``,
    and from the log after that snapshot. Raises CorruptLogError."""
    table = ProducerTable(next_offset=segments[0].base_offset)
    for found in reversed([each for each in snapshots.offsets if each <= offset]):
        path = snapshots.path(found)
        with contextlib.suppress(FileNotFoundError, CorruptLogError):
            table = ProducerTable.from_snapshot(read_file(fs, path), path, found)
            correct_open_transactions(table, segments, log_end_offset, notes)
            break
    replay(table, segments, max(offset, table.next_offset), notes)
    return table


def _believed(
    fs: FileSystem, snapshots: ProducerSnapshots, segments: Sequence[LogSegment], log_end_offset: int, *, clean: bool
) -> tuple[ProducerTable, int, list[str]]:
    """Return the producer table, the offset of the snapshot that it was loaded from, and notes."""
    notes: list[str] = []
    unsound: list[int] = []
    table: ProducerTable | None = None
    for offset in reversed(snapshots.offsets):
        path = snapshots.path(offset)
        try:
            table = ProducerTable.from_snapshot(read_file(fs, path), path, offset)
            correct_open_transactions(table, segments, log_end_offset, notes)
            break
        except FileNotFoundError:
            continue
        except CorruptLogError as error:
            notes.append(f"{error.message}; the producers are taken from the previous snapshot and the log after it")
            unsound.append(offset)
    if table is None:
        table = ProducerTable(next_offset=log_end_offset)
        if not unsound and clean:
            return table, log_end_offset, notes
        table.next_offset = segments[0].base_offset if unsound else _begin_of_active(segments)
    known_from = table.next_offset
    for offset in reversed(unsound):
        replay(table, segments, max(offset, segments[0].base_offset), notes)
        _replace(fs, snapshots, table, offset, notes)
    replay(table, segments, log_end_offset, notes)
    return table, known_from, notes


def _begin_of_active(segments: Sequence[LogSegment]) -> int:
    """Return the base offset of the last segment that is not empty. An empty active segment is skipped, because a crash
    may keep its name and lose the name of its snapshot."""
    at = len(segments) - 1
    while at and segments[at].size == 0:
        at -= 1
    return segments[at].base_offset


def _replace(
    fs: FileSystem, snapshots: ProducerSnapshots, table: ProducerTable, unsound: int, notes: list[str]
) -> None:
    """Replace an invalid snapshot by a valid snapshot. The invalid snapshot proves that producers existed, so it stays
    until the new snapshot is durable. Each invalid snapshot gets a replacement. With a single new snapshot at the log's
    end, a truncation below that end would leave no snapshot, which would mean "no producers"."""
    try:
        write_file_atomically(fs, snapshots.path(table.next_offset), table.snapshot())
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        notes.append(f"{snapshots.path(table.next_offset)} cannot be written, the disk is full")
        return
    snapshots.written(table.next_offset)
    if unsound != table.next_offset:
        snapshots._remove(unsound)


def replay(table: ProducerTable, segments: Sequence[LogSegment], end_offset: int, notes: list[str]) -> None:
    """Feed the producer table with all batches from the table's offset up to ``end_offset``; unreadable markers are
    reported in ``notes``. Reads only headers and markers. Raises CorruptLogError."""
    for segment, place in _batches_between(segments, table.next_offset, end_offset):
        if place.header.producer_id >= 0:
            tell(table, place.header, segment, place.position, notes)
    table.next_offset = end_offset


def _batches_between(segments: Sequence[LogSegment], start: int, end: int) -> Iterator[tuple[LogSegment, Place]]:
    """Iterate over the headers of the batches that end at or after ``start`` and begin before ``end``. Raises
    CorruptLogError."""
    for segment in _segments_from(segments, start):
        if segment.base_offset >= end:
            break
        position = 0
        was_loaded = segment.index.columns is not None
        if segment.base_offset < start:
            place = segment.find_or_end(start)
            position = segment.size if place is None else place.position
        for place in segment.places(position, segment.size):
            if place.header.base_offset >= end:
                break
            yield segment, place
        if not was_loaded and segment is not segments[-1]:
            segment.unload_indexes()


def _segments_from(segments: Sequence[LogSegment], offset: int) -> Sequence[LogSegment]:
    """The segments that have batches at or after ``offset``."""
    return segments[max(bisect_right([segment.base_offset for segment in segments], offset) - 1, 0) :]


def correct_open_transactions(
    table: ProducerTable, segments: Sequence[LogSegment], log_end_offset: int, notes: list[str]
) -> None:
    """Correct the open transactions of a loaded snapshot: a transaction begins with its first batch in the log, and a
    transaction without a batch is closed (see the module's docstring). Reads one header for each open transaction. If
    the batch at the transaction's first offset is missing, also reads the headers after it. If the log is damaged at
    the headers to read, the snapshot is trusted."""
    try:
        missing = {
            entry.producer_id: first_offset
            for entry in table
            if (first_offset := entry.transaction_first_offset) is not None
            and not _begins_transaction(segments, entry.producer_id, first_offset)
        }
        if not missing:
            return
        begins: dict[int, int] = {}
        for _, place in _batches_between(segments, min(missing.values()), table.next_offset):
            header = place.header
            first_offset = missing.get(header.producer_id)
            if first_offset is not None and header.base_offset >= first_offset and _is_transactional_data(header):
                begins.setdefault(header.producer_id, header.base_offset)
        # If a deletion of records removed the first batch of an open transaction, the log after the snapshot shows
        # whether compaction may have removed a marker.
        is_below_start = min(missing.values()) < segments[0].base_offset
        may_lack_markers = is_below_start and _has_gap(segments, table.next_offset, log_end_offset)
    except CorruptLogError as error:
        notes.append(f"{error.message}; the open transactions are those of the producer snapshot")
        return
    table.correct_transactions(
        {
            producer_id: begins.get(producer_id)
            for producer_id, first_offset in missing.items()
            if producer_id in begins or first_offset >= segments[0].base_offset or may_lack_markers
        }
    )


def _has_gap(segments: Sequence[LogSegment], start: int, end: int) -> bool:
    """Whether compaction left a gap between or inside the batches from ``start`` to ``end``. (Batches before a snapshot
    cannot show what happened after it, and a truncation at ``end`` removes what it does not keep.)"""
    next_offset = start
    for _, place in _batches_between(segments, start, end):
        header = place.header
        if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
            return True
        next_offset = header.next_offset
    return False


def _begins_transaction(segments: Sequence[LogSegment], producer_id: int, offset: int) -> bool:
    """Whether a transactional batch of the producer begins at ``offset``."""
    at = bisect_right([segment.base_offset for segment in segments], offset) - 1
    if at < 0:
        return False
    segment = segments[at]
    was_loaded = segment.index.columns is not None
    place = segment.find_or_end(offset)
    if not was_loaded and segment is not segments[-1]:
        segment.unload_indexes()
    if place is None:
        return False
    header = place.header
    return header.base_offset == offset and header.producer_id == producer_id and _is_transactional_data(header)


def _is_transactional_data(header: BatchHeader) -> bool:
    return header.is_transactional and not header.is_control


def tell(table: ProducerTable, header: BatchHeader, segment: LogSegment, position: int, notes: list[str]) -> None:
    """Feed the producer table with one batch of the log. Raises CorruptLogError for a damaged marker."""
    if not header.is_control:
        table.appended(header)
        return
    where = f"{segment.path}, position {position}, offset {header.base_offset}"
    try:
        unread = tell_kept_marker(table, header, segment.log.pread(header.size, position))
    except CorruptMessageError as error:
        raise CorruptLogError(f"{where}: {without_position(error.message)}") from error
    if unread is not None:
        notes.append(
            f"{where}: a control batch that ends no transaction, because its writer wrote it this way:  {unread}"
        )


def tell_kept_marker(table: ProducerTable, header: BatchHeader, batch: bytes | memoryview) -> str | None:
    """Feed the producer table with a control batch of this log or of its leader. If the batch's records are unreadable,
    the batch is ignored and the reason returned (see the module's docstring). Raises CorruptMessageError when the CRC
    is wrong."""
    try:
        tell_marker(table, header, batch)
    except InvalidRecordError as error:
        return error.message
    return None


def tell_marker(table: ProducerTable, header: BatchHeader, batch: bytes | memoryview) -> None:
    """Feed the producer table with a control batch; only the end of a transaction changes it. After CorruptMessageError
    or InvalidRecordError the table is unchanged. Compaction leaves a marker without records to keep the producer's
    epoch; the coordinator epoch of such a marker is unknown."""
    if header.record_count == 0:
        table.marker_appended(header, None)
    for record in decode_batch(batch):
        key, value = record.key or b"", record.value or b""
        if len(key) < _TYPE_AT + _INT16.size or len(value) < _MARKER.size:
            continue
        kind = _INT16.unpack_from(key, _TYPE_AT)[0]
        if kind in (ABORT, COMMIT):
            table.marker_appended(header, _MARKER.unpack_from(value)[1], is_abort=kind == ABORT)


def complete_window(entry: ProducerEntry, segments: Sequence[LogSegment]) -> None:
    """Look up in the log the batches that a producer wrote before its last batch in the snapshot, to recognise a
    repeated batch. The look-up happens at most once for each producer after a start, when a batch is out of order.
    The look-up reads batch headers, at most some MiB back. CorruptLogError."""
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
