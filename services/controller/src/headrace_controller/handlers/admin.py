"""headrace.v1.Admin, on the client listener, and on the internal one for brokers that forward their clients' calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from headrace_core.clock import Clock
from headrace_core.errors import (
    DuplicateVoterError,
    HeadraceError,
    InconsistentClusterIdError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    ReplicaNotCaughtUpError,
    RequestTimedOutError,
    UnsupportedVersionError,
    VoterChangeInProgressError,
    VoterNotFoundError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.membership.config_messages import config_entries
from headrace_core.metadata import METADATA_VERSION_FEATURE, ConfigResource, ConfigResourceType
from headrace_core.metadata.configs import describe_broker, describe_topic
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.rpc.server import Listener
from headrace_core.rpc.turns import DESCRIPTION_ITEMS, Turns
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..cluster import reassignment
from ..cluster.configs import check_resource
from ..cluster.requests import (
    AlterConfigs,
    AlterPartitionReassignments,
    AlterResource,
    ConfigOp,
    ConfigResult,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DrainBroker,
    ElectionType,
    ElectLeaders,
    FeatureUpdate,
    MorePartitions,
    NewTopic,
    OpKind,
    Reassignment,
    TopicResult,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from ..driver import ControllerDriver
from ..raft import QuorumStatus, ReplicaKey, ReplicaStatus, quorum_status
from ..transport.wire import check_address
from .cluster import BrokerSeen

_UPDATES_MAX = 1_000  #: Maximum number of feature updates in one UpdateFeatures request.
_DIRECTORY_BYTES = 16
#: Timeout in milliseconds of requests that set no timeout (Kafka's request.timeout.ms).
_TIMEOUT_MS_DEFAULT = 30_000
#: Seconds between two checks whether a replica has caught up, or whether a change of the voters is committed.
_LOOK_AGAIN_S = 0.05

T = TypeVar("T")


class AdminHandler(admin_pb2_grpc.AdminServicer):
    """``given``: the values of this controller's properties file; DescribeConfigs shows the file's topic defaults as
    static values. ``address_of`` returns another controller's reported address; ``brokers_seen`` is described in
    ClusterHandler."""

    def __init__(
        self,
        driver: ControllerDriver,
        given: Mapping[str, Any],
        *,
        address_of: Callable[[ReplicaKey], str],
        brokers_seen: Callable[[], Iterable[BrokerSeen]],
        clock: Clock,
    ) -> None:
        self._driver = driver
        self._given = given
        self._address_of = address_of
        self._brokers_seen = brokers_seen
        self._clock = clock

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(admin_pb2_grpc.add_AdminServicer_to_server, self, "headrace.v1.Admin")

    async def CreateTopics(self, request: admin_pb2.CreateTopicsRequest, context: Any) -> Any:
        def created(result: TopicResult) -> admin_pb2.CreateTopicResult:
            return admin_pb2.CreateTopicResult(
                name=result.name,
                error=error_to_proto(result.error),
                topic_id=b"" if request.validate_only else result.topic_id,
                partitions=result.partitions,
                replication_factor=result.replication_factor,
            )

        async with Turns(len(request.topics)) as turns:
            topics = tuple(await turns.each(request.topics, _new_topic))
            answer = await turns.outside(self._driver.ask(CreateTopics(topics, request.validate_only)))
            return admin_pb2.CreateTopicsResponse(
                results=await turns.each(answer.reply, created), metadata_offset=answer.metadata_offset
            )

    async def DeleteTopics(self, request: admin_pb2.DeleteTopicsRequest, context: Any) -> Any:
        answer = await self._driver.ask(DeleteTopics(tuple(request.topics)))
        return admin_pb2.DeleteTopicsResponse(
            results=[
                admin_pb2.DeleteTopicResult(name=result.name, error=error_to_proto(result.error))
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def CreatePartitions(self, request: admin_pb2.CreatePartitionsRequest, context: Any) -> Any:
        def more_partitions(more: admin_pb2.NewPartitions) -> MorePartitions:
            return MorePartitions(topic=more.topic, total=more.total_count, assignments=_assignments(more.assignments))

        def created(result: TopicResult) -> admin_pb2.CreatePartitionsResult:
            return admin_pb2.CreatePartitionsResult(topic=result.name, error=error_to_proto(result.error))

        async with Turns(len(request.topics)) as turns:
            topics = tuple(await turns.each(request.topics, more_partitions))
            answer = await turns.outside(self._driver.ask(CreatePartitions(topics, request.validate_only)))
            return admin_pb2.CreatePartitionsResponse(
                results=await turns.each(answer.reply, created), metadata_offset=answer.metadata_offset
            )

    async def DescribeConfigs(self, request: admin_pb2.DescribeConfigsRequest, context: Any) -> Any:
        answer = admin_pb2.DescribeConfigsResponse()
        # The description of one resource lists dozens of configuration entries, so it takes as long as dozens of items
        # of other calls.
        async with Turns(DESCRIPTION_ITEMS * len(request.resources)) as turns:
            for item in request.resources:
                if turns.is_over():
                    await turns.next()
                answer.results.append(self._described(item, include_synonyms=request.include_synonyms))
        return answer

    async def AlterConfigs(self, request: admin_pb2.AlterConfigsRequest, context: Any) -> Any:
        def resource(item: admin_pb2.AlterConfigsResource) -> AlterResource:
            return AlterResource(_resource(item.resource), tuple(_op(op) for op in item.ops))

        def altered(each: tuple[admin_pb2.AlterConfigsResource, ConfigResult]) -> admin_pb2.AlterConfigsResult:
            return admin_pb2.AlterConfigsResult(resource=each[0].resource, error=error_to_proto(each[1].error))

        async with Turns(len(request.resources)) as turns:
            resources = tuple(await turns.each(request.resources, resource))
            answer = await turns.outside(self._driver.ask(AlterConfigs(resources, request.validate_only)))
            results = await turns.each(zip(request.resources, answer.reply, strict=True), altered)
            return admin_pb2.AlterConfigsResponse(results=results, metadata_offset=answer.metadata_offset)

    async def ElectLeaders(self, request: admin_pb2.ElectLeadersRequest, context: Any) -> Any:
        answer = await self._driver.ask(_election(request))
        return admin_pb2.ElectLeadersResponse(
            results=[
                admin_pb2.ElectLeadersResult(
                    topic=each.topic, partition=each.partition, error=error_to_proto(each.error)
                )
                for each in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def DescribeFeatures(self, request: admin_pb2.DescribeFeaturesRequest, context: Any) -> Any:
        finalized = {METADATA_VERSION_FEATURE: self._driver.image.metadata_version}
        return admin_pb2.DescribeFeaturesResponse(
            features=[
                admin_pb2.FeatureDescription(
                    name=each.name,
                    finalized_level=finalized.get(each.name, 0),
                    min_level=each.min_level,
                    max_level=each.max_level,
                )
                for each in SUPPORTED_FEATURES
            ]
        )

    async def UpdateFeatures(self, request: admin_pb2.UpdateFeaturesRequest, context: Any) -> Any:
        if len(request.updates) > _UPDATES_MAX:
            raise InvalidRequestError(
                f"the request has {len(request.updates)} updates, at most {_UPDATES_MAX} are allowed; split the request"
            )
        updates = tuple(
            FeatureUpdate(item.name, item.level, _upgrade_type(item.upgrade_type)) for item in request.updates
        )
        answer = await self._driver.ask(UpdateFeatures(updates, request.validate_only))
        return admin_pb2.UpdateFeaturesResponse(
            results=[
                admin_pb2.UpdateFeatureResult(name=result.name, error=error_to_proto(result.error))
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def AlterPartitionReassignments(
        self, request: admin_pb2.AlterPartitionReassignmentsRequest, context: Any
    ) -> Any:
        throttle = request.throttle_bytes_per_s if request.HasField("throttle_bytes_per_s") else None
        answer = await self._driver.ask(
            AlterPartitionReassignments(
                reassignments=tuple(_reassignment(item) for item in request.reassignments),
                allow_replication_factor_change=not request.keep_replication_factor,
                throttle_bytes_per_s=throttle,
            )
        )
        return admin_pb2.AlterPartitionReassignmentsResponse(
            results=[
                admin_pb2.PartitionReassignmentResult(
                    topic=result.topic, partition=result.partition, error=error_to_proto(result.error)
                )
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def ListPartitionReassignments(
        self, request: admin_pb2.ListPartitionReassignmentsRequest, context: Any
    ) -> Any:
        wanted = [(each.topic, partition) for each in request.partitions for partition in each.partitions]
        return admin_pb2.ListPartitionReassignmentsResponse(
            reassignments=[
                admin_pb2.OngoingReassignment(
                    topic=each.topic,
                    partition=each.partition,
                    replicas=each.replicas,
                    adding_replicas=each.adding,
                    removing_replicas=each.removing,
                    waits=each.waits,
                )
                for each in reassignment.listed(self._driver.image, wanted if request.partitions else None)
            ]
        )

    async def DrainBroker(self, request: admin_pb2.DrainBrokerRequest, context: Any) -> Any:
        answer = await self._driver.ask(DrainBroker(request.broker_id, draining=not request.cancel))
        return admin_pb2.DrainBrokerResponse(
            replicas_left=answer.reply.replicas_left, metadata_offset=answer.metadata_offset
        )

    async def UnregisterBroker(self, request: admin_pb2.UnregisterBrokerRequest, context: Any) -> Any:
        answer = await self._driver.ask(UnregisterBroker(request.broker_id))
        return admin_pb2.UnregisterBrokerResponse(metadata_offset=answer.metadata_offset)

    async def DescribeLogDirs(self, request: admin_pb2.DescribeLogDirsRequest, context: Any) -> Any:
        raise UnsupportedVersionError("controllers have no log directories: send the request to the broker")

    async def AlterReplicaLogDirs(self, request: admin_pb2.AlterReplicaLogDirsRequest, context: Any) -> Any:
        raise UnsupportedVersionError(
            "controllers cannot move replicas between directories: send the request to the broker that has the replica"
        )

    def _described(
        self, resource: admin_pb2.ConfigResource, *, include_synonyms: bool
    ) -> admin_pb2.DescribeConfigsResult:
        image = self._driver.image
        try:
            kind, name = checked = _resource(resource)
            check_resource(image, checked)
        except HeadraceError as error:
            return admin_pb2.DescribeConfigsResult(resource=resource, error=error_to_proto(error))
        if kind is ConfigResourceType.TOPIC:
            described = describe_topic(image, name, given=self._given)
        else:
            described = describe_broker(image, int(name) if name else None)
        return admin_pb2.DescribeConfigsResult(
            resource=resource, entries=config_entries(described, include_synonyms=include_synonyms)
        )

    # -- the controllers' quorum (KIP-595, KIP-836, KIP-853)

    async def DescribeQuorum(self, request: admin_pb2.DescribeQuorumRequest, context: Any) -> Any:
        status = self._led_status()
        now_ms = self._clock.now_ms()  # read the clock once, so that times of the same tick are equal
        return admin_pb2.DescribeQuorumResponse(
            leader_id=status.leader,
            leader_epoch=status.term,
            high_watermark=status.committed,
            voters=[self._quorum_replica(each, status, now_ms) for each in status.voters],
            observers=[self._quorum_replica(each, status, now_ms) for each in status.observers],
            brokers=[self._quorum_broker(each) for each in self._brokers_seen()],
        )

    async def AddRaftVoter(self, request: admin_pb2.AddRaftVoterRequest, context: Any) -> Any:
        self._check_cluster(request.cluster_id)
        address = check_address(request.address) if request.address else ""

        async def add() -> Any:
            key = self._newcomer(request.voter_id, request.voter_directory_id)
            answer = await self._driver.add_voter(key, address or self._address_of(key))
            return admin_pb2.AddRaftVoterResponse(metadata_offset=answer.metadata_offset)

        return await _again_until(add, _deadline_s(request.timeout_ms), f"adding controller {request.voter_id}")

    async def RemoveRaftVoter(self, request: admin_pb2.RemoveRaftVoterRequest, context: Any) -> Any:
        self._check_cluster(request.cluster_id)

        async def remove() -> Any:
            answer = await self._driver.remove_voter(self._voter(request.voter_id, request.voter_directory_id))
            return admin_pb2.RemoveRaftVoterResponse(metadata_offset=answer.metadata_offset)

        return await _again_until(remove, _deadline_s(request.timeout_ms), f"removing controller {request.voter_id}")

    async def TransferLeadership(self, request: admin_pb2.TransferLeadershipRequest, context: Any) -> Any:
        self._led_status()
        driver = self._driver

        async def transfer() -> Any:
            if request.voter_id < 0:
                best = driver.controller.best_successor()
                if best is None and len(driver.controller.voters) == 1:
                    raise VoterNotFoundError(
                        f"controller {driver.node_id} is the only voter: no other controller can become leader"
                    )
                if best is None:  # without a result, this controller no longer leads, or has just been elected
                    self._led_status()
                    raise ReplicaNotCaughtUpError("no other voter follows the metadata log now; retry")
                await driver.transfer(best)
            elif request.voter_id != driver.node_id:
                await driver.transfer(self._voter(request.voter_id, b""))
            return admin_pb2.TransferLeadershipResponse(leader_id=driver.leader_id, leader_epoch=driver.term)

        return await _again_until(transfer, _deadline_s(request.timeout_ms), "transferring the leadership")

    def _led_status(self) -> QuorumStatus:
        """The quorum's status, as the leader knows it. Raises NotControllerError unless this node leads."""
        if not self._driver.is_leader:
            raise self._driver.controller.not_controller()
        return quorum_status(self._driver.controller.raft)

    def _check_cluster(self, cluster_id: str) -> None:
        own = self._driver.image.cluster_id
        if cluster_id and cluster_id != own:
            raise InconsistentClusterIdError(f"wrong cluster: this is cluster {own}, not {cluster_id}")

    def _newcomer(self, node_id: int, directory_id: bytes) -> ReplicaKey:
        """The replica that AddVoter makes a voter. If the request names no directory, the replica is the observer with
        the requested node id."""
        status = self._led_status()
        if directory_id:
            return _key(node_id, directory_id)
        present = status.voter_set.find(node_id)
        if present is not None:
            raise DuplicateVoterError(f"controller {node_id} is a voter already, with the key {present}")
        found = [each.key for each in status.observers if each.key.node_id == node_id]
        if not found:
            raise ReplicaNotCaughtUpError(
                f"controller {node_id} does not follow the metadata log: is it running, and does its "
                "controller.quorum.bootstrap.servers name these controllers?"
            )
        if len(found) > 1:
            named = ", ".join(key.directory_id.hex() for key in found)
            raise InvalidRequestError(
                f"controller {node_id} follows with several directories ({named}): pass the id of one directory"
            )
        return found[0]

    def _voter(self, node_id: int, directory_id: bytes) -> ReplicaKey:
        if directory_id:
            return _key(node_id, directory_id)
        voters = self._led_status().voter_set
        found = voters.find(node_id)
        if found is None:
            raise VoterNotFoundError(f"controller {node_id} is not a voter; the voters are {voters}")
        return found

    def _quorum_replica(self, each: ReplicaStatus, status: QuorumStatus, now_ms: int) -> admin_pb2.QuorumReplica:
        return admin_pb2.QuorumReplica(
            replica_id=each.key.node_id,
            directory_id=each.key.directory_id,
            address=self._where(each),
            log_end_offset=each.match,
            lag=-1 if each.match < 0 else status.log_end_offset - each.match,
            last_fetch_timestamp_ms=self._time_of(each.last_contact_ticks_ago, now_ms),
            last_caught_up_timestamp_ms=self._time_of(each.caught_up_ticks_ago, now_ms),
            usable_bytes=None if each.room is None else each.room.usable_bytes,
            total_bytes=None if each.room is None else each.room.total_bytes,
            is_outdated=each.is_outdated,
        )

    def _quorum_broker(self, seen: BrokerSeen) -> admin_pb2.QuorumBroker:
        """The entry of one broker in the quorum's description. The reported age of a broker's metadata grows with the
        time since the report."""
        ago_ms = self._clock.monotonic_ms() - seen.at_ms
        shown = admin_pb2.QuorumBroker(
            broker_id=seen.broker_id,
            metadata_offset=seen.metadata_offset,
            lag=seen.lag_records,
            last_heartbeat_timestamp_ms=int(self._clock.now_ms() - ago_ms),
        )
        if seen.lag_ms is not None:
            shown.metadata_lag_ms = int(seen.lag_ms + ago_ms) + 1
        return shown

    def _where(self, each: ReplicaStatus) -> str:
        said = self._address_of(each.key) or each.address
        return said or self._driver.controller.addresses.get(each.key.node_id, "")

    def _time_of(self, ticks_ago: int | None, now_ms: int) -> int:
        if ticks_ago is None:
            return -1
        return int(now_ms - ticks_ago * self._driver.controller.settings.tick_ms)


