"""The gateway's settings, derived from the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_core.config import fields_from, from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.connections import AddressLimits
from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.node.listeners import ListenerAddress, check_advertised, parse_listeners, speaks_kafka
from headrace_core.security.protocols import KEY, SecurityProtocol, parse_protocol_map

QUEUED_BYTES = 64 * 1024 * 1024  #: The limit for queued.max.request.bytes=-1, which means no limit in Kafka.
#: Kafka's default of socket.request.max.bytes; Headrace's default of this key is for gRPC requests.
REQUEST_BYTES = 104_857_600

_PORTS = re.compile(r"(?P<name>[A-Za-z0-9_-]+):(?P<base>\d{1,5})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """``broker_ports`` maps a listener name to its base port: the port of broker N is base + N; a listener without a
    base port uses free ports. ``addresses``: the limits of connections of one address. ``request_bytes_max``: maximum
    size of a frame in bytes. ``protocols``: the security protocol of each listener, by name. ``has_tokens``: whether
    delegation tokens exist. ``rack``: the gateway's rack or zone; None without one."""

    listeners: tuple[ListenerAddress, ...] = ()
    advertised: tuple[ListenerAddress, ...] = ()
    broker_ports: Mapping[str, int]
    request_bytes_max: int = REQUEST_BYTES
    queued_bytes_max: int = from_key(
        SERVER, "queued.max.request.bytes", lambda value: value if value >= 0 else QUEUED_BYTES
    )
    connections_max: int = from_key(SERVER, "max.connections")
    addresses: AddressLimits = field(default_factory=AddressLimits)
    idle_ms: int = from_key(SERVER, "connections.max.idle.ms")
    request_timeout_ms: int = from_key(SERVER, "request.timeout.ms")
    fetch_bytes_max: int = from_key(SERVER, "fetch.max.bytes")
    fetch_sessions_max: int = from_key(SERVER, "max.incremental.fetch.session.cache.slots")
    protocols: Mapping[str, SecurityProtocol] = field(default_factory=dict)
    rack: str | None = from_key(SERVER, "broker.rack", lambda value: value or None)
    has_tokens: bool = from_key(SERVER, "delegation.token.secret.key", bool)
    described_partitions_max: int = from_key(SERVER, "max.request.partition.size.limit")

    @classmethod
    def of(cls, config: NodeConfig) -> GatewaySettings:
        """Derive the settings from a node's configuration. Raises InvalidConfigError."""
        values = config.values
        listeners = parse_listeners(values["kafka.listeners"], key="kafka.listeners", any_name=True)
        if not listeners:
            raise InvalidConfigError("kafka.listeners is empty; name one, such as PLAINTEXT://127.0.0.1:9092")
        advertised = parse_listeners(
            values["kafka.advertised.listeners"], key="kafka.advertised.listeners", any_name=True
        )
        check_advertised(listeners, advertised, prefix="kafka.")
        return cls(
            listeners=listeners,
            advertised=advertised,
            broker_ports=_broker_ports(values["kafka.broker.ports"], listeners),
            protocols=_protocols(listeners, parse_protocol_map(values["listener.security.protocol.map"])),
            addresses=AddressLimits.of(values),
            request_bytes_max=config.given.get("socket.request.max.bytes", REQUEST_BYTES),
            **fields_from(cls, values),
        )

    @classmethod
    def of_broker(cls, config: NodeConfig) -> GatewaySettings:
        """Derive the settings of a broker's listeners for Kafka's clients."""
        listeners = tuple(each for each in config.listeners if speaks_kafka(each.name))
        return cls(
            listeners=listeners,
            advertised=tuple(each for each in config.advertised if speaks_kafka(each.name)),
            broker_ports={},
            protocols={each.name: config.protocols[each.name] for each in listeners},
            addresses=AddressLimits.of(config.values),
            request_bytes_max=config.given.get("socket.request.max.bytes", REQUEST_BYTES),
            **fields_from(cls, config.values),
        )


def _protocols(
    listeners: Sequence[ListenerAddress], mapped: Mapping[str, SecurityProtocol]
) -> dict[str, SecurityProtocol]:
    """The security protocol of each listener: from listener.security.protocol.map, or from a listener name that equals
    a protocol. Without a map, listeners with other names are unencrypted."""
    found: dict[str, SecurityProtocol] = {}
    for listener in listeners:
        name = listener.name
        if name.lower() in mapped:
            found[name] = mapped[name.lower()]
        elif name in SecurityProtocol.__members__:
            found[name] = SecurityProtocol(name)
        elif mapped:
            raise InvalidConfigError(
                f"kafka.listeners={listener}: {KEY} does not have the listener {name}; add {name}:PROTOCOL, with "
                f"{', '.join(SecurityProtocol)}"
            )
        else:
            found[name] = SecurityProtocol.PLAINTEXT
    return found


def _broker_ports(items: Sequence[str], listeners: Sequence[ListenerAddress]) -> dict[str, int]:
    ports: dict[str, int] = {}
    for item in items:
        match = _PORTS.match(item)
        if match is None or not 1 <= int(match["base"]) <= 65535:
            raise InvalidConfigError(f"kafka.broker.ports={item}: write NAME:BASE, such as PLAINTEXT:19092")
        name = match["name"].upper()
        if not any(listener.name == name for listener in listeners):
            raise InvalidConfigError(f"kafka.broker.ports={item}: kafka.listeners does not have this listener")
        ports[name] = int(match["base"])
    return ports
