"""Ports on which nodes can rely: free now, and outside of the kernel's ephemeral range.

An outgoing connection may take a port of the ephemeral range after the check of the port and before the node's bind, or
while a node is down. A port below the ephemeral range is taken only by a process that asks for it, so a restarted node
finds its port free again. Two commands may pick the same port at the same time, so callers retry with different ports
(see directory.py). Each worker of pytest-xdist uses separate ports: parallel tests start and kill nodes all the time.
With shared ports, one worker's cluster would take the ports of another worker's dead nodes.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Collection
from pathlib import Path

from headrace_core.errors import ClusterStartError

_LOWEST = 15_000  # Lowest port: above the default ports of well-known services and of Headrace (9095, 19095 ...)
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_range() -> tuple[int, int]:
    """The first and the last port that the kernel gives to outgoing connections; the IANA range if the kernel does not
    say."""
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return 49_152, 65_535
    return low, high


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind ``host:port`` now. Connections in TIME_WAIT do not count, because gRPC binds in spite
    of such connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def pick(count: int, *, avoid: Collection[int] = (), chance: random.Random | None = None) -> list[int]:
    """Pick ``count`` different free ports outside of the ephemeral range. Raises ClusterStartError when fewer than
    ``count`` ports are free."""
    chance = chance or random.SystemRandom()
    low, high = ephemeral_range()
    below, above = range(_LOWEST, low), range(high + 1, 65_536)
    # The ephemeral range covers all ports, so use ports in it.
    candidates = _of_this_worker([*below, *above] or list(range(_LOWEST, 65_536)))
    chosen: list[int] = []
    for port in chance.sample(candidates, len(candidates)):
        if len(chosen) == count:
            break
        if port not in avoid and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise ClusterStartError(
            f"no {count} free ports outside of the ephemeral range {low}-{high} on 127.0.0.1; "
            "stop clusters that you do not need"
        )
    return chosen


def _of_this_worker(ports: list[int]) -> list[int]:
    """The ports that a pytest-xdist worker may use; all ports in a process that is not such a worker. Child processes
    of a worker inherit the variables that pytest-xdist sets."""
    name, count = os.environ.get("PYTEST_XDIST_WORKER", ""), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    number = name.removeprefix("gw")
    if not (number.isdigit() and count.isdigit() and int(count) > 0):
        return ports
    return [port for port in ports if port % int(count) == int(number) % int(count)]
