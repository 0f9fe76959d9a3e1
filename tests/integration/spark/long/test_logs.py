"""``headrace-pipelines run logs`` as a user runs it: its numbers equal those that pandas computes from the log."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import LocalCluster
from headrace_pipelines.logs import archive
from tests.worlds.pipelines_world import Run
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(540)

MODULE = "headrace_pipelines.logs.shipping"

ROOT = Path(__file__).resolve().parents[4]
LOG = ROOT / "pipelines/library/src/headrace_pipelines/clickstream/data/web_access.log.gz"


def by_pandas(log: Path) -> dict[str, Any]:
    """The summary, computed from the log file without the code of the pipeline."""
    import pandas as pd

    content = log.read_bytes()
    lines = pd.Series((gzip.decompress(content) if log.suffix == ".gz" else content).decode().splitlines())
    rows = lines.str.extract(r'^(?P<address>\S+) .*?\[(?P<time>[^]]+)\] "(?P<request>[^"]+)" (?P<status>\d{3}) ')
    rows = rows.dropna().reset_index(drop=True)
    rows["time"] = pd.to_datetime(rows["time"], format="%d/%b/%Y:%H:%M:%S %z")
    rows["status"] = rows["status"].astype(int)
    rows["host"] = [f"web-{zlib.crc32(address.encode()) % 40 + 1:02}" for address in rows["address"]]
    begin, end = pd.Timestamp("2015-05-18T08", tz="UTC"), pd.Timestamp("2015-05-18T20", tz="UTC")
    rows.loc[(rows["host"] == "web-07") & (rows["time"] >= begin) & (rows["time"] < end), "status"] = 503
    rows["failed"] = rows["status"] >= 500
    windows = rows.groupby([rows["time"].dt.floor("3h"), "host"])["failed"].agg(["size", "sum"])
    alerts = windows[(windows["sum"] >= 2) & (windows["sum"] * 2 >= windows["size"])]
    return {
        "lines": len(lines),
        "requests": len(rows),
        "hosts": int(rows["host"].nunique()),
        "errors": int((rows["status"] >= 400).sum()),
        "failures": int(rows["failed"].sum()),
        "dead_letters": len(lines) - len(rows),
        "windows": len(windows),
        "alerts": [[f"{at:%Y-%m-%dT%H:%M}", host, int(row["sum"])] for (at, host), row in alerts.iterrows()],
        "archived": len(rows),
    }


def test_the_numbers_are_those_of_the_web_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace_pipelines", "run", "logs", "--out", str(tmp_path / "out"), "-o", "json"]
    zone = {"TZ": "America/New_York"}  # the windows of the summary are in UTC on any machine
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=os.environ | zone)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == by_pandas(LOG)
    assert len(summary["alerts"]) >= 3
    assert {host for _, host, _ in summary["alerts"]} == {"web-07"}
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert (details["late_dropped"], details["deaths_of_the_shipper"]) == (0, 0)
    assert list(details["days"]) == ["2015-05-17", "2015-05-18", "2015-05-19", "2015-05-20"]
    failed = list(archive.search(tmp_path / "out/archive", status=503, limit=1_000))
    assert len(failed) == summary["failures"] - len(list(archive.search(tmp_path / "out/archive", status=500)))
    assert (tmp_path / "out/logs.png").stat().st_size > 20_000


@pytest.mark.headrace_cluster(brokers=1, controllers=1)
def test_late_lines_are_in_no_window_and_fail_no_run(headrace_cluster: LocalCluster, tmp_path: Path) -> None:
    """Two late requests of a host in a window are one dropped row for Spark."""
    lines = gzip.decompress(LOG.read_bytes()).splitlines(keepends=True)[::20]
    late = [
        b'10.0.0.9 - - [17/May/2015:10:05:0%d +0000] "GET /late HTTP/1.1" 200 1 "-" "-"\n' % each for each in (1, 2)
    ]
    log = tmp_path / "late.log"
    log.write_bytes(b"".join(lines + late))
    flags = ["--bootstrap-servers", headrace_cluster.bootstrap_servers, "--log", str(log), "--speed", "20000"]
    run = Run("logs", tmp_path, flags)
    try:
        summary = run.summary()
    finally:
        run.kill()
    expected = by_pandas(log)
    assert {**summary, "windows": 0, "alerts": 0} == {**expected, "windows": 0, "alerts": 0}
    assert json.loads((tmp_path / "out/details.json").read_text())["late_dropped"] == 2


def shippers(run: Run) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(run.process.pid).children():
        with contextlib.suppress(psutil.Error):  # another child has ended
            found += [each] if MODULE in each.cmdline() else []
    return found


@pytest.mark.headrace_cluster(brokers=1, controllers=1)
def test_a_killed_shipper_costs_no_line_and_doubles_none(
    headrace_cluster: LocalCluster, tmp_path: Path, rng: random.Random
) -> None:
    run = Run("logs", tmp_path, ["--bootstrap-servers", headrace_cluster.bootstrap_servers])

    try:
        run.wait_for(rng.randrange(1, 5_000))
        (killed,) = until(lambda: shippers(run), "a shipper runs")
        killed.kill()
        summary = run.summary()
    finally:
        run.kill()
    assert summary == by_pandas(LOG), "the run has checked the lines of each host, too"
    assert json.loads((tmp_path / "out/details.json").read_text())["deaths_of_the_shipper"] == 1


@pytest.mark.headrace_cluster(brokers=1, controllers=1)
def test_no_shipper_outlives_a_killed_run(headrace_cluster: LocalCluster, tmp_path: Path) -> None:
    run = Run("logs", tmp_path, ["--bootstrap-servers", headrace_cluster.bootstrap_servers])
    try:
        run.wait_for(1)
        (shipper,) = until(lambda: shippers(run), "a shipper runs")
    finally:
        run.kill()
    until(lambda: not shipper.is_running() or shipper.status() == psutil.STATUS_ZOMBIE, "the shipper has ended")
