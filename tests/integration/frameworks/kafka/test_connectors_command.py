"""``headrace connectors`` with a real Connect worker: what it creates copies lines, and its errors are the worker's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Consumer, LocalCluster, TopicPartition
from headrace_tools.cli.app import run
from tests.integration.frameworks.java_apps import KAFKA, maven_jars
from tests.integration.frameworks.kafka.test_kafka_connect import STARTED_S, Worker
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True) as running:
        yield running


@pytest.fixture
def worker(cluster: LocalCluster, tmp_path: Path) -> Iterator[Worker]:
    names = ("connect-runtime", "connect-file", "connect-json", "connect-transforms", "connect-mirror")
    libs = maven_jars("connect", *(("org.apache.kafka", name, KAFKA) for name in names))
    made = Worker(libs, tmp_path, cluster.kafka_bootstrap_servers)
    with made:
        until(lambda: made.ask("GET", "/connectors") is not None, within_s=STARTED_S)
        yield made


class Commands:
    """Runs ``headrace connectors ... -o json`` for one worker."""

    def __init__(self, worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
        self._url, self._capsys = f"http://127.0.0.1:{worker.port}", capsys

    def __call__(self, *words: str, fails_with: str = "") -> Any:
        """The JSON on stdout; with ``fails_with``, the error that ends with this code."""
        code = run(["connectors", *words, "--connect-url", self._url, "-o", "json"])
        output = self._capsys.readouterr()
        if fails_with:
            assert code == 1
            assert output.err.endswith(f"[{fails_with}]\n"), output.err
            return output.err
        assert code == 0, output.err
        return json.loads(output.out)

    def states(self, name: str) -> list[str]:
        found = self("status", name)
        return [found["state"], *(task["state"] for task in found["tasks"])]


def test_the_command_line_runs_connectors_of_a_real_worker(
    cluster: LocalCluster, worker: Worker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connectors = Commands(worker, capsys)
    source, file = tmp_path / "source.txt", tmp_path / "lines.json"
    source.write_text("".join(f"line {number}\n" for number in range(100)))
    file.write_text(json.dumps({"connector.class": "FileStreamSource", "file": str(source), "topic": "lines"}))

    connectors(
        "create", "lines", "-f", str(file), "-c", "exactly.once.support=required", "--wait", "2m", "--timeout", "2m"
    )
    (listed,) = connectors("list")
    assert (listed["name"], listed["type"], listed["class"]) == ("lines", "source", "FileStreamSource")
    assert connectors.states("lines") == ["RUNNING", "RUNNING"]
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("lines", 0)])
        found: list[bytes | None] = []

        def has_read_all() -> bool:
            found.extend(record.value for record in consumer.poll(0.2))
            return len(found) >= 100

        until(has_read_all, lambda: f"{len(found)} of 100 lines", within_s=STARTED_S)
    assert found == [b"line %d" % number for number in range(100)]

    connectors("create", "lines", "-f", str(file), fails_with="CONNECTOR_ALREADY_EXISTS")
    missing = connectors("create", "x", "-c", "connector.class=FileStreamSource", fails_with="INVALID_CONNECTOR_CONFIG")
    assert 'Missing required configuration "topic"' in missing
    nope = connectors("create", "x", "-c", "connector.class=Nope", fails_with="INVALID_CONNECTOR_CONFIG")
    assert "FileStreamSinkConnector, FileStreamSourceConnector" in nope
    connectors("status", "x", fails_with="CONNECTOR_NOT_FOUND")
    connectors("restart", "lines", "--task", "7", fails_with="CONNECTOR_NOT_FOUND")

    # A sink whose directory is missing fails, and runs after it is there and the failed task is restarted.
    sink = tmp_path / "missing" / "sink.txt"
    config = ("-c", "connector.class=FileStreamSink", "-c", "topics=lines", "-c", f"file={sink}")
    failure = connectors("create", "sink", *config, "--wait", "2m", fails_with="CONNECTOR_FAILED")
    assert "NoSuchFileException" in failure
    sink.parent.mkdir()
    assert connectors("restart", "sink", "--failed")["only_failed"]
    until(lambda: connectors.states("sink") == ["RUNNING", "RUNNING"], within_s=STARTED_S)
    until(lambda: sink.exists() and sink.read_text() == source.read_text(), within_s=STARTED_S)

    connectors("restart", "lines")
    until(lambda: connectors.states("lines") == ["RUNNING", "RUNNING"], within_s=STARTED_S)
    changed = connectors("create", "lines", "-f", str(file), "-c", "tasks.max=1", "--replace")
    assert changed == {"name": "lines", "created": False}
    for name in ("lines", "sink"):
        assert connectors("delete", name) == {"name": name}
    assert connectors("list") == []
    connectors("delete", "lines", fails_with="CONNECTOR_NOT_FOUND")
