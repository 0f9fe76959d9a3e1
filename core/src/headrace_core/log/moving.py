"""Move a partition's log to another directory of the broker while it is written and read (KIP-113).

    source                       target
    orders-0/                    orders-0.<32 hex digits>-future/    1  copied segment by segment, on a thread
    orders-0/ (appends wait)     orders-0.<...>-future/              2  the rest, all of it forced to the disk
    orders-0/moved-to            orders-0.<...>-future/              3  the marker, durable
    orders-0/moved-to            orders-0/                           4  the rename, durable: the COMMIT
    orders-0.<...>-delete/       orders-0/                           5  appends continue in the target

Two disks cannot change in one atomic step. A start after a crash must find out which of two directories holds the log,
even if only one of the directories is present. The marker is durable before the rename; it contains the target
directory and the name of the future log (the copy) in the target directory. A log *without* a marker is the partition's
log; a future log in the target directory is then an unfinished copy. For a log *with* a marker, the target directory
decides:

    the target directory has         then the log with the marker is
    -----------------------------    --------------------------------------------------------------------
    the partition's log              a leftover of the move: the broker deletes it
    the future log of this name      the partition's log, because the rename did not happen: the broker
                                     removes the marker, then the future log
    neither, and another
    directory has the log            a leftover of an older move: the broker deletes it
    neither, or is offline           unknown: the log is offline until the directory is back, or until an
                                     operator decides

To undo a move, remove the marker durably before you remove the future log.

All functions of this module block. ``LogCopy.begin`` and ``catch_up`` run on a separate thread; ``finish``
and ``commit`` together are one action of the source's ``DirectoryWriter``. OSError means that the source directory's
disk failed, TargetFailedError that the target directory's disk failed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import math
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..clock import Clock
from ..errors import DiskFullError, HeadraceError, StorageError
from ..types import TopicPartition
from .checkpoints import decode_id, encode_id
from .directory import LogDirectory
from .files import NO_SPACE, File, FileSystem, read_file, remove_tree, write_file_atomically
from .partition_log import PartitionLog
from .producer_state import SNAPSHOT_SUFFIX
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, LogSegment, segment_name
from .txn_index import TXN_INDEX_SUFFIX

MARKER = "moved-to"
FUTURE_SUFFIX = "-future"
CHUNK_BYTES = 1024 * 1024
_NAME_BYTES_MAX = 255
#: Seconds between two checks whether the rate limit has changed, while a copy waits because of the limit.
_RECONSIDER_S = 0.5
_FUTURE = re.compile(r"(.+)-(\d{1,10})\.[0-9a-f]{32}-future\Z")
_SEGMENT_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)\Z")
#: Suffixes of the files that a move copies with each sealed segment.
_BESIDE = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
#: Suffixes of temporary or deleted files, which are not copied.
_PASSING = (".tmp", ".deleted", ".cleaned", ".swap", MARKER)
#: Error numbers of a failed rename to a name that a file or another directory has.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
#: Error numbers of a failed rename that certainly changed nothing.
_NOT_DONE = (*NO_SPACE, errno.EROFS, *_OCCUPIED)


class MoveError(Exception):
    """Base of the errors of a move. No request fails with an error of a move: the node's log and the description of log
    directories show the result of a move."""


class TargetFailedError(MoveError):
    """The target directory has failed; ``__cause__`` is the OSError. The log stays in the source directory after the
    failure of the target."""


class MoveInDoubtError(MoveError):
    """It is unknown whether the rename that commits the move happened; the next start finds out from the disk.
    ``__cause__`` is the target's OSError, or a HeadraceError that does not concern the target's disk."""


class MarkerStaysError(MoveError):
    """The move failed, but its marker may remain in the source directory. The future log stays until the next start,
    because it proves that the move did not happen."""


class MoveCancelledError(MoveError):
    """The move was cancelled; the log stays in its directory."""


class LogWasCutError(MoveError):
    """The log was truncated during the copy, so the copy must start again."""


def future_name(partition: TopicPartition, move_id: uuid.UUID) -> str:
    """Return Kafka's name for the directory of a partition's future log."""
    suffix = f".{move_id.hex}{FUTURE_SUFFIX}"
    return str(partition)[: _NAME_BYTES_MAX - len(suffix)] + suffix


class Pace:
    """Limits the rate of a copy and cancels the copy. The rate can change while the copy runs."""

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        #: Whether the copy has waited for its rate limit since ``has_waited`` was set to False.
        self.has_waited = False
        self._cancelled = threading.Event()
        self._is_hurried = False
        self._owed_bytes = 0.0
        self._since_ms = clock.monotonic_ms()

    def cancel(self) -> None:
        """End the copy at its next chunk. Any thread."""
        self._cancelled.set()

    def set_rate(self, bytes_per_second: float) -> None:
        """Change the rate limit; the change takes effect within a second, also for a waiting copy. Any thread."""
        self._bytes_per_second = bytes_per_second

    def hurry(self) -> None:
        """Remove the rate limit, because appends wait for the rest of the copy."""
        self._is_hurried = True

    def check(self) -> None:
        """Raise MoveCancelledError if ``cancel`` was called."""
        if self._cancelled.is_set():
            raise MoveCancelledError("the move was cancelled; the log stays in its directory")

    def wait(self, size: int) -> None:
        """Wait until the rate allows the copy to continue after ``size`` bytes. Raises MoveCancelledError."""
        self._owed_bytes += size
        while not self._is_hurried and (rate := self._bytes_per_second) < math.inf:
            now_ms = self._clock.monotonic_ms()
            self._owed_bytes = max(self._owed_bytes - (now_ms - self._since_ms) * rate / 1000, 0.0)
            self._since_ms = now_ms
            delay_s = self._owed_bytes / rate
            if delay_s < 0.001:
                break
            self.has_waited = True
            self._cancelled.wait(min(delay_s, _RECONSIDER_S))
            self.check()
        self.check()


@contextlib.contextmanager
def _on_target(root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFullError(
                f"{root}: no space left for the copy ({error.strerror}); the log stays in its directory"
            ) from error
        raise TargetFailedError(f"log directory {root} failed while a log was moved to it: {error}") from error


class _SegmentCopy:
    """Progress of the copy of one segment."""

    __slots__ = ("file", "segment", "size")

    def __init__(self, segment: LogSegment, file: File) -> None:
        self.segment = segment
        self.size = 0
        self.file: File | None = file  #: The open file of the copy; None when the copy is complete and durable.


class LogCopy:
    """Copies one log to another directory. ``room``: a function of a number of bytes, which returns DiskFullError if
    the target lacks space for these bytes, else None."""

    def __init__(
        self,
        fs: FileSystem,
        log: PartitionLog,
        target_root: str,
        *,
        move_id: uuid.UUID,
        pace: Pace,
        room: Callable[[int], DiskFullError | None] = lambda size: None,
    ) -> None:
        self.log = log
        self.name = future_name(log.topic_partition, move_id)
        self.path = f"{target_root}/{self.name}"
        self._target_path = f"{target_root}/{log.topic_partition}"
        self.copied_bytes = 0
        self.end_offset = log.log_start_offset  #: Approximate end offset of the log's copy.
        self._fs = fs
        self._target_root = target_root
        self._pace = pace
        self._room = room
        self._copies: dict[int, _SegmentCopy] = {}
        self._cuts = log.cuts

    def begin(self) -> None:
        """Create the directory of the future log, durably. Raises DiskFullError, TargetFailedError, and StorageError if
        the target directory already has something of the log's name."""
        with _on_target(self._target_root):
            if self._fs.exists(self._target_path):
                raise self._occupied()
            self._fs.mkdir(self.path)
            self._fs.sync_directory(self._target_root)

    def catch_up(self) -> int:
        """Copy the bytes that the copy lacks; returns how many bytes were appended to the log during the copying. All
        copied bytes are durable in both directories when ``catch_up`` returns, so ``finish`` has few bytes to sync
        while all appends to the source wait. Raises DiskFullError, TargetFailedError, MoveCancelledError,
        LogWasCutError, and OSError of the source."""
        self._copy_all()
        self._force_active()
        return max(self.log.size_bytes - self.copied_bytes, 0)

    def _copy_all(self) -> None:
        if self.log.is_closed:
            raise MoveCancelledError(f"the log of {self.log.topic_partition} was closed while it was moved")
        self._check_not_cut()
        segments, end_offset = self.log.segments, self.log.log_end_offset
        self._drop_all_but(segments)
        for number, segment in enumerate(segments):
            try:
                self._copy(segment, is_sealed=number < len(segments) - 1)
            except OSError:
                if segment in self.log.segments:
                    # the segment was deleted or compacted during the copy; the next pass copies what has replaced it
                    raise
        self.end_offset = end_offset
        self._check_not_cut()

    def _force_active(self) -> None:
        for copy in self._copies.values():
            if copy.file is None:
                continue
            # Sync the segment through a separate descriptor, because the log's own file must stay marked as unsynced.
            with contextlib.suppress(FileNotFoundError):
                source = self._fs.open(copy.segment.path, write=True)
                try:
                    source.sync()
                finally:
                    source.close()
            with _on_target(self._target_root):
                copy.file.sync()

    def _check_not_cut(self) -> None:
        if self.log.cuts != self._cuts:
            raise LogWasCutError(f"{self.log.directory} was truncated while it was copied")

    def _drop_all_but(self, segments: Sequence[LogSegment]) -> None:
        """Remove copied segments that retention or compaction has removed from the log."""
        present = set(segments)
        for base, copy in list(self._copies.items()):
            if copy.segment in present:
                continue
            if copy.file is not None:
                copy.file.close()
            with _on_target(self._target_root):
                for suffix in (LOG_SUFFIX, *_BESIDE):
                    with contextlib.suppress(FileNotFoundError):
                        self._fs.unlink(f"{self.path}/{segment_name(base)}{suffix}")
            self.copied_bytes -= copy.size
            del self._copies[base]

    def _copy(self, segment: LogSegment, *, is_sealed: bool) -> None:
        stem = f"{self.path}/{segment_name(segment.base_offset)}"
        copy = self._copies.get(segment.base_offset)
        if copy is None:
            with _on_target(self._target_root):
                file = self._fs.open(stem + LOG_SUFFIX, write=True, create=True)
            copy = self._copies[segment.base_offset] = _SegmentCopy(segment, file)
        if copy.file is None:
            return
        end = segment.size
        while copy.size < end:
            self._pace.check()
            chunk = segment.log.pread(min(CHUNK_BYTES, end - copy.size), copy.size)
            if not chunk:
                self._check_not_cut()
                raise OSError(
                    errno.EIO, f"{segment.path} has {copy.size} bytes, but {end} bytes were written", segment.path
                )
            if (full := self._room(len(chunk))) is not None:
                raise full
            with _on_target(self._target_root):
                copy.file.pwritev([chunk], copy.size)
            copy.size += len(chunk)
            self.copied_bytes += len(chunk)
            self._pace.wait(len(chunk))
        if is_sealed:
            self._complete(segment, copy, stem)

    def _complete(self, segment: LogSegment, copy: _SegmentCopy, stem: str) -> None:
        source = segment.path.removesuffix(LOG_SUFFIX)
        indexes = {}
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                indexes[suffix] = read_file(self._fs, source + suffix)
        try:
            modified_ms: int | None = self._fs.modified_ms(segment.path)
        except FileNotFoundError:
            modified_ms = None
        assert copy.file is not None
        with _on_target(self._target_root):
            copy.file.sync()
            copy.file.close()
            if modified_ms is not None:  # retention uses the file's time if the records have no plausible time
                self._fs.set_modified_ms(stem + LOG_SUFFIX, modified_ms)
            for suffix, data in indexes.items():
                self._write(stem + suffix, data)
        copy.file = None

    def _write(self, path: str, data: bytes) -> None:
        file = self._fs.open(path, write=True, create=True)
        try:
            file.truncate(0)
            file.pwritev([data], 0)
            file.sync()
        finally:
            file.close()

    def abandon(self) -> None:
        """Remove the copy. OSError means that the target directory's disk failed."""
        for copy in self._copies.values():
            if copy.file is not None:
                copy.file.close()
        if self._fs.is_directory(self.path):
            remove_tree(self._fs, self.path)
            self._fs.sync_directory(self._target_root)

    def finish(self) -> None:
        """Seal the source's active segment, and make the copy complete and durable. The source must get no appends
        after ``finish``. Raises the errors of ``catch_up``."""
        self._check_not_cut()
        self.log.roll()
        self._copy_all()
        for copy in self._copies.values():
            if copy.file is not None:  # ``copy.file`` is open only for the new active segment, which is empty
                self._complete(copy.segment, copy, f"{self.path}/{segment_name(copy.segment.base_offset)}")
        for name in self._fs.listdir(self.log.directory):
            if _SEGMENT_FILE.match(name) or name.endswith(_PASSING):
                continue
            data = read_file(self._fs, f"{self.log.directory}/{name}")
            with _on_target(self._target_root):
                self._write(f"{self.path}/{name}", data)
        with _on_target(self._target_root):
            self._fs.sync_directory(self.path)

    def commit(self, target_id: uuid.UUID) -> None:
        """Make the copy the partition's log. After MoveInDoubtError the caller does not know whether the move happened.
        After MarkerStaysError, TargetFailedError and other HeadraceErrors the move did not happen. OSError means that
        the source directory's disk failed."""
        source = self.log.directory
        try:
            write_file_atomically(self._fs, f"{source}/{MARKER}", MoveMarker(target_id, self.name).encode())
        except (OSError, HeadraceError):  # the marker may exist nevertheless, if only the sync of its name failed
            self._take_marker_back(source)
            raise
        try:
            self._fs.rename(self.path, self._target_path)
        except OSError as error:
            if error.errno not in _NOT_DONE:
                raise self._in_doubt(error) from error
            self._take_marker_back(source)
            if error.errno in _OCCUPIED:  # something took the name after ``begin``; the disk has not failed
                raise self._occupied() from error
            with _on_target(self._target_root):
                raise
        try:
            self._fs.sync_directory(self._target_root)
        except (OSError, HeadraceError) as error:
            raise self._in_doubt(error) from error

    def _take_marker_back(self, source: str) -> None:
        """Remove the marker before the future log is removed, because the next start cannot trust a log that has a
        marker but no future log. Raises MarkerStaysError, and OSError (never for lack of space) of the source
        directory."""
        try:
            if self._fs.exists(f"{source}/{MARKER}"):
                remove_marker(self._fs, source)
        except HeadraceError as error:
            raise MarkerStaysError(f"{source}/{MARKER} cannot be removed durably: {error}") from error
        except OSError as error:
            raise OSError(
                errno.EIO,
                "cannot remove the marker file of the unfinished move to another log directory: "
                f"{error.strerror or error}",
                f"{source}/{MARKER}",
            ) from error

    def _occupied(self) -> StorageError:
        return StorageError(
            f"{self._target_path} exists and is not a log of this broker: the log stays in its directory; move "
            f"{self._target_path} away, then move the log again"
        )

    def _in_doubt(self, error: Exception) -> MoveInDoubtError:
        return MoveInDoubtError(
            f"{self.log.topic_partition} was being moved from {self.log.directory} to {self._target_root}, and the "
            f"target directory failed during the last step ({error}): restart the broker with both directories to "
            "find out which of the two has the log"
        )


