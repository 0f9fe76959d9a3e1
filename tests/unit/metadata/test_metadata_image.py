"""The metadata image: copy on write, deltas, and replay in steps of any size."""

from __future__ import annotations

import random
import time

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    UNASSIGNED_DIRECTORY,
    BrokerChangeRecord,
    BrokerEndpoint,
    BrokerLoad,
    ClusterRecord,
    ConfigRecord,
    ConfigResourceType,
    ImageBuilder,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from tests.worlds.waiting import check_spent

A, B = b"a" * 16, b"b" * 16


def partition(topic_id: bytes, number: int, *replicas: int) -> PartitionRecord:
    return PartitionRecord(topic_id, number, replicas, replicas, replicas[0], 0, 0)


def broker(broker_id: int, epoch: int) -> RegisterBrokerRecord:
    endpoint = BrokerEndpoint("client", "127.0.0.1", 9095)
    return RegisterBrokerRecord(broker_id, epoch, b"i" * 16, (bytes([broker_id]) * 16,), (endpoint,), "r1")


def image_of(*records: MetadataRecord) -> MetadataImage:
    return EMPTY_IMAGE.apply(records, len(records), 1)


def test_a_topic_has_the_partitions_and_configs_of_its_records() -> None:
    image = image_of(
        ClusterRecord("c", 1),
        TopicRecord("t", A),
        partition(A, 0, 1, 2),
        partition(A, 1, 2, 1),
        ConfigRecord(1, "t", "retention.ms", "5"),
    )
    topic = image.topic("t")
    assert topic is not None
    assert [p.replicas for p in topic.partitions] == [(1, 2), (2, 1)]
    assert topic.replication_factor == 2
    assert image.config(ConfigResourceType.TOPIC, "t") == {"retention.ms": "5"}
    assert image.loads == {1: BrokerLoad(2, 1), 2: BrokerLoad(2, 1)}
    assert (image.cluster_id, image.next_offset, image.epoch) == ("c", 5, 1)
    assert image.partition(A, 2) is None
    assert image.partition(B, 0) is None


def test_an_older_image_does_not_see_later_changes() -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1))
    after = before.apply([PartitionChangeRecord(A, 0, 1, leader=-1, leader_epoch=1), broker(1, 3)], 4)
    first, second = before.partition(A, 0), after.partition(A, 0)
    assert first is not None
    assert second is not None
    assert (first.leader, first.leader_epoch) == (1, 0)
    assert (second.leader, second.leader_epoch, second.isr) == (-1, 1, (1,))
    assert before.brokers == {}


def test_what_did_not_change_is_shared() -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1), TopicRecord("u", B), partition(B, 0, 1))
    after = before.apply([PartitionChangeRecord(A, 0, 1, leader=-1, leader_epoch=1)], 5)
    assert after.topics[B] is before.topics[B]
    assert after.topic_ids is before.topic_ids
    assert after.brokers is before.brokers
    assert after.loads is before.loads


def test_the_delta_names_what_changed_and_nothing_else() -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1), partition(A, 1, 1), broker(1, 3))
    _, delta = before.apply_with_delta(
        [
            BrokerChangeRecord(1, 3, fenced=False),
            PartitionChangeRecord(A, 1, 1, leader=-1, leader_epoch=1),
            TopicRecord("u", B),
            partition(B, 0, 1),
            ConfigRecord(2, "", "log.retention.ms", "7"),
        ],
        9,
    )
    assert delta.partitions == {A: {1}, B: {0}}
    assert delta.created_topics == {B}
    assert delta.brokers == {1}
    assert delta.configs == {(ConfigResourceType.BROKER, "")}
    assert (delta.from_offset, delta.next_offset) == (4, 9)
    assert not delta.empty


def test_a_deleted_topic_is_in_the_delta_as_it_was() -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1), ConfigRecord(1, "t", "retention.ms", "5"))
    after, delta = before.apply_with_delta([RemoveTopicRecord(A)], 4)
    assert delta.removed_topics == {A: before.topics[A]}
    assert delta.partitions == {}
    assert after.topic("t") is None
    assert after.configs == {}
    assert after.loads == {}


def test_a_topic_that_came_and_went_in_one_step_is_in_no_delta() -> None:
    _, delta = EMPTY_IMAGE.apply_with_delta([TopicRecord("t", A), partition(A, 0, 1), RemoveTopicRecord(A)], 3)
    assert delta.empty