def _new_topic(topic: admin_pb2.NewTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        assignments=_assignments(topic.assignments),
    )


def _assignments(items: Any) -> dict[int, tuple[int, ...]]:
    assignments = {item.partition: tuple(item.broker_ids) for item in items}
    if len(assignments) != len(items):
        raise InvalidReplicaAssignmentError("assignments: a partition is named twice")
    return assignments


def _resource(resource: admin_pb2.ConfigResource) -> ConfigResource:
    try:
        return ConfigResourceType(resource.type), resource.name
    except ValueError:
        raise InvalidRequestError(f"config resource {resource.name!r}: its type must be TOPIC or BROKER") from None


def _op(op: admin_pb2.AlterConfigOp) -> ConfigOp:
    try:
        return ConfigOp(OpKind(op.kind), op.name, op.value)
    except ValueError:
        raise InvalidRequestError(f"{op.name}: the kind must be SET, DELETE, APPEND or SUBTRACT") from None


def _election(request: admin_pb2.ElectLeadersRequest) -> ElectLeaders:
    """Raises InvalidRequestError for an unknown kind of election, or for an empty list of partitions."""
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        raise InvalidRequestError(f"unknown election type {request.election_type}") from None
    if request.all_partitions:
        if request.partitions:
            raise InvalidRequestError("the request names partitions and also asks for all; pass only one of the two")
        return ElectLeaders(kind)
    partitions = tuple((each.topic, number) for each in request.partitions for number in each.partitions)
    if not partitions:
        raise InvalidRequestError("the request names no partition; name at least one, or ask for all partitions")
    return ElectLeaders(kind, partitions)


