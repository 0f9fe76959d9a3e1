"""Kill a process of the pipeline scaling: each record is handled, in the order of its key.

The run itself checks this, and fails otherwise. The owner starts a dead process again; the members of a dead autoscaler
end with it. After the death of the owner, with its Spark job, the same command begins again. A killed node starts
again. CI runs one kind, which changes with the day; `make verify` sets HEADRACE_PIPELINES_KILLED=all.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import psutil
import pytest

from headrace import LocalCluster
from tests.worlds.pipelines_world import Run, kinds_to_kill, processes
from tests.worlds.waiting import until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.headrace_cluster(brokers=3, controllers=1, coordinators=2),
]

RATE = 3_000
#: Kind of process: the scene in which it is killed.
KINDS = {
    "member": "members",
    "autoscaler": "autoscaled",
    "owner": "one",
    "broker": "members",
    "coordinator": "concurrent",
}


@pytest.mark.parametrize("kind", kinds_to_kill(tuple(KINDS)))
def test_a_killed_process_costs_no_record(
    kind: str, headrace_cluster: LocalCluster, tmp_path: Path, rng: random.Random
) -> None:
    scene = KINDS[kind]
    flags = ["--bootstrap-servers", headrace_cluster.bootstrap_servers, "--rate", str(RATE), "--scenes", scene]
    run = Run("scaling", tmp_path, flags)
    try:
        run.wait_for(rng.randrange(1, RATE))
        if kind == "owner":
            run.kill()
            run = Run("scaling", tmp_path, flags)
        elif kind in ("broker", "coordinator"):
            node = rng.choice([each["id"] for each in headrace_cluster.ps() if each["role"] == kind])
            run.outlives(headrace_cluster, kind, node)
        else:
            victims: list[psutil.Process] = until(lambda: processes(run, kind), f"a {kind} runs")
            rng.choice(victims).kill()
        summary = run.summary()
    finally:
        run.kill()
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert details["deaths"] == ({scene: {kind: 1}} if kind in ("member", "autoscaler") else {})
    assert summary[scene]["keys_out_of_order"] == 0
    if kind in ("member", "autoscaler"):
        assert summary[scene]["rebalanced"]
    if kind == "autoscaler":
        assert {1, 2} <= set(summary[scene]["members"]) <= {1, 2, 3, 4}
    if kind == "owner":
        assert summary[scene]["spark"]["rows"] == summary[scene]["records"]
