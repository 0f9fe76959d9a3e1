"""A Kafka client with aiokafka.

    python -m tests.integration.kafka_protocol.aiokafka_client COMMAND BOOTSTRAP TOPIC ...

    produce ... COUNT                  0: until the standard input closes
    group ... GROUP classic            a member, until the standard input closes
    copy ... TARGET GROUP ID COUNT classic   in transactions; the first one is aborted
    read ... ISOLATION PARTITIONS      until the last record of each partition

client_events.py says what it prints.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError

from tests.integration.kafka_protocol import client_events as events

GROUP: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
}


async def produce(servers: str, topic: str, count: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        pending = []
        for number in events.numbers(int(count)):
            key, value, headers = events.record(number)
            pending.append((key, value, await producer.send(topic, value, key=key, headers=headers)))
            await asyncio.sleep(0)
        for key, value, future in pending:
            acknowledged = await future
            events.sent(acknowledged.partition, acknowledged.offset, key, value)


async def group(servers: str, topic: str, name: str, _protocol: str) -> None:
    closed = events.stdin_closed()
    async with AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=name, **GROUP) as member:
        while not closed.is_set():
            found = await member.getmany(timeout_ms=100)
            for records in found.values():
                for each in records:
                    events.read(each.partition, each.offset, each.key, each.value, each.headers)
            following = {partition: records[-1].offset + 1 for partition, records in found.items()}
            if not following:
                continue
            try:
                await member.commit(following)
            except CommitFailedError as error:
                events.show("refused", repr(error))  # another member reads these records again
            else:
                for partition, offset in following.items():
                    events.committed(partition.partition, offset)


async def copy(servers: str, source: str, target: str, name: str, identity: str, count: str, _protocol: str) -> None:
    left, aborted = int(count), False
    consumer = AIOKafkaConsumer(
        source, bootstrap_servers=servers, group_id=name, isolation_level="read_committed", **GROUP
    )
    async with consumer, AIOKafkaProducer(bootstrap_servers=servers, transactional_id=identity) as producer:
        while left > 0:
            found = await consumer.getmany(timeout_ms=200)
            if not found:
                continue
            await producer.begin_transaction()
            size = sum(map(len, found.values()))
            for records in found.values():
                for each in records:
                    await producer.send(target, each.value.upper(), key=each.key, headers=[*each.headers])
            following = {partition: records[-1].offset + 1 for partition, records in found.items()}
            await producer.send_offsets_to_transaction(following, name)
            await producer.flush()
            if aborted:
                await producer.commit_transaction()
                left -= size
                events.show("copied", size)
                continue
            await producer.abort_transaction()
            aborted = True
            events.show("aborted", size)
            for partition, records in found.items():
                consumer.seek(partition, records[0].offset)


async def read(servers: str, topic: str, isolation: str, partitions: str) -> None:
    left = int(partitions)
    async with AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation) as reader:
        reader.assign([TopicPartition(topic, number) for number in range(left)])
        await reader.seek_to_beginning()
        while left > 0:
            for records in (await reader.getmany(timeout_ms=200)).values():
                for each in records:
                    if each.value == events.END:
                        left -= 1
                    else:
                        events.read(each.partition, each.offset, each.key, each.value, each.headers)


if __name__ == "__main__":
    commands: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "produce": produce,
        "group": group,
        "copy": copy,
        "read": read,
    }
    asyncio.run(commands[sys.argv[1]](*sys.argv[2:]))
