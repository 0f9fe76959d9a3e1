"""Several controllers: elections, commits, and the responses to callers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headrace_controller.cluster.requests import FenceSilentBrokers
from headrace_controller.raft import AppendRequest, AppendResponse, Message, Role
from headrace_controller.settings import QuorumSettings
from headrace_controller.waiting import Answer
from headrace_core.errors import (
    NotControllerError,
    RequestTimedOutError,
    ServerShuttingDownError,
    UnknownServerError,
    VoterNotFoundError,
)
from tests.worlds.quorum_world import QuorumWorld, create, followers


@pytest.fixture
def world(rng: random.Random) -> QuorumWorld:
    """Three controllers with a leader, and one live broker."""
    made = QuorumWorld(3, rng)
    made.elect()
    made.live_broker()
    made.pass_ms(200)
    return made


def other_voters(world: QuorumWorld) -> list[int]:
    return [each.node_id for each in followers(world)]


# -- who leads ---------------------------------------------------------------------------------------------------------


def test_controllers_that_start_together_elect_one_leader_and_agree_on_the_cluster(rng: random.Random) -> None:
    world = QuorumWorld(3, rng)
    leader = world.elect()
    world.pass_ms(500)
    assert [each.leader_id for each in world.alive()] == [leader.node_id] * 3
    assert {each.image.cluster_id for each in world.alive()} == {"cluster-one"}
    assert all(each.is_serving for each in world.alive())


def test_nobody_serves_while_there_is_no_quorum(rng: random.Random) -> None:
    world = QuorumWorld(3, rng, start=False)
    alone = world.start(1)
    world.pass_ms(5_000)
    assert not alone.is_serving
    assert alone.term == 0, "a pre-vote raises no term"
    refused = world.ask(1, create("t"))
    world.settle()
    assert isinstance(refused.result, NotControllerError)
    world.start(2)
    world.elect()
    world.pass_ms(300)
    assert world[1].is_serving
    assert world[2].is_serving


def test_a_controller_that_comes_late_serves_when_it_has_what_was_committed(world: QuorumWorld) -> None:
    late = other_voters(world)[0]
    world.kill(late)
    world.create("a", "b")
    follower = world.start(late)
    assert not follower.is_serving
    world.is_cut = lambda message: isinstance(message.body, AppendRequest) and message.body.entries != ()
    world.pass_ms(500)
    assert follower.leader_id == world.leader.node_id
    assert not follower.is_serving, "it knows the leader, and has not what was committed"
    world.is_cut = lambda message: False
    world.pass_ms(300)
    assert follower.is_serving
    assert world.topics(late) == ["a", "b"]


def test_the_leader_is_named_to_those_who_ask_another(world: QuorumWorld) -> None:
    asked = world.ask(other_voters(world)[0], create("t"))
    world.settle()
    leader = world.leader
    assert isinstance(asked.result, NotControllerError)
    assert asked.result.leader == (leader.node_id, leader.term, f"host:{leader.node_id}")
    assert f"the leader is controller {leader.node_id} at host:{leader.node_id}" in asked.result.message


def test_a_leader_that_stands_still_for_long_fences_nobody_when_it_wakes(rng: random.Random) -> None:
    world = QuorumWorld(1, rng)
    world.live_broker()
    world.clock.advance(60_000)
    world.settle()
    world.do(FenceSilentBrokers())
    assert not world[1].image.brokers[1].fenced


def test_after_a_pause_a_controller_ticks_once(world: QuorumWorld) -> None:
    term = world.leader.term
    world.clock.advance(60_000)
    world.settle()
    assert world.leader.term == term, "nobody stood for election"


def test_a_follower_that_loses_the_connection_to_a_dead_leader_elects_within_less_than_the_time_out(
    rng: random.Random,
) -> None:
    world = QuorumWorld(3, rng, draw_of=lambda number: lambda below: number % below)  # no votes are split
    dead = world.elect().node_id
    world.pass_ms(500)
    world.kill(dead)
    world.until(lambda: any(each.is_active for each in world.alive()), ms=900)


# -- what is committed -------------------------------------------------------------------------------------------------


def test_a_write_is_answered_when_a_majority_has_it_and_every_follower_shows_it(world: QuorumWorld) -> None:
    answer = world.create("t")
    world.pass_ms(200)
    for each in world.alive():
        assert each.image.topic("t") is not None
        assert each.image.next_offset >= answer.metadata_offset
    assert len(set(world.logs().values())) == 1, "all logs are the same bytes"


def test_nothing_is_answered_before_a_majority_has_it_on_disk(world: QuorumWorld) -> None:
    world.is_cut = lambda message: isinstance(message.body, AppendResponse)
    asked = world.ask(world.leader.node_id, create("t"))
    world.settle()
    assert not asked.is_answered
    assert world.leader.image.topic("t") is None
    world.is_cut = lambda message: False
    world.pass_ms(300)
    assert asked.answer.metadata_offset == world.leader.image.next_offset


def test_one_of_three_may_be_away(world: QuorumWorld) -> None:
    away = other_voters(world)[0]
    world.kill(away)
    world.create("t")
    world.start(away)
    world.pass_ms(500)
    assert world.topics(away) == ["t"]


def test_followers_publish_each_change_once_and_in_order(world: QuorumWorld) -> None:
    number = other_voters(world)[0]
    published = world.nodes[number].published
    del published[:]
    start = world[number].image.next_offset
    for name in "abcde":
        world.create(name)
    world.pass_ms(200)
    assert published[0][1].from_offset == start
    for (before, _), (_, delta) in pairwise(published):
        assert delta.from_offset == before.next_offset
    created = [topic_id for _, delta in published for topic_id in delta.created_topics]
    assert len(created) == len(set(created)) == 5


def test_requests_of_one_turn_share_one_append(world: QuorumWorld) -> None:
    leader = world.leader
    fs = world.nodes[leader.node_id].fs
    before = sum(entry.operation == "sync" for entry in fs.trace)
    asked = [world.ask(leader.node_id, create(f"t{number}")) for number in range(200)]
    world.settle()
    assert all(isinstance(each.result, Answer) for each in asked)
    assert sum(entry.operation == "sync" for entry in fs.trace) - before <= 2


def test_a_request_that_no_rule_knows_costs_that_request_only(world: QuorumWorld) -> None:
    asked = world.ask(world.leader.node_id, object())  # type: ignore[arg-type]
    world.settle()
    assert isinstance(asked.result, UnknownServerError)
    world.create("t")


# -- the lead is lost --------------------------------------------------------------------------------------------------


def test_a_decision_that_others_overwrite_is_refused_and_may_be_asked_again(world: QuorumWorld) -> None:
    old = world.leader.node_id
    world.isolate(old)
    lost, refusal = world.ask(old, create("lost")), world.ask(old, create("lost"))
    world.settle()
    world.elect_other_than(old)
    assert not lost.is_answered, "nobody knows yet"
    world.create("other")
    world.heal()
    world.pass_ms(500)
    assert isinstance(lost.result, NotControllerError)
    assert isinstance(refusal.result, NotControllerError), "it was decided on what never was"
    assert world.topics(old) == ["other"]
    assert world.create("lost").reply[0].error is None


def test_a_decision_that_the_next_leader_commits_is_answered_as_done(world: QuorumWorld) -> None:
    """The entry reached one follower, whose log is now the longest. The follower's answer was lost with the leader's
    connections."""
    old = world.leader.node_id
    heir, other = other_voters(world)

    def only_to_the_heir(message: Message) -> bool:
        carries = isinstance(message.body, AppendRequest) and message.body.entries
        return not (carries and message.sender.node_id == old and message.to.node_id == heir)

    world.is_cut = only_to_the_heir
    kept = world.ask(old, create("kept"))
    world.settle()
    world.is_cut = lambda message: False
    world.isolate(old)
    assert world.elect_other_than(old).node_id == heir
    assert world.topics(other) == ["kept"]
    assert not kept.is_answered
    world.heal()
    world.pass_ms(500)
    assert isinstance(kept.answer, Answer)
    assert kept.answer.reply[0].topic_id == world[heir].image.topic_ids["kept"]


def test_what_was_never_appended_is_refused_at_once_when_the_lead_is_lost(world: QuorumWorld) -> None:
    old = world.leader
    world.isolate(old.node_id)
    world.pass_ms(3_000)
    assert old.role is not Role.LEADER
    asked = world.ask(old.node_id, create("t"))
    world.settle()
    assert isinstance(asked.result, NotControllerError)


def test_a_decision_lost_behind_a_snapshot_has_an_outcome_that_nobody_knows(rng: random.Random) -> None:
    world = QuorumWorld(3, rng, settings=QuorumSettings(snapshot_bytes=1))
    world.elect()
    world.live_broker()
    old = world.leader.node_id
    world.isolate(old)
    asked = world.ask(old, create("lost"))
    world.settle()
    world.elect_other_than(old)
    for round_ in range(2):  # the log begins after the second last snapshot
        for number in range(5):
            world.create(f"t{round_}-{number}")
        world.pass_ms(200)
        world.make_snapshots()
    world.heal()
    world.pass_ms(2_000)
    assert isinstance(asked.result, RequestTimedOutError)
    assert "is unknown" in asked.result.message
    assert world.topics(old) == world.topics(world.leader.node_id)


def test_a_leader_again_has_forgotten_what_was_overwritten(world: QuorumWorld) -> None:
    """The controller appended far beyond the committed entries, lost its leadership, and gets it back. While the
    controller did not lead, its log was truncated."""
    first = world.leader
    world.isolate(first.node_id)
    many = [world.ask(first.node_id, create(f"lost{number}")) for number in range(10)]
    world.settle()
    second = world.elect_other_than(first.node_id)
    world.heal()
    world.pass_ms(300)
    world.call(second.transfer, first.key)
    world.until(lambda: first.is_active)
    assert all(isinstance(each.result, NotControllerError) for each in many)
    assert world.create("new").reply[0].error is None
    world.pass_ms(200)
    assert world.topics(second.node_id) == ["new"]


# -- reads -------------------------------------------------------------------------------------------------------------


def test_a_read_is_answered_when_a_majority_confirms_the_leader(world: QuorumWorld) -> None:
    leader = world.leader
    offset = world.create("t").metadata_offset
    read = world.call(leader.read)
    world.turn(leader.node_id)
    assert not read.is_answered, "nobody has confirmed it yet"
    world.settle()
    assert read.result >= offset


def test_a_leader_without_a_majority_answers_no_read_and_no_refusal(world: QuorumWorld) -> None:
    world.create("t")
    old = world.leader
    world.isolate(old.node_id)
    read, exists = world.call(old.read), world.ask(old.node_id, create("t"))
    world.settle()
    assert not read.is_answered
    assert not exists.is_answered, "that a topic exists is a read, too"
    world.pass_ms(3_000)
    assert isinstance(read.result, NotControllerError)
    assert isinstance(exists.result, NotControllerError)


def test_followers_answer_no_reads(world: QuorumWorld) -> None:
    read = world.call(followers(world)[0].read)
    world.settle()
    assert isinstance(read.result, NotControllerError)


# -- handing over, stopping --------------------------------------------------------------------------------------------


def test_the_lead_is_handed_over_without_waiting_for_a_time_out(world: QuorumWorld) -> None:
    old = world.leader
    successor = old.best_successor()
    assert successor is not None
    given = world.call(old.transfer, successor)
    meanwhile = world.ask(old.node_id, create("t"))
    world.settle()  # no time passes
    assert isinstance(given.result, Answer)
    assert world.leader.node_id == successor.node_id
    assert isinstance(meanwhile.result, NotControllerError)
    world.create("t")


def test_a_hand_over_that_fails_is_reported_and_the_leader_goes_on(world: QuorumWorld) -> None:
    old = world.leader
    away = other_voters(world)[0]
    world.isolate(away)
    given = world.call(old.transfer, world.key(away))
    meanwhile = world.ask(old.node_id, create("t"))
    world.pass_ms(1_500)
    assert isinstance(given.result, RequestTimedOutError)
    assert isinstance(meanwhile.result, Answer), "it waited, and was decided then"
    assert world.leader is old


def test_only_a_leader_hands_over_and_only_to_a_voter(world: QuorumWorld) -> None:
    follower = followers(world)[0]
    from_follower = world.call(follower.transfer, world.leader.key)
    stranger = world.call(world.leader.transfer, follower.key._replace(node_id=9))
    world.settle()
    assert isinstance(from_follower.result, NotControllerError)
    assert isinstance(stranger.result, VoterNotFoundError)


def test_a_controller_that_ends_tells_everybody_once(world: QuorumWorld) -> None:
    leader = world.leader
    world.isolate(leader.node_id)
    appended = world.ask(leader.node_id, create("t"))
    world.settle()
    waiting, read = world.ask(leader.node_id, create("u")), world.call(leader.read)
    leader.fail_all(ServerShuttingDownError("stopping"))
    assert isinstance(appended.result, RequestTimedOutError), "it may yet come to be committed"
    assert isinstance(waiting.result, ServerShuttingDownError)
    assert isinstance(read.result, ServerShuttingDownError)


# -- messages and crashes between the steps of a turn ------------------------------------------------------------------


def test_messages_may_arrive_between_the_steps_of_a_turn(world: QuorumWorld) -> None:
    """The acknowledgements of both followers come before the leader's own disk has the entry."""
    leader = world.leader
    asked = world.ask(leader.node_id, create("t"))
    assert leader.begin()
    world.deliver()
    for number in other_voters(world):
        world.turn(number)
    world.deliver()
    assert not asked.is_answered
    leader.persist()
    leader.finish()
    world.settle()
    assert isinstance(asked.result, Answer)


