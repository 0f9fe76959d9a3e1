"""A node's configuration: the values of its properties file, with ``-o`` overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config.security_keys import PER_LISTENER, PER_LISTENER_PREFIXES
from ..config.server_keys import SERVER, effective, listener_values, topic_defaults
from ..errors import InvalidConfigError
from ..security.protocols import SecurityProtocol, parse_protocol_map, protocols_of
from .listeners import (
    INTERNAL,
    ListenerAddress,
    Voter,
    check_advertised,
    parse_addresses,
    parse_listeners,
    parse_voters,
    speaks_kafka,
)
from .properties import Properties

#: Roles that serve only HTTP and store nothing on disk: nodes of these roles have neither gRPC listeners nor data
#: directories.
HTTP_ROLES = ("registry", "console")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A node's configuration: the checked values that every role needs, and all values by name.

    ``node_id`` is -1 if no id is configured (a controller needs an id). ``given``: the typed values that were set,
    without defaults. A node of HTTP_ROLES has no ``listeners`` and no ``log_dirs``; its ``state_file`` is empty unless
    it is configured.
    """

    role: str
    node_id: int
    log_dirs: tuple[str, ...]
    listeners: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    voters: tuple[Voter, ...]
    controller_addresses: tuple[str, ...]
    state_file: str
    log_level: str
    #: The security protocol of each listener.
    protocols: Mapping[str, SecurityProtocol]
    values: Mapping[str, Any]
    given: Mapping[str, Any]

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, role: str) -> NodeConfig:
        """Check a node's properties. Raises InvalidConfigError for an unknown key (with "did you mean"), an invalid
        value or contradicting keys."""
        given = SERVER.parse(
            properties,
            defaults=False,
            set_in=properties.set_in if isinstance(properties, Properties) else None,
        )
        values = {name: key.default for name, key in SERVER.keys.items()} | given
        SERVER.check_together(effective(values, given) | {"process.roles": [role]})
        roles = values["process.roles"]
        if roles and role not in roles:
            raise InvalidConfigError(
                f"process.roles={','.join(roles)}: this program is a {role}; set process.roles={role}, or start "
                f"headrace-{roles[0]}"
            )
        if len(roles) > 1:
            raise InvalidConfigError(
                f"process.roles={','.join(roles)}: a Headrace process has one role; start one program for each role"
            )
        is_http = role in HTTP_ROLES
        listeners = () if is_http else parse_listeners(values["listeners"])
        if not is_http and not any(listener.name == INTERNAL for listener in listeners):
            raise InvalidConfigError("listeners: no internal listener; add one, such as internal://127.0.0.1:19095")
        kafka = next((each for each in listeners if speaks_kafka(each.name)), None)
        if kafka is not None and role != "broker":
            raise InvalidConfigError(
                f"listeners={kafka}: only brokers speak Kafka's protocol, not a {role}; leave it out"
            )
        wanted = () if is_http else parse_listeners(values["advertised.listeners"], key="advertised.listeners")
        check_advertised(listeners, wanted)
        names = [listener.name for listener in listeners]
        protocols = protocols_of(names, parse_protocol_map(values["listener.security.protocol.map"]))
        for name in given:
            _check_listener_key(name)
        voters = parse_voters(values["controller.quorum.voters"])
        key = "controller.quorum.bootstrap.servers"
        log_dirs = () if is_http else _log_dirs(values, role)
        return cls(
            role=role,
            node_id=_node_id(values, role),
            log_dirs=log_dirs,
            listeners=listeners,
            advertised=wanted,
            voters=voters,
            controller_addresses=parse_addresses(values[key], key=key) or tuple(voter.address for voter in voters),
            state_file=values["runtime.state.file"] or ("" if is_http else f"{log_dirs[0]}/node.json"),
            log_level=values["log.level"],
            protocols=protocols,
            values=values,
            given=given,
        )

    def listener(self, name: str) -> ListenerAddress | None:
        return next((listener for listener in self.listeners if listener.name == name), None)

    def listener_values(self, name: str) -> dict[str, Any]:
        """Return all values by name for one listener; values of ``listener.name.NAME.`` keys replace the general values
        (server_keys.listener_values). Raises InvalidConfigError."""
        return listener_values(self.values, name)

    def topic_defaults(self) -> dict[str, Any]:
        """Return this node's defaults for topic keys, as typed values."""
        return topic_defaults(dict(self.given))

    def notes(self) -> list[str]:
        """Return a warning for each configured key that Headrace has replaced by another key."""
        return SERVER.notes(self.given)


def _check_listener_key(name: str) -> None:
    """Raise InvalidConfigError for a key ``listener.name.NAME.KEY`` whose KEY a listener cannot have."""
    if not name.startswith("listener.name."):
        return
    listener, _, key = name.removeprefix("listener.name.").partition(".")
    mechanism, _, rest = key.partition(".")
    if rest.startswith("sasl.") and mechanism not in ("sasl", "ssl"):
        return  # a key of one mechanism
    if key.startswith(PER_LISTENER_PREFIXES):
        try:
            SERVER.key(key)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{name}: {error.message}") from None
    elif key not in PER_LISTENER:
        raise InvalidConfigError(
            f"{name}: listener {listener} cannot have its own {key!r}; it can have its own "
            f"{', '.join(sorted(PER_LISTENER))}, and keys that begin with ssl. or sasl."
        )


def _log_dirs(values: Mapping[str, Any], role: str) -> tuple[str, ...]:
    if role == "controller" and values["metadata.log.dir"]:
        return (values["metadata.log.dir"].rstrip("/") or "/",)
    directories = values["log.dirs"] or ([values["log.dir"]] if values["log.dir"] else [])
    if not directories:
        raise InvalidConfigError("log.dirs is not set: name the directories for this node's data")
    trimmed = tuple(directory.rstrip("/") or "/" for directory in directories)
    if len(set(trimmed)) != len(trimmed):
        raise InvalidConfigError(f"log.dirs={','.join(directories)}: a directory is named twice; name each once")
    return trimmed


def _node_id(values: Mapping[str, Any], role: str) -> int:
    node_id, broker_id = int(values["node.id"]), int(values["broker.id"])
    if role == "broker" and broker_id >= 0:
        if node_id >= 0 and node_id != broker_id:
            raise InvalidConfigError(f"node.id={node_id} and broker.id={broker_id} mean the same; keep one of them")
        return broker_id
    if role == "controller" and node_id < 0:
        raise InvalidConfigError("node.id is not set: a controller needs one, such as node.id=1")
    return node_id
