"""Ports that a node can count on: below the range the kernel hands out by itself, and free when we looked.

A port of the ephemeral range may be taken by any outgoing connection between our look and the node's bind, and again
at each restart. Ports below it are taken only by somebody who asked for them, so a node finds its port free when it
comes back. Two starters may still pick the same one: whoever starts nodes retries with other ports (see cluster.py).

Ports lie outside of the kernel's ephemeral range; otherwise an outgoing connection may take a dead node's port before
its restart.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection
from pathlib import Path

from headrace_core.errors import ClusterStartError

_LOWEST = 15_000  # above what well-known services (and Headrace itself: 9095, 19095 ...) ask for by default
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_range() -> tuple[int, int]:
    """First and last port that the kernel gives to outgoing connections; the IANA range where it does not say."""
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return 49_152, 65_535
    return low, high


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Could a server bind ``host:port`` now? Connections in TIME_WAIT do not count, as they do not for gRPC."""
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
    """``count`` different free ports outside the ephemeral range; ClusterStartError when there are none."""
    chance = chance or random.SystemRandom()
    low, high = ephemeral_range()
    below, above = range(_LOWEST, low), range(high + 1, 65_536)
    candidates = [*below, *above] or list(range(_LOWEST, 65_536))  # a range without a rest: take what there is
    chosen: list[int] = []
    for port in chance.sample(candidates, len(candidates)):
        if len(chosen) == count:
            break
        if port not in avoid and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise ClusterStartError(f"no {count} free ports outside of the ephemeral range {low}-{high} on 127.0.0.1")
    return chosen
