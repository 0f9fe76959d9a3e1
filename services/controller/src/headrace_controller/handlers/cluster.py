"""headrace.v1.Cluster: brokers and coordinators register, heartbeat, and follow the metadata.

The Cluster service runs only on the internal listener.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace_core.clock import Clock
from headrace_core.errors import (
    HeadraceError,
    InconsistentClusterIdError,
    ServerShuttingDownError,
    TopicAlreadyExistsError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import BrokerEndpoint, FeatureRange, FoundEpochs
from headrace_core.rpc.server import Listener
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.rpc.turns import Turns
from headrace_core.security.node_ids import check_claim
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

from ..cluster.leadership import CannotLead
from ..cluster.requests import (
    AllocateProducerIds,
    AlteredPartition,
    AlterPartition,
    AssignDirectories,
    CoordinatorHeartbeat,
    CoordinatorHeartbeatsEnded,
    CreateTopics,
    Heartbeat,
    HeartbeatsEnded,
    NewTopic,
    PartitionResult,
    Placement,
    RefusedPlacement,
    RegisterBroker,
    RegisterController,
    RegisterCoordinator,
)
from ..driver import ControllerDriver
from .follow import FollowService


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker's last heartbeat, which arrived at the monotonic time ``at_ms``. The heartbeat names the metadata offset
    that the broker has applied, and how many records the broker is behind. The heartbeat also has the age of the
    broker's metadata; None if the age is unknown."""

    broker_id: int
    metadata_offset: int
    lag_records: int
    lag_ms: float | None
    at_ms: float


