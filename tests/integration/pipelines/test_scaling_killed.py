"""Kill a member or the autoscaler of the pipeline scaling: each record is handled, in the order of its key.

The run itself checks this, and fails otherwise. The owner starts a dead process again; the members of a dead autoscaler
end with it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import psutil
import pytest

from headrace import LocalCluster
from tests.worlds.pipeline_runs import Run, processes
from tests.worlds.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.headrace_cluster(brokers=3, controllers=1, coordinators=1),
]

RATE = 3_000


@pytest.mark.parametrize(("scene", "role"), [("members", "member"), ("autoscaled", "autoscaler")])
def test_a_killed_process_costs_no_record(
    scene: str, role: str, headrace_cluster: LocalCluster, tmp_path: Path, rng: random.Random
) -> None:
    flags = ["--bootstrap-servers", headrace_cluster.bootstrap_servers, "--rate", str(RATE), "--scenes", scene]
    run = Run("scaling", tmp_path, flags)
    try:
        run.wait_for(rng.randrange(1, 2 * RATE))
        victims: list[psutil.Process] = until(lambda: processes(run, role), f"a {role} runs")
        rng.choice(victims).kill()
        summary = run.summary()
    finally:
        run.kill()
    details = json.loads((tmp_path / "out/details.json").read_text())
    assert details["deaths"] == {scene: {role: 1}}
    assert (summary[scene]["keys_out_of_order"], summary[scene]["rebalanced"]) == (0, True)
    if role == "autoscaler":
        assert {1, 2} <= set(summary[scene]["members"]) <= {1, 2, 3, 4}
