"""``make sim``: run many schedules, and the mutants that they must detect.

    python -m tests.simulation.run --schedules 10000 --seed 1    seeds 1 to 10000, and the mutants
    python -m tests.simulation.run --schedules 1 --seed 4711     run one again, with its transcript
    ... --mutants none | all | 2/4 | NAME,NAME                   2/4: the second of four parts of all mutants
    ... --half controllers | brokers | groups | transactions     only schedules of this half; else odd seeds are for
                                                                 controllers, even ones for brokers, with additional
                                                                 schedules of groups (one for five) and of transactions
                                                                 (one for two)
    ... --schedules 1 --keep 3,7 --until 2500                    only some of the faults: a shrunk schedule
    ... --schedules 1 --mutant NAME                              with a guard removed

Progress is printed on stderr, tables on stdout, and the last line is one JSON object (docs/simulation.md). Exit code 1
means that a promise was broken, that a mutant survived, or that too few events happened to prove anything.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.testing.histories import HistoryViolation
from headrace_core.testing.shrinking import shortest, shrink
from tests.simulation.broker_coverage import BROKERS_LISTED, brokers_missing
from tests.simulation.broker_plan import BrokerPlan, make_broker_plan
from tests.simulation.broker_sim_world import BrokerWorld
from tests.simulation.cluster_histories import Broken
from tests.simulation.group_coverage import GROUPS_LISTED
from tests.simulation.group_plan import GroupPlan, make_group_plan
from tests.simulation.group_sim_world import GroupWorld
from tests.simulation.mutants.directed import NOTICED_BY
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_coverage import LISTED, missing
from tests.simulation.sim_histories import run_histories
from tests.simulation.sim_plan import REQUIRED, Plan, make_plan
from tests.simulation.sim_world import ControllersWorld, listen_to_the_log, take_what_was_logged
from tests.simulation.txn_coverage import TRANSACTIONS_LISTED
from tests.simulation.txn_plan import TxnPlan, make_txn_plan
from tests.simulation.txn_sim_world import TxnWorld

#: A mutant that no check has found after this many schedules counts as survived.
MUTANT_SCHEDULES_MAX = 2_000
#: A run of at least this many schedules must meet the required counts.
MEASURED_FROM = 1_000
EVENTS_MEDIAN_MIN, ACKNOWLEDGED_MEDIAN_MIN = 2_000, 200
#: In a run with at least this many mutants, checks must kill this share of them, not the product's own assertions.
CHECKERS_MEASURED_FROM, CHECKERS_SHARE_MIN = 20, 0.8
#: In 10,000 schedules each required kind of fault must strike at least 500 times.
FAULTS_SHARE_MIN = 0.05
_CHUNK = 20
_MUTANT_CHUNK = 20
_SHRINK_S_MAX = 60.0
_STORIES_MAX = 3
BUILD = Path(__file__).resolve().parents[2] / "build" / "sim"


class Failure(NamedTuple):
    """The failure that ended a schedule. ``by_checker``: a check of the simulator found a broken promise (of safety or
    liveness); otherwise an exception or an assertion of the product ended the schedule."""

    what: str
    message: str
    by_checker: bool = True


class Outcome(NamedTuple):
    """The outcome of one schedule; ``failure`` is what ended it early, or None."""

    seed: int
    events: int
    acknowledged: int
    coverage: Counter[tuple[str, str]]
    failure: Failure | None


#: What checks raise.
_OF_CHECKERS = (Violation, HistoryViolation, Broken)
#: The exceptions that end a schedule: a broken promise, an assertion of the product, an error that would end a process,
#: or a bug of the simulator.
_FAILURES = (AssertionError, HeadraceError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_ALL_PARTS = ("world", "brokers", "ledger")
#: The ``part`` of mutants that only the brokers' half can notice.
REPLICAS = "replicas"
#: The ``part`` of mutants that only schedules of groups, or of transactions, can detect.
GROUPS, TRANSACTIONS = "groups", "transactions"
AnyPlan = Plan | BrokerPlan | GroupPlan | TxnPlan
AnyWorld = ControllersWorld | BrokerWorld | GroupWorld | TxnWorld
_WORLDS: dict[type, Any] = {
    Plan: ControllersWorld,
    BrokerPlan: BrokerWorld,
    GroupPlan: GroupWorld,
    TxnPlan: TxnWorld,
}


class Beside(NamedTuple):
    """A part of the simulator. One schedule of the part runs for every ``every`` schedules of controllers and brokers.
    In a run of at least ``measured_from`` schedules of the part, each ``listed`` event must occur. The medians must
    reach EVENTS_MEDIAN_MIN events and ``acknowledged_min`` acknowledged writes."""

    make_plan: Callable[..., Any]
    every: int
    listed: tuple[tuple[str, str], ...]
    measured_from: int
    acknowledged_min: int
    what: str

    def missing(self, seen: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the required events that never happened."""
        return [each for each in self.listed if not seen[each]]


