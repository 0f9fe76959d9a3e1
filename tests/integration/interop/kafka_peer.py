"""A real Apache Kafka broker on loopback for interop tests, with its own command-line clients.

The jars come from the folder that HEADRACE_PEERS names (its script fetches them), or else from bench/kafka_node.py.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pytest

from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.this_process import free_port

ROOT = Path(__file__).resolve().parents[3]
SEPARATOR = "\x1f"
NULL = "~null~"
#: Kafka ends with a killed test run (prctl PR_SET_PDEATHSIG). The wrapper avoids preexec_fn, with which gRPC's fork
#: handlers would run.
DIES_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


def jars() -> Path:
    """Kafka's jars. Maven fetches missing jars."""
    if peers := os.environ.get("HEADRACE_PEERS"):
        script = Path(peers) / "kafka" / "cluster.py"
        assert script.exists(), f"HEADRACE_PEERS={peers}: {script} is missing"
        fetched = subprocess.run([sys.executable, str(script), "fetch"], capture_output=True, text=True, timeout=500)
        assert fetched.returncode == 0, f"Kafka's jars could not be fetched:\n{fetched.stdout}{fetched.stderr}"
        command = [sys.executable, "-c", "import cluster; print(cluster.LIBS)"]
        found = subprocess.run(command, capture_output=True, text=True, cwd=script.parent, check=True, timeout=60)
        return Path(found.stdout.strip())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        import kafka_node

        return kafka_node.jars()


class Consumed(NamedTuple):
    """A record as Kafka's console consumer prints it. Values are texts, and None stands for null."""

    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, str | None], ...]
    key: str | None
    value: str | None