class ClusterHandler(cluster_pb2_grpc.ClusterServicer):
    """``close`` ends all streams, so that the listeners need not cancel these streams when they stop."""

    def __init__(self, driver: ControllerDriver, following: FollowService, clock: Clock) -> None:
        self._driver = driver
        self._following = following
        self._clock = clock
        self._heartbeats: set[_Heartbeats] = set()

    def brokers_seen(self) -> list[BrokerSeen]:
        """The last heartbeat of every broker that sends heartbeats to this controller, by broker id."""
        latest: dict[int, BrokerSeen] = {}
        for each in self._heartbeats:
            seen = each.seen if isinstance(each, _BrokerHeartbeats) else None
            if seen is not None and (seen.broker_id not in latest or latest[seen.broker_id].at_ms < seen.at_ms):
                latest[seen.broker_id] = seen
        return [latest[broker_id] for broker_id in sorted(latest)]

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(cluster_pb2_grpc.add_ClusterServicer_to_server, self, "headrace.v1.Cluster")

    async def RegisterBroker(self, request: cluster_pb2.RegisterBrokerRequest, context: Any) -> Any:
        has_stopped_cleanly = request.HasField("previous_broker_epoch")
        answer = await self._driver.ask(
            RegisterBroker(
                cluster_id=request.cluster_id,
                incarnation_id=request.incarnation_id,
                directory_ids=tuple(request.directory_ids),
                endpoints=tuple(BrokerEndpoint(item.listener, item.host, item.port) for item in request.endpoints),
                rack=request.rack or None,
                wanted_broker_id=request.wanted_broker_id,
                previous_broker_epoch=request.previous_broker_epoch if has_stopped_cleanly else -1,
                default_log_flush=request.default_log_flush,
                features=feature_ranges(request.features),
                directory_epochs=tuple(
                    FoundEpochs(each.directory_id, each.started_epoch, each.stopped_epoch)
                    for each in request.directory_epochs
                ),
            )
        )
        registered = answer.reply
        return cluster_pb2.RegisterBrokerResponse(
            broker_id=registered.broker_id,
            broker_epoch=registered.broker_epoch,
            metadata_offset=registered.broker_epoch + 1,
        )

    async def RegisterController(self, request: cluster_pb2.RegisterControllerRequest, context: Any) -> Any:
        self._check_cluster(request.cluster_id)
        answer = await self._driver.ask(
            RegisterController(request.controller_id, request.directory_id, feature_ranges(request.features))
        )
        return cluster_pb2.RegisterControllerResponse(metadata_offset=answer.metadata_offset)

    async def RegisterCoordinator(self, request: cluster_pb2.RegisterCoordinatorRequest, context: Any) -> Any:
        answer = await self._driver.ask(
            RegisterCoordinator(
                cluster_id=request.cluster_id,
                incarnation_id=request.incarnation_id,
                endpoints=tuple(BrokerEndpoint(item.listener, item.host, item.port) for item in request.endpoints),
                rack=request.rack or None,
                wanted_id=request.wanted_coordinator_id,
            )
        )
        return cluster_pb2.RegisterCoordinatorResponse(
            coordinator_id=answer.reply.coordinator_id,
            coordinator_epoch=answer.reply.coordinator_epoch,
            metadata_offset=answer.metadata_offset,
        )

    async def AllocateProducerIds(self, request: cluster_pb2.AllocateProducerIdsRequest, context: Any) -> Any:
        if request.HasField("coordinator_id"):
            asked = AllocateProducerIds(coordinator=(request.coordinator_id, request.coordinator_epoch))
        else:
            asked = AllocateProducerIds(request.broker_id, request.broker_epoch)
        answer = await self._driver.ask(asked)
        return cluster_pb2.AllocateProducerIdsResponse(first=answer.reply.first, length=answer.reply.length)

    async def CreateInternalTopic(self, request: cluster_pb2.CreateInternalTopicRequest, context: Any) -> Any:
        answer = await self._driver.ask(CreateTopics((NewTopic(name=request.name),), internal=True))
        (result,) = answer.reply
        if result.error is not None and not isinstance(result.error, TopicAlreadyExistsError):
            raise result.error
        return cluster_pb2.CreateInternalTopicResponse(metadata_offset=answer.metadata_offset)

    async def BrokerHeartbeat(self, request: Any, context: Any) -> None:
        await self._hear(_BrokerHeartbeats, context)

    async def CoordinatorHeartbeat(self, request: Any, context: Any) -> None:
        await self._hear(_CoordinatorHeartbeats, context)

    async def _hear(self, kind: type[_Heartbeats], context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        handler = kind(self._driver, stream, self._clock)
        self._heartbeats.add(handler)
        try:
            await stream.run(handler)
        finally:
            self._heartbeats.discard(handler)

    async def AssignReplicasToDirs(self, request: cluster_pb2.AssignReplicasToDirsRequest, context: Any) -> Any:
        replicas = (
            (topic, partition, each.directory_id)
            for each in request.directories
            for topic in each.topics
            for partition in topic.partitions
        )

        def placement(replica: tuple[cluster_pb2.AssignedTopic, int, bytes]) -> Placement:
            topic, partition, directory = replica
            return Placement(topic.topic_id, partition, directory, topic.fresh)

        def refused(each: RefusedPlacement) -> cluster_pb2.RefusedAssignment:
            return cluster_pb2.RefusedAssignment(
                topic_id=each.placement.topic_id,
                partition=each.placement.partition,
                error=error_to_proto(each.error),
            )

        items = sum(len(topic.partitions) for each in request.directories for topic in each.topics)
        async with Turns(items) as turns:
            asked = AssignDirectories(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                placements=tuple(await turns.each(replicas, placement)),
            )
            answer = await turns.outside(self._driver.ask(asked))
            return cluster_pb2.AssignReplicasToDirsResponse(
                refused=await turns.each(answer.reply, refused), metadata_offset=answer.metadata_offset
            )

    async def AlterPartition(self, request: cluster_pb2.AlterPartitionRequest, context: Any) -> Any:
        def altered(item: tuple[bytes, cluster_pb2.AlteredPartition]) -> AlteredPartition:
            topic_id, each = item
            return AlteredPartition(
                topic_id=topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=tuple((member.broker_id, member.broker_epoch) for member in each.isr),
                recovering=each.recovering,
                uncertain=each.uncertain,
            )

        def result(each: PartitionResult) -> cluster_pb2.AlterPartitionResult:
            return cluster_pb2.AlterPartitionResult(
                topic_id=each.topic_id,
                partition=each.partition,
                error=error_to_proto(each.error),
                leader_id=each.leader,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=each.isr,
                recovering=each.recovering,
            )

        items = [(topic.topic_id, each) for topic in request.topics for each in topic.partitions]
        async with Turns(len(items)) as turns:
            asked = AlterPartition(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                metadata_offset=request.metadata_offset,
                partitions=tuple(await turns.each(items, altered)),
            )
            answer = await turns.outside(self._driver.ask(asked))
            return cluster_pb2.AlterPartitionResponse(
                results=await turns.each(answer.reply, result), metadata_offset=answer.metadata_offset
            )

    async def FollowMetadata(self, request: cluster_pb2.FollowMetadataRequest, context: Any) -> None:
        await self._following.follow(request, context)

    async def ReadIndex(self, request: cluster_pb2.ReadIndexRequest, context: Any) -> Any:
        return await self._following.read(request)

    #: The former name of ReadIndex, which the controllers serve for one more release (cluster.proto).
    VouchMetadata = ReadIndex

    def _check_cluster(self, cluster_id: str) -> None:
        own = self._driver.image.cluster_id
        if cluster_id != own:
            raise InconsistentClusterIdError(f"wrong cluster: this is cluster {own}, not {cluster_id}")

    def close(self) -> None:
        """End every stream."""
        self._following.close()
        for handler in tuple(self._heartbeats):
            handler.end()


class _Heartbeats(StreamHandler[Any]):
    """One node's stream. The driver is notified when a heartbeat stream ends, for any reason. ``_numbers`` gives each
    stream a number; no stream has the number 0, which stands for a registration."""

    METHOD: ClassVar[str]  #: "Service/Method"

    _numbers = itertools.count(1)

    def __init__(self, driver: ControllerDriver, stream: ServerStream[Any, Any], clock: Clock) -> None:
        self._driver = driver
        self._stream = stream
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._node: tuple[int, int] | None = None  # id and epoch
        self._is_closed = False
        self._number = next(self._numbers)

    def identity(self, request: Any) -> tuple[int, int]:
        """Id and epoch of the node that sends ``request``."""
        raise NotImplementedError

    def ended(self, node_id: int, epoch: int) -> HeartbeatsEnded | CoordinatorHeartbeatsEnded:
        raise NotImplementedError

    async def answer(self, request: Any) -> Any:
        """Answer one heartbeat. Raises a HeadraceError, which ends the heartbeat stream."""
        raise NotImplementedError

    def on_request(self, request: Any) -> None:
        # check this before the node is recorded, because the end of a recorded node's stream fences it
        check_claim(self.METHOD, request)
        self._node = self.identity(request)  # record the node now, because the stream may break before the answer
        task = asyncio.ensure_future(self._beat(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_idle(self) -> bool:
        return not self._tasks

    def on_closed(self) -> None:
        self._is_closed = True
        if self._node is not None:
            self._driver.tell(self.ended(*self._node))

    def end(self) -> None:
        self._stream.finish(ServerShuttingDownError("the controller is shutting down"))

    async def _beat(self, request: Any) -> None:
        if self._is_closed:  # the end of the stream was already reported, and is later than this heartbeat
            return
        try:
            answer = await self.answer(request)
        except HeadraceError as error:
            self._stream.finish(error)
        else:
            self._stream.send(answer)


class _BrokerHeartbeats(_Heartbeats):
    METHOD = "Cluster/BrokerHeartbeat"

    seen: BrokerSeen | None = None

    def identity(self, request: cluster_pb2.BrokerHeartbeatRequest) -> tuple[int, int]:
        return request.broker_id, request.broker_epoch

    def ended(self, node_id: int, epoch: int) -> HeartbeatsEnded:
        return HeartbeatsEnded(node_id, epoch, stream=self._number)

    async def answer(self, request: cluster_pb2.BrokerHeartbeatRequest) -> cluster_pb2.BrokerHeartbeatResponse:
        seen = BrokerSeen(
            broker_id=request.broker_id,
            metadata_offset=request.metadata_offset,
            lag_records=max(self._driver.image.next_offset - request.metadata_offset, 0),
            lag_ms=request.metadata_lag_ms if request.HasField("metadata_lag_ms") else None,
            at_ms=self._clock.monotonic_ms(),
        )
        answer = await self._driver.ask(
            Heartbeat(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                metadata_offset=request.metadata_offset,
                want_fence=request.want_fence,
                want_shutdown=request.want_shutdown,
                offline_directories=tuple(request.offline_log_dirs),
                stream=self._number,
                cannot_lead=tuple(CannotLead(each.directory_id, each.reason) for each in request.cannot_lead),
                lacking_leaders=tuple(
                    (each.topic_id, each.partition, each.leader_epoch) for each in request.lacking_leaders
                ),
            )
        )
        self.seen = seen
        return cluster_pb2.BrokerHeartbeatResponse(
            correlation_id=request.correlation_id,
            fenced=answer.reply.fenced,
            should_shutdown=answer.reply.should_shutdown,
        )


class _CoordinatorHeartbeats(_Heartbeats):
    METHOD = "Cluster/CoordinatorHeartbeat"

    def identity(self, request: cluster_pb2.CoordinatorHeartbeatRequest) -> tuple[int, int]:
        return request.coordinator_id, request.coordinator_epoch

    def ended(self, node_id: int, epoch: int) -> CoordinatorHeartbeatsEnded:
        return CoordinatorHeartbeatsEnded(node_id, epoch, stream=self._number)

    async def answer(
        self, request: cluster_pb2.CoordinatorHeartbeatRequest
    ) -> cluster_pb2.CoordinatorHeartbeatResponse:
        answer = await self._driver.ask(
            CoordinatorHeartbeat(
                coordinator_id=request.coordinator_id,
                coordinator_epoch=request.coordinator_epoch,
                want_shutdown=request.want_shutdown,
                stream=self._number,
            )
        )
        return cluster_pb2.CoordinatorHeartbeatResponse(
            correlation_id=request.correlation_id, should_shutdown=answer.reply.should_shutdown
        )


def feature_ranges(items: Iterable[cluster_pb2.FeatureRange]) -> tuple[FeatureRange, ...]:
    """The feature ranges with which a node registers."""
    return tuple(FeatureRange(item.name, item.min_level, item.max_level) for item in items)
