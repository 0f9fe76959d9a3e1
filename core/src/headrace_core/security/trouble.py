"""Why a TLS connection fails, in words: expired, wrong name, unknown authority, missing certificate, no TLS at all.

gRPC reports a failed handshake as "unavailable". The functions of this module repeat the handshake with Python's ssl,
which says more. They are for error messages only.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

from .certificates import Certificate, read_der
from .tls import TlsSource

_EXPIRED, _NOT_YET, _NO_ISSUER, _SELF_SIGNED, _SELF_SIGNED_CHAIN, _LOCAL_ISSUER, _BAD_SIGNATURE = (
    10,
    9,
    2,
    18,
    19,
    20,
    7,
)
_HOSTNAME, _IP = 62, 64
#: Seconds that the server has to refuse the client's certificate: in TLS 1.3 it does so after the handshake.
_REFUSAL_S = 0.3


async def why_refused(address: str, tls: TlsSource | None, timeout_s: float = 3.0) -> str | None:
    """Why connections to ``address`` (host:port) fail; None if TLS is not the reason. ``tls``: the client's side; None:
    the client does not encrypt."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(timeout_s):
            if tls is None:
                return await _without_tls(host, int(port))
            return await _with_tls(host, int(port), tls)
    except (OSError, TimeoutError):
        return None


async def _without_tls(host: str, port: int) -> str | None:
    """Whether a server encrypts, although the client does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        if "CERTIFICATE_REQUIRED" not in str(error) and "HANDSHAKE_FAILURE" not in str(error):
            return None
    else:
        writer.close()
    return "the server encrypts, and this client does not: set security.protocol=SSL or SASL_SSL"


async def _with_tls(host: str, port: int, tls: TlsSource) -> str | None:
    context = tls.client_context()
    context.set_alpn_protocols(["h2"])
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return _unverified(host, error, await _certificate(host, port))
    except ssl.SSLError as error:
        return _failed(error, tls)
    try:
        # A gRPC server speaks first, unless it refuses the client's certificate: then it closes the connection.
        async with asyncio.timeout(_REFUSAL_S):
            if await reader.read(1):
                return None
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        return _failed(error, tls)
    except OSError:
        pass
    finally:
        writer.close()
    return _not_accepted(tls) if tls.settings.has_key else _needs_certificate()


async def _certificate(host: str, port: int) -> Certificate | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError:
        return None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return read_der(der) if der else None
    except ValueError:
        return None
    finally:
        writer.close()


def _unverified(host: str, error: ssl.SSLCertVerificationError, certificate: Certificate | None) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        when = "" if certificate is None else f" on {certificate.not_after:%Y-%m-%d %H:%M} UTC"
        return (
            f"the server's certificate expired{when} (this machine's clock: {datetime.now(UTC):%Y-%m-%d %H:%M} "
            "UTC); renew the certificate, or correct the clock"
        )
    if code == _NOT_YET:
        when = "" if certificate is None else f" before {certificate.not_before:%Y-%m-%d %H:%M} UTC"
        return (
            f"the server's certificate is not valid{when}, and this machine's clock says "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; correct the clock"
        )
    if code in (_HOSTNAME, _IP):
        names = () if certificate is None else (*certificate.dns_names, *certificate.addresses)
        return (
            f"the server's certificate is not for {host}, but for {', '.join(names) or 'no name'}; connect to one "
            "of these names, or issue the certificate for this name too"
        )
    if code in (_NO_ISSUER, _SELF_SIGNED, _SELF_SIGNED_CHAIN, _LOCAL_ISSUER, _BAD_SIGNATURE):
        issuer = "" if certificate is None else f" ({certificate.issuer or 'without a name'})"
        return (
            f"the server's certificate comes from an authority that this client does not trust{issuer}; set "
            "ssl.ca.location or ssl.truststore.location to the authority's certificate"
        )
    return f"the server's certificate is not accepted: {error.verify_message}"


def _failed(error: ssl.SSLError, tls: TlsSource) -> str:
    text = str(error)
    if "WRONG_VERSION_NUMBER" in text or "UNEXPECTED_EOF" in text or "RECORD_LAYER_FAILURE" in text:
        return "the server does not encrypt, and this client does: set security.protocol=PLAINTEXT, or use another port"
    if "CERTIFICATE_REQUIRED" in text or ("HANDSHAKE_FAILURE" in text and not tls.settings.has_key):
        return _needs_certificate()
    if "ALERT" in text and tls.settings.has_key:
        return _not_accepted(tls)
    return f"the TLS handshake failed: {error.reason or text}"


def _not_accepted(tls: TlsSource) -> str:
    own = tls.certificate()
    return (
        f"the server does not accept the certificate of this client ({own.subject if own else 'unknown'}): it has "
        "expired, or the server does not trust its authority"
    )


def _needs_certificate() -> str:
    return (
        "the server requires a certificate of the client: set ssl.keystore.location, or ssl.certificate.location and "
        "ssl.key.location"
    )
