"""The records of bench/pipelines.py, and a client of each system that writes and reads them.

Both systems get the same records in the same partitions: the benchmark chooses each record's partition.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, NamedTuple, Protocol

from kafka_node import KafkaNode

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace_pipelines.clickstream import replay
from headrace_pipelines.clickstream import schema as clickstream
from headrace_pipelines.lake import feed
from headrace_pipelines.lake import schema as lake

PARTITIONS = 2
#: Keep all records: the web log is of 2015, so the default retention would delete its records.
CONFIG = {"retention.ms": "-1"}
#: Settings of the producers on both sides.
PRODUCER = {"acks": "all", "linger.ms": 5}
#: Seconds that a producer may take for its last records.
FLUSH_S = 120
_POLL_S = 0.05


class Sent(NamedTuple):
    """A record to send. Without ``time_ms`` its timestamp is the time at which it is sent."""

    partition: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    time_ms: int | None


Send = Callable[[str, Sent], None]


def log_lines(copies: int) -> list[Sent]:
    """The lines of the web log, each ``copies`` times with different addresses, with the time of the line."""
    found = []
    for line in replay.lines(replay.web_log(), copies):
        headers = [(clickstream.LINE_HEADER, line.name)]
        found.append(Sent(zlib.crc32(line.key) % PARTITIONS, line.key, line.value, headers, line.time_ms))
    return found


def lake_records() -> dict[str, list[Sent]]:
    """The records of both releases of the lake's sources, by topic."""
    content = feed.tables()
    found: dict[str, list[Sent]] = {}
    for source in lake.SOURCES:
        records = found[source.topic] = []
        for release in lake.RELEASES:
            for row in feed.records(content[source.name], source.name, release).to_pylist():
                key = None if row["key"] is None else row["key"].encode()
                partition = len(records) if key is None else zlib.crc32(key)
                records.append(Sent(partition % PARTITIONS, key, row["value"].encode(), [], None))
    return found


class Log(Protocol):
    """A running cluster of one system."""

    def create(self, topics: Iterable[str]) -> None:
        """Create topics with PARTITIONS partitions and one replica."""

    def delete(self, topics: Sequence[str]) -> None: ...

    def producer(self) -> Any:
        """A context manager that gives a function Send. At its end all records are acknowledged, or RuntimeError is
        raised."""

    def read(self, topic: str, ended: Event, take: Callable[[bytes], None]) -> None:
        """Call ``take`` with the value of each committed record of a topic, until the event ``ended`` is set."""


class HeadraceLog:
    def __init__(self, servers: str) -> None:
        self.servers = servers

    def create(self, topics: Iterable[str]) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            new = [NewTopic(name, partitions=PARTITIONS, replication_factor=1, config=CONFIG) for name in topics]
            admin.create_topics(new, timeout=60)

    def delete(self, topics: Sequence[str]) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.delete_topics(topics)

    @contextmanager
    def producer(self) -> Iterator[Send]:
        futures: list[Any] = []
        with Producer({"bootstrap.servers": self.servers, **PRODUCER}) as producer:

            def send(topic: str, sent: Sent) -> None:
                futures.append(
                    producer.send(
                        topic,
                        key=sent.key,
                        value=sent.value,
                        headers=sent.headers,
                        partition=sent.partition,
                        timestamp_ms=sent.time_ms,
                    )
                )

            yield send
            producer.flush(timeout=FLUSH_S)
        for future in futures:
            future.result(timeout=0)

    def read(self, topic: str, ended: Event, take: Callable[[bytes], None]) -> None:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.servers, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            while not ended.is_set():
                for record in consumer.poll(_POLL_S):
                    take(record.value or b"")


class KafkaLog:
    def __init__(self, node: KafkaNode) -> None:
        self._node = node

    def create(self, topics: Iterable[str]) -> None:
        for name in topics:
            self._node.create_topic(name, partitions=PARTITIONS, config=CONFIG)

    def delete(self, topics: Sequence[str]) -> None:
        for name in topics:
            self._node.delete_topic(name)

    @contextmanager
    def producer(self) -> Iterator[Send]:
        from confluent_kafka import Producer

        failures: list[str] = []

        def on_delivery(error: object, message: object) -> None:
            if error is not None:
                failures.append(str(error))

        producer = Producer({"bootstrap.servers": self._node.bootstrap, **PRODUCER})

        def send(topic: str, sent: Sent) -> None:
            while True:
                try:
                    producer.produce(
                        topic,
                        sent.value,
                        sent.key,
                        partition=sent.partition,
                        headers=list(sent.headers),
                        timestamp=sent.time_ms if sent.time_ms is not None else int(time.time() * 1000),
                        on_delivery=on_delivery,
                    )
                    break
                except BufferError:
                    producer.poll(_POLL_S)
            producer.poll(0)

        yield send
        left = producer.flush(FLUSH_S)
        if left or failures:
            raise RuntimeError(f"Kafka: {left} records were not acknowledged, {len(failures)} failed: {failures[:1]}")

    def read(self, topic: str, ended: Event, take: Callable[[bytes], None]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self._node.bootstrap, "group.id": topic, "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        try:
            while not ended.is_set():
                for message in consumer.consume(500, _POLL_S):
                    if message.error():
                        raise KafkaException(message.error())
                    take(message.value() or b"")
        finally:
            consumer.close()
