"""Apache Kafka as a peer: one KRaft node on loopback from Maven's jars, its own tools, Python clients.

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
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from kafka_settings import PRE_TOUCH, SETTINGS, WARM_UP_S, Setting
from kafka_warm import WarmClient, compiled
from measure import PYTHON, REMOVAL_DELAY_MS, ROOT, WORK, json_at_the_end, run, run_json, wait_for_removal

JAVA_SOURCES = ROOT / "bench" / "java"
PARTITIONS = 6
#: Records per warm-up run of the producer; the consumer reads at most ten times as many.
WARM_UP_RECORDS = 200_000


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


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class KafkaNode:
    """Combined brokers and controllers (one by default) with Kafka's defaults (no fsync before the acknowledgement) and
    a heap of 1 GiB each. Each topic has a replica on each node.

    ``tls``: the node's certificate with its key, and the authority, as PEM files: a second listener takes TLS
    (``over_tls``). ``pre_touch``: the JVM touches its whole heap at the start: fair for throughput, unfair for start
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
        tls: tuple[Path, Path] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = dict(settings or {})
        self.tls = tls
        self.client_properties: tuple[str, ...] = ()  #: Properties of the Java clients in addition to a setting's.
        self.libs = jars()
        self.pre_touch = pre_touch
        self.warm_up_s = warm_up_s
        self._client = WarmClient(self._client_command, directory / "kafka-client.log", self._warm_up)
        self._reader = WarmClient(self._client_command, directory / "kafka-reader.log", self._warm_up_reader)
        self.directory = directory
        self.heap = heap
        self.nodes = nodes
        self.start_s = 0.0
        free = _free_ports(3 * nodes)
        self._ports, self._controller_ports, self._tls_ports = free[:nodes], free[nodes : 2 * nodes], free[2 * nodes :]
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
        if self.tls is not None:
            key, authority = self.tls
            port = self._tls_ports[number - 1]
            properties["listeners"] = f"{properties['listeners']},SSL://127.0.0.1:{port}"
            properties["advertised.listeners"] = f"{properties['advertised.listeners']},SSL://127.0.0.1:{port}"
            properties["listener.security.protocol.map"] = f"{properties['listener.security.protocol.map']},SSL:SSL"
            properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": key}
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
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

    @contextlib.contextmanager
    def over_tls(self) -> Iterator[None]:
        """The Java clients connect by TLS."""
        assert self.tls is not None
        before = self.bootstrap, self.client_properties
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._tls_ports)
        self.client_properties = (
            "security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={self.tls[1]}",
        )  # fmt: skip
        try:
            yield
        finally:
            self.bootstrap, self.client_properties = before

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
            *setting.properties, *self.client_properties,
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
        more = [word for each in self.client_properties for word in ("--command-property", each)]
        output = (client or self._client).run(
            "consumer-perf", "--bootstrap-server", self.bootstrap, "--topic", topic, "--num-records", str(records),
            "--timeout", "20000", *more, timeout_s=150,
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
