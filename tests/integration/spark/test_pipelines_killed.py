"""Kill a node of the cluster while ``headrace-pipelines run`` works: the numbers stay the same.

The killed broker or coordinator starts again, and the run goes on to its end. The moment of the kill is random:
HEADRACE_TEST_SEED repeats it. `make verify` runs these tests, and sets HEADRACE_PIPELINES_KILLED. In CI test_fraud.py
kills a process.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from headrace_core.testing.verdicts import NotInTimeError
from headrace_pipelines.testing import kill_session
from tests.integration.spark.test_clickstream import CONTRACT, LOG, by_pandas

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(540),
    pytest.mark.skipif("HEADRACE_PIPELINES_KILLED" not in os.environ, reason="`make verify` runs it"),
    pytest.mark.headrace_cluster(brokers=3, controllers=1, coordinators=2),
]

SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
KINDS = ("broker", "coordinator")
LINES = 4_000
LONG_S = 240.0
PROGRESS = re.compile(r"lines: ([\d,]+) of ")


def started(directory: Path, *flags: str) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own. The output of the command is written to ``directory``/said."""
    command = [sys.executable, "-m", "headrace_pipelines", "run", "clickstream", "--out", str(directory / "out")]
    with (directory / "said").open("wb") as said:
        return subprocess.Popen([*command, *flags], stdout=said, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(run: subprocess.Popen[bytes], directory: Path, lines: int) -> int:
    """Wait until the run has processed ``lines`` lines of the log; returns how many it has processed."""
    deadline = time.monotonic() + LONG_S
    while True:
        said = (directory / "said").read_text(errors="replace")
        done = [int(found.replace(",", "")) for found in PROGRESS.findall(said)]
        if done and done[-1] >= lines:
            return done[-1]
        if time.monotonic() > deadline:
            raise NotInTimeError(f"the run has not processed {lines} lines: {said[-2000:]}")
        try:
            code = run.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"the run ended with {code} before {lines} lines: {said[-3000:]}")


def summary_of(run: subprocess.Popen[bytes], directory: Path) -> dict[str, Any]:
    code = run.wait(LONG_S)
    said = (directory / "said").read_text(errors="replace")
    assert code == 0, said[-3000:]
    return dict(json.loads(said.splitlines()[-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_of_clickstream_has_the_same_numbers(
    kind: str, headrace_cluster: LocalCluster, tmp_path: Path
) -> None:
    chance = random.Random(zlib.crc32(f"{SEED} {kind}".encode()))
    log = tmp_path / "part.log.gz"
    log.write_bytes(gzip.compress(b"".join(gzip.decompress(LOG.read_bytes()).splitlines(keepends=True)[:LINES])))
    flags = ("--log", str(log), "--bootstrap-servers", headrace_cluster.bootstrap_servers)
    moment, node = chance.randrange(1, LINES // 2), chance.choice([1, 2, 3] if kind == "broker" else [1, 2])
    print(f"seed {SEED}: {kind} {node} after {moment} lines")
    run = started(tmp_path, *flags)
    try:
        done = wait_for(run, tmp_path, moment)
        node_ids = sorted(each["id"] for each in headrace_cluster.ps() if each["role"] == kind)
        with headrace_cluster.killed(kind, node_ids[node - 1]):
            wait_for(run, tmp_path, min(done + 1, LINES))
        summary = summary_of(run, tmp_path)
    finally:
        if run.poll() is None:
            kill_session(run.pid)
            run.wait()
    expected = by_pandas(log)
    assert summary == {key: expected[key] for key in CONTRACT}
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert {key: details[key] for key in ("views", "funnel", "conversions", "lines")} == {
        key: expected[key] for key in ("views", "funnel", "conversions", "lines")
    }
    assert details["dead_letters"] == {}
