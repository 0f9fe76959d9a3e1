"""Shards of groups and transactions: each has one owner at a time, epochs only grow, and few shards move."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_controller.cluster.decision import Decision
from headrace_controller.cluster.requests import (
    CoordinatorHeartbeat,
    CoordinatorHeartbeatsEnded,
    CoordinatorRegistered,
    RegisterCoordinator,
)
from headrace_controller.cluster.sessions import FIRST_HEARTBEAT_MS
from headrace_controller.cluster.shards import NO_OWNER, Key, assign
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import BrokerEndpoint, RemoveTopicRecord
from tests.worlds.cluster_world import CLUSTER, MovesWorld, id16

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class Shards(MovesWorld):
    """One broker, the two topics, and coordinators by the name of their process."""

    def __init__(self, groups: int = 10, transactions: int = 4) -> None:
        super().__init__(1)
        self.create(GROUPS, partitions=groups)
        if transactions:
            self.create(TRANSACTIONS, partitions=transactions)
        self.living: dict[int, CoordinatorRegistered] = {}
        self.seen: dict[tuple[Key, int], int] = {}

    def start(self, process: int, *, wanted: int = -1, **other: Any) -> CoordinatorRegistered:
        given: dict[str, Any] = {"cluster_id": CLUSTER, "incarnation_id": id16(process), **other}
        given.setdefault("endpoints", (BrokerEndpoint("internal", "h", 1),))
        reply = self.ask(RegisterCoordinator(wanted_id=wanted, **given))
        assert isinstance(reply, CoordinatorRegistered)
        self.living[process] = reply
        self.upkeep()
        return reply

    def lives(self, process: int, *, stop: bool = False) -> bool:
        """Send a heartbeat, and return whether the process may stop."""
        who = self.living[process]
        request = CoordinatorHeartbeat(who.coordinator_id, who.coordinator_epoch, want_shutdown=stop, stream=process)
        return bool(self.ask(request).should_shutdown)

    def breaks(self, process: int) -> None:
        who = self.living[process]
        self.ask(CoordinatorHeartbeatsEnded(who.coordinator_id, who.coordinator_epoch, stream=process))

    def wait(self, ms: float, *, but: tuple[int, ...] = ()) -> None:
        for _ in range(int(ms // 1_000)):
            self.pass_time(1_000)
            for process, who in list(self.living.items()):
                known = self.image.ledger.coordinators.get(who.coordinator_id)
                if process not in but and known is not None and known.coordinator_epoch == who.coordinator_epoch:
                    self.lives(process)
            self.check()

    def owners(self, topic: str) -> dict[int, int]:
        topic_id = self.image.topic_ids[topic]
        return {
            number: shard.coordinator_id
            for (of_topic, number), shard in self.image.ledger.shards.items()
            if of_topic == topic_id
        }

    def check(self) -> None:
        """Check that no epoch ever has two owners."""
        for key, shard in self.image.ledger.shards.items():
            assert self.seen.setdefault((key, shard.shard_epoch), shard.coordinator_id) == shard.coordinator_id


def epochs(world: Shards) -> dict[Key, int]:
    return {key: shard.shard_epoch for key, shard in world.image.ledger.shards.items()}


def test_the_first_coordinator_owns_everything_and_the_next_ones_get_their_share_with_few_moves() -> None:
    world = Shards()
    assert not world.image.ledger.shards
    world.start(1)
    assert set(world.owners(GROUPS).values()) == {1}
    assert len(world.image.ledger.shards) == 14
    before = epochs(world)
    world.start(2)
    assert Counter(world.owners(GROUPS).values()) == {1: 5, 2: 5}
    assert Counter(world.owners(TRANSACTIONS).values()) == {1: 2, 2: 2}
    moved = [key for key, epoch in epochs(world).items() if epoch != before[key]]
    assert len(moved) == 7
    world.start(3)
    assert sorted(Counter(world.owners(GROUPS).values()).values()) == [3, 3, 4]


def test_shards_of_a_coordinator_that_falls_silent_go_to_the_others_with_new_epochs() -> None:
    world = Shards()
    world.start(1)
    world.start(2)
    before = epochs(world)
    lost = {number for number, owner in world.owners(GROUPS).items() if owner == 2}
    world.lives(2)
    world.wait(8_000, but=(2,))
    assert epochs(world) == before
    world.wait(3_000, but=(2,))
    assert set(world.owners(GROUPS).values()) == {1}
    topic_id = world.image.topic_ids[GROUPS]
    for number in range(10):
        assert epochs(world)[topic_id, number] == before[topic_id, number] + (number in lost)
    assert sorted(world.image.ledger.coordinators) == [1]
    with pytest.raises(BrokerIdNotRegisteredError):
        world.lives(2)


def test_a_broken_stream_starts_a_short_grace_and_another_stream_ends_it() -> None:
    world = Shards()
    world.start(1)
    world.start(2)
    world.lives(1)
    world.lives(2)
    world.breaks(2)
    world.pass_time(400)
    assert len(world.image.ledger.coordinators) == 2
    world.lives(2)
    world.pass_time(1_000)
    assert len(world.image.ledger.coordinators) == 2
    world.breaks(2)
    world.pass_time(400)
    world.pass_time(400)
    assert sorted(world.image.ledger.coordinators) == [1]
    assert set(world.owners(GROUPS).values()) == {1}


def test_a_coordinator_that_dies_between_its_registration_and_its_first_heartbeat_is_gone_soon() -> None:
    """The coordinator never had a stream whose end would show its death. Without a limit for the first heartbeat, the
    coordinator's shards would stay for a whole session."""
    world = Shards()
    world.start(1)
    world.lives(1)
    world.start(2)
    assert 2 in world.owners(GROUPS).values(), "it owns shards from its registration on"
    world.start(2)  # the answer was lost, and the coordinator asks again
    world.pass_time(FIRST_HEARTBEAT_MS)
    world.lives(1)
    assert sorted(world.image.ledger.coordinators) == [1, 2]
    world.pass_time(1)
    assert sorted(world.image.ledger.coordinators) == [1]
    assert set(world.owners(GROUPS).values()) == {1}


