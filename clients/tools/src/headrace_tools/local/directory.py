"""A local cluster in a directory: its layout, start, stop and state. ``headrace up`` and LocalCluster use this module.

    DIR/cluster.json              the topology (state.py)             DIR/.lock     one command at a time
    DIR/config/<role>-<id>.properties                                 DIR/logs/<role>-<id>.log
    DIR/controller-1/  DIR/broker-1/  ...                             the nodes' data

Nodes continue to run after the command that started them, inherit none of its descriptors, and are found again by their
process identity (processes.py). Only the commands `restart` and `up` start a dead node again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace_core.errors import ClusterStartError, IllegalStateError, InvalidArgumentError
from headrace_core.file_modes import make_private
from headrace_core.node.ids import id_to_text, random_id

from . import growing, overrides, ports, security
from . import nodes as node_files
from .health import answers, answers_http, is_serving
from .processes import ProcessId, spawn, this_process
from .state import GATEWAY, HTTP_ROLES, ROLES, ClusterState, Life, Node, StateFile, plural

HOST = "127.0.0.1"
#: The default number of nodes of each role in a new cluster.
DEFAULT_BROKERS = 3
DEFAULT_CONTROLLERS = 3
DEFAULT_COORDINATORS = 1
KAFKA_PORT = 9092  #: Broker N of `up` listens for Kafka's clients on KAFKA_PORT + N - 1, unless this port is taken.
#: Port of Confluent's registry: replica N of `up` listens on REGISTRY_PORT + N - 1, unless this port is taken.
REGISTRY_PORT = 8081
RACK_CHARACTERS_MAX = 249  #: Maximum length of a rack's name.
CONSOLE_PORT = 9090  #: The console of `up` listens on CONSOLE_PORT, or the next free port.
#: Roles whose nodes can be removed without a loss of data.
_WITHOUT_DATA = ("coordinator", "registry", "console")
#: Names of directories with data that cannot be lost.
_DATA_DIRECTORY = re.compile(r"(controller|broker)-\d+")
_PORT_TRIES = 6
_LOG_LINES_QUOTED = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The requested topology; a field of None means unchanged, or the default of a new cluster. ``port`` 0, or None for
    a new cluster, means any free port. ``coordinators`` may be 0, but consumer groups need at least one coordinator.
    ``registries`` (replicas of the schema registry): default 0. ``registry_port``:
    port of the first node of the role; the role's other nodes get the next free ports. A port of 0 or None means any
    free ports. ``console``: True for a console, whose port is ``console_port`` or the next free one.

    ``kafka``: whether the brokers listen for Kafka's clients; ``kafka_port``: the port of broker 1, and of broker N the
    N-th free port from there.

    ``config``: keys that override the configuration of every node; an empty value removes an override. ``secure``:
    whether the nodes encrypt and authenticate, which a running cluster cannot change. ``racks``: names of racks, which
    the brokers and coordinators take in turn; consumers then read from the replica in their rack. Without
    names, the nodes have no rack.
    """

    brokers: int | None = None
    controllers: int | None = None
    coordinators: int | None = None
    registries: int | None = None
    console: bool | None = None
    port: int | None = None
    kafka: bool | None = None
    kafka_port: int | None = None
    registry_port: int | None = None
    console_port: int | None = None
    config: Mapping[str, str] | None = None
    secure: bool | None = None
    racks: Sequence[str] | None = None

    def check(self) -> None:
        """Raise InvalidArgumentError for an impossible value."""
        for name, count in (("brokers", self.brokers), ("controllers", self.controllers)):
            if count is not None and count < 1:
                raise InvalidArgumentError(f"{name}={count}: must be at least 1")
        for name, count in (
            ("coordinators", self.coordinators),
            ("registries", self.registries),
        ):
            if count is not None and count < 0:
                raise InvalidArgumentError(f"{name}={count}: must not be negative")
        for rack in self.racks or ():
            if not rack or rack != rack.strip() or not rack.isprintable() or len(rack) > RACK_CHARACTERS_MAX:
                raise InvalidArgumentError(
                    f"racks: {rack[:RACK_CHARACTERS_MAX]!r} is not the name of a rack: give 1 to {RACK_CHARACTERS_MAX} "
                    "printable characters"
                )
        overrides.refuse_ours(self.config or {})
        for name, port in (
            ("port", self.port),
            ("kafka_port", self.kafka_port),
            ("registry_port", self.registry_port),
            ("console_port", self.console_port),
        ):
            if port is not None and not 0 <= port <= 65_535:
                raise InvalidArgumentError(f"{name}={port}: must be between 0 (any free port) and 65535")


