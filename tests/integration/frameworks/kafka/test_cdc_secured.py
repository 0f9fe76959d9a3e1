"""``headrace-pipelines run cdc`` on a cluster that a flag names, with TLS and a login for Spark and Kafka Connect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, LocalCluster
from headrace_pipelines.cdc.connect import STATE_TOPICS, fetch_jars
from headrace_pipelines.cdc.workload import TOPICS
from tests.integration.interop.kafka_peer import jars
from tests.integration.spark.long.test_pipelines_secured import shown
from tests.worlds.pipelines_world import Run
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="process", secure=True) as running:
        yield running


def test_a_run_uses_the_given_cluster_with_its_login_and_shows_no_password(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    line = next(each for each in cluster.client_properties.read_text().splitlines() if "jaas" in each)
    password = line.split('password="')[1].split('"')[0]
    flags = ["--bootstrap-servers", cluster.bootstrap_servers, "--command-config", str(cluster.client_properties)]
    flags += ["--kafka-bootstrap-servers", cluster.kafka_bootstrap_servers]
    flags += ["--jars", str(fetch_jars(jars().parent / "cdc")), "--seconds", "4"]
    run = Run("cdc", tmp_path, flags)
    try:
        # The processes of PostgreSQL, Kafka Connect and Spark
        seen = until(lambda: each if len(each := shown(run)) > 8 else None, "the run's processes", 120)
        summary = run.summary()
    finally:
        run.kill()
    assert (summary["differences"], summary["dead_letters"]) == (0, 0)
    assert summary["events"]["inserts"] > 0
    assert not [each for each in seen if password in each]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if password.encode() in path.read_bytes()]
    assert json.loads((tmp_path / "out/run.json").read_text())["end"] == "done"
    with Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert {*TOPICS, *STATE_TOPICS} <= set(admin.list_topics())