def _upgrade_type(number: int) -> UpgradeType:
    try:
        return UpgradeType(number or UpgradeType.UPGRADE)
    except ValueError:
        raise InvalidRequestError(
            f"upgrade type {number}: must be 1 (upgrade), 2 (safe downgrade) or 3 (unsafe downgrade)"
        ) from None


def _reassignment(item: admin_pb2.PartitionReassignment) -> Reassignment:
    if item.cancel and item.replicas:
        raise InvalidRequestError(f"{item.topic[:249]}-{item.partition}: pass either replicas or cancel, not both")
    return Reassignment(item.topic, item.partition, None if item.cancel else tuple(item.replicas))


def _key(node_id: int, directory_id: bytes) -> ReplicaKey:
    if len(directory_id) != _DIRECTORY_BYTES:
        raise InvalidRequestError(f"voter_directory_id: {len(directory_id)} bytes, must be {_DIRECTORY_BYTES} or none")
    return ReplicaKey(node_id, directory_id)


def _deadline_s(timeout_ms: int) -> float:
    if timeout_ms < 0:
        raise InvalidRequestError(f"timeout_ms={timeout_ms}: must not be negative")
    return asyncio.get_running_loop().time() + (timeout_ms or _TIMEOUT_MS_DEFAULT) / 1_000


async def _again_until(attempt: Callable[[], Awaitable[T]], deadline_s: float, what: str) -> T:
    """Repeat ``attempt`` until it succeeds or fails permanently. Repeating helps, because a replica may catch up, or an
    earlier change may be committed, a moment later. Raises RequestTimedOutError."""
    waited_for: HeadraceError | None = None
    try:
        async with asyncio.timeout_at(deadline_s):
            while True:
                try:
                    waited_for = None
                    return await attempt()
                except (ReplicaNotCaughtUpError, VoterChangeInProgressError) as error:
                    waited_for = error
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        why = "it may still complete" if waited_for is None else waited_for.message
        raise RequestTimedOutError(f"{what}: timed out: {why}") from None