BESIDE: dict[str, Beside] = {
    GROUPS: Beside(make_group_plan, 5, GROUPS_LISTED, 200, 100, "acknowledged commits"),
    TRANSACTIONS: Beside(make_txn_plan, 2, TRANSACTIONS_LISTED, 500, 10, "committed transactions"),
}


def plan_of(seed: int, half: str = "both", mutant: Mutant | None = None) -> AnyPlan:
    """The schedule of a seed; with ``both`` halves, odd seeds are schedules of controllers and even seeds schedules of
    brokers. ``mutant``: its schedules give more weight to the faults that are likely to expose it."""
    if half in BESIDE:
        plan: AnyPlan = BESIDE[half].make_plan(seed, hard_on=() if mutant is None else mutant.faults)
        return plan
    if half == "brokers" or (half == "both" and seed % 2 == 0):
        return make_broker_plan(seed, hard_on=() if mutant is None else mutant.faults)
    return make_plan(seed, hard_on=() if mutant is None else mutant.faults)


def half_of(mutant: Mutant) -> str:
    """Return the part of the simulator in whose schedules a mutant runs."""
    if mutant.part in BESIDE:
        return mutant.part
    return "brokers" if mutant.part == REPLICAS else "controllers"


def run_one(
    plan: AnyPlan, *, with_story: bool = False, past_exceptions: bool = False
) -> tuple[AnyWorld, BaseException | None]:
    """Run a schedule; return its world and its failure, if any. ``past_exceptions``: an exception of the product ends
    only its node, which is started again, as in production. The tolerated exception is the failure of the schedule if
    no check fails later."""
    world: AnyWorld = _WORLDS[type(plan)](plan, with_story=with_story)
    world.goes_past_exceptions = past_exceptions
    take_what_was_logged()  # an earlier schedule may have left objects
    try:
        world.run()
    except _FAILURES as error:
        return world, error
    logged = take_what_was_logged()
    return world, Violation("rules", logged[0]) if logged else None


def outcome_of(
    plan: AnyPlan,
    parts: tuple[str, ...] = _ALL_PARTS,
    profile: int | None = None,
    *,
    past_exceptions: bool = False,
) -> Outcome:
    if not isinstance(plan, Plan):
        other, failure = run_one(plan, past_exceptions=past_exceptions)
        assert isinstance(other, BrokerWorld | GroupWorld | TxnWorld)
        described = None if failure is None else _described(failure)
        return Outcome(plan.seed, other.scheduler.events, other.acknowledged, other.coverage, described)
    try:
        coverage = run_histories(plan.seed, parts, profile)
    except _FAILURES as error:
        return Outcome(plan.seed, 0, 0, Counter(), _described(error))
    if "world" not in parts:
        return Outcome(plan.seed, 0, 0, coverage, None)
    world, failure = run_one(plan, past_exceptions=past_exceptions)
    assert isinstance(world, ControllersWorld)
    return Outcome(
        plan.seed,
        world.scheduler.events,
        world.checks.writes.acknowledged,
        world.coverage + coverage,
        None if failure is None else _described(failure),
    )


