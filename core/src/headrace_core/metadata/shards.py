"""The shard of a group or a transactional id, and its coordinator. Pure.

A shard is a partition of an internal topic. The shard of a key is the same as in Kafka, so that Kafka's tools look in
the right partition: ``abs(key.hashCode()) % partitions``. ``hashCode`` is Java's hash of a string, and ``abs`` is
Kafka's ``Utils.abs``, which maps the smallest int to 0. Transactional ids of exactly-once sinks, which Kafka does not
have, are an exception: such an id belongs to the shard of its sink (see sinks.py).
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import CoordinatorNotAvailableError, UnknownTopicOrPartitionError
from ..sinks import shard_key
from ..types import OFFSETS_TOPIC as OFFSETS_TOPIC
from ..types import TopicPartition, join_address
from .image import MetadataImage
from .ledger import CoordinatorImage

TRANSACTIONS_TOPIC = "__transaction_state"
#: Topics whose partitions are shards: the first topic for groups, the second topic for transactions.
SHARD_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
#: Internal topics of the cluster. Clients can read internal topics, and alter all of their settings except
#: cleanup.policy. Clients cannot create, delete or truncate internal topics, nor produce to them.
INTERNAL_TOPICS = SHARD_TOPICS


class ShardOwner(NamedTuple):
    """The coordinator that owns a shard, and the shard epoch."""

    shard: int
    shard_epoch: int
    coordinator: CoordinatorImage


def java_hash(text: str) -> int:
    """Compute Java's ``String.hashCode``: over UTF-16 code units, as a signed int."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def shard_of(key: str, partitions: int) -> int:
    """Return the shard of a group id or a transactional id, for a given number of shards."""
    hashed = java_hash(shard_key(key))
    return (0 if hashed == -0x8000_0000 else abs(hashed)) % partitions


def owner_of(image: MetadataImage, topic: str, key: str) -> ShardOwner:
    """Return the coordinator of ``key``, whose shard is a partition of ``topic``. Raises CoordinatorNotAvailableError,
    with the reason, if the shard has no coordinator."""
    shards = image.topic(topic)
    if shards is None:
        raise CoordinatorNotAvailableError(
            f"topic {topic} does not exist yet: the cluster creates it at first use; retry"
        )
    return owner_of_shard(
        image, TopicPartition(topic, shard_of(key, len(shards.partitions))), f", the shard of {key!r},"
    )


def owner_of_shard(image: MetadataImage, shard: TopicPartition, what: str = "") -> ShardOwner:
    """Return the coordinator of a shard; ``what`` describes the shard in errors. Raises UnknownTopicOrPartitionError,
    and CoordinatorNotAvailableError if the shard has no coordinator."""
    topic = image.topic(shard.topic)
    if topic is None or shard.partition >= len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"{shard} does not exist")
    found = image.ledger.shards.get((topic.topic_id, shard.partition))
    coordinator = None if found is None else image.ledger.coordinators.get(found.coordinator_id)
    if found is None or coordinator is None:
        none = "" if image.ledger.coordinators else ": no coordinator is registered (headrace up --coordinators 1)"
        raise CoordinatorNotAvailableError(f"{shard}{what} has no coordinator{none}; retry")
    return ShardOwner(shard.partition, found.shard_epoch, coordinator)


def address_of(coordinator: CoordinatorImage, listener: str) -> str:
    """Return host:port of a coordinator's listener. Raises CoordinatorNotAvailableError if the coordinator has no such
    listener."""
    for endpoint in coordinator.endpoints:
        if endpoint.listener == listener:
            return join_address(endpoint.host, endpoint.port)
    raise CoordinatorNotAvailableError(f"coordinator {coordinator.coordinator_id} has no listener {listener!r}; retry")


def vacancy_of(image: MetadataImage, topic: str, key: str) -> tuple[int, int] | None:
    """If the shard of ``key`` has lost its owner, return the shard and the shard epoch in which it lost the owner.
    Returns None if the shard has an owner or never had one."""
    shards = image.topic(topic)
    if shards is None or not key:
        return None
    shard = shard_of(key, len(shards.partitions))
    found = image.ledger.shards.get((shards.topic_id, shard))
    return None if found is None or found.coordinator_id >= 0 else (shard, found.shard_epoch)
