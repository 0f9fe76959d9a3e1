"""The registry's settings, derived from the configuration."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_core.config import fields_from, from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.connections import AddressLimits
from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_listeners import parse_http_listeners
from headrace_core.node.listeners import ListenerAddress, parse_addresses
from headrace_core.security.http import HttpGuard

_URL = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+)(:\d{1,5})?(/[^\s?#]*)?\Z")
_WILDCARDS = ("", "0.0.0.0", "[::]")


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """``advertised_url``: empty if the URL is derived from the first listener. ``bootstrap_servers``: addresses of
    brokers. ``guard``: security of the HTTP listeners. ``addresses``: the limits of connections of one address."""

    listeners: tuple[ListenerAddress, ...]
    advertised_url: str = ""
    bootstrap_servers: tuple[str, ...]
    topic: str = from_key(SERVER, "kafkastore.topic")
    replication_factor: int = from_key(SERVER, "kafkastore.topic.replication.factor")
    write_timeout_s: float = from_key(SERVER, "kafkastore.timeout.ms", _seconds)
    init_timeout_s: float = from_key(SERVER, "kafkastore.init.timeout.ms", _seconds)
    group_id: str = from_key(SERVER, "schema.registry.group.id")
    is_eligible: bool = from_key(SERVER, "leader.eligibility")
    compatibility_level: str = from_key(SERVER, "schema.compatibility.level")
    mode_mutability: bool = from_key(SERVER, "mode.mutability")
    #: Security settings of the registry's clients, without the prefix ``kafkastore.``: security.protocol, and the keys
    #: of ``kafkastore.ssl.`` and ``kafkastore.sasl.``.
    client: Mapping[str, Any] = field(default_factory=dict)
    guard: HttpGuard = field(default_factory=HttpGuard)
    addresses: AddressLimits = field(default_factory=AddressLimits)

    @classmethod
    def of(cls, config: NodeConfig) -> RegistrySettings:
        """Make the settings from the configuration of a node. Raises InvalidConfigError."""
        values = config.values
        listeners = parse_http_listeners(values["registry.listeners"], key="registry.listeners", example_port=8081)
        url = (values["registry.advertised.url"] or "").rstrip("/")
        if url and _URL.match(url) is None:
            raise InvalidConfigError(f"registry.advertised.url={url}: write http://host:port or https://host:port")
        key = "kafkastore.bootstrap.servers"
        servers = parse_addresses(values[key], key=key)
        if not servers:
            raise InvalidConfigError(f"{key} is not set: name the cluster's brokers, such as 127.0.0.1:9095")
        prefixes = ("kafkastore.security.protocol", "kafkastore.ssl.", "kafkastore.sasl.")
        client = {
            name.removeprefix("kafkastore."): value for name, value in config.given.items() if name.startswith(prefixes)
        }
        guard = HttpGuard.of(
            config.listener_values("registry"), encrypts=listeners[0].name == "https", where="registry.listeners: "
        )
        return cls(
            listeners=listeners,
            advertised_url=url,
            bootstrap_servers=servers,
            client=client,
            guard=guard,
            addresses=AddressLimits.of(values),
            **fields_from(cls, values),
        )

    def url(self, port: int) -> str:
        """The URL at which other replicas reach this replica. ``port``: the bound port of the first listener."""
        if self.advertised_url:
            return self.advertised_url
        host = self.listeners[0].host
        return f"{self.listeners[0].name}://{socket.gethostname() if host in _WILDCARDS else host}:{port}"
