"""What a voter keeps on disk, in the first of its log.dirs:

    __cluster_metadata-0/               the metadata log, an ordinary log of record batches (headrace_core.log)
    __cluster_metadata-0/quorum-state   term and vote, as JSON with a checksum, replaced atomically

The directory is locked while a controller owns it. A torn tail of the log is cut when it is opened; damage before the
tail is CorruptLogError, and the controller does not start: a metadata log with a hole must never be served.

A disk that fills up is noticed before it is full: what makes the metadata larger is refused (``refusal``) while the
reserve (``log.dir.reserve.bytes``) still has room for what the cluster lives by: terms, registrations, elections,
fencing and deletions.

Synchronous: metadata writes are small, and a small fdatasync inline is faster than any thread (docs: the log's rules).
"""

from __future__ import annotations

import errno
import json
import logging
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace_core.clock import Clock
from headrace_core.config import INT_MAX, LONG_MAX
from headrace_core.errors import CorruptLogError, DiskFullError, HeadraceError, StorageError
from headrace_core.log.appending import Append, headers_of
from headrace_core.log.config import LogConfig
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem, read_file, write_file_atomically
from headrace_core.log.space import SpaceGauge
from headrace_core.metadata.codec import MetadataBatch, decode_batches
from headrace_core.records import encode_batch, iterate_headers
from headrace_core.types import TopicPartition

from .raft import NO_DIRECTORY, Entry, EntryKind, HardState, Place, ReplicaKey, SnapshotId, Stored, VoterSet

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
#: The id that Kafka reserves for its metadata log.
METADATA_TOPIC_ID = uuid.UUID(int=1)
QUORUM_STATE = "quorum-state"

logger = logging.getLogger("headrace.controller")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_READ_BYTES = 1 << 20
#: What a record takes in the log, with room to spare.
_RECORD_BYTES_ABOUT = 256
DEFAULT_RESERVE_BYTES = 64 * 1024 * 1024
#: Records between two checkpoints of how far the log is known to be sound: what a start after a crash scans at most.
_RECOVERY_POINT_EVERY = 10_000
_LOG_CONFIG = LogConfig(
    segment_ms=LONG_MAX,
    message_bytes_max=INT_MAX,
    timestamp_after_max_ms=LONG_MAX,
    retention_ms=None,
    cleanup_delete=False,
)


