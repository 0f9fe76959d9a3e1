"""Elections set the ISR, ELR and leader of a partition after changes of brokers, disks or settings.

    replica is ...      because                                              it leads
    in the ISR          the leader says so (isr.py), and it works            when the leader goes
    in the ELR          it left the ISR while that was below min.insync...   when no ISR member works
    last known leader   it led when ISR and ELR became empty                 when both are empty
    any other           it lacks records, or may lack some                   when an unclean election is requested

A replica *works* if its broker is active (registered, not fenced, not stopping) and its directory is online (KIP-858).
A replica that does not work is in no ISR and leads no partition. A replica that works but cannot lead now
(leadership.py) leads only while no other in-sync replica can lead. If a directory fails before the broker has reported
a replica in it, the replica is still assigned to the failed directory. No replica in a failed directory is elected,
because a leader in a failed directory could not serve.

The following rules concern eligible leader replicas (KIP-966). While the ISR is smaller than ``min.insync.replicas``,
the high watermark does not advance. Because the high watermark does not advance, a replica that leaves a too small ISR
still has every committed record. A replica that left a too small ISR stays eligible until the ISR is large enough
again, because records are then committed without it. The ISR of a partition may become empty. When the ISR becomes
empty, its last member moves to the ELR, and the partition has no leader until a member of the ELR works. The ELR rules
rely on two duties of brokers. First, a leader must not advance the high watermark while the ISR is too small. Leaders
and controllers compute the minimum with the same function, ``min_insync_replicas``. Second, a broker must not lose
records that it acknowledged. A broker that stopped uncleanly leaves the ELR of topics whose ``log.flush`` was not
always ``commit`` (brokers.py).

The last known leader may lead again although it may have lost its last records, as in Kafka 4. After the loss of all
eligible replicas, no replica can have more committed records than the last known leader. Because the last known leader
may lead again, a topic with one replica and a weak flush policy recovers. The last known leader may lead again only
while the partition's metadata names it as such. The controllers remove a last known leader that returns with an empty
disk, or with an older copy of its directory (brokers.py). Such a replica *lacks* records, and only an unclean election
elects it. Where there is no other replica, nobody else can have the records: it stays the last known leader, and leads
at once.

Every unclean election, except the election of the last known leader, needs an operator (ElectLeaders) or
``unclean.leader.election.enable``. The topic's ``unclean.leader.election.enable`` has priority, then the setting of the
candidate broker, of all brokers, and of the controller's file. Every unclean election sets ``recovering`` (KIP-704),
empties the ELR, and leaves the new leader as the only member of the ISR.

At metadata.version 1 there is no ELR: the last members of an ISR stay in the ISR, as in Kafka before KIP-966.

Every change of a partition increments the partition epoch. A change of the leader or the loss of a replica also
increments the leader epoch, which fences the old leader.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeGuard

import msgspec

from headrace_core.metadata import (
    ELR_LEVEL,
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    ConfigRecord,
    ConfigResourceType,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionImage,
    TopicImage,
)
from headrace_core.metadata.configs import min_insync_replicas, topic_value
from headrace_core.types import NO_LEADER

from . import leadership
from .decision import ClusterSettings, View
from .leadership import Hindered

UNCLEAN_KEY = "unclean.leader.election.enable"
MIN_INSYNC_KEY = "min.insync.replicas"


class Election(enum.Enum):
    KEEP = "keep"  # the present leader stays as long as its broker works
    PREFERRED = "preferred"  # the first replica leads if it is in sync, otherwise the rule KEEP applies
    UNCLEAN = "unclean"  # the rule KEEP applies; without an eligible replica, any working replica leads


class Electorate:
    """The election rules, applied to one image for one decision. ``hindered``: brokers that cannot lead now."""

    def __init__(self, image: MetadataImage, settings: ClusterSettings, hindered: Hindered | None = None) -> None:
        self.image = image
        self.hindered: Hindered = hindered or {}
        self.has_elr = image.metadata_version >= ELR_LEVEL
        self._settings = settings
        self._minimums: dict[str, int] = {}
        self._unclean: dict[tuple[str, int], bool] = {}

    def works(self, partition: PartitionImage, broker_id: int) -> bool:
        return self.image.is_available(partition, broker_id)

    def can_lead(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the replica may lead; False if its broker has reported that it cannot lead now."""
        return leadership.can_lead(self.image, self.hindered, partition, broker_id)

    def able_of(self, partition: PartitionImage, candidates: Iterable[int]) -> tuple[int, ...]:
        """The replicas in ``candidates`` that can lead now; all candidates if none can."""
        every = tuple(candidates)
        if not self.hindered:
            return every
        return tuple(each for each in every if self.can_lead(partition, each)) or every

    def minimum(self, topic: TopicImage, partition: PartitionImage) -> int:
        """Number of in-sync replicas needed to commit a record: min.insync.replicas, or the partition's number of
        replicas if this number is smaller."""
        least = self._minimums.get(topic.name)
        if least is None:
            least = self._minimums[topic.name] = min_insync_replicas(self.image, topic.name)
        return min(least, len(partition.replicas))

    def allows_unclean(self, topic: TopicImage, broker_id: int) -> bool:
        key = (topic.name, broker_id)
        allowed = self._unclean.get(key)
        if allowed is None:
            static = {UNCLEAN_KEY: self._settings.unclean_leader_election_enable}
            allowed = topic_value(self.image, topic.name, UNCLEAN_KEY, broker_id=broker_id, static=static)
            self._unclean[key] = allowed
        return allowed

    # -- the guards -----------------------------------------------------------------------------------------------

    def in_sync(self, wanted: PartitionImage) -> tuple[int, ...]:
        return tuple(each for each in wanted.isr if each in wanted.replicas and self.works(wanted, each))

    def eligible(
        self, topic: TopicImage, before: PartitionImage, wanted: PartitionImage, isr: Collection[int]
    ) -> tuple[int, ...]:
        """The new ELR for the new ``isr``. The ELR is empty if the ISR is large enough; otherwise the ELR also contains
        the replicas that leave the ISR now."""
        if not self.has_elr or len(isr) >= self.minimum(topic, wanted):
            return ()
        return tuple(each for each in wanted.replicas if each not in isr and (each in before.isr or each in before.elr))

    def last_known(self, before: PartitionImage, wanted: PartitionImage, leader: int) -> tuple[int, ...]:
        """The last known leader, if the partition has no leader now; otherwise empty. For a partition that lost its
        leader at metadata.version 1, the last known leaders are the members of its ISR."""
        if leader != NO_LEADER or not self.has_elr:
            return ()
        # (Read the replicas from ``wanted``: ``wanted``, unlike ``before``, lacks a replica that returned with an empty
        # disk.)
        known = wanted.last_known_elr or wanted.isr if before.leader == NO_LEADER else (before.leader,)
        return tuple(each for each in known if each in wanted.replicas)

    def clean_leader(
        self, before: PartitionImage, wanted: PartitionImage, isr: Collection[int], elr: Collection[int], how: Election
    ) -> int:
        """The replica to elect, which has every committed record; NO_LEADER if no such replica works."""
        isr = self.able_of(wanted, isr)
        if isr:
            if how is Election.PREFERRED and wanted.replicas[0] in isr:
                return wanted.replicas[0]
            if before.leader in isr:
                return before.leader
            return next(each for each in wanted.replicas if each in isr)
        working = [each for each in wanted.replicas if each in elr and self.works(wanted, each)]
        return next(iter(self.able_of(wanted, working)), NO_LEADER)

    def unclean_leader(
        self,
        topic: TopicImage,
        wanted: PartitionImage,
        elr: Collection[int],
        last_known: Collection[int],
        how: Election,
        lacking: Collection[int] = (),
    ) -> int:
        """The replica to elect although it may lack committed records: the last known leader, or the replica that an
        unclean election elects. None in ``lacking``: a leader among them would stay in office, in the same epoch."""
        able = [each for each in wanted.replicas if each not in lacking and self.works(wanted, each)]
        known = next((each for each in able if each in last_known), NO_LEADER)
        if known != NO_LEADER and not elr:
            return known
        willing = [each for each in able if how is Election.UNCLEAN or self.allows_unclean(topic, each)]
        return known if known in willing else next(iter(willing), NO_LEADER)

    def keeps_after_crash(self, topic: TopicImage, partition: PartitionImage, former: BrokerImage) -> bool:
        """Whether the replica's disk has every record that its broker acknowledged before an unclean stop."""
        weakened = topic.flush_weakened or self.image.flush_weakened
        if weakened or former.default_log_flush != "commit":
            return False
        # A replica without an assigned directory may have been in one of its broker's offline directories.
        some_are_gone = bool(self.image.brokers[former.broker_id].offline_directories)
        return not (some_are_gone and partition.directory_of(former.broker_id) == UNASSIGNED_DIRECTORY)

    def is_outdated(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the replica may be in an older copy of a directory."""
        outdated = self.image.brokers[broker_id].outdated_directories
        # A replica whose directory is unknown may be in any directory of its broker.
        return bool(outdated) and partition.directory_of(broker_id) in (
            *outdated,
            UNASSIGNED_DIRECTORY,
            LOST_DIRECTORY,
        )

    def may_be_made_anew(self, partition: PartitionImage, broker_id: int, directory: bytes) -> bool:
        """Whether a LOST replica that is reported in ``directory`` may be a new, empty replica. The replica's old log
        may be in an offline directory. A broker whose properties no longer name the offline directory cannot check
        whether the log is in that directory."""
        broker = self.image.brokers[broker_id]
        was_lost = partition.directory_of(broker_id) == LOST_DIRECTORY
        return was_lost and bool(broker.offline_directories) and broker.has_online(directory)


def partition_change(
    electorate: Electorate,
    topic: TopicImage,
    number: int,
    wanted: PartitionImage | None = None,
    *,
    how: Election = Election.KEEP,
    lost: Collection[int] = (),
    lacking: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The record that applies the election rules to a partition of ``topic``; None if the partition does not change.

    ``wanted``: the partition with the requested changes (ISR, replicas, directories or a reassignment), or unchanged.
    The function ``partition_change`` sets the leader and the epochs; ``wanted`` does not contain them. ``lost``:
    brokers whose replicas may have lost their last acknowledged records; ``lacking``: brokers whose replicas are empty
    or older copies. The image of ``electorate`` contains the present state of the brokers.
    """
    before = topic.partitions[number]
    wanted = before if wanted is None else wanted
    if lacking:
        wanted = msgspec.structs.replace(
            wanted,
            isr=tuple(each for each in wanted.isr if each not in lacking),
            last_known_elr=tuple(each for each in wanted.last_known_elr if each not in lacking),
        )
    isr = electorate.in_sync(wanted)
    elr = tuple(each for each in electorate.eligible(topic, before, wanted, isr) if each not in (*lost, *lacking))
    recovering = wanted.recovering
    leader = electorate.clean_leader(before, wanted, isr, elr, how)
    last_known = tuple(each for each in electorate.last_known(before, wanted, leader) if each not in lacking)
    if leader == NO_LEADER:
        leader = electorate.unclean_leader(topic, wanted, elr, last_known, how, lacking)
        if leader != NO_LEADER:
            isr, elr, recovering = (leader,), (), True
        elif not electorate.has_elr:
            isr = tuple(each for each in wanted.isr if each in wanted.replicas)
    elif not isr:  # the leader was elected from the ELR
        isr = (leader,)
        elr = () if electorate.minimum(topic, wanted) <= 1 else tuple(each for each in elr if each != leader)
    after = msgspec.structs.replace(
        wanted,
        isr=isr,
        elr=elr,
        leader=leader,
        last_known_elr=last_known if leader == NO_LEADER else (),
        recovering=recovering,
    )
    return changed(topic.topic_id, number, before, after)


def changed(
    topic_id: bytes, number: int, before: PartitionImage, after: PartitionImage
) -> PartitionChangeRecord | None:
    """The record for the change from ``before`` to ``after``, with new epochs; None if the two are equal."""
    if after == before:
        return None
    fenced = after.leader != before.leader or not set(before.replicas).issubset(after.replicas)
    new_replicas = after.replicas != before.replicas
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=number,
        partition_epoch=before.partition_epoch + 1,
        leader=after.leader if fenced else None,
        leader_epoch=before.leader_epoch + 1 if fenced else None,
        isr=after.isr if after.isr != before.isr else None,
        replicas=after.replicas if new_replicas else None,
        directories=after.directories if new_replicas or after.directories != before.directories else None,
        elr=after.elr if after.elr != before.elr else None,
        last_known_elr=after.last_known_elr if after.last_known_elr != before.last_known_elr else None,
        adding=after.adding if after.adding != before.adding else None,
        removing=after.removing if after.removing != before.removing else None,
        recovering=after.recovering if after.recovering != before.recovering else None,
    )


