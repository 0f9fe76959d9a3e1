"""What changed between two images, so that a broker with 5,000 partitions reacts to the three that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from .entities import ConfigResource, TopicImage
from .sorted_map import SortedMap

if TYPE_CHECKING:
    from .image import MetadataImage
    from .ledger import Ledger


K = TypeVar("K")
V = TypeVar("V")


class MetadataDelta(msgspec.Struct, frozen=True):
    """What changed between two images.

    ``partitions``: those new or changed, by topic id. ``removed_topics``: topics as they were, by id; a topic deleted
    and created anew under its name is in both. ``configs``: resources with any entry set or removed.
    ``coordinators``: those that came, changed or went. ``shards``: (topic id, partition) of those with a new owner or
    epoch, and of those that went with their topic.
    """

    from_offset: int
    next_offset: int
    brokers: frozenset[int] = frozenset()
    partitions: Mapping[bytes, frozenset[int]] = msgspec.field(default_factory=dict)
    created_topics: frozenset[bytes] = frozenset()
    removed_topics: Mapping[bytes, TopicImage] = msgspec.field(default_factory=dict)
    configs: frozenset[ConfigResource] = frozenset()
    coordinators: frozenset[int] = frozenset()
    shards: frozenset[tuple[bytes, int]] = frozenset()

    @property
    def empty(self) -> bool:
        """Nothing that anybody could react to; the offset may have moved."""
        return not (
            self.brokers or self.partitions or self.removed_topics or self.configs or self.coordinators or self.shards
        )

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> MetadataDelta:
        """What differs between two images of one cluster that were not made from each other by records: one of them was
        loaded from a snapshot. Only what really differs is named; tables that both share cost nothing."""
        partitions: dict[bytes, frozenset[int]] = {}
        created: set[bytes] = set()
        removed: dict[bytes, TopicImage] = {}
        for topic_id in sorted(SortedMap.of(old.topics).differing(SortedMap.of(new.topics))):
            before, after = old.topics.get(topic_id), new.topics.get(topic_id)
            if before is not None and (after is None or len(after.partitions) < len(before.partitions)):
                removed[topic_id] = before  # (partitions never become fewer: it would be another topic of that id)
                before = None
            if after is None:
                continue
            if before is None:
                created.add(topic_id)
                partitions[topic_id] = frozenset(range(len(after.partitions)))
            elif changed := _changed_partitions(before, after):
                partitions[topic_id] = changed
        return cls(
            from_offset=old.next_offset,
            next_offset=new.next_offset,
            brokers=frozenset(_differing(old.brokers, new.brokers)),
            partitions=partitions,
            created_topics=frozenset(created),
            removed_topics=removed,
            configs=frozenset(_differing(old.configs, new.configs)),
            coordinators=changed_coordinators(old.ledger, new.ledger),
            shards=changed_shards(old.ledger, new.ledger),
        )


def changed_coordinators(old: Ledger, new: Ledger) -> frozenset[int]:
    """Who came, changed or went."""
    return frozenset(_differing(old.coordinators, new.coordinators))


def changed_shards(old: Ledger, new: Ledger) -> frozenset[tuple[bytes, int]]:
    """Shards that came, changed hands or went."""
    return frozenset(_differing(old.shards, new.shards))


def _changed_partitions(before: TopicImage, after: TopicImage) -> frozenset[int]:
    known = before.partitions
    return frozenset(
        number
        for number, partition in enumerate(after.partitions)
        if number >= len(known) or (partition is not known[number] and partition != known[number])
    )


def _differing(old: Mapping[K, V], new: Mapping[K, V]) -> set[K]:
    """Keys with other values, or in one of the two only."""
    if old is new:
        return set()
    if not (isinstance(old, SortedMap) and isinstance(new, SortedMap)):
        return {key for key in {*old, *new} if old.get(key) != new.get(key)}
    return {key for key in old.differing(new) if old.get(key) != new.get(key)}
