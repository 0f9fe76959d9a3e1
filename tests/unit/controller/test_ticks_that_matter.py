"""A controller wakes up only for ticks with an effect, and still notices every failure as early as before. Time passes
in steps of 10 ms, and a due node runs its turn at once. A tick is 100 ms, and a heartbeat is sent every 300 ms.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import HeartbeatsEnded
from headrace_controller.quorum_controller import DEFERRED_MS_MAX, QuorumController, QuorumSettings
from headrace_controller.raft import HeartbeatRequest, Message, RaftNode, Role
from headrace_controller.raft.types import VoteRequest
from tests.unit.controller.raft_schedule import Schedule
from tests.worlds.cluster_world import ClusterWorld
from tests.worlds.quorum_world import QuorumWorld

HEARTBEAT_MS = 300
STEP_MS = 10


class Clocked:
    """A world whose controllers sleep until they are due, with the turns counted. With ``is_busy``, a message arrives
    just before the turn at the end of every sleep."""

    def __init__(
        self,
        *,
        is_busy: bool = False,
        settings: QuorumSettings | None = None,
        cluster: ClusterSettings | None = None,
    ) -> None:
        self.world = QuorumWorld(3, random.Random(7), settings=settings, cluster=cluster)
        self.is_busy = is_busy
        self.arrived = 0
        self.world.elect()
        self.world.pass_ms(3_000)
        self.turns: Counter[int] = Counter()
        self.sent: list[tuple[float, Message]] = []

    @property
    def now_ms(self) -> float:
        return self.world.clock.monotonic_ms()

    @property
    def leader(self) -> QuorumController:
        return self.world.leader

    @property
    def followers(self) -> list[QuorumController]:
        return [each for each in self.world.alive() if each.role is not Role.LEADER]

    def pass_ms(self, ms: float) -> None:
        for _ in range(int(ms / STEP_MS)):
            self.world.clock.advance(STEP_MS)
            if self.is_busy:
                self.arrive()
            self._settle()

    def arrive(self) -> None:
        """Deliver to every node whose turn has come."""
        for each in self.world.alive():
            if each.until_due_ms() <= 0:
                each.submit(HeartbeatsEnded(99, 0, 0), None)
                self.arrived += 1

    def until_votes_are_asked(self) -> float:
        """The time until one of the nodes requests votes."""
        began_ms, begun = self.now_ms, len(self.sent)
        for _ in range(1_000):
            self.pass_ms(STEP_MS)
            if any(isinstance(message.body, VoteRequest) for _, message in self.sent[begun:]):
                return self.now_ms - began_ms
        raise AssertionError("no node asks for votes")

    def _settle(self) -> None:
        for _ in range(100):
            due = [each for each in self.world.alive() if each.until_due_ms() <= 0]
            if not due and not self.world.network:
                return
            for each in due:
                self.turns[each.node_id] += 1
                self.world.turn(each.node_id)
            self.sent += [(self.now_ms, message) for message in self.world.network]
            self.world.deliver()
        raise AssertionError("they never come to rest")


def test_in_an_idle_quorum_there_is_a_turn_for_each_heartbeat_and_no_other() -> None:
    """The leader is an exception: once a second it checks whether a majority answers."""
    clocked = Clocked()
    term = clocked.leader.term
    clocked.pass_ms(30_000)
    rounds = 30_000 / HEARTBEAT_MS
    for controller in clocked.world.alive():
        most = rounds + 2 + (30 if controller is clocked.leader else 0)
        assert clocked.turns[controller.node_id] <= most, f"controller {controller.node_id}"
        assert clocked.turns[controller.node_id] >= rounds - 2
    beats = [message for _, message in clocked.sent if isinstance(message.body, HeartbeatRequest)]
    assert len(beats) in range(int(2 * rounds) - 4, int(2 * rounds) + 5)
    assert (clocked.leader.is_active, clocked.leader.term) == (True, term)


def test_no_tick_is_lost_when_something_arrives_just_when_a_sleep_is_over() -> None:
    """A socket's callback runs in the same round of the event loop in which the timer fires."""
    clocked = Clocked(is_busy=True)
    ticks, began_ms = clocked.leader.raft.ticks, clocked.now_ms
    clocked.pass_ms(12_000)
    assert clocked.arrived > 30
    assert clocked.leader.raft.ticks - ticks == 120
    beats = [at for at, message in clocked.sent if isinstance(message.body, HeartbeatRequest) if at > began_ms]
    assert {round(later - at) for at, later in pairwise(sorted(set(beats)))} == {HEARTBEAT_MS}


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_leader_that_falls_silent_is_missed_after_one_to_two_time_outs(is_busy: bool) -> None:
    """The leader's machine fails without closing its connections."""
    for seed in range(20):
        clocked = Clocked(is_busy=is_busy)
        clocked.pass_ms(random.Random(seed).randrange(500))
        clocked.world.isolate(clocked.leader.node_id)
        taken_ms = clocked.until_votes_are_asked()
        # (The leader's last heartbeat came up to 300 ms before the leader stopped sending.)
        assert 1_000 - HEARTBEAT_MS - 100 <= taken_ms <= 2_000 + 100


