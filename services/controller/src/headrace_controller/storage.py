"""A voter's disk, the first of its log.dirs:

    __cluster_metadata-0/                 the metadata log, an ordinary log of record batches (headrace_core.log)
    __cluster_metadata-0/....checkpoint   snapshots of the state (snapshots.py)
    __cluster_metadata-0/quorum-state     term and vote (quorum_state.py)

The directory is locked while a controller owns it. Opening truncates a torn tail of the log. Damage before the tail is
CorruptLogError, and the controller does not start: a metadata log with a hole must never be served. A last batch that
is whole and wrong is damage, too (``LogConfig.refuse_whole_tail``): its voter may have acknowledged it.

**The log begins behind the snapshot before the newest one.** So a follower that is a little behind finds what it lacks
in the log, and the snapshot before and the log between the two replace a damaged newest snapshot.

      snapshot n-1                     snapshot n
           |  log ...                       |  ... log          |
         start                                                 end

States of the disk after a crash at any moment, and what opening makes of them:

    the log starts at          snapshots                      it is
    -------------------------  -----------------------------  --------------------------------------------------------
    0                          none, or of the first voters   a log that was never trimmed
    a snapshot's place         it, and newer ones below the   as drawn above (older ones: their removal was cut short)
                               log's end
    any                        the newest is beyond the       a snapshot was received, and the log was about to begin
                               log's end                      behind it: it does now
    any                        the newest that fits is        the one before, if the log reaches from it beyond the
                               damaged                        damaged one; else CorruptLogError
    above 0                    none from there on             CorruptLogError: what came before the log is lost
    nowhere                    any                            CorruptLogError where there was a log (its recovery point
                                                              says so): a new one would lose the voter's promises

A disk is found full before it is: requests that add metadata are refused (``refusal``) while the reserve
(``log.dir.reserve.bytes``) has room for terms, registrations, elections, fencing and deletions.

Synchronous: metadata writes are small, and a small fdatasync inline is faster than any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import uuid
from collections.abc import Iterator, Sequence

from headrace_core.clock import Clock
from headrace_core.config import INT_MAX, LONG_MAX
from headrace_core.errors import CorruptLogError, DiskFullError, HeadraceError, OffsetOutOfRangeError, StorageError
from headrace_core.log.appending import Append
from headrace_core.log.checkpoints import RECOVERY_POINTS, read_offsets
from headrace_core.log.config import LogConfig
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem
from headrace_core.log.space import SpaceGauge
from headrace_core.metadata import EMPTY_IMAGE, MetadataImage
from headrace_core.metadata.codec import MetadataBatch, decode_batches
from headrace_core.records import iterate_headers
from headrace_core.types import TopicPartition

from .control_records import check_entry, decode_entry, leader_change_of
from .quorum_state import QUORUM_STATE, read_quorum_state, write_quorum_state
from .raft import Entry, HardState, Place, SnapshotChunk, SnapshotId, Stored, VoterSet
from .snapshots import BEGINNING, SnapshotJob, SnapshotStore, write_first_voters

__all__ = [
    "DEFAULT_RESERVE_BYTES",
    "METADATA_PARTITION",
    "QUORUM_STATE",
    "MetadataStorage",
    "SnapshotJob",
    "write_first_voters",
]

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
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
#: Records between two recovery points; recovery after a crash scans at most this many records.
_RECOVERY_POINT_EVERY = 10_000
_LOG_CONFIG = LogConfig(
    segment_bytes=16 * 1024 * 1024,  # trimming removes whole segments
    segment_ms=LONG_MAX,
    message_bytes_max=INT_MAX,
    timestamp_after_max_ms=LONG_MAX,
    retention_ms=None,
    cleanup_delete=False,
    file_delete_delay_ms=0,
    refuse_whole_tail=True,
)


def _refuse_lost_log(fs: FileSystem, root: str) -> None:
    """Refuse a directory that had a metadata log, and has none: its voter would forget its promises, and, if no other
    voter is named any more, take itself for the sole one."""
    path = f"{root}/{METADATA_PARTITION}"
    if METADATA_PARTITION in read_offsets(fs, f"{root}/{RECOVERY_POINTS}") and not fs.is_directory(path):
        raise CorruptLogError(f"{path} is missing: restore it, or {_AS_A_NEW_ONE}")


def _damaged(error: CorruptLogError) -> CorruptLogError:
    """A broker may continue without the records; a voter must not."""
    what = error.message.partition(". The log is not served")[0]
    return CorruptLogError(f"{what}. Restore the file from a copy, or {_AS_A_NEW_ONE}")


class MetadataStorage:
    """The log, the snapshots and the hard state of one voter. Every method that writes may raise OSError: the disk
    failed, and this process must not continue with it (a failed fsync is never retried)."""

    def __init__(self, fs: FileSystem, directory: LogDirectory, clock: Clock, reserve_bytes: int) -> None:
        """Use ``open``."""
        # (A directory that was formatted with its first voters has no log yet.)
        self._log = directory.create(METADATA_PARTITION, METADATA_TOPIC_ID, _LOG_CONFIG)
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._recovery_point = self._log.flushed_end
        self._space = SpaceGauge(fs, directory.root, clock, reserve_bytes)
        self._reserve_bytes = reserve_bytes
        self._force_names()
        self._snapshots = SnapshotStore(fs, self._log.directory)
        self._check_cover()
        # a full disk must not stop the controller; the first write tries again
        with contextlib.suppress(DiskFullError):
            self._settle()
        self.hard_state = read_quorum_state(
            fs,
            self._log.directory,
            own_directory_id=self.directory_id,
            is_needed=self.log_end_offset > 0,
        )

    def _force_names(self) -> None:
        """Force the directory: the previous process may have renamed files without doing so. A power loss would undo
        such a renaming. Raft would have counted the term or vote in that file as saved, and the voter could vote twice
        in a term."""
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
    ) -> MetadataStorage:
        """Lock the directory, recover the log and check the snapshots. Raises InvalidConfigError (not formatted, or of
        another node), StorageError (another process has it), CorruptLogError, UnsupportedVersionError, OSError."""
        _refuse_lost_log(fs, root.rstrip("/"))
        directory = LogDirectory.open(
            fs, root, clock=clock, config_of=lambda topic, topic_id: _LOG_CONFIG, cluster_id=cluster_id, node_id=node_id
        )
        try:
            if METADATA_PARTITION in directory.quarantined:
                raise _damaged(directory.quarantined[METADATA_PARTITION])
            return cls(fs, directory, clock, reserve_bytes)
        except BaseException:
            directory.close(clean=False)
            raise

    @property
    def cluster_id(self) -> str:
        return self._directory.meta.cluster_id

    @property
    def directory_id(self) -> bytes:
        """The disk that this voter votes with (KIP-853)."""
        return self._directory.meta.directory_id.bytes

    @property
    def log_start_offset(self) -> int:
        """What lies below is in snapshots only."""
        pending = self._pending
        return self._log.log_start_offset if pending is None else pending.place.offset

    @property
    def log_end_offset(self) -> int:
        pending = self._pending
        return self._log.log_end_offset if pending is None else pending.place.offset

    @property
    def _pending(self) -> SnapshotId | None:
        """The newest snapshot, if it counts already but the log still has to be replaced by it: it was received whole,
        lies beyond the log, and the disk is too full to start the log again. The log counts as empty then, and is
        started again before the next write."""
        newest, end = self._snapshots.newest, self._log.log_end_offset
        if newest is None or newest.place.offset < end or (newest.place.offset == end and not self._log.is_closed):
            return None
        return newest

    def stored(self, default_voters: VoterSet) -> Stored:
        """Raft's initial state. ``default_voters``: used if the disk has none. CorruptLogError: the log shows that
        others voted, so their names have been lost. OSError."""
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
        """Save term and vote, durably. DiskFullError: the old ones still hold."""
        write_quorum_state(self._fs, self._log.directory, state)
        self.hard_state = state

    def refusal(self, records: int) -> DiskFullError | None:
        """The error if the log must not grow by so many records; None: there is room. OSError: the disk failed."""
        return self._space.refusal(records * _RECORD_BYTES_ABOUT)

    def append(self, entries: Sequence[Entry]) -> int:
        """Append entries of any terms, all or none, and force them; returns the durable end of the log. DiskFullError,
        CorruptMessageError (bytes that do not belong to their entry): nothing was appended."""
        self._settle()
        start = self._log.log_end_offset
        end = start
        for entry in entries:
            assert entry.base_offset == end, f"an entry at {entry.base_offset} cannot follow offset {end - 1}"
            end = entry.next_offset
        # Make one append for each entry, so that the segments of all voters begin with the same entries. The log writes
        # all appends together.
        appends = [Append(data=entry.data, leader_epoch=entry.term, headers=[check_entry(entry)]) for entry in entries]
        outcomes = self._log.append_many(appends)
        failure = next((outcome for outcome in outcomes if isinstance(outcome, HeadraceError)), None)
        if failure is not None:
            self._take_back(start)
            raise failure
        assert self._log.log_end_offset == end, f"appended up to {self._log.log_end_offset}"
        flushed = self._log.flush()
        if flushed - self._recovery_point >= _RECOVERY_POINT_EVERY:
            self._write_recovery_point(flushed)
        return flushed

    def _take_back(self, end: int) -> None:
        """Restore the log end ``end``."""
        if self._log.log_end_offset > end:
            self._directory.truncate(self._log, end)
        self._forget_terms_behind_the_end()

    def _forget_terms_behind_the_end(self) -> None:
        """Drop terms without an entry, which would block an earlier one that follows."""
        epochs, end = self._log.epochs, self._log.log_end_offset
        epochs.restore(each for each in epochs.entries if each.start_offset < end)

    def truncate(self, offset: int) -> None:
        """Truncate the log, durably, to ``offset``, where an entry begins. Never below a snapshot, whose content was
        committed. DiskFullError: it was truncated or not, as ``stored`` says, and can be repeated. CorruptLogError: no
        entry begins there, or the log around it is damaged; nothing was truncated."""
        self._settle()
        end = self._log.end_after_truncating(offset)
        if end < min(offset, self._log.log_end_offset):
            raise CorruptLogError(
                f"{self._directory.root}: cannot truncate the metadata log at {offset}, where no entry begins: it "
                f"would end at {end}"
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
        """Write the recovery point, which only saves the next start work: a full disk delays it."""
        try:
            self._directory.write_recovery_points()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning("%s: cannot write the recovery point: %s", self._directory.root, error.strerror)
        self._recovery_point = flushed

    def read(self, offset: int, up_to: int, max_bytes: int = _READ_BYTES) -> tuple[bytes, int]:
        """Whole batches from ``offset`` on, below ``up_to``, and the next offset. OffsetOutOfRangeError: below the
        log's start, so it is in a snapshot (``newest_snapshot``); CorruptLogError."""
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
        """Every batch from ``offset`` to the end of the log, decoded."""
        while offset < self.log_end_offset:
            data, offset = self.read(offset, self.log_end_offset)
            yield from decode_batches(data)

    def entries(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """See ``LogView``. CorruptLogError: damaged since it was written; it is not sent."""
        data, _ = self.read(offset, end, max_bytes)
        return [
            decode_entry(header, data[position : position + header.size]) for position, header in iterate_headers(data)
        ]

    def _control_entries(self, offset: int) -> Iterator[Entry]:
        """Raft's own entries from ``offset`` to the end."""
        end = self.log_end_offset
        while offset < end:
            data, offset = self.read(offset, end)
            for position, header in iterate_headers(data):
                if header.is_control:
                    yield decode_entry(header, data[position : position + header.size])

    def newest_snapshot(self) -> SnapshotId | None:
        """The newest sound one with any state."""
        newest = self._snapshots.newest
        return None if newest is None or newest.place == BEGINNING else newest

    def bytes_since_snapshot(self) -> int:
        """About the bytes of log behind the newest snapshot."""
        start, end = self.log_start_offset, self.log_end_offset
        newest = self._snapshots.newest
        since = start if newest is None else max(newest.place.offset, start)
        return 0 if since >= end else self._log.size_bytes * (end - since) // (end - start)

    def load_image(self) -> MetadataImage:
        """The image of the newest snapshot; an empty one without any. The log continues from the image's
        ``next_offset``. Any thread. CorruptLogError, UnsupportedVersionError, OSError."""
        newest = self._snapshots.newest
        return EMPTY_IMAGE if newest is None else self._snapshots.load(newest)

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """See ``LogView``. CorruptLogError: damaged since it was checked."""
        return self._snapshots.read(snapshot, position, max_bytes)

    def snapshot_job(self, image: MetadataImage, place: Place, voters: VoterSet) -> SnapshotJob:
        """A job for a snapshot of ``image``, which is committed and contains everything below ``place``; ``voters``: at
        that place. One at a time."""
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
        """``job`` has run: its snapshot is durable and counts from here on, and the log begins behind the one before
        it. Returns that one when the log has a new start (call ``RaftNode.compacted``), else None."""
        place, newest = job.snapshot.place, self._snapshots.newest
        is_newer = newest is None or newest.place.offset < place.offset
        if self._pending is not None or not is_newer or place.offset > self.log_end_offset:
            job.abandon()  # another was received meanwhile; or this disk lacks committed entries
            return None
        # A log that ends below its own snapshot has lost entries. The recovery point tells this case apart from a log
        # that a received snapshot is about to replace.
        self._write_recovery_point(self._log.flushed_end)
        self._snapshots.accept(job)
        if newest is None or newest.place.offset <= self.log_start_offset:
            return None
        self._trim(newest.place)
        return newest

    def _trim(self, start: Place) -> None:
        """Start the log behind the snapshot at ``start``; removes older log and snapshots."""
        try:
            self._directory.write_recovery_points()  # a log that ends below its start will be known as damaged
            self._directory.delete_records(self._log, start.offset)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise  # else: the next start finds the old log and its snapshot
            logger.warning("%s: cannot delete the start of the metadata log: %s", self._directory.root, error.strerror)
            return
        self._directory.remove_deleted(everything=True)
        self._snapshots.remove_before(start)

    def write_chunk(self, chunk: SnapshotChunk) -> bool:
        """Write a chunk of a received snapshot, durably. False: it was the last one and the whole is damaged (or it
        does not follow the bytes here): request it again from its beginning. DiskFullError: the same."""
        return self._snapshots.write_chunk(chunk)

    def install(self, snapshot: SnapshotId) -> None:
        """Replace the log by a snapshot that was received whole: the log is empty and begins behind it, durably.
        DiskFullError: ``stored`` says how far it came."""
        offset = snapshot.place.offset
        if offset <= self.log_end_offset:
            # The entries from this place on were never committed. Remove these entries first, so that no crash leaves a
            # snapshot that contradicts the log. Such a contradiction counts as damage.
            self._cut(offset - 1)
        self._snapshots.accept_received(snapshot)
        self._settle()
        self._snapshots.remove_before(snapshot.place)

    def _settle(self) -> None:
        """Replace the log by a newest snapshot that lies beyond it. DiskFullError: call it again, see ``_pending``."""
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
        """The oldest snapshot at the log's start or behind it."""
        start, snapshots = self.log_start_offset, self._snapshots
        fitting = [each for each in snapshots.snapshots if each.place.offset >= start]
        if start == 0 and not snapshots.names_first_voters:
            return SnapshotId(BEGINNING, default_voters)
        assert fitting, "checked when it was opened"
        return fitting[0]

    def _check_cover(self) -> None:
        """CorruptLogError unless log and snapshots make up one history without a gap (see the module)."""
        start, end, store = self._log.log_start_offset, self._log.log_end_offset, self._snapshots
        fitting = [each.place for each in store.snapshots if each.place.offset >= start]
        for bad in store.damaged:
            is_covered = (bool(fitting) and fitting[0].offset <= bad.place.offset) or (
                start == 0 and not store.names_first_voters
            )
            if fitting and fitting[-1].offset >= bad.place.offset:
                continue  # a newer one is sound
            if not is_covered or bad.place.offset > end or bad.place == BEGINNING:
                raise CorruptLogError(
                    f"{bad.error.message}. Older snapshots and the log cannot replace it: restore the file from a "
                    "copy, or format the directory again and add this controller to the quorum as a new voter"
                )
        if start > 0 and not fitting:
            raise CorruptLogError(
                f"{self._log.directory}: the log begins at offset {start}, and no snapshot covers the offsets "
                "before: restore the .checkpoint file, or format the directory again and add this controller to "
                "the quorum as a new voter"
            )
        for place in fitting:
            term = self._term_below(place.offset)
            if term is not None and term != place.term:
                raise CorruptLogError(
                    f"{store.path(place)} is of term {place.term}, but the log's offset {place.offset - 1} is of "
                    f"term {term}: one of them belongs to another controller"
                )

    def _term_below(self, offset: int) -> int | None:
        """Term of the entry that ends at ``offset``; None where the log does not have it."""
        if not self._log.log_start_offset < offset <= self._log.log_end_offset:
            return None
        return self._log.epochs.epoch_of(offset - 1)

    def _check_voters(self, entry: Entry, voters: VoterSet) -> None:
        """A leader change before any change of the voters names the log's first voters; nodes that joined later were
        formatted without any."""
        said = {node_id for node_id, _ in leader_change_of(entry).voters}
        if len(voters) and said - {key.node_id for key in voters}:
            raise CorruptLogError(
                f"{self._log.directory}: the log's first leader was elected by the voters {sorted(said)}, but this "
                f"controller was formatted with the voters {voters}: the .checkpoint file with the first voters is "
                "missing; restore it"
            )

    def _timestamp_below(self, offset: int) -> int:
        """Timestamp of the record before ``offset``; 0 if unknown."""
        if not self.log_start_offset < offset <= self.log_end_offset:
            return 0
        data, _ = self.read(offset - 1, offset)
        return max([header.max_timestamp_ms for _, header in iterate_headers(data)], default=0)

    def close(self, *, clean: bool = True) -> None:
        """Close the directory; ``clean`` marks on disk that everything was flushed. Without room for the marker, the
        next start only checks the log's end."""
        try:
            # If a snapshot is about to replace the log, its remains must not be marked as cleanly closed.
            self._directory.close(clean=clean and self._pending is None)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning(
                "%s: cannot record the clean stop, so the next start recovers the log: %s",
                self._directory.root,
                error.strerror,
            )
