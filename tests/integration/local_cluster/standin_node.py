"""A stand-in for a node in tests of supervision. The stand-in listens at the addresses of its properties file, and
misbehaves on request.

python standin_node.py BEHAVIOUR --config FILE      behaviours: serve, die, silent, stubborn
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from headrace_core.node.listeners import parse_listeners
from headrace_core.node.properties import read_properties
from headrace_core.rpc.server import Listener


async def main() -> int:
    behaviour, config = sys.argv[1], Path(sys.argv[3])
    properties = read_properties(config)
    print(f"stand-in {properties['process.roles']} {properties['node.id']} ({behaviour})", flush=True)
    if behaviour == "die":
        print("log.dirs: the disk is on fire", flush=True)
        return 1
    stop = asyncio.Event()
    ends = [signal.SIGINT] if behaviour == "stubborn" else [signal.SIGINT, signal.SIGTERM]
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in ends:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listeners = [
        Listener(each.name, each.host, each.port) for each in parse_listeners(properties["listeners"].split(","))
    ]
    for listener in listeners:
        try:
            await listener.start()
        except OSError as error:
            print(error, flush=True)
            return 1
        await listener.serving(behaviour != "silent")
    await stop.wait()
    for listener in listeners:
        await listener.stop(0)
    print("stopped cleanly", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