def test_a_connection_to_the_leader_that_breaks_is_waited_for_from_then_on_for_one_to_three_ticks() -> None:
    """When the leader's machine fails, a part of a long sleep may be over. Ticks that were not counted yet are not part
    of the wait; otherwise both followers would stand for election at once and split the votes."""
    taken: set[float] = set()
    for seed in range(30):
        clocked = Clocked()
        clocked.pass_ms(STEP_MS * random.Random(seed).randrange(30))
        dead = clocked.leader.node_id
        clocked.world.kill(dead)
        taken.add(clocked.until_votes_are_asked())
    assert min(taken) > 0
    assert max(taken) <= 300 + STEP_MS
    assert len(taken) > 3


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_pause_of_the_process_counts_for_no_more_than_what_was_slept_for(is_busy: bool) -> None:
    clocked = Clocked()
    clocked.pass_ms(50)
    term = clocked.leader.term
    for controller in clocked.followers:
        before = controller.raft.ticks
        clocked.world.clock.advance(60_000)
        if is_busy:
            clocked.arrive()
        clocked.world.turn(controller.node_id)
        assert controller.raft.ticks - before <= HEARTBEAT_MS / 100 + 1
        assert controller.role is Role.FOLLOWER, "what is in its sockets is heard first"
    clocked.pass_ms(3_000)
    assert {each.term for each in clocked.world.alive()} == {term}


def test_a_voter_asked_for_its_vote_in_the_midst_of_a_sleep_remembers_how_long_it_had_no_contact() -> None:
    """A voter refuses votes for an election time-out after the leader's last message. Ticks that are not counted yet do
    not shorten the time in which a voter refuses votes."""
    clocked = Clocked()
    leader, (one, other) = clocked.leader, clocked.followers
    contact_ms = clocked.now_ms
    while not any(isinstance(message.body, HeartbeatRequest) for at, message in clocked.sent if at > contact_ms):
        clocked.pass_ms(STEP_MS)
    clocked.world.isolate(leader.node_id)
    clocked.world.isolate(one.node_id)
    other.raft.may_lead = False  # it does not stand for election itself
    asked = VoteRequest(one.term + 1, one.raft.log.end, is_pre_vote=True)
    answers: dict[int, bool] = {}
    for ms in range(0, 1_500, 50):
        clocked.pass_ms(50)
        other.receive(Message(one.key, other.key, asked))
        other.begin()
        other.finish()
        answers[ms + 50] = any(
            message.body.is_granted for message in clocked.world.network if message.sender == other.key
        )
        clocked.world.network.clear()
    refused = [ms for ms, is_granted in answers.items() if not is_granted]
    assert 800 <= max(refused) <= 1_050, answers


def test_a_broker_whose_connection_broke_is_fenced_when_its_grace_is_over_and_not_with_the_next_heartbeats() -> None:
    """The broker is fenced at the first tick after 500 ms, so after 500 to 600 ms."""
    for seed in range(20):
        clocked = Clocked()
        world = clocked.world
        world.live_broker(7)
        clocked.pass_ms(3_000 + STEP_MS * random.Random(seed).randrange(30))
        (broker_id,) = clocked.leader.image.brokers
        broker = clocked.leader.image.brokers[broker_id]
        assert not broker.fenced
        world.ask(clocked.leader.node_id, HeartbeatsEnded(broker_id, broker.broker_epoch, 0))
        began_ms = clocked.now_ms
        while not clocked.leader.image.brokers[broker_id].fenced:
            clocked.pass_ms(STEP_MS)
            assert clocked.now_ms - began_ms <= 620
        assert clocked.now_ms - began_ms > 500


