"""The Replication service: it pushes the records of partitions that this broker leads to followers on other brokers.

A ``PushStream`` is the state of one stream to a follower, without I/O; it knows which records to push next. This module
connects it with a gRPC stream, a clock, and threads for reads that wait for the disk. Each event of a stream (new
records, an acknowledgement, free space in its queue) schedules one callback in the event loop, which makes one message
of all events so far. While a message is being written, no second one is made for the same stream, so a follower that
does not read uses the memory of only one message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InconsistentClusterIdError,
    InvalidRequestError,
    NetworkError,
    NotLeaderOrFollowerError,
    ServerShuttingDownError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
)
from headrace_core.log import ReadResult
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security.node_ids import check_claim
from headrace_core.types import TopicPartition
from headrace_core.unexpected import answer_to, log_fields
from headrace_protos.v1 import replication_pb2_grpc
from headrace_protos.v1.replication_pb2 import FollowHello, FollowRequest, FollowResponse, ReplicationLane

from ..context import BrokerContext
from ..leader_replica import LeaderReplica
from ..partition import PartitionLeader
from ..partition.pacing import UNLIMITED, Pacer
from ..partition.push_stream import (
    CATCH_UP,
    ITEM_BYTES,
    LIVE,
    SILENCE_MS,
    ColdRead,
    JoinedReplica,
    JoinedReplicaKey,
    PushStream,
    hello_of,
)
from ..partition.versions import check_topic_id

logger = logging.getLogger(__name__)

#: Maximum number of answers to joins that may wait to be written; above the maximum the broker does not read the
#: stream.
UNSENT_MAX = 20_000

#: Seconds between two heartbeats to a follower that sends heartbeats itself (``sends_heartbeats`` in
#: replication.proto).
HEARTBEAT_S = 1.0
_HEARTBEAT = FollowResponse(sends_heartbeats=True)

#: If a silence check runs STALLED_MS late, the event loop has stalled, and the check does not count the follower as
#: silent.
STALLED_MS = 500

_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"


class ReplicationService(replication_pb2_grpc.ReplicationServicer):
    """headrace.v1.Replication. The Replication service is only on the internal
    listener. ``set_throttle`` follows ``leader.replication.throttled.rate``."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self.now_ms = broker.clock.monotonic_ms
        self._joined: dict[JoinedReplicaKey, JoinedReplica] = {}
        self._pacer = Pacer(UNLIMITED, self.now_ms())
        self.pushes, self.turns = broker.pushes, broker.flow.turns
        self.metrics, self.traces = broker.metrics, broker.traces
        self._streams: dict[tuple[int, ReplicationLane], LeaderStream] = {}
        self._throttled = _ThrottledReplicas()
        broker.metadata.watch(self._metadata_changed)

    async def Follow(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        self._broker.streams.add(stream)
        try:
            await stream.run(LeaderStream(self, stream))
        finally:
            self._broker.streams.discard(stream)

    def set_throttle(self, bytes_per_second: int) -> None:
        """Set the rate of the throttle that all catching-up replicas share (KIP-73)."""
        self._pacer.set_rate(bytes_per_second, self._broker.clock.monotonic_ms())

    def push_stream(self, hello: FollowHello, stream: LeaderStream) -> PushStream:
        """The sending state of a new stream, which replaces an older stream of the same follower. Raises
        InconsistentClusterIdError, NotLeaderOrFollowerError, StaleBrokerEpochError, InvalidRequestError."""
        self._check(hello)
        push_stream = PushStream(
            hello,
            find=self.find,
            is_throttled=self.is_throttled,
            joined=self._joined,
            pacer=self._pacer,
            now_ms=self.now_ms,
            wake=stream.wake,
            wake_at=stream.wake_at,
        )
        before = self._streams.get((hello.broker_id, hello.lane))
        if before is not None:
            before.replaced()
        self._streams[hello.broker_id, hello.lane] = stream
        return push_stream

    def _check(self, hello: FollowHello) -> None:
        image, broker_id = self._broker.metadata.image, self._broker.broker_id
        if hello.cluster_id != image.cluster_id:
            raise InconsistentClusterIdError(
                f"broker {hello.broker_id} belongs to cluster {hello.cluster_id!r}, but this broker belongs to cluster "
                f"{image.cluster_id!r}; check the listeners' addresses of both brokers"
            )
        if hello.leader_id != broker_id:
            raise NotLeaderOrFollowerError(
                f"wrong broker: broker {hello.broker_id} expected broker {hello.leader_id} at this address, this is "
                f"broker {broker_id}; the metadata of broker {hello.broker_id} is stale"
            )
        if hello.broker_id == broker_id:
            raise InvalidRequestError(f"broker {broker_id} cannot follow itself")
        known = image.brokers.get(hello.broker_id)
        if known is None:
            raise NotLeaderOrFollowerError(
                f"broker {hello.broker_id} is not in the metadata of broker {broker_id} yet; retry"
            )
        if hello.broker_epoch < known.broker_epoch:
            raise _stale(hello.broker_id, hello.broker_epoch, known.broker_epoch)
        before = self._streams.get((hello.broker_id, hello.lane))
        if before is not None and before.broker_epoch > hello.broker_epoch:
            raise _stale(hello.broker_id, hello.broker_epoch, before.broker_epoch)

    def closed(self, stream: LeaderStream, key: tuple[int, ReplicationLane]) -> None:
        if self._streams.get(key) is stream:
            del self._streams[key]

    def find(self, topic_id: bytes, partition: int) -> LeaderReplica:
        broker = self._broker
        topic = broker.metadata.image.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicIdError(
                f"broker {broker.broker_id} has no topic with id {topic_id.hex()[:32]} in its metadata; retry"
            )
        replica = broker.partitions.leader(TopicPartition(topic.name, partition))
        check_topic_id(replica.leader, topic_id)
        return replica

    def is_throttled(self, leader: PartitionLeader, broker_id: int) -> bool:
        if self._pacer.is_unlimited or not leader.is_behind(broker_id):
            return False
        # The image of the roles: it is in effect before a replica that it adds can join.
        return self._throttled.has(self._broker.partitions.image, leader.partition, self._broker.broker_id)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """End the streams of brokers that have a new broker epoch: acknowledgements from the earlier epoch may describe
        a lost disk."""
        if not delta.brokers:
            return
        for stream in list(self._streams.values()):
            known = image.brokers.get(stream.broker_id)
            if known is not None and known.broker_epoch > stream.broker_epoch:
                stream.end(_stale(stream.broker_id, stream.broker_epoch, known.broker_epoch))


class LeaderStream(StreamHandler[FollowRequest]):
    __slots__ = (
        "_closed",
        "_heartbeat_timer",
        "_is_late",
        "_is_scheduled",
        "_key",
        "_loop",
        "_pushes",
        "_service",
        "_silence",
        "_stream",
        "_timer",
        "_timer_ms",
    )

    def __init__(self, service: ReplicationService, stream: ServerStream[Any, Any]) -> None:
        self._service = service
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._pushes: PushStream | None = None  #: None before the hello.
        self._key: tuple[int, ReplicationLane] = (-1, LIVE)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_scheduled = False
        self._is_late = False  #: Whether a message waits until the one before it is written.
        self._closed = False
        self._silence: asyncio.TimerHandle | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def broker_id(self) -> int:
        return self._key[0]

    @property
    def broker_epoch(self) -> int:
        return -1 if self._pushes is None else self._pushes.broker_epoch

    def on_request(self, request: FollowRequest) -> None:
        pushes = self._pushes
        if pushes is None:
            if request.HasField("hello"):
                check_claim("Replication/Follow", request)
            hello = hello_of(request)
            self._pushes = self._service.push_stream(hello, self)
            self._key = (hello.broker_id, hello.lane)
            self._listen()
            if hello.sends_heartbeats:
                self._send_heartbeat()
        elif not pushes.is_closed:
            # (A join on a stream that is ending would replace a join on the current stream.)
            pushes.received(request)
            if request.joins and pushes.unsent > UNSENT_MAX:
                self._stream.pause()

    def on_written(self) -> None:
        pushes = self._pushes
        if pushes is None or self._stream.queued_bytes:
            return
        if self._is_late or pushes.ready or pushes.answers or pushes.endings:
            self._is_late = False
            if self._key[1] == CATCH_UP:
                self.wake()
            else:
                self._turn()

    def on_closed(self) -> None:
        self._closed = True
        self._service.pushes.end(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        if self._pushes is not None:
            self._service.closed(self, self._key)
            self._pushes.close()

    def _listen(self) -> None:
        """End the stream when the follower is silent for too long, because its connection may be broken without notice.
        The end of a silent stream does not wait for unwritten messages."""
        self._silence = None
        pushes = self._pushes
        if pushes is None or self._closed or pushes.is_closed:
            return
        silent_at_ms, now_ms = pushes.silent_at_ms(), int(self._service.now_ms())
        if silent_at_ms is None:
            return
        if self._stream.paused or now_ms - silent_at_ms > STALLED_MS:
            pushes.heard()  # do not count the follower as silent: this broker itself has read nothing
            silent_at_ms = now_ms + SILENCE_MS
        if now_ms >= silent_at_ms:
            self.end(NetworkError(f"broker {self.broker_id} sent nothing for {SILENCE_MS} ms: closing its stream"))
        else:
            self._silence = self._loop.call_later((silent_at_ms - now_ms) / 1000, self._listen)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat every second, because a follower that receives no heartbeat ends the stream."""
        self._heartbeat_timer = None
        if self._pushes is None or self._closed or self._pushes.is_closed:
            return
        # Send a heartbeat only if no bytes are queued: queued bytes replace the heartbeat.
        if not self._stream.queued_bytes:
            self._stream.send(_HEARTBEAT, ITEM_BYTES)
        self._heartbeat_timer = self._loop.call_later(HEARTBEAT_S, self._send_heartbeat)

    def wake(self) -> None:
        """Schedule one ``_turn``, because there may be messages to send. For a live stream, ``_turn`` runs at the end
        of the present event loop pass. For a catch-up stream, ``BulkTurns`` schedules ``_turn``, because no flush waits
        for this stream."""
        if self._is_scheduled or self._closed:
            return
        self._is_scheduled = True
        if self._key[1] == CATCH_UP:
            self._service.turns.ask(self._turn)
        else:
            self._service.pushes.awake[self] = None
            self._loop.call_soon(self._turn)

    def replaced(self) -> None:
        """End the stream because its follower opened another stream; this broker had not noticed the end of the old
        connection."""
        self.end(None)

    def end(self, error: HeadraceError | None) -> None:
        """Stop serving the stream, in any state of the connection."""
        if self._pushes is not None:
            self._pushes.close()
        self._stream.finish(error)

    def _turn(self) -> None:
        """Write the next message for the follower to the stream. A failure to make a message ends the stream, because
        flushes must not wait for a message that is never sent."""
        self._is_scheduled = False
        pushes, stream, service = self._pushes, self._stream, self._service
        if pushes is None or self._closed or pushes.is_closed:
            service.pushes.end(self)
            return
        if stream.queued_bytes:
            self._is_late = True
            self._loop.call_soon(service.pushes.end, self)
            return
        try:
            outgoing = pushes.next()
            if outgoing is None:
                service.pushes.end(self)
            else:
                response, size, record_bytes = outgoing
                if record_bytes:
                    service.metrics.replication_bytes.value += record_bytes
                    if service.traces is not None:
                        service.traces.add_traces(response, pushes.partition_of)
                stream.send(response, size)
                self._loop.call_soon(service.pushes.end, self)  # gRPC then has the response
            if pushes.cold_reads:
                reads, pushes.cold_reads = pushes.cold_reads, []
                for read in reads:
                    self._read(pushes, read)
        except Exception as error:
            what = f"the replication stream to broker {self.broker_id}"
            logger.exception("%s failed unexpectedly; closing the stream", what, extra=log_fields(error))
            service.pushes.end(self)
            self.end(answer_to(error, what))
            return
        if stream.paused and pushes.unsent <= UNSENT_MAX // 2:
            stream.resume()

    def wake_at(self, due_ms: int) -> None:
        """Set one timer for the next deadline of this stream; a callback that is too early does no harm."""
        if self._closed or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(due_ms - self._service.now_ms(), 0) / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        pushes = self._pushes
        if pushes is not None and (pushes.updates or pushes.paced):  # else a push has carried the new offsets
            self._turn()

    def _read(self, pushes: PushStream, read: ColdRead) -> None:
        source: LeaderReplica = read.source  # type: ignore[assignment]  # as ``ReplicationService.find`` gave it
        reading = source.read_appended_cold(read.offset, read.max_bytes)
        reading.add_done_callback(lambda done: pushes.was_read(read, _outcome(read, done)))


def _outcome(read: ColdRead, done: asyncio.Future[ReadResult | None]) -> ReadResult | HeadraceError:
    if done.cancelled():
        return ServerShuttingDownError("the broker is shutting down")
    error = done.exception()
    if error is None:
        found = done.result()
        assert found is not None, "a read that may wait for the disk always finds its bytes"
        return found
    if isinstance(error, HeadraceError):
        return error
    what = f"a read of {read.replica.partition} at offset {read.offset} for a follower"
    logger.error("%s failed", what, exc_info=error, extra=log_fields(error))
    return answer_to(error, what)


class _ThrottledReplicas:
    """Partitions that are throttled while this broker leads them. The topics' ``leader.replication.throttled.replicas``
    lists the throttled partitions ("partition:leader,...", or "*"). The broker reads the list of throttled replicas
    again when a configuration changes."""

    __slots__ = ("_configs", "_of_topic")

    def __init__(self) -> None:
        self._configs: Mapping[Any, Any] | None = None
        self._of_topic: dict[str, frozenset[str]] = {}

    def has(self, image: MetadataImage, partition: TopicPartition, leader_id: int) -> bool:
        if self._configs is not image.configs:
            self._configs, self._of_topic = image.configs, {}
        listed = self._of_topic.get(partition.topic)
        if listed is None:
            value = image.config(ConfigResourceType.TOPIC, partition.topic).get(_THROTTLED_REPLICAS, "")
            listed = self._of_topic[partition.topic] = frozenset(item.strip() for item in value.split(","))
        return "*" in listed or f"{partition.partition}:{leader_id}" in listed


def _stale(broker_id: int, broker_epoch: int, known: int) -> StaleBrokerEpochError:
    return StaleBrokerEpochError(
        f"the Follow stream of broker {broker_id} has broker epoch {broker_epoch}, but the broker has registered again "
        f"with epoch {known}"
    )
