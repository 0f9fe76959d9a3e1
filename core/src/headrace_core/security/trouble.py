"""Find out why a TLS connection fails: expired certificate, wrong name, unknown authority, missing certificate, or no
TLS at all.

gRPC reports a failed handshake as "unavailable". The functions of this module repeat the handshake with Python's ssl,
which reports the reason. The functions are for error messages only.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from dataclasses import dataclass
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
#: Seconds to wait for the server's refusal of the client's certificate: in TLS 1.3 a server refuses after the
#: handshake.
_REFUSAL_S = 0.3


class TlsCause(enum.StrEnum):
    """The reason of a failed handshake; a stable name for scripts."""

    SERVER_ENCRYPTS = "tls-required"
    SERVER_DOES_NOT_ENCRYPT = "tls-not-served"
    EXPIRED = "certificate-expired"
    NOT_YET_VALID = "certificate-not-yet-valid"
    WRONG_NAME = "certificate-name"
    UNTRUSTED = "certificate-untrusted"
    NOT_ACCEPTED = "certificate-not-accepted"
    CLIENT_NEEDS_ONE = "client-certificate-required"
    CLIENT_REFUSED = "client-certificate-refused"
    OTHER = "tls-handshake"


@dataclass(frozen=True, slots=True)
class TlsTrouble:
    """A failed handshake: what failed and why (``what``), and what to do (``cure``)."""

    cause: TlsCause
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}; {self.cure}"


async def why_refused(address: str, tls: TlsSource | None, timeout_s: float = 3.0) -> str | None:
    """Return in one line why connections to ``address`` (host:port) fail; None if TLS is not the reason."""
    found = await tls_trouble(address, tls, timeout_s)
    return None if found is None else str(found)


async def tls_trouble(address: str, tls: TlsSource | None, timeout_s: float = 3.0) -> TlsTrouble | None:
    """Return why connections to ``address`` (host:port) fail; None if TLS is not the reason. ``tls``: the client's
    side; None: the client does not encrypt."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(timeout_s):
            if tls is None:
                return await _without_tls(host, int(port))
            return await _with_tls(host, int(port), tls)
    except (OSError, TimeoutError):
        return None


async def _without_tls(host: str, port: int) -> TlsTrouble | None:
    """Return the trouble that the server encrypts and the client does not; None if the server does not encrypt."""
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
    return TlsTrouble(
        TlsCause.SERVER_ENCRYPTS,
        "the server encrypts, but this client does not",
        "set security.protocol=SSL or SASL_SSL",
    )


async def _with_tls(host: str, port: int, tls: TlsSource) -> TlsTrouble | None:
    context = tls.client_context()
    context.set_alpn_protocols(["h2"])
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return _unverified(host, error, await _certificate(host, port))
    except ssl.SSLError as error:
        return _failed(error, tls)
    try:
        # A gRPC server sends the first bytes. If the server refuses the client's certificate, the server closes the
        # connection instead.
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


def _unverified(host: str, error: ssl.SSLCertVerificationError, certificate: Certificate | None) -> TlsTrouble:
    code = error.verify_code
    if code == _EXPIRED:
        when = "" if certificate is None else f" on {_minute(certificate.not_after)}"
        return TlsTrouble(
            TlsCause.EXPIRED,
            f"the server's certificate expired{when} ({_own_clock()})",
            "renew the certificate (`headrace certs renew`, or the company's authority), or correct the clock",
        )
    if code == _NOT_YET:
        when = "" if certificate is None else f" before {_minute(certificate.not_before)}"
        return TlsTrouble(
            TlsCause.NOT_YET_VALID,
            f"the server's certificate is not valid{when} ({_own_clock()})",
            "correct the clock (NTP) of this machine, or of the machine that issued the certificate",
        )
    if code in (_HOSTNAME, _IP):
        names = () if certificate is None else (*certificate.dns_names, *certificate.addresses)
        return TlsTrouble(
            TlsCause.WRONG_NAME,
            f"the server's certificate is not for {host}, but for {', '.join(names) or 'no name'}",
            "connect to one of these names, or issue the certificate for this name too",
        )
    if code in (_NO_ISSUER, _SELF_SIGNED, _SELF_SIGNED_CHAIN, _LOCAL_ISSUER, _BAD_SIGNATURE):
        issuer = "" if certificate is None else f" ({certificate.issuer or 'without a name'})"
        return TlsTrouble(
            TlsCause.UNTRUSTED,
            f"the server's certificate comes from an authority that this client does not trust{issuer}",
            "set ssl.ca.location or ssl.truststore.location to the authority's certificate",
        )
    return TlsTrouble(
        TlsCause.NOT_ACCEPTED,
        f"the server's certificate is not accepted: {error.verify_message}",
        "issue a certificate for a server (`headrace certs issue`), and set ssl.keystore.location of the node",
    )


def _failed(error: ssl.SSLError, tls: TlsSource) -> TlsTrouble:
    text = str(error)
    if "WRONG_VERSION_NUMBER" in text or "UNEXPECTED_EOF" in text or "RECORD_LAYER_FAILURE" in text:
        return TlsTrouble(
            TlsCause.SERVER_DOES_NOT_ENCRYPT,
            "the server does not encrypt, but this client does",
            "set security.protocol=PLAINTEXT, or use the port of another listener",
        )
    if "CERTIFICATE_REQUIRED" in text or ("HANDSHAKE_FAILURE" in text and not tls.settings.has_key):
        return _needs_certificate()
    if "ALERT" in text and tls.settings.has_key:
        return _not_accepted(tls)
    return TlsTrouble(
        TlsCause.OTHER,
        f"the TLS handshake failed: {error.reason or text}",
        "compare ssl.enabled.protocols and ssl.cipher.suites of both sides, and look at the server's log",
    )


def _not_accepted(tls: TlsSource) -> TlsTrouble:
    """Find out why a server has not accepted the client's certificate. gRPC's servers close the connection without a
    reason, so the function can use only the client's own clock and certificate file."""
    own, now = tls.certificate(), datetime.now(UTC)
    subject = own.subject if own else "unknown"
    if own is not None and own.not_after <= now:
        why = f", because it expired on {_minute(own.not_after)} ({_own_clock()})"
        cure = "renew the certificate in ssl.keystore.location (`headrace certs renew`), or correct the clock"
    elif own is not None and own.not_before > now:
        why = f", because it is not valid before {_minute(own.not_before)} ({_own_clock()})"
        cure = "correct this machine's clock (NTP), or wait"
    else:
        why = "" if own is None else f", issued by {own.issuer or 'an authority without a name'}"
        cure = (
            "add its authority to ssl.truststore.location of the listener; if the authority is there, compare the "
            "server's clock with the dates of the certificate"
        )
    return TlsTrouble(
        TlsCause.CLIENT_REFUSED, f"the server does not accept the certificate of this client ({subject}){why}", cure
    )


def _needs_certificate() -> TlsTrouble:
    return TlsTrouble(
        TlsCause.CLIENT_NEEDS_ONE,
        "the server requires a certificate of the client",
        "set ssl.keystore.location, or ssl.certificate.location and ssl.key.location",
    )


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _own_clock() -> str:
    return f"this machine's clock: {_minute(datetime.now(UTC))}"
