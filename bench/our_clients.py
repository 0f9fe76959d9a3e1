"""Headrace's clients as processes of their own: the counterparts of bench/java and of kafka_clients.py.

    connections     many connections, each with one unbatched record in flight
    send, receive   the headline: a steady rate of records, through three replicas
    read            read a topic while another process still writes to it
    transactions    one transaction after the other
    levels          read a topic with both isolation levels in turn

``our_clients.py ROLE '{"argument": ...}'`` prints one JSON object. ``connections()`` and ``headline()`` run
their processes and sum up. Values are random bytes, 100 of them unless said otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headrace_core.rpc import environment  # import headrace_core before grpc: it sets grpc's switches

# isort: split
import grpc.aio
import numpy
import pyarrow as pa
import pyarrow.compute
from measure import PYTHON, percentiles, run_json, settle

from headrace import AsyncProducer, Consumer, Producer, TopicPartition, tune_memory
from headrace_core.records import encode_batch
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.rpc.event_loop import new_event_loop
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, produce_pb2, produce_pb2_grpc

ACKS = {"1": produce_pb2.ACKS_LEADER, "all": produce_pb2.ACKS_ALL}
#: Seconds without a record after which a reader ends.
STALL_S = 30.0


def command(role: str, **arguments: Any) -> list[str]:
    return [PYTHON, __file__, role, json.dumps(arguments)]


def run_role(role: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
    return run_json(command(role, **arguments), timeout_s=timeout_s)


@contextlib.contextmanager
def processes(commands: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes, each of which has printed "ready"; what is left of them is killed at the end of the block."""
    started: list[subprocess.Popen[str]] = []
    try:
        for each in commands:
            started.append(subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stdout = started[-1].stdout
            if stdout is None or stdout.readline().strip() != "ready":
                raise RuntimeError(f"{' '.join(each)}: the client did not start; its error is above")
        yield started
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


# -- connections ------------------------------------------------------------------------------------------------------


async def leaders(bootstrap: str, topic: str) -> list[tuple[int, str]]:
    async with grpc.aio.insecure_channel(bootstrap.split(",")[0], options=COMMON_OPTIONS) as channel:
        answer = await metadata_pb2_grpc.MetadataStub(channel).GetMetadata(  # type: ignore[no-untyped-call]
            metadata_pb2.MetadataRequest(topics=[topic]), timeout=20
        )
    address = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    found = [(p.partition, address[p.leader_id]) for p in answer.topics[0].partitions]
    if not found:
        raise SystemExit(f"topic {topic}: {answer.topics[0].error.message or 'no partitions'}")
    return found


class Connection:
    """A TCP connection with one Produce stream. Every record is encoded and checksummed: the work of a thin client in
    any language."""

    def __init__(self, number: int, topic: str, partition: int, address: str, acks: str) -> None:
        # A unique option keeps gRPC from sharing the connection with an equal channel.
        options = [*COMMON_OPTIONS, ("headrace.bench.connection", number)]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._call = produce_pb2_grpc.ProduceStub(self._channel).Produce()  # type: ignore[no-untyped-call]
        self._topic, self._partition, self._acks = topic, partition, ACKS[acks]
        self._value = random.Random(number).randbytes(100)
        self._correlation_id = 0

    async def send(self) -> None:
        self._correlation_id += 1
        batch = encode_batch([(int(time.time() * 1000), None, self._value, ())])
        part = produce_pb2.ProducePartition(topic=self._topic, partition=self._partition, records=batch)
        request = produce_pb2.ProduceRequest(
            correlation_id=self._correlation_id, acks=self._acks, timeout_ms=30_000, partitions=[part]
        )
        await self._call.write(request)
        answer: Any = await self._call.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError(f"the stream ended: {await self._call.details()}")
        if answer.correlation_id != self._correlation_id or answer.results[0].error.code:
            raise RuntimeError(f"not acknowledged: {answer}")

    async def close(self) -> None:
        await self._call.done_writing()
        await self._channel.close()


class SdkConnection:
    """An AsyncProducer with one record in flight, which may share the SDK's resources."""

    def __init__(self, number: int, topic: str, bootstrap: str, acks: str) -> None:
        self._producer = AsyncProducer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0})
        self._topic = topic
        self._value = random.Random(number).randbytes(100)

    async def send(self) -> None:
        await self._producer.send_and_wait(self._topic, self._value)

    async def close(self) -> None:
        await self._producer.close()


