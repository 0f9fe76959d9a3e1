"""Metadata and DescribeTopicPartitions, from the applied metadata image.

The broker caches each topic's part of the answer until the topic or the set of offline replicas changes, because
clients of a large cluster often ask for all topics.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from headrace_core.errors import HeadraceError, InvalidTopicError, TopicAuthorizationFailedError
from headrace_core.metadata import BrokerImage, MetadataImage, PartitionImage, TopicImage
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.rpc.turns import Turns
from headrace_core.types import NO_LEADER, check_topic_name
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc

from ..access import DESCRIBE, TOPIC
from ..call import Call
from ..cluster import Cluster
from ..errors import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    LEADER_NOT_AVAILABLE,
    NONE,
    REPLICA_NOT_AVAILABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    kafkas,
)
from ..wire.schema import NO_UUID, Message
from .operations import NOT_ASKED, cluster_operations

#: First version of Metadata whose requests may name topics by their ids; the ids of versions 10 and 11 were not served
#: by any release of Kafka (KIP-516).
_TOPIC_IDS_VERSION = 12
_REFUSED = TopicAuthorizationFailedError.number


async def metadata(call: Call, request: Message) -> dict[str, Any]:
    """Metadata, versions 0 to 13. An empty list of topics means all topics in version 0, and no topics from version 1
    on."""
    cluster = call.cluster
    wanted = request.topics
    if wanted is None or (call.version == 0 and not wanted):
        names = _describable(call, cluster.image.topic_ids, are_named=False)
        missing: list[dict[str, Any]] = []
    else:
        if call.version < _TOPIC_IDS_VERSION and any(
            topic.name is None or topic.topic_id != NO_UUID for topic in wanted
        ):
            return _cluster_part(call, request, [_error_topic(INVALID_REQUEST, each.name or "") for each in wanted])
        names, missing = await _named(call, request)
    parts = _view(cluster)
    with_operations = request.include_topic_authorized_operations
    topics = []
    async with Turns(len(names)) as turns:
        image = cluster.image
        for name in names:
            topic = image.topic(name)
            if topic is not None:
                part = parts.of(image, topic)
                if call.version == 0:
                    part = {**part, "partitions": [_version_0(image, each) for each in part["partitions"]]}
                operations = call.access.operations(TOPIC, name) if with_operations else NOT_ASKED
                topics.append({**part, "topic_authorized_operations": operations})
            elif wanted is not None and wanted:
                operations = call.access.operations(TOPIC, name) if with_operations else NOT_ASKED
                topics.append({**_error_topic(_unknown(name), name), "topic_authorized_operations": operations})
            if turns.is_over():
                await turns.next()
    return _cluster_part(call, request, topics + missing)


def _cluster_part(call: Call, request: Message, topics: list[dict[str, Any]]) -> dict[str, Any]:
    cluster = call.cluster
    return {
        "brokers": [
            {"node_id": node.broker_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in cluster.nodes(call.client.listener)
        ],
        "cluster_id": cluster.image.cluster_id,
        "controller_id": cluster.controller_id(),
        "topics": topics,
        "cluster_authorized_operations": cluster_operations(call, asked=request.include_cluster_authorized_operations),
    }


def _describable(call: Call, names: Iterable[str], *, are_named: bool) -> list[str]:
    """The topics that the client is authorized to describe. ``are_named``: the client named the topics, so refusals are
    audited."""
    granted = call.access.granted(DESCRIBE, TOPIC)
    if granted is None:
        return list(names)
    may = call.allows if are_named else call.sees
    return [name for name in names if name in granted or may(DESCRIBE, TOPIC, name)]


async def _named(call: Call, request: Message) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the requested topics without duplicates, and the answer's entries for unknown topic ids and for
    topics that the client is not authorized to describe. Creates missing topics if the request allows this. If a
    request has topic ids, its names are ignored, as in Kafka."""
    ids = [topic.topic_id for topic in request.topics if topic.topic_id != NO_UUID]
    if ids:
        found = [(topic_id, call.cluster.topic_by_id(topic_id)) for topic_id in dict.fromkeys(ids)]
        names = _describable(call, [topic.name for _, topic in found if topic is not None], are_named=True)
        shown = set(names)
        missing = [
            {**_error_topic(UNKNOWN_TOPIC_ID if topic is None else _REFUSED, None), "topic_id": topic_id}
            for topic_id, topic in found
            if topic is None or topic.name not in shown
        ]
        return names, missing
    asked = list(dict.fromkeys(topic.name or "" for topic in request.topics))
    names = _describable(call, asked, are_named=True)
    shown = set(names)
    hidden = [_error_topic(_REFUSED, name) for name in asked if name not in shown]
    if not request.allow_auto_topic_creation:
        return names, hidden
    absent = [name for name in names if call.cluster.topic(name) is None and _unknown(name) != INVALID_TOPIC_EXCEPTION]
    if not absent:
        return names, hidden
    refused = await _create(call, absent)
    failed = [_error_topic(code, each) for each, code in refused.items()]
    return [name for name in names if name not in refused], failed + hidden


async def _create(call: Call, names: Sequence[str]) -> dict[str, int]:
    """Ask a broker to create topics, which needs auto.create.topics.enable; returns the error codes of topics that
    cannot be created. If no broker answers, the topics stay unknown, and the client repeats its request."""
    refused: dict[str, int] = {}
    timeout_ms = call.settings.request_timeout_ms
    try:
        for page in pages(names, limit_of("Metadata/GetMetadata", "topics")):
            request = metadata_pb2.MetadataRequest(topics=page, allow_auto_topic_creation=True)
            answer = await call.own(metadata_pb2_grpc.MetadataStub, "GetMetadata", request, timeout_ms)
            for topic in answer.topics:
                if topic.error.code:
                    refused[topic.name] = kafkas(topic.error.code)
            await call.applied(answer.metadata_offset, timeout_ms)
    except HeadraceError:
        return refused
    return refused