def test_a_first_heartbeat_gives_a_coordinator_its_whole_session() -> None:
    world = Shards()
    world.start(1)
    world.pass_time(FIRST_HEARTBEAT_MS)
    world.lives(1)
    world.pass_time(9_000)
    assert sorted(world.image.ledger.coordinators) == [1]
    world.pass_time(1)
    assert not world.image.ledger.coordinators


def test_a_stream_that_breaks_before_its_first_heartbeat_is_decided_starts_the_grace() -> None:
    world = Shards()
    world.start(1)
    world.lives(1)
    world.start(2)
    world.breaks(2)
    world.pass_time(501)
    assert sorted(world.image.ledger.coordinators) == [1]


def test_a_controller_that_stood_still_blames_no_coordinator_and_still_hears_streams_end() -> None:
    world = Shards()
    world.start(1)
    world.start(2)
    world.lives(1)
    world.lives(2)
    world.breaks(2)
    world.now_ms += 60_000
    world.core.stood_still(world.now_ms)
    world.upkeep()
    assert sorted(world.image.ledger.coordinators) == [1, 2]
    world.lives(2)
    world.core.stood_still(world.now_ms)
    world.breaks(2)
    world.pass_time(501)
    assert sorted(world.image.ledger.coordinators) == [1], "the stream was known from before"


def test_one_that_wants_to_stop_hands_its_shards_over_first() -> None:
    world = Shards()
    world.start(1)
    world.start(2)
    assert not world.lives(2, stop=True)
    assert world.image.ledger.coordinators[2].draining
    assert set(world.owners(GROUPS).values()) == {1}
    world.start(3)
    assert 2 not in world.owners(GROUPS).values(), "it gets none of the new ones either"
    assert world.lives(2, stop=True)
    assert sorted(world.image.ledger.coordinators) == [1, 3]


def test_the_last_coordinator_may_stop_too_and_its_shards_are_nobodys() -> None:
    world = Shards()
    world.start(1)
    assert not world.lives(1, stop=True)
    assert set(world.owners(GROUPS).values()) == {NO_OWNER}
    assert world.lives(1, stop=True)
    world.upkeep()
    before = epochs(world)
    world.start(2)
    assert set(world.owners(GROUPS).values()) == {1}, "the name is free again"
    assert all(epochs(world)[key] == before[key] + 1 for key in before)


def test_a_process_that_comes_back_under_its_name_gets_new_epochs_for_the_same_shards() -> None:
    world = Shards()
    first = world.start(1, wanted=7)
    assert world.start(1, wanted=7) == first, "the same process asked again"
    world.start(2)
    before, owners = epochs(world), world.owners(GROUPS)
    world.lives(1)
    with pytest.raises(DuplicateBrokerRegistrationError, match="coordinator id 7"):
        world.start(3, wanted=7)
    world.breaks(1)
    second = world.start(4, wanted=7)
    assert second.coordinator_id == 7
    assert second.coordinator_epoch > first.coordinator_epoch
    assert world.owners(GROUPS) == owners
    mine = {key for key, shard in world.image.ledger.shards.items() if shard.coordinator_id == 7}
    assert all(epochs(world)[key] == before[key] + (key in mine) for key in before)
    with pytest.raises(StaleBrokerEpochError):
        world.lives(1)


def test_an_echo_of_a_former_life_keeps_nobody_alive_and_ends_nobody() -> None:
    world = Shards()
    world.start(1, wanted=7)
    world.lives(1)
    world.breaks(1)
    world.start(2, wanted=7)
    world.lives(2)
    world.breaks(1)
    world.pass_time(1_000)
    world.lives(2)
    assert sorted(world.image.ledger.coordinators) == [7]


