"""The throttle of reassignments (KIP-73). The throttle uses the configuration keys that Kafka's tool sets on request,
and is set and removed together with the reassignments.

    leader.replication.throttled.rate      on each broker concerned: bytes per second that it sends
    follower.replication.throttled.rate    ... and that it fetches
    leader.replication.throttled.replicas  on each topic: the replicas that were there, as partition:broker
    follower.replication.throttled.replicas                the replicas that are added

The metadata image (``ledger.throttle``) records the keys that were set. The end of the last reassignment removes the
throttle's keys, as ``kafka-reassign-partitions --verify`` does; so does the deletion of its topic. A list of throttled
replicas with the value "*" was set by an operator and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace_core.metadata import (
    ConfigRecord,
    ConfigResourceType,
    MetadataImage,
    MetadataRecord,
    PartitionImage,
    ReassignmentThrottleRecord,
)

from .moves import Key

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LEADERS, _FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


@dataclass(frozen=True, slots=True)
class Copying:
    """The brokers that send and fetch copies while a partition moves."""

    senders: tuple[int, ...]
    fetchers: tuple[int, ...]

    @classmethod
    def of(cls, partition: PartitionImage) -> Copying:
        """The brokers that take part in the partition's reassignment."""
        return cls(tuple(each for each in partition.replicas if each not in partition.adding), partition.adding)


def follow(
    image: MetadataImage,
    *,
    begun: Mapping[Key, Copying],
    ended: Collection[Key] = (),
    is_last: bool = False,
    bytes_per_s: int | None = None,
) -> list[MetadataRecord]:
    """Configuration records for the reassignments that begin or end in one decision. ``is_last``: after the decision no
    reassignment is in progress or queued. ``bytes_per_s``: the new rate; 0 removes the throttle, None leaves it
    unchanged."""
    before = image.ledger.throttle
    rate = before.bytes_per_s if bytes_per_s is None else bytes_per_s
    if is_last:
        rate = 0
    if rate == before.bytes_per_s == 0:
        return []
    moving = {
        (topic_id, number): Copying.of(image.topics[topic_id].partitions[number])
        for topic_id, number in image.ledger.reassigning
        if (topic_id, number) not in ended
    }
    moving.update(begun)
    if rate == 0:
        records = _lists(image, {}, ended={*moving, *ended})
        records += _rates(image, before.broker_ids, None)
        return [*records, ReassignmentThrottleRecord(0)]
    brokers = {each for copying in moving.values() for each in (*copying.senders, *copying.fetchers)}
    brokers.update(before.broker_ids)
    records = _lists(image, moving if before.bytes_per_s == 0 else begun, ended=ended)
    records += _rates(image, sorted(brokers), rate)
    now = ReassignmentThrottleRecord(rate, tuple(sorted(brokers)))
    if (now.bytes_per_s, now.broker_ids) != (before.bytes_per_s, before.broker_ids):
        records.append(now)
    return records


def after_topics_deleted(image: MetadataImage) -> list[MetadataRecord]:
    """Configuration records that remove the throttle, if the deleted topics had all remaining reassignments. ``image``:
    the metadata without the deleted topics."""
    ledger = image.ledger
    return [] if ledger.reassigning or ledger.queued else follow(image, begun={}, is_last=True)


def _rates(image: MetadataImage, broker_ids: Iterable[int], rate: int | None) -> list[MetadataRecord]:
    value = None if rate is None else str(rate)
    return [
        ConfigRecord(int(ConfigResourceType.BROKER), str(broker_id), key, value)
        for broker_id in broker_ids
        for key in RATES
        if image.config(ConfigResourceType.BROKER, str(broker_id)).get(key) != value
    ]


def _lists(image: MetadataImage, begun: Mapping[Key, Copying], *, ended: Collection[Key]) -> list[MetadataRecord]:
    numbers: dict[bytes, set[int]] = {}
    entries: dict[bytes, dict[str, list[str]]] = {}
    for topic_id, number in (*begun, *ended):
        numbers.setdefault(topic_id, set()).add(number)
    for (topic_id, number), copying in begun.items():
        if not copying.fetchers:
            continue
        of_topic = entries.setdefault(topic_id, {_LEADERS: [], _FOLLOWERS: []})
        of_topic[_LEADERS] += [f"{number}:{each}" for each in copying.senders]
        of_topic[_FOLLOWERS] += [f"{number}:{each}" for each in copying.fetchers]
    records: list[MetadataRecord] = []
    for topic_id in numbers:
        name = image.topics[topic_id].name
        for key in (_LEADERS, _FOLLOWERS):
            text = image.config(ConfigResourceType.TOPIC, name).get(key)
            if text == "*":
                continue
            named = (text or "").split(",")
            stay = [each for each in named if each and int(each.split(":")[0]) not in numbers[topic_id]]
            after = ",".join(stay + entries.get(topic_id, {}).get(key, [])) or None
            if after != text:
                records.append(ConfigRecord(int(ConfigResourceType.TOPIC), name, key, after))
    return records