def _unknown(name: str) -> int:
    """The error code for a topic that does not exist."""
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return INVALID_TOPIC_EXCEPTION
    return UNKNOWN_TOPIC_OR_PARTITION


def _error_topic(code: int, name: str | None) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_authorized_operations": NOT_ASKED}


class _View:
    """Caches the part of the answer for each topic."""

    def __init__(self) -> None:
        self._brokers: object = None
        self._offline: list[tuple[int, bool, tuple[bytes, ...]]] = []
        self._topics: dict[bytes, tuple[TopicImage, dict[str, Any]]] = {}

    def of(self, image: MetadataImage, topic: TopicImage) -> dict[str, Any]:
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            offline = sorted(
                (each.broker_id, each.fenced, each.online_directories)
                for each in image.brokers.values()
                if each.fenced or each.offline_directories
            )
            if offline != self._offline:
                self._topics.clear()
            self._offline = offline
        if len(self._topics) > len(image.topics) + 1_000:  # deleted topics
            self._topics.clear()
        kept = self._topics.get(topic.topic_id)
        if kept is None or kept[0] is not topic:
            kept = self._topics[topic.topic_id] = (topic, _topic_part(image, topic))
        return kept[1]


_views: WeakKeyDictionary[Cluster, _View] = WeakKeyDictionary()


def _view(cluster: Cluster) -> _View:
    view = _views.get(cluster)
    if view is None:
        view = _views[cluster] = _View()
    return view


def _topic_part(image: MetadataImage, topic: TopicImage) -> dict[str, Any]:
    return {
        "error_code": NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition_part(image, number, each) for number, each in enumerate(topic.partitions)],
    }


def _partition_part(image: MetadataImage, number: int, partition: PartitionImage) -> dict[str, Any]:
    return {
        "error_code": NONE if partition.leader != NO_LEADER else LEADER_NOT_AVAILABLE,
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [each for each in partition.replicas if _is_offline(image, partition, each)],
    }


def _is_offline(image: MetadataImage, partition: PartitionImage, broker_id: int) -> bool:
    """Whether a replica is offline. As in Kafka, a replica is offline if its broker is fenced, or its log directory is
    offline."""
    broker: BrokerImage | None = image.brokers.get(broker_id)
    return broker is None or broker.fenced or not broker.has_online(partition.directory_of(broker_id))


def _version_0(image: MetadataImage, part: dict[str, Any]) -> dict[str, Any]:
    """The answer's fields for a partition in version 0, which has no field for offline replicas: the fields name only
    live brokers."""
    alive = {broker_id for broker_id, broker in image.brokers.items() if not broker.fenced}
    replicas = [each for each in part["replica_nodes"] if each in alive]
    isr = [each for each in part["isr_nodes"] if each in alive]
    code = part["error_code"]
    if not code and (len(replicas) < len(part["replica_nodes"]) or len(isr) < len(part["isr_nodes"])):
        code = REPLICA_NOT_AVAILABLE
    return {**part, "error_code": code, "replica_nodes": replicas, "isr_nodes": isr}


# -- DescribeTopicPartitions ------------------------------------------------------------------------------------------


async def describe_topic_partitions(call: Call, request: Message) -> dict[str, Any]:
    """DescribeTopicPartitions (KIP-966): topics sorted by name, with at most ``max.request.partition.size.limit``
    partitions in an answer. A cursor names the first partition of the next answer."""
    image = call.cluster.image
    cursor = request.cursor
    is_all = not request.topics
    if cursor is not None and cursor.partition_index < 0:
        return {"topics": [_error_topic(INVALID_REQUEST, topic.name) for topic in request.topics]}
    asked: Collection[str] = image.topic_ids if is_all else {topic.name for topic in request.topics}
    names = sorted(_describable(call, asked, are_named=not is_all))
    shown = set(names)
    hidden = (
        []
        if is_all
        else [{**_error_topic(_REFUSED, name), "topic_id": NO_UUID} for name in sorted(asked) if name not in shown]
    )
    if cursor is not None:
        names = names[bisect.bisect_left(names, cursor.topic_name) :]
    left = max(min(call.settings.described_partitions_max, request.response_partition_limit), 1)
    topics: list[dict[str, Any]] = []
    following: dict[str, Any] | None = None
    for name in names:
        topic = image.topic(name)
        if topic is None:
            if not is_all:
                operations = call.access.operations(TOPIC, name)
                topics.append(
                    {
                        **_error_topic(_unknown(name), name),
                        "topic_id": NO_UUID,
                        "topic_authorized_operations": operations,
                    }
                )
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if not left:
            following = {"topic_name": name, "partition_index": first}
            break
        end = min(first + left, len(topic.partitions))
        topics.append(
            {
                "error_code": NONE,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": name in INTERNAL_TOPICS,
                "partitions": [
                    {
                        **_partition_part(image, number, topic.partitions[number]),
                        "eligible_leader_replicas": topic.partitions[number].elr,
                        "last_known_elr": topic.partitions[number].last_known_elr,
                    }
                    for number in range(first, end)
                ],
                "topic_authorized_operations": call.access.operations(TOPIC, name),
            }
        )
        left -= max(end - first, 0)
        if end < len(topic.partitions):
            following = {"topic_name": name, "partition_index": end}
            break
    return {"topics": topics + hidden, "next_cursor": following}
