"""The settings of a broker's listeners for Kafka's clients, derived from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.config import fields_from, from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.connections import AddressLimits
from headrace_core.node.config import NodeConfig
from headrace_core.node.listeners import ListenerAddress, speaks_kafka
from headrace_core.security.protocols import SecurityProtocol

QUEUED_BYTES = 64 * 1024 * 1024  #: The limit for queued.max.request.bytes=-1, which means no limit in Kafka.
#: Kafka's default of socket.request.max.bytes; Headrace's default of this key is for gRPC requests.
REQUEST_BYTES = 104_857_600


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """``addresses``: the limits of connections of one address. ``request_bytes_max``: maximum size of a frame in bytes.
    ``has_tokens``: whether delegation tokens exist."""

    listeners: tuple[ListenerAddress, ...] = ()
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
    has_tokens: bool = from_key(SERVER, "delegation.token.secret.key", bool)
    described_partitions_max: int = from_key(SERVER, "max.request.partition.size.limit")

    @classmethod
    def of(cls, config: NodeConfig) -> KafkaSettings:
        """Derive the settings from a broker's configuration."""
        listeners = tuple(each for each in config.listeners if speaks_kafka(each.name))
        return cls(
            listeners=listeners,
            protocols={each.name: config.protocols[each.name] for each in listeners},
            addresses=AddressLimits.of(config.values),
            request_bytes_max=config.given.get("socket.request.max.bytes", REQUEST_BYTES),
            **fields_from(cls, config.values),
        )