def test_a_leader_deposed_in_the_middle_of_a_turn_answers_nothing(world: QuorumWorld) -> None:
    leader = world.leader
    asked = world.ask(leader.node_id, create("t"))
    world.is_cut = lambda message: message.sender.node_id == leader.node_id
    assert leader.begin()
    others = other_voters(world)
    for _ in range(200):
        world.clock.advance(100)
        for number in others:
            world.turn(number)
        world.deliver()
    assert any(world[number].is_active for number in others)
    leader.persist()
    leader.finish()
    world.is_cut = lambda message: False
    world.pass_ms(500)
    assert isinstance(asked.result, NotControllerError)
    assert world.topics(leader.node_id) == []


@pytest.mark.parametrize("step", ["begin", "persist"])
def test_a_leader_that_dies_in_a_turn_forks_nothing(world: QuorumWorld, step: str) -> None:
    leader = world.leader
    world.ask(leader.node_id, create("t"))
    leader.begin()
    if step == "persist":
        leader.persist()
    world.deliver()
    world.kill(leader.node_id)
    world.elect_other_than(leader.node_id)
    world.create("u")
    world.start(leader.node_id)
    world.pass_ms(1_000)
    assert len({tuple(world.topics(number)) for number in world.nodes}) == 1
    assert len(set(world.logs().values())) == 1


