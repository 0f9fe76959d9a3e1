"""The rules that every state of the cluster, and every step between two states, must satisfy. The checks are pure
functions. The checks are cheap because they look only at objects that a delta names.

    problems = check_step(before, after, delta, may_be_unclean=lambda topic, number: False)
    problems = check_image(image)                   checks everything: for a first image, or one from a snapshot

Each problem is a sentence that begins with the name of the rule, so a report can name the rule that found a
mutant. The rules for states are those of metadata.version 2 (eligible leader replicas, KIP-966).

    shape        ISR, ELR, last known leader, adding, removing: distinct, and all are replicas; ELR and ISR are disjoint
    works        a leader is in the ISR; every ISR member works: its broker is active, its directory online
    leaderless   a partition without a leader has an empty ISR, and no working replica that may lead
    small        an ELR exists only while the ISR is smaller than min.insync.replicas (and than the replicas)
    recovering   a leader in recovery is the only ISR member
    epochs       epochs only grow; every change has a new partition epoch, every new leader and every removal of a
                 replica a new leader epoch; a broker's epoch grows, and a new registration begins fenced
    clean        a new leader was in the ISR or the ELR, unless the election is unclean, or it is the last known
                 leader (and reports so)
    eligible     a replica that joins the ELR was in the ISR
    lost         a replica that may have lost records is not eligible
    life         a broker that registers again is in no ISR
    whole        a topic loses no partitions
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_core.metadata.configs import min_insync_replicas
from headrace_core.types import NO_LEADER

#: (topic, partition number): whether this partition may have an unclean leader, by its settings or because an operator
#: requests it.
MayBeUnclean = Callable[[TopicImage, int], bool]


def check_image(image: MetadataImage, *, elections_pending: Collection[int] = ()) -> list[str]:
    """Check the state of every partition. ``elections_pending``: brokers for whose partitions the records of elections
    are still to come."""
    problems: list[str] = []
    for topic in image.topics.values():
        minimum = min_insync_replicas(image, topic.name)
        for number, partition in enumerate(topic.partitions):
            problems += _named(topic, number, _state(image, partition, minimum, elections_pending))
    return problems


def check_step(
    before: MetadataImage,
    after: MetadataImage,
    delta: MetadataDelta,
    *,
    may_be_unclean: MayBeUnclean = lambda topic, number: False,
    elections_pending: Collection[int] = (),
    lost: Collection[int] = (),
    suspects: Collection[int] = (),
) -> list[str]:
    """Check one decision, which leads from ``before`` to ``after``.

    ``lost``: brokers that register in this step after an unclean stop in which they may have lost acknowledged records.
    After the step these brokers must not be eligible in any topic. ``suspects``: the brokers of ``lost``, and all other
    brokers that may stop being eligible in this step because they register after an unclean stop or report an empty
    replica.
    """
    problems = _brokers(before, after, delta)
    for topic_id, numbers in delta.partitions.items():
        topic, former = after.topics[topic_id], before.topics.get(topic_id)
        minimum = min_insync_replicas(after, topic.name)
        if former is not None and len(former.partitions) > len(topic.partitions):
            problems.append(f"whole: topic {topic.name} had {len(former.partitions)} partitions")
        for number in sorted(numbers):
            partition = topic.partitions[number]
            problems += _named(topic, number, _state(after, partition, minimum, elections_pending))
            if former is not None and number < len(former.partitions):
                step = _step(
                    former.partitions[number], partition, may_be_unclean(topic, number), {*suspects, *elections_pending}
                )
                problems += _named(topic, number, step)
    for broker_id in delta.brokers:  # changes of these brokers whose records do not name their partitions
        for topic, number, partition in after.partitions_on(broker_id):
            if number not in delta.partitions.get(topic.topic_id, ()):
                minimum = min_insync_replicas(after, topic.name)
                problems += _named(topic, number, _state(after, partition, minimum, elections_pending))
            if broker_id in lost and broker_id in partition.elr and broker_id not in elections_pending:
                problems += _named(topic, number, iter([f"lost: broker {broker_id} is in the ELR {partition.elr}"]))
            if (
                _is_new_life(before, after, broker_id)
                and broker_id in partition.isr
                and broker_id not in elections_pending
            ):
                problems += _named(topic, number, iter([f"life: broker {broker_id} has begun anew in the ISR"]))
    for resource in delta.configs:
        name = resource[1]
        affected = after.topics.values() if resource[0].name != "TOPIC" else filter(None, [after.topic(name)])
        for topic in affected:
            minimum = min_insync_replicas(after, topic.name)
            for number, partition in enumerate(topic.partitions):
                problems += _named(topic, number, _small(partition, minimum))
    return problems


def _named(topic: TopicImage, number: int, problems: Iterator[str]) -> list[str]:
    return [f"{problem} ({topic.name}-{number})" for problem in problems]


def _is_new_life(before: MetadataImage, after: MetadataImage, broker_id: int) -> bool:
    old, new = before.brokers.get(broker_id), after.brokers.get(broker_id)
    return old is not None and new is not None and old.broker_epoch != new.broker_epoch


def _brokers(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> list[str]:
    problems = []
    for broker_id in delta.brokers:
        old, new = before.brokers.get(broker_id), after.brokers.get(broker_id)
        if new is None or old is None:
            continue
        if new.broker_epoch < old.broker_epoch:
            problems.append(f"epochs: broker {broker_id} went from epoch {old.broker_epoch} to {new.broker_epoch}")
        if new.broker_epoch > old.broker_epoch and not new.fenced:
            problems.append(f"epochs: broker {broker_id} was not fenced when its life {new.broker_epoch} began")
    return problems


def _state(
    image: MetadataImage, partition: PartitionImage, minimum: int, elections_pending: Collection[int]
) -> Iterator[str]:
    replicas = partition.replicas
    for name in ("replicas", "isr", "elr", "last_known_elr", "adding", "removing"):
        members = getattr(partition, name)
        if len(set(members)) != len(members) or not set(members).issubset(replicas):
            yield f"shape: {name} {members} of the replicas {replicas}"
    if not replicas or len(partition.directories) != len(replicas):
        yield f"shape: {len(partition.directories)} directories of the replicas {replicas}"
    if set(partition.elr) & set(partition.isr):
        yield f"shape: ELR {partition.elr} and ISR {partition.isr} overlap"
    if partition.leader != NO_LEADER and partition.leader not in partition.isr:
        yield f"works: the leader {partition.leader} is not in the ISR {partition.isr}"
    for member in partition.isr:
        if member not in elections_pending and not image.is_available(partition, member):
            yield f"works: {member}, in the ISR {partition.isr}, does not work"
    if partition.recovering and len(partition.isr) > 1:
        yield f"recovering: not alone in the ISR {partition.isr}"
    if partition.leader == NO_LEADER:
        if partition.isr and not set(partition.isr) & set(elections_pending):
            yield f"leaderless: the ISR is {partition.isr}"
        waits_for = partition.elr or partition.last_known_elr
        able = [each for each in waits_for if each not in elections_pending and image.is_available(partition, each)]
        if able:
            yield f"leaderless: {able} work, of ELR {partition.elr}, last known {partition.last_known_elr}"
    elif partition.last_known_elr:
        yield f"leaderless: the last known leader is {partition.last_known_elr}, and {partition.leader} leads"
    yield from _small(partition, minimum)


def _small(partition: PartitionImage, minimum: int) -> Iterator[str]:
    if partition.elr and len(partition.isr) >= min(minimum, len(partition.replicas)):
        yield f"small: ELR {partition.elr} beside the ISR {partition.isr}, min.insync.replicas is {minimum}"


def _step(old: PartitionImage, new: PartitionImage, may_be_unclean: bool, suspects: Collection[int]) -> Iterator[str]:
    if new.partition_epoch < old.partition_epoch or new.leader_epoch < old.leader_epoch:
        yield f"epochs: they went back, from {old} to {new}"
    if new != old and new.partition_epoch == old.partition_epoch:
        yield f"epochs: the same partition epoch {old.partition_epoch} of {old} and {new}"
    if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
        yield f"epochs: {old.leader} and {new.leader} have the leader epoch {old.leader_epoch}"
    if not set(old.replicas).issubset(new.replicas) and new.leader_epoch == old.leader_epoch:
        yield f"epochs: replicas {old.replicas} became {new.replicas}, and the leader epoch stayed {old.leader_epoch}"
    candidates = {*old.isr, *old.elr}
    if new.leader not in (old.leader, NO_LEADER) and new.leader not in candidates:
        is_last_known = set(old.elr).issubset(suspects) and not old.isr and old.last_known_elr == (new.leader,)
        if not (may_be_unclean or is_last_known):
            yield f"clean: {new.leader} leads, and ISR {old.isr}, ELR {old.elr} had not got it"
        elif not new.recovering or new.isr != (new.leader,):
            yield f"clean: {new.leader} was elected uncleanly and does not say so: {new}"
    if not set(new.elr).issubset(candidates):
        yield f"eligible: ELR {new.elr} was not in ISR {old.isr} or ELR {old.elr}"
