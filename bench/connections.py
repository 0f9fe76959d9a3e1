"""Many connections, each with one unbatched record of 100 random bytes in flight: requests per second, latencies.

    connections.py --bootstrap HOST:PORT --topic T [--connections 200] [--processes 1] [--seconds 5] [--acks 1] [--sdk]

The counterpart of bench/java/SyncProducers.java. Without --sdk each connection is a TCP connection with a Produce
stream, and every record is encoded and checksummed: the work of a thin client in any language. With --sdk each
connection is an AsyncProducer with linger 0, which may share the SDK's resources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Any

from headrace_core.rpc import environment  # import headrace_core before grpc: it sets grpc's switches

# isort: split
import grpc.aio
from measure import emit, settle

from headrace_core.records import encode_batch
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.rpc.event_loop import new_event_loop
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, produce_pb2, produce_pb2_grpc

ACKS = {"1": produce_pb2.ACKS_LEADER, "all": produce_pb2.ACKS_ALL}


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
    """A TCP connection with one Produce stream."""

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
    """An AsyncProducer with one record in flight."""

    def __init__(self, number: int, topic: str, bootstrap: str, acks: str) -> None:
        from headrace import AsyncProducer

        self._producer = AsyncProducer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0})
        self._topic = topic
        self._value = random.Random(number).randbytes(100)

    async def send(self) -> None:
        await self._producer.send_and_wait(self._topic, self._value) if hasattr(
            self._producer, "send_and_wait"
        ) else await (await self._producer.send(self._topic, self._value))

    async def close(self) -> None:
        await self._producer.close()


async def drive(
    bootstrap: str, topic: str, numbers: range, seconds: float, acks: str, sdk: bool
) -> tuple[int, list[float]]:
    """(requests, latencies in ms) of the connections ``numbers``; starts on a line from standard input."""
    environment.tune_malloc()
    if sdk:
        connections: list[Any] = [SdkConnection(number, topic, bootstrap, acks) for number in numbers]
    else:
        partitions = await leaders(bootstrap, topic)
        connections = [Connection(n, topic, *partitions[n % len(partitions)], acks) for n in numbers]
    await asyncio.gather(*(connection.send() for connection in connections))  # connect, warm up
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

    await asyncio.gather(*(one(connection) for connection in connections))
    await asyncio.gather(*(connection.close() for connection in connections))
    return len(latencies), sorted(latencies)


def measure(
    bootstrap: str,
    topic: str,
    *,
    connections: int = 200,
    processes: int = 1,
    seconds: float = 5.0,
    acks: str = "1",
    sdk: bool = False,
) -> dict[str, Any]:
    """Run the client processes side by side; {"requests_per_s", "latency_ms": {"p50", "p99"}, ...}."""
    settle()
    started = []
    share = connections // processes
    try:
        for process in range(processes):
            command = [sys.executable, __file__, "drive", bootstrap, topic, str(process * share), str(share)]
            command += [str(seconds), acks, str(int(sdk))]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline().strip() != "ready":
                raise RuntimeError("a client of the connections benchmark did not start; its error is above")
        for one in started:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        results = [json.loads(one.communicate(timeout=seconds + 60)[0]) for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()
    latencies = sorted(latency for result in results for latency in result["latencies"])
    requests = sum(result["requests"] for result in results)
    return {
        "workload": "connections",
        "connections": share * processes,
        "processes": processes,
        "client": "sdk" if sdk else "raw",
        "requests": requests,
        "requests_per_s": round(requests / seconds, 1),
        "latency_ms": {
            "p50": round(latencies[len(latencies) // 2], 3),
            "p99": round(latencies[int(len(latencies) * 0.99)], 3),
        },
    }


def main() -> None:
    if sys.argv[1:2] == ["drive"]:
        bootstrap, topic, first, share, seconds, acks, sdk = sys.argv[2:]
        numbers = range(int(first), int(first) + int(share))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:  # the same event loop as in the SDK's own thread
            requests, latencies = runner.run(drive(bootstrap, topic, numbers, float(seconds), acks, sdk == "1"))
        print(json.dumps({"requests": requests, "latencies": [round(latency, 3) for latency in latencies]}))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--acks", choices=sorted(ACKS), default="1")
    parser.add_argument("--sdk", action="store_true")
    asked = parser.parse_args()
    emit(
        **measure(
            asked.bootstrap,
            asked.topic,
            connections=asked.connections,
            processes=asked.processes,
            seconds=asked.seconds,
            acks=asked.acks,
            sdk=asked.sdk,
        )
    )


if __name__ == "__main__":
    main()