async def _drive(bootstrap: str, topic: str, count: int, seconds: float, acks: str, sdk: bool) -> list[float]:
    """Latencies in ms of all requests, in ascending order; starts on a line from standard input."""
    environment.tune_malloc()
    made: list[Any]
    if sdk:
        made = [SdkConnection(number, topic, bootstrap, acks) for number in range(count)]
    else:
        partitions = await leaders(bootstrap, topic)
        made = [Connection(n, topic, *partitions[n % len(partitions)], acks) for n in range(count)]
    await asyncio.gather(*(connection.send() for connection in made))  # connect, warm up
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    end = time.perf_counter() + seconds
    latencies: list[float] = []

    async def one(connection: Any) -> None:
        before = time.perf_counter()
        while before < end:
            await connection.send()
            after = time.perf_counter()
            latencies.append((after - before) * 1000)
            before = after

    await asyncio.gather(*(one(connection) for connection in made))
    await asyncio.gather(*(connection.close() for connection in made))
    return latencies


def drive_connections(**arguments: Any) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # the same event loop as in the SDK's own thread
        latencies = runner.run(_drive(**arguments))
    return {"requests": len(latencies), "latency_ms": percentiles(latencies)}


def connections(
    bootstrap: str, topic: str, *, count: int = 200, seconds: float = 5.0, acks: str = "1", sdk: bool = False
) -> dict[str, Any]:
    """{"requests_per_s", "latency_ms"} of ``count`` connections in one process, each with one record in flight."""
    settle()
    arguments = {"topic": topic, "count": count, "seconds": seconds, "acks": acks, "sdk": sdk}
    with processes([command("connections", bootstrap=bootstrap, **arguments)]) as (client,):
        go(client)
        found: dict[str, Any] = json.loads(client.communicate(timeout=seconds + 60)[0])
    return {"requests_per_s": round(found["requests"] / seconds, 1), "latency_ms": found["latency_ms"]}


# -- the headline -----------------------------------------------------------------------------------------------------

PORTION_S = 0.005
_STAMP = struct.Struct(">QQ")  # (number of the portion, perf_counter_ns when it was sent)
_MAGIC_BYTES = 8


class Portions:
    """Makes tables of one size from random values. Each table has a new stamp (number and time) in its first and its
    last record."""

    def __init__(self, rows: int, size: int, magic: bytes) -> None:
        self.rows, self._size, self._magic = rows, size, magic
        self._blob = os.urandom(rows * size)
        self._offsets = pa.py_buffer(numpy.arange(rows + 1, dtype=numpy.int32) * numpy.int32(size))

    def table(self, number: int) -> Any:
        blob = bytearray(self._blob)
        stamp = self._magic + _STAMP.pack(number, time.perf_counter_ns())
        for at in (0, (self.rows - 1) * self._size):
            blob[at : at + len(stamp)] = stamp
        buffers = [None, self._offsets, pa.py_buffer(blob)]
        return pa.table({"value": pa.Array.from_buffers(pa.binary(), self.rows, buffers)})


def send(bootstrap: str, topic: str, rate: float, seconds: float, record_bytes: int, magic: str) -> dict[str, Any]:
    """Send on schedule after a line on standard input. ``late_ms``: how late each portion was sent."""
    tune_memory()
    portions = Portions(max(2, int(rate * PORTION_S)), record_bytes, bytes.fromhex(magic))
    count = int(seconds / PORTION_S)
    acked: list[float] = []
    late: list[float] = []
    lock = threading.Lock()

    def timed(begun: float) -> Any:
        def done(future: object) -> None:
            with lock:
                acked.append((time.perf_counter() - begun) * 1e3)

        return done

    with Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0}) as producer:
        producer.partitions_for(topic)
        for number in range(200):  # these records warm up connections and caches; nothing measures or reads them
            producer.send_arrow(topic, portions.table(number)).result(timeout=30)
        print("ready", flush=True)
        sys.stdin.readline()
        begun, used = time.perf_counter(), time.process_time()
        futures = []
        for number in range(count):
            due = begun + number * PORTION_S
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            handed = time.perf_counter()
            late.append((handed - due) * 1e3)
            future = producer.send_arrow(topic, portions.table(number))
            future.add_done_callback(timed(handed))
            futures.append(future)
        producer.flush(timeout=60)
        acknowledged = sum(future.result(timeout=60).record_count for future in futures)
        took = time.perf_counter() - begun
        used = time.process_time() - used
    return {
        "records": acknowledged,
        "cpu_s": round(used, 3),
        "wanted": count * portions.rows,
        "seconds": round(took, 3),
        "acked_ms": percentiles(acked),
        "late_ms": percentiles(late),
    }


