"""The inputs of a node: properties file, formatted directories, command line."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path

from headrace_core.errors import MissingDependencyError
from headrace_core.file_modes import make_directory

from .. import services
from . import security
from .state import ClusterState, Node

#: Largest default.replication.factor that `up` sets, when there are enough brokers.
FACTOR_MAX = 3
#: group.initial.rebalance.delay.ms of a local cluster. On one machine, all members join a group within a short
#: rebalance delay. Without a delay, the first member gets all partitions, and releases some of them only after its next
#: heartbeat.
INITIAL_DELAY_MS = 200
_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"  #: Kafka's name (replica.selector.class).


def require_services(state: ClusterState) -> None:
    """Raise MissingDependencyError if a service that the cluster's nodes run is not installed."""
    from importlib.util import find_spec

    modules = dict.fromkeys(services.PACKAGES[node.role] for node in state.nodes)
    missing = [module.replace("_", "-") for module in modules if find_spec(module) is None]
    if missing:
        raise MissingDependencyError(
            f"cannot start a local cluster: {', '.join(missing)} not installed; pip install 'headrace[cluster]'"
        )


def log_path(directory: Path, node: Node) -> Path:
    return directory / "logs" / f"{node.name}.log"


def config_path(directory: Path, node: Node) -> Path:
    return directory / "config" / f"{node.name}.properties"


def command(directory: Path, node: Node) -> list[str]:
    """The command line that starts the node. With ``-P``, a file in the current directory cannot shadow one of
    Headrace's modules."""
    return [sys.executable, "-P", "-m", services.PACKAGES[node.role], "--config", str(config_path(directory, node))]


def copies(brokers: int) -> dict[str, str]:
    """Replication settings for a cluster of ``brokers`` brokers. With three or more brokers, topics have three
    replicas, and min.insync.replicas is 2, so that writes continue after the failure of one broker."""
    factor = min(FACTOR_MAX, brokers)
    keys = {"default.replication.factor": str(factor)}
    return keys | {"min.insync.replicas": "2"} if factor == 3 else keys


def properties(state: ClusterState, node: Node, directory: Path) -> dict[str, str]:
    """The node's configuration in Kafka's keys; the user's overrides come last, so they have precedence."""
    secured = security.node_keys(directory, state, node) if state.secure else {}
    if node.role == "registry":
        return _of_registry(state, node) | secured | state.config
    if node.role == "console":
        return _of_console(state, node, directory) | secured | state.config
    values = {
        "process.roles": node.role,
        "node.id": str(node.id),
        **_listeners(node),
        **secured,
        "log.dirs": ",".join(node.data_dirs),
        **_metrics(node),
        "controller.quorum.bootstrap.servers": ",".join(each.internal_address for each in state.of_role("controller")),
    } | copies(len(state.of_role("broker")))
    if node.role == "broker" and state.registry_urls:
        values["confluent.schema.registry.url"] = state.registry_urls
    if rack := state.rack_of(node):
        values["broker.rack"] = rack
        if node.role == "broker":
            values["replica.selector.class"] = _RACK_AWARE
    if node.role == "coordinator":
        values["group.initial.rebalance.delay.ms"] = str(INITIAL_DELAY_MS)
    return values | state.config


def _of_registry(state: ClusterState, node: Node) -> dict[str, str]:
    return {
        "process.roles": node.role,
        "node.id": str(node.id),
        "registry.listeners": node.address,
        **_metrics(node),
        "kafkastore.bootstrap.servers": state.bootstrap_servers,
        "kafkastore.topic.replication.factor": str(min(FACTOR_MAX, len(state.of_role("broker")))),
    }


def _of_console(state: ClusterState, node: Node, directory: Path) -> dict[str, str]:
    keys = {
        "process.roles": node.role,
        "node.id": str(node.id),
        "console.listeners": node.address,
        **_metrics(node),
        "console.bootstrap.servers": state.bootstrap_servers,
        "console.cluster.directory": str(directory),
    }
    return keys | {"console.schema.registry.url": state.registry_urls} if state.registry_urls else keys


