"""Measure the upper limit of gRPC: the messages, streams and processes of Headrace's data path, without its other work.

    echo.py [--direction up|down|echo|all] [--bytes N] [--streams N] [--apart] [--processes N] [--in-flight N]
            [--seconds S]

One server process and N client processes, grpc.aio on both sides, the protos' messages with one `bytes` field, and the
channel options and process switches of the product.

    up      payload to the server, a small answer back: the limit of Produce
    down    a small request, payload back: the limit of Fetch
    echo    payload both ways; counted once

The streams of a process share a connection; with --apart each stream has a connection of its own.

Prints one JSON object per direction: messages/s and MiB/s of payload.

    echo.py floor             (budget.py) a server with the product's event loop
    echo.py command PORT      (budget.py) each line "COUNT BYTES" on standard input sends COUNT messages with a payload
                              of BYTES on one stream, one in flight, and then prints "done"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

# Import before grpc, because this import sets grpc's switches.
from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.rpc.environment import tune_malloc
from headrace_core.rpc.event_loop import new_event_loop

# isort: split
import grpc
import grpc.aio
from measure import emit

from headrace_protos.v1 import fetch_pb2, produce_pb2

DIRECTIONS = ("up", "down", "echo")


def _method(direction: str) -> str:
    return f"/headrace.bench.Raw/{direction.capitalize()}"


#: direction -> (request class, response class)
_MESSAGES: dict[str, tuple[Any, Any]] = {
    "up": (produce_pb2.ProduceRequest, produce_pb2.ProduceResponse),
    "down": (fetch_pb2.FetchRequest, fetch_pb2.FetchResponse),
    "echo": (produce_pb2.ProduceRequest, produce_pb2.ProduceRequest),
}


def _request(direction: str, payload: bytes) -> Any:
    if direction == "down":
        return fetch_pb2.FetchRequest(correlation_id=1, max_bytes=len(payload))
    part = produce_pb2.ProducePartition(topic="raw", partition=1, records=payload)
    return produce_pb2.ProduceRequest(correlation_id=1, acks=produce_pb2.ACKS_LEADER, partitions=[part])


class _Raw(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers without parsing."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        for direction in DIRECTIONS:
            if handler_call_details.method == _method(direction):
                request, response = _MESSAGES[direction]
                return grpc.stream_stream_rpc_method_handler(
                    getattr(self, direction),
                    request_deserializer=request.FromString,
                    response_serializer=response.SerializeToString,
                )
        return None

    async def up(self, first: Any, context: Any) -> None:
        answer = produce_pb2.ProduceResponse(
            correlation_id=1, results=[produce_pb2.ProducePartitionResult(topic="raw", partition=1, base_offset=1)]
        )
        while (await context.read()) is not grpc.aio.EOF:
            await context.write(answer)

    async def down(self, first: Any, context: Any) -> None:
        payload = b""
        while (request := await context.read()) is not grpc.aio.EOF:
            if len(payload) != request.max_bytes:
                payload = bytes(request.max_bytes)
            result = fetch_pb2.FetchPartitionResult(topic="raw", partition=1, next_offset=1, records=payload)
            await context.write(fetch_pb2.FetchResponse(correlation_id=1, results=[result]))

    async def echo(self, first: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)


async def serve() -> None:
    """Serve until standard input closes; prints the port."""
    tune_malloc()
    server = grpc.aio.server(options=[*COMMON_OPTIONS, ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Raw(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


async def _drive_stream(
    channel: grpc.aio.Channel, direction: str, size: int, in_flight: int, until: float
) -> list[float]:
    """Arrival times of answers, until the time ``until``."""
    request, response = _MESSAGES[direction]
    call = channel.stream_stream(
        _method(direction), request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )()
    payload = bytes(size)
    window = asyncio.Semaphore(in_flight)
    answered: list[float] = []

    async def write() -> None:
        while time.perf_counter() < until:
            await window.acquire()
            await call.write(_request(direction, payload))
        await call.done_writing()

    writing = asyncio.create_task(write())
    while (await call.read()) is not grpc.aio.EOF:
        window.release()
        answered.append(time.perf_counter())
    await writing
    return answered


async def drive(
    port: int, direction: str, size: int, streams: int, in_flight: int, seconds: float, *, apart: bool
) -> None:
    """One client process: waits for a line on standard input, then prints messages per second of the measured time."""
    tune_malloc()
    channels = [
        open_channel(f"127.0.0.1:{port}", ChannelPurpose.PRODUCE, has_own_connection=apart)
        for _ in range(streams if apart else 1)
    ]
    for channel in channels:
        await channel.channel_ready()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    warm_s = min(0.5, seconds / 4)
    start = time.perf_counter() + warm_s
    end = start + seconds
    each = [channels[number % len(channels)] for number in range(streams)]
    answered = await asyncio.gather(*(_drive_stream(channel, direction, size, in_flight, end) for channel in each))
    counted = sum(start <= moment < end for stream in answered for moment in stream)
    print(json.dumps({"messages_per_s": counted / seconds}), flush=True)
    for channel in channels:
        await channel.close()


async def serve_commands(port: int) -> None:
    tune_malloc()
    channel = open_channel(f"127.0.0.1:{port}", ChannelPurpose.PRODUCE)
    request, response = _MESSAGES["up"]
    call = channel.stream_stream(
        _method("up"), request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )()
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, size = map(int, line.split())
        payload = bytes(size)
        for _ in range(count):
            await call.write(_request("up", payload))
            await call.read()
        print("done", flush=True)
    await call.done_writing()
    await channel.close()


def measure(
    direction: str,
    *,
    size: int,
    streams: int = 1,
    apart: bool = False,
    processes: int = 1,
    in_flight: int = 8,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Run server and clients as processes; returns the sum over the clients."""
    server = subprocess.Popen(
        [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    clients = []
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        arguments = [port, direction, str(size), str(streams), str(in_flight), str(seconds), str(int(apart))]
        command = [sys.executable, __file__, "drive", *arguments]
        for _ in range(processes):
            clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))  # noqa: PERF401
        for client in clients:
            assert client.stdout is not None
            if client.stdout.readline().strip() != "ready":
                raise RuntimeError("an echo client did not start")
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        rates = [json.loads(client.communicate(timeout=seconds + 60)[0])["messages_per_s"] for client in clients]
    finally:
        for process in (*clients, server):
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    rate = sum(rates)
    return {
        "workload": f"echo-{direction}",
        "bytes": size,
        "streams": streams,
        "connections": processes * (streams if apart else 1),
        "processes": processes,
        "in_flight": in_flight,
        "messages_per_s": round(rate, 1),
        "mib_per_s": round(rate * size / 2**20, 1),
    }


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve())
        return
    if sys.argv[1:2] in (["floor"], ["command"]):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:  # the event loop of the product
            runner.run(serve() if sys.argv[1] == "floor" else serve_commands(int(sys.argv[2])))
        return
    if sys.argv[1:2] == ["drive"]:
        port, direction, size, streams, in_flight, seconds, apart = sys.argv[2:]
        asyncio.run(
            drive(int(port), direction, int(size), int(streams), int(in_flight), float(seconds), apart=apart == "1")
        )
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direction", choices=[*DIRECTIONS, "all"], default="all")
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="one connection for each stream")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    asked = parser.parse_args()
    for direction in DIRECTIONS if asked.direction == "all" else [asked.direction]:
        found = measure(
            direction,
            size=asked.bytes,
            streams=asked.streams,
            apart=asked.apart,
            processes=asked.processes,
            in_flight=asked.in_flight,
            seconds=asked.seconds,
        )
        emit(**found)


if __name__ == "__main__":
    main()
