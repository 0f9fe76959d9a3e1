"""The cluster that runs on this machine, for commands that were not told where theirs is.

A command without an address asks 127.0.0.1:9095, which is the first broker that `headrace up` starts; when just that
one is dead the others would have answered. ``cluster.json`` knows them all, and is found in the data directory that
commands take without being told, or by the command lines of the nodes that run (Linux). Imports nothing heavy: it runs
before every command.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace_core.errors import ClusterStartError

from .state import ClusterState, Node, StateFile

DEFAULT_DATA = Path("headrace-data")
DATA_VARIABLE = "HEADRACE_DATA"
_PROC = Path("/proc")
_MODULES = (b"headrace_controller", b"headrace_broker", b"headrace_coordinator")


def running_cluster(
    default: str, *, data: Path | None = None, candidates: Callable[[], Iterator[Path]] | None = None
) -> tuple[Path, ClusterState] | None:
    """A cluster of which a node runs, and its directory: the one in ``data`` (None: where commands look by themselves),
    else one that has a broker at ``default``. None: there is none, or nobody can tell."""
    own = _running(data or Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA))
    if own is not None:
        return own
    found = []
    for directory in dict.fromkeys((candidates or _directories_of_processes)()):
        other = _running(directory)
        if other is not None and any(broker.address == default for broker in other[1].of_role("broker")):
            found.append(other)
    # Two may have been given the same port at different times: the one that listens there now is meant.
    found.sort(key=lambda each: not any(node.address == default and node.alive() for node in each[1].nodes))
    return found[0] if found else None


def bootstrap_servers(state: ClusterState) -> str:
    """All its brokers, those that run first."""
    brokers: list[Node] = sorted(state.of_role("broker"), key=lambda node: not node.alive())
    return ",".join(node.address for node in brokers)


def _running(directory: Path) -> tuple[Path, ClusterState] | None:
    try:
        state = StateFile(directory).read()
    except (OSError, ClusterStartError):  # somebody else's, or damaged: whoever works on it says so
        return None
    return None if state is None or not any(node.alive() for node in state.nodes) else (directory, state)


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
