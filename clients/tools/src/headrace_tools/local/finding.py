"""Find the cluster on this machine, for commands that were given no address.

A command without an address uses 127.0.0.1:9095, like the SDK: the address of the first broker that `headrace up`
starts. If the broker at the default address is dead but other nodes run, ``cluster.json`` lists the other brokers. A
command without an address never uses another cluster, so that it reaches the same cluster as a program on this machine.
Clusters are found in the default data directory, and by the command lines of running nodes (Linux). This module imports
only light modules, because it runs before every command.
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
    directory: Path
    state: ClusterState


@dataclass(frozen=True, slots=True)
class Here:
    """``meant``: the cluster at the default address, if that cluster is on this machine. ``other``: a different cluster
    that runs in the data directory; the user may mistake it for the cluster at the default address."""

    meant: Running | None
    other: Running | None


def listens(address: str) -> bool:
    """Whether a process accepts connections at ``address`` (host:port, this machine). ``listens`` blocks for at most a
    second."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def clusters_here(default: str, *, candidates: Callable[[], Iterator[Path]] | None = None) -> Here:
    """Find the local clusters for a command that uses the address ``default``. A cluster whose broker at ``default`` is
    dead is left out if another process listens at that address now. If two clusters outside the data directory have the
    default address, both are left out, because the choice is ambiguous."""
    answers: list[bool] = []

    def is_meant(cluster: Running) -> bool:
        first = _broker_at(default, cluster.state)
        if first is None or first.alive():
            return first is not None
        if not answers:
            answers.append(listens(default))
        return not answers[0]

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
    """The addresses of all brokers of the cluster, running ones first."""
    brokers: list[Node] = sorted(state.of_role("broker"), key=lambda node: not node.alive())
    return ",".join(node.address for node in brokers)


def _broker_at(address: str, state: ClusterState) -> Node | None:
    return next((broker for broker in state.of_role("broker") if broker.address == address), None)


def _running(directory: Path) -> Running | None:
    try:
        state = StateFile(directory).read()
    # The directory is damaged, or is not a cluster of Headrace: commands that use the directory report the error.
    except (OSError, ClusterStartError):
        return None
    if state is None or not any(broker.alive() for broker in state.of_role("broker")):
        return None  # a cluster without a live broker: its controllers serve no client
    return Running(directory, state)


def _directories_of_processes() -> Iterator[Path]:
    """The directories of the clusters whose nodes run on this machine under the same user; empty without /proc."""
    if not sys.platform.startswith("linux"):
        return
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # the process may have ended
            if entry.stat().st_uid != os.getuid():
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"--config" in words[:-1] and any(module in words for module in _MODULES):
                config = Path(os.fsdecode(words[words.index(b"--config") + 1]))
                if config.is_absolute():
                    yield config.parent.parent
