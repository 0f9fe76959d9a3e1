"""The file ``cluster.json``: the nodes of a local cluster, their directories and their processes.

The file is the only state of a local cluster. Every command and every LocalCluster reads ``cluster.json`` and replaces
it atomically. Each change of ``cluster.json`` is made under an exclusive flock on the file ``.lock`` in the same
directory. A reader of ``cluster.json`` without the lock sees either the old file or the new file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from headrace_core.errors import ClusterStartError, InvalidArgumentError
from headrace_core.file_modes import opener

from ..durable import replace_file
from .processes import ProcessId

_VERSION = 1
ROLES = ("controller", "broker", "coordinator", "registry", "console")
#: A role of releases before 0.2, which `up` drops: brokers serve Kafka's clients themselves.
GATEWAY = "gateway"
#: Roles that serve HTTP on one port, and store nothing on disk.
HTTP_ROLES = ("registry", "console")


def plural(role: str) -> str:
    """The plural of a role, which is also the name of the flag with the number of its nodes."""
    return "registries" if role == "registry" else f"{role}s"


class Life(Protocol):
    """A started node: a process with its identity (processes.py), or a node within this process (inprocess.py)."""

    @property
    def pid(self) -> int: ...

    def alive(self) -> bool:
        """Whether the node is running."""
        ...

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the node; return False if the node has ended."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until the node has ended; return whether the node has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster. The id of a node is unique among the nodes of its role; the ports and directories of a
    node never change."""

    role: str
    id: int
    host: str
    port: int  # the client listener; of HTTP_ROLES, HTTP
    internal_port: int  # of HTTP_ROLES, which have one port: the same as ``port``
    data_dirs: tuple[str, ...]
    process: Life | None = None  # The node's last process, alive or not.
    #: A controller that was added to a running cluster, and is not a voter yet.
    joining: bool = False
    metrics_port: int = 0  #: The port of /metrics; 0 before the node's first start.
    secure: bool = False  #: Whether the node's listeners use TLS and authenticate clients.
    kafka_port: int = 0  #: The port of a broker's listener for Kafka's clients; 0: none.

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"

    @property
    def address(self) -> str:
        """host:port of the client listener; of a registry or a console its URL."""
        return f"{self._scheme if self.is_http else ''}{self.host}:{self.port}"

    @property
    def kafka_address(self) -> str | None:
        """host:port of a broker's listener for Kafka's clients; None: the node has none."""
        return f"{self.host}:{self.kafka_port}" if self.kafka_port else None

    @property
    def metrics_url(self) -> str | None:
        """The URL of the node's metrics; None before the node's first start with a release that has metrics."""
        return f"{self._scheme}{self.host}:{self.metrics_port}/metrics" if self.metrics_port else None

    @property
    def all_ports(self) -> tuple[int, ...]:
        """Every port that the node binds."""
        return tuple(port for port in (self.port, self.internal_port, self.metrics_port, self.kafka_port) if port)

    @property
    def _scheme(self) -> str:
        return "https://" if self.secure else "http://"

    @property
    def is_http(self) -> bool:
        """Whether the node serves HTTP instead of gRPC."""
        return self.role in HTTP_ROLES

    @property
    def health_port(self) -> int:
        """The port of the listener that shows whether the node serves."""
        return self.port

    @property
    def internal_address(self) -> str:
        return f"{self.host}:{self.internal_port}"

    def alive(self) -> bool:
        return self.process is not None and self.process.alive()

    def stopped(self) -> bool:
        """Whether the node's process is suspended (SIGSTOP)."""
        return isinstance(self.process, ProcessId) and self.process.stopped()

    def pid(self) -> int | None:
        """The pid of the node's process; None if the node is not running."""
        return self.process.pid if self.process is not None and self.process.alive() else None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a whole local cluster. ``config``: the user's overrides for every node. ``racks``: the names of the
    racks; the brokers and coordinators take them in turn."""

    cluster_id: str
    nodes: tuple[Node, ...]
    config: dict[str, str]
    secure: bool = False  #: Whether the nodes' listeners use TLS and authenticate clients (`headrace up --secure`).
    racks: tuple[str, ...] = ()
    #: The process whose LocalCluster started the nodes; the nodes stop when this process ends. None: `headrace down`
    #: stops the nodes.
    owner: ProcessId | None = None

    def of_role(self, role: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.role == role)

    def node(self, role: str, node_id: int) -> Node:
        """A node. Raises InvalidArgumentError, which names the existing nodes, if there is no node with that role and
        id."""
        for node in self.nodes:
            if (node.role, node.id) == (role, node_id):
                return node
        known = ", ".join(f"{node.role} {node.id}" for node in self.nodes)
        raise InvalidArgumentError(f"this cluster has no {role} {node_id}; it has {known}")

    def secured(self) -> ClusterState:
        """The state after the cluster's setting of ``secure`` was copied to every node."""
        return replace(self, nodes=tuple(replace(node, secure=self.secure) for node in self.nodes))

    def with_node(self, changed: Node) -> ClusterState:
        return replace(
            self,
            nodes=tuple(changed if (node.role, node.id) == (changed.role, changed.id) else node for node in self.nodes),
        )

    def rack_of(self, node: Node) -> str:
        """The rack of a broker or a coordinator: node N is in the N-th rack, and the racks repeat. The
        result is empty for other nodes, and in a cluster without racks."""
        has_rack = bool(self.racks) and node.role in ("broker", "coordinator")
        return self.racks[(node.id - 1) % len(self.racks)] if has_rack else ""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.of_role("broker"))

    @property
    def kafka_bootstrap_servers(self) -> str:
        """The brokers' addresses for Kafka's clients; empty if the brokers do not listen for them."""
        return ",".join(node.kafka_address for node in self.of_role("broker") if node.kafka_address)

    @property
    def registry_urls(self) -> str:
        """The URLs of the registry's replicas, separated by commas, as Confluent's clients take them; empty without a
        registry."""
        return ",".join(node.address for node in self.of_role("registry"))

    @property
    def console_url(self) -> str:
        """The URL of the console; empty without a console."""
        return next((node.address for node in self.of_role("console")), "")


