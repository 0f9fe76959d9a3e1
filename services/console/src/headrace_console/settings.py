"""The console's settings, derived from the configuration or given by the command ``headrace console``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_core.connections import AddressLimits
from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.node.http_listeners import parse_http_listeners
from headrace_core.node.listeners import ListenerAddress, parse_addresses
from headrace_core.node.properties import read_properties
from headrace_core.security.http import HttpGuard
from headrace_core.security.protocols import SecurityProtocol

from .attempts import Network

DEFAULT_PORT = 9090
#: The address that Headrace's commands use without -b.
DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+\Z")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_WILDCARDS = ("", "0.0.0.0", "[::]")
#: Mechanisms of SASL with a user name and a password, which a person can type.
PASSWORD_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_IDLE_MS, _LIFETIME_MS = 1_800_000, 43_200_000
SCHEMAS_TOPIC = "_schemas"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """``client``: further configuration keys of the console's clients. ``path_prefix``: "" or a path such as
    ``/headrace``, without a slash at its end. ``allowed_hosts``: lower-case host names. ``registry_urls``: separated by
    commas; "" without a registry. ``directory``: the directory of a local cluster, or "".

    ``has_sign_in``: users sign in, and ``client`` has no credentials then. ``session_idle_s``, ``session_life_s``:
    limits of a session. ``proxies``: proxies whose X-Forwarded-For header is trusted. ``guard``: TLS of the listeners,
    and the check of requests if the console has no sign-in. ``registry``: further configuration keys of the schema
    registry's client. ``schemas_topic``: the topic in which the registry stores its schemas; users who are authorized
    to read this topic see the registry's schemas. ``addresses``: the limits of connections of one address.
    """

    listeners: tuple[ListenerAddress, ...]
    bootstrap_servers: tuple[str, ...]
    client: Mapping[str, Any] = field(default_factory=dict)
    path_prefix: str = ""
    is_read_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    registry_urls: str = ""
    directory: str = ""
    has_sign_in: bool = False
    session_idle_s: float = _IDLE_MS / 1_000
    session_life_s: float = _LIFETIME_MS / 1_000
    proxies: tuple[Network, ...] = ()
    guard: HttpGuard = field(default_factory=HttpGuard)
    registry: Mapping[str, Any] = field(default_factory=dict)
    schemas_topic: str = SCHEMAS_TOPIC
    addresses: AddressLimits = field(default_factory=AddressLimits)

    @classmethod
    def of(cls, config: NodeConfig) -> ConsoleSettings:
        """The settings of a node. Raises InvalidConfigError."""
        values = config.values
        key = "console.bootstrap.servers"
        encrypts = any(each.startswith("https:") for each in values["console.listeners"])
        return cls.checked(
            listeners=values["console.listeners"],
            bootstrap_servers=parse_addresses(values[key], key=key),
            client=_client(values["console.client.config"]),
            path_prefix=values["console.path.prefix"],
            is_read_only=values["console.read.only"],
            allowed_hosts=values["console.allowed.hosts"],
            registry_urls=",".join(values["console.schema.registry.url"]),
            directory=values["console.cluster.directory"] or "",
            sign_in=values["console.sign.in"],
            session_idle_ms=values["console.session.idle.timeout.ms"],
            session_lifetime_ms=values["console.session.lifetime.ms"],
            trusted_proxies=values["console.trusted.proxies"],
            guard=HttpGuard.of(config.listener_values("console"), encrypts=encrypts, where="console.listeners: "),
            registry=_registry(values),
            schemas_topic=values["kafkastore.topic"],
            address_limits=AddressLimits.of(values),
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
        sign_in: bool = True,
        session_idle_ms: int = _IDLE_MS,
        session_lifetime_ms: int = _LIFETIME_MS,
        trusted_proxies: Iterable[str] = (),
        guard: HttpGuard | None = None,
        registry: Mapping[str, Any] | None = None,
        schemas_topic: str = SCHEMAS_TOPIC,
        address_limits: AddressLimits | None = None,
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
        addresses = parse_http_listeners(listeners, key="console.listeners", example_port=DEFAULT_PORT)
        if addresses[0].name == "https" and (guard is None or guard.tls is None):
            raise InvalidConfigError("console.listeners: https needs a certificate; set ssl.keystore.location")
        client = {key if "." in key else key.replace("_", "."): value for key, value in client.items()}
        has_sign_in = sign_in and _protocol(client) is not SecurityProtocol.PLAINTEXT
        if has_sign_in:
            client = _without_credentials(client)
            _check_sign_in(client, addresses)
        return cls(
            listeners=addresses,
            bootstrap_servers=bootstrap_servers,
            client=client,
            has_sign_in=has_sign_in,
            session_idle_s=session_idle_ms / 1_000,
            session_life_s=session_lifetime_ms / 1_000,
            proxies=tuple(_network(text) for text in trusted_proxies),
            guard=guard or HttpGuard(),
            registry=registry or {},
            schemas_topic=schemas_topic,
            addresses=address_limits or AddressLimits(),
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
        """The console's URL for a browser on this machine. ``port``: the bound port of the first listener."""
        host = self.listeners[0].host
        shown = "127.0.0.1" if host in _WILDCARDS else host
        return f"{self.listeners[0].name}://{shown}:{port}{self.path_prefix}/"

    @property
    def encrypts(self) -> bool:
        return self.listeners[0].name == "https"

    @property
    def mechanism(self) -> str:
        """The mechanism with which users sign in."""
        return _mechanism(self.client)


