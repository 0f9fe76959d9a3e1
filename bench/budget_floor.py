"""The floor of gRPC for bench/budget.py: the server of bench/echo.py, and a client that sends on command.

    budget_floor.py serve     prints its port, and serves until standard input closes
    budget_floor.py PORT      each line "COUNT BYTES" on standard input sends COUNT messages with a payload of BYTES on
                              one stream, one in flight, and then prints "done"

Messages, channel options, process switches and the event loop are those of the product.
"""

from __future__ import annotations

import asyncio
import sys

# Import before grpc, because this import sets grpc's switches.
from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_core.rpc.environment import tune_malloc
from headrace_core.rpc.event_loop import new_event_loop

# isort: split
import echo


async def serve_commands(port: int) -> None:
    tune_malloc()
    channel = open_channel(f"127.0.0.1:{port}", ChannelPurpose.PRODUCE)
    request, response = echo._MESSAGES["up"]
    call = channel.stream_stream(
        echo._method("up"), request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )()
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, size = map(int, line.split())
        payload = bytes(size)
        for _ in range(count):
            await call.write(echo._request("up", payload))
            await call.read()
        print("done", flush=True)
    await call.done_writing()
    await channel.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(echo.serve() if sys.argv[1] == "serve" else serve_commands(int(sys.argv[1])))
