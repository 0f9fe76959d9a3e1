"""Three brokers in three racks: consumers read from the broker in their rack, and replicas that are far behind catch up
without delaying other replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace_protos.v1 import admin_pb2, fetch_pb2_grpc
from tests.worlds.broker_world import Node, Stream, fetch_partition, fetch_request, values_of
from tests.worlds.fleet_world import LONG_S, Fleet, Load, ReplicatedTopic
from tests.worlds.waiting import until

#: A lag that is well above the largest lag of a replica on the live stream.
FAR_BEHIND_BYTES = 24 * 1024 * 1024


class RackedFleet(Fleet):
    """Broker n is in rack n."""

    def _node(self, broker_id: int) -> Node:
        shared, self._keys = self._keys, {**self._keys, "broker.rack": f"rack-{broker_id}"}
        try:
            return super()._node(broker_id)
        finally:
            self._keys = shared


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    keys = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with RackedFleet(tmp_path_factory.mktemp("racks"), **keys) as running:
        yield running
        for node in running.brokers.values():
            assert "Traceback" not in node.log(), node.log()[-4_000:]


def fetch_from(topic: ReplicatedTopic, broker_id: int, offset: int, rack: str) -> Any:
    """Return the first answer with content to a fetch with a rack."""
    request = fetch_request(1, fetch_partition(topic.name, offset))
    request.rack = rack
    with Stream(fetch_pb2_grpc.FetchStub(topic.fleet.channel(broker_id)).Fetch) as stream:
        stream.send(request)
        (result,) = stream.receive().results
        return result


def test_a_consumer_reads_from_the_replica_in_its_rack_and_sees_what_is_committed(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    topic.append(b"a", b"b")
    assert fetch_from(topic, 1, 0, "rack-1").preferred_read_replica == 0
    assert values_of(fetch_from(topic, 1, 0, "rack-1").records, 0) == [b"a", b"b"]
    until(lambda: fetch_from(topic, 1, 0, "rack-3").preferred_read_replica == 3, "to be sent to broker 3", LONG_S)
    near = until(lambda: (found := fetch_from(topic, 3, 0, "rack-3")) and found.records and found, "records", LONG_S)
    assert values_of(near.records, 0) == [b"a", b"b"]
    assert near.high_watermark == 2


def test_a_replica_that_is_far_behind_catches_up_while_others_are_written_to(fleet: Fleet) -> None:
    big, small = (fleet.topic(on=[1, 2, 3], min_insync_replicas="2") for _ in range(2))
    big.wait_isr(1, 2, 3)
    fleet.kill(3)
    big.wait_isr(1, 2)
    value = bytes(range(256)) * 2_000
    for _ in range(FAR_BEHIND_BYTES // len(value) + 1):
        big.append(value)
    load = Load(small)
    load.wait_for(5)
    fleet.restart(3)
    big.wait_isr(1, 2, 3)
    load.wait_for(20)
    load.stop()
    assert len(big.wait_same_bytes(1, 2, 3)) > FAR_BEHIND_BYTES
    small.wait_isr(1, 2, 3)
    small.wait_same_bytes(1, 2, 3)


def test_deleted_records_are_gone_everywhere_when_the_answer_comes(fleet: Fleet) -> None:
    topic = fleet.topic(on=[2, 1, 3], min_insync_replicas="3")
    topic.wait_isr(1, 2, 3)
    for number in range(10):
        topic.append(b"%d" % number)
    assert topic.delete_records(7) == 7
    for broker_id, rack in ((1, "rack-1"), (3, "rack-3")):
        result = fetch_from(topic, broker_id, 3, rack)
        assert (result.error.code, result.log_start_offset) == (1, 7), result  # OFFSET_OUT_OF_RANGE, at once


def test_a_throttle_holds_back_replicas_that_are_moved_and_nobody_else(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2], min_insync_replicas="1")
    topic.wait_isr(1, 2)
    value = bytes(range(256)) * 2_000
    for _ in range(FAR_BEHIND_BYTES // len(value) + 1):
        topic.append(value)
    load = Load(topic)
    load.wait_for(5)
    move(topic, [1, 3], throttle_bytes_per_s=1)
    load.wait_for(30)  # acks=all: the throttle delays no in-sync replica
    assert topic.isr() == {1, 2}
    move(topic, [1, 3], throttle_bytes_per_s=0)
    until(lambda: list(topic.state().replicas) == [1, 3], "the reassignment", LONG_S)
    topic.wait_isr(1, 3)
    load.stop()
    topic.wait_same_bytes(1, 3)


def test_a_throttle_holds_from_the_first_byte_and_for_small_partitions(fleet: Fleet) -> None:
    topic, other = fleet.topic(on=[1, 2], min_insync_replicas="1"), fleet.topic(on=[1, 2], min_insync_replicas="1")
    for each in (topic, other):
        each.wait_isr(1, 2)
    value = bytes(range(256)) * 2_000
    for _ in range(8):  # 4 MB: the new replica is never far behind, and uses the live stream
        topic.append(value)
    load = Load(other)
    for _ in range(4):
        move(topic, [1, 3], throttle_bytes_per_s=1)
        load.wait_for(30)  # on the same live stream
        assert (topic.isr(), 3 in topic.state().replicas) == ({1, 2}, True)
        move(topic, None, throttle_bytes_per_s=0)
    load.stop()


def move(topic: ReplicatedTopic, replicas: list[int] | None, *, throttle_bytes_per_s: int) -> None:
    """Begin a move, or cancel it (None)."""
    wanted = admin_pb2.PartitionReassignment(
        topic=topic.name, partition=0, replicas=replicas or (), cancel=replicas is None
    )
    request = admin_pb2.AlterPartitionReassignmentsRequest(
        reassignments=[wanted], throttle_bytes_per_s=throttle_bytes_per_s
    )
    answer = topic.fleet.admin.AlterPartitionReassignments(request, timeout=LONG_S)
    assert not any(result.error.code for result in answer.results), answer
