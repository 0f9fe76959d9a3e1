"""Brokers that report in their heartbeats that they cannot lead (a full disk, no descriptors). Another replica leads,
or the partition keeps its leader if no other replica can lead."""

from __future__ import annotations

import pytest

from headrace_controller.cluster.leadership import EVERYWHERE, CannotLead
from headrace_controller.cluster.requests import (
    AlteredPartition,
    AlterPartition,
    CreateTopics,
    ElectionType,
    ElectLeaders,
    NewTopic,
)
from headrace_core.errors import InvalidRequestError, PreferredLeaderNotAvailableError
from headrace_core.metadata import PartitionImage
from headrace_core.metadata.shards import OFFSETS_TOPIC
from tests.worlds.cluster_world import ClusterWorld, id16

FULL = (CannotLead(EVERYWHERE, "DISK_FULL"),)


class Cluster:
    """Three brokers, and a topic ``orders`` with one partition on all of them. Broker 1 is the preferred leader, and
    leads."""

    def __init__(self, *, directories: tuple[bytes, ...] = (), **settings: int) -> None:
        self.world = ClusterWorld(**settings)
        self.brokers = {
            number: self.world.live_broker(number, directories=directories if number == 1 else ())
            for number in (1, 2, 3)
        }
        self.create("orders", (1, 2, 3))

    def create(self, name: str, *replicas: tuple[int, ...]) -> None:
        topic = NewTopic(name=name, partitions=-1, replication_factor=-1, assignments=dict(enumerate(replicas)))
        (result,) = self.world.ask(CreateTopics((topic,)))
        assert result.error is None

    def says(self, broker_id: int, *reported: CannotLead) -> None:
        self.world.beat(self.brokers[broker_id], cannot_lead=reported)

    def state(self, name: str = "orders", number: int = 0) -> PartitionImage:
        return self.world.partition(name, number)

    def isr(self, *members: int) -> None:
        """The leader reports these replicas as in sync."""
        topic, state = self.world.image.topic("orders"), self.state()
        assert topic is not None
        item = AlteredPartition(
            topic_id=topic.topic_id,
            partition=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=tuple((each, self.brokers[each].broker_epoch) for each in members),
        )
        leader = self.brokers[state.leader]
        (result,) = self.world.ask(
            AlterPartition(
                broker_id=leader.broker_id,
                broker_epoch=leader.broker_epoch,
                metadata_offset=self.world.image.next_offset,
                partitions=(item,),
            )
        )
        assert result.error is None, result.error


def test_an_in_sync_replica_that_can_lead_is_elected_at_once_and_the_in_sync_set_stays() -> None:
    cluster = Cluster()
    before = cluster.state()
    cluster.says(1, *FULL)
    after = cluster.state()
    assert (after.leader, after.leader_epoch) == (2, before.leader_epoch + 1)
    assert after.isr == (1, 2, 3)
    assert not cluster.world.image.brokers[1].fenced


def test_shards_of_coordinators_move_with_all_other_partitions_of_a_full_disk() -> None:
    cluster = Cluster()
    (made,) = cluster.world.ask(CreateTopics((NewTopic(name=OFFSETS_TOPIC),), internal=True))
    assert made.error is None
    before = [cluster.state(OFFSETS_TOPIC, shard) for shard in range(made.partitions)]
    assert 1 in {each.leader for each in before}
    cluster.says(1, *FULL)
    after = [cluster.state(OFFSETS_TOPIC, shard) for shard in range(made.partitions)]
    assert {each.leader for each in after} == {2, 3}
    for was, state in zip(before, after, strict=True):
        assert was.leader in (1, state.leader), "no other shard moves"


def test_heartbeats_that_repeat_it_change_nothing() -> None:
    cluster = Cluster()
    cluster.says(1, *FULL)
    end = cluster.world.image.next_offset
    for _ in range(3):
        cluster.says(1, *FULL)
        cluster.says(2)
    assert cluster.world.image.next_offset == end


def test_when_no_in_sync_replica_can_lead_the_leader_stays_and_nothing_is_elected_again_and_again() -> None:
    cluster = Cluster()
    for broker_id in (2, 3, 1):
        cluster.says(broker_id, *FULL)
    assert (cluster.state().leader, cluster.state().leader_epoch) == (1, 0)
    cluster.says(3)  # the disk has room again
    assert (cluster.state().leader, cluster.state().leader_epoch) == (3, 1)
    cluster.says(1)
    assert cluster.state().leader == 3, "it is not preferred enough to be elected at once"


