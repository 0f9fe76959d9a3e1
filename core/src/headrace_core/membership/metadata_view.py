"""Responses to clients' metadata requests (headrace.v1.MetadataResponse), built from the metadata image on controllers
and brokers.

Building a topic's message costs some microseconds per partition, and clients of a large cluster ask for all topics at
once. Because the message of a topic is expensive to build, it is cached until the topic, the offline brokers and
directories, or a configuration change. If one of 5,000 topics changes, only the message of that topic is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace_protos.v1 import metadata_pb2

from ..errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from ..item_errors import error_to_proto
from ..metadata import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from ..metadata.configs import topic_value
from ..metadata.ledger import CoordinatorImage, ShardImage
from ..metadata.records import BrokerEndpoint, ConfigResourceType
from ..metadata.shards import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARD_TOPICS, TRANSACTIONS_TOPIC, owner_of, vacancy_of
from ..rpc.turns import Turns
from ..security.access import current_access
from ..security.acl_types import Operation, ResourceType
from ..security.refusals import refusal
from ..types import NO_LEADER, check_topic_name, split_address

#: The ledger entry of a shard (a partition of an internal topic) that never had an owner; epochs of owned shards begin
#: with 1.
_NO_OWNER = ShardImage(coordinator_id=-1, shard_epoch=0)
_SHARDS_OF: dict[int, str] = {
    metadata_pb2.COORDINATOR_TYPE_GROUP: OFFSETS_TOPIC,
    metadata_pb2.COORDINATOR_TYPE_TRANSACTION: TRANSACTIONS_TOPIC,
}


class MetadataView:
    """Builds metadata responses; one object per node. ``listener``: name of the listener whose addresses clients get.
    ``topic_defaults``: NodeConfig.topic_defaults(). ``request_bytes_max``: limit of a Produce request on this node
    (socket.request.max.bytes), which also limits a batch."""

    def __init__(
        self,
        *,
        listener: str = "client",
        broker_id: int = -1,
        topic_defaults: Mapping[str, Any] | None = None,
        request_bytes_max: int | None = None,
    ) -> None:
        self._listener = listener
        self._broker_id = broker_id
        self._topic_defaults = topic_defaults or {}
        self._request_bytes_max = request_bytes_max
        self._image: MetadataImage | None = None
        self._brokers: list[metadata_pb2.BrokerMetadata] = []
        self._coordinators: list[metadata_pb2.CoordinatorMetadata] = []
        # Brokers that are fenced or have failed directories, as (id, fenced, failed directories)
        self._offline: list[tuple[int, bool, tuple[bytes, ...]]] = []
        self._topics: dict[bytes, tuple[TopicImage, metadata_pb2.TopicMetadata]] = {}

    async def response(
        self,
        image: MetadataImage,
        request: metadata_pb2.MetadataRequest,
        *,
        controller_id: int,
        lag_ms: float | None = None,
        controllers: Mapping[int, str] | None = None,
    ) -> metadata_pb2.MetadataResponse:
        """Build the response to ``request`` from ``image``. In the response, the entry of a missing topic has an error.
        Topics that the caller is not authorized to describe are left out; if the request names such a topic, its entry
        has an error. ``lag_ms``: age of the image; None: unknown. ``controllers``: address (``host:port``) of each
        controller by id.

        A long request yields to the event loop every few milliseconds.
        """
        topics = len(image.topic_ids) if request.all_topics else len(request.topics)
        async with Turns(topics) as turns:
            parts = self._building(image, request, controller_id, lag_ms, controllers)
            answer = next(parts)
            for _ in parts:
                if turns.is_over():
                    await turns.next()
        return answer

    def _building(
        self,
        image: MetadataImage,
        request: metadata_pb2.MetadataRequest,
        controller_id: int,
        lag_ms: float | None,
        controllers: Mapping[int, str] | None,
    ) -> Iterator[metadata_pb2.MetadataResponse]:
        """Yield the response before the first topic and after each topic; the last yielded response is complete."""
        self._refresh(image)
        answer = metadata_pb2.MetadataResponse(
            cluster_id=image.cluster_id,
            controller_id=controller_id,
            brokers=self._broker_messages(image, fenced=True) if request.include_fenced_brokers else self._brokers,
            metadata_offset=image.next_offset,
            coordinators=self._coordinators,
        )
        if lag_ms is not None:
            answer.metadata_lag_ms = int(lag_ms) + 1  # round up, because the age is an upper bound
        for node_id, address in sorted((controllers or {}).items()):
            host, port = split_address(address)
            answer.controllers.add(controller_id=node_id, host=host, port=port)
        yield answer
        access = current_access()
        granted = access.granted(Operation.DESCRIBE, ResourceType.TOPIC)
        for name in sorted(image.topic_ids) if request.all_topics else dict.fromkeys(request.topics):
            if granted is None or name in granted:
                answer.topics.append(self._topic(image, name))
            elif request.all_topics:
                if access.sees(Operation.DESCRIBE, ResourceType.TOPIC, name):
                    answer.topics.append(self._topic(image, name))
            elif access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                answer.topics.append(self._topic(image, name))
            else:
                error = refusal(Operation.DESCRIBE, ResourceType.TOPIC, name, access.caller.principal)
                answer.topics.add(name=name, error=error_to_proto(error))
            yield answer

    def _refresh(self, image: MetadataImage) -> None:
        """Drop cached messages that ``image`` made stale. A table that did not change between two images is the same
        object in both images."""
        old, self._image = self._image, image
        if old is image:
            return
        if old is None or old.brokers is not image.brokers:
            self._brokers = self._broker_messages(image)
            offline = sorted(
                (each.broker_id, each.fenced, each.online_directories)
                for each in image.brokers.values()
                if each.fenced or each.offline_directories
            )
            if offline != self._offline:
                self._topics.clear()
            self._offline = offline
        if old is None or old.configs is not image.configs:
            self._topics.clear()
        if old is None or old.ledger.coordinators is not image.ledger.coordinators:
            self._coordinators = self._coordinator_messages(image)
        if old is not None and old.ledger.shards is not image.ledger.shards:
            for name in SHARD_TOPICS:
                self._topics.pop(image.topic_ids.get(name, b""), None)
        if len(self._topics) > len(image.topics):
            self._topics = {topic_id: kept for topic_id, kept in self._topics.items() if topic_id in image.topics}

    def _broker_messages(self, image: MetadataImage, *, fenced: bool = False) -> list[metadata_pb2.BrokerMetadata]:
        messages = []
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            endpoint = broker.endpoint(self._listener)
            if endpoint is None or (broker.fenced and not fenced):
                continue
            messages.append(
                metadata_pb2.BrokerMetadata(
                    broker_id=broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack or "",
                    fenced=broker.fenced,
                    draining=broker.draining,
                    outdated_directory_ids=broker.outdated_directories,
                )
            )
        return messages

    def _topic(self, image: MetadataImage, name: str) -> metadata_pb2.TopicMetadata:
        topic = image.topic(name)
        if topic is None:
            return metadata_pb2.TopicMetadata(name=name, error=error_to_proto(_unknown(name)))
        if image is not self._image:  # the cache belongs to a newer image, which another request has used
            return self._topic_message(image, topic)
        kept = self._topics.get(topic.topic_id)
        if kept is None or kept[0] is not topic:
            kept = self._topics[topic.topic_id] = (topic, self._topic_message(image, topic))
        return kept[1]

    def _topic_message(self, image: MetadataImage, topic: TopicImage) -> metadata_pb2.TopicMetadata:
        # Limit a batch to segment.bytes as well as max.message.bytes, so that producers can write to topics with small
        # segments.
        limits = [
            topic_value(image, topic.name, key, broker_id=self._broker_id, static=self._topic_defaults)
            for key in ("max.message.bytes", "segment.bytes")
        ]
        if self._request_bytes_max is not None:
            limits.append(self._request_bytes_max)
        return metadata_pb2.TopicMetadata(
            name=topic.name,
            topic_id=topic.topic_id,
            internal=topic.name in INTERNAL_TOPICS,
            partitions=[
                _partition_message(
                    number,
                    partition,
                    image if self._offline else None,
                    image.ledger.shards.get((topic.topic_id, number), _NO_OWNER)
                    if topic.name in SHARD_TOPICS
                    else None,
                )
                for number, partition in enumerate(topic.partitions)
            ],
            max_message_bytes=min(limits),
        )

    def _coordinator_messages(self, image: MetadataImage) -> list[metadata_pb2.CoordinatorMetadata]:
        messages = []
        for coordinator_id in sorted(image.ledger.coordinators):
            coordinator = image.ledger.coordinators[coordinator_id]
            endpoint = self._endpoint_of(coordinator)
            if endpoint is not None:
                messages.append(
                    metadata_pb2.CoordinatorMetadata(
                        coordinator_id=coordinator_id,
                        host=endpoint.host,
                        port=endpoint.port,
                        rack=coordinator.rack or "",
                        draining=coordinator.draining,
                    )
                )
        return messages

    def _endpoint_of(self, coordinator: CoordinatorImage) -> BrokerEndpoint | None:
        return next((each for each in coordinator.endpoints if each.listener == self._listener), None)

    # -- coordinators -------------------------------------------------------------------------------------------------

    def find_coordinators(
        self, image: MetadataImage, request: metadata_pb2.FindCoordinatorRequest, lag_ms: float | None = None
    ) -> metadata_pb2.FindCoordinatorResponse:
        """Build the response to ``request`` from ``image``; the error of a key is in the key's result. ``lag_ms``: age
        of the image; None: unknown."""
        topic = shard_topic(request)
        return metadata_pb2.FindCoordinatorResponse(
            coordinators=[self._coordinator_of(image, topic, key) for key in request.keys],
            metadata_offset=image.next_offset,
            metadata_age_ms=None if lag_ms is None else int(lag_ms) + 1,
        )

    def _coordinator_of(self, image: MetadataImage, topic: str, key: str) -> metadata_pb2.CoordinatorOfKey:
        try:
            if not key and topic == TRANSACTIONS_TOPIC:
                raise InvalidRequestError("the transactional id is empty: set transactional.id")
            owner = owner_of(image, topic, key)
            endpoint = self._endpoint_of(owner.coordinator)
            if endpoint is None:
                raise CoordinatorNotAvailableError(
                    f"coordinator {owner.coordinator.coordinator_id} has no listener {self._listener!r}"
                )
        except HeadraceError as error:
            shard, shard_epoch = vacancy_of(image, topic, key) or (-1, -1)
            return metadata_pb2.CoordinatorOfKey(
                key=key, error=error_to_proto(error), shard=shard, coordinator_id=-1, shard_epoch=shard_epoch
            )
        return metadata_pb2.CoordinatorOfKey(
            key=key,
            shard=owner.shard,
            coordinator_id=owner.coordinator.coordinator_id,
            shard_epoch=owner.shard_epoch,
            host=endpoint.host,
            port=endpoint.port,
        )


def shard_topic(request: metadata_pb2.FindCoordinatorRequest) -> str:
    """Return the topic whose partitions are the requested shards. Raises InvalidRequestError for an unknown coordinator
    type."""
    topic = _SHARDS_OF.get(request.type)
    if topic is None:
        raise InvalidRequestError(f"coordinator type {request.type}: must be 0 (group) or 1 (transaction)")
    return topic


def concerns(
    request: metadata_pb2.MetadataRequest,
    image: MetadataImage,
    delta: MetadataDelta,
    topics: frozenset[str] | None = None,
) -> bool:
    """Whether ``delta``, which led to ``image``, may change the response to ``request``, apart from the offset.
    ``topics``: the request's topics as a set, if the caller has one; the cost then depends only on the size of the
    delta."""
    if delta.brokers or delta.coordinators or delta.acls:
        return True
    if not request.all_topics and not request.topics:
        return False
    touched = {image.topics[topic_id].name for topic_id in delta.partitions if topic_id in image.topics}
    touched |= {topic.name for topic in delta.removed_topics.values()}
    touched |= {image.topics[topic_id].name for topic_id, _ in delta.shards if topic_id in image.topics}
    for resource_type, name in delta.configs:
        if resource_type is ConfigResourceType.BROKER:
            return True
        touched.add(name)
    return bool(touched) if request.all_topics else not touched.isdisjoint(request.topics if topics is None else topics)


def _partition_message(
    number: int, partition: PartitionImage, image: MetadataImage | None, shard: ShardImage | None
) -> metadata_pb2.PartitionMetadata:
    """Build the message of one partition. ``image`` is None when all replicas are online; ``shard`` is None when the
    partition is no shard."""
    error = None
    if partition.leader == NO_LEADER:
        error = LeaderNotAvailableError(f"partition {number} has no leader: it waits for {_awaited(partition)}")
    message = metadata_pb2.PartitionMetadata(
        error=error_to_proto(error),
        partition=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
    )
    if shard is not None:
        message.coordinator_id, message.shard_epoch = shard.coordinator_id, shard.shard_epoch
    if image is not None:
        message.offline_replicas.extend(each for each in partition.replicas if _is_offline(image, partition, each))
    return message


def _awaited(partition: PartitionImage) -> str:
    """Name the replicas for which a partition without a leader waits."""
    brokers = partition.elr or partition.isr or partition.last_known_elr
    return f"broker {' or '.join(map(str, brokers))}" if brokers else "an unclean election (no replica has all records)"


def _is_offline(image: MetadataImage, partition: PartitionImage, broker_id: int) -> bool:
    """Whether a replica is offline, by Kafka's rule: its broker is fenced, or its directory is offline. A broker that
    is shutting down still serves its replicas."""
    broker = image.brokers.get(broker_id)
    return broker is None or broker.fenced or not broker.has_online(partition.directory_of(broker_id))


def _unknown(name: str) -> HeadraceError:
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
