"""AlterPartition (KIP-497, KIP-841, KIP-903, KIP-704): the in-sync sets that controllers accept."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

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
    PartitionResult,
    Placement,
    Registered,
)
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
    OperationNotAttemptedError,
    StaleBrokerEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import ConfigResourceType
from tests.simulation.cluster_invariants import check_image
from tests.worlds.cluster_world import ClusterWorld, id16


class Three:
    """Three brokers (ids 1, 2, 3), and topic t with a replica on each; 1 leads."""

    def __init__(self, *, minimum: int = 1, **settings: Any) -> None:
        self.world = ClusterWorld(**settings)
        self.brokers = [self.world.live_broker(number) for number in (7, 8, 9)]
        configs = {"min.insync.replicas": str(minimum)}
        self.topic = self.world.create("t", partitions=-1, assignments={0: (1, 2, 3)}, configs=configs)

    @property
    def partition(self) -> Any:
        return self.world.partition("t")

    def request(self, *isr: int, leader: int = 1, **changes: Any) -> AlterPartition:
        state = self.partition
        fields = {
            "topic_id": self.topic.topic_id,
            "partition": 0,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "isr": tuple((each, self.brokers[each - 1].broker_epoch) for each in isr),
            **changes,
        }
        broker = self.brokers[leader - 1]
        return AlterPartition(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            metadata_offset=self.world.image.next_offset,
            partitions=(AlteredPartition(**fields),),
        )

    def alter(self, *isr: int, **changes: Any) -> PartitionResult:
        (result,) = self.world.ask(self.request(*isr, **changes))
        return result

    def refused(self, *isr: int, **changes: Any) -> type[Exception]:
        written = len(self.world.log)
        result = self.alter(*isr, **changes)
        assert len(self.world.log) == written
        assert result.error is not None
        return type(result.error)

    def restart(self, number: int, **more: Any) -> Registered:
        self.world.now_ms += 60_000
        for each, broker in enumerate(self.brokers, start=1):
            if each != number and not self.world.image.brokers[each].fenced:
                self.world.beat(broker)
        self.brokers[number - 1] = self.world.live_broker(number + 6, life=1, **more)
        return self.brokers[number - 1]


def test_a_leader_takes_a_follower_out_and_in_again() -> None:
    three = Three()
    out = three.alter(1, 3)
    assert (out.error, out.isr, out.leader, out.leader_epoch, out.partition_epoch) == (None, (1, 3), 1, 0, 1)
    assert three.partition.isr == (1, 3)
    back = three.alter(1, 3, 2)
    assert (back.isr, back.partition_epoch, three.partition.isr) == ((1, 3, 2), 2, (1, 3, 2))


def test_a_repeated_request_is_answered_with_the_present_state() -> None:
    three = Three()
    request = three.request(1, 3)
    three.world.ask(request)
    written = len(three.world.log)
    (again,) = three.world.ask(request)
    assert (again.error, again.isr, again.partition_epoch) == (None, (1, 3), 1)
    assert len(three.world.log) == written


def test_a_set_that_was_asked_for_before_a_replica_began_anew_is_refused_although_nothing_else_has_changed() -> None:
    """Broker 2 has caught up, and its leader requests to add it. After this request, the log of broker 2 is found to be
    damaged. The broker's process and directory are the same, and the broker was not in the in-sync set. Only the
    partition epoch therefore shows that the request is outdated."""
    three = Three()
    three.alter(1, 3)
    asked = three.request(1, 3, 2)
    broker, state = three.brokers[1], three.partition
    placement = Placement(three.topic.topic_id, 0, state.directory_of(2), fresh=True)
    anew = AssignDirectories(broker_id=2, broker_epoch=broker.broker_epoch, placements=(placement,))
    assert three.world.ask(anew) == ()
    assert (three.partition.isr, three.partition.leader_epoch) == (state.isr, state.leader_epoch)
    (result,) = three.world.ask(asked)
    assert type(result.error) is InvalidUpdateVersionError
    assert three.partition.isr == (1, 3)


def test_a_request_that_knows_less_than_was_decided_is_refused() -> None:
    three = Three()
    old = three.request(1, 2)
    three.alter(1, 3)
    (result,) = three.world.ask(old)
    assert type(result.error) is InvalidUpdateVersionError
    assert three.partition.isr == (1, 3)


def test_a_former_leader_is_fenced_and_a_follower_is_no_leader() -> None:
    three = Three()
    old = three.request(1)
    three.world.ask(ElectLeaders(ElectionType.PREFERRED))  # nothing to do
    three.world.beat(three.brokers[0], want_fence=True)
    three.world.beat(three.brokers[0])
    assert three.partition.leader == 2
    (result,) = three.world.ask(old)
    assert type(result.error) is FencedLeaderEpochError
    assert three.refused(2, 3, leader=3) is InvalidRequestError
    assert three.partition.isr == (2, 3)


def test_an_epoch_from_the_future_means_that_this_controller_is_behind() -> None:
    three = Three()
    assert three.refused(1, leader_epoch=1) is NotControllerError
    assert three.refused(1, partition_epoch=1) is NotControllerError


def test_a_former_life_of_the_leader_asks_for_nothing() -> None:
    three = Three()
    request = three.request(1, 2)
    with pytest.raises(StaleBrokerEpochError):
        three.world.ask(dataclasses.replace(request, broker_epoch=request.broker_epoch - 1))
    with pytest.raises(BrokerIdNotRegisteredError):
        three.world.ask(dataclasses.replace(request, broker_id=9))


def test_a_follower_of_another_life_does_not_join() -> None:
    """KIP-903: the follower was in sync before it lost its disk, and the request to add it arrives late."""
    three = Three()
    three.alter(1, 3)
    late = three.request(1, 3, 2)
    three.restart(2)
    (result,) = three.world.ask(late)
    assert type(result.error) is IneligibleReplicaError
    assert three.partition.isr == (1, 3)
    assert three.alter(1, 3, 2).error is None, "in its new life it may, once it has caught up"


def test_a_fenced_a_stopping_and_an_unknown_broker_do_not_join() -> None:
    three = Three()
    three.alter(1)
    three.world.beat(three.brokers[1], want_fence=True)
    assert three.refused(1, 2) is IneligibleReplicaError
    three.world.create("u", partitions=-1, assignments={0: (3, 1)})
    three.world.beat(three.brokers[2], want_shutdown=True)
    assert three.world.image.brokers[3].in_controlled_shutdown
    assert three.refused(1, 3) is IneligibleReplicaError
    assert three.refused(1, isr=((1, three.brokers[0].broker_epoch), (2, -1))) is IneligibleReplicaError


def test_refusing_an_ineligible_replica_to_an_uncertain_leader_ends_the_partition_epoch() -> None:
    """An earlier attempt is still in a connection while the member is fenced. The earlier attempt arrives when the
    member works again."""
    three = Three()
    three.alter(1, 2)
    earlier = three.request(1, 2, 3)
    three.world.beat(three.brokers[2], want_fence=True)
    again = dataclasses.replace(earlier, partitions=(dataclasses.replace(earlier.partitions[0], uncertain=True),))
    (refused,) = three.world.ask(again)
    assert type(refused.error) is IneligibleReplicaError
    assert (three.partition.isr, three.partition.leader_epoch) == ((1, 2), 0), "nothing else has changed"
    three.world.beat(three.brokers[2])
    (late,) = three.world.ask(earlier)
    assert type(late.error) is InvalidUpdateVersionError
    assert three.partition.isr == (1, 2)
    written = len(three.world.log)
    (last,) = three.world.ask(again)
    assert type(last.error) is InvalidUpdateVersionError
    assert len(three.world.log) == written, "an epoch ends once"


def test_a_replica_whose_directory_is_offline_does_not_join() -> None:
    three = Three()
    second = three.restart(2, directories=(id16(8), id16(108)))
    three.alter(1, 3)
    three.world.beat(second, offline_directories=(id16(8),))
    assert three.refused(1, 3, 2) is IneligibleReplicaError


@pytest.mark.parametrize("isr", [(2, 3), (1, 1), (1, 4), ()], ids=repr)
def test_a_set_that_cannot_be_is_refused(isr: tuple[int, ...]) -> None:
    three = Three()
    epochs = tuple((each, three.brokers[0].broker_epoch) for each in isr)
    assert three.refused(isr=epochs) is InvalidRequestError


def test_what_does_not_exist_is_named_and_the_rest_is_done() -> None:
    three = Three()
    good = three.request(1, 2).partitions[0]
    request = dataclasses.replace(
        three.request(1),
        partitions=(
            dataclasses.replace(good, topic_id=id16(99)),
            dataclasses.replace(good, partition=5),
            good,
            good,
        ),
    )
    results = three.world.ask(request)
    assert [type(each.error) for each in results] == [
        UnknownTopicIdError,
        UnknownTopicOrPartitionError,
        type(None),
        InvalidRequestError,
    ]
    assert three.partition.isr == (1, 2)


def test_more_than_one_decision_may_change_is_left_for_another() -> None:
    world = ClusterWorld(metadata_max_records_per_request=4)
    brokers = [world.live_broker(number) for number in (7, 8)]
    topics = [world.create(f"t{each}", partitions=-1, assignments={0: (1, 2), 1: (1, 2)}) for each in range(3)]
    items = tuple(
        AlteredPartition(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=0,
            partition_epoch=0,
            isr=((1, brokers[0].broker_epoch),),
        )
        for topic in topics
        for number in range(2)
    )
    request = AlterPartition(
        broker_id=1,
        broker_epoch=brokers[0].broker_epoch,
        metadata_offset=world.image.next_offset,
        partitions=items,
    )
    results = world.ask(request)
    assert [each.error is None for each in results] == [True] * 4 + [False] * 2
    assert type(results[-1].error) is OperationNotAttemptedError
    results = world.ask(request)
    assert all(each.error is None for each in results), "the first four are so already, the others have room"


# -- recovery after an unclean election (KIP-704) ---------------------------------------------------------------------


def test_an_unclean_leader_is_alone_until_it_has_recovered() -> None:
    three = Three()
    three.alter(1)
    three.world.beat(three.brokers[0], want_fence=True)
    three.world.ask(ElectLeaders(ElectionType.UNCLEAN))
    assert (three.partition.leader, three.partition.isr, three.partition.recovering) == (2, (2,), True)
    assert three.refused(2, 3, leader=2, recovering=True) is InvalidRequestError
    assert three.alter(2, leader=2).recovering is False
    assert three.refused(2, leader=2, recovering=True) is InvalidRequestError, "who has recovered stays so"
    assert three.alter(2, 3, leader=2).error is None


# -- eligible leader replicas (KIP-966) -------------------------------------------------------------------------------


def test_who_leaves_an_isr_that_is_too_small_stays_eligible_until_it_is_large_enough() -> None:
    three = Three(minimum=2)
    three.alter(1, 2)
    assert three.partition.elr == (), "two commit without the third"
    three.alter(1)
    assert (three.partition.isr, three.partition.elr) == ((1,), (2,))
    three.alter(1, 3)
    assert (three.partition.isr, three.partition.elr) == ((1, 3), ())


def test_a_leader_that_does_not_know_the_minimum_gets_no_small_set() -> None:
    """With ISR {1} and a minimum of 1, broker 1 would commit alone. If the controllers counted broker 2 as eligible,
    they would elect it later without the records that broker 1 committed alone."""
    three = Three(minimum=1)
    late = three.request(1)
    op = ConfigOp(OpKind.SET, "min.insync.replicas", "2")
    three.world.ask(AlterConfigs((AlterResource((ConfigResourceType.TOPIC, "t"), (op,)),)))
    (result,) = three.world.ask(late)
    assert type(result.error) is OperationNotAttemptedError
    assert three.alter(1).error is None, "once it has applied the change"
    assert three.partition.elr == (2, 3)
    (result,) = three.world.ask(late)
    assert type(result.error) is OperationNotAttemptedError, "nor that it is so already"


def test_a_new_controller_does_not_know_who_knows_the_minimum() -> None:
    three = Three(minimum=2)
    early = dataclasses.replace(three.request(1), metadata_offset=three.world.image.next_offset - 1)
    three.world.core.lead(three.world.now_ms)
    (result,) = three.world.ask(early)
    assert type(result.error) is OperationNotAttemptedError
    assert three.alter(1).error is None


# -- random requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_is_answered_item_by_item_and_leaves_a_sound_state(seed: int) -> None:
    rng = random.Random(seed)
    three = Three(minimum=rng.choice([1, 2, 3]))
    epochs = [each.broker_epoch for each in three.brokers]
    for _ in range(60):
        items = tuple(
            AlteredPartition(
                topic_id=rng.choice([three.topic.topic_id] * 5 + [b"", id16(5)]),
                partition=rng.choice([0, 0, 0, 0, -1, 1, 2**31]),
                leader_epoch=three.partition.leader_epoch + rng.choice([0, 0, 0, 0, -1, 1]),
                partition_epoch=three.partition.partition_epoch + rng.choice([0, 0, 0, 0, -1, 1]),
                isr=tuple(
                    (rng.choice([1, 2, 3, 4, -1]), rng.choice([*epochs, -1])) if rng.random() < 0.2 else pair
                    for pair in enumerate(epochs, start=1)
                    if rng.random() < 0.8
                ),
                recovering=rng.random() < 0.1,
            )
            for _ in range(rng.randint(0, 3))
        )
        before = three.world.image
        results = three.world.ask(
            AlterPartition(
                broker_id=1,
                broker_epoch=epochs[0],
                metadata_offset=rng.choice([0, before.next_offset, 2**62]),
                partitions=items,
            )
        )
        assert [(each.topic_id, each.partition) for each in results] == [(i.topic_id, i.partition) for i in items]
        assert check_image(three.world.image) == [], f"seed {seed}: {items}"
        good = [each for each in results if each.error is None]
        assert all((each.isr, each.leader) == (three.partition.isr, 1) for each in good), f"seed {seed}"
