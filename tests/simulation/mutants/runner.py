"""A plugin of pytest: runs each test as it is, and then under the mutants that it notices (``directed``). The tests are
collected once; each mutant lives in a forked process.

The file named by the environment variable RESULTS gets a JSON object: why each mutant was noticed, or "survived", or
what is wrong.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.simulation.mutants.directed import NOTICED_BY
from tests.simulation.mutants.scoreboard import MUTANTS

RESULTS = "HEADRACE_MUTANTS"
SURVIVED = "survived"
#: A mutated test that hangs noticed nothing.
_TEST_S_MAX = 60.0
#: An exception of these types means that the mutant itself is broken.
_BROKEN = ("TypeError", "AttributeError", "NameError", "ImportError")
_fork = multiprocessing.get_context("fork")


def pytest_runtestloop(session: pytest.Session) -> bool:
    items: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in session.items:
        items[item.nodeid.partition("[")[0]].append(item)
    before = _forked(lambda: {nodeid: _failure(some) for nodeid, some in items.items()}, 3 * _TEST_S_MAX)
    assert isinstance(before, dict), f"the tests as they are: {before}"
    results = {}
    for name, nodeid in NOTICED_BY.items():
        if before[nodeid]:
            results[name] = f"WRONG: {nodeid} fails without the mutant: {before[nodeid]}"
        else:
            results[name] = _forked(functools.partial(_mutated, name, items[nodeid]), _TEST_S_MAX)
    Path(os.environ[RESULTS]).write_text(json.dumps(results))
    return True


def _mutated(name: str, items: Iterable[pytest.Item]) -> str:
    with MUTANTS[name].applied():
        failure = _failure(items)
    if failure.startswith(_BROKEN):
        return f"WRONG: the mutant is broken: {failure}"
    return failure or SURVIVED


def _failure(items: Iterable[pytest.Item]) -> str:
    """Run tests until one fails; return the message of its failure, or ""."""
    for item in items:
        for report in runtestprotocol(item, log=False, nextitem=None):
            if report.failed:
                crash: Any = getattr(report.longrepr, "reprcrash", None)
                return str(report.longrepr if crash is None else crash.message)[:300]
    return ""


def _forked(work: Callable[[], Any], at_most_s: float) -> Any:
    """The result of ``work`` in a process of its own."""
    receiver, sender = _fork.Pipe(duplex=False)

    def tell() -> None:
        try:
            sender.send(work())
        except Exception as error:  # noqa: BLE001  (such as a patch of something that is gone)
            sender.send(f"WRONG: {error!r}")

    process = _fork.Process(target=tell)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(at_most_s) else "WRONG: it hangs"
    except EOFError:
        return "WRONG: its process ended"
    finally:
        process.kill()
        process.join()
