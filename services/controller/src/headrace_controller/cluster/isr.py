"""Changes of in-sync sets by the leaders of partitions (AlterPartition: KIP-497, KIP-704, KIP-841, KIP-903).

A leader proposes the new ISR of its partition; the active controller accepts or refuses the proposal. The controller
refuses every outdated proposal:

    broker epoch of the leader    is the current one                               else STALE_BROKER_EPOCH
    leader epoch                  it still leads                                   else FENCED_LEADER_EPOCH
    partition epoch               it knows all decisions                           else INVALID_UPDATE_VERSION
    an epoch from the future      this controller is behind                        then NOT_CONTROLLER
    broker epoch of each member   is the current one: in sync with this disk       else INELIGIBLE_REPLICA
    each member works             not fenced, not stopping, its directory online   else INELIGIBLE_REPLICA
    metadata offset of the leader it knows min.insync.replicas, if the ISR is small else OPERATION_NOT_ATTEMPTED

The last line of the table is a rule that Headrace adds to Kafka's rules for refusing proposals. A replica that leaves
an ISR below min.insync.replicas becomes eligible (elections.py), because the leader commits no record without this
replica. A leader that does not know that min.insync.replicas was raised would still commit records. The controller
therefore accepts an ISR below min.insync.replicas, even an unchanged ISR, only from a leader that has applied the
latest change of min.insync.replicas. (The metadata log delivers the setting min.insync.replicas and the ISR in order.)

A refusal with INELIGIBLE_REPLICA changes no state. Because a refusal changes no state, an earlier attempt at the same
partition epoch could be granted later, when the refused member works again. A leader with an earlier attempt marks its
request as ``uncertain``; the refusal of an uncertain request also increments the partition epoch. With the higher
partition epoch, every attempt at the former epoch is refused. The leader learns from the metadata log that no attempt
was granted.

A leader that got no answer to AlterPartition repeats its proposal. If the proposed state has already been reached, the
controller returns the present state, although the partition epoch has changed. Kafka answers INVALID_UPDATE_VERSION to
a repeated proposal, and the leader waits for the metadata.
"""

from __future__ import annotations

import msgspec

