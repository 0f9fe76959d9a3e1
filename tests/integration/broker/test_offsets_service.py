"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords (offsets.proto), over the wire."""

from __future__ import annotations

import pytest

from headrace_core import errors
from headrace_protos.v1 import offsets_pb2
from tests.worlds.broker_world import WAIT_S, batch


def delete_before(cluster, topic: str, offset: int, partition: int = 0):
    item = offsets_pb2.DeleteRecordsPartition(topic=topic, partition=partition, before_offset=offset)
    answer = cluster.offsets.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=[item]), timeout=WAIT_S)
    return answer.results[0]


def epoch_end(cluster, topic: str, epoch: int, current: int = -1):
    item = offsets_pb2.OffsetForLeaderEpochPartition(
        topic=topic, partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    request = offsets_pb2.OffsetForLeaderEpochRequest(partitions=[item])
    return cluster.offsets.OffsetForLeaderEpoch(request, timeout=WAIT_S).results[0]


def test_start_end_and_largest_timestamp_are_found(topic):
    orders = topic()
    empty = [orders.offset_of(special) for special in (-1, -2, -3)]
    assert [(found.offset, found.timestamp_ms) for found in empty] == [(0, -1), (0, -1), (-1, -1)]
    for timestamp_ms in (1000, 3000, 2000):
        orders.append(batch(b"a", b"b", timestamp_ms=timestamp_ms))
    found = [orders.offset_of(special) for special in (-1, -2, -3)]
    assert [(each.offset, each.timestamp_ms) for each in found] == [(6, -1), (0, -1), (2, 3000)]


def test_a_time_is_found_to_the_first_record_at_or_after_it(topic):
    orders = topic()
    for timestamp_ms in (1000, 2000, 3000):
        orders.append(batch(b"a", b"b", timestamp_ms=timestamp_ms))
    found = [orders.offset_of(timestamp_ms) for timestamp_ms in (0, 1000, 1001, 3000, 3001)]
    assert [(each.offset, each.timestamp_ms) for each in found] == [
        (0, 1000),
        (0, 1000),
        (2, 2000),
        (4, 3000),
        (-1, -1),
    ]
    assert [each.leader_epoch for each in found] == [orders.leader_epoch()] * 4 + [-1]


def test_a_time_that_means_nothing_is_refused(topic):
    assert topic().offset_of(-4).error.code == errors.InvalidRequestError.number


def test_questions_about_unknown_partitions_are_answered_one_by_one(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    items = [
        offsets_pb2.ListOffsetsPartition(topic=name, partition=0, timestamp_ms=-1, current_leader_epoch=epoch)
        for name, epoch in ((orders.name, -1), ("no-such-topic", -1), (orders.name, 99), (orders.name, 0))
    ]
    answer = cluster.offsets.ListOffsets(offsets_pb2.ListOffsetsRequest(partitions=items), timeout=WAIT_S)
    assert [result.error.code for result in answer.results] == [
        0,
        errors.UnknownTopicOrPartitionError.number,
        errors.UnknownLeaderEpochError.number,
        0,
    ]


def test_deleted_records_are_gone_for_readers_at_once(cluster, topic):
    orders = topic()
    for value in (b"a", b"b", b"c"):
        orders.produce(value)
    assert delete_before(cluster, orders.name, 2).low_watermark == 2
    assert orders.offset_of(-2).offset == 2
    assert orders.read(2) == [b"c"]
    assert delete_before(cluster, orders.name, 1).low_watermark == 2
    assert delete_before(cluster, orders.name, -1).low_watermark == 3
    assert orders.produce(b"d").log_start_offset == 3


@pytest.mark.parametrize("offset", [2, -2, 2**62])
def test_records_that_are_not_there_cannot_be_deleted(cluster, topic, offset):
    orders = topic()
    orders.produce(b"a")
    result = delete_before(cluster, orders.name, offset)
    assert (result.error.code, result.low_watermark) == (errors.OffsetOutOfRangeError.number, -1)


def test_a_deleted_prefix_stays_deleted_after_a_crash(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    for value in (b"a", b"b", b"c"):
        orders.produce(value)
    delete_before(cluster, "orders", 2)
    cluster.broker.kill()
    cluster.restart()
    assert (orders.offset_of(-2).offset, orders.read(2)) == (2, [b"c"])


def test_leader_epochs_end_where_the_next_one_begins(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    first = orders.leader_epoch()
    orders.produce(b"a")
    orders.produce(b"b")
    cluster.broker.terminate()
    cluster.restart()
    second = orders.leader_epoch()
    assert second > first
    assert (epoch_end(cluster, "orders", second).leader_epoch, epoch_end(cluster, "orders", second).end_offset) == (
        second,
        2,
    )
    orders.produce(b"c")
    ends = [epoch_end(cluster, "orders", epoch) for epoch in (first, second, second + 1)]
    assert [(end.leader_epoch, end.end_offset) for end in ends] == [(first, 2), (second, 3), (-1, -1)]
    assert epoch_end(cluster, "orders", first, current=first).error.code == errors.FencedLeaderEpochError.number
