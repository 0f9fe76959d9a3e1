"""LocalCluster: a Headrace cluster that runs during a ``with`` block.

    with LocalCluster() as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)

The nodes are the production services, each in its own process (or all in this process), on loopback addresses and free
ports. Without ``data`` all files are in a temporary directory, which is deleted with the cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from headrace.faces import Face
from headrace_core.errors import IllegalStateError, InvalidArgumentError

from . import guardian, security
from .directory import ClusterDirectory, Topology
from .processes import ProcessId, this_process


def config_text(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Convert configuration overrides to text with dotted names: ``{"log_flush": "os", "num.partitions": 6}`` ->
    ``{"log.flush": "os", ...}``. A dotted name stays unchanged, because a listener's name may have an underscore."""
    if not isinstance(config, Mapping | None) or not all(isinstance(key, str) for key in config or ()):
        raise InvalidArgumentError(f"config={config!r:.80}: must be a dict with names of keys, or None")
    return {
        (key if "." in key else key.replace("_", ".")): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (config or {}).items()
    }


class LocalCluster(Face):
    """A cluster of real processes. Start the cluster with ``with`` or ``start()``; all nodes serve when ``start``
    returns or the block begins.

    ``brokers`` and ``controllers``: number of nodes of each role. If ``brokers`` or ``controllers`` is None, an
    existing cluster in ``data`` keeps its number of nodes; a new cluster gets three brokers and three controllers. The
    topics of a cluster with three brokers have three replicas, and acks=all needs at least two in-sync replicas.
    ``coordinators``: number of coordinators; with None, a new cluster gets one coordinator. Consumer groups need a
    coordinator. The cheapest cluster has one broker, one controller and ``coordinators=0``. ``kafka``: True for brokers
    that listen for Kafka's clients too, on free ports (``kafka_bootstrap_servers``). ``registries``: number of
    replicas of the schema registry, on free ports (``registry_urls``); default: none. ``console``: True for a console
    on a free port (``console_url``).

    ``data``: the cluster's directory, which is kept after the cluster's end; the next cluster in the same directory has
    the same topology and ports. If ``data`` is None, the cluster gets a temporary directory, which is deleted at the
    end. ``port``: port of the first broker (None: any free port). ``config``: keys that override the configuration of
    every node, dotted or snake_case.

    ``secure``: True for a cluster that encrypts and authenticates, with certificates of its own: clients need the keys
    of ``client_properties``. ``racks``: names of racks, such as ``["a", "b", "c"]``: broker N and coordinator N are
    in the N-th rack. A consumer with ``client.rack`` reads from the replica in its rack (KIP-392).

    ``mode``: "process" starts real processes; "inprocess" runs the same services in a thread of this process. An
    in-process cluster starts in a fraction of a second. The nodes of an in-process cluster cannot be paused. ``kill``
    only approximates a crash of an in-process node: it cuts the connections without notice and leaves the files as they
    are.

    Raises InvalidArgumentError for impossible arguments; ``start`` raises ClusterStartError, which quotes the log of
    the node that failed.
    """

    def __init__(
        self,
        brokers: int | None = None,
        controllers: int | None = None,
        coordinators: int | None = None,
        mode: Literal["process", "inprocess"] = "process",
        data: str | os.PathLike[str] | None = None,
        port: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        kafka: bool | None = None,
        gateways: int | None = None,
        registries: int | None = None,
        console: bool | None = None,
        secure: bool | None = None,
        racks: Sequence[str] | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 20.0,
    ) -> None:
        if mode not in ("process", "inprocess"):
            raise InvalidArgumentError(f"mode={mode!r}: must be 'process' or 'inprocess'")
        counts = {"brokers": brokers, "controllers": controllers, "coordinators": coordinators}
        if gateways is not None:
            raise InvalidArgumentError(f"gateways={gateways!r}: brokers serve Kafka's clients; pass kafka=True instead")
        if kafka is not None and not isinstance(kafka, bool):
            raise InvalidArgumentError(f"kafka={kafka!r}: must be True, False or None")
        for name, value in {**counts, "registries": registries, "port": port}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidArgumentError(f"{name}={value!r}: must be a whole number, or None")
        if data is not None and not isinstance(data, str | os.PathLike):
            raise InvalidArgumentError(f"data={data!r}: must be the path of a directory, or None")
        if not isinstance(racks, list | tuple | None) or not all(isinstance(each, str) for each in racks or ()):
            raise InvalidArgumentError(f"racks={racks!r}: must be a list of names, or None")
        self._topology = Topology(
            brokers=brokers,
            controllers=controllers,
            coordinators=coordinators,
            kafka=kafka,
            registries=registries,
            console=console,
            port=port,
            config=config_text(config),
            secure=secure,
            racks=racks,
        )
        self._topology.check()
        self._data = Path(data) if data is not None else None
        self._is_in_process = mode == "inprocess"
        self._start_timeout_s, self._stop_timeout_s = start_timeout_s, stop_timeout_s
        self._cluster: ClusterDirectory | None = None
        self._bootstrap_servers = ""
        self._kafka_bootstrap_servers = ""
        self._registry_urls = ""
        self._console_url = ""
        self._finalizer: weakref.finalize[[ClusterDirectory, bool, int], LocalCluster] | None = None
        self._guardian: guardian.Guardian | None = None

    def _shown(self) -> list[str]:
        kind = "inprocess" if self._is_in_process else "process"
        return [kind, "stopped"] if self._cluster is None else [kind, f"at {self._bootstrap_servers}", "running"]

    # -- lifecycle

    def start(self) -> LocalCluster:
        """Start every node and wait until all nodes serve; return this LocalCluster."""
        if self._cluster is not None:
            raise IllegalStateError("this LocalCluster is running already")
        temporary = self._data is None
        directory = Path(tempfile.mkdtemp(prefix="headrace-")) if self._data is None else self._data
        cluster = self._made(directory)
        try:
            started = cluster.up(self._topology, exclusive=True)
        except BaseException:
            if temporary:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        self._cluster = cluster
        self._bootstrap_servers = started.state.bootstrap_servers
        self._kafka_bootstrap_servers = started.state.kafka_bootstrap_servers
        self._registry_urls = started.state.registry_urls
        self._console_url = started.state.console_url
        self._guardian = guardian.start(cluster.directory, this_process().started, delete=temporary)
        # Stop the cluster also if the program never calls stop(): when this object is garbage-collected, or when the
        # interpreter ends.
        owner_pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, cluster, temporary, owner_pid)
        # In-process nodes need no exit hook: the I/O thread stops the nodes before it ends with the interpreter.
        if self._is_in_process:
            self._finalizer.atexit = False
            cluster.end_at_exit = lambda: _end(cluster, temporary, owner_pid)  # type: ignore[attr-defined]
        return self

    def _made(self, directory: Path) -> ClusterDirectory:
        made: type[ClusterDirectory] = ClusterDirectory
        if self._is_in_process:
            # Import here, because the module imports asyncio and the services.
            from .inprocess import InProcessDirectory

            made = InProcessDirectory
        return made(directory, start_timeout_s=self._start_timeout_s, stop_timeout_s=self._stop_timeout_s)

    def stop(self) -> None:
        """Stop the nodes cleanly, coordinators and brokers before controllers. If the cluster's data are temporary,
        kill the nodes and delete the data instead of a clean stop. Idempotent."""
        if self._guardian is not None:
            self._guardian.dismiss()
            self._guardian = None
        if self._finalizer is not None:
            self._finalizer()
        self._cluster = None

    def __enter__(self) -> LocalCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- state

    @property
    def directory(self) -> Path:
        """The cluster's directory, which has logs/, config/ and the data of each node."""
        return self._running().directory

    @property
    def bootstrap_servers(self) -> str:
        """The address ``host:port`` of each broker, separated by commas: the value for ``bootstrap.servers``."""
        self._running()
        return self._bootstrap_servers

    @property
    def kafka_bootstrap_servers(self) -> str:
        """The address ``host:port`` of each broker for Kafka's clients, separated by commas: the value for their
        ``bootstrap.servers``; empty without ``kafka=True``."""
        self._running()
        return self._kafka_bootstrap_servers

    @property
    def registry_urls(self) -> str:
        """The URL of each replica of the schema registry, separated by commas: the value for ``schema.registry.url`` of
        Confluent's clients; empty without a registry."""
        self._running()
        return self._registry_urls

    @property
    def console_url(self) -> str:
        """The URL of the console; empty without a console."""
        self._running()
        return self._console_url

    @property
    def client_properties(self) -> Path:
        """A properties file with the keys that clients of a secure cluster need, for ``Producer.from_properties`` and
        Kafka's tools. Raises IllegalStateError for a cluster that is not secure."""
        path = security.client_properties_path(self._running().directory)
        if not path.exists():
            raise IllegalStateError("this LocalCluster is not secure; pass secure=True")
        return path

    def ps(self) -> list[dict[str, Any]]:
        """The nodes as ``[{"role", "id", "pid" (None: dead), "address", "data_dirs", "metrics"}]``, the same as
        `headrace ps -o json`."""
        return self._running().ps()

    def log(self, role: str, node_id: int) -> str:
        """The text of a node's log so far."""
        return self._running().log_path(role, node_id).read_text(errors="replace")

    # -- faults

    def kill(self, role: str, node_id: int) -> None:
        """kill -9; returns when the node is gone. A killed node stays dead until ``restart``."""
        self._running().kill(role, node_id)

    def pause(self, role: str, node_id: int) -> None:
        """Suspend a node's process with SIGSTOP; its connections stay open."""
        self._running().signal(role, node_id, signal.SIGSTOP)

    def resume(self, role: str, node_id: int) -> None:
        """SIGCONT after ``pause``."""
        self._running().signal(role, node_id, signal.SIGCONT)

    def restart(self, role: str, node_id: int) -> None:
        """Start a dead node again, with its directories and ports, and return when it serves; a running node is first
        stopped cleanly. Raises ClusterStartError if the node does not serve in time."""
        self._running().restart(role, node_id)

    @contextlib.contextmanager
    def killed(self, role: str, node_id: int) -> Iterator[None]:
        """A ``with`` block during which a node is dead: ``kill`` runs before the block, and ``restart`` after the block
        even if the block raises."""
        self.kill(role, node_id)
        try:
            yield
        finally:
            self.restart(role, node_id)

    def _running(self) -> ClusterDirectory:
        if self._cluster is None:
            raise IllegalStateError("this LocalCluster is not running; use it in a `with` block, or call start()")
        return self._cluster


def _end(cluster: ClusterDirectory, temporary: bool, owner_pid: int) -> None:
    if os.getpid() != owner_pid:  # this process is a fork of the owner, and does not own the cluster
        return
    cluster.elsewhere(lambda: end_cluster(cluster, delete=temporary))


def end_abandoned(directory: str, owner: ProcessId, *, delete: bool) -> None:
    """Stop the cluster whose owner process has died; the guardian calls this function. If another run has started nodes
    in the directory after the owner's death, the function does not stop these nodes."""
    end_cluster(ClusterDirectory(directory, stop_timeout_s=2.0 if delete else 20.0), delete=delete, owner=owner)


def end_cluster(cluster: ClusterDirectory, *, delete: bool, owner: ProcessId | None = None) -> None:
    """Stop the nodes: cleanly, or by kill if their data are deleted too. If the cluster's directory is already deleted,
    do nothing. ``owner``: stop the nodes only if they still belong to this process."""
    with contextlib.suppress(InvalidArgumentError):
        cluster.down(gently=not delete, owner=owner)
    if delete:
        shutil.rmtree(cluster.directory, ignore_errors=True)
