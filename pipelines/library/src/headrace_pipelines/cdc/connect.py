"""Kafka Connect with Debezium's connector for PostgreSQL: the jars, a worker that may be killed, the configuration.

Connect is one of Kafka's clients: it reaches the brokers by Kafka's protocol. The worker writes each event exactly once
(``exactly.once.source.support``, KIP-618): events and the connector's position are committed in one transaction.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from headrace_core.errors import InvalidArgumentError, InvalidConfigError
from headrace_tools.kafka_connect import ConnectClient, ConnectorNotFoundError, ConnectUnavailableError

from ..errors import PipelineFailedError
from .postgres import DATABASE, HOST, USER

KAFKA, DEBEZIUM = "4.3.0", "3.6.1.Final"
#: Name of the connector.
CONNECTOR = "cdc"
#: Seconds until a connector and its task must run. The start of the worker takes most of these seconds.
RUNNING_S = 120.0
_FETCH_S, _COMPILE_S, _STOP_S = 580.0, 120.0, 30.0
#: Apicurio's converter for Avro. Confluent's own converter is not in Maven's public repository.
_AVRO = ("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final")
#: Classes that let Apicurio's converter use a registry with Confluent's REST API.
SOURCES = tuple(sorted((Path(__file__).parent / "java" / "headrace" / "connect").glob("*.java")))
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
#: The worker's group id, which is also the prefix of the worker's topics.
GROUP = "cdc.connect"
#: The worker's topics: a run replaces them, because the positions of an earlier run belong to another PostgreSQL
#: server.
STATE_TOPICS = tuple(f"{GROUP}-{name}" for name in ("configs", "offsets", "status"))
#: Configuration of the Connect worker. Decimals are JSON numbers, which are exact; the converter's default is base64.
#: By default the converter also replaces null by the column's default, so that a row in the lake would differ from its
#: source.
_WORKER = {
    "group.id": GROUP,
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.decimal.format": "NUMERIC",
    "value.converter.decimal.format": "NUMERIC",
    "value.converter.replace.null.with.default": "false",
    "config.storage.topic": STATE_TOPICS[0],
    "offset.storage.topic": STATE_TOPICS[1],
    "status.storage.topic": STATE_TOPICS[2],
    "config.storage.replication.factor": "-1",
    "offset.storage.replication.factor": "-1",
    "status.storage.replication.factor": "-1",
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}


def fetch_jars(directory: Path, *, with_avro: bool = False) -> Path:
    """The directory with the jars of Connect and Debezium; Maven fetches missing jars. ``with_avro``: also a converter
    for Avro, which needs a JDK. Raises InvalidArgumentError if Maven is missing, and PipelineFailedError."""
    # The path must be absolute, because Maven has another working directory.
    pom, directory = project(with_avro=with_avro), directory.resolve()
    done = directory / "pom.xml"
    if done.exists() and done.read_text() == pom and (not with_avro or _has_converter(directory)):
        return directory
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise InvalidArgumentError(
            "Maven and Java 17 fetch and run Debezium, and one of them is missing; install them (Debian: apt-get "
            "install maven openjdk-17-jre-headless)"
        )
    if with_avro and shutil.which("javac") is None:
        raise InvalidArgumentError(
            "the converter for Avro is compiled with javac, which is missing; install a JDK 17 (Debian: apt-get "
            "install openjdk-17-jdk-headless)"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    asked = directory / "asked.xml"
    asked.write_text(pom)
    command = ["mvn", "-q", "-B", "-f", str(asked), "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_S)
    if fetched.returncode:
        raise PipelineFailedError(f"Maven cannot fetch Debezium {DEBEZIUM}: {fetched.stdout[-1_000:]}")
    if with_avro:
        compile_converter(directory)
    asked.rename(done)
    return directory


def compile_converter(jars: Path) -> None:
    """Make headrace-connect.jar in the directory of the jars. Raises PipelineFailedError."""
    with tempfile.TemporaryDirectory() as classes:
        for command in (
            [
                "javac",
                "--release",
                "17",
                "-Xlint:all",
                "-Werror",
                "-d",
                classes,
                "-cp",
                f"{jars}/*",
                *map(str, SOURCES),
            ],
            ["jar", "--create", "--file", str(jars / "headrace-connect.jar"), "-C", classes, "headrace"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_S)
            if done.returncode:
                raise PipelineFailedError(f"{command[0]} cannot make headrace-connect.jar: {done.stderr[-1_000:]}")
    for source in SOURCES:
        shutil.copy(source, jars)


def _has_converter(jars: Path) -> bool:
    """Whether headrace-connect.jar exists, and was made from the present source."""
    copies = [(jars / source.name, source) for source in SOURCES]
    return all(copy.exists() and copy.read_bytes() == source.read_bytes() for copy, source in copies)


def project(*, with_avro: bool = False) -> str:
    """Maven's project with the jars as dependencies."""
    artifacts = (*_ARTIFACTS, _AVRO) if with_avro else _ARTIFACTS
    return _POM.format("\n".join(_DEPENDENCY.format(*each) for each in artifacts))


