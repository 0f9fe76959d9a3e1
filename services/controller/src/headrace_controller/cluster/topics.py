"""Creation and deletion of topics, and addition of partitions. One request about several
topics becomes one change of the metadata. The change contains the valid topics; each invalid topic gets an error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headrace_core.errors import (
    HeadraceError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import (
    ConfigRecord,
    ConfigResourceType,
    MetadataImage,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicImage,
    TopicRecord,
)
from headrace_core.metadata.sorted_map import SortedMap
from headrace_core.plurals import counted
from headrace_core.types import check_topic_name

from . import configs, internal_topics, leadership, throttles
from .decision import Decision, View
from .directories import first_directories
from .placement import Placer, too_few_brokers
from .requests import CreatePartitions, CreateTopics, DeleteTopics, MorePartitions, NewTopic, TopicResult

_SEPARATOR = re.compile("[._]")
METADATA_TOPIC = "__cluster_metadata"  #: The reserved name of the metadata log, which is not a topic.


class _Brokers:
    """The brokers as the rules of one request see them, computed once for all its topics. ``active``: ids of the active
    brokers; ``able``: those that take appends; ``placeable``: those that get replicas of new partitions."""

    def __init__(self, view: View) -> None:
        brokers = view.image.brokers
        self.active = {broker.broker_id for broker in brokers.values() if broker.active}
        self.able = {each for each in self.active if not leadership.takes_nothing(brokers[each], view.hindered)}
        placeable = view.image.placeable_brokers()
        self.placeable = [broker.broker_id for broker in placeable]
        self.placer = Placer(placeable, view.image.loads)


def create(view: View, request: CreateTopics) -> Decision:
    """Create topics; returns one TopicResult for each topic of the request."""
    brokers = _Brokers(view)
    counts = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results = []
    size = 0
    for topic in request.topics:
        try:
            if counts[topic.name] > 1:
                raise InvalidRequestError(
                    f"topic {_shown(topic.name)} is named {counts[topic.name]} times in the request"
                )
            made, result = _create_one(view, topic, brokers, room=_room(view, records), internal=request.internal)
            size = configs.add_size(size, made)
        except HeadraceError as error:
            results.append(TopicResult(name=topic.name, error=error))
        else:
            records += made
            results.append(result)
    return Decision(() if request.validate_only else tuple(records), tuple(results))


def delete(view: View, request: DeleteTopics) -> Decision:
    """Delete topics; returns one TopicResult for each topic of the request."""
    records: list[MetadataRecord] = []
    results = []
    counts = Counter(request.topics)
    for name in request.topics:
        try:
            if not view.settings.delete_topic_enable:
                raise TopicDeletionDisabledError(
                    "cannot delete topics: delete.topic.enable=false; set it to true on the controllers"
                )
            if counts[name] > 1:
                raise InvalidRequestError(f"topic {_shown(name)} is named {counts[name]} times in the request")
            internal_topics.check_may_delete(name)
            topic = _existing(view.image, name)
            _check_room((topic,), _room(view, records))
            records.append(RemoveTopicRecord(topic.topic_id))
        except HeadraceError as error:
            results.append(TopicResult(name=name, error=error))
        else:
            results.append(TopicResult(name=name, topic_id=topic.topic_id))
    if view.image.ledger.throttle.bytes_per_s:
        records += throttles.after_topics_deleted(view.image.apply(records, view.image.next_offset + len(records)))
    return Decision(tuple(records), tuple(results))


def create_partitions(view: View, request: CreatePartitions) -> Decision:
    """Add partitions; returns one TopicResult for each topic of the request."""
    brokers = _Brokers(view)
    counts = Counter(more.topic for more in request.topics)
    records: list[MetadataRecord] = []
    results = []
    for more in request.topics:
        try:
            if counts[more.topic] > 1:
                raise InvalidRequestError(
                    f"topic {_shown(more.topic)} is named {counts[more.topic]} times in the request"
                )
            made, result = _extend_one(view, more, brokers, room=_room(view, records))
        except HeadraceError as error:
            results.append(TopicResult(name=more.topic, error=error))
        else:
            records += made
            results.append(result)
    return Decision(() if request.validate_only else tuple(records), tuple(results))


def _create_one(
    view: View, topic: NewTopic, brokers: _Brokers, *, room: int, internal: bool
) -> tuple[list[MetadataRecord], TopicResult]:
    image = view.image
    check_topic_name(topic.name)
    if topic.name not in image.topic_ids:
        internal_topics.check_may_create(topic.name, internal=internal)
    topic = internal_topics.completed(topic, view.settings, len(brokers.placeable))
    if topic.name == METADATA_TOPIC:
        raise InvalidRequestError(f"{METADATA_TOPIC} is the controllers' metadata log; choose another name")
    if topic.name in image.topic_ids:
        raise TopicAlreadyExistsError(f"topic {topic.name} already exists")
    if not internal and (other := _colliding(image, topic.name)) is not None:
        raise InvalidTopicError(
            f"topic {topic.name} collides with the existing topic {other}, because names of metrics do not tell '.' "
            "from '_'; choose a name that differs in other characters"
        )
    entries = configs.topic_entries(topic.configs, image)
    replicas = _assigned(view, topic, brokers) if topic.assignments else _placed(view, topic, brokers, room)
    topic_id = _new_topic_id(view)
    records: list[MetadataRecord] = [TopicRecord(topic.name, topic_id)]
    records += _partition_records(view.image, brokers, topic_id, 0, replicas)
    records += [
        ConfigRecord(int(ConfigResourceType.TOPIC), topic.name, key, value) for key, value in sorted(entries.items())
    ]
    _check_room(records, room)
    result = TopicResult(
        name=topic.name, topic_id=topic_id, partitions=len(replicas), replication_factor=len(replicas[0])
    )
    return records, result


def _colliding(image: MetadataImage, name: str) -> str | None:
    """An existing topic whose name differs from ``name`` only in periods and underscores, None if there is none. As in
    Kafka, the other topics of the request do not count. Looks only at names that begin like ``name``."""
    names = SortedMap.of(image.topic_ids)
    first, *parts = _SEPARATOR.split(name)
    beginnings = [first]
    for part in parts:
        longer = [f"{each}{separator}{part}" for each in beginnings for separator in "._"]
        beginnings = [each for each in longer if (names.ceiling(each) or "").startswith(each)]
    return next((each for each in beginnings if each in names), None)


def _placed(view: View, topic: NewTopic, brokers: _Brokers, room: int) -> list[tuple[int, ...]]:
    settings = view.settings
    partitions = settings.num_partitions if topic.partitions in (-1, 0) else topic.partitions
    factor = topic.replication_factor
    factor = settings.default_replication_factor if factor in (-1, 0) else factor
    if partitions < 1:
        raise InvalidPartitionsError(f"topic {topic.name}: partitions={partitions}: must be at least 1")
    _check_factor(brokers, factor)
    _check_room(range(partitions), room)
    brokers.placer.begin_topic()
    return brokers.placer.place_all(partitions, factor)


def _assigned(view: View, topic: NewTopic, brokers: _Brokers) -> list[tuple[int, ...]]:
    if topic.partitions > 0 or topic.replication_factor > 0:
        raise InvalidRequestError(
            f"topic {topic.name}: pass either assignments, or partitions and replication factor, not both"
        )
    return _check_assignments(view, topic.assignments, brokers, first=0, count=len(topic.assignments))


def _extend_one(
    view: View, more: MorePartitions, brokers: _Brokers, *, room: int
) -> tuple[list[MetadataRecord], TopicResult]:
    topic = _existing(view.image, more.topic)
    internal_topics.check_may_grow(topic.name)
    now = len(topic.partitions)
    if more.total == now:
        raise InvalidPartitionsError(f"topic {topic.name} already has {counted(now, 'partition')}")
    if more.total < now:
        raise InvalidPartitionsError(
            f"topic {topic.name} has {counted(now, 'partition')}, more than the requested {more.total}; partitions "
            "can only be added: create another topic instead"
        )
    added = more.total - now
    _check_room(range(added), room)
    if more.assignments:
        factor = topic.replication_factor
        replicas = _check_assignments(view, more.assignments, brokers, first=now, count=added, factor=factor)
    else:
        brokers.placer.begin_topic([partition.replicas for partition in topic.partitions])
        replicas = brokers.placer.place_all(added, topic.replication_factor)
    records = _partition_records(view.image, brokers, topic.topic_id, now, replicas)
    _check_room(records, room)
    result = TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=more.total,
        replication_factor=topic.replication_factor,
    )
    return records, result


def _partition_records(
    image: MetadataImage, brokers: _Brokers, topic_id: bytes, first: int, replicas: Sequence[tuple[int, ...]]
) -> list[MetadataRecord]:
    """Records of new partitions. The first active replica becomes the leader; all active replicas are in sync, because
    they are empty. A replica whose broker takes no appends cannot create its log. A replica that cannot create its log
    begins out of sync, if another replica of the partition can create its log."""
    records: list[MetadataRecord] = []
    for number, assigned in enumerate(replicas, start=first):
        isr = tuple(replica for replica in assigned if replica in brokers.able)
        isr = isr or tuple(replica for replica in assigned if replica in brokers.active)
        records.append(
            PartitionRecord(
                topic_id=topic_id,
                partition=number,
                replicas=assigned,
                isr=isr,
                leader=isr[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=first_directories(image, assigned),
            )
        )
    return records


def _check_assignments(
    view: View,
    assignments: Mapping[int, tuple[int, ...]],
    known: _Brokers,
    *,
    first: int,
    count: int,
    factor: int | None = None,
) -> list[tuple[int, ...]]:
    """The replicas of the partitions from ``first`` to ``first + count - 1``; the assignments must name all of these
    partitions and be valid."""
    wanted = list(range(first, first + count))
    if sorted(assignments) != wanted:
        raise InvalidReplicaAssignmentError(
            f"assignments name partitions {_listed(sorted(assignments))}, but must name partitions {_listed(wanted)}"
        )
    brokers = view.image.brokers
    for number in wanted:
        replicas = assignments[number]
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignmentError(
                f"partition {number}: replicas {replicas}: must name one or more brokers, each once"
            )
        unknown = [replica for replica in replicas if replica not in brokers]
        if unknown:
            raise InvalidReplicaAssignmentError(f"partition {number}: broker {_listed(unknown)} is not registered")
        factor = len(replicas) if factor is None else factor
        if len(replicas) != factor:
            raise InvalidReplicaAssignmentError(
                f"partition {number}: {counted(len(replicas), 'replica')}, but the replication factor is {factor}"
            )
        draining = [replica for replica in replicas if brokers[replica].draining]
        if draining:
            raise InvalidReplicaAssignmentError(
                f"partition {number}: broker {_listed(draining)} is being drained and takes no replicas"
            )
        if not any(brokers[replica].active for replica in replicas):
            raise InvalidReplicaAssignmentError(
                f"partition {number}: none of brokers {_listed(replicas)} is alive; start one of these brokers, or "
                "name other brokers"
            )
    _check_factor(known, factor or 1)
    return [tuple(assignments[number]) for number in wanted]


def _check_factor(brokers: _Brokers, factor: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactorError(f"replication factor {factor}: must be at least 1")
    if factor > len(brokers.placeable):
        raise too_few_brokers(factor, brokers.placeable)


def _room(view: View, records: Sequence[MetadataRecord]) -> int:
    return view.settings.metadata_max_records_per_request - len(records)


def _check_room(records: Sequence[object], room: int) -> None:
    if len(records) > room:
        raise PolicyViolationError(
            f"the request needs {len(records)} metadata records, but only {max(room, 0)} are left of "
            "metadata.max.records.per.request; split it into several requests"
        )


def _new_topic_id(view: View) -> bytes:
    while True:
        topic_id = view.new_id()
        if topic_id not in view.image.topics and any(topic_id):  # a topic id of only zeros means "no id"
            return topic_id


def _existing(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topic(name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"topic {_shown(name)} does not exist")
    return topic


def _shown(name: str) -> str:
    """A name from a client, shortened for an error message."""
    return repr(name if len(name) <= 60 else f"{name[:57]}...")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
