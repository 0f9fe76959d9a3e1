"""A node that died together with the leading controller is fenced two heartbeat intervals after the new leader began to
serve. A node that lives is not fenced because its new leader is slow."""

from __future__ import annotations

import random

import pytest

from headrace_controller.cluster.requests import (
    CoordinatorHeartbeat,
    CoordinatorRegistered,
    Heartbeat,
    HeartbeatsEnded,
    RegisterCoordinator,
)
from headrace_core.errors import StaleBrokerEpochError
from headrace_core.metadata import BrokerEndpoint
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16
from tests.worlds.quorum_world import QuorumWorld

WINDOW_MS, SESSION_MS = 4_000, 9_000


class Term:
    """Three brokers and two coordinators, which lived under the old leader, at the beginning of a new leader's term."""

    def __init__(self, **settings: int) -> None:
        self.world = ClusterWorld(**settings)
        self.brokers = [self.world.live_broker(number) for number in (7, 8, 9)]
        self.coordinators = [self.coordinator(number) for number in (1, 2)]
        self.world.create("t", partitions=-1, assignments={0: (1, 2, 3)})
        self.began_ms = self.world.now_ms
        self.lead()

    def coordinator(self, number: int) -> CoordinatorRegistered:
        request = RegisterCoordinator(
            cluster_id=CLUSTER, incarnation_id=id16(500 + number), endpoints=(BrokerEndpoint("client", "h", number),)
        )
        reply: CoordinatorRegistered = self.world.ask(request)
        self.coordinator_lives(reply)
        return reply

    def lead(self) -> None:
        self.world.core.resign()
        self.world.core.lead(self.world.now_ms)

    def reaches(self, *numbers: int, stream: int = 1) -> None:
        for number in numbers:
            self.world.beat(self.brokers[number - 1], stream=stream)

    def coordinator_lives(self, coordinator: CoordinatorRegistered) -> None:
        self.world.ask(CoordinatorHeartbeat(coordinator.coordinator_id, coordinator.coordinator_epoch, stream=1))

    def after(self, ms: float) -> set[int | str]:
        """The nodes that are fenced, or removed, when ``ms`` have passed since the term began."""
        world = self.world
        world.now_ms = self.began_ms + ms
        while (decision := world.core.upkeep(world.now_ms)).records:
            world.log += decision.records
            world.core.accept(decision, len(world.log), epoch=1)
            world.commit()
        fenced: set[int | str] = {each.broker_id for each in world.image.brokers.values() if each.fenced}
        left = world.image.ledger.coordinators
        return fenced | {
            f"coordinator {each.coordinator_id}" for each in self.coordinators if each.coordinator_id not in left
        }


@pytest.fixture
def term() -> Term:
    return Term()


def test_a_node_that_does_not_reach_the_new_leader_is_fenced_after_two_heartbeat_intervals(term: Term) -> None:
    term.reaches(2, 3)
    term.coordinator_lives(term.coordinators[0])
    assert term.after(WINDOW_MS) == set()
    assert term.after(WINDOW_MS + 1) == {1, "coordinator 2"}
    assert term.world.partition("t").leader == 2


def test_two_nodes_of_one_role_that_died_with_the_leader_are_fenced_together(term: Term) -> None:
    term.reaches(3)
    assert term.after(WINDOW_MS + 1) == {1, 2, "coordinator 1", "coordinator 2"}
    assert term.world.partition("t").leader == 3


def test_a_coordinator_alone_begins_the_window_of_the_brokers(term: Term) -> None:
    term.coordinator_lives(term.coordinators[0])
    assert term.after(WINDOW_MS + 1) == {1, 2, 3, "coordinator 2"}


def test_a_leader_that_no_node_reaches_takes_nobody_for_dead_before_a_session(term: Term) -> None:
    assert term.after(SESSION_MS) == set()
    assert len(term.after(SESSION_MS + 1)) == 5


def test_the_window_is_counted_from_the_first_contact_of_any_node(term: Term) -> None:
    assert term.after(3_000) == set()
    term.reaches(2)
    assert term.after(3_000 + WINDOW_MS) == set()
    assert 1 in term.after(3_000 + WINDOW_MS + 1)


def test_the_window_never_makes_a_session_longer(term: Term) -> None:
    term.after(SESSION_MS - 1_000)
    term.reaches(2)
    assert term.after(SESSION_MS) == set()
    assert 1 in term.after(SESSION_MS + 1)


@pytest.mark.parametrize("pause_ms", [600, 1_500, 3_900])
def test_a_leader_that_stood_still_counts_anew(term: Term, pause_ms: int) -> None:
    term.reaches(2)
    term.after(WINDOW_MS - 100)
    term.world.now_ms += pause_ms
    term.world.core.served_late(term.world.now_ms)
    resumed_ms = WINDOW_MS - 100 + pause_ms
    term.reaches(2)
    over_ms = min(resumed_ms + WINDOW_MS, SESSION_MS)
    assert term.after(over_ms) == set()
    assert 1 in term.after(over_ms + 1)


def test_a_leader_that_stood_still_before_anybody_reached_it_waits_for_the_first_contact(term: Term) -> None:
    term.world.core.served_late(term.began_ms + 1_000)
    assert term.after(1_000 + WINDOW_MS + 1) == set()


def test_a_long_pause_gives_every_node_its_session_again(term: Term) -> None:
    term.reaches(2)
    term.world.now_ms += 60_000
    term.world.core.served_late(term.world.now_ms)
    term.world.core.stood_still(term.world.now_ms)
    assert term.after(60_000 + WINDOW_MS) == set()
    assert 1 in term.after(60_000 + WINDOW_MS + 1)