def test_only_in_sync_replicas_are_elected() -> None:
    cluster = Cluster()
    cluster.isr(1)
    cluster.says(1, *FULL)
    assert cluster.state().leader == 1
    cluster.isr(1, 3)
    assert cluster.state().leader == 3, "it has caught up, and can lead"


def test_preferred_elections_wait_until_it_can_lead_again() -> None:
    cluster = Cluster()
    cluster.says(1, *FULL)
    elect = ElectLeaders(ElectionType.PREFERRED, (("orders", 0),))
    (refused,) = cluster.world.ask(elect)
    assert isinstance(refused.error, PreferredLeaderNotAvailableError)
    assert "DISK_FULL" in refused.error.message
    cluster.world.now_ms += 400_000
    for each in cluster.brokers:
        cluster.says(each, *(FULL if each == 1 else ()))
    cluster.world.core.upkeep(cluster.world.now_ms)
    assert cluster.state().leader == 2
    cluster.says(1)
    (done,) = cluster.world.ask(elect)
    assert done.error is None
    assert cluster.state().leader == 1


def test_a_directory_s_trouble_concerns_the_replicas_in_it_only() -> None:
    here, there = id16(71), id16(72)
    cluster = Cluster(directories=(here, there))
    cluster.create("payments", (1, 2), (1, 2))
    topic = cluster.world.image.topic("payments")
    assert topic is not None
    cluster.world.assign(cluster.brokers[1], topic, here, 0)
    cluster.world.assign(cluster.brokers[1], topic, there, 1)
    cluster.says(1, CannotLead(there, "DISK_FULL"))
    assert (cluster.state("payments", 0).leader, cluster.state("payments", 1).leader) == (1, 2)


def test_new_partitions_are_led_by_others_and_do_not_wait_for_a_replica_that_cannot_be_made() -> None:
    cluster = Cluster()
    cluster.says(1, *FULL)
    cluster.create("payments", (1, 2, 3))
    state = cluster.state("payments")
    assert (state.leader, state.isr, state.replicas) == (2, (2, 3), (1, 2, 3))
    cluster.says(2, *FULL)
    cluster.says(3, *FULL)
    cluster.create("late", (1, 2, 3))
    assert (cluster.state("late").leader, cluster.state("late").isr) == (1, (1, 2, 3)), "all are alike"


def test_the_next_active_controller_hears_it_with_the_first_heartbeat() -> None:
    cluster = Cluster()
    cluster.says(1, *FULL)
    cluster.says(2, *FULL)
    assert cluster.state().leader == 3
    cluster.world.core.lead(cluster.world.now_ms)
    cluster.says(3, *FULL)  # the new controller has no heartbeat from the other two brokers yet
    assert cluster.state().leader == 1
    cluster.says(1, *FULL)
    assert cluster.state().leader == 2
    cluster.says(2, *FULL)
    assert cluster.state().leader == 2, "nobody can"


def test_another_life_of_the_broker_has_said_nothing() -> None:
    cluster = Cluster()
    cluster.says(1, *FULL)
    cluster.world.now_ms += 9_001
    for each in (2, 3):
        cluster.says(each)
    cluster.world.tick()
    cluster.brokers[1] = cluster.world.live_broker(1, life=1)
    assert cluster.world.core.sessions.hindered == {}


def test_many_partitions_move_over_several_decisions() -> None:
    cluster = Cluster(metadata_max_records_per_request=4)
    for number in range(5):
        cluster.create(f"t{number}", (1, 2), (1, 3))
    cluster.says(1, *FULL)
    while cluster.world.core.agenda.elections_pending:
        decision = cluster.world.core.upkeep(cluster.world.now_ms)
        cluster.world.log += decision.records
        cluster.world.core.accept(decision, len(cluster.world.log), epoch=1)
        cluster.world.commit()
    leaders = {each.leader for topic in cluster.world.image.topics.values() for each in topic.partitions}
    assert 1 not in leaders


@pytest.mark.parametrize(
    "reported", [(CannotLead(b"short", "DISK_FULL"),), (CannotLead(EVERYWHERE, "x" * 101),), FULL * 1_002]
)
def test_what_no_broker_says_is_refused(reported: tuple[CannotLead, ...]) -> None:
    cluster = Cluster()
    with pytest.raises(InvalidRequestError, match="cannot_lead"):
        cluster.says(1, *reported)
    assert cluster.state().leader == 1
