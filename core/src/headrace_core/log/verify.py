"""Check the files of logs for damage, for ``headrace log verify PATH``: without a broker, and without changing a file.

``verify`` takes a log directory, a directory that contains several log directories, a partition's directory or a
segment. ``verify`` yields a ``FileLine`` for each file, and a ``Problem`` for each fault: file, position, offset,
reason, cure. The check of a log continues after a problem where possible. Checks by file:

    segment                   each batch: framing, CRC, consecutive offsets, the epoch checkpoint's epoch; each record's
                              structure, offset and time against its batch; whole batches to the end of the file, which
                              is where the next segment begins
    offset index              each entry: the batch at its position ends with its offset; ascending
    time index                each entry: the first batch with that largest timestamp; a sealed segment's last entry is
                              its largest timestamp
    transaction index         each entry: an ABORT marker, and its transaction's first offset; a sealed segment's has
                              every aborted transaction
    producer snapshot         its checksum, and its structure
    leader-epoch-checkpoint   its checksum; ascending; not beyond the log's end
    partition.metadata, meta.properties, .kafka_cleanshutdown, .headrace_broker_epoch      their checksums and values
    the checkpoints of a log directory      their checksums; each offset within its log

Compaction leaves gaps in the offsets, so a gap alone is no problem. A file without a checksum, as Kafka writes it, is
accepted. A fault that the next start repairs without loss (``judge`` in recovery.py), such as a torn tail above the
recovery point, is reported as a ``Note``.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..errors import CorruptLogError, HeadraceError, InvalidConfigError
from ..records import ABORT, COMMIT, BatchHeader, decode_batch, read_header
from ..types import TopicPartition
from .checkpoints import (
    BROKER_EPOCH,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    QUARANTINE,
    RECOVERY_POINTS,
    clean_shutdown_fault,
    decode_checkpoint,
    parse_offsets,
    read_meta,
    read_quarantine,
)
from .compaction.manager import CLEANER_OFFSETS
from .contents import Kind, kind_of, log_directories_in, partitions_in, recovery_point_of, segments_in
from .dump import (
    TXN_INDEX_CURE,
    FileLine,
    Note,
    Problem,
    check_index,
    check_time_index,
    epochs_beside,
    is_last_segment,
    partition_id_beside,
    snapshot_fault,
    torn_tail,
    txn_index_fault,
)
from .epochs import LEADER_EPOCH_FILE, EpochStart
from .files import File, FileSystem, RealFileSystem, read_file
from .index import BatchMeta
from .producer_state import SNAPSHOT_SUFFIX, ProducerTable
from .recovery import find_sound_batch, scan
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from .txn_index import ABORTED_ENTRY, TXN_INDEX_SUFFIX, read_entries

_RESTORE = (
    "stop the broker and restore the partition's files from a copy, or delete its directory: all its records on this "
    "broker are lost then, and offsets begin at 0 again (docs/operations/damage.md)"
)
_REBUILD = "with the broker stopped, remove the file: the next start rebuilds it"
_SAFE = {
    RECOVERY_POINTS: "remove it: the next start scans every log",
    HIGH_WATERMARKS: "remove it: the broker determines the high watermarks again",
    LOG_STARTS: "remove it: log starts are then taken from the epoch checkpoints and the segments",
    CLEANER_OFFSETS: "remove it: compaction starts from the beginning",
    CLEAN_SHUTDOWN: "remove it: the next start scans the logs beyond their recovery points",
    BROKER_EPOCH: "remove it: the next start writes it; after an unclean stop the directory counts as an older copy",
}


@dataclass(slots=True)
class Counts:
    """Totals of the files, bytes, batches and records checked so far."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    problems: int = 0
    notes: int = 0


@dataclass(frozen=True, slots=True)
class _Ends:
    """First and last offset of a partition's records."""

    start_offset: int
    end_offset: int