@dataclass(frozen=True, slots=True)
class Started:
    """The result of `up`: the nodes that it started (empty if all were running). ``behind``: running nodes whose
    configuration will change at their next restart."""

    state: ClusterState
    nodes: tuple[Node, ...]
    behind: tuple[Node, ...] = ()
    dropped: tuple[Node, ...] = ()  #: Gateways of an older release, whose work the brokers do now.


class ClusterDirectory:
    """The cluster in ``directory``; the directory need not exist yet."""

    def __init__(
        self,
        directory: Path | str,
        *,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 20.0,
        command: Callable[[Path, Node], list[str]] = node_files.command,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self._file = StateFile(self.directory)
        self._command = command  # Tests replace the command that starts a node.
        # Maps the name of a node to the position in its log file at which the current run begins.
        self._log_starts: dict[str, int] = {}

    # -- state

    def exists(self) -> bool:
        """Whether the directory has a cluster, running or not."""
        return self._file.path.exists()

    def state(self) -> ClusterState:
        """The state of the cluster; raises InvalidArgumentError if the directory has no cluster."""
        state = self._file.read()
        if state is None:
            raise InvalidArgumentError(
                f"there is no cluster in {self.directory}; `headrace up --data {self.directory}` starts one"
            )
        return state

    def ps(self) -> list[dict[str, Any]]:
        """The nodes as ``[{"role", "id", "pid" (None: dead), "address", "data_dirs", "metrics"}]``, controllers
        first. A broker also has "kafka", its address for Kafka's clients, or None."""
        return [
            {
                "role": node.role,
                "id": node.id,
                "pid": node.pid(),
                "address": node.address,
                "data_dirs": list(node.data_dirs),
                "metrics": node.metrics_url,
                **({"kafka": node.kafka_address} if node.role == "broker" else {}),
            }
            for node in self.state().nodes
        ]

    def log_path(self, role: str, node_id: int) -> Path:
        return node_files.log_path(self.directory, self.state().node(role, node_id))

    # -- start

    def up(self, wanted: Topology, *, exclusive: bool = False) -> Started:
        """Start every node that is not running, and wait until all nodes serve.

        A new directory is first laid out and formatted; a cluster in an old directory keeps its topology and ports.
        Raises ClusterStartError if a node fails to start: the error quotes the node's log, and the nodes that this call
        has started are stopped. Raises InvalidArgumentError if ``wanted`` contradicts the cluster, and
        InvalidConfigError if a node would refuse its overrides. With ``exclusive``, raises IllegalStateError if the
        cluster is running. After a failed start the cluster keeps its previous overrides and coordinators.
        """
        wanted.check()
        asked = wanted.config or {}
        if not self.exists():  # refuse a wrong key before the directory is created
            overrides.check(overrides.merged({}, asked), directory=self.directory, wanted=asked)
        if "," in str(self.directory):
            raise InvalidArgumentError(
                f"{self.directory}: a data directory cannot have a comma in its name, because log.dirs separates "
                "directories by commas"
            )
        is_new = not self.directory.exists()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterStartError(f"cannot create directory {self.directory}: {error.strerror}") from error
        with self._file.locked():
            state = self._file.read()
            if state is None:
                try:
                    return self._first_up(wanted, this_process() if exclusive else None)
                except BaseException:
                    self._file.remove_lock()
                    # Keep a directory that is not empty: it has logs, or files of the user.
                    with contextlib.suppress(OSError):
                        if is_new:
                            self.directory.rmdir()
                    raise
            if exclusive and any(node.alive() for node in state.nodes):
                raise IllegalStateError(f"the cluster in {self.directory} is running already; `headrace down` stops it")
            gateways = state.of_role(GATEWAY)
            if gateways:
                self._end(gateways)
                state, wanted = _without_gateways(state, wanted)
            before, state = state, self._reconciled(state, wanted)
            if exclusive:
                state = replace(state, owner=this_process())
            elif state.owner is not None and not state.owner.alive():
                state = replace(state, owner=None)  # the owner's guardian must not stop the nodes of this call
            overrides.check(state.config, directory=self.directory, wanted=asked)
            if state.secure and not security.has_users(self.directory):
                self._add_users(before)
            dead = [node for node in state.nodes if not node.alive()]
            try:
                started = self._start(state, dead)
                grown = growing.add_voters(
                    started.state,
                    self._file.write,
                    timeout_s=self.start_timeout_s,
                    client=security.client_keys(self.directory) if state.secure else {},
                )
                started = replace(started, state=grown)
            except BaseException:
                self._restore(before)
                raise
            running = [node for node in state.nodes if node not in dead]
            behind = tuple(node for node in running if not node_files.is_current(self.directory, state, node))
            return replace(started, behind=behind, dropped=gateways)

    def _restore(self, before: ClusterState) -> None:
        """After a failed start, restore the old overrides and remove the new coordinators, which have no data. A
        coordinator that cannot serve yet (at an older metadata.version) must not block the next start."""
        state = self._file.read()
        if state is None:
            return
        had = {node.name for node in before.nodes}
        nodes = tuple(node for node in state.nodes if node.role not in _WITHOUT_DATA or node.name in had)
        if (state.config, state.racks, state.nodes) != (before.config, before.racks, nodes):
            self._file.write(replace(state, config=before.config, racks=before.racks, nodes=nodes))

    def _add_users(self, state: ClusterState) -> None:
        """Add the users of a secure cluster to a stopped cluster that was formatted without them: its nodes run once
        without encryption, on loopback."""
        security.prepare(self.directory, (), state.bootstrap_servers)
        try:
            started = self._start(replace(state, secure=False), state.nodes)
            try:
                security.add_users(self.directory, started.state.bootstrap_servers)
            finally:
                self._stop(started.state)
        except BaseException:
            security.remove_passwords(self.directory)
            raise

    def restart(self, role: str, node_id: int) -> Node:
        """Start a dead node again with its directories and ports, and return when it serves; a running node is first
        stopped cleanly."""
        self.state()  # ``state`` raises without a cluster: there is nothing to lock
        with self._file.locked():
            state = self.state()
            node = state.node(role, node_id)
            if role == GATEWAY:
                raise InvalidArgumentError("brokers serve Kafka's clients themselves; `headrace up` drops the gateways")
            # Check the overrides before a running node is stopped.
            overrides.check(state.config, directory=self.directory, wanted={})
            if node.alive():
                self._end([node])
            return self._start(state, [node]).state.node(role, node_id)

    def _first_up(self, wanted: Topology, owner: ProcessId | None) -> Started:
        self._refuse_old_data()
        for attempt in range(1, _PORT_TRIES + 1):
            state = replace(self._laid_out(wanted), owner=owner)
            try:
                return self._start(state, state.nodes, format_nodes=node_files.format_cluster)
            except BaseException as error:
                # No node has ever served from these data directories, which did not exist before this call: remove
                # them, so that the next attempt starts from scratch.
                self._remove_data(state)
                if not (isinstance(error, _PortStolenError) and attempt < _PORT_TRIES):
                    raise
        raise AssertionError("unreachable")  # pragma: no cover

    def _refuse_old_data(self) -> None:
        """Raise ClusterStartError if nodes have left data in a directory without cluster.json: the data of a cluster
        whose file was lost must not be taken for those of a failed first start, which are removed."""
        old = [
            path.name
            for path in self.directory.iterdir()
            if _DATA_DIRECTORY.fullmatch(path.name) and path.is_dir() and any(path.iterdir())
        ]
        if old:
            raise ClusterStartError(
                f"{self._file.path} is missing, but {self.directory} has data of nodes in {', '.join(sorted(old))}; "
                "nothing was changed: restore the file, or move these directories away to begin a new cluster"
            )

    def _laid_out(self, wanted: Topology) -> ClusterState:
        brokers, controllers = wanted.brokers or DEFAULT_BROKERS, wanted.controllers or DEFAULT_CONTROLLERS
        if wanted.port:
            if not ports.is_free(wanted.port):
                raise ClusterStartError(
                    f"port {wanted.port} on {HOST} is taken; stop the program that uses the port, or choose another "
                    "port (0: any)"
                )
            client_ports = [wanted.port, *_near(wanted.port + 1, brokers - 1)]
        else:
            client_ports = ports.pick(brokers)
        coordinators = DEFAULT_COORDINATORS if wanted.coordinators is None else wanted.coordinators
        others = ports.pick(brokers + 2 * (controllers + coordinators), avoid=client_ports)
        nodes = [
            *(self._node("controller", number, others.pop(), others.pop()) for number in range(1, controllers + 1)),
            *(self._node("broker", number, port, others.pop()) for number, port in enumerate(client_ports, start=1)),
            *(self._node("coordinator", number, others.pop(), others.pop()) for number in range(1, coordinators + 1)),
        ]
        config = overrides.merged({}, wanted.config or {})
        state = ClusterState(
            cluster_id=id_to_text(random_id()),
            nodes=tuple(nodes),
            config=config,
            secure=bool(wanted.secure),
            racks=tuple(wanted.racks or ()),
        )
        return self._with_edge(self._with_kafka(state, wanted), wanted)

    def _reconciled(self, state: ClusterState, wanted: Topology) -> ClusterState:
        """The state of an existing cluster after the overrides and added nodes in ``wanted``; fewer nodes, or another
        port, are refused."""
        for role, count in (
            ("broker", wanted.brokers),
            ("controller", wanted.controllers),
            ("coordinator", wanted.coordinators),
            ("registry", wanted.registries),
        ):
            there = len(state.of_role(role))
            if count is not None and count < there:
                raise InvalidArgumentError(
                    f"--{plural(role)} {count}: the cluster in {self.directory} has {there}, and nodes can only be "
                    "added; leave the flag out, or choose another --data directory"
                )
        first = state.of_role("broker")[0].port
        if wanted.port and wanted.port != first:
            raise InvalidArgumentError(
                f"--port {wanted.port}: the cluster in {self.directory} uses port {first} and keeps it; leave the "
                "flag out"
            )
        if wanted.secure is not None and wanted.secure != state.secure:
            if any(node.alive() for node in state.nodes):
                raise InvalidArgumentError(
                    f"the cluster in {self.directory} runs {'without' if wanted.secure else 'with'} encryption; stop "
                    f"it first: headrace down --data {self.directory}"
                )
            state = replace(state, secure=wanted.secure)
        state = replace(state, config=overrides.merged(state.config, wanted.config or {}))
        if wanted.racks is not None:
            state = replace(state, racks=tuple(wanted.racks))
        state = self._with_more(state, "broker", wanted.brokers or 0)
        state = self._with_kafka(state, wanted)
        state = self._with_more(state, "coordinator", wanted.coordinators or 0)
        state = self._with_edge(state, wanted)
        if wanted.controllers is None or wanted.controllers == len(state.of_role("controller")):
            return state
        taken = [port for node in state.nodes for port in node.all_ports]
        return growing.with_controllers(
            state, wanted.controllers, self._node, lambda count: ports.pick(count, avoid=taken)
        )

    def _with_kafka(self, state: ClusterState, wanted: Topology) -> ClusterState:
        """Give each broker a port for Kafka's clients, or none, as ``wanted`` says. Brokers keep the ports that they
        have; without a wish, new brokers do as the old ones."""
        brokers = state.of_role("broker")
        if wanted.kafka is False:
            bare = [replace(node, kafka_port=0) for node in brokers]
        elif wanted.kafka or any(node.kafka_port for node in brokers):
            new = [node for node in brokers if not node.kafka_port]
            taken = [port for node in state.nodes for port in node.all_ports]
            first = wanted.kafka_port or next((node.kafka_port for node in brokers if node.kafka_port), 0)
            found = _near(first, len(new), avoid=taken) if first else ports.pick(len(new), avoid=taken)
            bare = [replace(node, kafka_port=port) for node, port in zip(new, found, strict=True)]
        else:
            return state
        for node in bare:
            state = state.with_node(node)
        return state

    def _with_edge(self, state: ClusterState, wanted: Topology) -> ClusterState:
        """Add the registry's replicas and the console that ``wanted`` requests. Raises
        InvalidArgumentError for a registry without a coordinator, which elects the registry's writer."""
        state = self._with_more(state, "registry", wanted.registries or 0, first_port=wanted.registry_port)
        state = self._with_more(state, "console", int(wanted.console or 0), first_port=wanted.console_port)
        if state.of_role("registry") and not state.of_role("coordinator"):
            raise InvalidArgumentError(
                "a registry needs a coordinator, which elects the replica that accepts writes; the cluster has no "
                "coordinator: pass --coordinators 1"
            )
        return state

    def _with_more(self, state: ClusterState, role: str, count: int, *, first_port: int | None = None) -> ClusterState:
        """Add nodes of a role, but no controllers, until there are ``count``. New nodes register when they start, and
        the controllers move replicas to new brokers later, so existing nodes need no change. ``first_port``: port of
        the role's first node; None or 0: any free ports."""
        there = len(state.of_role(role))
        if count <= there:
            return state
        taken = [port for node in state.nodes for port in node.all_ports]
        numbers = range(there + 1, count + 1)
        if role == "broker":  # broker N is at PORT + N - 1, or the next free port
            own = _near(state.of_role("broker")[0].port + there, len(numbers), avoid=taken)
        elif first_port:
            own = _near(first_port + there, len(numbers), avoid=taken)
        else:
            own = ports.pick(len(numbers), avoid=taken)
        internal = own if role in HTTP_ROLES else ports.pick(len(numbers), avoid=[*taken, *own])
        new = tuple(self._node(role, *each) for each in zip(numbers, own, internal, strict=True))
        # The sort by role is stable, so the nodes of each role stay in the order of their ids.
        nodes = sorted((*state.nodes, *new), key=lambda node: ROLES.index(node.role))
        return replace(state, nodes=tuple(nodes))

    def _node(self, role: str, number: int, port: int, internal_port: int) -> Node:
        directories = () if role in HTTP_ROLES else (str(self.directory / f"{role}-{number}"),)
        return Node(role=role, id=number, host=HOST, port=port, internal_port=internal_port, data_dirs=directories)

    def _start(
        self,
        state: ClusterState,
        nodes: Collection[Node],
        *,
        format_nodes: Callable[[ClusterState, Path], None] | None = None,
    ) -> Started:
        """Start ``nodes`` and wait until every live node of the cluster serves. The caller of ``_start`` must hold the
        cluster's lock. ``format_nodes`` formats the directories of a new cluster; for an existing cluster, only
        unformatted directories that may safely be formatted."""
        node_files.require_services(state)
        state = self._with_metrics_ports(state, nodes)
        state = state.secured()
        nodes = [state.node(node.role, node.id) for node in nodes]
        if state.secure:
            self._make_private(state)
            security.prepare(self.directory, nodes, state.bootstrap_servers)
        begun: list[Node] = []
        self._log_starts = {}
        try:
            for node in nodes:
                self._check_ports(node)
                node_files.write_properties(self.directory, state, node)
                if format_nodes is None:
                    node_files.format_missing(state, node)
            if format_nodes is not None:
                format_nodes(state, self.directory)
            self._file.write(state)
            for node in nodes:
                log = node_files.log_path(self.directory, node)
                node_files.ensure_directory(log.parent)
                self._log_starts[node.name] = log.stat().st_size if log.exists() else 0
                begun.append(
                    replace(
                        node,
                        process=self._spawn(node, log),
                    )
                )
                state = state.with_node(begun[-1])
                # Write the state at once: after a crash of this command the process can still be found.
                self._file.write(state)
            self._wait_serving(state, begun)
        except BaseException:
            self._end(begun, gently=False)
            raise
        return Started(state, tuple(begun))

    def _make_private(self, state: ClusterState) -> None:
        """Take the directory, its records, logs and keys from other users of this machine, also what an open cluster
        has written. What its nodes write later inherits that."""
        try:
            make_private(self.directory, public=security.ca_path(self.directory))
            for path in (Path(each) for node in state.nodes for each in node.data_dirs):
                if path.is_symlink():  # records on another disk
                    make_private(path)
        except OSError as error:
            raise ClusterStartError(
                f"cannot take the permissions of other users from {error.filename}: {error.strerror}; make the user "
                "who starts the cluster the owner of all its files"
            ) from error

    def _with_metrics_ports(self, state: ClusterState, nodes: Collection[Node]) -> ClusterState:
        """Give a port for metrics to each of ``nodes`` that has none: a new node, or a node of an older release."""
        bare = [node for node in nodes if not node.metrics_port]
        taken = [port for node in state.nodes for port in node.all_ports]
        for node, port in zip(bare, ports.pick(len(bare), avoid=taken), strict=True):
            state = state.with_node(replace(node, metrics_port=port))
        return state

    def _spawn(self, node: Node, log: Path) -> Life:
        return spawn(self._command(self.directory, node), log=log, directory=self.directory)

    def _check_ports(self, node: Node) -> None:
        for port in node.all_ports:
            if not ports.is_free(port, node.host):
                raise _PortStolenError(
                    f"{node.role} {node.id} needs {node.host}:{port}, but another program uses this port; stop that "
                    "program first"
                )

    def _wait_serving(self, state: ClusterState, begun: Sequence[Node]) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        waiting = [node for node in state.nodes if node in begun or node.alive()]
        tls = security.health_context(self.directory) if state.secure else None
        while waiting:
            for node in list(waiting):
                # Controllers without a majority serve no requests, so any answer to the health check shows that a
                # controller runs.
                ready: Callable[..., bool] = is_serving
                if node.is_http:
                    ready = answers_http
                elif node.role == "controller" and not _has_majority(state):
                    ready = answers
                if ready(node.host, node.health_port, timeout_s=1.0, tls=tls):
                    waiting.remove(node)
                elif not node.alive():
                    raise self._start_failure(
                        node, "the node's process ended before it served requests, for the reason in its log"
                    )
                elif time.monotonic() > deadline:
                    failure = self._start_failure(node, f"the node was not ready within {self.start_timeout_s:g} s")
                    raise failure from TimeoutError()
            if waiting:
                time.sleep(0.01)
        for node in begun:  # check each process: if another program has taken the port, that program may answer
            if not node.alive():
                raise self._start_failure(
                    node, "the node's process ended before it served requests, for the reason in its log"
                )

    def _start_failure(self, node: Node, what: str) -> ClusterStartError:
        path = node_files.log_path(self.directory, node)
        tail = _tail(path, self._log_starts.get(node.name, 0))
        quoted = "\n".join(f"  | {line}" for line in tail) or "  | (empty)"
        stolen = any(sign in line for line in tail for sign in ("cannot bind", "ddress already in use", "is in use"))
        kind = _PortStolenError if stolen else ClusterStartError
        return kind(f"{node.role} {node.id} ({node.address}): {what}; the end of {path}:\n{quoted}")

    # -- stop

    def down(self, *, gently: bool = True, owner: ProcessId | None = None) -> tuple[Node, ...]:
        """Stop every node cleanly, the console first, controllers last; return the nodes that were running. Data
        stays. ``gently`` False: kill all nodes at once, because their data are not needed. ``owner``: stop the nodes
        only if they still belong to this process."""
        self.state()
        with self._file.locked():
            state = self.state()
            if owner is not None and state.owner != owner:
                return ()
            running = tuple(node for node in state.nodes if node.alive())
            self._stop(state, gently=gently)
            return running

    def _stop(self, state: ClusterState, *, gently: bool = True) -> None:
        if gently:
            for role in (GATEWAY, *reversed(ROLES)):
                self._end([node for node in state.nodes if node.role == role])
        else:
            self._end(state.nodes, gently=False)
        stopped = tuple(replace(node, process=None) for node in state.nodes)
        self._file.write(replace(state, nodes=stopped, owner=None))

    def delete(self) -> None:
        """Stop the cluster and remove its files. The cluster's directory is removed too if no other files are in it."""
        self.down()
        with self._file.locked():
            state = self.state()
            self._remove_data(state)
            for name in ("config", "logs", "security"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
            self._file.remove_lock()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _remove_data(self, state: ClusterState) -> None:
        for node in state.nodes:
            for data_dir in node.data_dirs:
                shutil.rmtree(data_dir, ignore_errors=True)
        self._file.path.unlink(missing_ok=True)

    def elsewhere(self, work: Callable[[], object]) -> None:
        """Run ``work``, which waits for nodes to end, in a thread on which no node runs. If the nodes are separate
        processes, ``work`` runs in the calling thread."""
        work()

    def _end(self, nodes: Iterable[Node], *, gently: bool = True) -> None:
        """Send SIGTERM (and SIGCONT for suspended processes), wait, then send SIGKILL; return when all processes have
        ended."""
        processes = [node.process for node in nodes if node.process is not None]
        if gently:
            for process in processes:
                process.signal(signal.SIGTERM)
                process.signal(signal.SIGCONT)
            deadline = time.monotonic() + self.stop_timeout_s
            processes = [process for process in processes if not process.wait(max(0.0, deadline - time.monotonic()))]
        for process in processes:
            process.signal(signal.SIGKILL)
        for process in processes:
            process.wait(10.0)

    # -- faults

    def signal(self, role: str, node_id: int, number: signal.Signals) -> None:
        """Send a signal to the process of a node. Raises IllegalStateError when the node is dead."""
        node = self.state().node(role, node_id)
        if node.process is None or not node.process.signal(number):
            raise IllegalStateError(f"{role} {node_id} is not running; start it with `restart`")

    def kill(self, role: str, node_id: int) -> None:
        """Kill a node with SIGKILL and wait until its process has ended; a dead node stays dead."""
        node = self.state().node(role, node_id)
        if node.process is not None:
            self._end([node], gently=False)


class _PortStolenError(ClusterStartError):
    """Another process listens on a port that a node needs."""


def _near(first: int, count: int, *, avoid: Sequence[int] = ()) -> list[int]:
    """Find ``count`` free ports from ``first`` upward: a cluster's brokers get adjacent ports, if possible."""
    found: list[int] = []
    port = first
    while len(found) < count and port < 65_536:
        if port not in avoid and ports.is_free(port):
            found.append(port)
        port += 1
    if len(found) < count:
        raise ClusterStartError(f"no {count} free ports from {first} upward on {HOST}; choose another port")
    return found


def _without_gateways(state: ClusterState, wanted: Topology) -> tuple[ClusterState, Topology]:
    """The state of an older release without its gateways. Broker 1 listens for Kafka's clients where gateway 1 did,
    unless ``wanted`` says otherwise."""
    first = state.of_role(GATEWAY)[0].port
    state = replace(state, nodes=tuple(node for node in state.nodes if node.role != GATEWAY))
    if wanted.kafka is None:
        wanted = replace(wanted, kafka=True, kafka_port=first)
    return state, wanted


def _has_majority(state: ClusterState) -> bool:
    voters = [node for node in state.of_role("controller") if not node.joining]
    return 2 * sum(node.alive() for node in voters) > len(voters)


def _tail(path: Path, start: int) -> list[str]:
    """The last lines of a log after position ``start``, so that lines of earlier runs are excluded."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(start, log.tell() - 16_384))
            return log.read().decode(errors="replace").splitlines()[-_LOG_LINES_QUOTED:]
    except OSError:
        return []