def test_a_new_leader_of_the_controllers_takes_nobodys_shards_in_haste() -> None:
    world = Shards()
    world.start(1)
    world.start(2)
    world.pass_time(8_000)
    before = epochs(world)
    world.core.resign()
    world.core.lead(world.now_ms)
    world.pass_time(8_000)
    assert epochs(world) == before
    world.pass_time(2_000)
    assert set(world.owners(GROUPS).values()) == {NO_OWNER}


def test_topics_that_come_get_owners_and_deleted_ones_lose_theirs() -> None:
    world = Shards(transactions=0)
    world.start(1)
    world.start(2)
    world.create(TRANSACTIONS, partitions=3)
    world.upkeep()
    assert len(world.owners(TRANSACTIONS)) == 3
    gone = RemoveTopicRecord(world.image.topic_ids[GROUPS])  # clients cannot delete it, but older logs say so
    world.log.append(gone)
    world.core.accept(Decision((gone,)), len(world.log), epoch=1)
    world.commit()
    assert len(world.image.ledger.shards) == 3


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"cluster_id": "other"}, InconsistentClusterIdError),
        ({"incarnation_id": b"short"}, InvalidRequestError),
        ({"endpoints": ()}, InvalidRequestError),
        ({"endpoints": (BrokerEndpoint("internal", "", 1),)}, InvalidRequestError),
        ({"endpoints": (BrokerEndpoint("internal", "h", 0),)}, InvalidRequestError),
        ({"rack": "r" * 300}, InvalidRequestError),
        ({"wanted": -2}, InvalidRequestError),
    ],
)
def test_impossible_registrations_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    world = Shards()
    with pytest.raises(error):
        world.start(1, **wrong)
    assert not world.image.ledger.coordinators


def test_a_coordinator_that_does_not_heartbeat_at_all_is_gone() -> None:
    world = Shards()
    with pytest.raises(BrokerIdNotRegisteredError):
        world.ask(CoordinatorHeartbeat(5, 1))
    world.ask(CoordinatorHeartbeatsEnded(5, 1))
    world.start(1)
    world.pass_time(10_000)
    assert not world.image.ledger.coordinators


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    coordinators=st.lists(st.integers(1, 9), unique=True, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_any_owners_become_even_with_as_few_moves_as_can(sizes: list[int], coordinators: list[int], seed: int) -> None:
    rng = random.Random(seed)
    topics = []
    for topic, size in enumerate(sizes):
        topics.append({(bytes([topic]), number): rng.choice([*range(1, 10), NO_OWNER]) for number in range(size)})
    changes = assign(topics, coordinators)
    for shards in topics:
        after = {key: changes.get(key, owner) for key, owner in shards.items()}
        if not coordinators:
            assert set(after.values()) <= {NO_OWNER}
            continue
        held = Counter(after.values())
        assert set(held) <= set(coordinators)
        counts = [held[each] for each in coordinators]
        assert max(counts) - min(counts) <= 1
        before = Counter(owner for owner in shards.values() if owner in coordinators)
        least, odd = divmod(len(shards), len(coordinators))
        kept = sorted((before[each] for each in coordinators), reverse=True)
        could_stay = sum(min(count, least + (place < odd)) for place, count in enumerate(kept))
        assert sum(key in changes for key in shards) == len(shards) - could_stay
    after_all = [{key: changes.get(key, owner) for key, owner in shards.items()} for shards in topics]
    assert assign(after_all, coordinators) == {}


def test_coordinators_come_go_and_stop_and_no_shard_ever_has_two_owners_under_one_epoch(seed: int) -> None:
    for schedule in range(6):
        rng = random.Random(seed + schedule)
        world = Shards(groups=7, transactions=3)
        process = 0
        away: set[int] = set()
        for _ in range(60):
            act = rng.random()
            living = [
                each
                for each, who in world.living.items()
                if who.coordinator_id in world.image.ledger.coordinators
                and world.image.ledger.coordinators[who.coordinator_id].coordinator_epoch == who.coordinator_epoch
            ]
            if act < 0.3 and len(living) < 6:
                process += 1
                world.start(process, wanted=rng.choice([-1, -1, 20 + process]))
            elif act < 0.4 and living:
                away.add(rng.choice(living))
            elif act < 0.5 and living:
                world.breaks(rng.choice(living))
            elif act < 0.6 and living:
                world.lives(rng.choice(living), stop=True)
            elif act < 0.65:
                world.core.resign()
                world.core.lead(world.now_ms)
            world.wait(rng.choice([1_000, 1_000, 4_000]), but=tuple(away))
        process += 1
        world.start(process)
        world.wait(20_000, but=tuple(away))
        taking = {each.coordinator_id for each in world.image.ledger.coordinators.values() if not each.draining}
        for topic in (GROUPS, TRANSACTIONS):
            held = Counter(world.owners(topic).values())
            assert set(held) <= taking, seed + schedule
            assert max(held.values()) - min(held[each] for each in taking) <= 1, seed + schedule
        assert max(epochs(world).values()) > 5, "hardly anything happened"
