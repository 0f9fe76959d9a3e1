"""Change data capture with a real PostgreSQL under pgbench: Debezium's worker and Spark's driver are killed, a column
is added, and each table of both lakes equals its table in PostgreSQL.

CI runs 30 s of load with a kill of each kind; `make verify` runs ten minutes with five kills of each. The
moments of the kills are random: HEADRACE_TEST_SEED repeats them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from headrace import LocalCluster
from headrace_pipelines.access import Access
from headrace_pipelines.cdc import job
from headrace_pipelines.cdc.comparison import compare
from headrace_pipelines.cdc.connect import Worker, debezium, fetch_jars
from headrace_pipelines.cdc.postgres import Postgres
from headrace_pipelines.cdc.replica import DEAD_LETTERS, QUERY
from headrace_pipelines.cdc.workload import KEYS, MARKER, PREFIX, TABLES, TOPICS, Workload
from headrace_pipelines.checkpoints import batches
from headrace_pipelines.lake.lakes import Lake, lakes
from headrace_pipelines.topics import records_in_topic
from tests.integration.interop.kafka_peer import jars
from tests.worlds.pipelines_world import SparkDriver
from tests.worlds.waiting import until

SECONDS = int(os.environ.get("HEADRACE_CDC_SECONDS", "30"))
KILLS = int(os.environ.get("HEADRACE_CDC_KILLS", "1"))
pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)

RATE = 30.0
#: A table with PostgreSQL's types, and a table with a value so large that PostgreSQL stores it apart (TOAST).
SAMPLES, LARGE = "public.samples", "public.large"
MORE = tuple(f"{PREFIX}.{name}" for name in (SAMPLES, LARGE))
CREATE_SAMPLES = """
CREATE TABLE samples (
  id int, part text, small smallint, big bigint, single real, ok boolean, price numeric(12, 3), free numeric,
  code char(4), bytes bytea, day date, local timestamp, at timestamptz DEFAULT now(),
  clock time, span interval, who uuid, doc jsonb, many int[], days date[], "odd name" text, PRIMARY KEY (id, part));
