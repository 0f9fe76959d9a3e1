"""The security settings of a client: the credentials of its channels, from its configuration."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.rpc import PLAINTEXT, Channels
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.tls import TlsSettings, TlsSource, set_ciphers


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
    settings = TlsSettings.of(config)
    if not protocol.encrypted:
        given = [key for key, value in config.items() if key.endswith((".location", ".key")) and value]
        named = [key for key in given if key.startswith("ssl.")]
        if named:
            raise InvalidConfigError(
                f"{named[0]} has no effect with security.protocol={protocol}: set security.protocol=SSL or SASL_SSL"
            )
        return PLAINTEXT
    settings.check_for_grpc()
    set_ciphers(settings.cipher_suites)
    return Channels(TlsSource(settings))