def test_a_topic_deleted_and_created_anew_is_removed_and_created() -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1))
    after, delta = before.apply_with_delta([RemoveTopicRecord(A), TopicRecord("t", B), partition(B, 0, 1)], 5)
    assert set(delta.removed_topics) == {A}
    assert delta.created_topics == {B}
    assert after.topic_ids == {"t": B}


def test_a_registration_replaces_the_earlier_one_and_fences() -> None:
    before = image_of(broker(1, 0), BrokerChangeRecord(1, 0, fenced=False))
    assert before.brokers[1].active
    after = before.apply([broker(1, 2)], 3)
    assert (after.brokers[1].broker_epoch, after.brokers[1].fenced) == (2, True)
    assert after.active_brokers() == []


def test_eligible_replicas_and_a_reassignment_are_replayed_and_stay_until_they_are_changed() -> None:
    first = PartitionRecord(A, 0, (1, 2, 3), (1,), 1, 0, 0, elr=(2,), last_known_elr=(3,), adding=(3,), removing=(1,))
    image = image_of(TopicRecord("t", A), first)

    def change(epoch: int, **fields: object) -> tuple[object, ...]:
        nonlocal image
        image = image.apply([PartitionChangeRecord(A, 0, epoch, **fields)], image.next_offset + 1)  # type: ignore[arg-type]
        now = image.partition(A, 0)
        assert now is not None
        return now.elr, now.last_known_elr, now.adding, now.removing, now.recovering

    assert change(1, leader=-1, leader_epoch=1) == ((2,), (3,), (3,), (1,), False)
    assert change(2, elr=(), recovering=True) == ((), (3,), (3,), (1,), True)
    assert change(3, last_known_elr=(), adding=(), removing=()) == ((), (), (), (), True)
    assert change(4, recovering=False) == ((), (), (), (), False)


def test_a_flush_that_was_weakened_once_is_remembered_for_good() -> None:
    """Records that were acknowledged while the setting was weaker may not be on disk, even if the setting has changed
    again (KIP-966)."""
    image = image_of(
        TopicRecord("t", A), partition(A, 0, 1), TopicRecord("u", B), ConfigRecord(1, "u", "log.flush", "commit")
    )
    assert [image.topics[each].flush_weakened for each in (A, B)] == [False, False]
    image = image.apply([ConfigRecord(1, "t", "log.flush", "os"), partition(A, 1, 1)], 6)
    image = image.apply([ConfigRecord(1, "t", "log.flush", None)], 7)
    assert [image.topics[each].flush_weakened for each in (A, B)] == [True, False]
    assert len(image.topics[A].partitions) == 2
    assert not image.flush_weakened
    image = image.apply([ConfigRecord(2, "", "log.flush", "interval"), ConfigRecord(2, "", "log.flush", "commit")], 9)
    assert image.flush_weakened


@pytest.mark.parametrize(
    "record",
    [
        partition(B, 0, 1),
        partition(A, 3, 1),
        PartitionChangeRecord(A, 7, 1),
        PartitionChangeRecord(B, 0, 1),
        RemoveTopicRecord(B),
        TopicRecord("t", B),
        BrokerChangeRecord(9, 0, fenced=False),
        BrokerChangeRecord(1, 999, fenced=False),
    ],
    ids=repr,
)
def test_a_record_that_cannot_follow_means_a_damaged_log(record: MetadataRecord) -> None:
    before = image_of(TopicRecord("t", A), partition(A, 0, 1), broker(1, 2))
    with pytest.raises(CorruptLogError, match="damaged"):
        before.apply([record], 4)


def test_replay_gives_the_same_image_however_it_is_cut(rng: random.Random) -> None:
    records = _random_history(rng, 400)
    whole = EMPTY_IMAGE.apply(records, len(records), 3)
    image, at = EMPTY_IMAGE, 0
    while at < len(records):
        step = rng.randint(1, 9)
        image = image.apply(records[at : at + step], min(at + step, len(records)), 3)
        at += step
    assert image == whole


def test_five_thousand_topics_are_changed_one_by_one_in_under_a_second() -> None:
    builder = ImageBuilder(EMPTY_IMAGE)
    for number in range(5_000):
        topic_id = number.to_bytes(16, "big")
        builder.replay(TopicRecord(f"t{number}", topic_id))
        builder.replay(partition(topic_id, 0, 1))
    image, _ = builder.finish(10_000, 1)
    begun = time.thread_time()
    for number in range(500):
        change = PartitionChangeRecord(number.to_bytes(16, "big"), 0, 1, leader=-1, leader_epoch=1)
        image = image.apply([change], image.next_offset + 1)
    check_spent(begun, 1.0)  # about 0.03 s on an idle machine
    assert image.partition_count() == 5_000


