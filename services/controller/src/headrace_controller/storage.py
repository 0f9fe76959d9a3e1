"""A voter's disk, in the first directory of log.dirs:

    __cluster_metadata-0/                 the metadata log, an ordinary log of record batches (headrace_core.log)
    __cluster_metadata-0/....checkpoint   snapshots of the state (snapshots.py)
    __cluster_metadata-0/quorum-state     term and vote (quorum_state.py)
    __cluster_metadata-0/outdated-copy    the directory is an older copy, and is never used again (raft/memory.py)

The directory is locked while a controller uses it. Opening the directory truncates an incomplete batch at the end of
the log. Damage before the last batch raises CorruptLogError, and the controller does not start: a metadata log with a
hole must never be served. A last batch that is complete but wrong also counts as damage
(``LogConfig.refuse_whole_tail``), because the voter may have acknowledged this batch.

The metadata log begins after the second newest snapshot, not after the newest. Because older entries stay in the log, a
follower that is a little behind finds in the log the entries that it lacks. If the newest snapshot is damaged, the
second newest snapshot and the log replace it.

      snapshot n-1                     snapshot n
           |  log ...                       |  ... log          |
         start                                                 end

The possible states of the disk after a crash, and how opening treats them:

    the log starts at          snapshots                      it is
    -------------------------  -----------------------------  --------------------------------------------------------
    0                          none, or of the first voters   a log that was never trimmed
    a snapshot's place         it, and newer ones below the   as drawn above (older ones: their removal was interrupted)
                               log's end
    any                        the newest is beyond the       a snapshot was received, and the log was about to begin
                               log's end                      behind it: it does now
    any                        the newest that fits is        the one before, if the log reaches from it beyond the
                               damaged                        damaged one; else CorruptLogError
    above 0                    none from there on             CorruptLogError: the entries before the log are lost
    nowhere                    any                            CorruptLogError where there was a log (its recovery point
                                                              says so): a new one would lose the voter's promises

The controller treats a disk as full while a reserve is still free. Requests that add metadata are refused (``refusal``)
while the reserve (``log.dir.reserve.bytes``) still has space for terms, registrations, elections, fencing and
deletions.

All methods are synchronous: metadata writes are small, and a small fdatasync is faster than handing it to a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace_core.clock import Clock
from headrace_core.config import INT_MAX, LONG_MAX
from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    OffsetOutOfRangeError,
    OutdatedVoterError,
    StorageError,
)
from headrace_core.log.appending import Append
from headrace_core.log.checkpoints import RECOVERY_POINTS, read_offsets
from headrace_core.log.config import LogConfig
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem, read_file, write_file_atomically
from headrace_core.log.space import SpaceGauge
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage
from headrace_core.metadata.codec import MetadataBatch, decode_batches
from headrace_core.metrics.histogram import Histogram
from headrace_core.records import iterate_headers
from headrace_core.types import TopicPartition

from .control_records import check_entry, decode_entry, leader_change_of
from .quorum_state import QUORUM_STATE, read_quorum_state, write_quorum_state
from .raft import Entry, HardState, Place, Room, SnapshotChunk, SnapshotId, Stored, VoterSet
from .snapshots import BEGINNING, SnapshotJob, SnapshotStore, write_first_voters

__all__ = [
    "DEFAULT_RESERVE_BYTES",
    "METADATA_PARTITION",
    "QUORUM_STATE",
    "SEGMENT_BYTES",
    "MetadataStorage",
    "SnapshotJob",
    "write_first_voters",
]

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
#: File in the directory of the log: the directory is an older copy, and must never be used again. It has the reason.
OUTDATED = "outdated-copy"
METADATA_TOPIC_ID = uuid.UUID(int=1)  #: The topic id that Kafka reserves for the metadata log.

logger = logging.getLogger("headrace.controller")

#: The advice in errors for a voter that has lost its log.
_AS_A_NEW_ONE = (
    "add this controller to the quorum as a new voter: remove the directory, then `headrace format "
    "--no-initial-controllers` (docs/operations/controllers.md, A voter loses its disk)"
)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_READ_BYTES = 1 << 20
_RECORD_BYTES_ABOUT = 256  #: Estimated bytes of a record in the log, rounded up.
DEFAULT_RESERVE_BYTES = 64 * 1024 * 1024
#: Number of records between two recovery points. Recovery after a crash scans at most this number of records.
_RECOVERY_POINT_EVERY = 10_000
SEGMENT_BYTES = 16 * 1024 * 1024  #: Size of the log's segments. The removal of old entries removes whole segments.
_LOG_CONFIG = LogConfig(
    segment_bytes=SEGMENT_BYTES,
    segment_ms=LONG_MAX,
    message_bytes_max=INT_MAX,
    timestamp_after_max_ms=LONG_MAX,
    retention_ms=None,
    cleanup_delete=False,
    file_delete_delay_ms=0,
    refuse_whole_tail=True,
)


def _refuse_lost_log(fs: FileSystem, root: str) -> None:
    """Refuse a directory that had a metadata log and has lost it. A voter that lost its metadata log would forget the
    votes and entries that it acknowledged. A voter without its log could even take itself for the sole voter, if the
    directory names no other voter."""
    path = f"{root}/{METADATA_PARTITION}"
    if METADATA_PARTITION in read_offsets(fs, f"{root}/{RECOVERY_POINTS}") and not fs.is_directory(path):
        raise CorruptLogError(f"{path} is missing: restore it, or {_AS_A_NEW_ONE}")


def _refuse_outdated(fs: FileSystem, root: str) -> None:
    """Refuse a directory that was found to be an older copy; the file has the error's text."""
    with contextlib.suppress(FileNotFoundError):
        reason = read_file(fs, f"{root}/{METADATA_PARTITION}/{OUTDATED}").decode(errors="replace")
        raise OutdatedVoterError(reason)


