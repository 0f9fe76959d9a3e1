"""Read the files of a log without a broker: the functions behind ``headrace log dump PATH [--deep]``.

``dump`` yields, in order: a ``FileLine`` for each file, a line for each batch, record (``deep``) or index entry, and a
``Problem`` for each fault, with file, position, offset and reason. ``dump`` raises no error for damaged bytes and
changes no file. The checks are those of Kafka's DumpLogSegments and of this project's recovery:

* segments: sound headers and CRCs, consecutive offsets, whole batches up to the end of the file; ``deep``: every
  record;
* offset index: ascending; each entry names the last offset of the batch that starts at its position;
* time index: ascending; each entry names the last offset of a batch whose largest timestamp it is;
* transaction index: whole entries of possible offsets, ascending;
* producer snapshots: their checksum and structure;
* a directory: each segment begins where the one before it ended; ``leader-epoch-checkpoint`` and ``partition.metadata``
  are readable, and the epochs agree with the batches.

Only the cause of a fault is reported: after damage in a segment, its indexes and the next segment are not compared.
Bytes that the next start would truncate (``judge`` in recovery.py) are reported as a ``Note``.
"""

from __future__ import annotations

import os.path
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..errors import CorruptLogError, HeadraceError
from ..records import HEADER_BYTES, BatchHeader, Record, decode_batch, read_header
from .checkpoints import PARTITION_METADATA, decode_checkpoint, read_partition_metadata
from .contents import Kind, kind_of, log_directories_in, partitions_in, recovery_point_of, segments_in
from .epochs import LEADER_EPOCH_FILE, EpochStart, parse_epochs
from .files import File, FileSystem, RealFileSystem, read_file
from .index import OFFSET_ENTRY, TIME_ENTRY, BatchMeta
from .producer_state import SNAPSHOT_SUFFIX, ProducerTable, is_torn_snapshot
from .recovery import Scan, Verdict, find_sound_batch, is_cut_short, judge, scan
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from .txn_index import ABORTED_ENTRY, TXN_INDEX_SUFFIX, check_entries


@dataclass(frozen=True, slots=True)
class FileLine:
    """The line that begins the dump of a file."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class BatchLine:
    path: str
    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record of the batch at ``position``; only a ``deep`` dump has records."""

    path: str
    position: int
    record: Record


@dataclass(frozen=True, slots=True)
class OffsetEntryLine:
    """An entry of an offset index: ``offset`` is the last offset of the batch that starts at ``log_position``."""

    path: str
    number: int
    offset: int
    log_position: int


