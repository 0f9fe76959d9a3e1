"""Nodes within this process (``LocalCluster(mode="inprocess")``): the production services on one thread's event loop.

Up in a fifth of a second, for tests by the hundred. It is the same code over the same files and sockets; what it cannot
do is die like a process: ``kill`` cancels a node where it stands and closes its files as a failed start would, and
nothing can be paused. To each other and to clients the nodes are what they always are, at addresses of their own.

``Runner`` starts them and hands out a handle that looks like a process (processes.ProcessId): alive, signal, wait. The
handles are kept here and not in ``cluster.json``, where they would mean this whole process to somebody else's `down`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace_core.errors import UnsupportedVersionError

from . import nodes as node_files
from .directory import ClusterDirectory
from .state import ClusterState, Node, StateFile


class NodeHandle:
    """One node's life. ``pid`` is that of this process. Why it failed is a line in ``log``."""

    def __init__(self, task: asyncio.Task[None], stop: asyncio.Event, log: Path) -> None:
        self.pid = os.getpid()
        self._loop, self._task, self._stop, self._log = task.get_loop(), task, stop, log
        self._gone = threading.Event()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            with self._log.open("a") as log:
                log.write(f"{type(error).__name__}: {error}\n")
        self._gone.set()

    def alive(self) -> bool:
        return not self._gone.is_set()

    def signal(self, number: signal.Signals) -> bool:
        """SIGTERM stops it cleanly, SIGKILL cancels it; False when it is gone."""
        if number is signal.SIGSTOP:
            raise UnsupportedVersionError("a node within this process cannot be paused; use mode='process'")
        if not self.alive():
            return False
        if number is signal.SIGTERM:
            self._loop.call_soon_threadsafe(self._stop.set)
        elif number is signal.SIGKILL:
            self._loop.call_soon_threadsafe(self._task.cancel)
        return True

    def wait(self, timeout_s: float) -> bool:
        """True when it is gone."""
        return self._gone.wait(timeout_s)


class Runner:
    """The thread with the loop; it ends with the process, or with ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace nodes", daemon=True)
        self._thread.start()

    def start(self, node: Node, *, config: Path, log: Path) -> NodeHandle:
        """Start a node as its program would be started."""
        # Imported in the caller's thread, and not while other nodes of the loop wait for it.
        from headrace_core.node.config import NodeConfig
        from headrace_core.node.properties import read_properties

        if node.role == "controller":
            from headrace_controller.app import serve
        elif node.role == "coordinator":
            from headrace_coordinator.app import serve
        else:
            from headrace_broker.app import serve

        async def begin() -> NodeHandle:
            stop = asyncio.Event()
            values = NodeConfig.from_properties(read_properties(config), role=node.role)
            return NodeHandle(asyncio.ensure_future(serve(values, stop)), stop, log)

        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result()

    def close(self) -> None:
        """After the nodes have ended; waits for the threads that they handed work to."""
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)


class _StateFile(StateFile):
    """``cluster.json`` without processes; those of this process are put back in when it is read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._handles: dict[str, NodeHandle] = {}

    def read(self) -> ClusterState | None:
        state = super().read()
        if state is None:
            return None
        nodes = tuple(replace(node, process=self._handles.get(node.name)) for node in state.nodes)
        return replace(state, nodes=nodes)

    def write(self, state: ClusterState) -> None:
        self._handles = {node.name: node.process for node in state.nodes if isinstance(node.process, NodeHandle)}
        super().write(replace(state, nodes=tuple(replace(node, process=None) for node in state.nodes)))


class InProcessDirectory(ClusterDirectory):
    """A cluster in a directory, whose nodes run in here."""

    def __init__(self, directory: Path | str, *, start_timeout_s: float = 60.0, stop_timeout_s: float = 20.0) -> None:
        super().__init__(directory, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._file = _StateFile(self.directory)
        self._runner: Runner | None = None

    def _spawn(self, node: Node, log: Path) -> NodeHandle:
        if self._runner is None:
            self._runner = Runner()
        return self._runner.start(node, config=node_files.config_path(self.directory, node), log=log)

    def _wait_serving(self, state: ClusterState, begun: Sequence[Node]) -> None:
        super()._wait_serving(state, begun)
        gc.unfreeze()  # what services take out of the collector's sight at their start is also the caller's

    def down(self) -> tuple[Node, ...]:
        """As of any cluster; and the thread ends."""
        stopped = super().down()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        return stopped
