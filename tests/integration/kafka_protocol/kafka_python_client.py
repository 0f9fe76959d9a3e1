"""A Kafka client with kafka-python.

    python -m tests.integration.kafka_protocol.kafka_python_client COMMAND BOOTSTRAP TOPIC ...

    produce ... COUNT                  0: until the standard input closes
    group ... GROUP classic            a member, until the standard input closes
    copy ... TARGET GROUP ID COUNT classic   in transactions; the first one is aborted
    read ... ISOLATION PARTITIONS      until the last record of each partition

client_events.py says what it prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import CommitFailedError

from tests.integration.kafka_protocol import client_events as events

GROUP: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
}


def next_offsets(found: dict[Any, list[Any]]) -> dict[Any, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in found.items()}


def produce(servers: str, topic: str, count: str) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)
    pending = []
    for number in events.numbers(int(count)):
        key, value, headers = events.record(number)
        pending.append((key, value, producer.send(topic, value, key=key, headers=headers)))
    for key, value, future in pending:
        acknowledged = future.get(60)
        events.sent(acknowledged.partition, acknowledged.offset, key, value)
    producer.close()


def group(servers: str, topic: str, name: str, _protocol: str) -> None:
    closed = events.stdin_closed()
    member = KafkaConsumer(topic, bootstrap_servers=servers, group_id=name, **GROUP)
    while not closed.is_set():
        found = member.poll(timeout_ms=100)
        for records in found.values():
            for each in records:
                events.read(each.partition, each.offset, each.key, each.value, each.headers)
        if not found:
            continue
        following = next_offsets(found)
        try:
            member.commit(following)
        except CommitFailedError as error:
            events.show("refused", repr(error))  # another member reads these records again
        else:
            for partition, next_one in following.items():
                events.committed(partition.partition, next_one.offset)
    member.close()


def copy(servers: str, source: str, target: str, name: str, identity: str, count: str, _protocol: str) -> None:
    left, aborted = int(count), False
    consumer = KafkaConsumer(
        source, bootstrap_servers=servers, group_id=name, isolation_level="read_committed", **GROUP
    )
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=identity)
    producer.init_transactions()
    while left > 0:
        found = consumer.poll(timeout_ms=200)
        if not found:
            continue
        producer.begin_transaction()
        size = sum(map(len, found.values()))
        for records in found.values():
            for each in records:
                producer.send(target, each.value.upper(), key=each.key, headers=each.headers)
        producer.send_offsets_to_transaction(next_offsets(found), consumer.group_metadata())
        producer.flush()
        if aborted:
            producer.commit_transaction()
            left -= size
            events.show("copied", size)
            continue
        producer.abort_transaction()
        aborted = True
        events.show("aborted", size)
        for partition, records in found.items():
            consumer.seek(partition, records[0].offset)
    consumer.close()
    producer.close()


def read(servers: str, topic: str, isolation: str, partitions: str) -> None:
    left = int(partitions)
    reader = KafkaConsumer(bootstrap_servers=servers, isolation_level=isolation, group_id=None)
    reader.assign([TopicPartition(topic, number) for number in range(left)])
    reader.seek_to_beginning()
    while left > 0:
        for records in reader.poll(timeout_ms=200).values():
            for each in records:
                if each.value == events.END:
                    left -= 1
                else:
                    events.read(each.partition, each.offset, each.key, each.value, each.headers)
    reader.close()


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"produce": produce, "group": group, "copy": copy, "read": read}
    commands[sys.argv[1]](*sys.argv[2:])
