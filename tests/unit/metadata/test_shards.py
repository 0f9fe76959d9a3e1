"""A group's shard is the one that Kafka's tools compute; the metadata names its owner."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import CoordinatorNotAvailableError, InvalidRequestError
from headrace_core.membership.metadata_view import MetadataView, concerns
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    ConfigRecord,
    CoordinatorChangeRecord,
    CoordinatorState,
    MetadataDelta,
    MetadataImage,
    MetadataRecord,
    PartitionRecord,
    RegisterCoordinatorRecord,
    RemoveTopicRecord,
    ShardRecord,
    TopicRecord,
)
from headrace_core.metadata.shards import OFFSETS_TOPIC, java_hash, owner_of, shard_of
from headrace_core.sinks import SinkTransaction, parse_sink_transaction, sink_id
from headrace_protos.v1 import common_pb2, metadata_pb2

TOPIC = b"offsets-topic-id"
ENDPOINTS = (BrokerEndpoint("client", "c.example", 9090), BrokerEndpoint("internal", "10.0.0.9", 9190))


@pytest.mark.parametrize(
    ("text", "hashed"),
    [  # the result of a JVM
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("Hello, World!", 1_498_789_909),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("\U0001f600", 1_772_899),
    ],
)
def test_hashes_are_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_the_smallest_hash_has_a_shard_too() -> None:
    """Java's Math.abs would return a negative number, and Kafka's Utils.abs returns 0."""
    assert shard_of("polygenelubricants", 50) == 0
    assert shard_of("hello", 50) == 22


@given(st.text(), st.integers(1, 1000))
def test_every_key_has_a_shard(key: str, partitions: int) -> None:
    assert 0 <= shard_of(key, partitions) < partitions
    if key.isascii():
        value = 0
        for character in key:
            value = (value * 31 + ord(character)) % 2**32
        signed = value - 2**32 if value >= 2**31 else value
        assert java_hash(key) == signed


def partition(number: int, topic_id: bytes = TOPIC) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id, partition=number, replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0
    )


def made(*more: MetadataRecord, shards: int = 4) -> MetadataImage:
    return EMPTY_IMAGE.apply([TopicRecord(OFFSETS_TOPIC, TOPIC), *map(partition, range(shards)), *more], 10)


def registered(coordinator_id: int, epoch: int = 5) -> RegisterCoordinatorRecord:
    return RegisterCoordinatorRecord(coordinator_id, epoch, bytes(15) + b"\x01", ENDPOINTS, "rack-a")


def found(image: MetadataImage, *keys: str) -> list[metadata_pb2.CoordinatorOfKey]:
    request = metadata_pb2.FindCoordinatorRequest(keys=keys)
    return list(MetadataView().find_coordinators(image, request).coordinators)


def test_the_owner_of_a_groups_shard_is_found_with_its_address_and_epoch() -> None:
    shard = shard_of("orders", 4)
    image = made(registered(7), ShardRecord(TOPIC, shard, 7, 3))
    (answer,) = found(image, "orders")
    assert (answer.shard, answer.coordinator_id, answer.shard_epoch) == (shard, 7, 3)
    assert (answer.host, answer.port) == ("c.example", 9090)
    assert owner_of(image, OFFSETS_TOPIC, "orders").coordinator.coordinator_id == 7


def test_what_is_missing_is_said_of_each_key_alone() -> None:
    shard = shard_of("orders", 4)
    image = made(registered(7), ShardRecord(TOPIC, shard, 7, 3))
    other = next(key for key in map(str, range(50)) if shard_of(key, 4) != shard)
    sound, unowned, empty = found(image, "orders", other, "")
    assert not sound.error.code
    assert unowned.error.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE
    assert f"{OFFSETS_TOPIC}-{shard_of(other, 4)}, the shard of {other!r}, has no coordinator" in unowned.error.message
    assert (unowned.shard, unowned.coordinator_id) == (-1, -1)
    assert f"{OFFSETS_TOPIC}-{shard_of('', 4)}, the shard of ''" in empty.error.message, "old clients' empty group id"
    with pytest.raises(CoordinatorNotAvailableError, match="creates it at first use"):
        owner_of(EMPTY_IMAGE, OFFSETS_TOPIC, "orders")
    with pytest.raises(CoordinatorNotAvailableError, match="no coordinator is registered"):
        owner_of(made(), OFFSETS_TOPIC, "orders")


def test_an_owner_that_is_gone_is_nobody() -> None:
    gone = CoordinatorChangeRecord(7, 5, int(CoordinatorState.GONE))
    image = made(registered(7), *(ShardRecord(TOPIC, number, 7, 3) for number in range(4)), gone)
    (answer,) = found(image, "orders")
    assert answer.error.code == common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE


def test_strange_types_are_refused() -> None:
    view = MetadataView()
    strange = metadata_pb2.FindCoordinatorRequest.FromString(b"\x08\x05")
    with pytest.raises(InvalidRequestError, match="coordinator type 5"):
        view.find_coordinators(made(), strange)


def test_metadata_shows_who_owns_each_shard_and_follows_when_it_changes_hands() -> None:
    view = MetadataView()
    request = metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC])

    def owners(image: MetadataImage) -> list[tuple[int, int]]:
        (topic,) = asyncio.run(view.response(image, request, controller_id=1)).topics
        return [(each.coordinator_id, each.shard_epoch) for each in topic.partitions]

    image = made(registered(7), ShardRecord(TOPIC, 1, 7, 3))
    assert owners(image) == [(-1, 0), (7, 3), (-1, 0), (-1, 0)]
    image = image.apply([ShardRecord(TOPIC, 1, -1, 4), ShardRecord(TOPIC, 2, 7, 1)], 12)
    assert owners(image) == [(-1, 0), (-1, 4), (7, 1), (-1, 0)]
    answer = asyncio.run(view.response(image, request, controller_id=1))
    (coordinator,) = answer.coordinators
    assert (coordinator.coordinator_id, coordinator.host, coordinator.port) == (7, "c.example", 9090)
    assert (coordinator.rack, coordinator.draining) == ("rack-a", False)
    draining = image.apply([CoordinatorChangeRecord(7, 5, int(CoordinatorState.DRAINING))], 13)
    assert asyncio.run(view.response(draining, request, controller_id=1)).coordinators[0].draining


def test_a_topic_of_no_shards_says_nothing_of_coordinators() -> None:
    plain = b"another-topic-id"
    image = made(TopicRecord("orders", plain)).apply([partition(0, plain)], 20)
    request = metadata_pb2.MetadataRequest(topics=["orders"])
    (topic,) = asyncio.run(MetadataView().response(image, request, controller_id=1)).topics
    assert not topic.partitions[0].HasField("coordinator_id")


def test_a_delta_names_the_coordinators_and_shards_that_changed() -> None:
    before = made(registered(7), ShardRecord(TOPIC, 1, 7, 3), ShardRecord(TOPIC, 2, 7, 3))
    after, delta = before.apply_with_delta([registered(8, 6), ShardRecord(TOPIC, 1, 8, 4)], 12, 1)
    assert (delta.coordinators, delta.shards) == ({8}, {(TOPIC, 1)})
    assert not delta.empty
    between = MetadataDelta.between(before, after)
    assert (between.coordinators, between.shards) == (delta.coordinators, delta.shards)
    _, removed = after.apply_with_delta([RemoveTopicRecord(TOPIC)], 13, 1)
    assert removed.shards == {(TOPIC, 1), (TOPIC, 2)}
    _, other = after.apply_with_delta([ConfigRecord(1, "", "log.retention.ms", "5")], 13, 1)
    assert not other.shards
    assert not other.coordinators


def test_a_watch_of_the_shards_topic_hears_of_owners_and_others_do_not() -> None:
    before = made(registered(7))
    after, delta = before.apply_with_delta([ShardRecord(TOPIC, 1, 7, 4)], 12, 1)
    assert concerns(metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]), after, delta)
    assert not concerns(metadata_pb2.MetadataRequest(topics=["orders"]), after, delta)
    came, delta = after.apply_with_delta([registered(8)], 13, 1)
    assert concerns(metadata_pb2.MetadataRequest(), came, delta), "its address is in every answer"


def test_a_sink_and_its_transactions_have_one_shard() -> None:
    sink = sink_id("queries/7 é", "orders")
    ids = [str(SinkTransaction(sink, batch, 0, partition, f"{batch:x}")) for batch in range(5) for partition in (0, 9)]
    assert {shard_of(each, 50) for each in ids} == {shard_of(sink, 50)}
    assert [str(parse_sink_transaction(each)) for each in ids] == ids
    assert parse_sink_transaction(ids[-1]) == (sink, 4, 0, 9, "4")
    assert parse_sink_transaction(ids[0]).query == "queries/7 é"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other",
    [
        "orders",
        "__headrace_sink/q/t",
        "__headrace_sink/q/t/1/0/3",
        "__headrace_sink/q/t/1/0/3/a/b",
        "__headrace_sink/q/t/-1/0/3/a",
        "__headrace_sink/q/t/1/x/3/a",
        f"__headrace_sink/q/t/1/0/{'9' * 19}/a",
        "x__headrace_sink/q/t/1/0/3/a",
    ],
)
def test_other_ids_have_the_shard_that_kafka_says(other: str) -> None:
    assert parse_sink_transaction(other) is None
    assert shard_of(other, 2**31 - 1) == abs(java_hash(other)) % (2**31 - 1)
