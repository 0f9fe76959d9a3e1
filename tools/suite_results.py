"""Results of client test suites: parsing of reports, choice of the named tests, comparison. client_suites.py runs them.

An outcome is "passed", "failed", "skipped" or "did not end".
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PASSED, DID_NOT_END = "passed", "did not end"


class SuiteError(Exception):
    """A suite could not be fetched, run or judged."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The named tests, grouped by their outcome on Headrace. ``failed``: outcome by test; ``explained``: explanation by
    test; ``outdated``: explained tests that pass or that are not named."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    explained: Mapping[str, str]
    outdated: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.failed and not self.outdated


def compared(named: Sequence[str], outcomes: Mapping[str, str], explanations: Mapping[str, str]) -> Comparison:
    """Judge a run. A named test without an outcome did not run, and counts as failed."""
    passed = tuple(name for name in named if outcomes.get(name) == PASSED)
    others = {name: outcomes.get(name, "did not run") for name in named if outcomes.get(name) != PASSED}
    return Comparison(
        passed,
        {name: outcome for name, outcome in others.items() if name not in explanations},
        {name: explanations[name] for name in others if name in explanations},
        tuple(name for name in explanations if name not in others),
    )


def nameable(kafka: Sequence[Mapping[str, str]], nothing: Mapping[str, str]) -> list[str]:
    """The tests that pass in all runs against Kafka and do not pass without a server, sorted."""
    everywhere = set.intersection(*({name for name, outcome in run.items() if outcome == PASSED} for run in kafka))
    return sorted(name for name in everywhere if nothing.get(name) != PASSED)


def leaves(outcomes: Mapping[str, str]) -> dict[str, str]:
    """Remove the Go tests that only contain subtests."""
    parents = {name.rpartition("/")[0] for name in outcomes}
    parents |= {"/".join(parent.split("/")[:depth]) for parent in parents for depth in range(parent.count("/") + 1)}
    return {name: outcome for name, outcome in outcomes.items() if name not in parents}


def outcomes_of_go(events: Iterable[str], module: str) -> dict[str, str]:
    """Outcomes by test from the lines of ``go test -json``. Tests of a package below the module's root have the
    package's path and a colon before their names. A test without an outcome has begun but not ended."""
    words = {"pass": PASSED, "fail": "failed", "skip": "skipped"}
    outcomes: dict[str, str] = {}
    for line in events:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test, action = event.get("Test"), event.get("Action")
        if test is None or test.startswith(("Benchmark", "Example", "Fuzz")):
            continue
        package = event.get("Package", module).removeprefix(module).strip("/")
        name = f"{package}:{test}" if package else test
        if action == "run":
            outcomes.setdefault(name, DID_NOT_END)
        elif action in words:
            outcomes[name] = words[action]
    return outcomes


def outcomes_of_junit(text: str) -> dict[str, str]:
    """Outcomes by test from pytest's JUnit file; an error of a fixture counts as a failure of the test."""
    outcomes = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        bad = case.find("failure") is not None or case.find("error") is not None
        outcomes[name] = "failed" if bad else "skipped" if case.find("skipped") is not None else PASSED
    return outcomes


def parse_explanations(text: str, suite: str) -> dict[str, str]:
    """Read the explained differences of a suite from lines such as ``SUITE TEST: explanation``."""
    found = {}
    for line in text.splitlines():
        if line.startswith(f"{suite} "):
            name, _, why = line.removeprefix(f"{suite} ").partition(": ")
            if not why.strip():
                raise SuiteError(f"differences.txt does not explain {name}; write `{suite} TEST: explanation`")
            found[name] = why.strip()
    return found
