"""The delta between two independent images equals the delta of a replay."""

from __future__ import annotations

import random
import time

from headrace_core.metadata import (
    EMPTY_IMAGE,
    ImageBuilder,
    MetadataDelta,
    MetadataImage,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.metadata.snapshot import decode_snapshot, encode_snapshot
from tests.unit.metadata.any_history import any_history
from tests.worlds.waiting import check_spent


def from_snapshot(image: MetadataImage) -> MetadataImage:
    return decode_snapshot(b"".join(encode_snapshot(image, voters=(), timestamp_ms=0)))[0]


def checked_by_hand(old: MetadataImage, new: MetadataImage) -> dict[str, object]:
    """The changes that a delta must name, found by comparing everything."""
    removed = {
        topic_id
        for topic_id, topic in old.topics.items()
        if topic_id not in new.topics or len(new.topics[topic_id].partitions) < len(topic.partitions)
    }
    partitions = {}
    for topic_id, topic in new.topics.items():
        known = () if topic_id in removed or topic_id not in old.topics else old.topics[topic_id].partitions
        changed = {
            number
            for number, partition in enumerate(topic.partitions)
            if number >= len(known) or known[number] != partition
        }
        if changed or topic_id not in old.topics or topic_id in removed:
            partitions[topic_id] = changed
    return {
        "brokers": {b for b in {*old.brokers, *new.brokers} if old.brokers.get(b) != new.brokers.get(b)},
        "configs": {c for c in {*old.configs, *new.configs} if old.configs.get(c) != new.configs.get(c)},
        "removed": removed,
        "created": {topic_id for topic_id in new.topics if topic_id not in old.topics or topic_id in removed},
        "partitions": partitions,
    }


def test_it_names_exactly_what_differs(rng: random.Random) -> None:
    differences = rounds = 0
    while rounds < 25 or differences <= 10:  # some 25 histories differ in few partitions
        rounds += 1
        assert rounds < 1_000, "the histories hardly differ"
        records, new = any_history(rng, rng.randrange(2, 150))
        cut = rng.randrange(len(records))
        old = EMPTY_IMAGE.apply(records[:cut], cut, 1)
        later = from_snapshot(new)
        delta = MetadataDelta.between(old, later)
        assert (delta.from_offset, delta.next_offset) == (cut, len(records))
        wanted = checked_by_hand(old, later)
        assert delta.brokers == wanted["brokers"]
        assert delta.configs == wanted["configs"]
        assert set(delta.removed_topics) == wanted["removed"]
        assert delta.created_topics == wanted["created"]
        assert delta.partitions == wanted["partitions"]
        assert all(delta.removed_topics[each] is old.topics[each] for each in delta.removed_topics)
        differences += len(delta.partitions)
        assert MetadataDelta.between(new, later).empty, "an equal image differs"


def test_a_few_changes_among_a_hundred_thousand_partitions_are_found_at_once() -> None:
    builder = ImageBuilder(EMPTY_IMAGE)
    for number in range(1_000):
        topic_id = number.to_bytes(16, "big")
        builder.replay(TopicRecord(f"t{number}", topic_id))
        for partition in range(100):
            builder.replay(PartitionRecord(topic_id, partition, (1, 2), (1, 2), 1, 0, 0))
    old, _ = builder.finish(101_000, 1)
    changes = [PartitionChangeRecord(n.to_bytes(16, "big"), 7, 1, leader=2, leader_epoch=1) for n in (3, 500, 999)]
    new = old.apply(changes, 101_003)
    begun = time.thread_time()
    for _ in range(20):
        delta = MetadataDelta.between(old, new)
    check_spent(begun, 0.5)  # 20 times 0.3 ms on an idle machine; looking at all of them takes 20 ms
    assert delta.partitions == {n.to_bytes(16, "big"): {7} for n in (3, 500, 999)}
