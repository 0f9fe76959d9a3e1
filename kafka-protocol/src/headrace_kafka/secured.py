"""Builds the security of the listeners for Kafka's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.tls import TlsSettings, TlsSource

from .connections import ListenerSecurity
from .sasl import SaslOffer
from .settings import KafkaSettings
from .tls import NONE, ListenerTls

#: Makes the SASL mechanisms of a listener, from the listener's name and its configuration by key.
MakeOffer = Callable[[str, Mapping[str, Any]], SaslOffer]


def listener_security(
    config: NodeConfig, settings: KafkaSettings, make_offer: MakeOffer
) -> dict[str, ListenerSecurity]:
    """The security of each Kafka listener. Raises InvalidConfigError, which names the listener, the key and the
    file."""
    found: dict[str, ListenerSecurity] = {}
    for listener in settings.listeners:
        protocol = settings.protocols[listener.name]
        values = config.listener_values(listener.name)
        try:
            found[listener.name] = _security_of(protocol, values, make_offer, listener.name)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"listener {listener.name}: {error.message}") from None
    return found


def _security_of(
    protocol: SecurityProtocol, values: Mapping[str, Any], make_offer: MakeOffer, name: str
) -> ListenerSecurity:
    tls = None
    if protocol.encrypted:
        own = TlsSettings.of(values)
        client_auth = own.client_auth
        tls = ListenerTls(TlsSource(own, needs_key=True, needs_trust=client_auth != NONE), client_auth)
    return ListenerSecurity(
        protocol,
        tls,
        make_offer(name, values) if protocol.sasl else None,
        values["connections.max.reauth.ms"],
        values["connection.failed.authentication.delay.ms"],
        values["sasl.server.max.receive.size"],
    )
