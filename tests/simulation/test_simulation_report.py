"""Tests of the report: it is complete, and a run with too few events fails."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace_broker.upkeep.retention import Retention
from headrace_controller.raft import RaftNode
from headrace_coordinator.runtime.shard import Shard
from headrace_core.log.producer_state import ProducerTable
from tests.simulation import run
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_coverage import LISTED
from tests.simulation.sim_plan import REQUIRED


def tally(**changes: object) -> run.Tally:
    """A run of 1,000 schedules without a failure, except for ``changes``."""
    coverage = Counter(dict.fromkeys(LISTED, 1))
    coverage.update({("fault", kind): 60 for kind in REQUIRED})
    killed = run.Score(MUTANTS["VotesTwice"], 3, run.Failure("votes", "twice"), 7)
    fields = {"schedules": 1000, "events": [2_500] * 1000, "acknowledged": [220] * 1000, "coverage": coverage}
    return run.Tally(**{**fields, "scores": {"VotesTwice": killed}, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("half", ["both", "groups", "transactions"])
def test_four_days_run_every_mutant_once(half: str) -> None:
    parts = [run.mutants_named(f"{part}/4", half) for part in range(1, 5)]
    assert sorted(name for part in parts for name in part) == sorted(run.mutants_named("all", half))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_run_in_which_all_is_well_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.report(tally(), is_measured=True) == []
    assert "VotesTwice" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"events": [1_999] * 1000}, "median of 1999 events"),
        ({"acknowledged": [199] * 1000}, "199 acknowledged"),
        ({"coverage": Counter({("fault", kind): 60 for kind in REQUIRED})}, "never seen"),
        ({"coverage": Counter(dict.fromkeys(LISTED, 49))}, "too seldom"),
        ({"scores": {"VotesTwice": run.Score(MUTANTS["VotesTwice"], 2000)}}, "survived: VotesTwice"),
        (
            {
                "scores": {
                    "VotesTwice": run.Score(
                        MUTANTS["VotesTwice"], 1, run.Failure("TypeError", "of its own", by_checker=False), 1
                    )
                }
            },
            "survived: VotesTwice",
        ),
        ({"failures": [run.Outcome(1, 0, 0, Counter(), run.Failure("votes", "twice"))]}, "broke a promise"),
    ],
)
def test_what_is_not_well_fails_the_run(
    changes: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = run.report(tally(**changes), is_measured=True)
    assert any(says in each for each in wrong), wrong
    capsys.readouterr()


def test_mutants_that_only_an_exception_has_killed_are_distinguished(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(MUTANTS)[:20]
    raised = run.Failure("AssertionError", "of the product", by_checker=False)
    scores = {name: run.Score(MUTANTS[name], 1, run.Failure("votes", "twice"), 1) for name in names}
    scores |= {name: run.Score(MUTANTS[name], 1, raised, 1) for name in names[:4]}
    assert run.report(tally(scores=scores), is_measured=True) == []
    assert "16 of 20 killed by checkers, 4 by exceptions only" in capsys.readouterr().out
    assert run.summary(tally(scores=scores), 1.0)["mutants_killed"] == 20
    assert run.summary(tally(scores=scores), 1.0)["mutants_killed_by_checkers"] == 16
    scores[names[4]] = run.Score(MUTANTS[names[4]], 1, raised, 1)
    assert run.report(tally(scores=scores), is_measured=True) == ["only 15 of 20 mutants were killed by checkers"]
    capsys.readouterr()


def test_a_check_that_fails_later_outweighs_an_exception() -> None:
    score = run.Score(MUTANTS["VotesTwice"])
    raised = run.Outcome(1, 0, 0, Counter(), run.Failure("AssertionError", "of the product", by_checker=False))
    checked = run.Outcome(3, 0, 0, Counter(), run.Failure("votes", "twice"))
    score.add([raised, run.Outcome(2, 0, 0, Counter(), None), checked])
    assert (score.is_killed_by_a_checker, score.seed, score.tried) == (True, 3, 3)
    score = run.Score(MUTANTS["VotesTwice"])
    score.add([raised, run.Outcome(2, 0, 0, Counter(), None)])
    assert (score.is_killed, score.is_killed_by_a_checker, score.seed) == (True, False, 1)


@pytest.mark.parametrize(
    ("plan", "where", "attribute"),
    [
        (run.make_plan(3), RaftNode, "ready"),
        (run.make_broker_plan(2), ProducerTable, "check"),
        (run.make_group_plan(1), Shard, "_decided"),
        (run.make_txn_plan(1), Shard, "_decided"),
    ],
)
def test_an_exception_ends_its_node_only_where_a_mutant_runs(
    plan: run.AnyPlan, where: type, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule continues to its end, and the exception is then its failure."""
    original, calls = getattr(where, attribute), 0

    def raises_once(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 25:  # a call for a request; in work without a request a shard only logs exceptions, and goes on
            raise RuntimeError("planted")
        return original(*arguments, **named)

    monkeypatch.setattr(run, "_FAILURES", (*run._FAILURES, RuntimeError))
    monkeypatch.setattr(where, attribute, raises_once)
    world, error = run.run_one(plan)
    assert isinstance(error, RuntimeError)
    assert world.scheduler.now_ms < plan.length_ms
    calls = 0
    world, error = run.run_one(plan, past_exceptions=True)
    assert isinstance(error, RuntimeError), error
    assert world.scheduler.now_ms > plan.length_ms


def test_an_exception_that_is_only_logged_is_of_its_own_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention logs the exception and continues; the next schedule in this process is not affected."""
    run.listen_to_the_log()

    def raises(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(Retention, "check", raises)
        outcome = run.outcome_of(run.make_broker_plan(2, hard_on=("retention",)))
    assert outcome.failure is not None
    assert (outcome.failure.what, outcome.failure.by_checker) == ("rules", False)
    assert "planted" in outcome.failure.message
    assert run.outcome_of(run.make_plan(3), ("world",)).failure is None


def test_a_short_run_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.report(tally(events=[5], acknowledged=[0], coverage=Counter()), is_measured=False) == []
    capsys.readouterr()


def test_the_last_line_is_what_was_agreed() -> None:
    said = json.loads(json.dumps(run.summary(tally(), 12.34)))
    assert set(said) == {
        "schedules",
        "events",
        "events_median",
        "acknowledged_median",
        "violations",
        "mutants",
        "mutants_killed",
        "mutants_killed_by_checkers",
        "faults",
        "seconds",
    }
    assert said["mutants_killed"] == said["mutants_killed_by_checkers"] == 1
    assert set(said["faults"]) == set(REQUIRED)


def test_a_failure_is_shrunk_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "_SHRINK_S_MAX", 2.0)
    run.listen_to_the_log()
    with MUTANTS["AnswersBeforeTheCommit"].applied():
        outcome = run.outcome_of(run.make_plan(3), ("world",))
        assert outcome.failure is not None
        text = run.explain(3, outcome.failure, "AnswersBeforeTheCommit")
    assert "make sim SCHEDULES=1 SEED=3 MUTANT=AnswersBeforeTheCommit" in text
    assert "--keep" in text
    assert "controller" in (tmp_path / "3-AnswersBeforeTheCommit.txt").read_text()


def arguments(**changes: object) -> argparse.Namespace:
    fields = {"seed": 1, "schedules": 1_000, "half": "both", "transactions": None, "workers": 2}
    return argparse.Namespace(**{**fields, "mutant_schedules": 20, "seconds": float("inf"), **changes})


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_run_that_ends_early_has_its_share_of_every_kind(share: float) -> None:
    works = run.works_of(arguments(), list(MUTANTS))
    kinds = Counter((bool(work.mutant), work.half) for work in works)
    early = Counter((bool(work.mutant), work.half) for work in works[: int(share * len(works))])
    assert len(kinds) == 4
    for kind, count in kinds.items():
        assert abs(early[kind] - share * count) <= 2


def test_a_run_whose_time_is_over_says_what_did_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    short = run.simulate(arguments(seconds=0.0), ["VotesTwice"])
    assert (short.not_run, short.not_judged, short.scores) == (1_700, ["VotesTwice"], {})
    assert run.report(short, is_measured=False) == ["the time was over before a schedule ran"]
    said = capsys.readouterr().out
    assert "THE TIME WAS OVER: 1700 of 1700 schedules did not run; mutants that are not judged: VotesTwice" in said
