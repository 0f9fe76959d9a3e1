"""Kafka Connect with Debezium's connector for PostgreSQL: the jars, a worker that may be killed, the configuration.

Connect is one of Kafka's clients: it reaches the cluster through a gateway. The worker writes each event exactly once
(``exactly.once.source.support``, KIP-618): events and the connector's position commit in one transaction.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from headrace_core.errors import InvalidArgumentError
from headrace_tools.kafka_connect import ConnectClient, ConnectorNotFoundError, ConnectUnavailableError

from ..errors import PipelineFailedError
from .postgres import DATABASE, HOST, USER

KAFKA, DEBEZIUM = "4.3.0", "3.6.1.Final"
#: Name of the connector.
CONNECTOR = "cdc"
#: Seconds until a connector and its task must run. Most of this time is the start of the worker.
RUNNING_S = 120.0
_FETCH_S, _STOP_S = 580.0, 30.0
_ARTIFACTS = (
    ("org.apache.kafka", "connect-runtime", KAFKA),
    ("org.apache.kafka", "connect-json", KAFKA),
    ("org.apache.kafka", "connect-transforms", KAFKA),
    ("io.debezium", "debezium-connector-postgres", DEBEZIUM),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>cdc</artifactId><version>1</version><dependencies>
{}
</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
#: Keys of the worker. Decimals are JSON numbers, which are exact; the converter's default is base64. By default the
#: converter also replaces null by the column's default, so that a row in the lake would differ from its source.
_WORKER = {
    "group.id": "connect",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.decimal.format": "NUMERIC",
    "value.converter.decimal.format": "NUMERIC",
    "value.converter.replace.null.with.default": "false",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}


def fetch_jars(directory: Path) -> Path:
    """The directory with the jars of Connect and Debezium; Maven fetches missing jars. Raises InvalidArgumentError if
    Maven is missing, and PipelineFailedError."""
    pom = project()
    done = directory / "pom.xml"
    if done.exists() and done.read_text() == pom:
        return directory
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise InvalidArgumentError(
            "Maven and Java 17 fetch and run Debezium, and one of them is missing; install them (Debian: apt-get "
            "install maven openjdk-17-jre-headless)"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    asked = directory / "asked.xml"
    asked.write_text(pom)
    command = ["mvn", "-q", "-B", "-f", str(asked), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_S)
    if fetched.returncode:
        raise PipelineFailedError(f"Maven cannot fetch Debezium {DEBEZIUM}: {fetched.stdout[-1_000:]}")
    asked.rename(done)
    return directory


def project() -> str:
    """Maven's project with the jars as dependencies."""
    return _POM.format("\n".join(_DEPENDENCY.format(*each) for each in _ARTIFACTS))


class Worker:
    """One worker of Connect. ``kill`` and ``start`` may follow each other; the output of all starts is in ``log``."""

    def __init__(self, jars: Path, directory: Path, servers: str) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            self.url = f"http://{HOST}:{taken.getsockname()[1]}"
        self.log = directory / "connect.log"
        settings = {"bootstrap.servers": servers, "listeners": self.url, **_WORKER}
        file = directory / "connect.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        main = ["org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
        self._command = ["setpriv", "--pdeathsig", "KILL", *java, *main]  # the worker ends with this process
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def run_connector(self, config: Mapping[str, str], within_s: float = RUNNING_S) -> None:
        """Create or replace the connector, and wait until its task runs. Raises ConnectError and
        RequestTimedOutError."""
        client = ConnectClient([self.url], timeout_s=within_s)
        deadline = time.monotonic() + within_s
        while True:
            try:
                client.replace(CONNECTOR, config)
                break
            except (ConnectUnavailableError, ConnectorNotFoundError):  # a starting worker answers 404 for every path
                if time.monotonic() > deadline or not self.is_running():
                    raise
                time.sleep(0.5)
        client.wait_until_running(CONNECTOR, within_s)

    def is_running(self) -> bool:
        """Whether the process of the worker runs."""
        return self._process is not None and self._process.poll() is None


def debezium(port: int, prefix: str, tables: Sequence[str]) -> dict[str, str]:
    """The configuration of Debezium for ``tables`` (``schema.table``) of the server on ``port``.

    The topic of a table is ``prefix.schema.table``. Debezium first reads all rows (the snapshot), and then the log of
    the server, through the slot and the publication ``headrace``.
    """
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": HOST,
        "database.port": str(port),
        "database.user": USER,
        "database.password": USER,
        "database.dbname": DATABASE,
        "plugin.name": "pgoutput",
        "slot.name": "headrace",
        "publication.name": "headrace",
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(tables),
        "topic.prefix": prefix,
        "exactly.once.support": "required",
        "tasks.max": "1",
        "topic.creation.default.partitions": "2",
        "topic.creation.default.replication.factor": "-1",
    }