def after_broker_changed(
    electorate: Electorate, broker_id: int, *, former: BrokerImage | None
) -> Iterator[PartitionChangeRecord]:
    """Yield the records for the partitions of a broker that became active, became inactive, or lost directories.

    ``former``: the broker's previous registration, given after an unclean stop, or if a directory is outdated. The
    broker then leaves the ELR of partitions whose records it may have lost.
    """
    for topic, number, partition in electorate.image.partitions_on(broker_id):
        if former is not None and electorate.is_outdated(partition, broker_id):
            if broker_id in (partition.leader, *partition.isr, *partition.elr, *partition.last_known_elr):
                is_alone = partition.replicas == (broker_id,)
                lacking, lost = ((), (broker_id,)) if is_alone else ((broker_id,), ())
                record = partition_change(electorate, topic, number, lost=lost, lacking=lacking)
                if record is not None:
                    yield record
        elif former is not None and not electorate.keeps_after_crash(topic, partition, former):
            if broker_id in partition.isr or broker_id in partition.elr:
                record = partition_change(electorate, topic, number, lost=(broker_id,))
                if record is not None:
                    yield record
        elif _concerns(electorate, partition, broker_id):
            record = partition_change(electorate, topic, number)
            if record is not None:
                yield record


def without_lacking_leaders(
    electorate: Electorate, broker_id: int, reported: Iterable[tuple[bytes, int, int]]
) -> Iterator[PartitionChangeRecord]:
    """Yield the records that take leaders which lack committed records out of office: (topic id, partition, leader
    epoch), as the broker's replica found. A copy of a directory in its present broker epoch cannot be recognized
    otherwise.

    The ISR goes with its leader, which let the others in. Every record that this leader has committed is in the ELR,
    and in the reporting replica if that is in the ISR, so nothing is lost if one of these leads. Without them, the
    leader may have committed records alone: it stays, and an operator decides."""
    for topic_id, number, leader_epoch in reported:
        partition = electorate.image.partition(topic_id, number)
        if partition is None or broker_id not in partition.replicas:
            continue
        if partition.leader_epoch != leader_epoch or partition.leader in (NO_LEADER, broker_id):
            continue
        if partition.elr or broker_id in partition.isr:
            lacking = [each for each in partition.isr if each != broker_id]
            record = partition_change(electorate, electorate.image.topics[topic_id], number, lacking=lacking)
            if record is not None:
                yield record