# -- nothing to do -----------------------------------------------------------------------------------------------------


def _tick_and_hear(world: QuorumWorld) -> None:
    """Run the leader's next tick. Deliver the leader's heartbeats, and then the answers to the leader."""
    world.clock.advance(100)
    world.turn(world.leader.node_id)
    world.deliver()
    for number in other_voters(world):
        world.turn(number)
    world.deliver()


def test_answers_to_heartbeats_cost_an_idle_leader_no_turn(world: QuorumWorld) -> None:
    _tick_and_hear(world)
    assert world.leader.until_due_ms() > 0
    # Answers to heartbeats prove that the followers are alive, so the leader continues to lead even if no other message
    # arrives for a long time.
    term = world.leader.term
    for _ in range(50):
        _tick_and_hear(world)
    assert world.leader.is_active
    assert world.leader.term == term


def test_an_answer_to_a_heartbeat_for_which_somebody_waits_is_worth_one(world: QuorumWorld) -> None:
    deferred = world.call(lambda done: world.leader.read(done, is_deferred=True))
    assert world.leader.until_due_ms() > 0, "nothing is due for it before the next heartbeats"
    _tick_and_hear(world)
    assert world.leader.until_due_ms() <= 0
    world.turn(world.leader.node_id)
    assert deferred.result == world.leader.image.next_offset


def test_an_answer_to_a_heartbeat_wakes_a_leader_whose_follower_lacks_something(world: QuorumWorld) -> None:
    lost = other_voters(world)[0]
    world.is_cut = lambda message: isinstance(message.body, AppendRequest) and message.to.node_id == lost
    world.do(create("t"))
    _tick_and_hear(world)
    assert world.leader.until_due_ms() <= 0, "what was lost is sent again"
    world.is_cut = lambda message: False
    world.settle()
    world.pass_ms(500)
    assert world.topics(lost) == ["t"]
