"""TLS between the sockets of a Kafka listener and its connections.

asyncio's own TLS keeps encrypted answers in a buffer that it does not count, and hides handshakes in progress. The
transport of this module writes encrypted bytes directly to the socket's transport. Back-pressure, the count of unread
bytes and all limits are therefore the same with and without TLS::

    socket -> raw transport -> data_received -> decrypt -> Connection.data_received
    socket <- raw transport <- encrypt <- write <- Connection

A connection counts against the limits of the broker from its acceptance on, so unfinished handshakes are bounded too
(connection.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from typing import Any, Protocol, cast

from headrace_core.security.mapping import PrincipalMapper, user_principal
from headrace_core.security.principal import ANONYMOUS, Principal
from headrace_core.security.tls import TlsSource

READ_BYTES = 256 * 1024  #: Maximum number of bytes that the transport decrypts at a time.
WRITE_BYTES = 64 * 1024  #: Maximum number of bytes that the transport encrypts at a time.

NONE, REQUESTED, REQUIRED = "none", "requested", "required"  #: Values of ssl.client.auth.
_VERIFY = {NONE: ssl.CERT_NONE, REQUESTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}


class ListenerTls:
    """TLS of one Kafka listener. New handshakes use changed certificates at once (TlsSource)."""

    def __init__(self, source: TlsSource, client_auth: str) -> None:
        """``client_auth``: none, requested or required."""
        self.context = source.server_context(wants_client=client_auth != NONE)
        self.context.verify_mode = _VERIFY[client_auth]
        self._mapper = PrincipalMapper(source.settings.mapping_rules)

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a client by its certificate (DER); ANONYMOUS without one. Raises
        SaslAuthenticationFailedError as ``user_principal`` does, so a broker refuses the same certificates as a
        node."""
        if certificate is None:
            return ANONYMOUS
        return user_principal(ssl.DER_cert_to_PEM_cert(certificate).encode(), self._mapper)


class SecuredProtocol(Protocol):
    """The connection above the transport: an asyncio.Protocol that also learns how the handshake ended."""

    def connection_made(self, transport: Any, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None, /) -> None: ...

    def secured(self, certificate: bytes | None, /) -> None:
        """Called when the handshake is complete. ``certificate``: the client's verified certificate (DER); None if the
        client sent none."""

    def unsecured(self, why: str, /) -> None:
        """Called when the handshake has failed: the transport closes."""


class TlsTransport(asyncio.Protocol):
    """The protocol of a socket's transport, and the transport of a connection."""

    __slots__ = ("_above", "_incoming", "_is_greeted", "_is_reading", "_is_secure", "_outgoing", "_raw", "_tls")

    def __init__(self, above: SecuredProtocol, context: ssl.SSLContext) -> None:
        self._above = above
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_secure = False
        self._is_greeted = False  # True while a handshake that the client has begun is not complete
        self._is_reading = True
        self._raw: asyncio.Transport = cast("asyncio.Transport", None)

    # -- the protocol of the socket's transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._is_secure or self._shake_hands():
            self._read()

    def eof_received(self) -> bool:
        if self._is_secure:
            return self._above.eof_received()
        self._gone()
        return False

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._gone()
        self._above.connection_lost(error)

    def _gone(self) -> None:
        """Called when the client has closed the connection. Many clients that do not trust the broker's certificate
        close the connection without a TLS alert."""
        if self._is_greeted:
            self._failed("the client closed the connection; it may not trust this certificate")

    def _failed(self, why: str) -> None:
        self._is_greeted = False
        self._above.unsecured(why)

    def _shake_hands(self) -> bool:
        """Continue the handshake; True when it is complete."""
        self._is_greeted = True
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert, which tells the client the reason
            self._failed(_reason(error))
            self._raw.close()
            return False
        self._flush()
        self._is_secure, self._is_greeted = True, False
        self._above.secured(self._tls.getpeercert(binary_form=True))
        return not self._raw.is_closing()

    def _read(self) -> None:
        """Decrypt the arrived bytes, until the connection pauses."""
        while self._is_reading and not self._raw.is_closing():
            try:
                data = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError:  # damaged bytes, or a renegotiation
                self._flush()
                self._raw.abort()
                return
            if not data:  # the client has closed its side
                if not self._above.eof_received():
                    self.close()
                return
            self._above.data_received(data)
        self._flush()  # answers to key updates

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._raw.is_closing():
            self._raw.write(data)

    # -- the transport of the connection ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._encrypt(data)
        self._flush()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            self._encrypt(part)
        self._flush()

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        write, rest = self._tls.write, memoryview(data)
        while rest:
            rest = rest[write(rest[:WRITE_BYTES]) :]

    def close(self) -> None:
        """Send the written bytes, announce the end to the client, and close."""
        if self._is_secure and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # do not wait for the client's own announcement
                self._tls.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._is_reading = False
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._raw.resume_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_secure:
            self._read()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)


def _reason(error: ssl.SSLError) -> str:
    """Return why a handshake failed, with OpenSSL's text."""
    reason = (error.reason or str(error)).lower().replace("_", " ")
    hints = {
        "wrong version number": "the client does not speak TLS, or only a version before 1.2",
        "http request": "the client speaks HTTP without TLS",
        "peer did not return a certificate": "ssl.client.auth=required, and the client has no certificate",
    }
    return f"{reason}: {hints[reason]}" if reason in hints else reason