def avro_converters(registry_urls: str) -> dict[str, str]:
    """Keys of a connector whose keys and values are in Avro, with schemas that the converter registers.
    ``registry_urls``: the URLs, separated by commas."""
    keys = {
        "": "headrace.connect.AvroConverter",
        ".apicurio.registry.url": registry_urls,
        ".apicurio.registry.auto-register": "true",
        ".replace.null.with.default": "false",
    }
    names = {"field.name.adjustment.mode": "avro", "schema.name.adjustment.mode": "avro"}
    return names | {f"{part}.converter{name}": value for part in ("key", "value") for name, value in keys.items()}


def java_keys(keys: Mapping[str, str]) -> dict[str, str]:
    """The keys for TLS and login, in the form for Kafka's Java clients. ``keys``: client keys, which may have names of
    librdkafka. Keys that do not concern TLS or login are left out. Raises InvalidConfigError for a security key without
    an equivalent in Java."""
    found = {name: value for name, value in keys.items() if name.startswith(("security.", "ssl.", "sasl."))}
    for theirs, javas in (("ssl.ca.location", "ssl.truststore.location"), ("sasl.mechanisms", "sasl.mechanism")):
        if theirs in found:
            found.setdefault(javas, found.pop(theirs))
    user, password = found.pop("sasl.username", None), found.pop("sasl.password", None)
    if user is not None and password is not None:
        kind = "plain.Plain" if found.get("sasl.mechanism", "").upper() == "PLAIN" else "scram.Scram"
        module = f"org.apache.kafka.common.security.{kind}LoginModule"
        found["sasl.jaas.config"] = f"{module} required username={_quoted(user)} password={_quoted(password)};"
    other = sorted(name for name in found if name in _NOT_JAVAS)
    if other:
        raise InvalidConfigError(f"{other[0]}: Kafka Connect does not have this key; {_NOT_JAVAS[other[0]]}")
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in found:
            found.setdefault(f"ssl.{store}.type", "PEM")  # the default of Headrace's clients; Java's is JKS
    return found


#: Security keys that Headrace's clients accept and Java's clients do not, each with the keys to set instead.
_NOT_JAVAS = {
    "ssl.certificate.location": "put certificate and key into one file, and name it in ssl.keystore.location",
    "ssl.key.location": "put certificate and key into one file, and name it in ssl.keystore.location",
    "sasl.oauthbearer.token": "set sasl.oauthbearer.token.endpoint.url, and the client's id and secret",
}


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def properties(values: Mapping[str, str]) -> str:
    """``values`` in the format that Java's Properties.load reads: ISO 8859-1, with escapes."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    units = value.encode("utf-16-be")
    characters = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    text = "".join(escapes.get(each) or (each if " " <= each <= "~" else f"\\u{ord(each):04x}") for each in characters)
    return f"\\{text}" if text.startswith(" ") else text


class Worker:
    """One worker of Connect. A killed worker can be started again; the file ``log`` has the output of all its starts.

    ``servers``: the brokers' addresses for Kafka's clients. ``keys``: keys for TLS and login, in the form for Kafka's
    Java clients; they are not written to a file.
    """

    def __init__(self, jars: Path, directory: Path, servers: str, keys: Mapping[str, str] | None = None) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            self.url = f"http://{HOST}:{taken.getsockname()[1]}"
        self.log = directory / "connect.log"
        settings = {"bootstrap.servers": servers, "listeners": self.url, **_WORKER}
        for prefix in ("", "producer.", "consumer.", "admin."):
            settings.update({f"{prefix}{name}": value for name, value in (keys or {}).items()})
        self._properties = properties(settings).encode("ascii")
        java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        main = ["org.apache.kafka.connect.cli.ConnectDistributed", "/dev/stdin"]
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
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # the log says why the worker ended
            stdin.write(self._properties)

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