def test_who_reached_the_leader_once_has_a_session_from_then_on(term: Term) -> None:
    term.reaches(1, 2, 3)
    for each in term.coordinators:
        term.coordinator_lives(each)
    assert term.after(SESSION_MS) == set()
    assert len(term.after(SESSION_MS + 1)) == 5


def test_a_stream_to_this_controller_in_an_earlier_term_is_no_contact(term: Term) -> None:
    term.world.ask(HeartbeatsEnded(1, term.brokers[0].broker_epoch, 1))
    assert term.after(WINDOW_MS + 501) == set(), "neither the window nor a grace period began"
    term.reaches(2)
    term.world.ask(HeartbeatsEnded(1, term.brokers[0].broker_epoch, 1))
    over_ms = WINDOW_MS + 501 + WINDOW_MS
    assert 1 not in term.after(over_ms)
    assert 1 in term.after(over_ms + 1)


def test_a_heartbeat_of_a_former_life_is_no_contact(term: Term) -> None:
    second = term.world.register(7, life=1)
    term.lead()
    with pytest.raises(StaleBrokerEpochError):
        term.world.beat(term.brokers[0], stream=1)
    assert term.after(WINDOW_MS + 1) == {1}, "it was fenced by its registration"
    assert second.broker_id == 1


def test_each_term_begins_its_own_window(term: Term) -> None:
    term.reaches(2)
    term.after(WINDOW_MS - 100)
    term.lead()
    assert term.after(WINDOW_MS + 1_000) == set(), "nobody has reached this leader in its new term"
    term.reaches(2)
    assert 1 in term.after(WINDOW_MS + 1_000 + WINDOW_MS + 1)


@pytest.mark.parametrize(
    ("interval_ms", "session_ms", "over_ms"),
    [
        (1_500, 9_000, 3_000),
        (3_000, 9_000, 6_000),
        (2_000, 3_000, 3_000),  # at most a session
        (100, 9_000, 2_000),  # a node does not notice the old leader's silence sooner
        (100, 3_000, 1_500),
    ],
)
def test_the_window_follows_the_heartbeat_interval_within_limits(
    interval_ms: int, session_ms: int, over_ms: int
) -> None:
    term = Term(broker_heartbeat_interval_ms=interval_ms, broker_session_timeout_ms=session_ms)
    term.reaches(2)
    assert term.after(over_ms) == set()
    assert 1 in term.after(over_ms + 1)


def test_upkeep_is_due_when_the_window_ends(term: Term) -> None:
    term.reaches(1, 2)
    for each in term.coordinators:
        term.coordinator_lives(each)
    assert term.after(100) == set()
    assert term.world.core.next_upkeep_ms(term.world.now_ms) == term.began_ms + WINDOW_MS


# -- with the controller's turns, which notice pauses -----------------------------------------------------------------


class Elected:
    """Three controllers, whose first leader was killed, and two brokers from before. The new leader is active."""

    def __init__(self) -> None:
        self.quorum = QuorumWorld(3, random.Random(7))
        first = self.quorum.elect()
        self.quorum.live_broker(7)
        self.quorum.live_broker(8)
        self.quorum.pass_ms(500)
        self.quorum.kill(first.node_id)
        self.leader = self.quorum.elect_other_than(first.node_id)

    def reaches(self, broker_id: int) -> None:
        image = self.leader.image
        epoch = image.brokers[broker_id].broker_epoch
        self.quorum.do(Heartbeat(broker_id=broker_id, broker_epoch=epoch, metadata_offset=image.next_offset, stream=1))

    def stands_still(self, ms: int) -> None:
        self.quorum.clock.advance(ms)
        self.quorum.settle()

    def fenced(self) -> list[int]:
        return [each.broker_id for each in self.leader.image.brokers.values() if each.fenced]

    def ms_until_fenced(self) -> int:
        began_ms = self.quorum.clock.monotonic_ms()
        self.quorum.until(lambda: bool(self.fenced()))
        assert self.leader.is_active
        return round(self.quorum.clock.monotonic_ms() - began_ms)


def test_a_new_leader_fences_the_dead_broker_in_time_and_keeps_the_other() -> None:
    elected = Elected()
    elected.reaches(2)
    assert elected.ms_until_fenced() in range(WINDOW_MS, WINDOW_MS + 301)
    assert elected.fenced() == [1]


def test_a_new_leader_that_is_suspended_for_a_moment_counts_from_the_end_of_the_pause() -> None:
    elected = Elected()
    elected.reaches(2)
    elected.quorum.pass_ms(3_000)
    elected.reaches(2)
    elected.stands_still(900)
    assert elected.ms_until_fenced() in range(WINDOW_MS, WINDOW_MS + 301)
    assert elected.fenced() == [1]


def test_the_sleep_of_an_idle_leader_is_no_pause() -> None:
    elected = Elected()
    elected.reaches(2)
    for _ in range(9):
        elected.stands_still(450)
    assert elected.fenced() == [1], "4,050 ms"


def test_a_broker_that_comes_while_a_new_leader_stands_still_again_and_again_is_not_fenced() -> None:
    elected = Elected()
    elected.reaches(2)
    for _ in range(7):
        elected.stands_still(1_000)
        elected.reaches(2)
    assert elected.fenced() == []
    elected.reaches(1)
    elected.quorum.pass_ms(3_000)
    assert elected.fenced() == []