@dataclass(frozen=True, slots=True)
class MoveMarker:
    """Marker in a log that may have been moved: the target directory, and the name of the copy before the rename."""

    directory_id: uuid.UUID
    future: str

    def encode(self) -> bytes:
        return json.dumps({"version": 0, "directory": encode_id(self.directory_id), "future": self.future}).encode()


def read_marker(fs: FileSystem, log_directory: str) -> MoveMarker | None:
    """Read the marker of a log; None when the log has no marker, ValueError when the marker is damaged."""
    path = f"{log_directory}/{MARKER}"
    if not fs.exists(path):
        return None
    try:
        content = json.loads(read_file(fs, path))
        return MoveMarker(decode_id(content["directory"]), str(content["future"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def remove_marker(fs: FileSystem, log_directory: str) -> None:
    """Remove the marker, durably: from then on ``log_directory`` is the partition's log at every start."""
    fs.unlink(f"{log_directory}/{MARKER}")
    fs.sync_directory(log_directory)


class Leftovers(NamedTuple):
    """The traces of interrupted moves in a log directory: unfinished copies and markers."""

    #: The partition of each unfinished copy, by the name of the copy's directory; None if the name was shortened, so
    #: that it does not show the partition.
    futures: dict[str, TopicPartition | None]
    markers: dict[TopicPartition, MoveMarker]
    #: Partitions with an unreadable move marker, each with the reason why the marker is unreadable.
    damaged: dict[TopicPartition, str]


def find_leftovers(directory: LogDirectory) -> Leftovers:
    """Find the traces of interrupted moves in an opened directory, with one lookup for each log."""
    found = Leftovers({}, {}, {})
    for name in directory.fs.listdir(directory.root):
        if name.endswith(FUTURE_SUFFIX):
            match = _FUTURE.match(name)
            found.futures[name] = None if match is None else TopicPartition(match[1], int(match[2]))
    for partition, _ in directory.holdings():
        try:
            marker = read_marker(directory.fs, f"{directory.root}/{partition}")
        except ValueError as error:
            found.damaged[partition] = str(error)
            continue
        if marker is not None:
            found.markers[partition] = marker
    return found


class Marked(enum.Enum):
    """The decision about a log that has a move marker, by the table in the module's docstring."""

    LOG = "kept: the move was not committed"
    STALE = "removed: the log is in the other directory"
    UNKNOWN = "not known"


def judge_marked(
    found: Mapping[uuid.UUID, Leftovers], holdings: Mapping[uuid.UUID, Collection[TopicPartition]]
) -> dict[tuple[uuid.UUID, TopicPartition], Marked]:
    """Decide for each log with a marker, by the table in the module's docstring, which copy is the partition's log.
    ``found``: for each online directory id, what interrupted moves left in the directory (unfinished copies and
    markers). ``holdings``: for each online directory id, the partitions whose logs are in the directory, including logs
    with a marker."""
    verdicts: dict[tuple[uuid.UUID, TopicPartition], Marked] = {}
    for directory_id, left in found.items():
        for partition, marker in left.markers.items():
            target = found.get(marker.directory_id)
            committed = target is None or marker.future not in target.futures
            verdicts[directory_id, partition] = Marked.UNKNOWN if committed else Marked.LOG
        verdicts |= {(directory_id, partition): Marked.UNKNOWN for partition in left.damaged}
    logs = {
        item for one, items in holdings.items() for item in items if verdicts.get((one, item)) in (None, Marked.LOG)
    }
    for (directory_id, partition), verdict in verdicts.items():
        if verdict is Marked.UNKNOWN and partition in logs and partition not in found[directory_id].damaged:
            verdicts[directory_id, partition] = Marked.STALE
    return verdicts
