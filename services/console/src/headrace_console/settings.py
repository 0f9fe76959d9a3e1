"""The console's settings, derived from the configuration or given by the command ``headrace console``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_listeners import parse_http_listeners
from headrace_core.node.listeners import ListenerAddress, parse_addresses
from headrace_core.node.properties import read_properties

DEFAULT_PORT = 9090
#: The address that commands use without -b.
DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+\Z")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_WILDCARDS = ("", "0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """``client``: further client keys. ``path_prefix``: "" or a path such as ``/headrace``, without a slash at its end.
    ``allowed_hosts``: lower-case host names. ``registry_urls``: separated by commas; "" without a registry.
    ``directory``: the directory of a local cluster, or ""."""

    listeners: tuple[ListenerAddress, ...]
    bootstrap_servers: tuple[str, ...]
    client: Mapping[str, Any] = field(default_factory=dict)
    path_prefix: str = ""
    is_read_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    registry_urls: str = ""
    directory: str = ""

    @classmethod
    def of(cls, config: NodeConfig) -> ConsoleSettings:
        """The settings of a node. Raises InvalidConfigError."""
        values = config.values
        key = "console.bootstrap.servers"
        return cls.checked(
            listeners=values["console.listeners"],
            bootstrap_servers=parse_addresses(values[key], key=key),
            client=_client(values["console.client.config"]),
            path_prefix=values["console.path.prefix"],
            is_read_only=values["console.read.only"],
            allowed_hosts=values["console.allowed.hosts"],
            registry_urls=",".join(values["console.schema.registry.url"]),
            directory=values["console.cluster.directory"] or "",
        )

    @classmethod
    def checked(
        cls,
        *,
        listeners: list[str],
        bootstrap_servers: tuple[str, ...],
        client: Mapping[str, Any],
        path_prefix: str,
        is_read_only: bool,
        allowed_hosts: list[str],
        registry_urls: str,
        directory: str,
    ) -> ConsoleSettings:
        """Settings from text. Raises InvalidConfigError, which names the key and the legal form."""
        if not bootstrap_servers:
            raise InvalidConfigError(
                f"console.bootstrap.servers is not set: name the cluster's brokers, such as {DEFAULT_BOOTSTRAP}"
            )
        prefix = path_prefix.rstrip("/")
        if prefix and (_PREFIX.match(prefix) is None or any(part in (".", "..") for part in prefix.split("/"))):
            raise InvalidConfigError(f"console.path.prefix={path_prefix}: write a path such as /headrace")
        for host in allowed_hosts:
            if _HOST.match(host) is None:
                raise InvalidConfigError(
                    f"console.allowed.hosts={host}: write a host name without a port, such as console.example.net"
                )
        return cls(
            listeners=parse_http_listeners(listeners, key="console.listeners", example_port=DEFAULT_PORT),
            bootstrap_servers=bootstrap_servers,
            client=client,
            path_prefix=prefix,
            is_read_only=is_read_only,
            allowed_hosts=frozenset(host.lower() for host in allowed_hosts),
            registry_urls=registry_urls,
            directory=directory,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstrap_servers)

    def url(self, port: int) -> str:
        """The URL for people on this machine. ``port``: the bound port of the first listener."""
        host = self.listeners[0].host
        return f"http://{'127.0.0.1' if host in _WILDCARDS else host}:{port}{self.path_prefix}/"


def _client(path: str | None) -> dict[str, str]:
    if not path:
        return {}
    try:
        return dict(read_properties(Path(path)))
    except OSError as error:
        raise InvalidConfigError(f"console.client.config={path}: cannot read the file: {error.strerror}") from error