from headrace_core.errors import (
    FencedLeaderEpochError,
    HeadraceError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
    OperationNotAttemptedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import MetadataImage, MetadataRecord, PartitionChangeRecord, PartitionImage, TopicImage

from . import brokers, elections
from .decision import Decision, View
from .requests import AlteredPartition, AlterPartition, PartitionResult


def alter(view: View, request: AlterPartition) -> Decision:
    """Returns one PartitionResult for each partition. Raises BrokerIdNotRegisteredError, StaleBrokerEpochError."""
    brokers.known(view.image, request.broker_id, request.broker_epoch)
    altering = Altering(view, request)
    records: list[MetadataRecord] = []
    results = []
    seen: set[tuple[bytes, int]] = set()
    for item in request.partitions:
        key = (item.topic_id, item.partition)
        try:
            if key in seen:
                raise InvalidRequestError(f"partition {item.partition} is named twice in the request")
            seen.add(key)
            if len(records) >= view.settings.metadata_max_records_per_request:
                raise OperationNotAttemptedError(
                    f"the request alters more than metadata.max.records.per.request={len(records)} partitions; "
                    "send the remaining partitions again"
                )
            partition, record = altering.decide(item)
        except HeadraceError as error:
            results.append(PartitionResult(topic_id=item.topic_id, partition=item.partition, error=error))
            if item.uncertain and isinstance(error, IneligibleReplicaError):
                records.append(altering.end_epoch(item))
            continue
        if record is not None:
            records.append(record)
        results.append(_result(item, partition, record))
    return Decision(tuple(records), tuple(results))


class Altering:
    """The checks of one AlterPartition request, one method for each check."""

    def __init__(self, view: View, request: AlterPartition) -> None:
        self.image: MetadataImage = view.image
        self.electorate = elections.Electorate(view.image, view.settings, view.hindered)
        self.leader = request.broker_id
        self._applied = request.metadata_offset
        self._min_insync_offset = view.agenda.min_insync_offset

    def decide(self, item: AlteredPartition) -> tuple[PartitionImage, PartitionChangeRecord | None]:
        """The partition, and the record that alters the partition; the record is None if there is no change. Raises the
        refusal."""
        topic, partition = self._find(item)
        where = f"{topic.name}-{item.partition}"
        self.check_future(item, partition, where)
        self.check_leader_epoch(item, partition, where)
        members = tuple(broker_id for broker_id, _ in item.isr)
        if self.is_so_already(item, partition, members):
            self.check_min_insync(topic, partition, members, where)
            return partition, None
        self.check_partition_epoch(item, partition, where)
        self._check_set(item, partition, members, where)
        self.check_broker_epochs(item, where)
        self.check_members_work(partition, members, where)
        self.check_min_insync(topic, partition, members, where)
        wanted = msgspec.structs.replace(partition, isr=members, recovering=item.recovering)
        return partition, elections.partition_change(self.electorate, topic, item.partition, wanted)

    def _find(self, item: AlteredPartition) -> tuple[TopicImage, PartitionImage]:
        topic = self.image.topics.get(item.topic_id)
        if topic is None:
            raise UnknownTopicIdError(f"no topic has the id {item.topic_id.hex()}: the topic was deleted")
        partition = self.image.partition(item.topic_id, item.partition)
        if partition is None:
            raise UnknownTopicOrPartitionError(f"topic {topic.name} has no partition {item.partition}")
        return topic, partition

    def check_future(self, item: AlteredPartition, partition: PartitionImage, where: str) -> None:
        if item.leader_epoch > partition.leader_epoch or item.partition_epoch > partition.partition_epoch:
            raise NotControllerError(
                f"{where}: the request's leader epoch {item.leader_epoch} and partition epoch "
                f"{item.partition_epoch} are newer than this controller's, {partition.leader_epoch} and "
                f"{partition.partition_epoch}: another controller is the leader"
            )

    def check_leader_epoch(self, item: AlteredPartition, partition: PartitionImage, where: str) -> None:
        if item.leader_epoch < partition.leader_epoch:
            raise FencedLeaderEpochError(
                f"{where}: leader epoch {item.leader_epoch} is out of date, the current one is {partition.leader_epoch}"
            )
        if self.leader != partition.leader:
            raise InvalidRequestError(f"{where} is led by broker {partition.leader}, not by broker {self.leader}")

    def is_so_already(self, item: AlteredPartition, partition: PartitionImage, members: tuple[int, ...]) -> bool:
        """Whether the proposal repeats a change whose answer was lost. The leader epoch of a repeated proposal is
        current, so no other leader was elected since the change."""
        same = len(members) == len(partition.isr) and set(members) == set(partition.isr)
        return same and item.recovering == partition.recovering

    def check_partition_epoch(self, item: AlteredPartition, partition: PartitionImage, where: str) -> None:
        if item.partition_epoch < partition.partition_epoch:
            raise InvalidUpdateVersionError(
                f"{where}: partition epoch {item.partition_epoch} is out of date, the current one is "
                f"{partition.partition_epoch}"
            )

    def _check_set(
        self, item: AlteredPartition, partition: PartitionImage, members: tuple[int, ...], where: str
    ) -> None:
        if len(set(members)) != len(members) or not set(members).issubset(partition.replicas):
            raise InvalidRequestError(
                f"{where}: the in-sync set {list(members)} must name distinct brokers of the replicas "
                f"{list(partition.replicas)}"
            )
        if self.leader not in members:
            raise InvalidRequestError(f"{where}: the leader is not in its own in-sync set {list(members)}")
        if item.recovering and (len(members) > 1 or not partition.recovering):
            raise InvalidRequestError(
                f"{where}: while the leader recovers, the in-sync set must be the leader alone, and recovery cannot "
                "start again (KIP-704)"
            )

    def end_epoch(self, item: AlteredPartition) -> PartitionChangeRecord:
        """The record that only increments the partition epoch, so that earlier attempts can no longer be granted."""
        _, partition = self._find(item)
        return PartitionChangeRecord(
            topic_id=item.topic_id, partition=item.partition, partition_epoch=partition.partition_epoch + 1
        )

    def check_broker_epochs(self, item: AlteredPartition, where: str) -> None:
        for broker_id, broker_epoch in item.isr:
            broker = self.image.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != broker_epoch:
                raise IneligibleReplicaError(
                    f"{where}: broker {broker_id} was in sync with broker epoch {broker_epoch}, and is "
                    + ("not registered" if broker is None else f"at epoch {broker.broker_epoch} now")
                )

    def check_members_work(self, partition: PartitionImage, members: tuple[int, ...], where: str) -> None:
        for broker_id in members:
            if not self.electorate.works(partition, broker_id):
                raise IneligibleReplicaError(
                    f"{where}: broker {broker_id} cannot be in the in-sync set: the broker is fenced or stopping, or "
                    "its replica is in an offline directory"
                )

    def check_min_insync(
        self, topic: TopicImage, partition: PartitionImage, members: tuple[int, ...], where: str
    ) -> None:
        if self._applied < self._min_insync_offset:
            least = self.electorate.minimum(topic, partition)
            if len(members) < least:
                raise OperationNotAttemptedError(
                    f"{where}: the leader may not know the last change of min.insync.replicas: the leader has applied "
                    f"the metadata log up to {self._applied}, and needs it up to {self._min_insync_offset}; retry when "
                    "the leader has caught up"
                )


def _result(item: AlteredPartition, partition: PartitionImage, record: PartitionChangeRecord | None) -> PartitionResult:
    """The partition's state after ``record`` is applied. The leader and its epoch change only if the leader cannot lead
    now, and another member of the ISR can lead (leadership.py). If the leader changes, the old leader learns the new
    leader first from the answer to AlterPartition."""
    isr, recovering, epoch = partition.isr, partition.recovering, partition.partition_epoch
    leader, leader_epoch = partition.leader, partition.leader_epoch
    if record is not None:
        leader = leader if record.leader is None else record.leader
        leader_epoch = leader_epoch if record.leader_epoch is None else record.leader_epoch
        isr = isr if record.isr is None else record.isr
        recovering = recovering if record.recovering is None else record.recovering
        epoch = record.partition_epoch
    return PartitionResult(
        topic_id=item.topic_id,
        partition=item.partition,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=epoch,
        isr=isr,
        recovering=recovering,
    )
