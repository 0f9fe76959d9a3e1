"""What the internal topics are made with: ``__consumer_offsets``, whose partitions are the shards of groups, and
``__transaction_state``. Kafka's settings (GroupCoordinator.groupMetadataTopicConfigs, TransactionStateManager), with
one difference: where fewer brokers live than the replication factor says, there are as many replicas as brokers. Kafka
refuses, and a cluster of one broker has no groups until somebody has found the key.

Whoever makes one (FindCoordinator at first use, an operator by hand): what the request leaves open follows from here.
"""

from __future__ import annotations

from dataclasses import replace

from headrace_core.errors import InvalidPartitionsError
from headrace_core.metadata.shards import OFFSETS_TOPIC, SHARD_TOPICS

from .decision import ClusterSettings
from .requests import NewTopic


def completed(topic: NewTopic, settings: ClusterSettings, live_brokers: int) -> NewTopic:
    """``topic`` with what an internal topic is made with, where the request leaves it open; any other as it is."""
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
            factor = settings.offsets_topic_replication_factor
            if not is_offsets:
                factor = settings.transaction_state_log_replication_factor
            factor = max(min(factor, live_brokers), 1)
    replicas = len(next(iter(topic.assignments.values()), ())) if topic.assignments else factor
    configs = _offsets_configs(settings) if is_offsets else _transactions_configs(settings, replicas)
    return replace(
        topic,
        partitions=partitions,
        replication_factor=factor,
        configs={**configs, **{name.replace("_", "."): value for name, value in topic.configs.items()}},
    )


def check_may_grow(name: str) -> None:
    """The shard of a group follows from the number of shards: one more, and every group would look for its offsets
    where they are not. InvalidPartitionsError for such a topic."""
    if name in SHARD_TOPICS:
        raise InvalidPartitionsError(
            f"the number of partitions of {name} cannot be changed: each group and transactional id belongs to one of "
            "them by its hash, and would not find what it has written"
        )


def _offsets_configs(settings: ClusterSettings) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings.offsets_topic_segment_bytes),
    }


def _transactions_configs(settings: ClusterSettings, replicas: int) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min(settings.transaction_state_log_min_isr, max(replicas, 1))),
        "segment.bytes": str(settings.transaction_state_log_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