@pytest.mark.parametrize(
    ("session_ms", "election_ms"), [(9_000, 1_000), (550, 1_000), (9_000, 16_000)], ids="{}".format
)
def test_a_broker_that_is_silent_is_fenced_however_long_an_idle_leader_sleeps(
    session_ms: int, election_ms: int
) -> None:
    """No other event wakes the controller, and its sleep does not count as a pause of the process."""
    settings = QuorumSettings(election_timeout_ms=election_ms)
    sessions = ClusterSettings(
        broker_session_timeout_ms=session_ms, broker_session_disconnect_grace_ms=min(session_ms, 500)
    )
    clocked = Clocked(settings=settings, cluster=sessions)
    clocked.world.live_broker(7)
    began_ms = clocked.now_ms
    (broker_id,) = clocked.leader.image.brokers
    while not clocked.leader.image.brokers[broker_id].fenced:
        clocked.pass_ms(STEP_MS)
        assert clocked.now_ms - began_ms <= session_ms + settings.heartbeat_ms + settings.tick_ms
    assert clocked.now_ms - began_ms > session_ms


def test_a_pause_of_the_leader_is_forgiven_to_brokers() -> None:
    clocked = Clocked()
    clocked.world.live_broker(7)
    (broker_id,) = clocked.leader.image.brokers
    clocked.pass_ms(1_000)
    clocked.world.clock.advance(60_000)
    clocked.pass_ms(8_500)
    assert not clocked.leader.image.brokers[broker_id].fenced
    clocked.pass_ms(1_500)
    assert clocked.leader.image.brokers[broker_id].fenced


@pytest.mark.parametrize("election_ms", [1_000, 2_000, 2_500, 16_000])
def test_a_deferred_question_waits_for_heartbeats_unless_they_are_far_apart(election_ms: int) -> None:
    settings = QuorumSettings(election_timeout_ms=election_ms)
    clocked = Clocked(settings=settings)
    clocked.pass_ms(4 * settings.heartbeat_ms)
    waited: list[float] = []
    for _ in range(20):
        clocked.pass_ms(130)
        answers: list[Any] = []
        began_ms = clocked.now_ms
        clocked.leader.read(answers.append, is_deferred=True)
        while not answers:
            clocked.pass_ms(STEP_MS)
            assert clocked.now_ms - began_ms <= DEFERRED_MS_MAX + STEP_MS
        assert isinstance(answers[0], int)
        waited.append(clocked.now_ms - began_ms)
    if settings.heartbeat_ms > DEFERRED_MS_MAX:
        assert max(waited) <= STEP_MS
    else:
        assert max(waited) > settings.heartbeat_ms / 2


def test_upkeep_is_due_until_it_has_found_nothing_and_then_when_a_session_may_be_over() -> None:
    world = ClusterWorld()
    broker = world.live_broker(7)
    world.create("t", partitions=-1, assignments={0: (1,)})
    assert world.core.next_upkeep_ms(world.now_ms) == world.now_ms, "no node has looked at what was decided"
    assert not world.core.upkeep(world.now_ms).records
    contact_ms = world.now_ms
    assert world.core.next_upkeep_ms(world.now_ms) == contact_ms + 9_000
    world.now_ms += 2_000
    world.beat(broker)
    assert world.core.next_upkeep_ms(world.now_ms) == contact_ms + 11_000, "a heartbeat alone is nothing to look at"
    world.ask(HeartbeatsEnded(broker.broker_id, broker.broker_epoch, 0))
    assert world.core.next_upkeep_ms(world.now_ms) == world.now_ms + 500
    world.now_ms += 501
    decision = world.core.upkeep(world.now_ms)
    assert decision.records, "the broker is fenced"
    world.core.accept(decision, len(world.log) + len(decision.records), epoch=1)
    assert world.core.next_upkeep_ms(world.now_ms) == world.now_ms


class Watched(RaftNode):
    """Counts the ticks without an effect for which none was predicted."""

    idle = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = kwargs["settings"]
        kwargs["settings"] = replace(settings, heartbeat_ticks=max(settings.election_ticks - 2, 1))
        super().__init__(*args, **kwargs)

    def tick(self) -> None:
        left = self.ticks_until_due
        assert 1 <= left <= self.settings.heartbeat_ticks + 1
        before = self._seen()
        super().tick()
        if left > 1:
            Watched.idle += 1
            assert self._seen() == before, f"a tick was to come to nothing, {left - 1} before one that may not"
            assert self.ticks_until_due >= left - 1

    def _seen(self) -> tuple[object, ...]:
        reads = self._reads.are_asked, len(self._reads_failed)
        return self.role, self.term, self.leader, len(self._messages), len(self._replies), self._transfer_to, reads


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nothing_comes_of_the_ticks_before_the_one_that_is_named(first: int) -> None:
    Watched.idle = 0
    for seed in range(first, first + 20):
        Schedule(seed, Watched).run()
    assert Watched.idle > 1_000