def verify(path: str, *, fs: FileSystem | None = None, counts: Counts | None = None) -> Iterator[FileLine | Problem]:
    """Check the files at ``path``, as the module's docstring says. ``counts`` is updated during the check, for a
    progress display. Raises FileNotFoundError; raises ValueError if the path is neither a log directory, a partition's
    directory nor a segment."""
    fs, counts = fs or RealFileSystem(), counts or Counts()
    path = path.rstrip("/")
    for line in _verify(fs, path, counts):
        if isinstance(line, Note):
            counts.notes += 1
        elif isinstance(line, Problem):
            counts.problems += 1
        else:
            counts.files += 1
            counts.bytes += line.size
        yield line


def _verify(fs: FileSystem, path: str, counts: Counts) -> Iterator[FileLine | Problem]:
    if not fs.exists(path):
        raise FileNotFoundError(f"{path}: no such file or directory")
    name = path.rpartition("/")[2]
    if not fs.is_directory(path):
        stem = name.removesuffix(LOG_SUFFIX)
        if stem == name or not stem.isdigit():
            raise ValueError(f"{path}: not a .log file, a partition's directory or a log directory")
        directory = os.path.dirname(path) or "."
        bounds = _Bounds(recovery_point_of(fs, directory), is_last=is_last_segment(fs, path))
        segment = _Segment(fs, path, int(stem), None, counts, bounds)
        yield from segment.verify()
        yield from segment.verify_indexes(is_sealed=False)
        return
    match kind_of(fs, path):
        case Kind.PARTITION:
            yield from _Partition(fs, path, counts).verify()
        case Kind.LOG_DIRECTORY:
            yield from _verify_root(fs, path, counts)
        case Kind.SEVERAL:
            for name in log_directories_in(fs, path):
                yield from _verify_root(fs, f"{path}/{name}", counts)
        case _:
            raise ValueError(f"{path}: not a partition's directory or a log directory: it has no log files")


# ---------------------------------------------------------------------------------------------- a log directory


def _verify_root(fs: FileSystem, root: str, counts: Counts) -> Iterator[FileLine | Problem]:
    names = fs.listdir(root)
    if META_PROPERTIES in names:
        path = f"{root}/{META_PROPERTIES}"
        yield _file(fs, path)
        try:
            read_meta(fs, root)
        except InvalidConfigError as error:
            yield Problem(
                path,
                0,
                -1,
                error.message,
                "correct the values: the files of the other directories have the same values",
            )
    for name in (CLEAN_SHUTDOWN, BROKER_EPOCH):
        if name in names:
            path = f"{root}/{name}"
            yield _file(fs, path)
            fault = clean_shutdown_fault(read_file(fs, path))
            if fault is not None:
                yield Problem(path, 0, -1, fault, _SAFE[name])
    ends: dict[TopicPartition, _Ends | None] = {}
    for name, topic_partition in partitions_in(fs, root).items():
        partition = _Partition(fs, f"{root}/{name}", counts)
        yield from partition.verify()
        ends[topic_partition] = partition.ends
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS):
        if name in names:
            yield from _verify_offsets(fs, root, name, ends)


def _verify_offsets(
    fs: FileSystem, root: str, name: str, ends: dict[TopicPartition, _Ends | None]
) -> Iterator[FileLine | Problem]:
    path = f"{root}/{name}"
    line = _file(fs, path)
    yield line
    if line.size == 0:
        return
    found = decode_checkpoint(read_file(fs, path))
    if found.rows is None:
        yield Problem(path, 0, -1, found.problem or "it cannot be read", _SAFE[name])
        return
    try:
        offsets = parse_offsets(found.rows)
    except ValueError as error:
        yield Problem(path, 0, -1, str(error), _SAFE[name])
        return
    for partition, offset in offsets.items():
        if partition not in ends:
            continue  # the partition was deleted or moved; the next start drops its entry
        log = ends[partition]
        if log is None or log.start_offset <= offset <= log.end_offset:
            continue
        if offset < log.start_offset and name != RECOVERY_POINTS:
            continue  # the log start has advanced since the checkpoint was written
        if offset > log.end_offset:
            what = f"says {offset} of {partition}, whose log ends at {log.end_offset}"
            # For a recovery point beyond the log's end, the check of the partition reports the problem.
            if name == LOG_STARTS:
                yield Problem(path, 0, offset, what, _SAFE[name])


