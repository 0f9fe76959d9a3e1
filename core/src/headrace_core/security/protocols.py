"""Security protocols of listeners and clients, and ``listener.security.protocol.map``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from ..errors import InvalidConfigError

KEY = "listener.security.protocol.map"
#: The listener that only nodes reach: once security is on, it takes mutual TLS with certificates of nodes.
NODE_LISTENER = "internal"
#: Metadata key of a call for the client's id, and the maximum length of the id.
CLIENT_ID_KEY, CLIENT_ID_CHARS_MAX = "headrace-client-id", 255


class SecurityProtocol(enum.StrEnum):
    """The protection of a connection: ``encrypted`` by TLS, and ``sasl`` if the client authenticates by SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypted(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def parse_protocol_map(items: Iterable[str]) -> dict[str, SecurityProtocol]:
    """Parse the items ``name:PROTOCOL``; names are in lower case in the result. Raises InvalidConfigError."""
    found: dict[str, SecurityProtocol] = {}
    for item in items:
        name, colon, protocol = item.rpartition(":")
        name = name.strip().lower()
        if not colon or not name or protocol.strip().upper() not in SecurityProtocol.__members__:
            raise InvalidConfigError(
                f"{KEY}={item}: write NAME:PROTOCOL, with the protocol {', '.join(SecurityProtocol)}"
            )
        if name in found:
            raise InvalidConfigError(f"{KEY}={item}: listener {name} is given twice")
        found[name] = SecurityProtocol(protocol.strip().upper())
    return found


def protocols_of(listeners: Sequence[str], mapped: Mapping[str, SecurityProtocol]) -> dict[str, SecurityProtocol]:
    """Return the protocol of each listener of a node. Raises InvalidConfigError if some listeners are secured and
    another listener is left open by mistake."""
    named = {name: protocol for name, protocol in mapped.items() if name in listeners}
    if all(protocol is SecurityProtocol.PLAINTEXT for protocol in named.values()):
        return dict.fromkeys(listeners, SecurityProtocol.PLAINTEXT)
    for name in listeners:
        protocol = named.get(name)
        if protocol is None:
            wanted = "SSL" if name == NODE_LISTENER else "SSL, or PLAINTEXT if it stays open"
            raise InvalidConfigError(
                f"{KEY} secures some listeners but does not name {name}: add {name}:{wanted.replace(', or', ' (or')}"
                + (")" if "or PLAINTEXT" in wanted else "")
            )
        if name == NODE_LISTENER and protocol is not SecurityProtocol.SSL:
            secured = next(each for each, its in named.items() if its is not SecurityProtocol.PLAINTEXT)
            raise InvalidConfigError(
                f"{KEY}={name}:{protocol}: listener {secured} is {named[secured]}, so {name} must be SSL: nodes "
                "authenticate each other with certificates; issue them with `headrace certs issue`"
            )
    return {name: named[name] for name in listeners}