def receive(bootstrap: str, topic: str, rate: float, seconds: float, magic: str, **_: object) -> dict[str, Any]:
    """Read every record from now on, until the last portion has arrived."""
    tune_memory()
    mark = bytes.fromhex(magic)
    count = int(seconds / PORTION_S)
    wanted = count * max(2, int(rate * PORTION_S))
    seen = bytearray(count)
    latencies: list[float] = []
    records = 0
    with Consumer({"bootstrap.servers": bootstrap, "check.crcs": True}) as consumer:
        partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        for partition, end in consumer.end_offsets(partitions).items():
            consumer.seek(partition, end)
        consumer.fetch_arrow(timeout=1.0)  # an empty fetch: the cost of streams and first calls is not measured
        print("ready", flush=True)
        last, used = time.monotonic(), time.process_time()
        while records < wanted:
            table = consumer.fetch_arrow(timeout=1.0)
            now = time.perf_counter_ns()
            if not table.num_rows:
                if time.monotonic() - last > STALL_S:
                    break
                continue
            last = time.monotonic()
            values = table["value"]
            for value in values.filter(pa.compute.starts_with(values, mark)).to_pylist():
                number, sent = _STAMP.unpack_from(value, _MAGIC_BYTES)
                seen[number] += 1
                latencies.append((now - sent) / 1e6)
            records += table.num_rows
        used = time.process_time() - used
    return {
        "records": records,
        "cpu_s": round(used, 3),
        "every_stamp_once": seen.count(2) == count,
        "received_ms": percentiles(latencies),
    }


def headline(bootstrap: str, topic: str, *, rate: float, seconds: float, record_bytes: int = 100) -> dict[str, Any]:
    """Latencies at a steady rate: `send_arrow` of the due records every 5 ms, acks=all, and `fetch_arrow`.

    {"records", "records_per_s", "acked_ms", "received_ms", "late_ms", "client_cpu_s", "verified"}. ``acked``: from the
    send of a portion until all its records are acknowledged. ``received``: from the send until the reader has a record,
    for the first and the last of each portion. Verified: every record was acknowledged and read, and every stamp once.
    """
    arguments = {"bootstrap": bootstrap, "topic": topic, "rate": rate, "seconds": seconds}
    arguments |= {"record_bytes": record_bytes, "magic": os.urandom(_MAGIC_BYTES).hex()}
    # The reader starts after the sender's warm-up.
    with processes([command("send", **arguments), command("receive", **arguments)]) as (sender, receiver):
        sent = json.loads(sender.communicate("go\n", timeout=seconds + 120)[0])
        received = json.loads(receiver.communicate(timeout=STALL_S + 60)[0])
    whole = sent["records"] == sent["wanted"] == received["records"]
    return {
        "records": sent["records"],
        "records_per_s": round(sent["records"] / sent["seconds"], 1),
        "acked_ms": sent["acked_ms"],
        "received_ms": received["received_ms"],
        "late_ms": sent["late_ms"],
        "client_cpu_s": sent["cpu_s"] + received["cpu_s"],
        "verified": whole and received["every_stamp_once"],
    }


# -- readers ----------------------------------------------------------------------------------------------------------


def read(bootstrap: str, topic: str, api: str, records: int) -> dict[str, Any]:
    """Read until ``records`` records have arrived (`headrace bench consume` reads only what a topic has). Every CRC is
    checked; "verified" says that the offsets of each partition have no gap."""
    tune_memory()
    seen: Counter[int] = Counter()
    with Consumer({"bootstrap.servers": bootstrap, "check.crcs": True, "auto.offset.reset": "earliest"}) as consumer:
        partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        begun = last = time.monotonic()
        while seen.total() < records and time.monotonic() < last + STALL_S:
            if api == "arrow":
                table = consumer.fetch_arrow(timeout=1.0)
                for batch in table.to_batches():
                    seen.update({batch["partition"][0].as_py(): batch.num_rows})
                count = table.num_rows
            else:
                polled = consumer.poll(timeout=1.0)
                seen.update(record.partition for record in polled)
                count = len(polled)
            if count:
                last = time.monotonic()
        positions = {each.partition: consumer.position(each) for each in partitions}
    whole = all(positions[partition] == count for partition, count in seen.items())
    return {"records_per_s": round(seen.total() / (last - begun)), "verified": whole and seen.total() == records}


LEVELS = ("read_uncommitted", "read_committed")
#: Seconds after which the reading of a whole topic fails.
READ_S = 60.0


def read_levels(bootstrap: str, topic: str, passes: int, api: str) -> dict[str, Any]:
    """Read the topic from start to end ``passes`` times with each isolation level; each second pass begins with
    read_committed. {"records": of one reading, "read_committed": [records per second, ...], "read_uncommitted": ...}.
    """
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    counts = set()
    _read_all(bootstrap, topic, LEVELS[0], api)  # warms up the page cache and this process
    for number in range(passes):
        for level in reversed(LEVELS) if number % 2 else LEVELS:
            count, seconds = _read_all(bootstrap, topic, level, api)
            counts.add(count)
            rates[level].append(round(count / seconds, 1))
    if len(counts) > 1:
        raise AssertionError(f"every transaction was committed, but the readings have {sorted(counts)} records")
    return {"records": counts.pop(), **rates}


