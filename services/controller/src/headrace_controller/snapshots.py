"""Snapshot files of the metadata log, in its directory (``__cluster_metadata-0``):

    <offset, 20 digits>-<term, 10 digits>.checkpoint    whole, durable, checked
    ....checkpoint.tmp                                  being made from an image of our own (SnapshotJob, any thread)
    ....checkpoint.part                                 being received from the leader, chunk by chunk
    00000000000000000000-0000000000.checkpoint          no state, but the first voters: written by ``format`` (KIP-853)

``headrace_core.metadata.snapshot`` defines the bytes of a snapshot file. A snapshot file gets its final name only when
it is durable and, if it was received, checked. The next start of the controller removes snapshot files without a final
name. ``storage.py`` decides which snapshots are used; this module does not use the log.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from headrace_core.errors import CorruptLogError, DiskFullError, InvalidConfigError
from headrace_core.log.files import NO_SPACE, FileSystem, make_directories, read_file, write_file_atomically
from headrace_core.log.space import RESERVE_PART_MAX
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage
from headrace_core.metadata.snapshot import (
    SNAPSHOT_SUFFIX,
    check_snapshot,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
    snapshot_name,
)

from .control_records import snapshot_voters, voter_set
from .quorum_state import QUORUM_STATE
from .raft import Place, SnapshotChunk, SnapshotId, VoterSet

logger = logging.getLogger("headrace.controller")

METADATA_DIRECTORY = "__cluster_metadata-0"
BEGINNING = Place(0, 0)  #: The place before the first entry of a whole log, which starts at offset 0.
_PART = ".part"
_TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class DamagedSnapshot:
    """A file with a snapshot's name and damaged contents."""

    place: Place
    error: CorruptLogError


