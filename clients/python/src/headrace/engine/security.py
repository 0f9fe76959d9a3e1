"""The security settings of a client: the credentials of its channels, from its configuration."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.rpc import PLAINTEXT, Channels
from headrace_core.security.protocols import SecurityProtocol

#: How the keys of certificates and private keys end.
_MATERIAL = (".location", ".key", ".chain", ".certificates")


def channels_of(config: dict[str, Any]) -> Channels:
    """Return the object that opens the channels of a client. Raises InvalidConfigError for keys and files that cannot
    be used, and for credentials that are missing."""
    protocol = SecurityProtocol(config["security.protocol"])
    encrypted = _encrypted(config, protocol)
    if not protocol.sasl:
        return encrypted
    # Import the mechanisms only for clients that authenticate, because the import takes time.
    from headrace_core.rpc.session_channel import SessionChannels
    from headrace_core.security.sasl.client import Login

    return SessionChannels(encrypted.credentials, Login(config), config["client.id"])


def _encrypted(config: dict[str, Any], protocol: SecurityProtocol) -> Channels:
    material = [key for key, value in config.items() if value and key.startswith("ssl.") and key.endswith(_MATERIAL)]
    if not protocol.encrypted and not material:
        return PLAINTEXT
    # Import TLS only for clients that use it, because the import takes time.
    from headrace_core.security.tls import TlsSettings, TlsSource, set_ciphers

    settings = TlsSettings.of(config)
    if not protocol.encrypted:
        named = [key for key in material if key.endswith((".location", ".key"))]
        if named:
            raise InvalidConfigError(
                f"{named[0]} has no effect with security.protocol={protocol}: set security.protocol=SSL or SASL_SSL"
            )
        return PLAINTEXT
    settings.check_for_grpc()
    set_ciphers(settings.cipher_suites)
    return Channels(TlsSource(settings))
