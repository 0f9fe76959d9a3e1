"""The shard of a group or a transactional id, and its coordinator. Pure.

A shard is a partition of an internal topic. As in Kafka, so that its tools look in the right place: the partition is
``abs(key.hashCode()) % partitions``, with Java's hash of a string and Kafka's ``Utils.abs``, for which the smallest int
is 0.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import CoordinatorNotAvailableError
from .image import MetadataImage
from .ledger import CoordinatorImage

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
#: Shards of groups are partitions of the first, those of transactions of the second.
SHARD_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
#: Topics of the cluster itself, which clients only read: they may not create, delete, truncate or produce to them, nor
#: change their cleanup.policy; other settings are altered as those of any topic.
INTERNAL_TOPICS = SHARD_TOPICS


class ShardOwner(NamedTuple):
    """Coordinator of a shard, and the shard epoch."""

    shard: int
    shard_epoch: int
    coordinator: CoordinatorImage


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, as a signed int."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def shard_of(key: str, partitions: int) -> int:
    """The shard of a group id or a transactional id, among so many."""
    hashed = java_hash(key)
    return (0 if hashed == -0x8000_0000 else abs(hashed)) % partitions


def owner_of(image: MetadataImage, topic: str, key: str) -> ShardOwner:
    """The coordinator of ``key``, whose shards are partitions of ``topic``. CoordinatorNotAvailableError says why
    not."""
    shards = image.topic(topic)
    if shards is None:
        raise CoordinatorNotAvailableError(
            f"topic {topic} does not exist yet: the cluster creates it at first use; retry"
        )
    shard = shard_of(key, len(shards.partitions))
    found = image.ledger.shards.get((shards.topic_id, shard))
    coordinator = None if found is None else image.ledger.coordinators.get(found.coordinator_id)
    if found is None or coordinator is None:
        none = "" if image.ledger.coordinators else ": no coordinator is registered (headrace up --coordinators 1)"
        raise CoordinatorNotAvailableError(f"{topic}-{shard}, the shard of {key!r}, has no coordinator{none}; retry")
    return ShardOwner(shard, found.shard_epoch, coordinator)


def vacancy_of(image: MetadataImage, topic: str, key: str) -> tuple[int, int] | None:
    """The shard of ``key``, and the epoch since which it has no owner; None: it has one, or never had."""
    shards = image.topic(topic)
    if shards is None or not key:
        return None
    shard = shard_of(key, len(shards.partitions))
    found = image.ledger.shards.get((shards.topic_id, shard))
    return None if found is None or found.coordinator_id >= 0 else (shard, found.shard_epoch)
