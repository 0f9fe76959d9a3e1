"""Kafka Streams 4.3 on Headrace with ``exactly_once_v2``, killed again and again under load."""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, Record, TopicPartition
from tests.integration.frameworks.java_apps import KAFKA, JavaApp, compiled, maven_jars
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

KILLS = 5
PARTITIONS = 3
#: A started program restores its state, waits for the dead one's session timeout (6 s), and processes.
ALL_S = 120.0


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    libs = maven_jars("streams", ("org.apache.kafka", "kafka-streams", KAFKA))
    return compiled(tmp_path_factory.mktemp("classes"), libs)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True) as running:
        yield running


class Feed:
    """Sends records in a thread until its block ends; each record by ``make(number)``: topic, key, value."""

    def __init__(self, producer: Producer, make: Callable[[int], tuple[str, bytes, bytes]]) -> None:
        self._producer, self._make = producer, make
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent: list[tuple[str, bytes, bytes]] = []

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush()

    def _run(self) -> None:
        while not self._over.wait(0.005):
            for _ in range(3):
                topic, key, value = self._make(len(self.sent))
                self._producer.send(topic, value, key=key)
                self.sent.append((topic, key, value))


class Output:
    """The committed records of a topic, as they come."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._consumer = Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        self._consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        self.records: list[Record] = []

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def has(self, count: int) -> bool:
        self.records += self._consumer.poll(0.2)
        return len(self.records) >= count


def run_and_kill(app: JavaApp, feed: Feed, output: Output, rng: random.Random) -> None:
    """Kill the program KILLS times, each time at a random moment after it has written something new."""
    with feed, app:
        for _ in range(KILLS):
            more = len(output.records) + rng.randint(1, 400)
            until(lambda more=more: output.has(more), "the program writes", within_s=ALL_S)  # type: ignore[misc]
            app.kill()
            app.start()
        more = len(output.records) + 1
        until(lambda: output.has(more), "the program writes after the last kill", within_s=ALL_S)


def topics(cluster: LocalCluster, *names: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS, replication_factor=3) for name in names])


def test_every_count_of_every_word_is_written_once(
    cluster: LocalCluster, class_path: str, tmp_path: Path, rng: random.Random
) -> None:
    """Each update is one record, so the counts of a word are 1, 2, 3 and so on: a lost, repeated or wrong update shows
    in the sequence."""
    topics(cluster, "lines", "counts")
    servers = cluster.kafka_bootstrap_servers
    arguments = ["WordCount", servers, "word-count", str(tmp_path / "state"), "lines", "counts"]

    def line(number: int) -> tuple[str, bytes, bytes]:
        return "lines", b"%d" % number, " ".join(f"w{rng.randrange(40)}" for _ in range(4)).encode()

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer, Output(cluster, "counts") as output:
        feed, app = Feed(producer, line), JavaApp(class_path, arguments, tmp_path / "word-count.log")
        run_and_kill(app, feed, output, random.Random(rng.random()))
        expected = Counter(word for _, _, value in feed.sent for word in value.split())
        with app:
            until(lambda: output.has(expected.total()), lambda: f"{len(output.records)} updates", within_s=ALL_S)
            output.has(expected.total() + 1)  # nothing more comes
            assert app.is_running()
            app.stop()
    counts: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in output.records:
        assert record.key is not None
        assert record.value is not None
        counts[record.key].append(struct.unpack(">q", record.value)[0])
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_every_pair_of_a_windowed_join_is_written_once(
    cluster: LocalCluster, class_path: str, tmp_path: Path, rng: random.Random
) -> None:
    topics(cluster, "views", "clicks", "pairs")
    servers = cluster.kafka_bootstrap_servers
    arguments = ["WindowedJoin", servers, "windowed-join", str(tmp_path / "state"), "views", "clicks", "pairs"]

    def visit(number: int) -> tuple[str, bytes, bytes]:
        """A view of each visitor; a click follows for two visitors in three, and a second view for the third."""
        visitor, is_second = divmod(number, 2)
        topic = "clicks" if is_second and visitor % 3 else "views"
        return topic, b"visitor-%d" % visitor, b"%s-%d" % (topic.encode(), number)

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer, Output(cluster, "pairs") as output:
        feed, app = Feed(producer, visit), JavaApp(class_path, arguments, tmp_path / "windowed-join.log")
        run_and_kill(app, feed, output, random.Random(rng.random()))
        views = {key: value for topic, key, value in feed.sent if topic == "views"}
        clicks = {key: value for topic, key, value in feed.sent if topic == "clicks"}
        expected = Counter((key, views[key] + b"+" + click) for key, click in clicks.items())
        with app:
            until(lambda: output.has(expected.total()), lambda: f"{len(output.records)} pairs", within_s=ALL_S)
            output.has(expected.total() + 1)
            app.stop()
    assert Counter((record.key, record.value) for record in output.records) == expected
