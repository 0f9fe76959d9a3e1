"""Elections on request (ElectLeaders, KIP-460), elections that restore preferred leaders, and unclean elections of
partitions without a leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace_core.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    HeadraceError,
    InvalidRequestError,
    OperationNotAttemptedError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import MetadataImage, MetadataRecord, PartitionChangeRecord, PartitionImage, TopicImage
from headrace_core.types import NO_LEADER

from .decision import Decision, View
from .elections import Election, Electorate, partition_change
from .requests import ElectionResult, ElectionType, ElectLeaders

#: Maximum number of leader elections in one decision that balances preferred leaders, as in Kafka.
BALANCED_AT_ONCE = 1_000


def elect(view: View, request: ElectLeaders) -> Decision:
    """Returns one ElectionResult for each named partition, or for each partition that needed an election."""
    electorate = Electorate(view.image, view.settings, view.hindered)
    records: list[MetadataRecord] = []
    results = []
    seen: set[tuple[str, int]] = set()
    for name, number in _named(view.image, request):
        try:
            if (name, number) in seen:
                raise InvalidRequestError(f"{name[:249]}-{number} is named twice in the request")
            seen.add((name, number))
            if len(records) >= view.settings.metadata_max_records_per_request:
                raise OperationNotAttemptedError(
                    f"the request has elected {len(records)} leaders, the limit of one request; send a request for the "
                    "remaining partitions"
                )
            records.append(_elected(electorate, request.type, name, number))
        except HeadraceError as error:
            if request.partitions is not None or not isinstance(error, ElectionNotNeededError):
                results.append(ElectionResult(name, number, error))
        else:
            results.append(ElectionResult(name, number))
    return Decision(tuple(records), tuple(results))


def balance(view: View) -> Decision:
    """Return leaderships to preferred replicas, at most BALANCED_AT_ONCE leaderships in a decision. The balancing of
    leaders acts on a broker that lacks more than leader.imbalance.per.broker.percentage of the leaderships it is
    preferred for."""
    if not view.settings.auto_leader_rebalance_enable:
        return Decision()
    preferred: Counter[int] = Counter()
    missed: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic, number, partition in _all(view.image):
        first = partition.replicas[0]
        preferred[first] += 1
        if partition.leader != first:
            missed.setdefault(first, []).append((topic, number))
    electorate = Electorate(view.image, view.settings, view.hindered)
    share = view.settings.leader_imbalance_per_broker_percentage / 100
    records: list[MetadataRecord] = []
    for broker_id in sorted(missed):
        if len(missed[broker_id]) <= preferred[broker_id] * share:
            continue
        for topic, number in missed[broker_id]:
            record = preferred_election(electorate, topic, number)
            if record is not None:
                records.append(record)
                if len(records) == min(BALANCED_AT_ONCE, view.settings.metadata_max_records_per_request):
                    return Decision(tuple(records))
    return Decision(tuple(records))


def elect_uncleanly(view: View) -> Decision:
    """Elect leaders of partitions that have no leader and allow unclean elections. Unclean elections may have been
    allowed after the partition lost its leader."""
    electorate = Electorate(view.image, view.settings, view.hindered)
    records: list[MetadataRecord] = []
    for topic, number, partition in _all(view.image):
        if partition.leader == NO_LEADER and _has_hope(electorate, partition):
            record = partition_change(electorate, topic, number)
            if record is not None:
                records.append(record)
                if len(records) == view.settings.metadata_max_records_per_request:
                    break
    return Decision(tuple(records))


def _has_hope(electorate: Electorate, partition: PartitionImage) -> bool:
    """Whether any replica works: a cheap check before an election, because many partitions may be without a leader."""
    return any(electorate.works(partition, each) for each in partition.replicas)


def preferred_election(electorate: Electorate, topic: TopicImage, number: int) -> PartitionChangeRecord | None:
    """The record that elects the preferred replica. The result is None if the preferred replica already leads, is not
    in sync, or cannot lead now."""
    partition = topic.partitions[number]
    first = partition.replicas[0]
    if partition.leader == first or first not in partition.isr or not electorate.can_lead(partition, first):
        return None
    return partition_change(electorate, topic, number, how=Election.PREFERRED)


def _named(image: MetadataImage, request: ElectLeaders) -> Iterator[tuple[str, int]]:
    if request.partitions is not None:
        yield from request.partitions
    else:
        yield from ((topic.name, number) for topic, number, _ in _all(image))


def _all(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition


def _elected(electorate: Electorate, kind: ElectionType, name: str, number: int) -> PartitionChangeRecord:
    """The record of one requested election. Raises UnknownTopicOrPartitionError, ElectionNotNeededError, or the error
    of a failed preferred or unclean election."""
    topic = electorate.image.topic(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"partition {name[:249]}-{number} does not exist")
    partition = topic.partitions[number]
    if kind is ElectionType.PREFERRED:
        if partition.leader == partition.replicas[0]:
            raise ElectionNotNeededError(f"the preferred replica of partition {name}-{number} is already its leader")
        record = preferred_election(electorate, topic, number)
        if record is None:
            raise PreferredLeaderNotAvailableError(
                f"{name}-{number}: broker {partition.replicas[0]}, the preferred replica, "
                + _why_not(electorate, partition, partition.replicas[0])
            )
        return record
    if partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"partition {name}-{number} already has a leader")
    record = partition_change(electorate, topic, number, how=Election.UNCLEAN)
    if record is None:
        raise EligibleLeadersNotAvailableError(
            f"{name}-{number}: none of its replicas is alive; start a broker that has a replica"
        )
    return record


def _why_not(electorate: Electorate, partition: PartitionImage, broker_id: int) -> str:
    reported = electorate.hindered.get(broker_id, ())
    if broker_id not in partition.isr or not reported:
        return "is not in sync"
    return f"cannot lead now ({', '.join(sorted({each.reason for each in reported}))}); repair that broker first"