def part_of(outcome: Outcome) -> str:
    """The part in ``BESIDE`` to which a schedule belongs; "": controllers or brokers."""
    return next((part for part in BESIDE if ("part", part) in outcome.coverage), "")


def _described(error: BaseException) -> Failure:
    """The check or exception that noticed a failure, and its message."""
    what = getattr(error, "check", None) or getattr(error, "rule", None) or type(error).__name__
    # the log: an exception that the product only logged
    by_checker = isinstance(error, _OF_CHECKERS) and what != "rules"
    return Failure(str(what), str(error).removeprefix(f"{what}: "), by_checker)


# ---------------------------------------------------------------------------------------------- work for the processes


class Work(NamedTuple):
    """The seeds from ``first`` to below ``end``: run all of them, or (with a mutant) until a check fails."""

    mutant: str
    first: int
    end: int
    half: str = "both"


def begin_worker() -> None:
    """Set up a worker process, once. Garbage is collected only at the end of each schedule, when there is little
    garbage. Objects from before the first schedule are exempt from collection."""
    gc.disable()
    gc.collect()
    gc.freeze()


def do_work(work: Work) -> tuple[Work, list[Outcome]]:
    listen_to_the_log()
    outcomes = []
    mutant = MUTANTS[work.mutant] if work.mutant else None
    parts = _ALL_PARTS if mutant is None else (mutant.part,)
    profile = None if mutant is None else mutant.profile
    half = work.half if mutant is None else half_of(mutant)
    with contextlib.nullcontext() if mutant is None else mutant.applied():
        for seed in range(work.first, work.end):
            outcome = outcome_of(plan_of(seed, half, mutant), parts, profile, past_exceptions=mutant is not None)
            outcomes.append(outcome)
            gc.collect()
            if mutant is not None and outcome.failure is not None and outcome.failure.by_checker:
                break
    return work, outcomes


#: A mutant may be killed by a broken promise, an assertion of the product, or an error that ends a process. An
#: exception of one of these types means that the mutant itself is broken.
_NOT_BY = ("TypeError", "AttributeError", "NameError", "ImportError")


@dataclass
class Score:
    mutant: Mutant
    tried: int = 0
    killed_by: Failure | None = None
    seed: int = -1

    @property
    def is_killed(self) -> bool:
        return self.killed_by is not None and self.killed_by.what not in _NOT_BY

    @property
    def is_killed_by_a_checker(self) -> bool:
        return self.killed_by is not None and self.killed_by.by_checker

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """An exception counts as long as no check has failed; ``tried`` is then the number of schedules up to that
        exception."""
        for outcome in outcomes:
            self.tried += 1
            if outcome.failure is not None and (self.killed_by is None or outcome.failure.by_checker):
                self.killed_by, self.seed = outcome.failure, outcome.seed


@dataclass
class PartTally:
    """The counts of schedules, without their failures."""

    schedules: int = 0
    events: list[int] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.events.append(outcome.events)
        self.acknowledged.append(outcome.acknowledged)
        self.coverage.update(outcome.coverage)


@dataclass
class Tally(PartTally):
    """All results so far; ``beside`` are the results of the parts in ``BESIDE``."""

    #: The number of schedules with brokers among all schedules of the run.
    brokers: int = 0
    beside: dict[str, PartTally] = field(default_factory=lambda: {part: PartTally() for part in BESIDE})
    failures: list[Outcome] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)
    #: The number of schedules that did not begin before the time was over, and the mutants that lived at that time.
    not_run: int = 0
    not_judged: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self.failures.append(outcome)
        part = part_of(outcome)
        if part:
            self.beside[part].add(outcome)
            return
        super().add(outcome)
        self.brokers += ("half", "brokers") in outcome.coverage

    @property
    def schedules_in_all(self) -> int:
        return self.schedules + sum(part.schedules for part in self.beside.values())

    @property
    def faults(self) -> dict[str, int]:
        return {kind: self.coverage["fault", kind] for kind in REQUIRED}


