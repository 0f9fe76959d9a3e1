"""Change data capture in Avro: Debezium with Apicurio's converter, the registry of the cluster, topics that brokers
validate, and Spark. Each table of both lakes equals its table in PostgreSQL, with a new column in the middle, a worker
and a driver that are killed, and a registry that is down for a while."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace import Admin, ConfigResource, LocalCluster
from headrace.schemas import SchemaRegistry, wire
from headrace_pipelines.access import Access
from headrace_pipelines.cdc import job
from headrace_pipelines.cdc.avro import Converter, payload_of
from headrace_pipelines.cdc.comparison import compare
from headrace_pipelines.cdc.connect import Worker, avro_converters, debezium, fetch_jars
from headrace_pipelines.cdc.postgres import Postgres
from headrace_pipelines.cdc.replica import DEAD_LETTERS
from headrace_pipelines.cdc.workload import KEYS, MARKER, PREFIX, TABLES, TOPICS, Workload
from headrace_pipelines.lake.lakes import Lake, lakes
from headrace_pipelines.topics import records_in_topic
from tests.integration.frameworks.kafka.test_cdc import (
    BY_KEY,
    CHANGE_SAMPLES,
    CREATE_SAMPLES,
    DRIVER,
    LARGE,
    LONG_S,
    MORE,
    SAMPLES,
    done,
    written,
)
from tests.integration.interop.kafka_peer import jars
from tests.worlds.pipelines_world import SparkDriver
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(900)

SECONDS, RATE = 16, 30.0
#: The name of a column in Avro, whose names have letters, digits and underscores.
ODD_NAME = "odd_name"


@pytest.fixture(scope="session")
def avro_jars() -> Path:
    return fetch_jars(jars().parent / "cdc-avro", with_avro=True)


def test_lakes_equal_postgres_with_events_in_avro(avro_jars: Path, tmp_path: Path) -> None:
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True, registries=2) as cluster,
        SchemaRegistry(cluster.registry_urls) as registry,
        Postgres(tmp_path / "postgres.log") as postgres,
        Worker(avro_jars, tmp_path, cluster.kafka_bootstrap_servers) as worker,
    ):
        servers = cluster.bootstrap_servers
        workload = Workload(postgres, tmp_path, RATE)
        workload.create_tables()
        postgres.execute(CREATE_SAMPLES)
        access = Access(servers)
        job.create_topics(access, *MORE)
        validate(servers, *TOPICS, *MORE)
        arguments = (servers, str(tmp_path), *TOPICS, *MORE, f"schema.registry.url={cluster.registry_urls}")
        driver = SparkDriver(DRIVER, tmp_path, *arguments)
        try:
            tables = [*TABLES, MARKER, SAMPLES, LARGE]
            worker.run_connector(debezium(postgres.port, PREFIX, tables) | avro_converters(cluster.registry_urls))
            driver.wait_until(lambda: done(tmp_path) > 0, "the first batch")
            workload.start(10 * SECONDS)
            end_s = time.monotonic() + SECONDS
            postgres.execute(CHANGE_SAMPLES)
            postgres.execute("UPDATE large SET other = 2")
            workload.add_column(10 * SECONDS)
            moment = written(postgres) + int(RATE)
            until(lambda: written(postgres) >= moment, "the load goes on", LONG_S, pause_s=0.1)
            worker.kill()
            worker.start()
            committed = done(tmp_path)
            driver.kill()
            with cluster.killed("registry", 1):  # the other replica answers
                driver = SparkDriver(DRIVER, tmp_path, *arguments)
                driver.wait_until(lambda: done(tmp_path) > committed, "a batch after the kill")
            until(lambda: time.monotonic() >= end_s, "the end of the load", 2.0 * SECONDS, pause_s=0.1)
            workload.stop()
            mark = workload.mark()
            until(lambda: job.has_arrived(access, mark, registry), "the last change arrives", LONG_S, pause_s=0.5)
            (tmp_path / "finish").touch()
            driver.wait_ended()
        finally:
            driver.kill()
        for lake in lakes(tmp_path):
            compared = [compare(postgres, lake.table(name), name, keys) for name, keys in KEYS.items()]
            print(lake.format, *compared, sep="\n")
            assert [str(each) for each in compared if each.different] == []
            check_samples(lake)
            notes = lake.table("public.orders").read(columns=["note"])["note"]
            assert 0 < len(notes) - notes.null_count < len(notes), "the new column has values, and old rows have none"
        rows = written(postgres)
        histories = events_by_key(servers, registry, "public.pgbench_history", "hid")
        assert (len(histories), set(histories.values())) == (rows, {1}), "Debezium wrote each insert exactly once"
        assert rows > SECONDS, "the load was a load"
        assert registry.versions(f"{PREFIX}.public.orders-value") == [1, 2], "the new column is a new version"


def validate(servers: str, *topics: str) -> None:
    """Let brokers refuse records of ``topics`` whose schema ids the registry does not have."""
    keys = {"key.schema.validation": "true", "value.schema.validation": "true"}
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_configs({ConfigResource("topic", name): keys for name in topics})


def check_samples(lake: Lake) -> None:
    """The values of each type, and the one event that cannot be applied."""
    expected = {
        key: {name if name != "odd name" else ODD_NAME: value for name, value in row.items()}
        for key, row in BY_KEY.items()
    }
    found = {(row["id"], row["part"]): row for row in lake.table(SAMPLES).read().to_pylist()}
    assert {key: {name: found[key][name] for name in row} for key, row in expected.items()} == expected
    assert found.keys() == expected.keys()
    assert json.loads(found[3, "b"]["free"]).keys() == {"scale", "value"}, "numeric without a precision stays JSON"
    (letter,) = lake.table(DEAD_LETTERS).read().to_pylist()
    assert (letter["topic"], letter["key"][0], letter["value"][0]) == (f"{PREFIX}.{LARGE}", wire.MAGIC, wire.MAGIC)
    assert "REPLICA IDENTITY FULL" in letter["reason"]
    assert [row["other"] for row in lake.table(LARGE).read().to_pylist()] == [1]


def events_by_key(servers: str, registry: SchemaRegistry, table: str, key: str) -> Counter[int]:
    converter = Converter(registry)
    with job.reader(Access(servers)) as consumer:
        records = [record for some in records_in_topic(consumer, f"{PREFIX}.{table}") for record in some]
    return Counter(payload_of(each.value, converter)["after"][key] for each in records if each.value is not None)
