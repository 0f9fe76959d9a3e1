"""A flush fails with EIO under load: the directory goes offline, the operator restarts the broker, and the power fails.

Each partition has one replica, so that only the broker's own disk can return the acknowledged records.
"""

from __future__ import annotations

import pytest

from headrace_core.testing.power_loss import Loss
from tests.system.faulty_cluster import eventually
from tests.system.scenarios import Run, scenario

ONE_COPY = {"min.insync.replicas": "1"}


@scenario(everyday=True, copies=1, topic=ONE_COPY)
def a_flush_fails_the_broker_is_restarted_and_then_the_power_fails(run: Run) -> None:
    if not run.cluster.can_fail_fsync:
        pytest.skip("no C compiler (cc) for the library that fails fdatasync")
    for number in run.rounds():
        run.goes_on("at first", 300)
        partition = number % run.partitions
        name = run.leader(partition)
        said = len(run.cluster.log(name))
        struck = run.cluster.fail_fsync(name, f"/{run.topic}-{partition}/0", nth=run.rng.randrange(1, 20))
        eventually(lambda path=struck: not path.exists(), f"no flush of {run.topic}-{partition} came to {name}")
        run.cluster.until_logged(name, "failed and is offline", since=said)
        eventually(lambda n=name: not run.cluster.node(n).alive(), f"{name} goes on without a log directory")
        run.cluster.start(name)  # as its error text asks
        run.heals()
        run.goes_on("after the restart", 300)
        loss = (Loss.ALL, Loss.PREFIX, Loss.BLOCKS)[number % 3]
        lost = run.cluster.lose_power(name, loss=loss)
        print(f"round {number}: {lost} bytes of {name} that were not on its disk are gone ({loss.value})")
        run.cluster.start(name)
        run.heals()
        log = run.cluster.log(name)[said:]
        assert "quarantined" not in log, f"{name} quarantined a log that no one had damaged"
