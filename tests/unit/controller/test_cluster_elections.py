"""Elections: from the ISR, from the eligible leader replicas, of the last known leader, unclean elections, and
preferred leaders."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace_controller.applying import events_of
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlteredPartition,
    AlterPartition,
    AlterResource,
    AssignDirectories,
    ConfigOp,
    ElectionType,
    ElectLeaders,
    OpKind,
    Placement,
    RegisterBroker,
    Registered,
)
from headrace_core.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidConfigError,
    InvalidRequestError,
    OperationNotAttemptedError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    ConfigResourceType,
    MetadataDelta,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.telemetry import UncleanLeaderElected
from headrace_core.types import TopicPartition
from tests.simulation.cluster_invariants import check_image
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16
from tests.worlds.waiting import check_spent


class Cluster:
    def __init__(self, count: int = 3, *, flush: str = "commit", **settings: Any) -> None:
        self.world = ClusterWorld(**settings)
        self.flush = flush
        self.lives = 0
        self.brokers: dict[int, Registered] = {}
        for number in range(1, count + 1):
            self.start(number)

    def start(self, broker_id: int, *, previous: int = -1, disk: int = 0, unfence: bool = True) -> None:
        self.lives += 1
        reply = self.world.ask(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(500 + self.lives),
                directory_ids=(id16(100 * disk + broker_id),),
                endpoints=(BrokerEndpoint("client", "127.0.0.1", 9_000),),
                wanted_broker_id=broker_id,
                previous_broker_epoch=previous,
                default_log_flush=self.flush,
            )
        )
        self.brokers[broker_id] = reply
        if unfence:
            assert not self.world.beat(reply).fenced

    def silence(self, *broker_ids: int) -> None:
        """The brokers send no heartbeats until they are fenced."""
        self.world.now_ms += 9_001
        for broker_id, broker in self.brokers.items():
            if broker_id not in broker_ids and not self.world.image.brokers[broker_id].fenced:
                self.world.beat(broker)
        self.upkeep()

    def upkeep(self) -> int:
        decisions = 0
        while (decision := self.world.core.upkeep(self.world.now_ms)).records:
            self.world.log += decision.records
            self.world.core.accept(decision, len(self.world.log), epoch=1)
            self.world.commit()
            decisions += 1
        return decisions

    def topic(self, *replicas: int, minimum: int = 1, name: str = "t") -> None:
        configs = {"min.insync.replicas": str(minimum)}
        self.world.create(name, partitions=-1, assignments={0: replicas}, configs=configs)

    def set(self, kind: ConfigResourceType, name: str, key: str, value: str) -> Any:
        op = ConfigOp(OpKind.SET, key, value)
        (result,) = self.world.ask(AlterConfigs((AlterResource((kind, name), (op,)),)))
        return result

    def elect(self, kind: ElectionType, *partitions: tuple[str, int]) -> list[Any]:
        return list(self.world.ask(ElectLeaders(kind, partitions or None)))

    @property
    def state(self) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        state = self.world.partition("t")
        return state.leader, state.isr, state.elr, state.last_known_elr


def test_a_leader_that_starts_with_an_empty_log_is_not_elected_again_in_the_same_epoch() -> None:
    """Unclean elections are allowed. It stayed the leader, and the eligible replica lost its place."""
    cluster = Cluster(2)
    cluster.topic(1, 2, minimum=2)
    cluster.set(ConfigResourceType.TOPIC, "t", "unclean.leader.election.enable", "true")
    cluster.silence(2)
    assert cluster.state == (1, (1,), (2,), ())
    placement = Placement(
        cluster.world.image.topic_ids["t"], 0, cluster.world.partition("t").directory_of(1), fresh=True
    )
    epoch = cluster.brokers[1].broker_epoch
    cluster.world.ask(AssignDirectories(broker_id=1, broker_epoch=epoch, placements=(placement,)))
    assert cluster.state == (-1, (), (2,), ())
    cluster.start(2)
    assert cluster.state[0] == 2


# -- eligible leader replicas (KIP-966) -------------------------------------------------------------------------------


def test_below_the_minimum_who_goes_stays_eligible_and_leads_when_nobody_else_can() -> None:
    cluster = Cluster()
    cluster.topic(1, 2, 3, minimum=2)
    cluster.silence(3)
    assert cluster.state == (1, (1, 2), (), ()), "two commit records that the third has not got"
    cluster.silence(2)
    assert cluster.state == (1, (1,), (2,), ())
    cluster.silence(1)
    assert cluster.state == (-1, (), (1, 2), (1,))
    cluster.world.beat(cluster.brokers[3])
    assert cluster.state[0] == -1, "3 is there and lacks records"
    cluster.world.beat(cluster.brokers[2])
    assert cluster.state == (2, (2,), (1,), ())
    assert not cluster.world.partition("t").recovering, "a clean election"


def test_the_leader_goes_on_from_the_isr_first() -> None:
    cluster = Cluster()
    cluster.topic(1, 2, 3, minimum=3)
    cluster.silence(2)
    cluster.world.beat(cluster.brokers[2])
    assert cluster.state == (1, (1, 3), (2,), ())
    cluster.silence(1)
    assert cluster.state == (3, (3,), (1, 2), ()), "2 works, is eligible, and stands before 3; 3 is in sync"


@pytest.mark.parametrize(("flush", "keeps"), [("commit", True), ("os", False), ("", False)])
def test_after_a_crash_a_broker_stays_eligible_if_everything_was_flushed(flush: str, keeps: bool) -> None:
    cluster = Cluster(flush=flush)
    cluster.topic(1, 2, 3, minimum=2)
    cluster.silence(3)
    cluster.silence(2)
    cluster.start(2, previous=-1)
    assert cluster.state == (1, (1,), (2,) if keeps else (), ())


def test_after_a_clean_stop_a_broker_stays_eligible_whatever_its_flush_policy() -> None:
    cluster = Cluster(flush="os")
    cluster.topic(1, 2, 3, minimum=2)
    cluster.silence(3)
    cluster.silence(2)
    cluster.start(2, previous=cluster.brokers[2].broker_epoch)
    assert cluster.state == (1, (1,), (2,), ())
    former = cluster.brokers[2].broker_epoch
    cluster.silence(2)
    cluster.start(2)
    assert cluster.state == (1, (1,), (), ()), "the life after that crashed"
    cluster.silence(2)
    cluster.start(2, previous=former)
    assert cluster.state == (1, (1,), (), ()), "a marker of an older life vouches for nothing"


def test_a_topic_whose_flush_was_ever_weakened_is_not_believed_after_a_crash() -> None:
    cluster = Cluster()
    cluster.topic(1, 2, minimum=2)
    cluster.set(ConfigResourceType.TOPIC, "t", "log.flush", "os")
    cluster.set(ConfigResourceType.TOPIC, "t", "log.flush", "commit")
    cluster.silence(2)
    cluster.start(2)
    assert cluster.state == (1, (1,), (), ())


def test_the_last_known_leader_leads_again_when_all_that_were_eligible_are_lost() -> None:
    """A topic has one replica, and its records are not flushed at once. The last known leader must be able to lead
    again after a crash."""
    cluster = Cluster(1, flush="os")
    cluster.topic(1)
    cluster.silence(1)
    assert cluster.state == (-1, (), (1,), (1,))
    cluster.start(1, unfence=False)
    assert cluster.state == (-1, (), (), (1,))
    cluster.world.beat(cluster.brokers[1])
    assert cluster.state == (1, (1,), (), ())
    assert cluster.world.partition("t").recovering, "it may have lost records, and says so"


def test_a_replica_that_was_made_anew_is_eligible_for_nothing() -> None:
    """KIP-903: the disk was replaced. The broker returns with the same id and the same flush policy, but without
    records."""
    cluster = Cluster()
    cluster.topic(1, 2, 3, minimum=2)
    cluster.silence(3)
    cluster.silence(2)
    cluster.silence(1)
    assert cluster.state == (-1, (), (1, 2), (1,))
    cluster.start(1, disk=1)
    assert cluster.state[0] == -1, "its replica is in a directory that is not there"
    topic = cluster.world.image.topic("t")
    assert topic is not None
    placement = Placement(topic.topic_id, 0, id16(101), fresh=True)
    broker = cluster.brokers[1]
    cluster.world.ask(AssignDirectories(broker_id=1, broker_epoch=broker.broker_epoch, placements=(placement,)))
    assert cluster.state == (-1, (), (2,), ())
    cluster.world.beat(cluster.brokers[2])
    assert cluster.state[0] == 2


def test_a_minimum_that_is_lowered_ends_the_elr_in_the_same_batch() -> None:
    cluster = Cluster()
    cluster.topic(1, 2, 3, minimum=3)
    cluster.silence(3)
    assert cluster.state == (1, (1, 2), (3,), ())
    written = len(cluster.world.log)
    cluster.set(ConfigResourceType.TOPIC, "t", "min.insync.replicas", "2")
    assert cluster.state == (1, (1, 2), (), ())
    assert len(cluster.world.log) == written + 2


def test_the_minimum_of_all_brokers_counts_where_a_topic_has_none() -> None:
    cluster = Cluster(min_insync_replicas=2)
    cluster.world.create("t", partitions=-1, assignments={0: (1, 2)})
    cluster.silence(2)
    assert cluster.state == (1, (1,), (2,), ()), "the controller's file said so when the cluster began"
    cluster.set(ConfigResourceType.BROKER, "", "min.insync.replicas", "1")
    assert cluster.state == (1, (1,), (), ())


def test_the_minimum_is_the_same_on_all_brokers() -> None:
    cluster = Cluster()
    result = cluster.set(ConfigResourceType.BROKER, "1", "min.insync.replicas", "2")
    assert isinstance(result.error, InvalidConfigError)
    assert "KIP-966" in str(result.error)


def test_at_the_first_feature_level_the_last_in_sync_replica_stays_in_the_isr() -> None:
    """Nodes at level 1 of metadata.version do not know eligible leader replicas."""
    cluster = Cluster()
    world = cluster.world
    cluster.topic(1, 2)
    world.core.committed = world.core.speculative = type(world.image)(
        **{**{name: getattr(world.image, name) for name in world.image.__slots__}, "metadata_version": 1}
    )
    cluster.silence(2)
    cluster.silence(1)
    assert cluster.state == (-1, (1,), (), ())
    world.beat(cluster.brokers[2])
    assert cluster.state[0] == -1
    world.beat(cluster.brokers[1])
    assert cluster.state == (1, (1,), (), ())


# -- unclean elections ------------------------------------------------------------------------------------------------


def waiting() -> Cluster:
    """A partition that waits for broker 1, while broker 2 works but lacks records."""
    cluster = Cluster(2)
    cluster.topic(1, 2)
    cluster.silence(2)
    cluster.world.beat(cluster.brokers[2])
    cluster.silence(1)
    assert cluster.state == (-1, (), (1,), (1,))
    return cluster


def test_nobody_leads_uncleanly_unless_it_is_asked_for() -> None:
    cluster = waiting()
    cluster.world.now_ms += 400_000
    cluster.world.beat(cluster.brokers[2])
    cluster.upkeep()
    assert cluster.state[0] == -1


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ConfigResourceType.TOPIC, "t"), (ConfigResourceType.BROKER, "2"), (ConfigResourceType.BROKER, "")],
)
def test_the_setting_allows_it_at_once_for_the_topic_the_candidate_or_all(kind: ConfigResourceType, name: str) -> None:
    cluster = waiting()
    assert cluster.set(kind, name, "unclean.leader.election.enable", "true").error is None
    cluster.upkeep()
    assert cluster.state == (2, (2,), (), ())
    assert cluster.world.partition("t").recovering


def test_an_unclean_election_is_reported_once_and_a_clean_one_is_not() -> None:
    cluster = waiting()
    before = cluster.world.image
    cluster.set(ConfigResourceType.TOPIC, "t", "unclean.leader.election.enable", "true")
    cluster.upkeep()
    image = cluster.world.image
    (found,) = events_of(MetadataDelta.between(before, image), before, image)
    epoch = cluster.world.partition("t").leader_epoch
    assert found == UncleanLeaderElected(partition=TopicPartition("t", 0), leader_id=2, leader_epoch=epoch)

    cluster = Cluster(2)
    cluster.topic(1, 2)
    before = cluster.world.image
    cluster.silence(1)
    image = cluster.world.image
    assert cluster.world.partition("t").leader == 2
    events = events_of(MetadataDelta.between(before, image), before, image)
    assert not [each for each in events if isinstance(each, UncleanLeaderElected)]


def test_another_brokers_setting_allows_nothing() -> None:
    cluster = waiting()
    cluster.set(ConfigResourceType.BROKER, "1", "unclean.leader.election.enable", "true")
    cluster.upkeep()
    assert cluster.state[0] == -1


def test_a_topic_that_forbids_it_is_not_overruled() -> None:
    cluster = waiting()
    cluster.set(ConfigResourceType.TOPIC, "t", "unclean.leader.election.enable", "false")
    cluster.set(ConfigResourceType.BROKER, "", "unclean.leader.election.enable", "true")
    cluster.upkeep()
    assert cluster.state[0] == -1


def test_the_controllers_file_allows_it() -> None:
    cluster = Cluster(2, unclean_leader_election_enable=True)
    cluster.topic(1, 2)
    cluster.silence(2)
    cluster.world.beat(cluster.brokers[2])
    cluster.silence(1)
    assert cluster.state == (2, (2,), (), ())


def test_an_operator_asks_for_it() -> None:
    cluster = waiting()
    (result,) = cluster.elect(ElectionType.UNCLEAN, ("t", 0))
    assert result.error is None
    assert cluster.state == (2, (2,), (), ())
    (again,) = cluster.elect(ElectionType.UNCLEAN, ("t", 0))
    assert isinstance(again.error, ElectionNotNeededError)


def test_without_anybody_who_works_even_an_operator_gets_no_leader() -> None:
    cluster = waiting()
    cluster.silence(2)
    (result,) = cluster.elect(ElectionType.UNCLEAN, ("t", 0))
    assert isinstance(result.error, EligibleLeadersNotAvailableError)


# -- preferred leaders ------------------------------------------------------------------------------------------------


def test_an_operator_gives_the_lead_back_to_the_preferred_replica() -> None:
    cluster = Cluster()
    cluster.topic(1, 2)
    cluster.silence(1)
    cluster.world.beat(cluster.brokers[1])
    (refused,) = cluster.elect(ElectionType.PREFERRED, ("t", 0))
    assert isinstance(refused.error, PreferredLeaderNotAvailableError), "it is not in sync yet"
    rejoin(cluster, "t", 0)
    assert cluster.elect(ElectionType.PREFERRED)[0].error is None
    assert cluster.state[0] == 1
    assert cluster.elect(ElectionType.PREFERRED) == [], "of all partitions those are named that needed it"
    (needless,) = cluster.elect(ElectionType.PREFERRED, ("t", 0))
    assert isinstance(needless.error, ElectionNotNeededError)


def test_what_cannot_be_elected_for_is_named() -> None:
    cluster = Cluster()
    cluster.topic(1, 2)
    results = cluster.elect(ElectionType.PREFERRED, ("nowhere", 0), ("t", 7), ("t", 0), ("t", 0))
    assert [type(each.error) for each in results] == [
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        ElectionNotNeededError,
        InvalidRequestError,
    ]


def rejoin(cluster: Cluster, name: str, *numbers: int) -> None:
    """The leader adds all replicas to the ISR again, as replication would."""
    topic = cluster.world.image.topic(name)
    assert topic is not None
    for number in numbers:
        state = topic.partitions[number]
        leader = cluster.brokers[state.leader]
        item = AlteredPartition(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=tuple((each, cluster.brokers[each].broker_epoch) for each in state.replicas),
        )
        (result,) = cluster.world.ask(
            AlterPartition(
                broker_id=leader.broker_id,
                broker_epoch=leader.broker_epoch,
                metadata_offset=cluster.world.image.next_offset,
                partitions=(item,),
            )
        )
        assert result.error is None


def unbalanced(**settings: Any) -> Cluster:
    """Broker 2 leads all 20 partitions. Broker 1 is the preferred leader of ten partitions, and is in sync again."""
    cluster = Cluster(2, **settings)
    assignments = {number: (1, 2) if number < 10 else (2, 1) for number in range(20)}
    cluster.world.create("t", partitions=-1, assignments=assignments)
    cluster.silence(1)
    cluster.world.beat(cluster.brokers[1])
    rejoin(cluster, "t", *range(20))
    return cluster


def leaders(cluster: Cluster) -> list[int]:
    topic = cluster.world.image.topic("t")
    assert topic is not None
    return [each.leader for each in topic.partitions]


def wait_ms(cluster: Cluster, ms: float) -> None:
    for _ in range(int(ms // 5_000)):
        cluster.world.now_ms += 5_000
        for broker in cluster.brokers.values():
            cluster.world.beat(broker)
        cluster.upkeep()


def test_leaderships_go_back_to_the_preferred_replicas_at_the_next_check() -> None:
    cluster = unbalanced()
    wait_ms(cluster, 250_000)
    assert leaders(cluster) == [2] * 20
    wait_ms(cluster, 60_000)
    assert leaders(cluster) == [1] * 10 + [2] * 10


def test_a_small_imbalance_is_left_alone() -> None:
    cluster = unbalanced(leader_imbalance_per_broker_percentage=10)
    for number in range(9):
        cluster.elect(ElectionType.PREFERRED, ("t", number))
    wait_ms(cluster, 700_000)
    assert leaders(cluster)[9] == 2, "one of the ten that broker 1 is preferred for"


def test_balancing_can_be_switched_off() -> None:
    cluster = unbalanced(auto_leader_rebalance_enable=False)
    wait_ms(cluster, 700_000)
    assert leaders(cluster) == [2] * 20


def test_balancing_takes_several_decisions_with_time_between_them() -> None:
    cluster = unbalanced(metadata_max_records_per_request=30, leader_imbalance_check_interval_seconds=100)
    cluster.world.core.settings = cluster.world.core.settings.__class__(
        metadata_max_records_per_request=4,
        leader_imbalance_check_interval_seconds=100,
    )
    cluster.world.now_ms += 100_000
    for broker in cluster.brokers.values():
        cluster.world.beat(broker)
    moved = []
    for _ in range(4):
        cluster.upkeep()
        moved.append(leaders(cluster).count(1))
        cluster.world.now_ms += 100
    assert moved == [4, 8, 10, 10]


# -- many partitions --------------------------------------------------------------------------------------------------


def crowd(partitions: int, **settings: Any) -> Cluster:
    """Broker 1 leads all partitions, and broker 2 follows."""
    cluster = Cluster(2, **settings)
    world = cluster.world
    topic_id = id16(4_711)
    records = [TopicRecord("t", topic_id)] + [
        PartitionRecord(topic_id, number, (1, 2), (1, 2), 1, 0, 0, (id16(1), id16(2))) for number in range(partitions)
    ]
    world.log += records
    image = world.image.apply(records, len(world.log), 1)
    world.core.replay(image)
    world.core.lead(world.now_ms)
    return cluster


def test_a_broker_with_more_partitions_than_a_decision_may_change_is_fenced_in_steps() -> None:
    cluster = crowd(100, metadata_max_records_per_request=30)
    cluster.world.now_ms += 9_001
    cluster.world.beat(cluster.brokers[2])
    assert cluster.upkeep() == 4
    assert cluster.world.image.brokers[1].fenced
    assert leaders(cluster) == [2] * 100
    assert check_image(cluster.world.image) == []
    assert not cluster.world.beat(cluster.brokers[1]).fenced


def test_another_controller_goes_on_where_the_first_one_stopped() -> None:
    cluster = crowd(100, metadata_max_records_per_request=30)
    world = cluster.world
    world.now_ms += 9_001
    world.beat(cluster.brokers[2])
    decision = world.core.upkeep(world.now_ms)
    world.log += decision.records
    world.core.accept(decision, len(world.log), epoch=1)
    world.commit()
    assert leaders(cluster).count(2) == 30
    world.core.resign()
    world.core.lead(world.now_ms)
    assert world.beat(cluster.brokers[1]).fenced, "it is not unfenced before that is done"
    cluster.upkeep()
    assert leaders(cluster) == [2] * 100
    assert not world.beat(cluster.brokers[1]).fenced


def test_a_crashed_broker_is_not_unfenced_before_it_has_lost_all_that_it_may_not_have() -> None:
    cluster = crowd(100, metadata_max_records_per_request=30, min_insync_replicas=2)
    cluster.flush = "os"
    cluster.world.now_ms += 9_001
    cluster.start(2, unfence=False)
    broker = cluster.world.image.brokers[2]
    assert broker.elections_pending
    assert cluster.world.beat(cluster.brokers[2]).fenced
    cluster.world.beat(cluster.brokers[1])
    cluster.upkeep()
    assert not cluster.world.image.brokers[2].elections_pending
    topic = cluster.world.image.topic("t")
    assert topic is not None
    assert {(each.isr, each.elr) for each in topic.partitions} == {((1,), ())}
    assert not cluster.world.beat(cluster.brokers[2]).fenced
    assert EMPTY_IMAGE.apply(cluster.world.log, len(cluster.world.log), 1).brokers == cluster.world.image.brokers


def test_controlled_shutdown_of_a_broker_with_many_partitions_waits_until_all_are_handed_over() -> None:
    cluster = crowd(100, metadata_max_records_per_request=30)
    world = cluster.world
    assert not world.beat(cluster.brokers[1], want_shutdown=True).should_shutdown
    world.beat(cluster.brokers[2])
    assert not world.beat(cluster.brokers[1], want_shutdown=True).should_shutdown, "70 are still to be moved"
    cluster.upkeep()
    assert leaders(cluster) == [2] * 100
    assert not world.beat(cluster.brokers[1], want_shutdown=True).should_shutdown, "2 has not heard of it"
    world.beat(cluster.brokers[2])
    assert world.beat(cluster.brokers[1], want_shutdown=True).should_shutdown


def test_elections_beyond_one_decision_are_left_for_another() -> None:
    cluster = crowd(10, metadata_max_records_per_request=6)
    cluster.silence(1)
    cluster.world.beat(cluster.brokers[1])
    rejoin(cluster, "t", *range(10))
    first = cluster.elect(ElectionType.PREFERRED)
    assert [type(each.error) for each in first] == [type(None)] * 6 + [OperationNotAttemptedError] * 4
    assert len(cluster.elect(ElectionType.PREFERRED)) == 4
    assert leaders(cluster) == [1] * 10


def test_upkeep_costs_next_to_nothing_when_there_is_nothing_to_do() -> None:
    """The test measures no time; it counts work. A tick must not look at every partition."""
    cluster = crowd(20_000)
    began = time.thread_time()
    for _ in range(1_000):
        assert not cluster.world.core.upkeep(cluster.world.now_ms).records
    check_spent(began, 1.0, "1,000 ticks; a look at all partitions takes 1 ms and more")