def works_of(arguments: argparse.Namespace, names: list[str]) -> list[Work]:
    """All work of a run. The kinds are mixed evenly, so that a run that ends early has its share of each."""
    first = arguments.seed
    counts = {arguments.half: arguments.schedules}
    for part, beside in BESIDE.items() if arguments.half == "both" else ():
        is_given = part == TRANSACTIONS and arguments.transactions is not None
        counts[part] = arguments.transactions if is_given else arguments.schedules // beside.every
    kinds = [[Work(name, first, first + _MUTANT_CHUNK) for name in names]]
    for half, count in counts.items():
        end = first + count
        kinds.append([Work("", seed, min(seed + _CHUNK, end), half) for seed in range(first, end, _CHUNK)])
    ranked = [((at + 0.5) / len(kind), work) for kind in kinds for at, work in enumerate(kind)]
    return [work for _, work in sorted(ranked, key=lambda each: each[0])]


def simulate(arguments: argparse.Namespace, names: list[str]) -> Tally:
    """Run all schedules, with ``arguments.workers`` processes. The results do not depend on the number of processes.
    After ``arguments.seconds`` no schedule begins, and mutants that live then are not judged."""
    tally = Tally(scores={name: Score(MUTANTS[name]) for name in names})
    waiting = works_of(arguments, names)
    total = sum(work.end - work.first for work in waiting if not work.mutant)
    waiting.reverse()
    began, last_said = time.monotonic(), 0.0
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    with context.Pool(arguments.workers, begin_worker) as pool:
        running = 0

        def give() -> None:
            nonlocal running
            while waiting and running < arguments.workers + 1 and time.monotonic() - began < arguments.seconds:
                running += 1
                pool.apply_async(do_work, (waiting.pop(),), callback=results.put, error_callback=results.put)

        give()
        while running:
            result = results.get()
            running -= 1
            if isinstance(result, BaseException):
                raise result
            work, outcomes = result
            if work.mutant:
                score = tally.scores[work.mutant]
                score.add(outcomes)
                if score.killed_by is None and score.tried < arguments.mutant_schedules:
                    waiting.append(Work(work.mutant, work.end, work.end + _MUTANT_CHUNK))
            else:
                for outcome in outcomes:
                    tally.add(outcome)
                    if outcome.failure is not None:
                        of = f" of {part_of(outcome)}" if part_of(outcome) else ""
                        print(f"sim: seed {outcome.seed}{of} broke a promise: {outcome.failure}"[:300], file=sys.stderr)
            give()
            if time.monotonic() - last_said > 5.0 or not running:
                last_said = time.monotonic()
                alive = sum(score.killed_by is None for score in tally.scores.values())
                print(
                    f"sim: {tally.schedules_in_all} of {total} schedules, {len(tally.failures)} violations, "
                    f"{len(tally.scores) - alive} of {len(tally.scores)} mutants killed, "
                    f"{time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    if waiting:
        tally.not_judged = [name for name in names if tally.scores[name].killed_by is None]
        tally.not_run = total - tally.schedules_in_all
        for name in tally.not_judged:
            del tally.scores[name]
    return tally


# ---------------------------------------------------------------------------------------------- one that failed


def explain(seed: int, failure: Failure, mutant: str = "", half: str = "both") -> str:
    """A shrunk schedule, the command that replays it, and its transcript."""
    plan: Any = plan_of(seed, half, MUTANTS[mutant] if mutant else None)
    whole = plan
    until_s = time.monotonic() + _SHRINK_S_MAX

    def fails(candidate: AnyPlan) -> bool:
        return time.monotonic() < until_s and run_one(candidate, past_exceptions=bool(mutant))[1] is not None

    if not fails(plan):
        return (
            f"seed {seed}: {failure[0]}: {failure[1]}\n"
            f"  again: make sim SCHEDULES=1 SEED={seed} (in the history of brokers, sim_histories.py)"
        )
    length_ms = shortest(lambda length: length > 0 and fails(plan.until(length)), plan.length_ms)
    if length_ms < plan.length_ms:
        plan = plan.until(length_ms)
    numbers = shrink([fault.number for fault in plan.faults], lambda kept: fails(plan.keeping(kept)), tries_max=100)
    plan = plan.keeping(numbers)
    world, error = run_one(plan, with_story=True, past_exceptions=bool(mutant))
    found = failure if error is None else _described(error)
    keep = f" --keep {','.join(map(str, numbers)) or 'none'} --until {length_ms:.0f}"
    name = f" --half {half}" if half != "both" else ""
    name += f" --mutant {mutant}" if mutant else ""
    lines = [
        f"seed {seed}: {found[0]}: {found[1]}",
        f"  again:  make sim SCHEDULES=1 SEED={seed}"
        + (f" MUTANT={mutant}" if mutant else f' SIM="--half {half}"' if half in BESIDE else ""),
        f"  shrunk: .venv/bin/python -m tests.simulation.run --schedules 1 --seed {seed}{keep}{name}",
        f"  {len(plan.faults)} of {len(whole.faults)} faults are needed, in {length_ms / 1_000:.1f} s:",
    ]
    story = [f"    {line}" for line in world.story.lines()]
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{seed}{mutant and '-' + mutant}.txt"
    path.write_text("\n".join(lines + story) + "\n")
    if len(story) > 60:
        story = [
            *story[:15],
            f"    ... ({len(story) - 55} lines more in {path})",
            *story[-40:],
        ]
    return "\n".join(lines + story)


# ---------------------------------------------------------------------------------------------- the report


def report(tally: Tally, *, is_measured: bool) -> list[str]:
    """Print the tables; return the problems that make the run fail."""
    wrong = [f"{len(tally.failures)} schedules broke a promise"] if tally.failures else []
    if tally.not_run or tally.not_judged:
        print(
            f"sim: THE TIME WAS OVER: {tally.not_run} of {tally.not_run + tally.schedules_in_all} schedules did not "
            f"run; mutants that are not judged: {', '.join(tally.not_judged) or 'none'}"
        )
        if not tally.schedules_in_all:
            wrong.append("the time was over before a schedule ran")
    print("What happened (category, what, how often):")
    for (category, name), times in sorted(tally.coverage.items()):
        print(f"  {category:<9} {name:<44} {times:>9}")
    for part in BESIDE:
        wrong += _report_part(part, tally.beside[part])
    if is_measured:
        controllers = tally.schedules - tally.brokers
        unseen = missing(tally.coverage, controllers) if controllers >= MEASURED_FROM else []
        unseen += brokers_missing(tally.coverage) if tally.brokers >= MEASURED_FROM else []
        if unseen:
            wrong.append("never seen: " + "; ".join(f"{category} {name}" for category, name in unseen))
        listed = len(LISTED) + len(BROKERS_LISTED)
        print(f"  {listed - len(unseen)} of {listed} listed transitions were seen")
        rare = {kind: n for kind, n in tally.faults.items() if n < FAULTS_SHARE_MIN * tally.schedules}
        if rare:
            wrong.append(f"faults that struck too seldom: {rare}")
        events, writes = statistics.median(tally.events), statistics.median(tally.acknowledged)
        if events < EVENTS_MEDIAN_MIN or writes < ACKNOWLEDGED_MEDIAN_MIN:
            wrong.append(f"median of {events:.0f} events, {writes:.0f} acknowledged writes: that proves little")
    if tally.scores:
        wrong += _report_mutants(tally)
    return wrong


def _report_mutants(tally: Tally) -> list[str]:
    """Print the table of mutants: first those killed by a check, then those that only an exception of the product has
    exposed."""
    wrong = []
    checked = [name for name, score in tally.scores.items() if score.is_killed_by_a_checker]
    raised = [name for name, score in tally.scores.items() if score.is_killed and not score.is_killed_by_a_checker]
    print("Mutants killed by a checker (a guard removed; the check that failed, after how many schedules):")
    _print_scores(tally, checked)
    if raised:
        print("Mutants killed by an exception of the product only:")
        _print_scores(tally, raised)
    print(f"  {len(checked)} of {len(tally.scores)} killed by checkers, {len(raised)} by exceptions only")
    alive = [name for name, score in tally.scores.items() if not score.is_killed]
    if alive:
        print("Mutants that live:")
        _print_scores(tally, alive)
        wrong.append(f"{len(alive)} mutants survived: {', '.join(alive)}")
    if len(tally.scores) >= CHECKERS_MEASURED_FROM and len(checked) < CHECKERS_SHARE_MIN * len(tally.scores):
        wrong.append(f"only {len(checked)} of {len(tally.scores)} mutants were killed by checkers")
    return wrong


def _print_scores(tally: Tally, names: Sequence[str]) -> None:
    for name in names:
        score = tally.scores[name]
        verdict = "SURVIVED" if score.killed_by is None else f"{score.tried:>5}  {score.killed_by.what}"
        if score.killed_by is not None and not score.is_killed:
            verdict = f"BROKEN: {score.killed_by.what}: {score.killed_by.message[:80]}"
        print(f"  {name:<36} {verdict:<24} issue {score.mutant.owner}  {score.mutant.breaks}")
        print(f"  {'':<36} without a seed: {NOTICED_BY[name]}")


def _report_part(part: str, tally: PartTally) -> list[str]:
    """Print the same tables for the schedules of a part."""
    if not tally.schedules:
        return []
    beside = BESIDE[part]
    print(f"What happened in {tally.schedules} schedules of {part}:")
    for (category, name), times in sorted(tally.coverage.items()):
        print(f"  {category:<15} {name:<42} {times:>9}")
    events, acknowledged = statistics.median(tally.events), statistics.median(tally.acknowledged)
    print(f"  medians of {events:.0f} events, {acknowledged:.0f} {beside.what}")
    if tally.schedules < beside.measured_from:
        return []
    wrong = []
    unseen = beside.missing(tally.coverage)
    print(f"  {len(beside.listed) - len(unseen)} of {len(beside.listed)} listed transitions were seen")
    if unseen:
        wrong.append(f"never seen with {part}: " + "; ".join(f"{category} {name}" for category, name in unseen))
    if events < EVENTS_MEDIAN_MIN or acknowledged < beside.acknowledged_min:
        wrong.append(f"{part}: median of {events:.0f} events, {acknowledged:.0f} {beside.what}: that proves little")
    return wrong


def summary(tally: Tally, seconds: float) -> dict[str, object]:
    """Return the last line of the output as a dict; scripts depend on these names. The counts are about controllers and
    brokers, or about the only part that ran."""
    alone = [part for part in tally.beside.values() if part.schedules]
    shown = alone[0] if alone and not tally.schedules else tally
    return {
        "schedules": shown.schedules,
        "events": sum(tally.events) + sum(sum(part.events) for part in tally.beside.values()),
        "events_median": statistics.median(shown.events) if shown.events else 0,
        "acknowledged_median": statistics.median(shown.acknowledged) if shown.acknowledged else 0,
        "violations": len(tally.failures),
        "mutants": len(tally.scores),
        "mutants_killed": sum(score.is_killed for score in tally.scores.values()),
        "mutants_killed_by_checkers": sum(score.is_killed_by_a_checker for score in tally.scores.values()),
        "faults": tally.faults,
        "seconds": round(seconds, 1),
    }


def replay(arguments: argparse.Namespace) -> int:
    """Run one schedule, and print its transcript."""
    began, tally = time.monotonic(), Tally()
    mutant = MUTANTS[arguments.mutant] if arguments.mutant else None
    half = arguments.half if mutant is None else half_of(mutant)
    plan: Any = plan_of(arguments.seed, half, mutant)
    is_shrunk = arguments.until is not None or arguments.keep is not None
    if arguments.until is not None:
        plan = plan.until(arguments.until)
    if arguments.keep is not None:
        plan = plan.keeping([int(each) for each in arguments.keep.split(",") if each != "none"])
    listen_to_the_log()
    with contextlib.nullcontext() if mutant is None else mutant.applied():
        outcome = outcome_of(plan, past_exceptions=mutant is not None)
        world, _ = run_one(plan, with_story=True, past_exceptions=mutant is not None)
        tally.add(outcome)
        for line in world.story.lines():
            print(line)
        print(f"{world.scheduler.events} events, digest {world.digest}")
        if outcome.failure is None:
            print("all is well")
        elif is_shrunk:
            print(f"{outcome.failure[0]}: {outcome.failure[1]}")
        else:
            print(explain(plan.seed, outcome.failure, arguments.mutant, half))
    print(json.dumps(summary(tally, time.monotonic() - began)), flush=True)
    return 1 if tally.failures else 0


def mutants_named(wanted: str, half: str = "both") -> list[str]:
    """Parse names of mutants: "all" or "auto", "none", "2/4" (every fourth mutant, from the second on), or single
    names."""
    names = [name for name, mutant in MUTANTS.items() if half not in BESIDE or mutant.part == half]
    if wanted in ("all", "auto"):
        return names
    if wanted == "none":
        return []
    part, is_part, parts = wanted.partition("/")
    return names[int(part) - 1 :: int(parts)] if is_part else wanted.split(",")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--mutants", default="auto", help="all, none, 2/4 (a part of all), names; auto: all, with 500 schedules or more"
    )
    parser.add_argument(
        "--mutant", default="", choices=["", *MUTANTS], help="run the schedules with this guard removed"
    )
    parser.add_argument("--mutant-schedules", type=int, default=MUTANT_SCHEDULES_MAX, help="within which each must die")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no schedule after this time (default: no limit)"
    )
    parser.add_argument("--half", choices=("both", "controllers", "brokers", *BESIDE), default="both")
    parser.add_argument(
        "--transactions",
        type=int,
        help="number of schedules of transactions beside the other schedules (default: half as many)",
    )
    parser.add_argument("--keep", help="numbers of the faults that remain in the schedule")
    parser.add_argument("--until", type=float, help="end the schedule at this time, ms")
    arguments = parser.parse_args(argv)
    if arguments.schedules == 1:
        return replay(arguments)
    if arguments.mutant or arguments.keep is not None or arguments.until is not None:
        parser.error("--mutant, --keep and --until are for a single schedule: --schedules 1")
    wanted = "none" if arguments.mutants == "auto" and arguments.schedules < 500 else arguments.mutants
    names = mutants_named(wanted, arguments.half)
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        parser.error(f"no such mutants: {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    began = time.monotonic()
    print(f"sim: seeds {arguments.seed} to {arguments.seed + arguments.schedules - 1}, {len(names)} mutants, "
          f"{arguments.workers} processes", file=sys.stderr)  # fmt: skip
    tally = simulate(arguments, names)
    wrong = report(tally, is_measured=tally.schedules >= MEASURED_FROM)
    listen_to_the_log()
    for outcome in sorted(tally.failures)[:_STORIES_MAX]:
        assert outcome.failure is not None
        half = part_of(outcome) or arguments.half
        print(explain(outcome.seed, outcome.failure, half=half))
    for outcome in sorted(tally.failures)[_STORIES_MAX:]:
        half = f' SIM="--half {part_of(outcome)}"' if part_of(outcome) else ""
        print(f"seed {outcome.seed}: {outcome.failure}; again: make sim SCHEDULES=1 SEED={outcome.seed}{half}")
    for problem in wrong:
        print(f"sim: FAILED: {problem}")
    print(json.dumps(summary(tally, time.monotonic() - began)), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
