"""Calls of this broker to the active controller (headrace_core.membership.controller_calls)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_of
from headrace_core.membership.controller_calls import ControllerCalls, Sending
from headrace_core.membership.controllers import Controllers
from headrace_core.membership.leader_calls import is_repeatable
from headrace_core.membership.producer_ids import ProducerIdBlock
from headrace_protos.v1 import admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc

from .settings import BrokerIdentity

REQUEST_TIMEOUT_MS = 30_000  #: Timeout in milliseconds of calls that set no timeout (request.timeout.ms).

ReplicaKey = tuple[bytes, int]  #: A replica of this broker, as a pair of topic id and partition number.


class IsrRequest(NamedTuple):
    """An AlterPartition request of a partition's leader; see cluster.proto."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int  #: The partition epoch that the leader knows when it sends the AlterPartition request.
    isr: tuple[tuple[int, int], ...]  #: The in-sync replicas as (broker id, broker epoch), including the leader.
    recovering: bool = False
    #: Whether an earlier AlterPartition with this partition epoch got no definite answer, so the controller may still
    #: apply it.
    uncertain: bool = False


class IsrAnswer(NamedTuple):
    """The partition's state after AlterPartition, as the controllers recorded it."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    recovering: bool


class DirectoriesAssigned(NamedTuple):
    """Answer to AssignReplicasToDirs: the replicas whose directory the controllers refused. At ``metadata_offset`` the
    controllers have recorded all replicas except the refused ones."""

    refused: Mapping[ReplicaKey, HeadraceError]
    metadata_offset: int


class ControllerLink:
    """Calls to the active controller, over channels to the controllers' internal listeners that open on first use."""

    def __init__(
        self,
        controllers: Controllers,
        clock: Clock,
        identity: BrokerIdentity,
        *,
        timeout_ms: int,
    ) -> None:
        """``identity`` is the broker's identity, which all calls to the controller contain. ``timeout_ms`` is the
        default timeout of calls to the controller."""
        self._calls = ControllerCalls(controllers, clock)
        self._identity = identity
        self._timeout_ms = timeout_ms

    async def call(
        self, method: str, request: Any, timeout_ms: int, stub_of: Callable[[Any], Any] = admin_pb2_grpc.AdminStub
    ) -> Any:
        """Send a call of the Admin service, or of the service of ``stub_of``, to the active controller and return the
        answer. The call searches for the active controller until ``timeout_ms`` are over, then raises the error of the
        last attempt. RequestTimedOutError means that the request was sent and its outcome is unknown. An error in the
        active controller's answer is raised at once."""
        sending = Sending.UNTIL_ANSWERED if is_repeatable(method, request) else Sending.UNTIL_ATTEMPTED
        return await self._calls.call(stub_of, method, request, timeout_ms, sending)

    async def assign_directories(
        self, where: Mapping[ReplicaKey, bytes], fresh: Collection[ReplicaKey] = ()
    ) -> DirectoriesAssigned:
        """Report the directories of this broker's replicas (KIP-858); returns the replicas that the controllers
        refused. The replicas in ``fresh`` will be created again with empty logs. When ``assign_directories`` returns,
        the ``fresh`` replicas are eligible for no election (KIP-903). Raises the errors of ``call``, and
        StaleBrokerEpochError."""
        request = cluster_pb2.AssignReplicasToDirsRequest(
            broker_id=self._identity.broker_id, broker_epoch=self._identity.broker_epoch
        )
        topics: dict[tuple[bytes, bytes, bool], Any] = {}
        directories: dict[bytes, Any] = {}
        for key, directory in where.items():
            topic_id, partition = key
            group = (directory, topic_id, key in fresh)
            topic = topics.get(group)
            if topic is None:
                item = directories.get(directory)
                if item is None:
                    item = directories[directory] = request.directories.add(directory_id=directory)
                topic = topics[group] = item.topics.add(topic_id=topic_id, fresh=group[2])
            topic.partitions.append(partition)
        answer = await self._calls.call(
            cluster_pb2_grpc.ClusterStub, "AssignReplicasToDirs", request, self._timeout_ms, Sending.UNTIL_ANSWERED
        )
        refused = {(item.topic_id, item.partition): error_of(item.error) for item in answer.refused}
        return DirectoriesAssigned(
            {key: error for key, error in refused.items() if error is not None}, answer.metadata_offset
        )

    async def alter_partitions(
        self, changes: Iterable[IsrRequest], metadata_offset: int
    ) -> dict[ReplicaKey, IsrAnswer | HeadraceError]:
        """Propose new in-sync sets of partitions that this broker leads (KIP-497). Returns each partition's state after
        the call, or the error of the refusal (cluster.proto lists the errors). ``metadata_offset`` is the offset up to
        which this broker has applied the metadata log. ``alter_partitions`` sends at most one request; the caller
        repeats a failed request. The controller answers a repeated AlterPartition like a new AlterPartition. Raises the
        errors of ``call``, StaleBrokerEpochError, and NetworkError if the answer was lost."""
        request = cluster_pb2.AlterPartitionRequest(
            broker_id=self._identity.broker_id,
            broker_epoch=self._identity.broker_epoch,
            metadata_offset=metadata_offset,
        )
        topics: dict[bytes, Any] = {}
        for change in changes:
            topic = topics.get(change.topic_id)
            if topic is None:
                topic = topics[change.topic_id] = request.topics.add(topic_id=change.topic_id)
            topic.partitions.add(
                partition=change.partition,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                isr=[cluster_pb2.IsrMember(broker_id=member, broker_epoch=epoch) for member, epoch in change.isr],
                recovering=change.recovering,
                uncertain=change.uncertain,
            )
        answer = await self._calls.call(
            cluster_pb2_grpc.ClusterStub, "AlterPartition", request, self._timeout_ms, Sending.AT_MOST_ONCE
        )
        return {
            (item.topic_id, item.partition): error_of(item.error)
            or IsrAnswer(item.leader_id, item.leader_epoch, item.partition_epoch, tuple(item.isr), item.recovering)
            for item in answer.results
        }

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Allocate a new block of producer ids (KIP-730). If the answer is lost, the allocated block stays unused.
        Raises the errors of ``call``, and StaleBrokerEpochError."""
        request = cluster_pb2.AllocateProducerIdsRequest(
            broker_id=self._identity.broker_id, broker_epoch=self._identity.broker_epoch
        )
        answer = await self._calls.call(
            cluster_pb2_grpc.ClusterStub, "AllocateProducerIds", request, self._timeout_ms, Sending.UNTIL_ANSWERED
        )
        return ProducerIdBlock(answer.first, answer.length)

    async def create_internal_topic(self, name: str, timeout_ms: int) -> int:
        """Create an internal topic; returns the metadata offset from which the topic exists. Raises the errors of
        ``call``, and the errors of CreateTopics."""
        request = cluster_pb2.CreateInternalTopicRequest(name=name)
        answer = await self._calls.call(
            cluster_pb2_grpc.ClusterStub, "CreateInternalTopic", request, timeout_ms, Sending.UNTIL_ANSWERED
        )
        return int(answer.metadata_offset)

    async def close(self) -> None:
        await self._calls.close()
