"""Decide when to take metadata snapshots (KIP-630): after a number of bytes of log, or after some time if there were
changes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace_core.errors import HeadraceError
from headrace_core.metadata import MetadataImage

from .raft import Entry, Place, RaftLog, SnapshotId
from .settings import QuorumSettings
from .storage import MetadataStorage, SnapshotJob

logger = logging.getLogger("headrace.controller")

RETRY_MS = 60_000  #: Milliseconds until the next attempt after a snapshot failed because the disk was full.


class SnapshotSchedule:
    """See the module. Every controller takes its own snapshots, whether it leads or not."""

    def __init__(self, storage: MetadataStorage, settings: QuorumSettings, now_ms: float) -> None:
        self._storage = storage
        self._settings = settings
        self._bytes = storage.bytes_since_snapshot()
        self._last_ms = now_ms
        self._not_before_ms = now_ms
        self._job: SnapshotJob | None = None

    def appended(self, entries: Sequence[Entry]) -> None:
        """Add the bytes of ``entries``, which were appended to the log, to the log's growth since the last snapshot."""
        for entry in entries:
            self._bytes += len(entry.data)

    def due(self, now_ms: float, image: MetadataImage, log: RaftLog) -> SnapshotJob | None:
        """A job for a snapshot of the committed ``image``; None if no snapshot is due."""
        by_size = self._bytes >= self._settings.snapshot_bytes
        interval_ms = self._settings.snapshot_interval_ms
        by_time = interval_ms > 0 and now_ms - self._last_ms >= interval_ms
        if self._job is not None or not (by_size or by_time) or now_ms < self._not_before_ms:
            return None
        self._last_ms = now_ms
        newest = self._storage.newest_snapshot()
        # Without applied metadata there is nothing to store.
        term = log.term_below(image.next_offset) if image.next_offset else None
        if term is None or (newest is not None and newest.place.offset >= image.next_offset):
            return None  # nothing is new
        self._bytes = 0
        voters = log.voters_at(image.next_offset)
        self._job = self._storage.snapshot_job(image, Place(image.next_offset, term), voters)
        return self._job

    def done(self, job: SnapshotJob) -> SnapshotId | None:
        """Called when ``job`` has run. Returns the new start of the log, if the snapshot has moved the start."""
        assert job is self._job, "another snapshot is being made"
        self._job = None
        return self._storage.finish_snapshot(job)

    def failed(self, job: SnapshotJob, error: HeadraceError) -> None:
        """Called when the snapshot could not be written: try again after RETRY_MS."""
        assert job is self._job, "another snapshot is being made"
        self._job = None
        self._bytes = self._settings.snapshot_bytes
        self._not_before_ms = self._last_ms + RETRY_MS
        logger.warning(
            "cannot write a metadata snapshot: %s; until a snapshot is written, the metadata log grows", error
        )
