"""Ledger records, and records that contradict them, as in a log with missing records."""

from __future__ import annotations

import pytest

from headrace_core.errors import CorruptLogError, UnsupportedVersionError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerDrainRecord,
    BrokerEndpoint,
    ClusterRecord,
    CoordinatorChangeRecord,
    CoordinatorState,
    FeatureLevelRecord,
    FeatureRange,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QueuedReassignment,
    QueuedReassignmentRecord,
    ReassignmentThrottleRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RegisterCoordinatorRecord,
    RemoveTopicRecord,
    ShardImage,
    ShardRecord,
    Throttle,
    TopicRecord,
    UnregisterBrokerRecord,
)
from headrace_core.metadata.features import level_needed, range_of, understands, what_forbids
from headrace_core.metadata.ledger import ledger_records

T, U = bytes([1] * 16), bytes([2] * 16)
ENDPOINTS = (BrokerEndpoint("internal", "h", 1),)
RANGE = (FeatureRange("metadata.version", 1, 2),)
BEFORE: list[MetadataRecord] = [
    ClusterRecord("c", 2),
    RegisterBrokerRecord(1, 1, T, (T,), ENDPOINTS),
    TopicRecord("t", T),
    PartitionRecord(T, 0, (1, 2), (1, 2), 1, 0, 0),
    PartitionRecord(T, 1, (1, 2, 3), (1, 2), 1, 0, 0, adding=(3,), removing=(2,)),
    ProducerIdsRecord(1, 1, 2_000),
    RegisterControllerRecord(3, T, RANGE),
    RegisterCoordinatorRecord(7, 7, U, ENDPOINTS, "r"),
    ShardRecord(T, 0, 7, 3),
    QueuedReassignmentRecord(T, 0, (2, 1), automatic=True),
    ReassignmentThrottleRecord(5, (1,)),
]


def image_of(*records: MetadataRecord) -> MetadataImage:
    return EMPTY_IMAGE.apply([*BEFORE, *records], len(BEFORE) + len(records))


def test_promises_are_kept_replaced_and_taken_back() -> None:
    ledger = image_of().ledger
    assert ledger.next_producer_id == 2_000
    assert list(ledger.controllers) == [3]
    assert ledger.coordinators[7].rack == "r"
    assert dict(ledger.shards) == {(T, 0): ShardImage(7, 3)}
    assert dict(ledger.reassigning) == {(T, 1): True}
    assert dict(ledger.queued) == {(T, 0): QueuedReassignment((2, 1), automatic=True)}
    assert ledger.throttle == Throttle(5, (1,))
    after = image_of(
        ProducerIdsRecord(1, 1, 3_000),
        CoordinatorChangeRecord(7, 7, int(CoordinatorState.DRAINING)),
        ShardRecord(T, 0, -1, 4),
        PartitionChangeRecord(T, 1, 1, replicas=(1, 3), adding=(), removing=()),
        QueuedReassignmentRecord(T, 0),
        ReassignmentThrottleRecord(0),
    ).ledger
    assert after.next_producer_id == 3_000
    assert after.coordinators[7].draining
    assert dict(after.shards) == {(T, 0): ShardImage(-1, 4)}
    assert (dict(after.reassigning), dict(after.queued), after.throttle) == ({}, {}, Throttle())
    assert not image_of(CoordinatorChangeRecord(7, 7, int(CoordinatorState.GONE))).ledger.coordinators
    assert image_of(RegisterCoordinatorRecord(7, 30, T, ENDPOINTS)).ledger.coordinators[7].coordinator_epoch == 30


def test_a_topic_takes_what_was_promised_about_it_along() -> None:
    ledger = image_of(RemoveTopicRecord(T)).ledger
    assert (dict(ledger.shards), dict(ledger.reassigning), dict(ledger.queued)) == ({}, {}, {})


def test_what_does_not_change_stays_the_same_object() -> None:
    image = image_of()
    assert image.apply([PartitionChangeRecord(T, 0, 1, leader=-1, leader_epoch=1)], 99).ledger is image.ledger


def test_a_drain_outlives_registrations_but_not_the_broker() -> None:
    image = image_of(BrokerDrainRecord(1, True), RegisterBrokerRecord(1, 20, U, (T,), ENDPOINTS, features=RANGE))
    assert image.brokers[1].draining
    assert image.brokers[1].features == RANGE
    assert image.placeable_brokers() == []
    after = image.apply([UnregisterBrokerRecord(1, 20), RegisterBrokerRecord(1, 30, U, (T,), ENDPOINTS)], 99)
    assert not after.brokers[1].draining


@pytest.mark.parametrize(
    "record",
    [
        ProducerIdsRecord(1, 1, 1_000),
        CoordinatorChangeRecord(7, 6, 1),
        CoordinatorChangeRecord(8, 8, 1),
        ShardRecord(T, 0, 7, 3),
        ShardRecord(T, 0, 8, 2),
        QueuedReassignmentRecord(T, 1),
        BrokerDrainRecord(9, True),
        UnregisterBrokerRecord(9, 1),
        UnregisterBrokerRecord(1, 2),
    ],
    ids=repr,
)
def test_a_record_that_contradicts_what_was_promised_is_damage(record: MetadataRecord) -> None:
    with pytest.raises(CorruptLogError, match="cannot be applied"):
        image_of(record)


def test_an_unknown_feature_is_not_read_over() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"feature else.where is finalized at level 4"):
        image_of(FeatureLevelRecord("else.where", 4))


def test_the_ledgers_records_make_it_again() -> None:
    image = image_of(CoordinatorChangeRecord(7, 7, int(CoordinatorState.DRAINING)))
    records = ledger_records(image.ledger, 2)
    base = EMPTY_IMAGE.apply(BEFORE[:5], 5)
    assert base.apply(records, 5 + len(records)).ledger == image.ledger
    assert ledger_records(image.ledger, 1) == []


def test_levels() -> None:
    assert [level_needed(record) for record in BEFORE] == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]
    assert level_needed(FeatureLevelRecord("metadata.version", 2)) == 1, "it is what raises the level"
    assert level_needed(PartitionChangeRecord(T, 0, 1, elr=(1,))) == 2
    assert level_needed(PartitionChangeRecord(T, 0, 1, elr=(), adding=())) == 1
    assert understands(RANGE, 2)
    assert not understands((), 2)
    assert understands((), 1)
    assert range_of(RANGE, "other") == FeatureRange("other", 0, 0)
    assert what_forbids(image_of(), 2) == []
    assert len(what_forbids(image_of(BrokerDrainRecord(1, True)), 1)) == 6
    plain = EMPTY_IMAGE.apply(BEFORE[:4], 4)
    assert what_forbids(plain, 1) == []
    assert what_forbids(plain.apply([PartitionChangeRecord(T, 0, 1, elr=(2,))], 5), 1) == [
        "eligible leader replicas (of topic t, perhaps of others)"
    ]