class KafkaBroker:
    """A combined broker and controller in ``directory``; it can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self._libs = jars()
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        #: The ports of all listeners for clients.
        self._ports = [port]
        self._config = directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.initial.task.delay.ms": 100,
            "log.cleaner.backoff.ms": 100,
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self._java_tool("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(self._config))

    def _java(self, *arguments: str, heap: str) -> list[str]:
        return ["java", f"-Xmx{heap}", "-cp", f"{self._libs}/*", *arguments]

    def _java_tool(self, tool: str, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            self._java(tool, *arguments, heap="256m"), input=stdin, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{tool}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    # ---------------------------------------------------------------- the process

    def start(self) -> None:
        """Wait until every listener for clients is open: Kafka opens them one after the other."""
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DIES_WITH_US, *self._java("kafka.Kafka", str(self._config), heap="512m")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + 90
        closed = list(self._ports)
        while closed:
            assert self._process.poll() is None, f"Kafka ended: {self.log()[-2000:]}"
            if time.monotonic() >= deadline:
                raise NotInTimeError(f"Kafka does not serve at {closed}: {self.log()[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", closed[0]), 1).close()
                del closed[0]
            except OSError:
                time.sleep(0.05)

    def stop(self, *, cleanly: bool = True) -> None:
        """Stop Kafka by SIGTERM, or by SIGKILL if it does not end in time. Returns when the process has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM if cleanly else signal.SIGKILL)
            process.wait(60)

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(cleanly=False)

    def log(self) -> str:
        """Return the broker's log so far."""
        return (self.directory / "server.log").read_text(errors="replace")

    # ---------------------------------------------------------------- its own clients

    def create_topics(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Create the topics with one partition each and with these settings."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [
            NewTopic(name, num_partitions=1, replication_factor=1, config=dict(config))
            for name, config in topics.items()
        ]
        for future in admin.create_topics(wanted).values():
            future.result(60)

    def produce(
        self,
        topic: str,
        records: Sequence[tuple[Mapping[str, str | None], str | None, str | None]],
        *,
        codec: str = "none",
        **properties: str,
    ) -> None:
        """Write records with Kafka's console producer: (headers, key, value), each a text or None."""
        lines = []
        for headers, key, value in records:
            pairs = ",".join(f"{name}:{NULL if text is None else text}" for name, text in headers.items())
            lines.append("\t".join([pairs or NULL, NULL if key is None else key, NULL if value is None else value]))
        given = [f"{key.replace('_', '.')}={value}" for key, value in {"batch_size": "600", **properties}.items()]
        self._java_tool(
            "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", self.bootstrap, "--topic", topic,
            "--compression-codec", codec,
            *(part for item in given for part in ("--command-property", item)),
            *(part for item in ("parse.key=true", "parse.headers=true", f"null.marker={NULL}")
              for part in ("--reader-property", item)),
            stdin="".join(line + "\n" for line in lines),
        )  # fmt: skip

    def produce_load(self, topic: str, records: int, size: int, *, transactional: bool = False, **given: str) -> None:
        """Write random letters with Kafka's producer-perf, which is idempotent by default."""
        properties = {"bootstrap.servers": self.bootstrap, "acks": "all"}
        properties |= {key.replace("_", "."): value for key, value in given.items()}
        transaction = ["--transactional-id", f"load-{topic}", "--transaction-duration-ms", "50"]
        self._java_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
            "--record-size", str(size), "--throughput", "-1", *(transaction if transactional else ()),
            "--command-property", *(f"{key}={value}" for key, value in properties.items()),
        )  # fmt: skip

    def consume(self, topic: str, *, isolation: str = "read_uncommitted") -> list[Consumed]:
        """All records of partition 0 that Kafka's console consumer prints, from the beginning to the end."""
        shown = ("timestamp", "offset", "headers", "key", "value")
        formats = [f"print.{what}=true" for what in shown]
        formats += [f"key.separator={SEPARATOR}", f"null.literal={NULL}", "headers.separator=,"]
        output = self._java_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", self.bootstrap,
            "--topic", topic, "--partition", "0", "--offset", "earliest", "--timeout-ms", "4000",
            "--isolation-level", isolation,
            *(part for item in formats for part in ("--formatter-property", item)),
        )  # fmt: skip
        return [_parse(line) for line in output.splitlines()]

    def offset_answers(self, topic: str, times_ms: Sequence[int]) -> dict[int, int]:
        """Kafka's ListOffsets: timestamp -> offset, or -1 if no record is that late."""
        import confluent_kafka as ck

        consumer = ck.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none"})
        try:
            return {
                ms: _answer(consumer.offsets_for_times([ck.TopicPartition(topic, 0, ms)], timeout=30))
                for ms in times_ms
            }
        finally:
            consumer.close()

    def offset_of_max_timestamp(self, topic: str) -> int:
        """The offset of the largest timestamp (KIP-734), from Kafka's own shell."""
        output = self._java_tool(
            "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", self.bootstrap, "--topic", topic,
            "--time", "max-timestamp",
        )  # fmt: skip
        return int(output.strip().rpartition(":")[2])

    def dump(self, *arguments: str) -> str:
        """DumpLogSegments."""
        return self._java_tool("org.apache.kafka.tools.DumpLogSegments", *arguments)

    def partition(self, topic: str) -> Path:
        """The directory of partition 0."""
        return self.data / f"{topic}-0"


def _answer(found: Sequence[Any]) -> int:
    (partition,) = found
    assert partition.error is None, partition.error
    return int(partition.offset) if partition.offset >= 0 else -1


def _parse(line: str) -> Consumed:
    timestamp, offset, headers, key, value = line.split(SEPARATOR)
    found = re.fullmatch(r"(?:Create|LogAppend)Time:(-?\d+)", timestamp)
    assert found is not None, line
    pairs = [pair.partition(":")[::2] for pair in headers.split(",")] if headers != "NO_HEADERS" else []
    return Consumed(
        int(offset.removeprefix("Offset:")),
        int(found[1]),
        tuple((name, _text(text)) for name, text in pairs),
        _text(key),
        _text(value),
    )


def _text(text: str) -> str | None:
    return None if text == NULL else text
