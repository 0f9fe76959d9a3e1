"""Gateways are killed while Kafka's clients write and read through them: real processes, librdkafka's clients.

HEADRACE_FAULTS=full kills 30 gateways, which is a part of ``make verify``; otherwise two are killed.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.waiting import until

GATEWAYS, WRITERS, READERS = 3, 3, 2
FULL = os.environ.get("HEADRACE_FAULTS") == "full"
KILLS = 30 if FULL else 2
#: Seconds of peace before the next kill. librdkafka doubles the time between two attempts to connect, up to
#: reconnect.backoff.max.ms (10 s). It starts again only when no attempt was due for as long, even after a success, and
#: a gateway that comes back costs attempts, too. With a kill every 4 s, a client waited for up to 10 s (p95 4.6 s).
PEACE_S = 15.0 if FULL else 1.0
#: Seconds within which 95 % of the clients go on after a gateway was killed. `make test` runs other tests beside this
#: one, which can hold up any process for seconds.
GOES_ON_S = 2.0 if FULL else 15.0
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=3, coordinators=1, gateways=GATEWAYS) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=WRITERS, replication_factor=3)])
        yield running


class Writer:
    """An idempotent producer that numbers its records, each in its own partition."""

    def __init__(self, servers: str, partition: int) -> None:
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
                TOPIC, b"%d" % self.sent, partition=self.partition, on_delivery=self._delivered_as(self.sent)
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
            self.acknowledged[number] = message.offset()
            self.times.append(time.monotonic())

        return delivered

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


class Reader:
    """A consumer of all partitions, from their beginning."""

    def __init__(self, servers: str) -> None:
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
        self._consumer.assign([KafkaPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(WRITERS)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.read.append((message.partition(), message.offset()))
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


def stored(cluster: LocalCluster) -> dict[int, list[int]]:
    """The numbers in each partition, in the order of the log, read with the SDK."""
    found: dict[int, list[int]] = {partition: [] for partition in range(WRITERS)}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(TOPIC, partition) for partition in range(WRITERS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(1.0):
                found[record.partition].append(int(record.value))
    return found


@pytest.mark.timeout(1150)
def test_clients_go_on_when_gateways_are_killed(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    servers = cluster.kafka_bootstrap_servers
    writers = [Writer(servers, partition) for partition in range(WRITERS)]
    readers = [Reader(servers) for _ in range(READERS)]
    clients = [*writers, *readers]
    silences: list[float] = []
    try:
        until(lambda: all(len(each.times) > 100 for each in clients), within_s=60)
        for _ in range(KILLS):
            victim = rng.randint(1, GATEWAYS)
            began_s = time.monotonic()
            with cluster.killed("gateway", victim):
                until(lambda since=began_s: all(each.times[-1] > since + 3 for each in clients), within_s=60)
            silences += [longest_silence_s(each.times, began_s, each.times[-1]) for each in clients]
            restarted_s = time.monotonic()
            until(lambda since=restarted_s: all(each.times[-1] > since + PEACE_S for each in clients), within_s=60)
    finally:
        for each in clients:
            each.stop()
    found = stored(cluster)
    for writer in writers:
        assert not writer.failed, f"failed: {Counter(map(str, writer.failed))}"
        numbers = found[writer.partition]
        assert numbers == sorted(set(numbers)), f"partition {writer.partition}: records twice or out of order"
        assert len(writer.acknowledged) == writer.sent
        lost = [number for number, offset in writer.acknowledged.items() if numbers[offset] != number]
        assert not lost, f"partition {writer.partition}: {len(lost)} acknowledged records are not where they were said"
    for reader in readers:
        twice = [each for each, count in Counter(reader.read).items() if count > 1]
        assert not twice, f"{len(twice)} records were read twice by one reader"
    slow = sorted(silences)[: -(-len(silences) * 95 // 100)][-1]
    print(f"gateways: {KILLS} kills, p95 of silences {slow:.2f} s, longest {max(silences):.2f} s")
    if slow > GOES_ON_S:
        raise NotInTimeError(f"95 % of the silences: up to {slow:.2f} s, all {[round(each, 2) for each in silences]}")
