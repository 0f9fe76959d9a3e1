"""Nodes within this process (``LocalCluster(mode="inprocess")``): the production services, run on the process's I/O
thread.

In-process nodes start in a third of a second, for tests that start clusters by the hundred. Code, files and sockets are
the same as in separate processes, but a node cannot crash like a process. ``kill`` cancels the node's tasks, cuts its
connections, and leaves its files as a crash would. In-process nodes cannot be paused. Each node has its own addresses
and ports.

**Event loop.** Nodes share the event loop of the clients (engine/io_thread.py). In each process grpc.aio has one
poller. For every event the poller wakes each event loop that has used grpc.aio. An event loop that has ended stays
bound to the poller, with its descriptors. Event loops for each cluster would leak three descriptors per cluster, and
would pass events from thread to thread. One event loop for all nodes and clients is as fast as an event loop per
cluster. The price of the shared event loop: a callback that blocks the I/O thread also blocks the nodes.

``start_node`` starts a node and returns a NodeHandle with the methods of a process (processes.ProcessId): alive,
signal, wait. The NodeHandles are not stored in ``cluster.json``, because a `headrace down` in another process would
then kill this process.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace.callbacks import on_io_thread
from headrace.engine.io_thread import IoThread, forget, io_thread, leave_before_pools, register
from headrace_core.errors import IllegalStateError, UnsupportedVersionError
from headrace_core.real_threads import are_green

from .. import services
from . import nodes as node_files
from .directory import ClusterDirectory
from .inprocess_logs import NodeLog
from .processes import ProcessId
from .state import ClusterState, Node, StateFile


class NodeHandle:
    """One run of an in-process node, from its start to its end. ``pid`` is the pid of this process. If the node failed,
    the last line of ``log`` says why."""

    def __init__(self, io: IoThread, task: asyncio.Task[None], stop: asyncio.Event, log: NodeLog) -> None:
        self.pid = os.getpid()
        self._io, self._task, self._stop, self._log = io, task, stop, log
        self._gone = threading.Event()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.say(f"{type(error).__name__}: {error}")
        self._log.close()
        self._gone.set()

    def alive(self) -> bool:
        """Whether the node is running; False in a forked child, which does not have the I/O thread."""
        return not self._gone.is_set() and os.getpid() == self.pid

    def signal(self, number: signal.Signals) -> bool:
        """Stop the node: cleanly with SIGTERM, at once with SIGKILL. Returns False if the node had already ended."""
        if number is signal.SIGSTOP:
            raise UnsupportedVersionError("a node within this process cannot be paused; use mode='process'")
        if not self.alive():
            return False
        if number is signal.SIGTERM:
            self._io.call(self._stop.set)
        elif number is signal.SIGKILL:
            self._io.call(self._task.cancel)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the node has ended; return whether the node has ended."""
        return not self.alive() or self._gone.wait(timeout_s)


def start_node(node: Node, *, config: Path, log: Path) -> NodeHandle:
    """Start a node in the same way as the program of the node's role does. Raises IllegalStateError on the I/O thread,
    which cannot wait, in a child process that cannot have an I/O thread, and under gevent's patches."""
    if are_green():
        raise IllegalStateError(
            "gevent has patched this process's threads, and nodes need real ones: use LocalCluster(mode='process')"
        )
    # Import the node modules in the caller's thread, so that clients and running nodes do not wait for the import on
    # the I/O thread.
    from headrace_core.node.config import NodeConfig
    from headrace_core.node.properties import read_properties

    serve = services.load(node.role, "app").serve
    values = NodeConfig.from_properties(read_properties(config), role=node.role)
    io = io_thread()

    async def begin() -> NodeHandle:
        stop = asyncio.Event()
        output = NodeLog(log, values.log_level)
        context = contextvars.copy_context()
        context.run(output.enter)
        task = asyncio.get_running_loop().create_task(serve(values, stop), name=node.name, context=context)
        return NodeHandle(io, task, stop, output)

    return io.run(begin())


class _StateFile(StateFile):
    """The file ``cluster.json``, written without processes; ``read`` adds the nodes of this process."""

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
    """A cluster in a directory whose nodes run within this process."""

    #: A callback that LocalCluster sets, for an interpreter that ends before the cluster was stopped.
    end_at_exit: Callable[[], object] | None = None

    def __init__(self, directory: Path | str, *, start_timeout_s: float = 60.0, stop_timeout_s: float = 20.0) -> None:
        super().__init__(directory, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._file = _StateFile(self.directory)

    def _spawn(self, node: Node, log: Path) -> NodeHandle:
        handle = start_node(node, config=node_files.config_path(self.directory, node), log=log)
        register(self, last=True)
        leave_before_pools()
        return handle

    def after_fork(self) -> None:
        """Do nothing: a forked child has no nodes."""

    def at_exit(self) -> None:
        """Stop the cluster, because the I/O thread is about to end; all clients have been closed before."""
        if self.end_at_exit is not None:
            self.end_at_exit()

    def down(self, *, gently: bool = True, owner: ProcessId | None = None) -> tuple[Node, ...]:
        """Stop the nodes, as for any cluster, and unregister from the I/O thread's exit handler."""
        stopped = super().down(gently=gently, owner=owner)
        forget(self)
        return stopped

    def elsewhere(self, work: Callable[[], object]) -> None:
        """Run ``work`` in another thread if the current thread is the I/O thread, which the nodes need. The garbage
        collector may free a LocalCluster on the I/O thread."""
        if on_io_thread():
            threading.Thread(target=work, name="headrace cluster's end").start()
        else:
            work()
