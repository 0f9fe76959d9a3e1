"""The rules of every step in which replicas move, levels change, or shards and producer ids are assigned. The checks
are pure functions. The checks are cheap because they look only at objects that the records of the step name. This
module complements cluster_invariants.py.

    problems = check_ledger_step(before, after, records, copies_max=10)
    promises = Promises(); promises.gave_block(first, length); promises.answered(image, coordinator_id, epoch)
    problems = check_ledger_end(image)               after all nodes were alive for a while

Each problem is a sentence that begins with the name of the rule.

    table        image.ledger.reassigning names exactly the partitions with adding or removing replicas
    arrived      a move removes a replica only when all added replicas are in sync
    enough       ... and the remaining replicas are in sync, and enough for acks=all if they were enough before
    takes        an existing partition gets a replica only on a live broker that is not being drained
    pace         no broker takes part in more copies than the limit
    unwanted     no planned move begins while rebalancing is off, except for a drain
    throttle     a throttle lasts as long as a partition moves or waits to move
    registered   no partition has, or waits for, a replica on a broker that does not exist
    level        every registered node understands metadata.version, and no record is newer than it
    unique       producer ids only grow, and no two answered blocks overlap
    shards       an epoch grows with each new owner of its shard; a restarted owner has new epochs; every owner exists
    zombie       a coordinator's former process gets no answer
    end          all moves are complete, drained brokers are empty, shards are spread evenly over live coordinators
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from headrace_core.metadata import (
    ConfigResourceType,
    CoordinatorChangeRecord,
    FeatureLevelRecord,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionImage,
    QueuedReassignmentRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RegisterCoordinatorRecord,
    ShardRecord,
    TopicImage,
    UnregisterBrokerRecord,
)
from headrace_core.metadata.configs import min_insync_replicas
from headrace_core.metadata.features import level_needed, understands

Key = tuple[bytes, int]
SHARD_TOPICS = ("__consumer_offsets", "__transaction_state")


def check_ledger_step(
    before: MetadataImage, after: MetadataImage, records: Collection[MetadataRecord], *, copies_max: int
) -> list[str]:
    """Check one decision, whose ``records`` led from ``before`` to ``after``. ``copies_max``:
    reassignment.partitions.per.broker."""
    problems: list[str] = []
    changed = {(each.topic_id, each.partition) for each in records if isinstance(each, PartitionChangeRecord)}
    for topic_id, number in sorted(changed):
        topic, former, new = (
            after.topics.get(topic_id),
            before.partition(topic_id, number),
            after.partition(topic_id, number),
        )
        if topic is not None and former is not None and new is not None:
            found = _move(before, after, topic, (topic_id, number), former, new)
            problems += [f"{problem} ({topic.name}-{number}: {former} became {new})" for problem in found]
    problems += _pace(before, after, changed, copies_max)
    problems += _unwanted(before, after, changed)
    problems += _brokers(after, records)
    problems += _levels(before, after, records)
    problems += _shards(before, after, records)
    throttle = after.ledger.throttle
    if throttle.bytes_per_s and not (after.ledger.reassigning or after.ledger.queued):
        problems.append(f"throttle: {throttle} and nothing moves")
    if after.ledger.next_producer_id < before.ledger.next_producer_id:
        problems.append(f"unique: the next producer id went back to {after.ledger.next_producer_id}")
    return problems


def _move(
    before: MetadataImage,
    after: MetadataImage,
    topic: TopicImage,
    key: Key,
    old: PartitionImage,
    new: PartitionImage,
) -> Iterator[str]:
    if (key in after.ledger.reassigning) is not bool(new.adding or new.removing):
        yield "table: it is not in the table of what moves, or is and does not"
    for replica in set(new.replicas) - set(old.replicas):
        broker = before.brokers.get(replica)
        if broker is None or not broker.active or broker.draining:
            yield f"takes: broker {replica} gets a replica, and is {broker}"
    left = set(old.replicas) - set(new.replicas)
    if left - set(old.adding):  # no cancellation: a replica with the data leaves
        arriving = (set(old.adding) | (set(new.replicas) - set(old.replicas))) & set(new.replicas)
        if not arriving <= set(new.isr):
            yield f"arrived: {sorted(left)} left, and {sorted(arriving)} are not all in sync"
        needed = min(min_insync_replicas(after, topic.name), len(new.replicas))
        if old.isr and (not new.isr or len(new.isr) < needed <= len(old.isr)):
            yield f"enough: {len(new.isr)} are left in sync, {needed} are needed"


def _pace(before: MetadataImage, after: MetadataImage, changed: Collection[Key], copies_max: int) -> Iterator[str]:
    begun = [key for key in changed if key in after.ledger.reassigning and _adding(after, key) - _adding(before, key)]
    if not begun:
        return
    copies = Counter(each for key in after.ledger.reassigning for each in _copiers(after, key))
    for broker_id in sorted({each for key in begun for each in _copiers(after, key) - _copiers(before, key)}):
        if copies[broker_id] > copies_max:
            yield f"pace: broker {broker_id} takes part in {copies[broker_id]} copies, {copies_max} are allowed"


def _adding(image: MetadataImage, key: Key) -> set[int]:
    partition = image.partition(*key)
    return set() if partition is None else set(partition.adding)


def _copiers(image: MetadataImage, key: Key) -> set[int]:
    """The brokers that fetch or send data of a moving partition. The set is empty without a leader, or while a fetching
    broker is down."""
    partition = image.partition(*key)
    if partition is None or not partition.adding or partition.leader < 0:
        return set()
    if not all(each in image.brokers and image.brokers[each].active for each in partition.adding):
        return set()
    fetching = {each for each in partition.adding if each not in partition.isr}
    return {*fetching, partition.leader} if fetching else set()


def _unwanted(before: MetadataImage, after: MetadataImage, changed: Collection[Key]) -> Iterator[str]:
    if before.config(ConfigResourceType.BROKER, "").get("auto.rebalance.enable") != "false":
        return
    for key in changed:
        queued, old, new = before.ledger.queued.get(key), before.partition(*key), after.partition(*key)
        if queued is None or not queued.automatic or old is None or new is None:
            continue
        if tuple(each for each in new.replicas if each not in new.removing) != queued.targets:
            continue  # replaced by another request
        leaving = {each for each in old.replicas if each not in queued.targets and each not in old.removing}
        if not any(each in before.brokers and before.brokers[each].draining for each in leaving):
            yield f"unwanted: {key} began to move, and nobody drains"


def _brokers(after: MetadataImage, records: Collection[MetadataRecord]) -> Iterator[str]:
    if not any(isinstance(each, UnregisterBrokerRecord | QueuedReassignmentRecord) for each in records):
        return
    for broker_id in after.loads:
        if broker_id not in after.brokers:
            yield f"registered: broker {broker_id} does not exist and has {after.loads[broker_id]}"
    for key, queued in after.ledger.queued.items():
        if not set(queued.targets) <= after.brokers.keys():
            yield f"registered: {key} waits for {queued.targets}, and not all of them exist"


def _levels(before: MetadataImage, after: MetadataImage, records: Collection[MetadataRecord]) -> Iterator[str]:
    for record in records:
        if level_needed(record) > max(after.metadata_version, 1):
            yield f"level: {record} at metadata.version {before.metadata_version}"
    if any(isinstance(each, RegisterBrokerRecord | RegisterControllerRecord | FeatureLevelRecord) for each in records):
        for node in (*after.brokers.values(), *after.ledger.controllers.values()):
            if not understands(node.features, after.metadata_version):
                yield f"level: {node} does not understand metadata.version {after.metadata_version}"


def _shards(before: MetadataImage, after: MetadataImage, records: Collection[MetadataRecord]) -> Iterator[str]:
    kinds = ShardRecord | RegisterCoordinatorRecord | CoordinatorChangeRecord
    if not any(isinstance(each, kinds) for each in records):
        return
    new_lives = {each.coordinator_id for each in records if isinstance(each, RegisterCoordinatorRecord)}
    for key, shard in after.ledger.shards.items():
        old = before.ledger.shards.get(key)
        if shard.coordinator_id >= 0 and shard.coordinator_id not in after.ledger.coordinators:
            yield f"shards: {key} belongs to coordinator {shard.coordinator_id}, which does not exist"
        if old is None:
            continue
        changed_hands = shard.coordinator_id != old.coordinator_id or shard.coordinator_id in new_lives
        if changed_hands and shard.shard_epoch <= old.shard_epoch:
            yield f"shards: {key} went from {old} to {shard}, and {sorted(new_lives)} came"


class Promises:
    """The responses, as their callers received them."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}  # first -> end

    def gave_block(self, first: int, length: int) -> list[str]:
        end = first + length
        overlapping = [each for each in self._blocks.items() if each[0] < end and first < each[1]]
        self._blocks[first] = end
        return [f"unique: producer ids {first} to {end} overlap {other}" for other in overlapping]

    def answered(self, image: MetadataImage, coordinator_id: int, coordinator_epoch: int) -> list[str]:
        """Check a coordinator's heartbeat that was answered on this image."""
        known = image.ledger.coordinators.get(coordinator_id)
        if known is not None and known.coordinator_epoch == coordinator_epoch:
            return []
        return [f"zombie: coordinator {coordinator_id} of epoch {coordinator_epoch} was answered, and {known} is known"]


