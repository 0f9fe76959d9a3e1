"""A run says what it has to say, and is not content with a run that proves nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import run
from scoreboard import MUTANTS
from sim_coverage import LISTED
from sim_plan import REQUIRED


def tally(**changes: object) -> run.Tally:
    """A run of 1,000 schedules with which all is well, but for ``changes``."""
    coverage = Counter(dict.fromkeys(LISTED, 1))
    coverage.update({("fault", kind): 60 for kind in REQUIRED})
    killed = run.Score(MUTANTS["VotesTwice"], 3, ("votes", "twice"), 7)
    fields = {"schedules": 1000, "events": [2_500] * 1000, "acknowledged": [220] * 1000, "coverage": coverage}
    return run.Tally(**{**fields, "scores": {"VotesTwice": killed}, **changes})  # type: ignore[arg-type]


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
            {"scores": {"VotesTwice": run.Score(MUTANTS["VotesTwice"], 1, ("TypeError", "of its own"), 1)}},
            "survived: VotesTwice",
        ),
        ({"failures": [run.Outcome(1, 0, 0, Counter(), ("votes", "twice"))]}, "broke a promise"),
    ],
)
def test_what_is_not_well_fails_the_run(
    changes: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = run.report(tally(**changes), is_measured=True)
    assert any(says in each for each in wrong), wrong
    capsys.readouterr()


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
        "faults",
        "seconds",
    }
    assert said["mutants_killed"] == 1
    assert set(said["faults"]) == set(REQUIRED)


def test_a_failure_is_shrunk_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "_SHRINK_S_MAX", 2.0)
    run.listen_to_the_log()
    with MUTANTS["AnswersBeforeTheCommit"].applied():
        outcome = run.outcome_of(run.make_plan(3), ("world",))
        assert outcome.failure is not None
        told = run.explain(3, outcome.failure, "AnswersBeforeTheCommit")
    assert "make sim SCHEDULES=1 SEED=3 MUTANT=AnswersBeforeTheCommit" in told
    assert "--keep" in told
    assert "controller" in (tmp_path / "3-AnswersBeforeTheCommit.txt").read_text()