def _random_history(rng: random.Random, count: int) -> list[MetadataRecord]:
    """Records that can follow each other in a log."""
    records: list[MetadataRecord] = [ClusterRecord("c", 1)]
    topics: dict[bytes, int] = {}
    names: dict[bytes, str] = {}
    brokers: dict[int, int] = {}
    while len(records) < count:
        kind = rng.randrange(7)
        if kind == 0:
            topic_id = rng.randbytes(16)
            names[topic_id] = f"t{len(records)}"
            topics[topic_id] = 0
            records.append(TopicRecord(names[topic_id], topic_id))
        elif kind == 1 and topics:
            topic_id = rng.choice(list(topics))
            records.append(partition(topic_id, topics[topic_id], *rng.sample(range(1, 6), rng.randint(1, 3))))
            topics[topic_id] += 1
        elif kind == 2 and any(topics.values()):
            topic_id = rng.choice([t for t, n in topics.items() if n])
            replicas = tuple(rng.sample(range(1, 6), 2)) if rng.random() < 0.3 else None
            number = rng.randrange(topics[topic_id])
            records.append(PartitionChangeRecord(topic_id, number, 5, leader=2, leader_epoch=4, replicas=replicas))
        elif kind == 3 and topics and rng.random() < 0.3:
            topic_id = rng.choice(list(topics))
            del topics[topic_id]
            records.append(RemoveTopicRecord(topic_id))
        elif kind == 4:
            broker_id = rng.randint(1, 5)
            brokers[broker_id] = len(records)
            records.append(broker(broker_id, len(records)))
        elif kind == 5 and brokers:
            broker_id = rng.choice(list(brokers))
            records.append(BrokerChangeRecord(broker_id, brokers[broker_id], fenced=rng.random() < 0.5))
        elif kind == 6 and topics:
            name = names[rng.choice(list(topics))]
            records.append(ConfigRecord(1, name, rng.choice("xyz"), rng.choice(["1", "2", None])))
    return records


def test_replicas_of_before_there_were_directories_are_unassigned() -> None:
    """A log that an older version wrote and that this version continues."""
    old = image_of(TopicRecord("t", A), partition(A, 0, 1, 2))
    assert old.topics[A].partitions[0].directories == (UNASSIGNED_DIRECTORY,) * 2
    new = old.apply([PartitionChangeRecord(A, 0, 1, directories=(b"x" * 16, UNASSIGNED_DIRECTORY))], 3)
    assert new.topics[A].partitions[0].directories == (b"x" * 16, UNASSIGNED_DIRECTORY)


def test_replicas_that_stay_keep_their_directories() -> None:
    image = image_of(TopicRecord("t", A), PartitionRecord(A, 0, (1, 2), (1, 2), 1, 0, 0, (b"x" * 16, b"y" * 16)))
    changed = image.apply([PartitionChangeRecord(A, 0, 1, replicas=(2, 3))], 3).topics[A].partitions[0]
    assert changed.directories == (b"y" * 16, UNASSIGNED_DIRECTORY)
    assert (changed.directory_of(2), changed.directory_of(1)) == (b"y" * 16, UNASSIGNED_DIRECTORY)


def test_directories_that_do_not_fit_the_replicas_are_damage() -> None:
    with pytest.raises(CorruptLogError, match="2 replicas are listed with 1 directories"):
        image_of(TopicRecord("t", A), PartitionRecord(A, 0, (1, 2), (1, 2), 1, 0, 0, (b"x" * 16,)))


def test_a_broker_whose_directory_failed_has_the_others() -> None:
    both = (b"x" * 16, b"y" * 16)
    registered = RegisterBrokerRecord(
        1, 0, b"i" * 16, both, (BrokerEndpoint("client", "h", 1),), offline_directories=(A,)
    )
    image = image_of(registered, BrokerChangeRecord(1, 0, fenced=False, offline_directories=(A, both[0])))
    found = image.brokers[1]
    assert found.online_directories == both[1:]
    assert [found.has_online(each) for each in (*both, A, B, UNASSIGNED_DIRECTORY)] == [False, True, False, False, True]
    assert image.apply([BrokerChangeRecord(1, 0, fenced=True)], 3).brokers[1].offline_directories == (A, both[0])
