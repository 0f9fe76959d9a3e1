"""The log directory of each replica on its broker (KIP-858).

A replica on a broker with one directory gets this directory when the replica is created. A broker with several
directories chooses a directory by load and reports its choice. Until the broker reports its choice, the replica's
directory is UNASSIGNED and counts as online. A later report means that the replica moved between directories (KIP-113),
that its directory failed before the first report, or that the replica is LOST. LOST means that no online directory of
the broker has the replica, so an offline directory may have it.
"""

from __future__ import annotations

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    LogDirNotFoundError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, BrokerImage, MetadataImage, MetadataRecord
from headrace_core.node.ids import id_to_text

from . import brokers, elections
from .decision import Decision, View
from .requests import AssignDirectories, Placement, RefusedPlacement


def assign(view: View, request: AssignDirectories) -> Decision:
    """Record the reported directories of replicas; the reply lists the refused replicas.

    Raises BrokerIdNotRegisteredError, StaleBrokerEpochError, InvalidRequestError if a replica is in two directories,
    and PolicyViolationError for more than metadata.max.records.per.request.
    """
    image = view.image
    broker = brokers.known(image, request.broker_id, request.broker_epoch)
    if len(request.placements) > view.settings.metadata_max_records_per_request:
        raise PolicyViolationError(
            f"the request assigns {len(request.placements)} replicas, more than "
            f"metadata.max.records.per.request={view.settings.metadata_max_records_per_request}; split the request"
        )
    reported: dict[tuple[bytes, int], bytes] = {}
    electorate = elections.Electorate(image, view.settings, view.hindered)
    fresh = {(each.topic_id, each.partition) for each in request.placements if each.fresh}
    records: list[MetadataRecord] = []
    refused = []
    for placement in request.placements:
        where = (placement.topic_id, placement.partition)
        if reported.setdefault(where, placement.directory) != placement.directory:
            raise InvalidRequestError(f"partition {placement.partition} is assigned to two directories")
    for (topic_id, partition), directory in reported.items():
        try:
            _check(image, broker, topic_id, partition, directory)
        except HeadraceError as error:
            refused.append(RefusedPlacement(Placement(topic_id, partition, directory), error))
            continue
        change = elections.assigned(
            electorate,
            image.topics[topic_id],
            partition,
            broker.broker_id,
            directory,
            fresh=(topic_id, partition) in fresh,
        )
        if change is not None:
            records.append(change)
    return Decision(tuple(records), tuple(refused))


def _check(image: MetadataImage, broker: BrokerImage, topic_id: bytes, number: int, directory: bytes) -> None:
    topic = image.topics.get(topic_id)
    if topic is None:
        raise UnknownTopicIdError(f"no topic has the id {topic_id.hex()}: the topic was deleted")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"topic {topic.name} has no partition {number}")
    if broker.broker_id not in topic.partitions[number].replicas:
        raise NotLeaderOrFollowerError(f"broker {broker.broker_id} has no replica of {topic.name}-{number}")
    if directory not in (*broker.directory_ids, *broker.offline_directories, LOST_DIRECTORY):
        raise LogDirNotFoundError(f"broker {broker.broker_id} has no directory {id_to_text(directory)}")


def first_directories(image: MetadataImage, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
    """Directories of a new partition's replicas: the only directory of a broker with one directory, otherwise
    UNASSIGNED_DIRECTORY."""
    online = (image.brokers[replica].online_directories for replica in replicas)
    return tuple(each[0] if len(each) == 1 else UNASSIGNED_DIRECTORY for each in online)
