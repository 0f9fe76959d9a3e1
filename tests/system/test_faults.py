"""Run the scenarios of ``scenarios.py`` with real processes and real faults, on one cluster after the other.

    HEADRACE_FAULTS      the scenarios that run
    (not set)            the everyday scenarios, one round each (a part of ``make test``)
    rotate               two scenarios of a minute, chosen by HEADRACE_TEST_SEED (a part of CI)
    full                 all scenarios, a minute each (``make verify``; HEADRACE_FAULTS_PART=2/4: its second quarter)
    name,name...         these scenarios, a minute each

HEADRACE_FAULTS_SECONDS sets the duration of a scenario; the default is a minute. With HEADRACE_FAULTS_SECURE=1 all
nodes and clients have TLS, SASL and ACLs. See docs/faults.md.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_core.testing import verdicts
from headrace_core.testing.kafka_history import Kind
from headrace_core.testing.power_loss import Loss
from tests.system import flush_scenarios  # noqa: F401 (it registers its scenario)
from tests.system.faulty_cluster import FaultyCluster
from tests.system.scenarios import SCENARIOS, Run, Scenario
from tests.system.small_disk import SmallDisks
from tests.system.workload import Load, verdict

WHICH = os.environ.get("HEADRACE_FAULTS", "")
SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "60" if WHICH else "0"))
ROTATED = 2
KEPT = Path(__file__).resolve().parents[2] / "build" / "kept"

#: Configuration of every node of the shared cluster: shorter timeouts than the defaults, where a scenario waits for
#: them.
CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "replica.lag.time.max.ms": "5000",
    "broker.session.timeout.ms": "6000",
    "broker.session.disconnect.grace.ms": "2000",
    "auto.create.topics.enable": "false",
    "log.dir.reserve.bytes": str(4 << 20),
    "leader.imbalance.check.interval.seconds": "5",
}


def chosen() -> list[Scenario]:
    every = list(SCENARIOS.values())
    if not WHICH:
        return [each for each in every if each.everyday]
    if WHICH == "full":
        part, _, parts = os.environ.get("HEADRACE_FAULTS_PART", "1/1").partition("/")
        return every[int(part) - 1 :: int(parts)]
    if WHICH == "rotate":
        return random.Random(int(os.environ["HEADRACE_TEST_SEED"])).sample(every, ROTATED)
    unknown = set(WHICH.split(",")) - set(SCENARIOS)
    assert not unknown, f"HEADRACE_FAULTS: no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}"
    return [SCENARIOS[name] for name in WHICH.split(",")]


class Clusters:
    """One cluster for all scenarios; after a failure, or for other configuration keys, the next scenario gets a new
    cluster."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._directory, self._rng = directory, rng
        self._running: FaultyCluster | None = None
        self._config: dict[str, str] = {}
        self._count = 0
        self._disks = SmallDisks()

    def get(self, **config: str) -> FaultyCluster:
        """``config``: configuration keys in addition to the common ones."""
        if self._config != config:
            self.close()
            self._config = config
        if self._running is None:
            self._count += 1
            directory = self._directory / f"cluster-{self._count}"
            self._running = FaultyCluster(
                directory, config=CONFIG | config, rng=self._rng, small_disk=self._disks.mount(directory)
            ).__enter__()
        return self._running

    def discard(self, *, keep_as: str | None = None) -> None:
        """Discard the cluster after a failure, without cleanup. ``keep_as``: copy the cluster's directory to build/kept
        under this name."""
        if self._running is not None:
            running, self._running = self._running, None
            running.__exit__(AssertionError, None, None)
            if keep_as is not None:
                print(f"the cluster's data and logs are kept in {verdicts.keep(running.directory, KEPT, keep_as)}")
        self._disks.unmount()

    def close(self) -> None:
        try:
            if self._running is not None:
                running, self._running = self._running, None
                running.__exit__(None, None, None)
        finally:
            self._disks.unmount()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    seed = int(os.environ["HEADRACE_TEST_SEED"])
    made = Clusters(tmp_path_factory.mktemp("faults"), random.Random(seed))
    yield made
    made.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", chosen(), ids=lambda scenario: scenario.name)
def test_nothing_acknowledged_is_lost_repeated_reordered_or_made_up(
    scenario: Scenario, clusters: Clusters, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    cluster = clusters.get(**scenario.config)
    topic = f"t{len(request.session.items)}-{scenario.name}"[:200].replace("_", "-")
    try:
        cluster.make_topic(
            topic, scenario.partitions, copies=scenario.copies, **{"segment.bytes": str(1 << 20), **scenario.topic}
        )
        with Load(cluster, topic, scenario.partitions, seed=rng.randrange(2**31), **scenario.load) as load:
            load.until_more(1, what="before anything breaks")
            run = Run(cluster, topic, scenario.partitions, load, rng, SECONDS, silence_s=scenario.silence_s)
            scenario.tell(run)
            run.judge()
        cluster.delete_topic(topic)
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        print(cluster.tails())
        is_verdict = verdicts.is_safety(error)
        clusters.discard(keep_as=f"{scenario.name}-{os.environ['HEADRACE_TEST_SEED']}" if is_verdict else None)
        raise


@pytest.mark.timeout(300)
def test_the_programme_sees_it_when_acknowledged_records_are_lost(tmp_path: Path, rng: random.Random) -> None:
    """Test of the final check. A topic on a single broker does not wait for the disk, so it loses acknowledged records
    when the power fails. The final check must report the loss of the acknowledged records."""
    with FaultyCluster(tmp_path / "cluster", brokers=1, controllers=1, rng=rng) as cluster:
        cluster.make_topic("careless", 1, copies=1, **{"log.flush": "os"})
        with Load(cluster, "careless", 1, seed=1, consumers=1) as load:
            load.until_more(300)
            cluster.lose_power("broker-1", loss=Loss.ALL)
            cluster.start("broker-1")
            load.until_more(100)
            load.end_producing()
            load.read_the_log()
            kinds = {anomaly.kind for anomaly in load.history.anomalies()}
        assert Kind.LOST in kinds
        with pytest.raises(AssertionError, match="lost"):
            verdict(load)
