"""FollowMetadata and ReadIndex: they give brokers and coordinators the metadata and its age.

Any controller, the leader or a follower, serves the stream of a metadata follower:

    it is ahead of us   --- a leader confirms less ---> DIVERGING_METADATA (its end was never committed)
          |               --- our own end reaches it ---> continue
    the epoch of its last record is not ours ---> DIVERGING_METADATA
    it is behind the log's start ---> the newest snapshot, part by part; then the log
          |               --- the log begins beyond what is applied here: a received snapshot is being installed, and
          |                   nothing can be read ---> keep-alives until it is
    the log, as it is committed; and when there is nothing to send, a keep-alive after a second at the latest

Only committed records are sent, because a follower acts on the records and could not undo them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace_core.clock import Clock
from headrace_core.errors import (
    DivergingMetadataError,
    InconsistentClusterIdError,
    OffsetOutOfRangeError,
    ServerShuttingDownError,
)
from headrace_core.metadata.freshness import MetadataLag
from headrace_core.rpc import PLAINTEXT, Channels
from headrace_core.rpc.streams import PushHandler, ServerPush
from headrace_core.types import split_address
from headrace_protos.v1 import cluster_pb2

from ..raft import SnapshotId
from .read_index import Quorum, ReadIndexBarriers

#: Longest pause in seconds between two messages to a metadata follower; each message also confirms the age of the
#: follower's image.
KEEP_ALIVE_S = 1.0
SNAPSHOT_PART_BYTES = 1 << 20  #: Maximum bytes of a snapshot in one message.

Response = cluster_pb2.FollowMetadataResponse


class FollowedLog(Quorum, Protocol):
    """The methods of ControllerDriver that metadata followers need, in addition to ReadIndex barriers."""

    @property
    def log_start_offset(self) -> int:
        """Start of the metadata log; earlier entries are only in the snapshot."""

    def on_turn(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever the leader or the voters may have changed; there is no way to unsubscribe."""

    def read(self, offset: int) -> tuple[bytes, int]:
        """Committed batches from ``offset`` on, about 1 MiB, and the offset after the last batch. Raises
        OffsetOutOfRangeError."""

    def epoch_below(self, offset: int) -> int | None:
        """Leader epoch of the record just below ``offset``; None if the log starts later."""

    def newest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """Bytes of the snapshot from ``position`` on, and whether the snapshot ends with them; None if the snapshot was
        removed."""


class FollowService:
    """FollowMetadata and ReadIndex of headrace.v1.Cluster, and the lag of this controller's own metadata. ``close``
    ends every stream of a metadata follower."""

    def __init__(self, log: FollowedLog, clock: Clock, channels: Channels = PLAINTEXT) -> None:
        self._log = log
        self._barriers = ReadIndexBarriers(log, clock, channels)
        self._streams: set[ServerPush[Response]] = set()
        self._is_closing = False
        self._leader = (-1, -1)

    def start(self) -> None:
        """Start the tasks in the event loop; call ``start`` when the metadata log can be read."""
        self._barriers.start()
        self._log.on_turn(self._look)

    def close(self) -> None:
        self._is_closing = True
        for stream in tuple(self._streams):
            stream.finish(ServerShuttingDownError("the controller is shutting down"))

    async def stop(self) -> None:
        """End all tasks; call this after ``close``."""
        await self._barriers.close()

    @property
    def lag(self) -> MetadataLag:
        """Lag of this controller's published metadata."""
        return self._barriers.lag

    @property
    def controllers(self) -> Mapping[int, str]:
        """``host:port`` of the internal listener of each voter."""
        return self._log.controller_addresses()

    async def follow(self, request: cluster_pb2.FollowMetadataRequest, context: Any) -> None:
        """Handle one FollowMetadata call."""
        self._check_cluster(request.cluster_id)
        if self._is_closing:
            raise ServerShuttingDownError("the controller is shutting down")
        stream: ServerPush[Response] = ServerPush(context)
        handler = _Following(self._log, self._barriers, stream, request)
        self._streams.add(stream)
        try:
            await stream.run(handler, idle_s=KEEP_ALIVE_S)
        finally:
            self._streams.discard(stream)

    async def read(self, request: cluster_pb2.ReadIndexRequest) -> cluster_pb2.ReadIndexResponse:
        """Handle one ReadIndex call."""
        self._check_cluster(request.cluster_id)
        if request.is_forwarded and self._log.leader_id != self._log.node_id:
            raise self._barriers.not_leading()
        if request.is_deferred and not request.is_forwarded:
            index = await self._barriers.recent()
        else:
            index = await self._barriers.read(is_deferred=request.is_deferred)
        return cluster_pb2.ReadIndexResponse(
            committed_offset=index.offset,
            leader_id=index.leader_id,
            leader_epoch=index.leader_epoch,
            age_ms=math.ceil(index.age_ms),
        )

    def _look(self) -> None:
        """Wake all streams when the leader changes, because metadata followers send their heartbeats to the leader."""
        leader = (self._log.leader_id, self._log.term)
        if leader != self._leader:
            self._leader = leader
            for stream in self._streams:
                stream.wake()

    def _check_cluster(self, cluster_id: str) -> None:
        if cluster_id != self._log.cluster_id:
            raise InconsistentClusterIdError(f"wrong cluster: this is cluster {self._log.cluster_id}, not {cluster_id}")


