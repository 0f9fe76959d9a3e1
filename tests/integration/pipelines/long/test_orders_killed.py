"""Kill a handler, a projector, the rebuild, a broker or the whole run of the pipeline orders: every row is right.

The run itself compares every row with a second calculation, and fails for a difference. The owner starts a dead process
again; the same command continues a run whose owner was killed. CI kills one kind a day; `make verify` sets
HEADRACE_PIPELINES_KILLED=all.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headrace import LocalCluster
from tests.worlds.pipelines_world import Run, kinds_to_kill, processes
from tests.worlds.waiting import until

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.headrace_cluster(brokers=3, controllers=1, coordinators=2),
]

KINDS = ("handler", "projector", "rebuild", "broker", "coordinator", "owner")
ORDERS, COMMANDS_MIN = 1_200, 5_000


@pytest.mark.parametrize("kind", kinds_to_kill(KINDS))
def test_a_killed_process_costs_no_row(
    kind: str, headrace_cluster: LocalCluster, tmp_path: Path, rng: random.Random
) -> None:
    flags = ["--bootstrap-servers", headrace_cluster.bootstrap_servers, "--orders", str(ORDERS), "--rate", "500"]
    run = Run("orders", tmp_path, flags)
    try:
        run.wait_for(rng.randrange(1, COMMANDS_MIN // 2))
        if kind == "owner":
            run.kill()
            run = Run("orders", tmp_path, flags)
        elif kind in ("broker", "coordinator"):
            node = rng.choice([each["id"] for each in headrace_cluster.ps() if each["role"] == kind])
            run.outlives(headrace_cluster, kind, node)
        else:
            victims = until(lambda: processes(run, kind), f"a {kind} runs")
            rng.choice(victims).kill()
        summary = run.summary()
    finally:
        run.kill()
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert summary["orders"] == ORDERS
    assert summary["generation"] >= 2
    assert details["continued"] == (kind == "owner")
    if kind in ("handler", "projector", "rebuild"):
        assert details["deaths"] == {kind: 1}
