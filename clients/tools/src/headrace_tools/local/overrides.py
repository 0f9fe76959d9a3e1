"""The user's configuration keys (``headrace up -c KEY=VALUE``): merged with the stored keys, and checked before they
are stored.

The overrides are checked as at the start of a node, together with the keys that the cluster sets for each role. Because
the overrides are checked first, ``cluster.json`` never has a key that keeps a node from starting.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from headrace_core.errors import InvalidArgumentError, InvalidConfigError

from . import nodes as node_files
from .state import ClusterState, Node

_PORT = "`headrace up --port` chooses the first broker's port, the other ports are free ones"
_BY_HAND = (
    "to choose a node's directories or disks, start the node yourself: docs/operations/disks.md, "
    '"A broker with several disks"'
)
_ROLES = "set the number of brokers with `headrace up --brokers N`"
#: Keys that users may not override, because they differ from node to node, or because nodes and supervisor must agree
#: on them. Each value of the dictionary says what to do instead of an override.
_OURS = {
    "process.roles": _ROLES,
    "node.id": _ROLES,
    "broker.id": _ROLES,
    "listeners": _PORT,
    "registry.listeners": "`headrace up --registry-port` chooses the port of the registry's first replica",
    "metrics.listener": "each node has a port of its own for metrics, which `headrace ps -o json` shows",
    "registry.advertised.url": "each replica of the registry has its own URL",
    "kafkastore.bootstrap.servers": "each replica of the registry gets the addresses of the brokers",
    "console.listeners": "`headrace up --console-port` chooses the console's port",
    "console.bootstrap.servers": "the console gets the addresses of the brokers",
    "console.cluster.directory": "it is the directory of this cluster",
    "log.dirs": _BY_HAND,
    "log.dir": _BY_HAND,
    "metadata.log.dir": _BY_HAND,
    "runtime.state.file": "it is node.json in each node's directory",
    "controller.quorum.voters": "set the number of controllers with `headrace up --controllers N`",
    "controller.quorum.bootstrap.servers": "each broker gets the addresses of its controllers",
}


def refuse_ours(config: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError, which says what to do instead, for a key that the cluster sets for each node. An
    empty value is allowed, because it removes an override."""
    for key, value in config.items():
        instead = _OURS.get(key.replace("_", "."))
        if instead is not None and value:
            raise InvalidArgumentError(f"{key} cannot be overridden: the cluster sets it for each node ({instead})")


def merged(there: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """The stored overrides after the changes in ``wanted``; an empty value removes a key, even a key that no server
    knows.

    Raises InvalidConfigError if a removed key is neither overridden nor known, because it is probably mistyped.
    """
    result = {**there}
    for key, value in wanted.items():
        same = [other for other in result if other.replace("_", ".") == key.replace("_", ".")]
        for other in same:
            del result[other]
        if value:
            result[key] = value
        elif not same:
            from headrace_core.config.server_keys import SERVER

            SERVER.key(key)
    return result


def check(config: Mapping[str, str], *, directory: Path, wanted: Mapping[str, str]) -> None:
    """Check that the nodes of every role accept ``config``. Raises InvalidConfigError or InvalidArgumentError, which
    names all wrong keys, where each was set (``wanted``: on this command line), and how to remove a stored key."""
    if not config:
        return  # skip the import below, which is slow
    from headrace_core.node.config import NodeConfig
    from headrace_core.node.properties import Properties

    stored = [key for key in config if key not in wanted]
    cure = f"headrace up --data {shlex.quote(str(directory))} -d"
    set_in = {key: f"stored in {directory / 'cluster.json'}; `{cure} -c {key}=` removes it" for key in stored}
    state = ClusterState(cluster_id="any", nodes=_EXAMPLES, config=dict(config))
    try:
        refuse_ours(config)
        for node in _EXAMPLES:
            NodeConfig.from_properties(
                Properties(node_files.properties(state, node, directory), set_in=set_in), role=node.role
            )
    except (InvalidArgumentError, InvalidConfigError) as error:
        concerned = [key for key in stored if key in error.message]
        if not concerned or "removes it" in error.message:
            raise
        removal = " ".join(f"-c {key}=" for key in concerned)
        raise type(error)(f"{error.message}; `{cure} {removal}` removes the stored value") from None


#: One example node of each role, for which ``check`` validates the overrides.
_EXAMPLES = tuple(
    Node(role=role, id=1, host="127.0.0.1", port=port, internal_port=port + 1, data_dirs=("/data",))
    for role, port in (
        ("controller", 9093),
        ("broker", 9095),
        ("coordinator", 9097),
        ("registry", 8081),
        ("console", 9090),
    )
)