@dataclass(frozen=True, slots=True)
class TimeEntryLine:
    """An entry of a time index."""

    path: str
    number: int
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedLine:
    """An entry of a transaction index: an aborted transaction. ``last_offset``: its marker's."""

    path: str
    number: int
    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerLine:
    """A producer in a producer snapshot: its last batch (-1: none) and the start of its open transaction (-1: none)."""

    path: str
    number: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault. A fault in a file. ``position``: byte in the file; ``offset``: offset of the record concerned, -1 if
    unknown."""

    path: str
    position: int
    offset: int
    what: str
    cure: str = ""  #: What the operator can do about the problem that the dump found.

    def __str__(self) -> str:
        position = f", position {self.position}" if self.position >= 0 else ""
        offset = f", offset {self.offset}" if self.offset >= 0 else ""
        return f"{self.path}{position}{offset}: {self.what}"


@dataclass(frozen=True, slots=True)
class Note(Problem):
    """An irregularity that is not damage: a crash causes it, and the next start repairs it."""


_PLACE = re.compile(
    r"(?P<path>.+?), position (?P<position>\d+)(?:, offset (?P<offset>-?\d+)| \(offset (?P<told>\d+)\))?: (?P<what>.+)",
    re.DOTALL,
)


def problem_of(error: CorruptLogError, *, path: str) -> Problem:
    """Return the Problem for an error of a log; ``path`` is used if the error names no file."""
    match = _PLACE.match(error.message)
    if match is None:
        return Problem(path, -1, -1, error.message)
    offset = match["offset"] or match["told"] or -1
    return Problem(match["path"], int(match["position"]), int(offset), match["what"])


Line = FileLine | BatchLine | RecordLine | OffsetEntryLine | TimeEntryLine | AbortedLine | ProducerLine | Problem


def dump(path: str, *, deep: bool = False, fs: FileSystem | None = None) -> Iterator[Line]:
    """Dump a ``.log``, ``.index``, ``.timeindex``, ``.txnindex`` or ``.snapshot`` file, a partition's directory, or
    every partition of one or several log directories. Raises FileNotFoundError; raises ValueError for a file of a kind
    that ``dump`` cannot read."""
    fs = fs or RealFileSystem()
    path = path.rstrip("/")
    if not fs.exists(path):
        raise FileNotFoundError(f"{path}: no such file or directory")
    if fs.is_directory(path):
        for directory in _partitions(fs, path):
            yield from _dump_directory(fs, directory, deep)
    elif path.endswith(LOG_SUFFIX):
        yield from _dump_segment(fs, path, _base_offset(path), deep, is_last=is_last_segment(fs, path))
    elif path.endswith(INDEX_SUFFIX):
        yield from _dump_index(fs, path)
    elif path.endswith(TIME_INDEX_SUFFIX):
        yield from _dump_time_index(fs, path)
    elif path.endswith(TXN_INDEX_SUFFIX):
        yield from _dump_txn_index(fs, path)
    elif path.endswith(SNAPSHOT_SUFFIX):
        yield from _dump_snapshot(fs, path)
    else:
        raise ValueError(
            f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file, nor a partition's directory"
        )


def _partitions(fs: FileSystem, path: str) -> list[str]:
    match kind_of(fs, path):
        case Kind.PARTITION:
            return [path]
        case Kind.LOG_DIRECTORY:
            return [f"{path}/{name}" for name in partitions_in(fs, path)]
        case Kind.SEVERAL:
            roots = [f"{path}/{name}" for name in log_directories_in(fs, path)]
            return [f"{root}/{name}" for root in roots for name in partitions_in(fs, root)]
        case _:
            raise ValueError(f"{path}: no segment in this directory; name a partition's directory, or a file in it")


def is_last_segment(fs: FileSystem, path: str) -> bool:
    """Whether a segment is the active segment of its log."""
    return segments_in(fs.listdir(os.path.dirname(path) or "."))[-1:] == [_base_offset(path)]


#: Advice for a complete batch with a wrong CRC that the next start of the broker would remove.
WOULD_BE_CUT = (
    "it is above the recovery point, so the broker would take it for a torn tail and cut it when it starts: copy the "
    "file first, if its records were acknowledged"
)


#: Advice for a damaged transaction index. Do not remove the file of a transaction index: a missing file means "no
#: aborted transaction".
TXN_INDEX_CURE = (
    "with the broker stopped, put an empty file in its place: the broker then takes the aborted transactions from the "
    "log"
)


def torn_tail(file: File, found: Scan, *, recovery_point: int, is_last: bool) -> Note | Problem | None:
    """Report the bytes that the next start of a broker would truncate from the end of a log. Bytes that a crash has
    left are reported as a Note. A complete batch with a wrong CRC is reported as a Problem, because it may have been
    damaged after it was acknowledged.

    ``found`` is a scan from the file's beginning. Returns None if the start would truncate no bytes, or if the offsets
    of the valid batches have a gap. A gap may be damage, so the caller reports the bytes as a Problem.
    """
    if found.problem is None:
        return None
    expected = _base_offset(file.path)
    for meta in found.batches:
        if meta.base_offset != expected:
            return None
        expected = meta.last_offset + 1
    judgement = judge(file, found, recovery_point=recovery_point, is_last=is_last)
    if judgement.verdict is not Verdict.TORN:
        return None
    if not is_cut_short(file, found):
        return Problem(
            file.path, found.end, found.next_offset, f"{found.problem}; no sound batch follows", WOULD_BE_CUT
        )
    return Note(
        file.path,
        found.end,
        found.next_offset,
        f"torn tail, as after an append that a crash interrupted:  {found.problem}",
        f"nothing to do: the broker cuts these {found.file_size - found.end} bytes when it starts; an interrupted "
        f"append has no acknowledged records, unless log.flush=os",
    )


def _base_offset(path: str) -> int:
    name = path.rpartition("/")[2].partition(".")[0]
    if not name.isdigit():
        raise ValueError(f"{path}: a segment's file is named by its base offset, such as 00000000000000000000.log")
    return int(name)


def _dump_directory(fs: FileSystem, path: str, deep: bool) -> Iterator[Line]:
    names = fs.listdir(path)
    stems = [f"{base:020d}" for base in segments_in(names)]
    if not stems:
        yield Problem(path, -1, -1, "there is no segment in this directory")
        return
    ends: list[int] = []
    sound: list[bool] = []
    epochs: tuple[EpochStart, ...] | None = None
    beside: list[Line] = []
    for found in epochs_beside(fs, path, names):
        if isinstance(found, tuple):
            epochs = found
        else:
            beside.append(found)
    beside += partition_id_beside(fs, path, names)
    for stem in stems:
        end, is_sound = int(stem), True
        is_last = stem == stems[-1]
        for line in _dump_segment(fs, f"{path}/{stem}{LOG_SUFFIX}", int(stem), deep, epochs, is_last=is_last):
            if isinstance(line, BatchLine):
                end = line.header.next_offset
            is_sound &= not isinstance(line, Problem)
            yield line
        ends.append(end)
        sound.append(is_sound)
        for suffix, read in ((INDEX_SUFFIX, _dump_index), (TIME_INDEX_SUFFIX, _dump_time_index)):
            if stem + suffix in names:
                yield from (
                    line
                    for line in read(fs, f"{path}/{stem}{suffix}")
                    # In a damaged log, ignore problems of the index: each index entry after the damage would be
                    # reported.
                    if is_sound or not isinstance(line, Problem)
                )
            else:
                cure = "nothing to do: the broker rebuilds it when it starts"
                yield Note(f"{path}/{stem}{suffix}", -1, int(stem), "the index is missing", cure)
        if stem + TXN_INDEX_SUFFIX in names:
            yield from _dump_txn_index(fs, f"{path}/{stem}{TXN_INDEX_SUFFIX}")
    for name in names:
        if name.endswith(SNAPSHOT_SUFFIX):
            yield from _dump_snapshot(fs, f"{path}/{name}")
    for (end, is_sound, _), (_, _, stem) in pairwise(zip(ends, sound, stems, strict=True)):
        if is_sound and int(stem) != end:
            yield Problem(
                f"{path}/{stem}{LOG_SUFFIX}",
                0,
                int(stem),
                f"begins with offset {int(stem)}, the segment before it ends at  {end}",
            )
    if epochs and sound[-1] and epochs[-1].start_offset > ends[-1]:
        beside.append(
            Problem(
                f"{path}/{LEADER_EPOCH_FILE}",
                0,
                epochs[-1].start_offset,
                f"epoch {epochs[-1].epoch} starts after the log's end {ends[-1]}",
            )
        )
    yield from beside


def epochs_beside(
    fs: FileSystem, directory: str, names: Sequence[str]
) -> Iterator[FileLine | Problem | tuple[EpochStart, ...]]:
    """Return the entries of a partition's epoch checkpoint, if a checksum confirms the file (Kafka's files have no
    checksum)."""
    if LEADER_EPOCH_FILE not in names:
        return
    path = f"{directory}/{LEADER_EPOCH_FILE}"
    data = read_file(fs, path)
    yield FileLine(path, len(data))
    if not data:
        return
    found = decode_checkpoint(data)
    problem = found.problem
    if found.rows is not None:
        try:
            entries = parse_epochs(found.rows)
        except ValueError as error:
            problem = str(error)
        else:
            if found.has_checksum:
                yield entries
            return
    yield Problem(path, 0, -1, problem or "it cannot be read", "remove it: a start rebuilds it from the batches")


def partition_id_beside(fs: FileSystem, directory: str, names: Sequence[str]) -> Iterator[FileLine | Problem]:
    """Check ``partition.metadata``: its checksum, and that it names a topic's id."""
    if PARTITION_METADATA not in names:
        return
    path = f"{directory}/{PARTITION_METADATA}"
    yield FileLine(path, fs.file_size(path))
    try:
        read_partition_metadata(fs, directory)
    except CorruptLogError as error:
        yield Problem(
            path,
            0,
            -1,
            error.message.removeprefix(path).removeprefix(", position 0: ").partition("; restore")[0].strip(),
            "stop the broker and write the file again with the topic's id (docs/operations/damage.md, "
            "partition.metadata)",
        )


