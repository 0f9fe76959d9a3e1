"""isolation.level=read_committed on a real broker, whose partitions have committed, aborted and open transactions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, Consumer, TopicPartition
from tests.worlds.broker_world import Cluster
from tests.worlds.transactional_log import Row, TransactionalLog, serving
from tests.worlds.waiting import check_in_time

#: Topic name -> the log that the topic serves. Some logs end in an open transaction, some do not.
LOGS = {f"log-{seed}": TransactionalLog.random(seed, steps=150) for seed in range(4)}
SETTINGS: dict[str, Any] = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    stable = [log.last_stable_offset == log.end_offset for log in LOGS.values()]
    assert {*stable} == {True, False}, "the test wants logs with and without an open transaction"
    with serving(tmp_path_factory.mktemp("transactions"), LOGS) as found:
        yield found


@pytest.fixture(params=LOGS)
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def row(record: Any) -> Row:
    return Row(record.offset, record.key, record.value)


def rows_of(table: Any) -> list[Row]:
    return [Row(*each) for each in zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True)]


@pytest.mark.parametrize("api", ["poll", "arrow"])
def test_a_consumer_reads_the_committed_records(cluster: Cluster, topic: str, api: str) -> None:
    log, partition = LOGS[topic], TopicPartition(topic, 0)
    found: list[Row] = []
    settings = {**SETTINGS, "max.partition.fetch.bytes": 200}
    with Consumer(settings, bootstrap_servers=cluster.broker.address()) as consumer:
        consumer.assign([partition])
        while consumer.position(partition) < log.last_stable_offset:
            if api == "poll":
                found += map(row, consumer.poll(5, max_records=7))
            else:
                table = consumer.fetch_arrow(5)
                found += [] if table is None else rows_of(table)
        assert found == log.committed
        assert consumer.poll(0.1) == [], "open transactions are not returned"
        assert consumer.end_offsets([partition]) == {partition: log.last_stable_offset}
        assert consumer.metrics()["records-lag-max"] == 0


@pytest.mark.parametrize("api", ["poll", "arrow", "async poll", "async arrow"])
def test_a_call_ends_when_the_position_has_only_moved_over_aborted_records(
    cluster: Cluster, topic: str, api: str
) -> None:
    """KAFKA-12980: a program that reads to the end sees the end at once, and not after its timeout (a minute here)."""
    log, partition = LOGS[topic], TopicPartition(topic, 0)
    settings = {**SETTINGS, "bootstrap.servers": cluster.broker.address(), "max.partition.fetch.bytes": 200}

    def blocking() -> int:
        empty = 0
        with Consumer(settings) as consumer:
            consumer.assign([partition])
            while consumer.position(partition) < log.last_stable_offset:
                empty += not (consumer.poll(60) if api == "poll" else consumer.fetch_arrow(60).num_rows)
        return empty

    async def on_a_loop() -> int:
        empty = 0
        async with AsyncConsumer(settings) as consumer:
            await consumer.assign([partition])
            while await consumer.position(partition) < log.last_stable_offset:
                empty += not (await consumer.poll(60) if "poll" in api else (await consumer.fetch_arrow(60)).num_rows)
        return empty

    began = time.monotonic()
    assert (asyncio.run(on_a_loop()) if "async" in api else blocking()) > 0, "some calls find only aborted records"
    check_in_time(began, 45, "the end was seen")


def test_admin_lists_the_last_stable_offset(cluster: Cluster, topic: str) -> None:
    log, partition = LOGS[topic], TopicPartition(topic, 0)
    with Admin(bootstrap_servers=cluster.broker.address()) as admin:
        for level, end in (("read_committed", log.last_stable_offset), ("read_uncommitted", log.end_offset)):
            assert admin.list_offsets({partition: "latest"}, isolation_level=level)[partition].offset == end


def test_the_command_line_takes_an_isolation_level(cluster: Cluster, topic: str) -> None:
    log = LOGS[topic]

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("headrace"))
        done = subprocess.run(
            [program, "consume", "-t", topic, *arguments, "-b", cluster.broker.address()],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    def values(*arguments: str) -> list[str]:
        return [line["value"] for line in json.loads(run("-e", "-o", "json", *arguments).stdout)]

    committed, everything = ([each.value.decode() for each in some] for some in (log.committed, log.rows))
    assert values("--isolation", "read_committed") == committed
    assert values("--isolation", "read_uncommitted") == values() == everything
    assert "read_committed" in run("--isolation", "serializable", code=2).stderr
