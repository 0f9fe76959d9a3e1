"""Apache Kafka as a peer: KRaft nodes on loopback from Maven's jars, Kafka's tools in a warm JVM, Spark's connector.

Jars: ``$PEERS_CACHE/kafka-libs`` if it exists, otherwise build/bench/kafka-libs, filled by Maven (bench/java/pom.xml).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from measure import (
    PYTHON,
    REMOVAL_DELAY_MS,
    ROOT,
    WORK,
    emit,
    json_at_the_end,
    run,
    run_json,
    settle,
    wait_for_removal,
)

JAVA_SOURCES = ROOT / "bench" / "java"
PARTITIONS = 6
#: Records per warm-up run of the producer; the consumer reads at most ten times as many.
WARM_UP_RECORDS = 200_000

# -- settings ---------------------------------------------------------------------------------------------------------

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """How a Kafka producer forms batches. ``name`` follows the ``@`` in sample names."""

    name: str
    batch_bytes: int
    linger_ms: int
    buffer_bytes: int = 32 * MIB

    @property
    def properties(self) -> list[str]:
        return [
            f"batch.size={self.batch_bytes}",
            f"linger.ms={self.linger_ms}",
            f"buffer.memory={self.buffer_bytes}",
        ]


#: Kafka's defaults first. The buffer grows with the largest batches: 32 MiB hold 32 batches.
SETTINGS = (
    Setting("default", 16 * KIB, linger_ms=5),
    Setting("batch-128k", 128 * KIB, linger_ms=10),
    Setting("batch-1m", MIB, linger_ms=10, buffer_bytes=256 * MIB),
)

#: For brokers and Java clients: touch the heap's pages at the start, before the clock runs.
PRE_TOUCH = "-XX:+AlwaysPreTouch"

#: Warm-up time of the Java client (one process per run) before its first figure (seconds).
WARM_UP_S = 60.0
SMOKE_WARM_UP_S = 2.0


def turns(number: int) -> tuple[Setting, ...]:
    """The settings in the order of round ``number``: each setting is first, second and last equally often."""
    first = number % len(SETTINGS)
    return SETTINGS[first:] + SETTINGS[:first]


# -- jars, and a warm process -----------------------------------------------------------------------------------------


def jars() -> Path:
    """The folder of Kafka's jars; fetches missing jars."""
    for parent in filter(None, (os.environ.get("PEERS_CACHE"), str(WORK))):
        if any((Path(parent) / "kafka-libs").glob("kafka_2.13-*.jar")):
            return Path(parent) / "kafka-libs"
    return fetched(JAVA_SOURCES / "pom.xml", WORK / "kafka-libs")


def fetched(pom: Path, libs: Path, *options: str) -> Path:
    """Copy the jars that a pom names into ``libs``, by Maven; returns ``libs``."""
    if shutil.which("mvn") is None:
        raise RuntimeError(
            "Maven is missing: it fetches Kafka's jars (Debian: apt-get install maven default-jdk-headless)"
        )
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]
    run([*command, f"-DoutputDirectory={libs}"], timeout_s=900)
    return libs


def compiled(sources: Path, libs: Path) -> Path:
    """Compile bench/java; returns the folder of the classes."""
    classes = WORK / "java-classes"
    files = sorted(sources.glob("*.java"))
    done = classes / "WarmClient.class"
    if not done.exists() or done.stat().st_mtime < max(file.stat().st_mtime for file in files):
        classes.mkdir(parents=True, exist_ok=True)
        run(["javac", "-nowarn", "-cp", f"{libs}/*", "-d", str(classes), *map(str, files)], timeout_s=120)
    return classes