def _dump_segment(
    fs: FileSystem,
    path: str,
    base_offset: int,
    deep: bool,
    epochs: Sequence[EpochStart] | None = None,
    *,
    is_last: bool,
) -> Iterator[Line]:
    recovery_point = recovery_point_of(fs, os.path.dirname(path))
    file = fs.open(path)
    try:
        size = file.size()
        yield FileLine(path, size)
        position: int | None = 0
        next_offset, is_sound = base_offset, True
        while position is not None:
            found = scan(file, next_offset, position=position, epochs=epochs)
            for meta in found.batches:
                batch = file.pread(meta.size, position)
                header = read_header(batch)
                yield BatchLine(path, position, header)
                if deep:
                    yield from _records(path, position, batch, header)
                position += meta.size
            if found.problem is None:
                return
            torn = torn_tail(file, found, recovery_point=recovery_point, is_last=is_last) if is_sound else None
            if torn is not None:
                yield torn
                return
            is_sound, next_offset = False, found.next_offset
            position = find_sound_batch(file, found.end + 1, size, next_offset)
            rest = f"{size - found.end} bytes from here to the end, " + (
                "no sound batch in them" if position is None else f"the next sound batch is at position {position}"
            )
            yield Problem(path, found.end, next_offset, f"{found.problem}; {rest}")
    finally:
        file.close()


