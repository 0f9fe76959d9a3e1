"""Ports for servers of tests that stop and start again.

A port that the kernel gives (port 0) is of its ephemeral range: while the server is down, any outgoing connection and
any other test may take it.
"""

from __future__ import annotations

from collections import deque

from headrace_tools.local.ports import pick

_given: deque[int] = deque(maxlen=1_000)


def free_port() -> int:
    """A port that no other test worker and no outgoing connection takes, and that this function has not given lately: a
    server of another test would otherwise answer at the port of a stopped one."""
    (port,) = pick(1, avoid=_given)
    _given.append(port)
    return port
