"""What a node is started with: its properties file, its formatted directories, its command line."""

from __future__ import annotations

import sys
from pathlib import Path

from .state import ClusterState, Node

_MODULES = {"controller": "headrace_controller", "broker": "headrace_broker"}


def log_path(directory: Path, node: Node) -> Path:
    return directory / "logs" / f"{node.name}.log"


def config_path(directory: Path, node: Node) -> Path:
    return directory / "config" / f"{node.name}.properties"


def command(directory: Path, node: Node) -> list[str]:
    """The node's command line. ``-P``: a file in the current directory never passes for one of our modules."""
    return [sys.executable, "-P", "-m", _MODULES[node.role], "--config", str(config_path(directory, node))]


def properties(state: ClusterState, node: Node) -> dict[str, str]:
    """The node's configuration, Kafka's keys; what the user overrides comes last."""
    controllers = state.of_role("controller")
    voters = ",".join(f"{each.id}@{each.host}:{each.internal_port}" for each in controllers)
    values = {
        "process.roles": node.role,
        "node.id": str(node.id),
        "listeners": f"client://{node.host}:{node.port},internal://{node.host}:{node.internal_port}",
        "log.dirs": ",".join(node.data_dirs),
        "controller.quorum.voters": voters,
        "default.replication.factor": "1",  # min(3, brokers) once replication is built
    }
    return values | state.config


def write_properties(directory: Path, state: ClusterState, node: Node) -> None:
    path = config_path(directory, node)
    path.parent.mkdir(exist_ok=True)
    path.write_text(_properties_text(directory, state, node))


def is_current(directory: Path, state: ClusterState, node: Node) -> bool:
    """Was the node's last start with the configuration that its next one would be with?"""
    try:
        return config_path(directory, node).read_text() == _properties_text(directory, state, node)
    except OSError:
        return False


def _properties_text(directory: Path, state: ClusterState, node: Node) -> str:
    lines = [f"# {node.role} {node.id} of the local cluster in {directory}; written anew at each start."]
    lines += [f"{key}={_escaped(value)}" for key, value in properties(state, node).items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", " ")


def format_node(state: ClusterState, node: Node) -> None:
    """Format the node's directories; those that are formatted for this cluster already stay as they are.

    InconsistentClusterIdError when one belongs to another cluster, and other errors of format_directories.
    """
    if all((Path(data_dir) / "meta.properties").exists() for data_dir in node.data_dirs):
        return  # the node itself checks whose they are; the import below would cost more than the question
    from headrace_core.node.meta_properties import format_directories

    format_directories(node.data_dirs, cluster_id=state.cluster_id, node_id=node.id, ignore_formatted=True)