def _records(path: str, position: int, batch: bytes, header: BatchHeader) -> Iterator[Line]:
    try:
        records = decode_batch(batch, check_crc=False)
    except HeadraceError as error:
        yield Problem(path, position, header.base_offset, error.message)
        return
    offset = header.base_offset - 1
    for record in records:
        yield RecordLine(path, position, record)
        if not offset < record.offset <= header.last_offset:
            yield Problem(path, position, record.offset, f"a record with offset {record.offset} comes after {offset}")
        offset = record.offset
    latest_ms = max((record.timestamp_ms for record in records), default=-1)
    if records and latest_ms != header.max_timestamp_ms:
        yield Problem(
            path,
            position,
            header.base_offset,
            f"the batch's max timestamp is {header.max_timestamp_ms}, the largest timestamp of its records is "
            f"{latest_ms}",
        )


def _dump_index(fs: FileSystem, path: str) -> Iterator[Line]:
    base_offset, data = _base_offset(path), read_file(fs, path)
    yield FileLine(path, len(data))
    for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(data[: _whole(data, OFFSET_ENTRY)])):
        yield OffsetEntryLine(path, number, base_offset + relative, position)
    yield from check_index(path, data, base_offset, _batches_of(fs, path, INDEX_SUFFIX))


def _dump_time_index(fs: FileSystem, path: str) -> Iterator[Line]:
    base_offset, data = _base_offset(path), read_file(fs, path)
    yield FileLine(path, len(data))
    for number, (timestamp_ms, relative) in enumerate(TIME_ENTRY.iter_unpack(data[: _whole(data, TIME_ENTRY)])):
        yield TimeEntryLine(path, number, timestamp_ms, base_offset + relative)
    yield from check_time_index(path, data, base_offset, _batches_of(fs, path, TIME_INDEX_SUFFIX))


def _dump_txn_index(fs: FileSystem, path: str) -> Iterator[Line]:
    base_offset, data = _base_offset(path), read_file(fs, path)
    yield FileLine(path, len(data))
    for number, values in enumerate(ABORTED_ENTRY.iter_unpack(data[: _whole(data, ABORTED_ENTRY)])):
        yield AbortedLine(path, number, *values)
    fault = txn_index_fault(data, path, base_offset)
    if fault is not None:
        yield fault


def txn_index_fault(data: bytes, path: str, base_offset: int) -> Problem | None:
    """Return the fault that a transaction index shows without a comparison with the log; None if the index is sound."""
    if not data:
        what = "the file is empty"
        return Note(path, 0, -1, what, "nothing to do: the broker takes the aborted transactions from the log")
    try:
        check_entries(data, path, base_offset)
    except CorruptLogError as error:
        fault = problem_of(error, path=path)
        return Problem(path, fault.position, fault.offset, fault.what.removeprefix(f"{path}: "), TXN_INDEX_CURE)
    return None


def _dump_snapshot(fs: FileSystem, path: str) -> Iterator[Line]:
    data = read_file(fs, path)
    yield FileLine(path, len(data))
    try:
        table = ProducerTable.from_snapshot(data, path, 0)
    except CorruptLogError as error:
        yield snapshot_fault(data, path, error)
        return
    for number, entry in enumerate(table):
        last = entry.last_batch
        yield ProducerLine(
            path,
            number,
            entry.producer_id,
            entry.epoch,
            -1 if last is None else last.last_sequence,
            -1 if last is None else last.last_offset,
            0 if last is None else last.offset_delta,
            entry.last_timestamp_ms,
            entry.coordinator_epoch,
            -1 if entry.transaction_first_offset is None else entry.transaction_first_offset,
        )