def _metrics(node: Node) -> dict[str, str]:
    return {"metrics.listener": node.metrics_url.removesuffix("/metrics")} if node.metrics_url else {}


def _listeners(node: Node) -> dict[str, str]:
    internal = f"internal://{node.host}:{node.internal_port}"
    listeners = f"client://{node.host}:{node.port},{internal}"
    if node.kafka_address:
        listeners += f",kafka://{node.kafka_address}"
    return {"listeners": listeners}


def ensure_directory(path: Path) -> None:
    """Create a directory, private if its parent is."""
    with contextlib.suppress(FileExistsError):
        make_directory(path)


def write_properties(directory: Path, state: ClusterState, node: Node) -> None:
    path = config_path(directory, node)
    ensure_directory(path.parent)
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)  # the user's keys may hold passwords; older releases wrote with another mode
        file.write(_properties_text(directory, state, node))


def is_current(directory: Path, state: ClusterState, node: Node) -> bool:
    """Whether the node was started with the same configuration that its next start would have."""
    try:
        return config_path(directory, node).read_text() == _properties_text(directory, state, node)
    except OSError:
        return False


def _properties_text(directory: Path, state: ClusterState, node: Node) -> str:
    lines = [f"# {node.role} {node.id} of the local cluster in {directory}; written again at each start."]
    lines += [f"{key}={_escaped(value)}" for key, value in properties(state, node, directory).items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", " ")


def format_cluster(state: ClusterState, directory: Path) -> None:
    """Format the directories of all nodes of a new cluster, with its controllers as first voters. A secure cluster gets
    its first users.

    Raises the errors of format_directories.
    """
    from headrace_core.node.first_voters import INITIAL, FirstVoters, InitialVoter
    from headrace_core.node.ids import random_id
    from headrace_core.node.meta_properties import format_directories

    voters = tuple(
        InitialVoter(node_id=node.id, address=node.internal_address, directory_id=random_id())
        for node in state.of_role("controller")
    )
    write_voters = services.load("controller", "formatting").write_voters
    writer = partial(write_voters, users=security.credentials(directory) if state.secure else ())
    for node in state.nodes:
        if not node.data_dirs:  # a registry or a console
            continue
        format_directories(
            node.data_dirs,
            cluster_id=state.cluster_id,
            node_id=node.id,
            first=FirstVoters(flag=INITIAL, voters=voters) if node.role == "controller" else None,
            write_voters=writer,
        )


def format_missing(state: ClusterState, node: Node) -> None:
    """Format the unformatted directories of a node that is a broker, a coordinator, or a controller that joins.

    A controller that is a voter is never formatted again, because it would come back as another voter with the same id.
    A voter whose directory is missing fails to start, and the error names the cure. Raises InconsistentClusterIdError
    when a directory belongs to another cluster, and the other errors of format_directories.
    """
    if node.role == "controller" and not node.joining:
        return
    if all((Path(data_dir) / "meta.properties").exists() for data_dir in node.data_dirs):
        return  # return, because the node checks its keys itself, and the import below is expensive
    from headrace_core.node.first_voters import NONE, FirstVoters
    from headrace_core.node.meta_properties import format_directories

    joins = node.role == "controller"
    format_directories(
        node.data_dirs,
        cluster_id=state.cluster_id,
        node_id=node.id,
        ignore_formatted=True,
        first=FirstVoters(flag=NONE, voters=()) if joins else None,
        write_voters=services.load("controller", "formatting").write_voters if joins else None,
    )


def directory_id(node: Node) -> bytes:
    """The 16-byte directory id of a controller. Raises InvalidConfigError if the directory is not formatted."""
    from headrace_core.node.meta_properties import read_meta

    return read_meta(node.data_dirs[0], node_id=node.id, is_controller=True).directory_id
