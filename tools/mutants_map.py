"""A plugin of pytest for tools/mutants.py. HEADRACE_MUTANTS_MAP=DIR: write to DIR which test reaches which line, and
how long each test takes. Processes that a test starts report the test's file instead of the test. Without the variable,
Hypothesis reports a failure without a search for a smaller example."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import hypothesis
import pytest

_DIR = os.environ.get("HEADRACE_MUTANTS_MAP", "")
_SETTINGS = """[run]
data_file = {folder}/lines
parallel = true
context = ${{HEADRACE_MUTANTS_FILE-unknown}}
disable_warnings = no-data-collected, module-not-measured, module-not-imported
source_pkgs = {packages}
"""
#: Clusters kill their nodes at the end of a test, so a process stores its lines while it runs.
_HOOK = """import threading, time
import coverage

def save(running):
    while True:
        time.sleep(0.5)
        running.save()

coverage.process_startup()
threading.Thread(target=save, args=(coverage.Coverage.current(),), daemon=True).start()
"""


class _Map:
    def __init__(self, root: Path, *, runs_tests: bool, writes: bool) -> None:
        self._writes, self._seconds, self._failed = writes, dict[str, float](), set[str]()
        packages = [
            each.name for each in (*root.glob("*/src/headrace*"), *root.glob("*/*/src/headrace*")) if each.is_dir()
        ]
        self._coverage = None
        if not runs_tests:
            return
        hook = Path(_DIR, "hook")
        hook.mkdir(exist_ok=True)
        (hook / "sitecustomize.py").write_text(_HOOK)
        (hook / "settings").write_text(_SETTINGS.format(folder=_DIR, packages=",".join(packages)))
        os.environ["COVERAGE_PROCESS_START"] = str(hook / "settings")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(hook), os.environ["PYTHONPATH"]])
        self._coverage = coverage.Coverage(
            data_file=f"{_DIR}/lines", data_suffix=True, config_file=False, source_pkgs=packages
        )
        self._coverage._warn_no_data = False  # of a worker with few tests
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._coverage is not None:
            os.environ["HEADRACE_MUTANTS_FILE"] = item.nodeid.split("::")[0]
            self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()
        if self._writes:
            found = {"failed": sorted(self._failed), "seconds": self._seconds}
            Path(_DIR, "running.json").write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    if _DIR:
        is_worker = hasattr(config, "workerinput")
        spreads = bool(getattr(config.option, "numprocesses", None)) and not is_worker
        config.pluginmanager.register(_Map(config.rootpath, runs_tests=not spreads, writes=not is_worker))
    else:
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")
