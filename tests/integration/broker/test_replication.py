"""Three brokers as real processes: acknowledged records survive on the other brokers, for every kind of failure of one
broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_protos.v1 import admin_pb2
from tests.worlds.fleet_world import LONG_S, Fleet, Load, check_nothing_lost, wait_gone
from tests.worlds.waiting import until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running
        for broker_id in running.brokers:
            log = running.brokers[broker_id].log()
            assert "Traceback" not in log, log[-4_000:]


def test_what_acks_all_acknowledged_is_on_every_replica_byte_for_byte(fleet: Fleet) -> None:
    topic = fleet.topic(min_insync_replicas="3")
    topic.wait_isr(1, 2, 3)
    offsets = [topic.append(b"value %d" % number, b"and another") for number in range(20)]
    assert offsets == list(range(0, 40, 2))
    # The test need not wait for copies: with all three brokers in sync, each broker has the record before the producer
    # gets its response.
    assert topic.bytes_on(1) == topic.bytes_on(2) == topic.bytes_on(3) != b""
    assert topic.offset() == 40


def test_a_follower_that_was_killed_is_left_behind_and_comes_back(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    load = Load(topic)
    load.wait_for(20)
    fleet.kill(3)
    topic.wait_isr(1, 2)
    load.wait_for(20)
    fleet.restart(3)
    topic.wait_isr(1, 2, 3)
    check_nothing_lost(topic, load.stop())
    topic.wait_same_bytes(1, 2, 3)
    assert topic.leader() == 1  # the leader did not change, because nothing failed


def test_a_leader_that_was_killed_has_an_heir_with_all_that_was_acknowledged(fleet: Fleet) -> None:
    topic = fleet.topic(on=[2, 3, 1], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    load = Load(topic)
    load.wait_for(50)
    fleet.kill(2)
    heir = topic.wait_leader(lambda leader: leader != 2)
    load.wait_for(20)
    fleet.restart(2)
    topic.wait_isr(1, 2, 3)
    load.wait_for(20)
    acknowledged = load.stop()
    check_nothing_lost(topic, acknowledged)
    topic.wait_same_bytes(1, 2, 3)
    assert heir in (1, 3)


def test_what_a_leader_had_alone_is_cut_when_another_has_led(fleet: Fleet) -> None:
    topic = fleet.topic(on=[3, 1, 2], min_insync_replicas="1", unclean_leader_election_enable="true")
    topic.wait_isr(1, 2, 3)
    topic.append(b"on all")
    fleet.kill(1)
    fleet.kill(2)
    topic.wait_isr(3)
    # acknowledged by the only in-sync replica, which is then lost, because an operator chose an unclean election
    topic.append(b"on one")
    fleet.kill(3)
    fleet.restart(1)
    fleet.restart(2)
    heir = topic.wait_leader(lambda leader: leader != 3)
    topic.append(b"of the next epoch")
    fleet.restart(3)
    topic.wait_isr(1, 2, 3)
    topic.wait_same_bytes(1, 2, 3)
    assert topic.read() == [b"on all", b"of the next epoch"]
    assert "ReplicaTruncated" in fleet.brokers[3].log()
    assert heir in (1, 2)


def test_a_replica_moves_to_another_broker_and_leaves_nothing_behind(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2], min_insync_replicas="1")
    topic.wait_isr(1, 2)
    for number in range(10):
        topic.append(b"%d" % number * 1_000)
    wanted = admin_pb2.PartitionReassignment(topic=topic.name, partition=0, replicas=[1, 3])
    answer = fleet.admin.AlterPartitionReassignments(
        admin_pb2.AlterPartitionReassignmentsRequest(reassignments=[wanted]), timeout=LONG_S
    )
    assert not answer.results[0].error.code, answer.results[0].error
    until(lambda: list(topic.state().replicas) == [1, 3], "the reassignment", LONG_S)
    topic.wait_isr(1, 3)
    topic.wait_same_bytes(1, 3)
    wait_gone(topic.path(2))
    topic.append(b"after it")
    topic.wait_same_bytes(1, 3)


@pytest.mark.parametrize("broker_id", [1, 2], ids=["the leader", "a follower"])
def test_a_replica_that_was_damaged_is_healed_by_the_others(fleet: Fleet, broker_id: int) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    for number in range(10):
        topic.append(b"%d" % number * 1_000)
    fleet.kill(broker_id)
    segment = next(topic.path(broker_id).glob("*.log"))
    damaged = bytearray(segment.read_bytes())
    damaged[500] ^= 0x10
    segment.write_bytes(damaged)
    topic.append(b"meanwhile")
    fleet.restart(broker_id)
    topic.wait_isr(1, 2, 3)
    topic.wait_same_bytes(1, 2, 3)
    assert topic.append(b"and later") == 11
    topic.wait_same_bytes(1, 2, 3)
    assert "ReplicaBeginsAnew" in fleet.brokers[broker_id].log()


def test_damage_that_a_running_leader_finds_costs_it_the_lead_and_is_healed(fleet: Fleet) -> None:
    topic = fleet.topic(on=[2, 3, 1], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    for number in range(10):
        topic.append(b"%d" % number * 1_000)
    (segment,) = topic.path(2).glob("*.log")
    with segment.open("r+b") as file:
        file.seek(500)
        byte = file.read(1)[0]
        file.seek(500)
        file.write(bytes([byte ^ 0x10]))
    # A reader finds the damage. The damaged broker stops leading, another broker answers, and the log is copied again.
    until(lambda: topic.leader() != 2 or not topic.try_read(0), "the damage to be found", LONG_S)
    topic.wait_leader(lambda leader: leader != 2)
    topic.wait_isr(1, 2, 3)
    topic.wait_same_bytes(1, 2, 3)
    assert len(topic.read()) == 10
    assert "CorruptionFound" in fleet.brokers[2].log()


def test_a_broker_with_an_emptied_disk_has_everything_again(fleet: Fleet) -> None:
    topic = fleet.topic(on=[3, 1, 2], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    for number in range(10):
        topic.append(b"%d" % number * 1_000)
    fleet.kill(3)
    topic.wait_isr(1, 2)
    fleet.replace_disk(3)
    fleet.restart(3)
    topic.wait_isr(1, 2, 3)
    topic.wait_same_bytes(1, 2, 3)
    assert topic.append(b"and on it goes") == 10
    topic.wait_same_bytes(1, 2, 3)
    assert "ReplicaBeginsAnew" in fleet.brokers[3].log()


def test_a_broker_that_stops_in_order_hands_its_partitions_over_and_nobody_notices(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    load = Load(topic)
    load.wait_for(20)
    assert fleet.brokers[1].terminate() == 0
    assert topic.wait_leader(lambda leader: leader != 1) in (2, 3)
    load.wait_for(20)
    fleet.restart(1)
    topic.wait_isr(1, 2, 3)
    check_nothing_lost(topic, load.stop())
    topic.wait_same_bytes(1, 2, 3)


def test_deleted_records_and_deleted_topics_go_everywhere(fleet: Fleet) -> None:
    topic = fleet.topic(on=[1, 2, 3], segment_bytes="20000")
    topic.wait_isr(1, 2, 3)
    for number in range(40):
        topic.append(b"%d" % number * 1_000)
    assert topic.delete_records(25) == 25
    until(
        lambda: all(len(list(topic.path(each).glob("*.log"))) < 3 for each in (1, 2, 3)),
        "the segments below the log start to go on every replica",
        LONG_S,
    )
    assert topic.offset(earliest=True) == 25
    topic.append(b"and on it goes")
    fleet.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=[topic.name]), timeout=LONG_S)
    for broker_id in (1, 2, 3):
        wait_gone(topic.path(broker_id))
