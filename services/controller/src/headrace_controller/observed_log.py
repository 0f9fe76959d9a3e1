"""The metadata log for observers: the entries that this controller has committed, and the age of the newest entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace_core.metadata import MetadataImage

from .applying import Subscriber
from .driver import ControllerDriver
from .raft import SnapshotId
from .storage import MetadataStorage


class ObservedLog:
    """The methods of a controller that handlers/follow.py needs."""

    def __init__(self, driver: ControllerDriver, storage: MetadataStorage) -> None:
        self._driver = driver
        self._storage = storage

    @property
    def node_id(self) -> int:
        return self._driver.node_id

    @property
    def cluster_id(self) -> str:
        return self._storage.cluster_id

    @property
    def image(self) -> MetadataImage:
        """The committed metadata, as far as this node has applied it."""
        return self._driver.image

    @property
    def leader_id(self) -> int:
        """-1: unknown."""
        return self._driver.leader_id

    @property
    def term(self) -> int:
        return self._driver.term

    def controller_addresses(self) -> Mapping[int, str]:
        """Addresses of the internal listeners of all voters whose address is known."""
        return self._driver.controller.addresses

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        return self._driver.subscribe(subscriber)

    def on_turn(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever the leader or the voters may have changed; there is no way to unsubscribe."""
        self._driver.on_turn(watcher)

    async def barrier(self, *, is_deferred: bool = False) -> int:
        """See ``ControllerDriver.read_barrier``."""
        return await self._driver.read_barrier(is_deferred=is_deferred)

    @property
    def log_start_offset(self) -> int:
        """Start of the metadata log; earlier entries are only in the snapshot."""
        return self._driver.controller.raft.log.start.offset

    def read(self, offset: int) -> tuple[bytes, int]:
        """Committed batches from ``offset`` on, about 1 MiB, and the offset after the last batch.
        OffsetOutOfRangeError."""
        return self._driver.read(offset)

    def epoch_below(self, offset: int) -> int | None:
        """Leader epoch of the record just below ``offset``; None if the log starts later."""
        return self._driver.controller.raft.log.term_below(offset)

    def newest_snapshot(self) -> SnapshotId | None:
        """The snapshot before the log's start; None if the log begins at 0."""
        snapshot = self._driver.controller.raft.log.snapshot
        return snapshot if snapshot.place.offset else None

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """Bytes of the snapshot from ``position`` on, and whether the snapshot ends there; None if the snapshot was
        removed."""
        return self._storage.snapshot_chunk(snapshot, position, max_bytes)