class MetadataStorage:
    """The log and the hard state of one voter. Every method that writes may raise OSError: the disk failed, and this
    process must not go on with it (a failed fsync is never retried)."""

    def __init__(self, fs: FileSystem, directory: LogDirectory, clock: Clock, reserve_bytes: int) -> None:
        """Made by ``open``."""
        log = directory.logs.get(METADATA_PARTITION)
        if log is None:
            log = directory.create(METADATA_PARTITION, METADATA_TOPIC_ID, _LOG_CONFIG)
        self._fs = fs
        self._directory = directory
        self._log = log
        self._clock = clock
        self._state_path = f"{log.directory}/{QUORUM_STATE}"
        self._recovery_point = log.flushed_offset
        self._space = SpaceGauge(fs, directory.root, clock, reserve_bytes)
        self.hard_state = self._read_hard_state()

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
        """Lock the directory and recover the log. Raises InvalidConfigError (not formatted, or somebody else's),
        StorageError (another process has it), CorruptLogError, OSError."""
        directory = LogDirectory.open(
            fs, root, clock=clock, config_of=lambda topic, topic_id: _LOG_CONFIG, cluster_id=cluster_id, node_id=node_id
        )
        try:
            if METADATA_PARTITION in directory.quarantined:
                raise directory.quarantined[METADATA_PARTITION]
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
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def stored(self, voters: VoterSet) -> Stored:
        """What raft begins with; ``voters``: the configured ones."""
        return Stored(
            start=SnapshotId(Place(0, 0), voters),
            end_offset=self._log.log_end_offset,
            hard_state=self.hard_state,
            terms=tuple((entry.epoch, entry.start_offset) for entry in self._log.epochs.entries),
        )

    # -- term and vote ------------------------------------------------------------------------------------------------

    def save_hard_state(self, state: HardState) -> None:
        """Durable when this returns. DiskFullError: the old one still holds."""
        content_of_state = {
            "data_version": 1,
            "leaderEpoch": state.term,
            "votedId": -1 if state.vote is None else state.vote.node_id,
            "votedDirectoryId": (NO_DIRECTORY if state.vote is None else state.vote.directory_id).hex(),
        }
        text = json.dumps(content_of_state, sort_keys=True)
        content = json.dumps({"state": text, "crc32": zlib.crc32(text.encode())})
        try:
            write_file_atomically(self._fs, self._state_path, content.encode())
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise DiskFullError(f"{self._state_path}: no space left on the disk ({error.strerror})") from None
        self.hard_state = state

    def _read_hard_state(self) -> HardState:
        try:
            content = read_file(self._fs, self._state_path)
        except FileNotFoundError:
            if self._log.log_end_offset > 0:
                raise CorruptLogError(
                    f"{self._state_path} is missing beside a log with records: restore it; a voter that forgets its "
                    "vote could vote twice"
                ) from None
            return HardState()
        try:
            outer = json.loads(content)
            text = outer["state"]
            if zlib.crc32(text.encode()) != outer["crc32"]:
                raise ValueError("wrong checksum")
            state = json.loads(text)
            return HardState(term=int(state["leaderEpoch"]), vote=self._vote_in(state))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptLogError(
                f"{self._state_path} is damaged ({error}): restore it; a voter that forgets its vote could vote twice"
            ) from None

    def _vote_in(self, state: dict[str, Any]) -> ReplicaKey | None:
        voted = int(state["votedId"])
        if voted < 0:
            return None
        if "votedDirectoryId" in state:
            return ReplicaKey(voted, bytes.fromhex(state["votedDirectoryId"]))
        return ReplicaKey(voted, self.directory_id)  # version 0, from when every voter was alone: it voted for itself

    # -- room ---------------------------------------------------------------------------------------------------------

    def refusal(self, records: int) -> DiskFullError | None:
        """Why the log should not grow by so many records; None when there is room. OSError: the disk is gone."""
        return self._space.refusal(records * _RECORD_BYTES_ABOUT)

    # -- the log ------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], leader: int) -> int:
        """Append the entries of one term, all or none, and force them to disk; returns the offset below which the log
        is durable. DiskFullError: nothing was appended."""
        data = b"".join(
            entry.data if entry.kind is EntryKind.DATA else self._leader_change(entry, leader) for entry in entries
        )
        (outcome,) = self._log.append_many([Append(data=data, leader_epoch=entries[0].term, headers=headers_of(data))])
        if isinstance(outcome, HeadraceError):
            raise outcome
        assert outcome.base_offset == entries[0].base_offset, f"appended at {outcome.base_offset}, not where proposed"
        assert outcome.next_offset == entries[-1].next_offset, f"appended up to {outcome.next_offset}"
        flushed = self._log.flush()
        if flushed - self._recovery_point >= _RECOVERY_POINT_EVERY:
            self._write_recovery_point(flushed)
        return flushed

    def _write_recovery_point(self, flushed: int) -> None:
        """It only spares the next start some work: a full disk puts it off, and ends no controller."""
        try:
            self._directory.write_recovery_points()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning("%s: the recovery point was not written: %s", self._directory.root, error.strerror)
        self._recovery_point = flushed

    def read(self, offset: int, up_to: int, max_bytes: int = _READ_BYTES) -> tuple[bytes, int]:
        """Whole batches from ``offset`` on, below ``up_to``, and where to go on. OffsetOutOfRangeError."""
        result = self._log.read(offset, max_bytes, up_to)
        if result is None:
            raise StorageError(f"{self._log.directory}: offset {offset} could not be read")
        return result.records, result.next_offset

    def batches(self, offset: int = 0) -> Iterator[MetadataBatch]:
        """Every batch from ``offset`` to the end of the log, decoded."""
        while offset < self.log_end_offset:
            data, offset = self.read(offset, self.log_end_offset)
            yield from decode_batches(data)

    def close(self, *, clean: bool = True) -> None:
        """Let go of the directory; ``clean`` says on disk that everything was flushed. A disk too full to say so costs
        the next start a look at the log's end, and no more."""
        try:
            self._directory.close(clean=clean)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            logger.warning("%s: the clean stop could not be marked: %s", self._directory.root, error.strerror)

    def entries(self, offset: int, end: int, max_bytes: int) -> list[Entry]:
        """As ``LogView`` has it."""
        result = self._log.read(offset, max_bytes, end)
        if result is None:
            raise StorageError(f"{self._log.directory}: offset {offset} could not be read")
        found = []
        for position, header in iterate_headers(result.records):
            kind = EntryKind.LEADER_CHANGE if header.is_control else EntryKind.DATA
            data = b"" if header.is_control else result.records[position : position + header.size]
            found.append(Entry(kind, header.leader_epoch, header.base_offset, header.last_offset_delta + 1, data))
        return found

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """As ``LogView`` has it. There are no snapshots yet: the log begins at 0."""
        return None

    def _leader_change(self, entry: Entry, leader: int) -> bytes:
        """Kafka's LeaderChangeMessage as a control batch (KIP-595), so that its tools read ours."""
        voters = b"\x02" + struct.pack(">i", leader) + b"\0"  # a compact array of one item, without tagged fields
        value = struct.pack(">hi", 0, leader) + voters + voters + b"\0"
        key = struct.pack(">hh", 0, 2)
        return encode_batch(
            [(self._clock.now_ms(), key, value, ())],
            base_offset=entry.base_offset,
            leader_epoch=entry.term,
            control=True,
        )