def _client(path: str | None) -> dict[str, str]:
    if not path:
        return {}
    try:
        return dict(read_properties(Path(path)))
    except OSError as error:
        raise InvalidConfigError(f"console.client.config={path}: cannot read the file: {error.strerror}") from error


def _registry(values: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate for requests to a registry at an https URL: the node's certificate."""
    if not any(url.startswith("https:") for url in values["console.schema.registry.url"]):
        return {}
    if (values["ssl.keystore.type"] or "PEM").upper() != "PEM" or not values["ssl.truststore.location"]:
        return {}
    found = {"ssl.ca.location": values["ssl.truststore.location"]}
    if values["ssl.keystore.location"]:  # one file with the key and the certificates
        found |= dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), values["ssl.keystore.location"])
    return found


def _protocol(client: Mapping[str, Any]) -> SecurityProtocol:
    text = str(client.get("security.protocol") or "PLAINTEXT").upper()
    try:
        return SecurityProtocol(text)
    except ValueError:
        raise InvalidConfigError(f"security.protocol={text[:40]}: write one of {', '.join(SecurityProtocol)}") from None


def _mechanism(client: Mapping[str, Any]) -> str:
    return str(client.get("sasl.mechanisms") or client.get("sasl.mechanism") or "GSSAPI")


def _without_credentials(client: Mapping[str, Any]) -> dict[str, Any]:
    """The client configuration without credentials: each session adds the name and password of its user."""
    kept = ("sasl.mechanism", "sasl.mechanisms")
    return {key: value for key, value in client.items() if not key.startswith(("sasl.", "oauth.")) or key in kept}


def _check_sign_in(client: Mapping[str, Any], listeners: tuple[ListenerAddress, ...]) -> None:
    """Raises InvalidConfigError if users cannot sign in with a password, or if passwords would cross the network
    unencrypted."""
    off = (
        "or turn the sign-in off, so that every visitor acts as the user of the console's client keys: console.sign.in="
    )
    off += "false (headrace console --no-sign-in)"
    if not _protocol(client).sasl:
        raise InvalidConfigError(
            "security.protocol=SSL: users of the console sign in with a password, but a listener with only "
            "certificates takes no password; name a SASL_SSL listener with SCRAM-SHA-512 in "
            "console.bootstrap.servers, " + off
        )
    mechanism = _mechanism(client)
    if mechanism not in PASSWORD_MECHANISMS:
        raise InvalidConfigError(
            f"sasl.mechanism={mechanism[:40]}: users of the console sign in with a password; set one of "
            f"{', '.join(PASSWORD_MECHANISMS)}, {off}"
        )
    for each in listeners:
        if each.name == "http" and not _is_loopback(each.host):
            raise InvalidConfigError(
                f"console.listeners=http://{each.host}:{each.port}: passwords would cross the network unencrypted; "
                "listen at https:// with ssl.keystore.location (headrace console --certificate FILE), or at 127.0.0.1, "
                "such as behind a proxy with TLS"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidConfigError(
            f"console.trusted.proxies={text[:60]}: write an address or a network, such as 10.0.0.0/8"
        ) from None
