"""headrace.v1.Admin; quorum.py has the calls about the quorum. On the client listener, and on the internal one for
brokers that forward their clients' calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace_core.clock import Clock, SystemClock
from headrace_core.errors import (
    HeadraceError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from headrace_core.membership.config_messages import config_entries
from headrace_core.metadata import METADATA_VERSION_FEATURE, ConfigResource, ConfigResourceType
from headrace_core.metadata.configs import describe_broker, describe_topic
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.rpc.server import Listener
from headrace_core.rpc.status import error_to_proto
from headrace_core.rpc.turns import DESCRIPTION_ITEMS, Turns
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..cluster import reassignment
from ..cluster.configs import check_resource
from ..cluster.requests import (
    AlterConfigs,
    AlterPartitionReassignments,
    AlterResource,
    ConfigOp,
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
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from ..driver import ControllerDriver
from ..raft import ReplicaKey
from .cluster import BrokerSeen
from .quorum import QuorumCalls

_UPDATES_MAX = 1_000  #: Updates in one UpdateFeatures.


class AdminHandler(QuorumCalls, admin_pb2_grpc.AdminServicer):
    """``given``: this controller's properties file; its topic defaults are shown as static values. ``address_of``:
    another controller's reported address; ``brokers_seen``: see ClusterHandler."""

    def __init__(
        self,
        driver: ControllerDriver,
        given: Mapping[str, Any],
        *,
        address_of: Callable[[ReplicaKey], str] = lambda key: "",
        brokers_seen: Callable[[], Iterable[BrokerSeen]] = lambda: (),
        clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._given = given
        self._address_of = address_of
        self._brokers_seen = brokers_seen
        self._clock = clock or SystemClock()

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; before it starts."""
        listener.add(admin_pb2_grpc.add_AdminServicer_to_server, self, "headrace.v1.Admin")

    async def CreateTopics(self, request: admin_pb2.CreateTopicsRequest, context: Any) -> Any:
        answer = await self._driver.ask(
            CreateTopics(tuple(_new_topic(topic) for topic in request.topics), request.validate_only)
        )
        return admin_pb2.CreateTopicsResponse(
            results=[
                admin_pb2.CreateTopicResult(
                    name=result.name,
                    error=error_to_proto(result.error),
                    topic_id=b"" if request.validate_only else result.topic_id,
                    partitions=result.partitions,
                    replication_factor=result.replication_factor,
                )
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
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
        topics = tuple(
            MorePartitions(topic=more.topic, total=more.total_count, assignments=_assignments(more.assignments))
            for more in request.topics
        )
        answer = await self._driver.ask(CreatePartitions(topics, request.validate_only))
        return admin_pb2.CreatePartitionsResponse(
            results=[
                admin_pb2.CreatePartitionsResult(topic=result.name, error=error_to_proto(result.error))
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def DescribeConfigs(self, request: admin_pb2.DescribeConfigsRequest, context: Any) -> Any:
        answer = admin_pb2.DescribeConfigsResponse()
        # A description has dozens of entries, and costs as much as dozens of other items.
        async with Turns(DESCRIPTION_ITEMS * len(request.resources)) as turns:
            for item in request.resources:
                if turns.is_over():
                    await turns.next()
                answer.results.append(self._described(item, include_synonyms=request.include_synonyms))
        return answer

    async def AlterConfigs(self, request: admin_pb2.AlterConfigsRequest, context: Any) -> Any:
        resources = tuple(
            AlterResource(_resource(item.resource), tuple(_op(op) for op in item.ops)) for item in request.resources
        )
        answer = await self._driver.ask(AlterConfigs(resources, request.validate_only))
        return admin_pb2.AlterConfigsResponse(
            results=[
                admin_pb2.AlterConfigsResult(resource=item.resource, error=error_to_proto(result.error))
                for item, result in zip(request.resources, answer.reply, strict=True)
            ],
            metadata_offset=answer.metadata_offset,
        )

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
            raise InvalidRequestError(f"{len(request.updates)} updates in one request, at most {_UPDATES_MAX}")
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
        raise UnsupportedVersionError("log directories are a broker's: ask the broker itself")

    async def AlterReplicaLogDirs(self, request: admin_pb2.AlterReplicaLogDirsRequest, context: Any) -> Any:
        raise UnsupportedVersionError("replicas are moved by the broker that has them: ask the broker itself")

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
    """InvalidRequestError: an unknown kind, or no partitions."""
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        raise InvalidRequestError(f"there is no election type {request.election_type}") from None
    if request.all_partitions:
        if request.partitions:
            raise InvalidRequestError("name partitions, or ask for all of them, not both")
        return ElectLeaders(kind)
    partitions = tuple((each.topic, number) for each in request.partitions for number in each.partitions)
    if not partitions:
        raise InvalidRequestError("no partition is named; name one or more, or ask for all")
    return ElectLeaders(kind, partitions)


def _upgrade_type(number: int) -> UpgradeType:
    try:
        return UpgradeType(number or UpgradeType.UPGRADE)
    except ValueError:
        raise InvalidRequestError(f"upgrade type {number}: 1 (upgrade), 2 or 3 (downgrade, safe or unsafe)") from None


def _reassignment(item: admin_pb2.PartitionReassignment) -> Reassignment:
    if item.cancel and item.replicas:
        raise InvalidRequestError(f"{item.topic[:249]}-{item.partition}: either replicas, or cancel, not both")
    return Reassignment(item.topic, item.partition, None if item.cancel else tuple(item.replicas))
