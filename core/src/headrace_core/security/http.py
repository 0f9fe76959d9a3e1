"""Security of HTTP listeners: the schema registry, the console, and /metrics.

An ``HttpGuard`` has the TLS context of a listener and the check of each request. A request is admitted with a verified
client certificate (``ssl.client.auth=required``) or with a bearer token of ``http.bearer.tokens.file``; any other
request is answered with 401. The TLS handshake succeeds without a client certificate, so that the client learns from
the 401 answer what is missing. Without ``ssl.client.auth=required`` and without ``http.bearer.tokens.file``, every
request is admitted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidConfigError
from .tls import LOOK_S, TlsSettings, TlsSource, read_secret_file

TOKENS_KEY = "http.bearer.tokens.file"
CHALLENGE = 'Bearer realm="headrace"'  #: The header WWW-Authenticate of a 401 answer.
REFUSAL = (
    "authentication is needed: a client certificate that the server trusts, or the header Authorization: Bearer TOKEN"
)
TOKEN_CHARS_MIN, TOKEN_CHARS_MAX, TOKENS_MAX = 16, 4_096, 100


class HttpGuard:
    """The TLS context of an HTTP listener, and the check of its requests. ``tls`` None: the listener does not encrypt,
    and admits every request."""

    def __init__(
        self, tls: TlsSource | None = None, *, takes_certificates: bool = False, tokens: BearerTokens | None = None
    ) -> None:
        self.tls = tls
        self._takes_certificates = takes_certificates
        self._tokens = tokens

    @classmethod
    def of(cls, values: Mapping[str, Any], *, encrypts: bool, where: str = "") -> HttpGuard:
        """The guard of a listener, from typed values by key. ``encrypts``: whether the listener's URL is https. Raises
        InvalidConfigError."""
        tokens = values.get(TOKENS_KEY)
        if not encrypts:
            if tokens:
                raise InvalidConfigError(
                    f"{where}{TOKENS_KEY}: a token on an unencrypted connection could be read; use https://"
                )
            return cls()
        settings = TlsSettings.of(values)
        takes_certificates = settings.client_auth == "required"
        tls = TlsSource(settings, needs_key=True, needs_trust=takes_certificates, where=where)
        return cls(
            tls, takes_certificates=takes_certificates, tokens=BearerTokens(tokens, where=where) if tokens else None
        )

    @property
    def is_open(self) -> bool:
        """Whether every request is admitted."""
        return not self._takes_certificates and self._tokens is None

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for the listener's socket; None: the listener does not encrypt. The context loads changed
        certificates again."""
        return None if self.tls is None else self.tls.server_context(wants_client=self._takes_certificates)

    def admits(self, authorization: str | None, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a request is admitted. ``authorization``: the request's Authorization header; ``certificate``: the
        client's verified certificate as ``SSLSocket.getpeercert`` returns it, empty or None without one."""
        if self.is_open or (self._takes_certificates and certificate):
            return True
        if self._tokens is None or authorization is None:
            return False
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and self._tokens.has(token.strip())


class BearerTokens:
    """The tokens in a file, one a line; lines that begin with # are comments. The file is read again when it
    changes."""

    def __init__(self, path: str, *, where: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidConfigError for a file that cannot be read, that other users may read, or that has tokens that
        are too short."""
        self._path = path
        self._name = f"{where}{TOKENS_KEY}={path}"
        self._clock = clock
        self._looked_at = clock()
        self._stamp = self._stat()
        self._digests = self._load()

    def has(self, token: str) -> bool:
        """Whether ``token`` is in the file. The duration of the check does not depend on how many characters are
        correct."""
        self._look()
        if len(token) > TOKEN_CHARS_MAX:
            return False
        digest = _digest(token)
        found = [hmac.compare_digest(digest, each) for each in self._digests]  # compares all: equal time
        return any(found)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = self._stat()
        if stamp != self._stamp and stamp is not None:
            try:
                self._digests = self._load()
            except InvalidConfigError:  # a half-written file: the old tokens stay in use until the file is complete
                return
            self._stamp = stamp

    def _stat(self) -> object:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _load(self) -> tuple[bytes, ...]:
        text = read_secret_file(self._path, self._name).decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens or len(tokens) > TOKENS_MAX:
            raise InvalidConfigError(f"{self._name}: the file must have 1 to {TOKENS_MAX} tokens, one a line")
        if any(not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX or " " in token for token in tokens):
            raise InvalidConfigError(
                f"{self._name}: a token must have {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters without blanks; "
                "make one with: openssl rand -base64 32"
            )
        return tuple(_digest(token) for token in tokens)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