def _concerns(electorate: Electorate, partition: PartitionImage, broker_id: int) -> bool:
    """Whether a change of the broker may affect the partition (a cheap filter). True if the broker's replica could
    replace a missing or hindered leader, or if a replica that does not work leads or is in the ISR."""
    if partition.leader == NO_LEADER:
        return electorate.works(partition, broker_id)
    if electorate.hindered and broker_id in partition.isr and not electorate.can_lead(partition, partition.leader):
        return True
    has_place = partition.leader == broker_id or broker_id in partition.isr
    return has_place and not electorate.works(partition, broker_id)


def brokers_with_elections_pending(image: MetadataImage) -> set[int]:
    """Brokers whose changes have not reached all their partitions yet; the search examines every partition."""
    found: set[int] = {broker_id for broker_id, broker in image.brokers.items() if broker.elections_pending}
    for topic in image.topics.values():
        for partition in topic.partitions:
            leaderless = partition.leader == NO_LEADER
            places = partition.replicas if leaderless else partition.isr
            found.update(each for each in places if image.is_available(partition, each) is leaderless)
    return found & image.brokers.keys()


def after_min_insync_changed(view: View, records: Sequence[MetadataRecord]) -> list[PartitionChangeRecord]:
    """The partition changes that follow from the configuration records ``records``. If the records change
    min.insync.replicas, a partition's ELR becomes empty when its ISR is now large enough."""
    resources = {(each.resource_type, each.resource_name) for each in records if _sets_min_insync(each)}
    if not resources:
        return []
    image = view.image.apply(records, view.image.next_offset + len(records))
    electorate = Electorate(image, view.settings, view.hindered)
    topics: Iterable[TopicImage] = image.topics.values()
    if all(kind == ConfigResourceType.TOPIC for kind, _ in resources):
        topics = [topic for _, name in resources if (topic := image.topic(name)) is not None]
    changes = []
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            if partition.elr:
                record = partition_change(electorate, topic, number)
                if record is not None:
                    changes.append(record)
    return changes


