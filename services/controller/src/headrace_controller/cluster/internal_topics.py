"""Settings and rules of the internal topics: ``__consumer_offsets``, whose partitions are the shards of groups, and
``__transaction_state``. The settings are Kafka's (GroupCoordinator.groupMetadataTopicConfigs, TransactionStateManager),
with one difference. If fewer brokers are active than the replication factor, each active broker gets one replica of an
internal topic's partition. Kafka refuses to create an internal topic with too few brokers. Under Kafka's rule, a
cluster with one broker has no groups until an operator changes the replication factor.

A broker creates an internal topic when a client first looks for a coordinator (CreateInternalTopic); this module
completes the broker's request. Clients cannot create or delete internal topics, nor change their cleanup policy or
who sets their timestamps (``check_*``). The records of internal topics are the coordinators' state, and only compaction
may remove records. Their other settings can be altered, as in Kafka.

Internal topics that were created with fewer brokers get more replicas later (``growth``; balancing.py decides when).
Without ``growth`` a cluster that began with one broker would lose its groups with that broker's disk.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace_core.errors import InvalidConfigError, InvalidPartitionsError, InvalidTopicError
from headrace_core.metadata import BrokerImage, BrokerLoad, MetadataImage, TopicImage
from headrace_core.metadata.shards import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARD_TOPICS

from .decision import ClusterSettings
from .requests import NewTopic

_POLICY, _COMPACT = "cleanup.policy", "compact"
_TIMESTAMPS, _CREATE_TIME = "message.timestamp.type", "CreateTime"
Key = tuple[bytes, int]  #: (topic id, partition number)


def completed(topic: NewTopic, settings: ClusterSettings, live_brokers: int) -> NewTopic:
    """Fill in the settings of a request that creates an internal topic; other requests are returned unchanged."""
    if topic.name not in SHARD_TOPICS:
        return topic
    is_offsets = topic.name == OFFSETS_TOPIC
    partitions, factor = topic.partitions, topic.replication_factor
    if not topic.assignments:
        if partitions in (-1, 0):
            partitions = settings.offsets_topic_num_partitions
            if not is_offsets:
                partitions = settings.transaction_state_log_num_partitions
        if factor in (-1, 0):
            factor = max(min(_factor(settings, topic.name), live_brokers), 1)
    replicas = len(next(iter(topic.assignments.values()), ())) if topic.assignments else factor
    configs = _offsets_configs(settings) if is_offsets else _transactions_configs(settings, replicas)
    return replace(
        topic,
        partitions=partitions,
        replication_factor=factor,
        configs={**configs, **{name.replace("_", "."): value for name, value in topic.configs.items()}},
    )


def check_may_create(name: str, *, internal: bool) -> None:
    """Raise InvalidTopicError if a client requests an internal topic, or a broker requests a topic that is not
    internal."""
    if internal and name not in INTERNAL_TOPICS:
        raise InvalidTopicError(
            f'cannot create topic "{name[:249]}" as an internal topic: only coordinators\' topics are internal'
        )
    if not internal and name in INTERNAL_TOPICS:
        raise InvalidTopicError(
            f'cannot create topic "{name}": it is internal; the cluster creates it when a client first looks for a '
            "coordinator"
        )


def check_may_delete(name: str) -> None:
    """Raise InvalidTopicError for an internal topic."""
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(
            f'cannot delete topic "{name}": it is internal, and the coordinators would lose their groups; delete '
            "single groups instead (`headrace groups delete`)"
        )


def check_policy(name: str, changes: Mapping[str, str | None]) -> None:
    """Raise InvalidConfigError if an internal topic's cleanup.policy would no longer be only "compact", or if its
    message.timestamp.type would be LogAppendTime, which has no effect there (``LogConfig.for_coordinators``).
    ``changes``: the configuration entries that the request sets; the value None removes an entry. Setting "compact" or
    CreateTime is allowed, because it repairs an entry that was changed."""
    if name in INTERNAL_TOPICS and changes.get(_POLICY, _COMPACT) != _COMPACT:
        raise InvalidConfigError(
            f"{_POLICY} cannot be changed: {name} is internal, and deleting its records by age or size would lose "
            f"groups; leave it at {_COMPACT}"
        )
    if name in INTERNAL_TOPICS and changes.get(_TIMESTAMPS) not in (None, _CREATE_TIME):
        raise InvalidConfigError(
            f"{_TIMESTAMPS} cannot be changed: {name} is internal, and its timestamps are the coordinators'; leave it "
            f"at {_CREATE_TIME}"
        )


def check_may_grow(name: str) -> None:
    """Raise InvalidPartitionsError for a topic of shards. A group's shard depends on the number of partitions, so one
    more partition would assign every group to a wrong shard."""
    if name in SHARD_TOPICS:
        raise InvalidPartitionsError(
            f"the number of partitions of {name} cannot be changed: each id is hashed to a partition, so groups or "
            "transactional ids would lose their state"
        )


def growth(image: MetadataImage, settings: ClusterSettings, moves_max: int) -> list[tuple[Key, tuple[int, ...]]]:
    """Partitions of internal topics that have fewer replicas than configured, although brokers for more replicas are
    active. The result has the new replica list of each such partition, with the present replicas included. Partitions
    with a reassignment in progress or queued are left out of the result. A call of ``growth`` takes some microseconds
    if no replica is missing."""
    brokers = image.placeable_brokers()
    found: list[tuple[Key, tuple[int, ...]]] = []
    for name in SHARD_TOPICS:
        topic = image.topic(name)
        if topic is None:
            continue
        wanted = min(_factor(settings, name), len(brokers))
        lacking = [number for number, partition in enumerate(topic.partitions) if len(partition.replicas) < wanted]
        if not lacking:
            continue
        placing = _Placing(image, brokers, topic)
        for number in lacking[: moves_max - len(found)]:
            key = topic.topic_id, number
            if key not in image.ledger.reassigning and key not in image.ledger.queued:
                found.append((key, placing.extended(topic.partitions[number].replicas, wanted)))
    return found


class _Placing:
    """Chooses additional replicas for partitions of one topic. Each additional replica is placed in a rack without a
    replica of the partition, if there is such a rack. Among the possible brokers, the broker with the fewest replicas
    of the topic is chosen, then the broker with the fewest replicas in all."""

    def __init__(self, image: MetadataImage, brokers: Sequence[BrokerImage], topic: TopicImage) -> None:
        self._racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
        self._brokers = [broker.broker_id for broker in brokers]
        self._of_topic = Counter(replica for partition in topic.partitions for replica in partition.replicas)
        self._of_all = Counter({each: image.loads.get(each, BrokerLoad()).replicas for each in self._brokers})

    def extended(self, replicas: tuple[int, ...], wanted: int) -> tuple[int, ...]:
        while len(replicas) < wanted:  # (some broker has no replica of the partition yet)
            taken = {self._racks.get(each) for each in replicas} - {None}
            others = [each for each in self._brokers if each not in replicas]
            best = min(others, key=functools.partial(self._order, taken))
            self._of_topic[best] += 1
            self._of_all[best] += 1
            replicas = (*replicas, best)
        return replicas

    def _order(self, taken: set[str | None], broker_id: int) -> tuple[bool, int, int, int]:
        in_vain = self._racks[broker_id] in taken
        return in_vain, self._of_topic[broker_id], self._of_all[broker_id], broker_id


def may_grow_to(image: MetadataImage, key: Key, planned: tuple[int, ...], targets: tuple[int, ...]) -> bool:
    """Whether the reassignment can come from ``growth``: it adds replicas to a partition of an internal topic, and
    keeps all present replicas."""
    return image.topics[key[0]].name in SHARD_TOPICS and len(targets) > len(planned) and set(planned) <= set(targets)


def _factor(settings: ClusterSettings, name: str) -> int:
    if name == OFFSETS_TOPIC:
        return settings.offsets_topic_replication_factor
    return settings.transaction_state_log_replication_factor


def _offsets_configs(settings: ClusterSettings) -> dict[str, str]:
    return {
        _POLICY: _COMPACT,
        "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }


def _transactions_configs(settings: ClusterSettings, replicas: int) -> dict[str, str]:
    return {
        _POLICY: _COMPACT,
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min(settings.transaction_state_log_min_isr, max(replicas, 1))),
        "segment.bytes": str(settings.transaction_state_log_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