class WarmClient:
    """Starts the process at first use, and again after it has ended; ``warm`` warms up each start."""

    def __init__(self, command: Callable[[], Sequence[str]], log: Path, warm: Callable[[WarmClient], None]) -> None:
        self._command, self._log, self._warm = command, log, warm
        self._process: subprocess.Popen[str] | None = None
        self._warming = False  # a process that ends during its warm-up is not started again from within the warm-up

    def run(self, tool: str, *arguments: str, timeout_s: float) -> str:
        """Run the tool when the disk is idle, and return its standard output. Raises RuntimeError on failure or
        timeout."""
        process = self.ready()
        settle()
        return self._ask(process, [tool, *arguments], timeout_s)

    def ready(self) -> subprocess.Popen[str]:
        """Start and warm up the process, unless it runs."""
        if self._process is None or (self._process.poll() is not None and not self._warming):
            self.close()
            command = list(self._command())
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            began = time.monotonic()
            self._warming = True
            try:
                self._warm(self)
            except BaseException:
                self.close()  # ``close`` ends the warm process; the next use starts another one
                raise
            finally:
                self._warming = False
            emit(step=f"{self._log.stem}.start", seconds=round(time.monotonic() - began, 1))
        return self._process

    def _ask(self, process: subprocess.Popen[str], words: list[str], timeout_s: float) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        what = " ".join(words)
        limit = threading.Timer(timeout_s, process.kill)
        limit.start()
        try:
            process.stdin.write("\t".join(words) + "\n")
            process.stdin.flush()
            lines: list[str] = []
            for line in process.stdout:
                if line == "done\n":
                    return "".join(lines).rstrip() + "\n"
                if line.startswith("failed "):
                    raise RuntimeError(f"{what}: {line.strip()[:600]} (see {self._log})")
                lines.append(line)
        finally:
            limit.cancel()
        self.close()
        raise RuntimeError(f"{what}: the client ended, or was not done after {timeout_s:g} s: {''.join(lines)[-400:]}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


# -- the nodes --------------------------------------------------------------------------------------------------------


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class KafkaNode:
    """Combined brokers and controllers (one by default) with Kafka's defaults (no fsync before the acknowledgement) and
    a heap of 1 GiB each. Each topic has a replica on each node.

    ``pre_touch``: the JVM touches its whole heap at the start: fair for throughput, unfair for start
    time and idle memory. Java clients run in one JVM, which warms up for ``warm_up_s`` seconds before its first
    measurement. ``settings``: broker settings in addition to the defaults.
    """

    def __init__(
        self,
        directory: Path,
        *,
        heap: str = "1g",
        nodes: int = 1,
        pre_touch: bool = True,
        warm_up_s: float = WARM_UP_S,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = dict(settings or {})
        self.libs = jars()
        self.pre_touch = pre_touch
        self.warm_up_s = warm_up_s
        self._client = WarmClient(self._client_command, directory / "kafka-client.log", self._warm_up)
        self._reader = WarmClient(self._client_command, directory / "kafka-reader.log", self._warm_up_reader)
        self.directory = directory
        self.heap = heap
        self.nodes = nodes
        self.start_s = 0.0
        free = _free_ports(2 * nodes)
        self._ports, self._controller_ports = free[:nodes], free[nodes:]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self._processes: list[subprocess.Popen[bytes]] = []

    def _java(self, *arguments: str, heap: str, pre_touch: bool = False, classes: Path | None = None) -> list[str]:
        options = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
        options += [PRE_TOUCH] if pre_touch else []
        path = f"{self.libs}/*" if classes is None else f"{classes}:{self.libs}/*"
        return ["java", f"-Xms{heap}", f"-Xmx{heap}", *options, "-cp", path, *arguments]

    def _client_command(self) -> list[str]:
        return self._java("WarmClient", heap="1g", pre_touch=True, classes=compiled(JAVA_SOURCES, self.libs))

    def _warm_up(self, client: WarmClient) -> None:
        """Warm up the client: it produces for three fifths of the time and consumes for one fifth. In the last fifth of
        the time the client has one record in flight per producer, and writes transactions."""
        part_s, records, produced = self.warm_up_s / 5, WARM_UP_RECORDS, 0
        topic = f"warm-up-{time.monotonic_ns()}"
        self.create_topic(topic)
        begun = time.monotonic()
        while produced == 0 or time.monotonic() < begun + 3 * part_s:
            self.producer_perf(topic, records, setting=SETTINGS[produced // records % len(SETTINGS)])
            produced += records
        read = False
        while not read or time.monotonic() < begun + 4 * part_s:
            self.consumer_perf(topic, min(produced, 10 * records))
            read = True
        left_s = max(0.5, (begun + 5 * part_s - time.monotonic()) / 2)
        self.sync_producers(topic, 20, left_s)
        self.transactions(topic, "records", 1_000, 1, left_s)
        self.delete_topic(topic)

    def _warm_up_reader(self, reader: WarmClient) -> None:
        """Warm up a client that only reads."""
        topic, begun = f"warm-up-{time.monotonic_ns()}", time.monotonic()
        self.create_topic(topic)
        self.producer_perf(topic, 10 * WARM_UP_RECORDS, setting=SETTINGS[-1])
        while True:
            self.consumer_perf(topic, 10 * WARM_UP_RECORDS, client=reader)
            if time.monotonic() > begun + self.warm_up_s / 5:
                break
        self.delete_topic(topic)

    def __enter__(self) -> KafkaNode:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        configs = [self._configured(number) for number in range(1, self.nodes + 1)]
        started = time.monotonic()
        for config in configs:
            format_ = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(config)]
            run(self._java(*format_, heap="256m"), timeout_s=60)
        for config in configs:
            with config.with_suffix(".log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        self._java("kafka.Kafka", str(config), heap=self.heap, pre_touch=self.pre_touch),
                        stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                    )
                )  # fmt: skip
        try:
            self._first_acknowledged_record(deadline=time.monotonic() + 60 + 20 * self.nodes)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.start_s = time.monotonic() - started
        return self

    def _configured(self, number: int) -> Path:
        client, controller = self._ports[number - 1], self._controller_ports[number - 1]
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in enumerate(self._controller_ports, 1))
        replicas, minimum = min(3, self.nodes), min(2, self.nodes)
        properties = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.directory / "data" / str(number),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": minimum,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": minimum,
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.delete.delay.ms": REMOVAL_DELAY_MS,
        }
        properties |= self.settings
        path = self.directory / f"server-{number}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _first_acknowledged_record(self, deadline: float) -> None:
        for number, port in enumerate(self._ports, 1):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline or self.pid is None:
                        end = (self.directory / f"server-{number}.log").read_text()[-800:]
                        raise RuntimeError(f"Kafka does not serve on {self.bootstrap}: {end}") from None
                    time.sleep(0.02)
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "1", "linger.ms": 0})
        producer.produce("first", b"x" * 100)
        if producer.flush(max(1.0, deadline - time.monotonic())):
            raise RuntimeError("Kafka acknowledged nothing")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._reader.close()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The first node's pid; None when a node has ended."""
        return self.pids[0] if len(self.pids) == self.nodes else None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None]

    # -- topics

    def create_topic(self, name: str, *, partitions: int = PARTITIONS, config: Mapping[str, str] | None = None) -> None:
        """Create a topic. ``config`` {"flush.messages": "1"} forces every write to disk."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=min(3, self.nodes), config=dict(config or {})
        )
        for future in admin.create_topics([topic], operation_timeout=60).values():
            future.result(60)

    def delete_topic(self, name: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # the client must outlive its futures
        for future in admin.delete_topics([name]).values():
            future.result(30)
        wait_for_removal(self.directory / "data", name)

    @contextlib.contextmanager
    def topic(
        self, prefix: str, *, partitions: int = PARTITIONS, config: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """A new topic, which is deleted after the block."""
        name = f"{prefix}-{time.monotonic_ns()}"
        self.create_topic(name, partitions=partitions, config=config)
        try:
            yield name
        finally:
            self.delete_topic(name)

    def limit_client(self, client_id: str, limits: Mapping[str, int]) -> None:
        """Set quotas of a client id with Kafka's own tool; ``limits``: quota key to its value."""
        added = ",".join(f"{key}={value}" for key, value in limits.items())
        command = ["kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter", "--add-config", added]
        run(self._java(*command, "--entity-type", "clients", "--entity-name", client_id, heap="256m"), timeout_s=60)

    def configure_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Set the topic's configuration; a value of None removes the key."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE)
            for key, value in config.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # the client must outlive its futures
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def warm(self) -> None:
        """Start and warm up the Java client now instead of in the next workload."""
        self._client.ready()

    # -- workloads; each returns records (or requests) per second

    def producer_perf(
        self,
        topic: str,
        records: int,
        *,
        setting: Setting,
        acks: str = "1",
        record_bytes: int = 100,
        compression: str = "none",
    ) -> float:
        """Kafka's own producer-perf at full speed: random letters."""
        properties = [
            f"bootstrap.servers={self.bootstrap}", f"acks={acks}", f"compression.type={compression}",
            *setting.properties,
        ]  # fmt: skip
        output = self._client.run(
            "producer-perf", "--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes),
            "--throughput", "-1", "--command-property", *properties, timeout_s=150,
        )  # fmt: skip
        found = re.findall(rf"^{records} records sent, ([\d.]+) records/sec", output, re.MULTILINE)
        if not found:
            raise RuntimeError(f"producer-perf: {output[-400:]}")
        return float(found[-1])

    def consumer_perf(self, topic: str, records: int, *, client: WarmClient | None = None) -> dict[str, float]:
        """Kafka's own consumer-perf: {"fetch": records/s of the fetch time, "whole": with the rebalance}."""
        output = (client or self._client).run(
            "consumer-perf", "--bootstrap-server", self.bootstrap, "--topic", topic, "--num-records", str(records),
            "--timeout", "20000", timeout_s=150,
        )  # fmt: skip
        cells = output.strip().splitlines()[-1].split(", ")
        if len(cells) < 10 or int(cells[4]) < records:
            raise RuntimeError(f"consumer-perf: {output[-400:]}")
        return {"whole": float(cells[5]), "fetch": float(cells[9])}

    def producer_perf_beside_a_reader(self, topic: str, records: int, *, setting: Setting) -> float:
        """producer-perf in records/s, while consumer-perf in another JVM reads the same records."""
        self._client.ready()
        self._reader.ready()
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(self.consumer_perf, topic, records, client=self._reader)
            rate = self.producer_perf(topic, records, setting=setting)
            reading.result()
        return rate

    def sync_producers(self, topic: str, producers: int, seconds: float, *, acks: str = "1") -> dict[str, Any]:
        arguments = [self.bootstrap, topic, str(producers), str(seconds), acks]
        return json_at_the_end(self._client.run("sync-producers", *arguments, timeout_s=seconds + 120))

    def end_to_end(
        self, topic: str, *, rate: float, seconds: float, acks: str = "all", record_bytes: int = 100
    ) -> dict[str, Any]:
        """bench/java/EndToEnd.java: from send to receipt; ``rate`` 0: one record in flight."""
        arguments = [self.bootstrap, topic, str(rate), str(seconds), acks, str(record_bytes)]
        return json_at_the_end(self._client.run("end-to-end", *arguments, timeout_s=seconds + 120))

    def transactions(
        self, topic: str, kind: str, size: int, producers: int, seconds: float, *, setting: Setting = SETTINGS[0]
    ) -> dict[str, Any]:
        """bench/java/Transactions.java: transactions in a row, of ``size`` records or milliseconds (``kind``)."""
        arguments = [self.bootstrap, topic, kind, str(size), str(producers), str(seconds), *setting.properties]
        return json_at_the_end(self._client.run("transactions", *arguments, timeout_s=seconds + 120))

    def python_client(
        self, client: str, workload: str, topic: str, records: int, *, setting: Setting = SETTINGS[0]
    ) -> dict[str, Any]:
        """bench/kafka_clients.py in a separate process."""
        script = str(ROOT / "bench" / "kafka_clients.py")
        batching = [str(setting.batch_bytes), str(setting.linger_ms)]
        command = [PYTHON, script, client, workload, self.bootstrap, topic, str(records), *batching]
        return run_json(command, timeout_s=180)


# -- Spark's connector for Kafka --------------------------------------------------------------------------------------

#: The newest Spark that the connector is published for; it is older than the Spark that Headrace needs.
PYSPARK = "4.0.0"
#: The jars of the connector that Spark itself does not contain.
_JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


def connector_jars() -> list[Path]:
    """The connector's jars; fetches missing ones."""
    libs = WORK / "spark-kafka"
    if len(list(libs.glob("*.jar"))) < len(_JARS):
        fetched(JAVA_SOURCES / "spark-kafka.xml", libs, f"-DincludeArtifactIds={','.join(_JARS)}")
    return sorted(libs.glob("*.jar"))


def python_path() -> str:
    """The value of PYTHONPATH with which ``import pyspark`` finds PYSPARK; fetches it if it is missing."""
    folder = WORK / f"pyspark-{PYSPARK}"
    if not (folder / f"pyspark-{PYSPARK}.dist-info").exists():
        run([PYTHON, "-m", "pip", "install", "-q", "--target", str(folder), f"pyspark=={PYSPARK}"], timeout_s=900)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