# ---------------------------------------------------------------------------------------------- a partition


class _Partition:
    def __init__(self, fs: FileSystem, directory: str, counts: Counts) -> None:
        self.ends: _Ends | None = None
        self._fs = fs
        self._directory = directory
        self._counts = counts

    def verify(self) -> Iterator[FileLine | Problem]:
        fs, directory = self._fs, self._directory
        names = fs.listdir(directory)
        why = read_quarantine(fs, directory)
        if why is not None:
            cure = f"once the log is restored, remove {directory}/{QUARANTINE}"
            yield Problem(f"{directory}/{QUARANTINE}", 0, -1, f"the log is quarantined: {why}", cure)
        yield from partition_id_beside(fs, directory, names)
        bases = segments_in(names)
        epochs: tuple[EpochStart, ...] | None = None
        for line in epochs_beside(fs, directory, names):
            if isinstance(line, tuple):
                epochs = line
            else:
                yield line
        recovery_point = recovery_point_of(fs, directory)
        segments = [
            _Segment(
                fs,
                f"{directory}/{base:020d}{LOG_SUFFIX}",
                base,
                epochs,
                self._counts,
                _Bounds(recovery_point, is_last=base == bases[-1]),
            )
            for base in bases
        ]
        if not segments:
            if recovery_point > 0:
                what = f"there is no segment in this directory, but the log was flushed up to offset {recovery_point}"
                yield Problem(directory, -1, recovery_point, what, _RESTORE)
            else:
                what, cure = (
                    "no segment yet: a crash interrupted its creation",
                    "nothing to do: the next start creates it",
                )
                yield Note(directory, -1, -1, what, cure)
            return
        begun: dict[int, int] = {}
        for segment in segments:
            yield from segment.verify()
            yield from segment.verify_indexes(is_sealed=segment is not segments[-1])
            yield from segment.verify_txn_index(begun, is_sealed=segment is not segments[-1])
        yield from self._seams(segments)
        end = segments[-1].next_offset
        if segments[-1].is_sound and end < recovery_point:
            what = f"the log ends at offset {end}, but was flushed up to {recovery_point}: records are missing"
            yield Problem(segments[-1].path, segments[-1].size, end, what, _RESTORE)
        elif epochs and segments[-1].is_sound and epochs[-1].start_offset > end:
            what = f"epoch {epochs[-1].epoch} starts behind the log's end {end}"
            cure = "nothing to do: the broker drops the entries beyond the end when it starts"
            yield Note(f"{directory}/{LEADER_EPOCH_FILE}", 0, epochs[-1].start_offset, what, cure)
        for name in names:
            if name.endswith(SNAPSHOT_SUFFIX):
                yield from self._snapshot(f"{directory}/{name}")
        if all(segment.is_sound for segment in segments):
            self.ends = _Ends(bases[0], segments[-1].next_offset)

    def _seams(self, segments: list[_Segment]) -> Iterator[Problem]:
        was_compacted = any(segment.was_compacted for segment in segments[:-1])
        last = segments[-1]
        # In a log that was never compacted, a gap in the active segment is damage.
        if last.first_gap is not None and not was_compacted:
            position, expected, found = last.first_gap
            yield Problem(
                last.path,
                position,
                expected,
                f"begins with offset {found}, but offset {expected} is expected",
                _RESTORE,
            )
        for before, after in pairwise(segments):
            if not before.is_sound or before.next_offset == after.base_offset:
                continue
            if after is last and after.size == 0 and before.next_offset > after.base_offset:
                what = "empty, and the segment before it continues beyond its offset: a roll that failed"
                yield Note(
                    after.path, 0, after.base_offset, what, "nothing to do: the broker removes it when it starts"
                )
                continue
            if before.next_offset > after.base_offset or not was_compacted:
                yield Problem(
                    before.path,
                    before.size,
                    before.next_offset,
                    f"the file ends with offset {before.next_offset - 1}, the next segment begins with "
                    f"{after.base_offset}",
                    _RESTORE,
                )

    def _snapshot(self, path: str) -> Iterator[FileLine | Problem]:
        yield _file(self._fs, path)
        try:
            data = read_file(self._fs, path)
            ProducerTable.from_snapshot(data, path, 0)
        except CorruptLogError as error:
            yield snapshot_fault(data, path, error)


