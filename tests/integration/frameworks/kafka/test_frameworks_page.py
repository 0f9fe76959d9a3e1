"""The examples of docs/frameworks.md, as a reader would run them: only addresses, directories and jars differ."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace import LocalCluster
from tests.docs import documented_pages as pages
from tests.integration.frameworks.java_apps import KAFKA, JavaApp, maven_jars
from tests.integration.frameworks.kafka.test_mirror_maker import (
    committed,
    consumer,
    create,
    everything,
    size,
    take,
    write,
)
from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

PAGE = "docs/frameworks.md"
ALL_S = 120.0
RECORDS = 600
CONNECT_JARS = ("connect-runtime", "connect-file", "connect-json", "connect-transforms", "connect-mirror")


class Reader:
    """Follows the page in a directory, on one cluster."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.directory = directory
        self.connect_url = f"http://127.0.0.1:{free_port()}"
        self._cluster = cluster
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "HEADRACE_PROFILES": str(directory / "profiles"),
            "HEADRACE_CONNECT_URL": self.connect_url,
        }

    def block(self, heading: str, language: str, begin: str = "") -> str:
        """The text of the block below ``heading`` that begins with ``begin``, with this test's addresses."""
        found = [
            each.text
            for each in pages.blocks(PAGE)
            if (each.heading, each.language) == (heading, language) and each.text.startswith(begin)
        ]
        assert len(found) == 1, f"{PAGE}: {heading}: {len(found)} blocks"
        text = found[0].replace("127.0.0.1:9092", self._cluster.kafka_bootstrap_servers)
        return text.replace("http://127.0.0.1:8083", self.connect_url).replace("/tmp/", f"{self.directory}/")

    def save(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def sh(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ALL_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def java(self, heading: str, libs: Path) -> JavaApp:
        """The program that the page starts with ``java -cp 'JARS/*' MAIN FILE``."""
        program, option, _, *words = shlex.split(self.block(heading, "sh", "java "))
        assert (program, option) == ("java", "-cp")
        files = [str(self.directory / each) if (self.directory / each).exists() else each for each in words]
        return JavaApp(f"{libs}/*", files, self.directory / f"{files[-1].rpartition('/')[2]}.log")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True) as running:
        yield running


@pytest.fixture
def reader(cluster: LocalCluster, tmp_path: Path) -> Reader:
    return Reader(cluster, tmp_path)


@pytest.fixture(scope="module")
def connect_jars() -> Path:
    return maven_jars("connect", *(("org.apache.kafka", name, KAFKA) for name in CONNECT_JARS))


def is_healthy(connect_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{connect_url}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_streams(reader: Reader) -> None:
    heading = "Kafka Streams"
    libs = maven_jars("streams", ("org.apache.kafka", "kafka-streams", KAFKA))
    program = reader.block(heading, "java").replace('"state"', f'"{reader.directory / "state"}"')
    reader.save("WordCount.java", program)
    reader.sh(reader.block(heading, "sh", "headrace topics create"))
    consume = reader.block(heading, "sh", "headrace consume")
    with reader.java(heading, libs) as app:

        def counts() -> dict[str, str]:
            return dict(line.split() for line in reader.sh(consume).splitlines())

        until(
            lambda: counts() == {"the": "2", "quick": "1", "fox": "1", "lazy": "1", "dog": "1"},
            lambda: str(counts()),
            within_s=ALL_S,
        )
        app.stop()
    assert "word-count" in reader.sh("headrace groups list")


def test_connect(reader: Reader, connect_jars: Path) -> None:
    heading = "Kafka Connect"
    reader.save("worker.properties", reader.block(heading, "properties"))
    with reader.java(heading, connect_jars) as worker:
        until(lambda: is_healthy(reader.connect_url), "the worker is ready", within_s=ALL_S)
        listed = reader.sh(reader.block(heading, "sh", "seq 1000")).splitlines()[-2:]
        assert [line.split()[:4] for line in listed] == [
            ["from-file", "source", "RUNNING", "1/1"],
            ["to-file", "sink", "RUNNING", "1/1"],
        ]
        source, sink = reader.directory / "source.txt", reader.directory / "sink.txt"
        until(lambda: sink.read_text() == source.read_text(), lambda: f"{sink.stat().st_size} bytes", within_s=ALL_S)
        lines = reader.sh("headrace consume -t lines -e --isolation read_committed")
        assert lines == source.read_text()
        assert "connect-cluster-connect" in reader.sh("headrace transactions list")
        assert "connect-from-file-0" in reader.sh("headrace transactions list")
        worker.stop()


def test_mirror_maker(reader: Reader, cluster: LocalCluster, connect_jars: Path, tmp_path: Path) -> None:
    heading = "MirrorMaker 2"
    new = cluster.kafka_bootstrap_servers
    with KafkaBroker(tmp_path / "kafka") as kafka:
        old = kafka.bootstrap
        create(old, "orders")
        write(old, "orders", range(RECORDS))
        settings = reader.block(heading, "properties").replace("old-kafka:9092", old)
        settings = settings.replace("interval.seconds=10", "interval.seconds=1")
        reader.save(
            "mirror.properties", f"{settings}refresh.topics.interval.seconds=2\nrefresh.groups.interval.seconds=2\n"
        )
        with reader.java(heading, connect_jars) as mirror:
            until(lambda: size(new, "old.orders") == RECORDS, lambda: f"{size(new, 'old.orders')}", within_s=ALL_S)
            with consumer(old, "billing") as member:
                member.subscribe(["orders"])
                before = take(member, RECORDS)
                member.commit(asynchronous=False)
            read = committed(old, "billing", "orders")
            until(lambda: set(committed(new, "billing", "old.orders")) == set(read), within_s=ALL_S)
            mirror.stop()
        translated = committed(new, "billing", "old.orders")
        assert all(0 < offset <= read[partition] for partition, offset in translated.items()), (translated, read)
        assert sorted(everything(new, "old.orders")) == sorted(everything(old, "orders")) == sorted(before)
        # The source cluster has only its own topics: MirrorMaker wrote nothing to it.
        topics = AdminClient({"bootstrap.servers": old}).list_topics(timeout=30).topics
        assert set(topics) == {"orders", "__consumer_offsets"}
