"""How long commands about groups wait for coordinators."""

from __future__ import annotations

import socket
from typing import Any

from headrace_core.errors import HeadraceError

#: What a coordinator that dies has a successor within, generously.
TIMEOUT_S = 15.0
#: When none lives there is no successor either: somebody may just be starting one, and more is not to be hoped for.
NOBODY_S = 3.0


def patience_s(client: Any, timeout_s: float) -> float:
    """``timeout_s``, or less when it is the default and no coordinator lives, or none of those that are said to
    listens: then whoever asked is told soon."""
    if timeout_s != TIMEOUT_S:
        return timeout_s
    try:
        cluster = client.describe_cluster(timeout=timeout_s)
    except HeadraceError:  # the command itself will say so
        return timeout_s
    return timeout_s if any(_listens(each.host, each.port) for each in cluster.coordinators) else NOBODY_S


def _listens(host: str, port: int) -> bool:
    """False for a process that is gone, of which the controllers may not know yet. One that is silent counts: it may
    only be slow, or have a successor when its session ends."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True
