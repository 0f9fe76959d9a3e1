"""Kill the driver, an executor, a broker or the coordinator of a pipeline while ``headrace-pipelines run`` works.

The numbers are those of a calculation without the pipeline's code, and the state is as small as without a kill. After
the death of the driver the same command continues the run. Spark tries the tasks of a killed executor again. A killed
node starts again. The moment is random: HEADRACE_TEST_SEED repeats it. CI kills one process of one pipeline, which
changes with the day; `make verify` sets HEADRACE_PIPELINES_KILLED=all.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from tests.integration.spark.long import test_clickstream as clickstream
from tests.integration.spark.long import test_lake as lake
from tests.integration.spark.long import test_logs as logs
from tests.integration.spark.long import test_telemetry as telemetry
from tests.worlds import pipelines_world
from tests.worlds.pipelines_world import Run

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.headrace_cluster(brokers=3, controllers=1, coordinators=2),
]

KINDS = ("driver", "executor", "broker", "coordinator")
LINES = 4_000
PAYMENTS, PAYMENTS_PER_S = 15_000, 500
BUCKETS = 16 * 8


@dataclass(frozen=True)
class Killed:
    """A pipeline to kill: the flags of its run, the progress below which it is killed, and the check of its end."""

    name: str
    flags: Callable[[Path], list[str]]
    moments: int
    check: Callable[[Path, dict[str, Any], str], None]


def flags_of_clickstream(directory: Path) -> list[str]:
    part = b"".join(gzip.decompress(clickstream.LOG.read_bytes()).splitlines(keepends=True)[:LINES])
    log = directory / "part.log.gz"
    log.write_bytes(gzip.compress(part))
    return ["--log", str(log)]


def check_clickstream(directory: Path, summary: dict[str, Any], servers: str) -> None:
    expected = clickstream.by_pandas(directory / "part.log.gz")
    assert summary == {key: expected[key] for key in clickstream.CONTRACT}
    details = json.loads((directory / "out/details.json").read_text())
    others = {key: value for key, value in expected.items() if key not in clickstream.CONTRACT}
    assert {key: details[key] for key in others} == others
    assert details["dead_letters"] == {}
    print(details)


def check_fraud(directory: Path, summary: dict[str, Any], servers: str) -> None:
    expected = pipelines_world.calculated(servers)
    assert expected.alerts.total() > 50
    assert pipelines_world.written(servers) == expected
    assert (summary["payments"], summary["alerts"]) == (PAYMENTS, expected.alerts.total())
    details = json.loads((directory / "out/details.json").read_text())
    accounts = {each.key: each.value for each in pipelines_world.records_of(servers, "fraud.accounts")}
    is_open = sum(value is not None for value in accounts.values())
    assert is_open < details["state_rows"] <= is_open + BUCKETS, "the accounts and the buckets of histories"


def check_lake(directory: Path, summary: dict[str, Any], servers: str) -> None:
    assert summary == lake.by_pandas()
    details = json.loads((directory / "out/details.json").read_text())
    assert all(files["after"] == 10 for files in details["files"].values())


def check_logs(directory: Path, summary: dict[str, Any], servers: str) -> None:
    assert summary == logs.by_pandas(logs.LOG)


def check_telemetry(directory: Path, summary: dict[str, Any], servers: str) -> None:
    telemetry.check(servers, directory / "out", summary)


PIPELINES = (
    Killed("clickstream", flags_of_clickstream, LINES // 2, check_clickstream),
    Killed(
        "fraud",
        # A payment waits for its account longer than a driver needs to start again.
        lambda _: ["--rate", str(PAYMENTS_PER_S), "--seconds", str(PAYMENTS // PAYMENTS_PER_S), "--account-wait", "60"],
        PAYMENTS // 2,
        check_fraud,
    ),
    Killed("lake", lambda _: [], 300_000, check_lake),
    Killed("logs", lambda _: [], 5_000, check_logs),
    Killed("telemetry", lambda _: telemetry.FLAGS, 9_000, check_telemetry),
)
#: Consecutive cases differ in the pipeline and in the kind.
CASES = [(PIPELINES[number % 5], KINDS[number % 4]) for number in range(20)]


@pytest.mark.parametrize("number", range(len(CASES) if os.environ.get("HEADRACE_PIPELINES_KILLED") == "all" else 1))
def test_a_killed_pipeline_has_the_same_numbers(number: int, headrace_cluster: LocalCluster, tmp_path: Path) -> None:
    seed = os.environ["HEADRACE_TEST_SEED"]
    # CI runs each of the long files every sixth day: the next case each time.
    pipeline, kind = CASES[(int(seed) // 6 + number) % len(CASES)]
    chance = random.Random(zlib.crc32(f"{seed} {pipeline.name} {kind}".encode()))
    moment = chance.randrange(1, pipeline.moments)
    print(f"seed {seed}: {kind} of {pipeline.name} after {moment} records")
    servers = headrace_cluster.bootstrap_servers
    flags = [*pipeline.flags(tmp_path), "--bootstrap-servers", servers]
    if kind == "executor":
        flags += ["--master", "local-cluster[2,1,1024]"]
    run = Run(pipeline.name, tmp_path, flags)
    try:
        run.wait_for(moment)
        if kind == "driver":
            run.kill()
            run = Run(pipeline.name, tmp_path, flags)
        elif kind == "executor":
            executors = run.executors()
            assert len(executors) == 2
            chance.choice(executors).kill()
        else:
            node = chance.choice([each["id"] for each in headrace_cluster.ps() if each["role"] == kind])
            run.outlives(headrace_cluster, kind, node)
        summary = run.summary()
    finally:
        run.kill()
    pipeline.check(tmp_path, summary, servers)
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert details["continued"] == (kind == "driver")