def _read_all(bootstrap: str, topic: str, level: str, api: str) -> tuple[int, float]:
    """The number of records, and the seconds from the first request to the end of every partition."""
    records = 0
    with Consumer({"bootstrap.servers": bootstrap, "isolation.level": level, "check.crcs": True}) as consumer:
        partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        begun = time.perf_counter()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            if api == "arrow":
                records += consumer.fetch_arrow(timeout=1.0).num_rows
            else:
                records += len(consumer.poll(timeout=1.0, max_records=50_000))
            if time.perf_counter() - begun > READ_S:
                raise TimeoutError(f"{topic}: {records:,} records with {level} in {READ_S:.0f} s, not at the end")
        return records, time.perf_counter() - begun


# -- transactions -----------------------------------------------------------------------------------------------------

#: Number of records of one ``send_arrow`` call, and of records after which the clock is read.
PORTION, LOOK = 1_000, 64


class Transactions:
    """One producer in a thread of its own. A transaction has ``size`` records, or sends at full speed for ``size``
    milliseconds (``kind``)."""

    def __init__(self, bootstrap: str, topic: str, kind: str, size: int, api: str, number: int, plain: bool) -> None:
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "acks": "all"}
        if not plain:
            config["transactional.id"] = f"{topic}-{number}"
        self.producer = Producer(config)
        self._kind, self._size, self._plain, self._portion = kind, size, plain, LOOK if api == "object" else PORTION
        self._send = self._sender(topic, api, random.Random(number).randbytes(100))
        self.latencies: list[float] = []
        self.records_per_s = self.transactions_per_s = 0.0

    def _sender(self, topic: str, api: str, value: bytes) -> Callable[[int], object]:
        """A function that sends some records."""
        producer = self.producer
        if api == "arrow":
            table = pa.table({"value": pa.array([value] * PORTION, pa.binary())})
            return lambda count: producer.send_arrow(topic, table if count == PORTION else table.slice(0, count))

        def send(count: int) -> None:
            for _ in range(count):
                producer.send(topic, value)

        return send

    def once(self) -> int:
        """Write one transaction; return its number of records."""
        within: AbstractContextManager[None] = nullcontext() if self._plain else self.producer.transaction()
        sent = 0
        with within:
            end = time.perf_counter() + self._size / 1e3
            if self._kind == "ms":
                while time.perf_counter() < end:
                    self._send(self._portion)
                    sent += self._portion
            while self._kind == "records" and sent < self._size:
                count = min(self._size - sent, PORTION)
                self._send(count)
                sent += count
        return sent

    def run(self, start: threading.Barrier, seconds: float) -> None:
        self.once()
        self.producer.flush()
        start.wait()
        begun = before = time.perf_counter()
        end, records = begun + seconds, 0
        while before < end:
            records += self.once()
            after = time.perf_counter()
            self.latencies.append((after - before) * 1e3)
            before = after
        self.producer.flush()
        took = time.perf_counter() - begun
        self.records_per_s, self.transactions_per_s = records / took, len(self.latencies) / took
        self.producer.close()


def transactions(
    bootstrap: str,
    topic: str,
    kind: str,
    size: int,
    producers: int,
    seconds: float,
    api: str = "object",
    plain: bool = False,
) -> dict[str, Any]:
    """Producers that write one transaction after the other, as bench/java/Transactions.java. A latency is the time from
    the begin of a transaction to the end of its commit. ``plain``: without transactions and without a break; waits for
    all acknowledgements at the end of the run."""
    drivers = [Transactions(bootstrap, topic, kind, size, api, number, plain) for number in range(producers)]
    start = threading.Barrier(len(drivers))
    threads = [threading.Thread(target=each.run, args=(start, seconds)) for each in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = percentiles([latency for each in drivers for latency in each.latencies])
    return {
        "records_per_s": round(sum(each.records_per_s for each in drivers), 1),
        "transactions_per_s": round(sum(each.transactions_per_s for each in drivers), 2),
        "latency_ms": {"p50": found["p50"], "p99": found["p99"]},
    }


ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "connections": drive_connections,
    "send": send,
    "receive": receive,
    "read": read,
    "levels": read_levels,
    "transactions": transactions,
}

if __name__ == "__main__":
    print(json.dumps(ROLES[sys.argv[1]](**json.loads(sys.argv[2]))))
