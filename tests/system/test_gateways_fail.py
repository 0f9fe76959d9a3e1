"""Gateways, and brokers behind them, are killed while Kafka's clients write and read: real processes, librdkafka.

HEADRACE_FAULTS=full kills 30 gateways and 20 brokers, which is a part of ``make verify``; otherwise two of each.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from tests.system.faulty_cluster import SLOW_MACHINE
from tests.system.scenarios import LEADER_KILL_S
from tests.worlds.waiting import until

GATEWAYS, WRITERS, READERS = 3, 3, 2
FULL = os.environ.get("HEADRACE_FAULTS") == "full"
KILLS, BROKER_KILLS = (30, 20) if FULL else (2, 2)
#: Seconds of peace before the next kill. librdkafka doubles the time between two attempts to connect, up to
#: reconnect.backoff.max.ms (10 s). It starts again only when no attempt was due for as long, even after a success, and
#: a gateway that comes back costs attempts, too. With a kill every 4 s, a client waited for up to 10 s (p95 4.6 s).
PEACE_S = 15.0 if FULL else 1.0
#: Seconds within which 95 % of the clients go on after a gateway was killed. `make test` runs other tests beside this
#: one, which can hold up any process for seconds.
GOES_ON_S = 2.0 if FULL else 15.0
#: Seconds of peace after a killed broker is in sync again. No connection of a client breaks when a broker is killed.
BROKER_PEACE_S = 3.0 if FULL else 0.5
#: The longest silence of a client when a broker is killed: the bound of docs/faults.md for clients of gRPC.
BROKER_KILL_S = (LEADER_KILL_S if FULL else 15.0) * SLOW_MACHINE
GATEWAYS_TOPIC, BROKERS_TOPIC = "gateways-die", "brokers-die"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=3, coordinators=1, gateways=GATEWAYS) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            topics = (GATEWAYS_TOPIC, BROKERS_TOPIC)
            admin.create_topics([NewTopic(each, partitions=WRITERS, replication_factor=3) for each in topics])
        yield running


class Writer:
    """An idempotent producer that numbers its records, each in its own partition."""

    def __init__(self, servers: str, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.sent = 0
        self.acknowledged: dict[int, int] = {}  # number -> offset
        self.failed: list[KafkaError] = []
        self.times = [time.monotonic()]
        self._stop = threading.Event()
        self._producer = KafkaProducer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(
                self.topic, b"%d" % self.sent, partition=self.partition, on_delivery=self._delivered_as(self.sent)
            )
            self.sent += 1
            self._producer.poll(0)
            self._stop.wait(0.005)
        self._producer.flush(60)

    def _delivered_as(self, number: int) -> object:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(error)
                return
            self.acknowledged[number] = message.offset() or 0
            self.times.append(time.monotonic())

        return delivered

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


class Reader:
    """A consumer of all partitions, from their beginning."""

    def __init__(self, servers: str, topic: str) -> None:
        self.read: list[tuple[int, int]] = []  # partition, offset
        self.times = [time.monotonic()]
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            {
                "bootstrap.servers": servers,
                "group.id": "readers",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([KafkaPartition(topic, number, OFFSET_BEGINNING) for number in range(WRITERS)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.read.append((message.partition() or 0, message.offset() or 0))
                    self.times.append(time.monotonic())
        self._consumer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


def longest_silence_s(times: list[float], since_s: float, until_s: float) -> float:
    """The longest time without progress between two times."""
    seen = [since_s, *(each for each in tuple(times) if since_s < each < until_s), until_s]
    return max(later - earlier for earlier, later in itertools.pairwise(seen))


def stored(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    """The numbers in each partition, in the order of the log, read with the SDK."""
    found: dict[int, list[int]] = {partition: [] for partition in range(WRITERS)}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, partition) for partition in range(WRITERS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(1.0):
                found[record.partition].append(int(record.value))
    return found


class Load:
    """Clients of one topic: a writer for each partition, and readers of all. Use as a context manager, then judge."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        servers = cluster.kafka_bootstrap_servers
        self.writers = [Writer(servers, topic, partition) for partition in range(WRITERS)]
        self.readers = [Reader(servers, topic) for _ in range(READERS)]
        self.clients: list[Writer | Reader] = [*self.writers, *self.readers]
        self.silences: list[float] = []

    def __enter__(self) -> Load:
        until(lambda: all(len(each.times) > 100 for each in self.clients), within_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.clients:
            each.stop()

    def goes_on_for(self, seconds: float) -> None:
        """Wait until every client has worked later than ``seconds`` from now."""
        since_s = time.monotonic()
        until(lambda: all(each.times[-1] > since_s + seconds for each in self.clients), within_s=seconds + 60)

    def note_silences(self, since_s: float) -> None:
        self.silences += [longest_silence_s(each.times, since_s, each.times[-1]) for each in self.clients]

    def judge(self) -> None:
        """Nothing is lost, doubled or reordered."""
        found = stored(self._cluster, self._topic)
        for writer in self.writers:
            assert not writer.failed, f"failed: {Counter(map(str, writer.failed))}"
            numbers = found[writer.partition]
            if numbers != sorted(set(numbers)):
                raise SafetyViolation(f"partition {writer.partition}: records twice or out of order")
            assert len(writer.acknowledged) == writer.sent
            lost = [
                number
                for number, offset in writer.acknowledged.items()
                if offset >= len(numbers) or numbers[offset] != number
            ]
            if lost:
                raise SafetyViolation(
                    f"partition {writer.partition}: {len(lost)} acknowledged records are not where they were said"
                )
        for reader in self.readers:
            for partition in range(WRITERS):
                offsets = [offset for at, offset in reader.read if at == partition]
                if offsets != list(range(len(offsets))):
                    raise SafetyViolation(f"partition {partition}: a reader got records twice, out of order or not all")


@pytest.mark.timeout(1150)
def test_clients_go_on_when_gateways_are_killed(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    with Load(cluster, GATEWAYS_TOPIC) as load:
        for _ in range(KILLS):
            victim = rng.randint(1, GATEWAYS)
            began_s = time.monotonic()
            with cluster.killed("gateway", victim):
                load.goes_on_for(3)
            load.note_silences(began_s)
            load.goes_on_for(PEACE_S)
    load.judge()
    silences = load.silences
    slow = sorted(silences)[: -(-len(silences) * 95 // 100)][-1]
    print(f"gateways: {KILLS} kills, p95 of silences {slow:.2f} s, longest {max(silences):.2f} s")
    if slow > GOES_ON_S:
        raise NotInTimeError(f"95 % of the silences: up to {slow:.2f} s, all {[round(each, 2) for each in silences]}")


@pytest.mark.timeout(1150)
def test_clients_go_on_when_brokers_behind_gateways_are_killed(cluster: LocalCluster, seed: int) -> None:
    """kill -9 of a partition's leader, and its restart, under the load of idempotent producers with acks=all."""
    rng = random.Random(seed)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin, Load(cluster, BROKERS_TOPIC) as load:
        for _ in range(BROKER_KILLS):
            victim = rng.choice(_partitions(admin)).leader
            began_s = time.monotonic()
            with cluster.killed("broker", victim):
                load.goes_on_for(3)
            load.note_silences(began_s)
            until(lambda: all(len(each.isr) == 3 for each in _partitions(admin)), "all replicas in sync")
            load.goes_on_for(BROKER_PEACE_S)
    load.judge()
    slow, silences = max(load.silences), [round(each, 2) for each in load.silences]
    middle = sorted(silences)[-(-len(silences) * 95 // 100) - 1]
    print(f"brokers: {BROKER_KILLS} kills, p95 of silences {middle:.2f} s, longest {slow:.2f} s")
    if slow > BROKER_KILL_S:
        raise NotInTimeError(f"a client had no progress for {slow:.2f} s, at most {BROKER_KILL_S} s: {silences}")


def _partitions(admin: Admin) -> Sequence[Any]:
    (topic,) = admin.describe_topics([BROKERS_TOPIC])
    return topic.partitions