def snapshot_fault(data: bytes, path: str, error: CorruptLogError) -> Problem:
    """Describe the fault of a producer snapshot. A roll does not force the snapshot to the disk, so a crash may leave
    the last snapshot damaged."""
    what = error.message.removeprefix(f"{path}: ")
    if is_torn_snapshot(data):
        return Note(path, 0, -1, what, "nothing to do: the next start takes the producers from the log")
    return Problem(path, 0, -1, what, "leave it: the next start takes the producers from the log, and replaces it")


def _whole(data: bytes, entry: struct.Struct) -> int:
    return len(data) - len(data) % entry.size


def check_index(path: str, data: bytes, base_offset: int, batches: Sequence[BatchMeta] | None) -> Iterator[Problem]:
    """Check an offset index against its segment's batches (None: the segment is missing)."""
    last_offsets, position = {}, 0
    for meta in batches or ():
        last_offsets[position] = meta.last_offset
        position += meta.size
    before = (-1, -1)
    for number, (relative, position) in enumerate(OFFSET_ENTRY.iter_unpack(data[: _whole(data, OFFSET_ENTRY)])):
        offset, at = base_offset + relative, number * OFFSET_ENTRY.size
        if relative <= before[0] or position <= before[1]:
            yield Problem(path, at, offset, f"entry {number} is not above the entry before it")
        before = (relative, position)
        if batches is None:
            yield Problem(path, at, offset, "the log file is missing")
        elif position not in last_offsets:
            yield Problem(path, at, offset, f"points to position {position} of the log, where no sound batch starts")
        elif last_offsets[position] != offset:
            yield Problem(
                path,
                at,
                offset,
                f"points to position {position}, where a batch ends with offset {last_offsets[position]}",
            )
    yield from _check_rest(path, data, OFFSET_ENTRY)


def check_time_index(
    path: str, data: bytes, base_offset: int, batches: Sequence[BatchMeta] | None
) -> Iterator[Problem]:
    """Check a time index against its segment's batches: an entry's timestamp must be larger than all timestamps in the
    batches before the entry's batch."""
    ends = [meta.last_offset for meta in batches or ()]
    latest = list(accumulate((meta.max_timestamp_ms for meta in batches or ()), max))
    before = (-1, -1)
    for number, (timestamp_ms, relative) in enumerate(TIME_ENTRY.iter_unpack(data[: _whole(data, TIME_ENTRY)])):
        offset, at = base_offset + relative, number * TIME_ENTRY.size
        if timestamp_ms <= before[0] or relative <= before[1]:
            yield Problem(path, at, offset, f"entry {number} is not above the entry before it")
        before = (timestamp_ms, relative)
        if batches is None:
            yield Problem(path, at, offset, "the log file is missing")
            continue
        holder = bisect_left(ends, offset)
        if holder == len(ends) or batches[holder].base_offset > offset:
            yield Problem(path, at, offset, "no batch of the log holds this offset")
        elif batches[holder].max_timestamp_ms != timestamp_ms:
            largest = batches[holder].max_timestamp_ms
            yield Problem(path, at, offset, f"says {timestamp_ms}, the batch's largest timestamp is {largest}")
        elif holder and latest[holder - 1] >= timestamp_ms:
            yield Problem(
                path, at, offset, f"says that {timestamp_ms} occurs first here, but an earlier batch has it too"
            )
    yield from _check_rest(path, data, TIME_ENTRY)


def _check_rest(path: str, data: bytes, entry: struct.Struct) -> Iterator[Problem]:
    whole = _whole(data, entry)
    if whole != len(data):
        yield Problem(path, whole, -1, f"{len(data) - whole} bytes at the end are not a whole entry")


def _batches_of(fs: FileSystem, path: str, suffix: str) -> Sequence[BatchMeta] | None:
    log = _open_log(fs, path, suffix)
    if log is None:
        return None
    try:
        batches = scan(log, _base_offset(path), check_crc=False).batches
        if any(meta.max_timestamp_ms >= 0 for meta in batches):
            return batches
        # Read the timestamps from the headers, because all batches are empty (compaction kept only their headers) and
        # ``scan`` ignores the time of an empty batch. The time index of a sealed segment has an entry even if all
        # batches are empty.
        places = [0, *accumulate(meta.size for meta in batches)]
        headers = [read_header(log.pread(HEADER_BYTES, position)) for position in places[:-1]]
        return [
            meta._replace(max_timestamp_ms=header.max_timestamp_ms)
            for meta, header in zip(batches, headers, strict=True)
        ]
    finally:
        log.close()


def _open_log(fs: FileSystem, index_path: str, suffix: str) -> File | None:
    path = index_path.removesuffix(suffix) + LOG_SUFFIX
    return fs.open(path) if fs.exists(path) else None