CREATE TABLE large (id int PRIMARY KEY, text text, other int);
ALTER TABLE large ALTER COLUMN text SET STORAGE EXTERNAL;
INSERT INTO samples (id, part, at) VALUES (1, 'a', NULL), (2, 'gone', NULL);
"""
CHANGE_SAMPLES = """
INSERT INTO samples VALUES (
  3, 'b', -3, 9007199254740993, 1.25, true, -12345.678, 3.14, 'ab', '\\x00ff', '2026-02-28',
  '2026-02-28 10:11:12.345678', '2026-02-28 10:11:12.345678+02', '10:00:01.5', '1 day',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', '{1,NULL}', '{2026-02-28}', 'quote " and \\ and ü');
DELETE FROM samples WHERE id = 2;
UPDATE samples SET part = 'c' WHERE id = 1;
INSERT INTO large VALUES (1, repeat('x', 20000), 1);
"""
BY_KEY = {
    (1, "c"): dict.fromkeys(("at", "small", "doc")),
    (3, "b"): {
        "small": -3,
        "big": 9007199254740993,
        "single": 1.25,
        "ok": True,
        "price": Decimal("-12345.678"),
        "code": "ab  ",
        "bytes": b"\x00\xff",
        "day": date(2026, 2, 28),
        "local": datetime(2026, 2, 28, 10, 11, 12, 345678),
        "at": datetime(2026, 2, 28, 8, 11, 12, 345678, tzinfo=UTC),
        "clock": 36_001_500_000,
        "span": 86_400_000_000,
        "who": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "doc": '{"a": 1}',
        "many": [1, None],
        "days": [date(2026, 2, 28)],
        "odd name": 'quote " and \\ and ü',
    },
}
#: The load goes on until all kills are over, and at least for SECONDS.
LOAD_S_MAX = 3_600
LONG_S = 240.0
DRIVER = Path(__file__).parents[1] / "cdc_driver.py"


@pytest.fixture(scope="session")
def connect_jars() -> Path:
    return fetch_jars(jars().parent / "cdc")


def test_lakes_equal_postgres_after_kills_and_a_new_column(connect_jars: Path, tmp_path: Path) -> None:
    seed = os.environ["HEADRACE_TEST_SEED"]
    chance = random.Random(seed)
    print(f"HEADRACE_TEST_SEED={seed}: {SECONDS} s, {KILLS} kills of each kind")
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True) as cluster,
        Postgres(tmp_path / "postgres.log") as postgres,
        Worker(connect_jars, tmp_path, cluster.kafka_bootstrap_servers) as worker,
    ):
        servers = cluster.bootstrap_servers
        workload = Workload(postgres, tmp_path, RATE)
        workload.create_tables()
        postgres.execute(CREATE_SAMPLES)
        access = Access(servers)
        job.create_topics(access, *MORE)
        arguments = (servers, str(tmp_path), *TOPICS, *MORE)
        driver = SparkDriver(DRIVER, tmp_path, *arguments)
        try:
            worker.run_connector(debezium(postgres.port, PREFIX, [*TABLES, MARKER, SAMPLES, LARGE]))
            driver.wait_until(lambda: done(tmp_path) > 0, "the first batch")
            workload.start(LOAD_S_MAX)
            end_s = time.monotonic() + SECONDS
            postgres.execute(CHANGE_SAMPLES)
            postgres.execute("UPDATE large SET other = 2")
            for number in range(KILLS):
                if number == KILLS // 2:
                    workload.add_column(LOAD_S_MAX)
                share = chance.uniform(0.1, 0.6) * SECONDS / (2 * KILLS)
                moment = written(postgres) + int(share * RATE / 3)  # a third of the transactions write history
                until(lambda moment=moment: written(postgres) >= moment, "the load goes on", LONG_S, pause_s=0.1)  # type: ignore[misc]
                before = arrived(servers)
                worker.kill()
                worker.start()
                until(lambda before=before: arrived(servers) > before, "events after the kill", LONG_S, pause_s=0.5)  # type: ignore[misc]
                committed = done(tmp_path)
                driver.kill()
                driver = SparkDriver(DRIVER, tmp_path, *arguments)
                driver.wait_until(lambda committed=committed: done(tmp_path) > committed, "a batch after the kill")  # type: ignore[misc]
            until(lambda: time.monotonic() >= end_s, "the end of the load", 2.0 * SECONDS, pause_s=0.1)
            workload.stop()
            mark = workload.mark()
            until(lambda: job.has_arrived(access, mark), "the last change is in its topic", LONG_S, pause_s=0.5)
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
        events = events_by_key(servers, "public.pgbench_history", "hid")
        assert (len(events), set(events.values())) == (rows, {1}), "Debezium wrote each insert exactly once"
        assert rows > SECONDS, "the load was a load"


def written(postgres: Postgres) -> int:
    """The number of rows of the history in PostgreSQL."""
    return int(postgres.execute("SELECT count(*) FROM pgbench_history"))


def check_samples(lake: Lake) -> None:
    """The values of each type, and the one event that cannot be applied."""
    found = {(row["id"], row["part"]): row for row in lake.table(SAMPLES).read().to_pylist()}
    assert {key: {name: found[key][name] for name in row} for key, row in BY_KEY.items()} == BY_KEY
    assert found.keys() == BY_KEY.keys()
    assert json.loads(found[3, "b"]["free"]).keys() == {"scale", "value"}, "numeric without a precision stays JSON"
    (letter,) = lake.table(DEAD_LETTERS).read().to_pylist()
    assert (letter["topic"], json.loads(letter["key"])["payload"]) == (f"{PREFIX}.{LARGE}", {"id": 1})
    assert "REPLICA IDENTITY FULL" in letter["reason"]
    assert [row["other"] for row in lake.table(LARGE).read().to_pylist()] == [1]


def done(directory: Path) -> int:
    """The number of batches that the query has committed, in all its runs."""
    return batches(directory / "checkpoints").get(QUERY, 0)


def arrived(servers: str) -> int:
    """The number of events in the topic of the history."""
    return events_by_key(servers, "public.pgbench_history", "hid").total()


def events_by_key(servers: str, table: str, key: str) -> Counter[int]:
    with job.reader(Access(servers)) as consumer:
        records = [record for some in records_in_topic(consumer, f"{PREFIX}.{table}") for record in some]
    return Counter(json.loads(record.value)["payload"]["after"][key] for record in records if record.value is not None)