def check_ledger_end(image: MetadataImage, *, living_coordinators: Collection[int] | None = None) -> list[str]:
    """Check the state after all nodes were alive for a while. ``living_coordinators``: the coordinators with live
    processes."""
    problems = []
    for key in (*image.ledger.reassigning, *image.ledger.queued):
        partition = image.partition(*key)
        if partition is None or partition.leader >= 0:  # otherwise there is no leader to copy from
            problems.append(f"end: {key} still moves or waits: {partition}, {image.ledger.queued.get(key)}")
    takers = {each.broker_id for each in image.placeable_brokers()}
    for broker_id, broker in image.brokers.items():
        if not broker.draining:
            continue
        for topic, number, partition in image.partitions_on(broker_id):
            if partition.leader >= 0 and not takers <= set(partition.replicas):
                problems.append(f"end: drained broker {broker_id} has {topic.name}-{number}: {partition}")
    taking = {each.coordinator_id for each in image.ledger.coordinators.values() if not each.draining}
    gone = taking - set(taking if living_coordinators is None else living_coordinators)
    if gone:
        problems.append(f"end: coordinators {sorted(gone)} are gone, and still own shards")
    for name in SHARD_TOPICS:
        topic_or_none = image.topic(name)
        if topic_or_none is None or not taking:
            continue
        topic_id, count = topic_or_none.topic_id, len(topic_or_none.partitions)
        held = Counter(shard.coordinator_id for key, shard in image.ledger.shards.items() if key[0] == topic_id)
        counts = [held[each] for each in taking]
        if sum(counts) != count or max(counts) - min(counts) > 1:
            problems.append(f"end: shards of {name} are {dict(held)} of {count}, over {sorted(taking)}")
    return problems