def _to_json(state: ClusterState) -> dict[str, Any]:
    return {"version": _VERSION, **asdict(state)}


def _process(document: dict[str, Any] | None) -> ProcessId | None:
    return ProcessId(int(document["pid"]), str(document["started"])) if document else None


def _from_json(document: dict[str, Any], path: Path) -> ClusterState:
    try:
        if document["version"] != _VERSION:
            raise ClusterStartError(
                f"{path} has format version {document['version']}, and this release of Headrace reads only version "
                f"{_VERSION}; use the release that wrote the file"
            )
        nodes = tuple(
            Node(
                role=str(node["role"]),
                id=int(node["id"]),
                host=str(node["host"]),
                port=int(node["port"]),
                internal_port=int(node["internal_port"]),
                data_dirs=tuple(map(str, node["data_dirs"])),
                process=_process(node["process"]),
                joining=bool(node.get("joining", False)),
                secure=bool(node.get("secure", False)),
                metrics_port=int(node.get("metrics_port", 0)),
                kafka_port=int(node.get("kafka_port", 0)),
            )
            for node in document["nodes"]
        )
        return ClusterState(
            cluster_id=str(document["cluster_id"]),
            nodes=nodes,
            config={str(key): str(value) for key, value in document["config"].items()},
            secure=bool(document.get("secure", False)),
            racks=tuple(map(str, document.get("racks", ()))),
            owner=_process(document.get("owner")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClusterStartError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore the file from a copy"
        ) from error


class StateFile:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "cluster.json"
        self._lock_path = directory / ".lock"

    def read(self) -> ClusterState | None:
        """The state of the cluster; None if the directory has no cluster. Raises ClusterStartError when the file is
        damaged."""
        try:
            text = self.path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ClusterStartError(f"{self.path} is damaged ({error}); restore the file from a copy") from error
        return _from_json(document, self.path)

    def write(self, state: ClusterState) -> None:
        """Replace the file durably; the caller must hold the lock."""
        replace_file(self.path, json.dumps(_to_json(state), indent=2) + "\n")

    @contextlib.contextmanager
    def locked(self, timeout_s: float = 60.0) -> Iterator[None]:
        """Hold the cluster's lock: only one up, down, kill or restart may run at a time. ClusterStartError after
        ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Child processes do not inherit Python's descriptors, so the lock ends with this process.
            with open(self._lock_path, "a", opener=opener) as lock:
                while not _try_lock(lock):
                    if time.monotonic() >= deadline:
                        raise ClusterStartError(
                            f"another headrace command has locked {self.directory} for {timeout_s:g} s; wait until "
                            "it ends"
                        )
                    time.sleep(0.01)
                if self._is_at_its_place(lock):
                    yield
                    return
            self.directory.mkdir(parents=True, exist_ok=True)  # a first `up` that failed has removed the directory

    def remove_lock(self) -> None:
        """Remove the lock file together with the cluster; the caller must hold the lock. A command that waits for the
        lock makes a new lock file after the removal."""
        self._lock_path.unlink(missing_ok=True)

    def _is_at_its_place(self, lock: TextIO) -> bool:
        """Whether the locked file is still the cluster's lock file. If the lock file was removed during the wait,
        another command may hold a lock on a new file."""
        try:
            return os.path.samestat(os.fstat(lock.fileno()), os.stat(self._lock_path))
        except FileNotFoundError:
            return False


def _try_lock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