def _sets_min_insync(record: MetadataRecord) -> TypeGuard[ConfigRecord]:
    return isinstance(record, ConfigRecord) and record.key == MIN_INSYNC_KEY


def assigned(
    electorate: Electorate, topic: TopicImage, number: int, broker_id: int, directory: bytes, *, fresh: bool = False
) -> PartitionChangeRecord | None:
    """The record that puts the broker's replica of an existing partition into ``directory``, which may be offline. The
    result is None if the metadata already has the replica in ``directory``. ``fresh``: the replica starts with an empty
    log, so it is eligible for no election."""
    partition = topic.partitions[number]
    directories = tuple(
        directory if replica == broker_id else before
        for replica, before in zip(partition.replicas, partition.directories, strict=True)
    )
    wanted = msgspec.structs.replace(partition, directories=directories)
    if not fresh:
        lost = (broker_id,) if electorate.may_be_made_anew(partition, broker_id, directory) else ()
        return partition_change(electorate, topic, number, wanted, lost=lost)
    record = partition_change(electorate, topic, number, wanted, lacking=(broker_id,))
    # Write a partition record even if the partition does not change. The partition record increments the partition
    # epoch, so a pending AlterPartition with the lost replica is refused.
    return record or PartitionChangeRecord(topic.topic_id, number, partition.partition_epoch + 1)
