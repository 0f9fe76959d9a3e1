"""The cluster that runs on this machine, for commands that were not told where theirs is.

A command without an address asks 127.0.0.1:9095, as the SDK does: the first broker that `headrace up` starts. When just
that one is dead the others would answer, and ``cluster.json`` knows them all. So of the clusters on this machine the
one is meant that has its first broker there, and no other: what a command changes must be what a program next to it
would see. A cluster is found in the data directory that commands take without being told, or by the command lines of
the nodes that run (Linux). Imports nothing heavy: it runs before every command.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace_core.errors import ClusterStartError

from .state import ClusterState, Node, StateFile

DEFAULT_DATA = Path("headrace-data")
DATA_VARIABLE = "HEADRACE_DATA"
_PROC = Path("/proc")
_MODULES = (b"headrace_controller", b"headrace_broker", b"headrace_coordinator")


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster of which a broker runs, and its directory."""

    directory: Path
    state: ClusterState


@dataclass(frozen=True, slots=True)
class Here:
    """``meant``: the cluster at the default address, if it is of this machine. ``other``: the one in the data
    directory, if it runs and is another one: whoever stands there may take it for the one that is asked."""

    meant: Running | None
    other: Running | None


def listens(address: str) -> bool:
    """Does anybody take connections at ``address`` (host:port, this machine)? Blocks for a second at most."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def clusters_here(default: str, *, candidates: Callable[[], Iterator[Path]] | None = None) -> Here:
    """What of this machine a command at ``default`` means, and what not. A cluster whose broker at ``default`` is dead
    is not meant when somebody else listens there by now. Of two that are dead there, both outside of the data
    directory, nobody can tell which: neither."""
    heard: list[bool] = []

    def is_meant(cluster: Running) -> bool:
        first = _broker_at(default, cluster.state)
        if first is None or first.alive():
            return first is not None
        if not heard:
            heard.append(listens(default))
        return not heard[0]

    own = _running(Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA))
    if own is not None and is_meant(own):
        return Here(own, None)
    found = []
    for directory in dict.fromkeys((candidates or _directories_of_processes)()):
        each = _running(directory)
        if each is not None and (first := _broker_at(default, each.state)) is not None and is_meant(each):
            found.append((first.alive(), each))
    living = [each for alive, each in found if alive]
    dead = [each for alive, each in found if not alive]
    meant = living[0] if living else dead[0] if len(dead) == 1 else None
    return Here(meant, own)


def bootstrap_servers(state: ClusterState) -> str:
    """All its brokers, those that run first."""
    brokers: list[Node] = sorted(state.of_role("broker"), key=lambda node: not node.alive())
    return ",".join(node.address for node in brokers)


def _broker_at(address: str, state: ClusterState) -> Node | None:
    return next((broker for broker in state.of_role("broker") if broker.address == address), None)


def _running(directory: Path) -> Running | None:
    try:
        state = StateFile(directory).read()
    except (OSError, ClusterStartError):  # somebody else's, or damaged: whoever works on it says so
        return None
    if state is None or not any(broker.alive() for broker in state.of_role("broker")):
        return None  # its controllers alone answer no client, and would hide who does
    return Running(directory, state)


def _directories_of_processes() -> Iterator[Path]:
    """Where our own nodes that run have their configuration; nothing where there is no /proc."""
    if not sys.platform.startswith("linux"):
        return
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            if entry.stat().st_uid != os.getuid():
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"--config" in words[:-1] and any(module in words for module in _MODULES):
                config = Path(os.fsdecode(words[words.index(b"--config") + 1]))
                if config.is_absolute():
                    yield config.parent.parent
