"""Python clients of Kafka, tuned as their documentation advises, at full speed; prints one JSON object.

    usage: kafka_clients.py confluent|aiokafka produce|consume BOOTSTRAP TOPIC RECORDS BATCH_BYTES LINGER_MS

Values are 100 random bytes, made before the clock starts. Producing counts an outcome per record (a delivery callback,
an awaited future); consuming reads `.value` of each record. The clock starts when the client is warm: after 20,000
acknowledged records, or after the first records read, which do not count.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

WARM_RECORDS = 20_000


def make_values(records: int) -> list[bytes]:
    """``records`` values, cycling through 16,384 distinct ones."""
    block = random.Random(1).randbytes(100 * 16384)
    distinct = [block[100 * i : 100 * (i + 1)] for i in range(16384)]
    return (distinct * (records // len(distinct) + 1))[:records]


def confluent_produce(bootstrap: str, topic: str, records: int, batch_bytes: int, linger_ms: int) -> float:
    from confluent_kafka import Producer

    values = make_values(records)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "1",
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    delivered = failed = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal delivered, failed
        if error is None:
            delivered += 1
        else:
            failed += 1

    for value in values[:WARM_RECORDS]:
        producer.produce(topic, value)
    producer.flush()
    started = time.perf_counter()
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % 1000:
            producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - started
    if delivered != records:
        raise SystemExit(f"{delivered} delivered, {failed} failed, of {records}")
    return seconds


def confluent_consume(bootstrap: str, topic: str, records: int) -> float:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 10_485_760,
        }
    )
    # The consumer gets its partitions by ``assign``, because the benchmark does not measure how a consumer joins a
    # group.
    partitions = consumer.list_topics(topic, 20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    read = size = 0
    if not consumer.consume(10_000, 20.0):
        raise SystemExit("no record arrived")
    started = time.perf_counter()
    while read < records:
        messages = consumer.consume(10_000, 20.0)
        if not messages:
            raise SystemExit(f"only {read} of {records} records arrived")
        for message in messages:
            size += len(message.value() or b"")
            read += 1
    seconds = time.perf_counter() - started
    consumer.close()
    assert size >= 100 * records
    return seconds


async def aiokafka_produce(bootstrap: str, topic: str, records: int, batch_bytes: int, linger_ms: int) -> float:
    from aiokafka import AIOKafkaProducer

    values = make_values(records)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=linger_ms, max_batch_size=batch_bytes)
    await producer.start()
    await asyncio.gather(*[await producer.send(topic, value) for value in values[:WARM_RECORDS]])
    started = time.perf_counter()
    outcomes = [await producer.send(topic, value) for value in values]
    await producer.flush()
    await asyncio.gather(*outcomes)
    seconds = time.perf_counter() - started
    await producer.stop()
    return seconds


async def aiokafka_consume(bootstrap: str, topic: str, records: int) -> float:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, group_id=None
    )
    await consumer.start()
    read = size = 0
    if not await consumer.getmany(timeout_ms=20_000):
        raise SystemExit("no record arrived")
    started = time.perf_counter()
    while read < records:
        for messages in (await consumer.getmany(timeout_ms=20_000)).values():
            for message in messages:
                size += len(message.value or b"")
                read += 1
    seconds = time.perf_counter() - started
    await consumer.stop()
    assert size >= 100 * records
    return seconds


def main(
    client: str, workload: str, bootstrap: str, topic: str, records: int, batch_bytes: int, linger_ms: int
) -> None:
    match client, workload:
        case "confluent", "produce":
            seconds = confluent_produce(bootstrap, topic, records, batch_bytes, linger_ms)
        case "confluent", "consume":
            seconds = confluent_consume(bootstrap, topic, records)
        case "aiokafka", "produce":
            seconds = asyncio.run(aiokafka_produce(bootstrap, topic, records, batch_bytes, linger_ms))
        case "aiokafka", "consume":
            seconds = asyncio.run(aiokafka_consume(bootstrap, topic, records))
        case _:
            raise SystemExit(__doc__)
    print(json.dumps({"records": records, "seconds": round(seconds, 4), "records_per_s": round(records / seconds, 1)}))


if __name__ == "__main__":
    if len(sys.argv) != 8:
        raise SystemExit(__doc__)
    main(*sys.argv[1:5], *map(int, sys.argv[5:]))  # type: ignore[arg-type]
