"""Ctrl-C at each stage of a run with Spark: exit code 130, and no process stays. There is no traceback until records
flow; then PySpark's server of accumulators may print one when its JVM ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worlds.pipelines_world import Run
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(240)

STAGES = ("starting Spark", "Setting default log level", "starting four queries", "replaying")


def of_session(leader: int) -> list[int]:
    """The processes of the run that have not ended."""
    found = []
    for each in psutil.process_iter(["status"]):
        try:
            if each.info["status"] != psutil.STATUS_ZOMBIE and os.getsid(each.pid) == leader:
                found.append(each.pid)
        except ProcessLookupError:
            continue
    return found


def test_ctrl_c_ends_each_stage_of_a_run(headrace: Any, tmp_path: Path) -> None:
    for stage in STAGES:
        run = Run("clickstream", tmp_path, ["--bootstrap-servers", headrace.bootstrap_servers, "--restart"])
        try:
            until(lambda run=run, stage=stage: stage in run.said(), f"the run is at {stage!r}")  # type: ignore[misc]
            os.killpg(run.process.pid, signal.SIGINT)  # a terminal sends it to all processes of the command
            assert run.process.wait(60) == 130
            until(lambda run=run: not of_session(run.process.pid), f"no process stays after {stage!r}")  # type: ignore[misc]
        finally:
            run.kill()
        said = run.said()
        if stage != STAGES[-1]:
            assert "Traceback" not in said
            assert "Exception" not in said
        assert said.splitlines()[-1] == "interrupted: the processes of the run are stopped"
