"""Read the files of a metadata log, record by record. See the package.

The end of a controller's log may hold entries without a majority, which a later leader may truncate.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import CorruptMessageError, HeadraceError, InvalidArgumentError
from ..log.dump import BatchLine, Note, Problem, RecordLine, dump
from ..log.files import FileSystem, read_file
from ..log.segment import LOG_SUFFIX
from ..metadata.codec import decode_record
from ..metadata.records import MetadataRecord
from ..node.first_voters import METADATA_DIRECTORY
from ..records import BatchHeader, Record, check_batch, decode_batch

CHECKPOINT_SUFFIX = ".checkpoint"
_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint\Z")
_SEGMENT = re.compile(r"(\d{20})\.log\Z")
#: Text of the note about the end of a log that a controller may still be writing.
_UNDER_WAY = "an append is in progress, or a crash interrupted it; a controller removes these bytes when it starts"


@dataclass(frozen=True, slots=True)
class Found:
    """One record of a metadata log: its file, the position of its batch, and its bytes."""

    path: str
    position: int
    header: BatchHeader
    record: Record

    def decoded(self) -> MetadataRecord:
        """The decision. CorruptLogError, UnsupportedVersionError."""
        value = self.record.value
        return decode_record(bytes(value) if value is not None else None)


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """The files of a metadata log: (offset, term) of its snapshots, ascending, and the base offsets of its segments."""

    directory: str
    snapshots: tuple[tuple[int, int], ...]
    segments: tuple[int, ...]

    def snapshot_path(self, snapshot: tuple[int, int]) -> str:
        return f"{self.directory}/{snapshot[0]:020d}-{snapshot[1]:010d}{CHECKPOINT_SUFFIX}"

    def segment_path(self, base_offset: int) -> str:
        return f"{self.directory}/{base_offset:020d}{LOG_SUFFIX}"


def find(fs: FileSystem, path: str) -> MetadataFiles:
    """Find the metadata log in ``path``, which is the log's directory, a node's log directory, or a node's
    metadata.log.dir.

    Raises InvalidArgumentError, which lists the directory's contents, if there is no metadata log.
    """
    path = path.rstrip("/") or "/"
    if not fs.exists(path):
        raise InvalidArgumentError(f"{path}: no such file or directory")
    if not fs.is_directory(path):
        raise InvalidArgumentError(f"{path} is a file; name the directory of a metadata log, or of a node")
    inside = f"{path}/{METADATA_DIRECTORY}"
    directory = inside if fs.exists(inside) else path
    names = fs.listdir(directory)
    snapshots = sorted((int(match[1]), int(match[2])) for match in map(_CHECKPOINT.match, names) if match)
    segments = sorted(int(match[1]) for match in map(_SEGMENT.match, names) if match)
    is_other = directory == path and os.path.basename(os.path.abspath(path)) != METADATA_DIRECTORY
    if not (snapshots or segments) or (is_other and not snapshots):
        nodes = [name for name in sorted(names) if fs.exists(f"{path}/{name}/{METADATA_DIRECTORY}")]
        others = f"; name one of {', '.join(nodes)} in it" if nodes else ""
        raise InvalidArgumentError(f"{path}: no metadata log in this directory{others}")
    return MetadataFiles(directory, tuple(snapshots), tuple(segments))


def read(fs: FileSystem, path: str) -> Iterator[Found | Problem]:
    """Yield every record of all snapshots, then of all segments; or only of the file ``path``. Yields a Problem for
    each fault, and a Note for an irregularity that is no damage. InvalidArgumentError as ``find``."""
    if path.endswith((CHECKPOINT_SUFFIX, LOG_SUFFIX)) and fs.exists(path) and not fs.is_directory(path):
        yield from read_snapshot(fs, path) if path.endswith(CHECKPOINT_SUFFIX) else read_segment(fs, path)
        return
    files = find(fs, path)
    for snapshot in files.snapshots:
        yield from read_snapshot(fs, files.snapshot_path(snapshot))
    yield from read_log(fs, files)


def read_log(fs: FileSystem, files: MetadataFiles, start_offset: int = 0) -> Iterator[Found | Problem]:
    """Read the segments that reach beyond ``start_offset``, and check that each segment begins where the segment before
    it ended."""
    end: int | None = None
    for number, base_offset in enumerate(files.segments):
        if files.segments[number + 1 : number + 2] and files.segments[number + 1] <= start_offset:
            continue
        path = files.segment_path(base_offset)
        if end is not None and end != base_offset:
            yield Problem(path, 0, end, f"offsets {end} to {base_offset - 1} are missing before this segment")
        end = base_offset
        for line in read_segment(fs, path):
            if isinstance(line, Problem):
                end = None
            elif end is not None:
                end = line.header.next_offset
            yield line


def read_segment(fs: FileSystem, path: str) -> Iterator[Found | Problem]:
    header: BatchHeader | None = None
    for line in dump(path, deep=True, fs=fs):
        if isinstance(line, BatchLine):
            header = line.header
        elif isinstance(line, RecordLine):
            assert header is not None
            yield Found(line.path, line.position, header, line.record)
        elif isinstance(line, Note):
            yield Note(line.path, line.position, line.offset, line.what, _UNDER_WAY)
        elif isinstance(line, Problem):
            yield line


def read_snapshot(fs: FileSystem, path: str) -> Iterator[Found | Problem]:
    """Read one snapshot, up to its first damaged batch."""
    data = read_file(fs, path)
    position, offset = 0, 0
    while position < len(data):
        try:
            header = check_batch(data, position)
            records = decode_batch(data, position, check_crc=False)
        except (CorruptMessageError, HeadraceError) as error:
            yield Problem(path, position, offset, f"{error.message}; the rest of the file is not read")
            return
        for record in records:
            yield Found(path, position, header, record)
        position, offset = position + header.size, header.next_offset