def _damaged(error: CorruptLogError) -> CorruptLogError:
    """The error for a damaged metadata log. A broker may continue without damaged records; a voter must not."""
    what = error.message.partition(". The log is not served")[0]
    return CorruptLogError(f"{what}. Restore the file from a copy, or {_AS_A_NEW_ONE}")


class MetadataStorage:
    """The metadata log, the snapshots and the hard state of one voter. Every method that writes may raise OSError.
    After an OSError the disk has failed, and the process must not use the disk again (a failed fsync is never
    retried)."""

    def __init__(
        self, fs: FileSystem, directory: LogDirectory, clock: Clock, reserve_bytes: int, config: LogConfig
    ) -> None:
        """Do not call the constructor; use ``open``."""
        # Create the log if it is missing: a directory that was formatted with its first voters has no log yet.
        self._log = directory.create(METADATA_PARTITION, METADATA_TOPIC_ID, config)
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._recovery_point = self._log.flushed_end
        self._space = SpaceGauge(fs, directory.root, clock, reserve_bytes)
        self._reserve_bytes = reserve_bytes
        self._force_names()
        self._snapshots = SnapshotStore(fs, self._log.directory)
        self._check_cover()
        # A full disk must not stop the controller; the first write of the controller tries the check again
        with contextlib.suppress(DiskFullError):
            self._settle()
        self.append_seconds = Histogram()  #: Time to write and flush a turn's entries, for the metrics.
        self.hard_state = read_quorum_state(
            fs,
            self._log.directory,
            own_directory_id=self.directory_id,
            is_needed=self.log_end_offset > 0,
        )

    def _force_names(self) -> None:
        """Flush the directory, because the previous process may have renamed files without a flush. A power loss would
        undo a renaming that was not flushed. If a renaming were undone, the voter would have lost a saved term or vote,
        and could vote twice in a term."""
        self._fs.sync_directory(self._log.directory)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        root: str,
        *,
        clock: Clock,
        cluster_id: str,
        node_id: int,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        segment_bytes: int | None = None,
    ) -> MetadataStorage:
        """Lock the directory, recover the log and check the snapshots. Raises InvalidConfigError if the directory is
        unformatted or belongs to another node, and OutdatedVoterError if it is an older copy. Raises StorageError if
        another process uses the directory, and DiskFullError if the disk has no space for a new file of the log. Raises
        also CorruptLogError, UnsupportedVersionError, and OSError. ``segment_bytes``: size of the log's segments; None:
        SEGMENT_BYTES."""
        _refuse_lost_log(fs, root.rstrip("/"))
        _refuse_outdated(fs, root.rstrip("/"))
        config = _LOG_CONFIG if segment_bytes is None else replace(_LOG_CONFIG, segment_bytes=segment_bytes)
        try:
            return cls._open(fs, root, clock, cluster_id, node_id, reserve_bytes, config)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise DiskFullError(
                f"{root}: cannot open the metadata log: no space left on the disk ({error.strerror}); free some space, "
                "and start the controller again"
            ) from None

    @classmethod
    def _open(
        cls,
        fs: FileSystem,
        root: str,
        clock: Clock,
        cluster_id: str,
        node_id: int,
        reserve_bytes: int,
        config: LogConfig,
    ) -> MetadataStorage:
        directory = LogDirectory.open(
            fs, root, clock=clock, config_of=lambda topic, topic_id: config, cluster_id=cluster_id, node_id=node_id
        )
        try:
            if METADATA_PARTITION in directory.quarantined:
                raise _damaged(directory.quarantined[METADATA_PARTITION])
            return cls(fs, directory, clock, reserve_bytes, config)
        except BaseException:
            directory.close(clean=False)
            raise

    @property
    def cluster_id(self) -> str:
        return self._directory.meta.cluster_id

    @property
    def directory_id(self) -> bytes:
        """Id of the directory, which is part of this voter's identity (KIP-853)."""
        return self._directory.meta.directory_id.bytes

    @property
    def log_start_offset(self) -> int:
        """Start of the log; earlier entries are only in snapshots."""
        pending = self._pending
        return self._log.log_start_offset if pending is None else pending.place.offset

    @property
    def log_end_offset(self) -> int:
        pending = self._pending
        return self._log.log_end_offset if pending is None else pending.place.offset

    @property
    def _pending(self) -> SnapshotId | None:
        """The newest snapshot, if the controller already uses it, and it has not replaced the log yet. A snapshot is
        pending if it was received whole and ends beyond the log, and the disk is too full to start the log again. Until
        the pending snapshot replaces the log, the log counts as empty; the log is started again before the next
        write."""
        newest, end = self._snapshots.newest, self._log.log_end_offset
        if newest is None or newest.place.offset < end or (newest.place.offset == end and not self._log.is_closed):
            return None
        return newest

    def stored(self, default_voters: VoterSet) -> Stored:
        """Raft's initial state. ``default_voters`` are used if the disk has no voters. Raises CorruptLogError if the
        log shows that there were other voters, whose names have been lost. Raises OSError."""
        with contextlib.suppress(DiskFullError):
            self._settle()
        pending = self._pending
        if pending is not None:
            return Stored(
                start=pending,
                end_offset=pending.place.offset,
                hard_state=self.hard_state,
                terms=(),
                voters=(),
                committed=pending.place.offset,
            )
        start = self._start(default_voters)
        offset, term = start.place
        entries = [each for each in self._log.epochs.entries if each.start_offset < self._log.log_end_offset]
        terms = [(each.epoch, each.start_offset) for each in entries if each.start_offset > offset]
        going_on = [each.epoch for each in entries if each.start_offset <= offset]
        if going_on and going_on[-1] > term:
            terms.insert(0, (going_on[-1], offset))
        voters = []
        for entry in self._control_entries(offset):
            if entry.voters is not None:
                voters.append((entry.next_offset, entry.voters))
            elif not voters and start.place == BEGINNING:
                self._check_voters(entry, start.voters)
        return Stored(
            start=start,
            end_offset=self._log.log_end_offset,
            hard_state=self.hard_state,
            terms=tuple(terms),
            voters=tuple(voters),
            committed=0 if self._snapshots.newest is None else self._snapshots.newest.place.offset,
        )

    def save_hard_state(self, state: HardState) -> None:
        """Save the term and the vote, durably. Raises DiskFullError; the disk then still has the old term and vote."""
        write_quorum_state(self._fs, self._log.directory, state)
        self.hard_state = state

    def withdraw(self, reason: str) -> None:
        """Write durably that this directory is an older copy; ``open`` then refuses it."""
        try:
            write_file_atomically(self._fs, f"{self._log.directory}/{OUTDATED}", reason.encode())
        except OSError as error:  # the next start asks the other voters again
            logger.error("%s: cannot mark the directory as an older copy: %s", self._log.directory, error)

    def refusal(self, records: int) -> DiskFullError | None:
        """The error if the disk has no space for ``records`` more records in the log; None if it has space. The check
        of the free space raises OSError if the disk failed."""
        space = self._space
        if space.refusal(records * _RECORD_BYTES_ABOUT) is None:
            return None
        return DiskFullError(
            f"the disk of the metadata log, {self._directory.root}, is full: {space.free_bytes} bytes are free, and "
            f"{space.reserve_bytes} bytes are reserved (log.dir.reserve.bytes). The controller refuses changes that "
            "add metadata until there is space; reads and deletions continue: free some space on this disk"
        )

    @property
    def is_short(self) -> bool:
        """Whether the disk has a shortage of space, from the first refusal until there is clearly enough space
        (headrace_core.log.space)."""
        return self._space.is_short

    def measure_space(self) -> Room:
        """Measure the free space. Raises OSError if the disk failed."""
        space = self._space
        space.measure()
        usable = 0 if space.is_short else max(space.free_bytes - space.reserve_bytes, 0)
        return Room(usable, space.total_bytes)

    def ran_out(self) -> None:
        """Called when a write failed because the disk or a quota is full, whatever the file system says."""
        self._space.ran_out()

    def append(self, entries: Sequence[Entry]) -> int:
        """Append entries of any terms, all or none, and flush them. Returns the durable end of the log. Raises
        DiskFullError, or CorruptMessageError for bytes that do not belong to their entry; after either error no entry
        was appended. (Exception: if the entries need more than a segment, an empty log on a full disk may keep the
        first entry.)"""
        started_s = time.perf_counter()
        self._settle()
        start = self._log.log_end_offset
        end = start
        for entry in entries:
            assert entry.base_offset == end, f"an entry at {entry.base_offset} cannot follow offset {end - 1}"
            end = entry.next_offset
        # Make one append for each entry, so that the segments of all voters begin with the same entries. The log writes
        # the appends of all entries together. After a refused entry the log refuses all entries behind it
        # (``follows``): no entry may get the offset of a different entry.
        appends = [
            Append(
                data=entry.data,
                leader_epoch=entry.term,
                headers=[check_entry(entry)],
                replicated=True,
                follows=entry.base_offset,
            )
            for entry in entries
        ]
        outcomes = self._log.append_many(appends)
        failure = next((outcome for outcome in outcomes if isinstance(outcome, HeadraceError)), None)
        if failure is not None:
            self._take_back(start)
            raise failure
        assert self._log.log_end_offset == end, f"appended up to {self._log.log_end_offset}"
        flushed = self._log.flush()
        self.append_seconds.observe(time.perf_counter() - started_s)
        if flushed - self._recovery_point >= _RECOVERY_POINT_EVERY:
            self._write_recovery_point(flushed)
        return flushed

    def _take_back(self, end: int) -> None:
        """Truncate the log back to ``end``, after a failed append.

        Unlike ``truncate``, do not lower the recovery point first: a full disk has no space for the new recovery point.
        The recovery point is at most ``end``, so the truncated log does not end below the recovery point. After a crash
        the log may have entries above ``end`` again; these uncommitted entries do no harm.
        """
        if self._log.log_end_offset > end:
            self._log.truncate_to(end)
        self._forget_terms_behind_the_end()

    def _forget_terms_behind_the_end(self) -> None:
        """Remove terms without an entry from the epoch history, because the log would refuse a later entry with a lower
        term. If the disk is full, the file of the epoch history is written later, before the log's next entry. After a
        further entry, an old file of the epoch history would contradict the log."""
        self._log.epochs.truncate_from_end(self._log.log_end_offset)

    def truncate(self, offset: int) -> None:
        """Truncate the log, durably, to ``offset``, where an entry must begin. The log is never truncated below a
        snapshot, whose content was committed. Raises DiskFullError; ``stored`` then shows whether the log was
        truncated, and the caller may repeat the call. Raises CorruptLogError, without a truncation, if no entry begins
        at ``offset``, or if the log is damaged at ``offset``."""
        self._settle()
        end = self._log.end_after_truncating(offset)
        if end < min(offset, self._log.log_end_offset):
            raise CorruptLogError(
                f"{self._directory.root}: cannot truncate the metadata log at offset {offset}, because no entry "
                f"begins there: the log would end at {end}"
            )
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        newest = self._snapshots.newest
        assert newest is None or newest.place.offset <= offset, f"{offset} is to be cut, below {newest}"
        try:
            self._directory.truncate(self._log, offset)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._forget_terms_behind_the_end()
            raise DiskFullError(f"{self._directory.root}: cannot truncate the metadata log: {error.strerror}") from None
        assert self._log.log_end_offset <= offset, f"cut at {offset}, it ends at {self._log.log_end_offset}"
        self._recovery_point = min(self._recovery_point, offset)

    def _write_recovery_point(self, flushed: int) -> None:
        """Write the recovery point. A recovery point only shortens the next start, so a full disk may delay it."""
        try:
            self._directory.write_recovery_points()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning("%s: cannot write the recovery point: %s", self._directory.root, error.strerror)
        self._recovery_point = flushed

    def read(self, offset: int, up_to: int, max_bytes: int = _READ_BYTES) -> tuple[bytes, int]:
        """Whole batches from ``offset`` on, below ``up_to``, and the offset after the last batch. Raises
        OffsetOutOfRangeError for an offset below the log's start, which only a snapshot covers (``newest_snapshot``),
        and CorruptLogError."""
        if self._pending is not None:
            raise OffsetOutOfRangeError(
                f"{self._log.directory}: offset {offset} is not in this log (a snapshot is being installed: "
                f"{self._pending})"
            )
        result = self._log.read(offset, max_bytes, up_to)
        if result is None:
            raise StorageError(f"{self._log.directory}: cannot read offset {offset}")
        return result.records, result.next_offset

    def batches(self, offset: int = 0) -> Iterator[MetadataBatch]:
        """Yield every batch from ``offset`` to the end of the log, decoded."""
        while offset < self.log_end_offset:
            data, offset = self.read(offset, self.log_end_offset)
            yield from decode_batches(data)

    def entries(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """See ``LogView``. Raises CorruptLogError if an entry was damaged after it was written, so that a damaged entry
        is not sent."""
        data, _ = self.read(offset, end, max_bytes)
        return [
            decode_entry(header, data[position : position + header.size]) for position, header in iterate_headers(data)
        ]

    def _control_entries(self, offset: int) -> Iterator[Entry]:
        """Yield Raft's own entries from ``offset`` to the end of the log."""
        end = self.log_end_offset
        while offset < end:
            data, offset = self.read(offset, end)
            for position, header in iterate_headers(data):
                if header.is_control:
                    yield decode_entry(header, data[position : position + header.size])

    def newest_snapshot(self) -> SnapshotId | None:
        """The newest undamaged snapshot that contains a state."""
        newest = self._snapshots.newest
        return None if newest is None or newest.place == BEGINNING else newest

    def bytes_since_snapshot(self) -> int:
        """Approximate bytes of the log after the newest snapshot."""
        start, end = self.log_start_offset, self.log_end_offset
        newest = self._snapshots.newest
        since = start if newest is None else max(newest.place.offset, start)
        return 0 if since >= end else self._log.size_bytes * (end - since) // (end - start)

    def load_image(self) -> MetadataImage:
        """Load the image of the newest snapshot, or an empty image if there is no snapshot. The log continues from the
        image's ``next_offset``. Any thread. Raises CorruptLogError, UnsupportedVersionError, OSError."""
        newest = self._snapshots.newest
        return EMPTY_IMAGE if newest is None else self._snapshots.load(newest)

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """See ``LogView``. Raises CorruptLogError if the snapshot was damaged after it was checked."""
        return self._snapshots.read(snapshot, position, max_bytes)

    def snapshot_job(self, image: MetadataImage, place: Place, voters: VoterSet) -> SnapshotJob:
        """A job that takes a snapshot of ``image``, which is committed and contains all entries below ``place``.
        ``voters`` are the voters at ``place``. There may be only one snapshot job at a time."""
        assert (image.next_offset, image.epoch) == place, f"an image of {image.next_offset}/{image.epoch} for {place}"
        return SnapshotJob(
            self._fs,
            self._log.directory,
            image,
            SnapshotId(place, voters),
            timestamp_ms=self._timestamp_below(place.offset),
            reserve_bytes=self._reserve_bytes,
        )

    def finish_snapshot(self, job: SnapshotJob) -> SnapshotId | None:
        """Called when ``job`` has run, and its snapshot is durable. From now on the new snapshot is used, and the log
        begins after the second newest snapshot. If the log has a new start, returns the snapshot before the job's
        snapshot (then call ``RaftNode.compacted``), else None."""
        place, newest = job.snapshot.place, self._snapshots.newest
        is_newer = newest is None or newest.place.offset < place.offset
        if self._pending is not None or not is_newer or place.offset > self.log_end_offset:
            job.abandon()  # another snapshot was received while the job ran, or this disk lacks committed entries
            return None
        # A log that ends below its own snapshot has lost entries. A log that ends below the snapshot is valid only if a
        # received snapshot is about to replace the log. The recovery point shows which log has lost entries, and which
        # log is about to be replaced.
        self._write_recovery_point(self._log.flushed_end)
        self._snapshots.accept(job)
        if newest is None or newest.place.offset <= self.log_start_offset:
            return None
        self._trim(newest.place)
        return newest

    def _trim(self, start: Place) -> None:
        """Start the log after the snapshot at ``start``, and remove older log segments and snapshots."""
        try:
            # Once the recovery points are written, a start recognizes a log that ends below its start as damaged.
            self._directory.write_recovery_points()
            self._directory.delete_records(self._log, start.offset)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise  # after any other error the next start finds the old log and its snapshot
            logger.warning("%s: cannot delete the start of the metadata log: %s", self._directory.root, error.strerror)
            return
        self._directory.remove_deleted(everything=True)
        self._snapshots.remove_before(start)

    def write_chunk(self, chunk: SnapshotChunk) -> bool:
        """Write a chunk of a received snapshot, durably. Returns False if the chunk does not follow the bytes on the
        disk, or if it was the last chunk and the snapshot is damaged. After a result of False, the snapshot must be
        requested again from its beginning. DiskFullError: the same."""
        return self._snapshots.write_chunk(chunk)

    def install(self, snapshot: SnapshotId) -> None:
        """Replace the log by a snapshot that was received whole: the empty log then begins after the snapshot, durably.
        Raises DiskFullError; ``stored`` then shows the state that was reached."""
        offset = snapshot.place.offset
        if offset <= self.log_end_offset:
            # The entries beyond the end of the snapshot were never committed. Remove the uncommitted entries before the
            # snapshot is installed: otherwise a crash could leave a snapshot and a log that contradict each other. On a
            # start, a snapshot that contradicts the log counts as damage.
            self._cut(offset - 1)
        self._snapshots.accept_received(snapshot)
        self._settle()
        self._snapshots.remove_before(snapshot.place)

    def _settle(self) -> None:
        """Replace the log by the newest snapshot, if that snapshot ends beyond the log. Raises DiskFullError; then call
        this method again later (see ``_pending``)."""
        pending = self._pending
        if pending is None:
            return
        try:
            self._directory.restart(self._log, pending.place.offset)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise DiskFullError(f"{self._directory.root}: cannot install {pending}: {error.strerror}") from None
        self._recovery_point = pending.place.offset

    def _start(self, default_voters: VoterSet) -> SnapshotId:
        """The oldest snapshot at the log's start or after the log's start."""
        start, snapshots = self.log_start_offset, self._snapshots
        fitting = [each for each in snapshots.snapshots if each.place.offset >= start]
        if start == 0 and not snapshots.names_first_voters:
            return SnapshotId(BEGINNING, default_voters)
        assert fitting, "checked when it was opened"
        return fitting[0]

    def _check_cover(self) -> None:
        """Raise CorruptLogError unless log and snapshots form one history without a gap (see the module's
        docstring)."""
        start, end, store = self._log.log_start_offset, self._log.log_end_offset, self._snapshots
        fitting = [each.place for each in store.snapshots if each.place.offset >= start]
        for bad in store.damaged:
            is_covered = (bool(fitting) and fitting[0].offset <= bad.place.offset) or (
                start == 0 and not store.names_first_voters
            )
            if fitting and fitting[-1].offset >= bad.place.offset:
                continue  # skip a damaged snapshot if a newer snapshot is sound
            if not is_covered or bad.place.offset > end or bad.place == BEGINNING:
                raise CorruptLogError(
                    f"{bad.error.message}. Older snapshots and the log cannot replace it: restore the file from a "
                    "copy, or format the directory again and add this controller to the quorum as a new voter"
                )
        if start > 0 and not fitting:
            raise CorruptLogError(
                f"{self._log.directory}: the log begins at offset {start}, and no snapshot covers the offsets before "
                f"it: restore the .checkpoint file, or format the directory again and add this controller to "
                "the quorum as a new voter"
            )
        for place in fitting:
            term = self._term_below(place.offset)
            if term is not None and term != place.term:
                raise CorruptLogError(
                    f"{store.path(place)} has term {place.term}, but the log's offset {place.offset - 1} has term "
                    f"{term}: the snapshot or the log belongs to another controller"
                )

    def _term_below(self, offset: int) -> int | None:
        """Term of the entry that ends at ``offset``; None if the log does not have that entry."""
        if not self._log.log_start_offset < offset <= self._log.log_end_offset:
            return None
        return self._log.epochs.epoch_of(offset - 1)

    def _check_voters(self, entry: Entry, voters: VoterSet) -> None:
        """Check a leader change entry that precedes all changes of the voters: it must name the log's first voters. A
        node that joined the quorum later was formatted without voters, so it has no first voters to compare."""
        said = {node_id for node_id, _ in leader_change_of(entry).voters}
        if len(voters) and said - {key.node_id for key in voters}:
            raise CorruptLogError(
                f"{self._log.directory}: the log's first leader was elected by the voters {sorted(said)}, but this "
                f"controller was formatted with the voters {voters}: the .checkpoint file with the first voters is "
                "missing; restore it"
            )

    def _timestamp_below(self, offset: int) -> int:
        """Timestamp of the record before ``offset``; 0 if it is unknown."""
        if not self.log_start_offset < offset <= self.log_end_offset:
            return 0
        data, _ = self.read(offset - 1, offset)
        return max([header.max_timestamp_ms for _, header in iterate_headers(data)], default=0)

    def close(self, *, clean: bool = True) -> None:
        """Close the directory. ``clean`` marks on the disk that everything was flushed. If the disk has no space for
        the marker, the next start checks the end of the log again."""
        try:
            # If a snapshot is about to replace the log, do not mark the log as cleanly closed.
            self._directory.close(clean=clean and self._pending is None)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning(
                "%s: cannot record the clean stop, so the next start recovers the log: %s",
                self._directory.root,
                error.strerror,
            )
