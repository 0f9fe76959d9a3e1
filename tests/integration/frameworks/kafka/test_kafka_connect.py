"""Kafka Connect 4.3 on Headrace: two workers, an exactly-once source, a sink, and workers that are killed."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, LocalCluster, TopicPartition
from tests.integration.frameworks.java_apps import KAFKA, JavaApp, maven_jars
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

KILLS = 2
STARTED_S = 120.0
SETTINGS = """
group.id=connect
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
config.storage.topic=connect-configs
status.storage.topic=connect-status
exactly.once.source.support=enabled
offset.flush.interval.ms=1000
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=2000
"""


@pytest.fixture(scope="module")
def libs() -> Path:
    names = ("connect-runtime", "connect-file", "connect-json", "connect-transforms", "connect-mirror")
    return maven_jars("connect", *(("org.apache.kafka", name, KAFKA) for name in names))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True) as running:
        yield running


class Worker(JavaApp):
    """One worker of the Connect cluster, and its REST API."""

    def __init__(self, libs: Path, directory: Path, servers: str) -> None:
        self.port = free_port()
        settings = directory / f"worker-{self.port}.properties"
        settings.write_text(f"bootstrap.servers={servers}\nlisteners=http://127.0.0.1:{self.port}\n{SETTINGS}")
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(f"{libs}/*", [main, str(settings)], settings.with_suffix(".log"))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; None while the worker does not answer, or answers with an error (it rebalances)."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except (OSError, urllib.error.HTTPError):
            return None

    def owner_of_task(self, connector: str) -> int | None:
        """The port of the worker that runs the connector's task; None: no worker runs it."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        if status is None or [task["state"] for task in status["tasks"]] != ["RUNNING"]:
            return None
        return int(status["tasks"][0]["worker_id"].rpartition(":")[2])


class Lines:
    """A file that grows by numbered lines while the block lasts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._path.open("a") as file:
            while not self._over.wait(0.02):
                file.writelines(f"line {self.count + each}\n" for each in range(10))
                file.flush()
                self.count += 10


def test_a_killed_worker_loses_and_doubles_no_line(cluster: LocalCluster, libs: Path, tmp_path: Path) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    servers = cluster.kafka_bootstrap_servers
    first, second = (Worker(libs, tmp_path, servers) for _ in range(2))
    workers = {worker.port: worker for worker in (first, second)}
    lines = Lines(source)
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    with first, second, consumer:
        for worker in workers.values():
            until(lambda worker=worker: worker.ask("GET", "/connectors") is not None, within_s=STARTED_S)  # type: ignore[misc]
        for name, config in {
            "from-file": {
                "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(source), "topic": "lines",
                "exactly.once.support": "required",
            },
            "to-file": {
                "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(sink), "topics": "lines",
                "consumer.override.isolation.level": "read_committed",
            },
        }.items():  # fmt: skip
            until(lambda: first.ask("PUT", f"/connectors/{name}/config", config), within_s=STARTED_S)  # noqa: B023
        with lines:
            found: list[str] = []

            def has(count: int) -> bool:
                found.extend((record.value or b"").decode() for record in consumer.poll(0.2))
                return len(found) >= count

            until(lambda: first.owner_of_task("from-file"), within_s=STARTED_S)
            consumer.assign([TopicPartition("lines", 0)])
            for _ in range(KILLS):
                more = len(found) + 500
                until(lambda more=more: has(more), lambda: f"{len(found)} lines", within_s=STARTED_S)  # type: ignore[misc]
                answering = next(worker for worker in workers.values() if worker.is_running())
                owner = until(lambda at=answering: at.owner_of_task("from-file"), within_s=STARTED_S)  # type: ignore[misc]
                workers[owner].kill()
                other = next(worker for port, worker in workers.items() if port != owner)
                until(lambda: other.owner_of_task("from-file") == other.port, within_s=STARTED_S)  # noqa: B023
                workers[owner].start()
            more = len(found) + 500
            until(lambda: has(more), lambda: f"{len(found)} lines", within_s=STARTED_S)
        until(lambda: has(lines.count), lambda: f"{len(found)} of {lines.count} lines", within_s=STARTED_S)
        has(lines.count + 1)  # nothing more comes
        expected = [f"line {number}" for number in range(lines.count)]
        assert found == expected
        until(
            lambda: sink.exists() and len(set(sink.read_text().splitlines())) >= lines.count,
            "the sink has every line",
            within_s=STARTED_S,
        )
    # A sink of files is at least once: a worker that dies has written lines whose offsets it has not committed.
    assert set(sink.read_text().splitlines()) == set(expected)