class _Following(PushHandler[Response]):
    """The stream to one metadata follower."""

    def __init__(
        self,
        log: FollowedLog,
        barriers: ReadIndexBarriers,
        stream: ServerPush[Response],
        request: cluster_pb2.FollowMetadataRequest,
    ) -> None:
        self._log = log
        self._barriers = barriers
        self._offset = request.from_offset
        self._epoch = request.from_epoch if request.HasField("from_epoch") else None
        self._began_ms = barriers.now_ms
        self._is_checked = False
        self._snapshot: tuple[SnapshotId, int] | None = None  # the snapshot to send, and the position in it
        self._sent_controllers: dict[int, str] = {}
        self._sent: tuple[int, int, int] | None = None
        if self._offset < 0:
            raise OffsetOutOfRangeError(f"from_offset={self._offset}: must be 0 or more")
        self._unsubscribe: Callable[[], None] = log.subscribe(stream.wake)

    def on_closed(self) -> None:
        self._unsubscribe()

    def next(self, is_due: bool) -> tuple[Response, int] | None:
        is_readable = self._log.log_start_offset <= self._log.image.next_offset
        if is_readable and not self._is_checked:
            self._is_checked = self._check()
        if is_readable and self._is_checked:
            if self._offset < self._log.log_start_offset and self._snapshot is None:
                self._begin_snapshot()
            if self._snapshot is not None:
                return self._next_part()
            if self._offset < self._log.image.next_offset:
                return self._next_records()
        now = (self._log.leader_id, self._log.term, self._log.image.next_offset)
        if is_due or self._sent != now:
            return self._message(), 0
        return None

    def _check(self) -> bool:
        """Whether the follower's metadata history is a prefix of this controller's history. Returns False while this
        controller is behind the follower, because it cannot compare the histories. Raises DivergingMetadataError."""
        end = self._log.image.next_offset
        if self._offset > end:
            index = self._barriers.confirmed_since(self._began_ms)
            if index is not None and index < self._offset:
                raise DivergingMetadataError(
                    f"the metadata log is committed up to {index}, but the follower has applied {self._offset}: "
                    "their logs diverge; were the controllers' directories replaced?"
                )
            return False
        known = self._log.epoch_below(self._offset) if self._offset else None
        if None not in (known, self._epoch) and known != self._epoch:
            raise DivergingMetadataError(
                f"below offset {self._offset} the metadata log has epoch {known}, but the follower has epoch "
                f"{self._epoch} there: their logs diverge; were the controllers' directories replaced?"
            )
        return True

    def _begin_snapshot(self) -> None:
        snapshot = self._log.newest_snapshot()
        if snapshot is None:
            raise OffsetOutOfRangeError(
                f"the metadata log begins at {self._log.log_start_offset}, the follower needs {self._offset}, and no "
                f"snapshot covers the offsets before it"
            )
        self._snapshot = (snapshot, 0)

    def _next_part(self) -> tuple[Response, int]:
        assert self._snapshot is not None
        snapshot, position = self._snapshot
        chunk = self._log.snapshot_chunk(snapshot, position, SNAPSHOT_PART_BYTES)
        if chunk is None:  # a later snapshot has replaced this snapshot
            self._begin_snapshot()
            snapshot, position = self._snapshot
            chunk = self._log.snapshot_chunk(snapshot, 0, SNAPSHOT_PART_BYTES)
            if chunk is None:
                raise OffsetOutOfRangeError(f"cannot read {snapshot}")
        data, is_last = chunk
        message = self._message()
        message.snapshot.offset, message.snapshot.epoch = snapshot.place
        message.snapshot.position, message.snapshot.data, message.snapshot.is_last = position, data, is_last
        if is_last:
            self._snapshot, self._offset = None, snapshot.place.offset
        else:
            self._snapshot = (snapshot, position + len(data))
        return message, len(data)

    def _next_records(self) -> tuple[Response, int]:
        records, self._offset = self._log.read(self._offset)
        message = self._message()
        message.records = records
        return message, len(records)

    def _message(self) -> Response:
        """The next message to a metadata follower; a message without new records is a keep-alive."""
        log, lag_ms = self._log, self._barriers.lag.ms
        end = log.image.next_offset
        self._sent = (log.leader_id, log.term, end)
        message = Response(
            committed_offset=end,
            leader_id=log.leader_id,
            leader_epoch=log.term,
            sender_id=log.node_id,
            leader_offset=max(self._barriers.known_offset, end),
        )
        if lag_ms is not None:
            message.sender_lag_ms = int(lag_ms) + 1
        controllers = dict(log.controller_addresses())
        if controllers != self._sent_controllers:
            self._sent_controllers = controllers
            for node_id, address in sorted(controllers.items()):
                host, port = split_address(address)
                message.controllers.add(controller_id=node_id, host=host, port=port)
        return message
