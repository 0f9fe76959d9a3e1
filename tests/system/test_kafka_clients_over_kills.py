"""librdkafka's idempotent and transactional producers, while brokers are killed one after another: no acknowledged
record is lost, none is there twice, and each writer's records of a partition keep their order.

HEADRACE_KAFKA_KILLS_SECONDS sets the duration (default: a minute), HEADRACE_TEST_SEED the order of the kills.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace import Admin, LocalCluster, NewTopic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]
SECONDS = float(os.environ.get("HEADRACE_KAFKA_KILLS_SECONDS", "60"))
SEED = int(os.environ.get("HEADRACE_TEST_SEED") or 1)
TOPICS = ("plain", "transactional")
PARTITIONS = 4
#: Records of a transaction, and how many writers of each kind there are.
TRANSACTION, WRITERS = 20, 3
#: Seconds between two kills, and until the broker is started again.
PAUSE_S, DEAD_S = 12.0, 4.0
CONFIG = {"min.insync.replicas": "2", "default.replication.factor": "3", "auto.create.topics.enable": "false"}


class Writer(threading.Thread):
    """Sends numbered records until ``ends``; ``acknowledged`` and ``aborted`` are its records by partition."""

    def __init__(self, name: str, bootstrap: str, **config: Any) -> None:
        super().__init__(name=name)
        self.acknowledged: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.aborted: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
        self.failure: BaseException | None = None
        self.ends = threading.Event()
        self.number = 0
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
                **config,
            }
        )

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:  # noqa: BLE001  (the test reports it)
            self.failure = error

    def send(self, topic: str, told: Any) -> None:
        partition, self.number = self.number % PARTITIONS, self.number + 1
        value = f"{self.name}:{self.number}"
        self.producer.produce(topic, value, partition=partition, on_delivery=told)

    def write(self) -> None:
        def told(error: Any, message: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            self.acknowledged[message.partition()].append(int(message.value().split(b":")[1]))

        while not self.ends.is_set():
            for _ in range(50):
                self.send("plain", told)
            self.producer.poll(0.03)
            while len(self.producer) > 2_000:
                self.producer.poll(0.1)
        assert self.producer.flush(120) == 0


class TransactionalWriter(Writer):
    """Every fifth transaction is aborted, and each one that the cluster could not commit."""

    def __init__(self, name: str, bootstrap: str) -> None:
        super().__init__(name, bootstrap, **{"transactional.id": name, "transaction.timeout.ms": 60_000})

    def write(self) -> None:
        self.producer.init_transactions(60)
        count = 0
        while not self.ends.is_set():
            count += 1
            first = self.number
            self.producer.begin_transaction()
            try:
                for _ in range(TRANSACTION):
                    self.send("transactional", None)
                if count % 5:
                    self._commit()
                    self._note(first, lambda partition, number: self.acknowledged[partition].append(number))
                    continue
                self.producer.abort_transaction(60)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self.producer.abort_transaction(60)
            self._note(first, lambda partition, number: self.aborted[partition].add(number))

    def _commit(self) -> None:
        """Commit, again while librdkafka says that this may help."""
        until_s = time.monotonic() + 120
        while True:
            try:
                self.producer.commit_transaction(60)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until_s:
                    raise

    def _note(self, first: int, note: Any) -> None:
        for number in range(first, self.number):
            note(number % PARTITIONS, number + 1)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=3, coordinators=2, kafka=True, config=CONFIG) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, partitions=PARTITIONS) for topic in TOPICS])
        yield running


def read(bootstrap: str, topic: str) -> dict[int, list[tuple[str, int]]]:
    """All committed records by partition."""
    found: dict[int, list[tuple[str, int]]] = {partition: [] for partition in range(PARTITIONS)}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "verdict", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in found])
    ended: set[int] = set()
    until_s = time.monotonic() + 120
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until_s, f"{topic}: {ended}"
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                writer, _, number = message.value().decode().partition(":")
                found[message.partition()].append((writer, int(number)))
            else:
                ended.add(message.partition())
    consumer.close()
    return found


def check(found: dict[int, list[tuple[str, int]]], writers: list[Writer]) -> int:
    """Compare what was read with what was acknowledged; returns how many records that is."""
    total = 0
    for writer in writers:
        for partition, acknowledged in writer.acknowledged.items():
            there = [number for name, number in found[partition] if name == writer.name]
            where = f"{writer.name}, partition {partition}"
            assert len(set(there)) == len(there), f"{where}: records are there twice"
            assert there == sorted(there), f"{where}: records are out of order"
            lost = set(acknowledged) - set(there)
            assert not lost, f"{where}: acknowledged records are lost: {sorted(lost)[:10]}"
            ghosts = writer.aborted[partition] & set(there)
            assert not ghosts, f"{where}: aborted records are there: {sorted(ghosts)[:10]}"
            total += len(acknowledged)
    return total


def test_nothing_is_lost_doubled_or_out_of_order(cluster: LocalCluster) -> None:
    bootstrap, rng = cluster.kafka_bootstrap_servers, random.Random(SEED)
    plain = [Writer(f"w{number}", bootstrap, **{"linger.ms": number * 5}) for number in range(WRITERS)]
    transactional: list[Writer] = [TransactionalWriter(f"t{number}", bootstrap) for number in range(WRITERS)]
    writers = plain + transactional
    kills = 0
    with ExitStack() as ending:
        for writer in writers:
            writer.start()
            ending.callback(writer.join, 300)
        for writer in writers:
            ending.callback(writer.ends.set)
        until_s = time.monotonic() + SECONDS
        while time.monotonic() < until_s:
            broker = rng.randrange(1, 4)
            with cluster.killed("broker", broker):
                kills += 1
                time.sleep(DEAD_S)
            time.sleep(PAUSE_S)
            for writer in writers:
                assert writer.failure is None, f"{writer.name}: {writer.failure!r}"
    for writer in writers:
        assert writer.failure is None, f"{writer.name}: {writer.failure!r}"
        assert not writer.is_alive()
    count = check(read(bootstrap, "plain"), plain)
    committed = check(read(bootstrap, "transactional"), transactional)
    print(f"{kills} kills, {count} records of idempotent producers, {committed} of committed transactions")
    assert kills >= SECONDS // (PAUSE_S + DEAD_S + 5)
    assert min(count, committed) > 100 * kills