def _file(fs: FileSystem, path: str) -> FileLine:
    return FileLine(path, fs.file_size(path))


# ---------------------------------------------------------------------------------------------- a segment


class _Bounds(NamedTuple):
    """``counts`` is updated during the check, for a progress display."""

    recovery_point: int
    is_last: bool


class _Segment:
    def __init__(
        self,
        fs: FileSystem,
        path: str,
        base_offset: int,
        epochs: tuple[EpochStart, ...] | None,
        counts: Counts,
        bounds: _Bounds,
    ) -> None:
        self.path = path
        self.base_offset = self.next_offset = base_offset
        self.size = 0
        self.is_sound = True
        #: The first gap as (position, expected offset, found offset); None without a gap.
        self.first_gap: tuple[int, int, int] | None = None
        #: Whether the segment has a gap between batches, or a batch from which compaction removed records.
        self.was_compacted = False
        self._fs = fs
        self._epochs = epochs
        self._counts = counts
        self._bounds = bounds
        self.is_torn = False  #: Whether the next start would truncate the end of this segment.
        self._batches: list[BatchMeta] = []
        #: Max timestamps of batches that compaction has emptied; the timestamps belong to removed records.
        self._times_of_empty: list[int] = []
        #: Transactional batches: (producer id, base offset, control type; None for data).
        self._transactional: list[tuple[int, int, int | None]] = []
        self._largest_ms = -1  #: Largest timestamp of the segment's batches that still have records.

    def verify(self) -> Iterator[FileLine | Problem]:
        file = self._fs.open(self.path)
        try:
            self.size = file.size()
            yield FileLine(self.path, self.size)
            position = 0
            while True:
                found = scan(file, self.next_offset, position=position, epochs=self._epochs)
                for meta in found.batches:
                    yield from self._batch(file, meta, position)
                    position += meta.size
                self.next_offset = found.next_offset
                if found.problem is None:
                    return
                torn = torn_tail(file, found, **self._bounds._asdict()) if self.is_sound else None
                if torn is not None:
                    self.is_torn = True
                    yield torn
                    return
                self.is_sound = False
                sound = find_sound_batch(file, found.end + 1, self.size, found.next_offset)
                rest = "no sound batch follows" if sound is None else f"the next sound batch is at position {sound}"
                yield Problem(self.path, found.end, found.next_offset, f"{found.problem}; {rest}", _RESTORE)
                if sound is None:
                    return
                position = sound
        finally:
            file.close()

    def _batch(self, file: File, meta: BatchMeta, position: int) -> Iterator[Problem]:
        batch = file.pread(meta.size, position)
        header = read_header(batch)
        self.was_compacted |= header.base_offset > self.next_offset or header.record_count <= header.last_offset_delta
        if header.base_offset > self.next_offset and self.first_gap is None and self.is_sound:
            self.first_gap = (position, self.next_offset, header.base_offset)
        self.next_offset = header.next_offset
        self._counts.batches += 1
        if header.record_count:
            self._largest_ms = max(self._largest_ms, header.max_timestamp_ms)
        else:
            self._times_of_empty.append(header.max_timestamp_ms)
        self._batches.append(meta)
        what = self._what_is_wrong_inside(batch, header)
        if what is not None:
            self.is_sound = False
            yield Problem(self.path, position, header.base_offset, what, _RESTORE)

    def _what_is_wrong_inside(self, batch: bytes, header: BatchHeader) -> str | None:
        try:
            records = decode_batch(batch, check_crc=False)
        except HeadraceError as error:
            return error.message
        self._counts.records += len(records)
        if header.is_control:
            key = (records[0].key or b"") if records else b""
            kind = int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
            self._transactional.append((header.producer_id, header.base_offset, kind))
        elif header.is_transactional:
            self._transactional.append((header.producer_id, header.base_offset, None))
        if len(records) != header.record_count:
            return f"{len(records)} records, the header says {header.record_count}"
        latest_ms = max((record.timestamp_ms for record in records), default=header.max_timestamp_ms)
        # A batch's max timestamp is wrong only if it is too small, because a compacted batch keeps the timestamp of
        # removed records.
        if latest_ms > header.max_timestamp_ms:
            return f"a record has timestamp {latest_ms}, the batch's largest timestamp is {header.max_timestamp_ms}"
        return None

    def verify_indexes(self, *, is_sealed: bool) -> Iterator[FileLine | Problem]:
        stem = self.path.removesuffix(LOG_SUFFIX)
        # If compaction has emptied all batches, the time index has the times in their headers.
        if len(self._times_of_empty) == len(self._batches):
            self._batches = [
                meta._replace(max_timestamp_ms=time_ms)
                for meta, time_ms in zip(self._batches, self._times_of_empty, strict=True)
            ]
        for suffix, check in ((INDEX_SUFFIX, check_index), (TIME_INDEX_SUFFIX, check_time_index)):
            path = stem + suffix
            if not self._fs.exists(path):
                cure = "nothing to do: the broker rebuilds it when it starts"
                yield Note(path, -1, self.base_offset, "the index is missing", cure)
                continue
            data = read_file(self._fs, path)
            yield FileLine(path, len(data))
            if not self.is_sound or self.is_torn:
                # do not report entries after the damage as further problems; entries after a torn tail are rebuilt
                continue
            for problem in check(path, data, self.base_offset, self._batches):
                yield Problem(problem.path, problem.position, problem.offset, problem.what, _REBUILD)
            if suffix == TIME_INDEX_SUFFIX and is_sealed:
                last_ms = int.from_bytes(data[-12:-4], "big", signed=True) if len(data) >= 12 else -1
                if len(data) % 12 == 0 and last_ms < self._largest_ms:
                    yield Problem(
                        path,
                        max(len(data) - 12, 0),
                        self.next_offset - 1,
                        f"ends with timestamp {last_ms}, the segment's largest timestamp is {self._largest_ms}",
                        _REBUILD,
                    )

    def verify_txn_index(self, begun: dict[int, int], *, is_sealed: bool) -> Iterator[FileLine | Problem]:
        """Check the transaction index. ``begun``: for each producer, the first offset of the transaction that is open
        at the segment's start; the check updates ``begun``."""
        aborted: dict[int, tuple[int, int | None]] = {}  # offset of a marker -> (producer id, first remaining offset)
        for producer_id, offset, kind in self._transactional:
            if kind is None:
                begun.setdefault(producer_id, offset)
            elif kind in (ABORT, COMMIT):
                first_offset = begun.pop(producer_id, None)
                if kind == ABORT:
                    aborted[offset] = (producer_id, first_offset)
        path = self.path.removesuffix(LOG_SUFFIX) + TXN_INDEX_SUFFIX
        data = read_file(self._fs, path) if self._fs.exists(path) else None
        if data is not None:
            yield FileLine(path, len(data))
            fault = txn_index_fault(data, path, self.base_offset)
            if fault is not None:
                yield fault
                return
        if not self.is_sound or self.is_torn:
            return
        indexed = set()
        for number, entry in enumerate(read_entries(data or b"")):
            indexed.add(entry.last_offset)
            producer_id, first_offset = aborted.get(entry.last_offset, (-1, None))
            what = None
            if producer_id != entry.producer_id:
                what = f"entry {number}: producer {entry.producer_id} has no ABORT marker at offset {entry.last_offset}"
            elif first_offset is not None and entry.first_offset > first_offset:
                what = f"entry {number} says {entry.first_offset}, the aborted transaction begins at {first_offset}"
            if what is not None:
                yield Problem(path, number * ABORTED_ENTRY.size, entry.last_offset, what, TXN_INDEX_CURE)
        for offset, (producer_id, first_offset) in aborted.items() if is_sealed else ():
            if first_offset is not None and offset not in indexed:
                what = (
                    f"the aborted transaction of producer {producer_id}, offsets {first_offset} to {offset}, has no "
                    "entry: read_committed readers would return its records"
                )
                yield Problem(path, -1, offset, what, TXN_INDEX_CURE)
