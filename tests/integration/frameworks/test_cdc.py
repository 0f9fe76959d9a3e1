"""Change data capture with a real PostgreSQL under pgbench: Debezium's worker and Spark's driver are killed, a column is
added, and each table of both lakes equals its table in PostgreSQL.

CI runs HEADRACE_CDC_SECONDS=40 with a kill of each kind; `make verify` runs ten minutes with five kills of each. The
moments of the kills are random: HEADRACE_TEST_SEED repeats them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace import LocalCluster
from headrace_pipelines.cdc import job
from headrace_pipelines.cdc.comparison import compare
from headrace_pipelines.cdc.connect import Worker, debezium, fetch_jars
from headrace_pipelines.cdc.postgres import Postgres
from headrace_pipelines.cdc.replica import QUERY
from headrace_pipelines.cdc.workload import KEYS, MARKER, PREFIX, TABLES, Workload
from headrace_pipelines.checkpoints import batches
from headrace_pipelines.lake.lakes import lakes
from headrace_pipelines.topics import records_in_topic
from tests.integration.interop.kafka_peer import jars
from tests.worlds.spark_drivers import SparkDriver
from tests.worlds.waiting import until

SECONDS = int(os.environ.get("HEADRACE_CDC_SECONDS", "40"))
KILLS = int(os.environ.get("HEADRACE_CDC_KILLS", "1"))
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600 + 2 * SECONDS)]

RATE = 30.0
LONG_S = 240.0
DRIVER = Path(__file__).with_name("cdc_driver.py")


@pytest.fixture(scope="session")
def connect_jars() -> Path:
    return fetch_jars(jars().parent / "cdc")


def test_lakes_equal_postgres_after_kills_and_a_new_column(connect_jars: Path, tmp_path: Path) -> None:
    seed = os.environ["HEADRACE_TEST_SEED"]
    chance = random.Random(seed)
    print(f"HEADRACE_TEST_SEED={seed}: {SECONDS} s, {KILLS} kills of each kind")
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=2, gateways=2) as cluster,
        Postgres(tmp_path / "postgres.log") as postgres,
        Worker(connect_jars, tmp_path, cluster.kafka_bootstrap_servers) as worker,
    ):
        servers = cluster.bootstrap_servers
        workload = Workload(postgres, tmp_path, RATE)
        workload.create_tables()
        job.create_topics(servers)
        driver = SparkDriver(DRIVER, tmp_path, servers, str(tmp_path))
        try:
            worker.run_connector(debezium(postgres.port, PREFIX, [*TABLES, MARKER]))
            driver.wait_until(lambda: done(tmp_path) > 0, "the first batch")
            workload.start(SECONDS)
            for number in range(KILLS):
                if number == KILLS // 2:
                    workload.add_column(SECONDS // 2)
                time.sleep(chance.uniform(0.1, 0.6) * SECONDS / (2 * KILLS))  # the moment is random on purpose
                before = arrived(servers)
                worker.kill()
                worker.start()
                until(lambda before=before: arrived(servers) > before, "events after the kill", LONG_S, pause_s=0.5)  # type: ignore[misc]
                committed = done(tmp_path)
                driver.kill()
                driver = SparkDriver(DRIVER, tmp_path, servers, str(tmp_path))
                driver.wait_until(lambda committed=committed: done(tmp_path) > committed, "a batch after the kill")  # type: ignore[misc]
            workload.wait(SECONDS)
            mark = workload.mark()
            until(lambda: job.has_arrived(servers, mark), "the last change is in its topic", LONG_S, pause_s=0.5)
            (tmp_path / "finish").touch()
            driver.wait_ended()
        finally:
            workload.stop()
            driver.kill()
        for lake in lakes(tmp_path):
            compared = [compare(postgres, lake.table(name), name, keys) for name, keys in KEYS.items()]
            print(lake.format, *compared, sep="\n")
            assert [str(each) for each in compared if each.different] == []
            assert job.dead_letters(lake) == 0
            notes = lake.table("public.orders").read(columns=["note"])["note"]
            assert 0 < len(notes) - notes.null_count < len(notes), "the new column has values, and old rows have none"
        rows = int(postgres.execute("SELECT count(*) FROM pgbench_history"))
        events = events_by_key(servers, "public.pgbench_history", "hid")
        assert (len(events), set(events.values())) == (rows, {1}), "Debezium wrote each insert exactly once"
        assert rows > SECONDS, "the load was a load"


def done(directory: Path) -> int:
    """The number of batches that the query has committed, in all its runs."""
    return batches(directory / "checkpoints").get(QUERY, 0)


def arrived(servers: str) -> int:
    """The number of events in the topic of the history."""
    return events_by_key(servers, "public.pgbench_history", "hid").total()


def events_by_key(servers: str, table: str, key: str) -> Counter[int]:
    with job.reader(servers) as consumer:
        records = [record for some in records_in_topic(consumer, f"{PREFIX}.{table}") for record in some]
    return Counter(json.loads(record.value)["payload"]["after"][key] for record in records if record.value is not None)