class SnapshotJob:
    """A snapshot to be written from an immutable image. ``run`` may be called once, in any thread. After ``run``, call
    ``finish_snapshot`` of the storage, or ``abandon``."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        image: MetadataImage,
        snapshot: SnapshotId,
        *,
        timestamp_ms: int,
        reserve_bytes: int,
    ) -> None:
        self.snapshot = snapshot
        self.path = f"{directory}/{snapshot_name(*snapshot.place)}"
        self.size = 0  #: Size of the written snapshot file in bytes.
        self._fs = fs
        self._directory = directory
        self._image = image
        self._timestamp_ms = timestamp_ms
        self._reserve_bytes = reserve_bytes

    @property
    def temporary_path(self) -> str:
        return self.path + _TEMPORARY

    def run(self) -> None:
        """Write and flush the temporary file of the snapshot; an error removes the file. Raises DiskFullError if the
        disk has no space beyond the reserve, and OSError if the disk failed."""
        try:
            self._write()
        except OSError as error:
            self.abandon()
            if error.errno not in NO_SPACE:
                raise
            raise DiskFullError(
                f"{self.path}: cannot write a snapshot: no space left on the disk ({error.strerror})"
            ) from None
        except DiskFullError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove the file that the snapshot job has written."""
        with contextlib.suppress(OSError):
            self._fs.unlink(self.temporary_path)

    def _write(self) -> None:
        file = self._fs.open(self.temporary_path, write=True, create=True)
        try:
            file.truncate(0)
            voters = snapshot_voters(self.snapshot.voters)
            for piece in encode_snapshot(self._image, voters=voters, timestamp_ms=self._timestamp_ms):
                self._check_room(len(piece))
                file.pwritev([piece], self.size)
                self.size += len(piece)
            file.sync()
        finally:
            file.close()

    def _check_room(self, size: int) -> None:
        free = self._fs.free_bytes(self._directory)
        reserve = min(self._reserve_bytes, self._fs.total_bytes(self._directory) // RESERVE_PART_MAX)
        if free - size < reserve:
            raise DiskFullError(
                f"{self.path}: cannot write a snapshot: {free} bytes are free and {reserve} are reserved "
                "(log.dir.reserve.bytes); free some space"
            )


def _check_file(fs: FileSystem, path: str, place: Place) -> SnapshotId:
    """Raise CorruptLogError unless the file is complete, undamaged, and a snapshot of ``place``. Raises
    FileNotFoundError, OSError."""
    try:
        found = check_snapshot(read_file(fs, path))
    except CorruptLogError as error:
        raise CorruptLogError(f"{path}: {error.message}") from None
    if (found.next_offset, found.epoch) != place:
        raise CorruptLogError(
            f"{path}: the file's name means snapshot {place}, but the file contains snapshot "
            f"{found.next_offset}/{found.epoch}; rename or remove the file"
        )
    return SnapshotId(place, voter_set(found.voters))


class SnapshotStore:
    """The snapshot files of one metadata log. ``snapshots`` has the undamaged snapshots in ascending order; ``damaged``
    has the damaged snapshots."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        """Read and check every snapshot file, and remove unfinished files. Raises OSError."""
        self.directory = directory
        self.snapshots: list[SnapshotId] = []
        self.damaged: list[DamagedSnapshot] = []
        self._fs = fs
        names = fs.listdir(directory)
        for name in names:
            if name.endswith((SNAPSHOT_SUFFIX + _PART, SNAPSHOT_SUFFIX + _TEMPORARY)):
                fs.unlink(f"{directory}/{name}")
        for offset, term in sorted(filter(None, map(parse_snapshot_name, names))):
            self._admit(Place(offset, term))

    def _admit(self, place: Place) -> None:
        try:
            self.snapshots.append(_check_file(self._fs, self.path(place), place))
        except CorruptLogError as error:
            logger.error("%s", error.message)
            self.damaged.append(DamagedSnapshot(place, error))

    @property
    def newest(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def names_first_voters(self) -> bool:
        """Whether ``format`` wrote the first voters into a snapshot. (If a snapshot has the first voters from
        ``format``, no other file contains them.)"""
        return self.find(BEGINNING) is not None or any(each.place == BEGINNING for each in self.damaged)

    def find(self, place: Place) -> SnapshotId | None:
        return next((each for each in self.snapshots if each.place == place), None)

    def path(self, place: Place) -> str:
        return f"{self.directory}/{snapshot_name(*place)}"

    def load(self, snapshot: SnapshotId) -> MetadataImage:
        """Load the image of a snapshot; may run in any thread. Raises CorruptLogError, UnsupportedVersionError,
        OSError."""
        if snapshot.place == BEGINNING:
            return EMPTY_IMAGE
        path = self.path(snapshot.place)
        try:
            return decode_snapshot(read_file(self._fs, path))[0]
        except CorruptLogError as error:
            raise CorruptLogError(f"{path}: {error.message}") from None

    def read(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """Bytes of a snapshot from ``position`` on, and whether the snapshot ends with them; None if the snapshot was
        removed. Raises CorruptLogError if the snapshot has become damaged, so that damaged bytes are not sent."""
        known = self.find(snapshot.place)
        if known is None or known.voters != snapshot.voters:
            return None
        path = self.path(snapshot.place)
        if position == 0:
            _check_file(self._fs, path, snapshot.place)
        file = self._fs.open(path)
        try:
            data = file.pread(max_bytes, position)
            return data, position + len(data) >= file.size()
        finally:
            file.close()

    def write_chunk(self, chunk: SnapshotChunk) -> bool:
        """Write a snapshot chunk durably. Returns False, and removes the file, if the chunk does not follow the bytes
        in the file. Also returns False if the completed snapshot is damaged, or is not the expected snapshot. Raises
        DiskFullError (and removes the file), UnsupportedVersionError for a snapshot of a newer Headrace, and
        OSError."""
        path = self.path(chunk.snapshot.place) + _PART
        if chunk.position == 0:
            self._forget_parts()
        try:
            is_written = self._write_at(path, chunk)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._forget_parts()
            raise DiskFullError(
                f"{path}: cannot write a received snapshot: no space left on the disk ({error.strerror})"
            ) from None
        if is_written and (not chunk.is_last or self._is_sound(path, chunk.snapshot)):
            return True
        self._forget_parts()
        return False

    def _write_at(self, path: str, chunk: SnapshotChunk) -> bool:
        if chunk.position and not self._fs.exists(path):
            return False
        file = self._fs.open(path, write=True, create=True)
        try:
            if file.size() < chunk.position:
                return False
            if file.size() > chunk.position:  # the chunk was written earlier, and its answer was lost
                file.truncate(chunk.position)
            if chunk.data:
                file.pwritev([chunk.data], chunk.position)
            file.sync()
        finally:
            file.close()
        return True

    def _is_sound(self, path: str, snapshot: SnapshotId) -> bool:
        try:
            found = _check_file(self._fs, path, snapshot.place)
        except CorruptLogError as error:
            logger.warning(
                "the received snapshot %s is damaged, requesting the snapshot again: %s", snapshot, error.message
            )
            return False
        if found.voters != snapshot.voters:
            logger.warning(
                "the received snapshot %s does not match the announcement: it has the voters %s; requesting the "
                "snapshot again",
                snapshot,
                found.voters,
            )
            return False
        return True

    def _forget_parts(self) -> None:
        for name in self._fs.listdir(self.directory):
            if name.endswith(SNAPSHOT_SUFFIX + _PART):
                self._fs.unlink(f"{self.directory}/{name}")

    def accept_received(self, snapshot: SnapshotId) -> None:
        """Accept, durably, the received snapshot whose last chunk was found undamaged."""
        if self.find(snapshot.place) is None:
            self._name(self.path(snapshot.place) + _PART, snapshot)

    def accept(self, job: SnapshotJob) -> None:
        """Accept, durably, the snapshot that ``job`` has written."""
        self._name(job.temporary_path, job.snapshot)

    def _name(self, temporary: str, snapshot: SnapshotId) -> None:
        self._fs.rename(temporary, self.path(snapshot.place))
        self._fs.sync_directory(self.directory)
        self.damaged = [each for each in self.damaged if each.place != snapshot.place]
        self.snapshots = sorted(
            [*(each for each in self.snapshots if each.place != snapshot.place), snapshot],
            key=lambda each: each.place,
        )

    def remove_before(self, place: Place) -> None:
        """Remove the snapshots before ``place``, durably, because the log begins at ``place``."""
        places = [each.place for each in self.snapshots] + [each.place for each in self.damaged]
        gone = [each for each in places if each.offset < place.offset]
        self.snapshots = [each for each in self.snapshots if each.place.offset >= place.offset]
        self.damaged = [each for each in self.damaged if each.place.offset >= place.offset]
        for old in gone:
            self._fs.unlink(self.path(old))


def write_first_voters(fs: FileSystem, root: str, voters: VoterSet) -> None:
    """Write the first voters into a formatted controller's directory, as an empty snapshot (KIP-853). The file is
    durable when the call returns; a repeated call changes nothing. A node that was formatted without voters waits until
    it is added to a quorum.

    Raises InvalidConfigError if the directory already names other voters, or has a metadata log, which must not be
    started again. Raises CorruptLogError if the snapshot file in the directory is damaged. Raises OSError.
    """
    directory = f"{root.rstrip('/')}/{METADATA_DIRECTORY}"
    path = f"{directory}/{snapshot_name(*BEGINNING)}"
    if fs.is_directory(directory):
        if fs.exists(path):
            known = _check_file(fs, path, BEGINNING).voters
            if known == voters and known.addresses == voters.addresses:
                return
            raise InvalidConfigError(f"{path} names the voters {known}; refusing to overwrite it with {voters}")
        names = fs.listdir(directory)
        if any(name.endswith((".log", SNAPSHOT_SUFFIX)) or name == QUORUM_STATE for name in names):
            raise InvalidConfigError(
                f"{directory} already has a metadata log, which names the voters; format an empty directory"
            )
    make_directories(fs, directory)
    pieces = encode_snapshot(EMPTY_IMAGE, voters=snapshot_voters(voters), timestamp_ms=0)
    write_file_atomically(fs, path, b"".join(pieces))
