"""A few schedules of groups in every test run; ``make sim`` runs thousands.

A failure names its seed: ``make sim SCHEDULES=1 SEED=... SIM="--half groups"`` repeats it, with its transcript.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.group import membership
from headrace.group.member import Part
from headrace_core.errors import UnknownMemberIdError
from tests.simulation import run
from tests.simulation.determinism import check_one_history, check_plans
from tests.simulation.group_checks import GroupChecks
from tests.simulation.group_coverage import GROUPS_LISTED
from tests.simulation.group_hosts import SESSION_MS
from tests.simulation.group_members import Attempt
from tests.simulation.group_plan import KINDS, make_group_plan
from tests.simulation.group_sim_world import GroupWorld
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_world import listen_to_the_log
from tests.simulation.wrong_clocks import BROKERS, COORDINATORS, roles_off

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 24


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_of_groups_breaks_a_promise(part: int) -> None:
    listen_to_the_log()
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    for seed in range(first + part, first + SCHEDULES, 2):
        outcome = run.outcome_of(make_group_plan(seed))
        again = f'make sim SCHEDULES=1 SEED={seed} SIM="--half groups"'
        assert outcome.failure is None, f"{outcome.failure}; again: {again}"
        assert outcome.events > 500
        assert run.part_of(outcome) == "groups"


def test_a_seed_of_groups_is_one_history_in_every_process_whatever_its_hashes_are() -> None:
    check_one_history((4, 14, 31), "groups")


def test_plans_of_groups_are_what_they_are_said_to_be() -> None:
    assert set(check_plans(make_group_plan, 400)) == set(KINDS)


def test_a_run_of_groups_that_saw_too_little_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    groups = run.BESIDE["groups"]
    assert groups.missing(Counter(dict.fromkeys(GROUPS_LISTED, 1))) == []
    assert groups.missing(Counter()) == list(GROUPS_LISTED)
    coverage = Counter(dict.fromkeys(GROUPS_LISTED, 1))

    def wrong(commits: int) -> list[str]:
        part = run.PartTally(500, [9_000] * 500, [commits] * 500, coverage)
        return run.report(run.Tally(beside={**run.Tally().beside, "groups": part}), is_measured=False)

    assert wrong(200) == []
    (found,) = wrong(20)
    assert "20 acknowledged commits" in found
    del coverage["shard", "fenced"]
    (found,) = wrong(200)
    assert "shard fenced" in found
    capsys.readouterr()


def test_what_is_hardest_on_a_guard_comes_more_often_in_its_schedules_and_changes_no_others() -> None:
    kind = "takeover_unreached"
    plain, hard = (
        sum(fault.kind == kind for seed in range(200) for fault in make_group_plan(seed, hard_on=hard_on).faults)
        for hard_on in ((), (kind,))
    )
    assert hard > 4 * plain
    assert all(set(mutant.faults) <= set(KINDS) for mutant in MUTANTS.values() if mutant.part == "groups")
    mutant = MUTANTS["AllMetadataAreNew"]
    assert run.plan_of(7, "groups", mutant) == make_group_plan(7, hard_on=mutant.faults) != run.plan_of(7, "groups")
    assert run.plan_of(7, "groups", MUTANTS["SeesNoTopics"]) == run.plan_of(7, "groups")


@pytest.mark.parametrize("name", ["RepliesBeforeTheCommit", "GivesBeforeItIsLetGo", "SeesNoTopics"])
def test_a_guard_of_groups_that_is_removed_is_missed(name: str) -> None:
    before = [vars(patch.where)[patch.attribute] for patch in MUTANTS[name].patches]
    _, outcomes = run.do_work(run.Work(name, 1, 60))
    assert outcomes[-1].failure is not None, f"{name} survived"
    assert run.part_of(outcomes[-1]) == "groups"
    assert [vars(patch.where)[patch.attribute] for patch in MUTANTS[name].patches] == before


@pytest.mark.parametrize(("seed", "role"), [(2, BROKERS), (3, COORDINATORS)])
@pytest.mark.parametrize("is_mended", [True, False])
def test_clocks_that_are_days_off_are_all_that_happens(seed: int, role: str, is_mended: bool) -> None:
    assert roles_off(seed) == {role}
    plan = replace(make_group_plan(seed), faults=())
    with contextlib.nullcontext() if is_mended else MUTANTS["LeadersCheckTheTimesOfGroups"].applied():
        failure = run.outcome_of(plan).failure
    assert (failure and failure.what) == (None if is_mended else "liveness")


def test_a_commits_time_that_tells_namesakes_is_missed() -> None:
    (outcome,) = run.do_work(run.Work("TheCommitsTimeTellsNamesakes", 8, 9))[1]
    assert outcome.failure is not None
    assert outcome.failure.by_checker


def test_patches_of_a_schedule_of_groups_are_gone_when_it_is_over() -> None:
    import time

    run.run_one(run.plan_of(2, "groups"))
    assert vars(membership)["time"] is time


# -- the checks themselves: a violation that is planted is found -------------------------------------------------------

PART = Part(b"t" * 16, "t1", 0)


def checks() -> GroupChecks:
    return GroupChecks(GroupWorld(make_group_plan(1)))


class Reader:
    group_id, is_paused, life = "g0", False, 1
    coordinator = (1, 1)
    connection: Any = None

    def __init__(self, name: str) -> None:
        self.name = self.member_id = name
        self.member = SimpleNamespace(is_suspended=False)
        self.held: dict[Part, int] = {}
        self.reading: dict[Part, None] = {}


def member(name: str) -> Any:
    return Reader(name)


def test_two_who_read_a_partition_are_noticed() -> None:
    found, one, other = checks(), member("a"), member("b")
    found.reads(one, PART)
    found.stops_reading(one, PART)
    found.reads(other, PART)
    with pytest.raises(Violation, match="two readers"):
        found.reads(one, PART)


def test_who_has_not_seen_its_connection_end_may_read_on_until_it_is_answered() -> None:
    found, one, other = checks(), member("a"), member("b")
    found.reads(one, PART)
    found.is_misled(one)
    found.reads(other, PART)
    found.reads(one, PART)
    answer = SimpleNamespace(error=SimpleNamespace(code=0), member_epoch=0, revision=0, correlation_id=7)
    found.member_answered(one, answer)
    with pytest.raises(Violation, match="two readers"):
        found.reads(one, PART)


def answered_after_half_open(found: GroupChecks, one: Any, half_open_ms: float, *, must_release: bool) -> None:
    """The member reads PART; its connection is half open for the given time; then the member gets a response."""
    found.reads(one, PART)
    found.holds(one, PART)
    one.held[PART], one.reading[PART] = 0, None
    found.is_misled(one)
    found.world.scheduler.now_ms += half_open_ms
    answer = SimpleNamespace(error=SimpleNamespace(code=0), member_epoch=0, revision=0, correlation_id=7)
    since_ms = found.member_answered(one, answer)
    assert since_ms is not None
    if must_release:  # it stops reading, and holds the partition until its last commit
        del one.reading[PART]
        found.stops_reading(one, PART)
        found.revokes(one, frozenset({PART}))
    found.misled_no_more(one, since_ms)


def test_a_member_answered_after_a_half_open_connection_may_commit_while_the_next_owner_begins() -> None:
    found, one, other = checks(), member("a"), member("b")
    answered_after_half_open(found, one, found.world.plan.grace_ms, must_release=True)
    found.holds(other, PART)
    found.reads(other, PART)
    with pytest.raises(Violation, match="two readers"):
        found.reads(one, PART)
    found.lets_go(one, PART)  # this ends the excuse
    found.lets_go(other, PART)
    found.holds(one, PART)
    with pytest.raises(Violation, match="two owners"):
        found.holds(other, PART)


@pytest.mark.parametrize(("share_of_grace", "must_release"), [(0.9, True), (1.0, False)])
def test_a_member_answered_within_the_grace_period_or_still_reading_is_not_excused(
    share_of_grace: float, must_release: bool
) -> None:
    found, one, other = checks(), member("a"), member("b")
    answered_after_half_open(found, one, share_of_grace * found.world.plan.grace_ms, must_release=must_release)
    with pytest.raises(Violation, match="two owners"):
        found.holds(other, PART)


def test_who_begins_while_another_one_has_not_let_go_is_noticed_unless_that_one_is_overdue() -> None:
    found, one, other = checks(), member("a"), member("b")
    found.holds(one, PART)
    with pytest.raises(Violation, match="two owners"):
        found.holds(other, PART)
    found.revokes(one, frozenset({PART}))
    found.world.scheduler.now_ms += 10_000.0
    found.holds(other, PART)


def test_an_answer_that_rests_on_nothing_is_noticed() -> None:
    answer = SimpleNamespace(error=SimpleNamespace(code=0), member_epoch=1, revision=1, correlation_id=7)
    with pytest.raises(Violation, match="answer"):
        checks().member_answered(member("a"), answer)


def test_a_commit_that_is_acknowledged_and_not_in_the_log_is_noticed_and_one_that_is_refused_and_is() -> None:
    found = checks()
    tag = found.attempted(Attempt("g0", "t1", 0, 5, "m", 1, False))
    with pytest.raises(Violation, match="commit"):
        found.acknowledged(tag)
    found._committed.add(tag)
    found.acknowledged(tag)
    with pytest.raises(Violation, match="refused"):
        found.refused(tag, UnknownMemberIdError("gone"))


def test_a_reader_that_gets_less_than_was_acknowledged_is_noticed() -> None:
    found = checks()
    topic = SimpleNamespace(topic_id=PART.topic_id)
    found.world.core.committed = SimpleNamespace(topic=lambda name: topic)  # type: ignore[assignment]
    found.world.owner = lambda group_id: (1, 1)  # type: ignore[method-assign]
    where = ("g0", "t1", 0)
    found._last[where] = found._acknowledged[where] = (7, PART.topic_id)
    (floor,) = found.floors("g0", [PART]).values()
    found.begins_at(member("a"), PART, 7, floor)
    with pytest.raises(Violation, match="read"):
        found.begins_at(member("a"), PART, 6, floor)
    found._resets[where] += 1  # an operator has set it back meanwhile
    found.begins_at(member("a"), PART, 0, floor)


def test_a_deposed_owner_answers_with_what_had_been_acknowledged_a_session_before() -> None:
    found = checks()
    topic = SimpleNamespace(topic_id=PART.topic_id)
    found.world.core.committed = SimpleNamespace(topic=lambda name: topic)  # type: ignore[assignment]
    found.world.owner = lambda group_id: (2, 1)  # type: ignore[method-assign]
    where = ("g0", "t1", 0)
    for offset in (5, 7):
        found._last[where] = (offset, PART.topic_id)
        tag = found.attempted(Attempt("g0", "t1", 0, offset, "m", 1, False))
        found._committed.add(tag)
        found.acknowledged(tag)
        found.world.scheduler.now_ms += SESSION_MS * 0.8
    (floor,) = found.floors("g0", [PART]).values()
    found.begins_at(member("a"), PART, 5, floor)
    with pytest.raises(Violation, match="read"):
        found.begins_at(member("a"), PART, 4, floor)
