"""OAUTHBEARER (RFC 7628, KIP-255): ``n,[a=authzid],^Aauth=Bearer TOKEN^A[name=value^A…]^A``.

A server that refuses the token answers with a JSON status first; the client sends ^A, and then the exchange fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...errors import SaslAuthenticationFailedError
from .exchange import OAUTHBEARER, Identity, Step, failed
from .jwt import CheckToken

_SEPARATOR = "\x01"
EXTENSIONS_MAX = 32


class OAuthBearerServer:
    """The server's side. The check of a signature takes a tenth of a millisecond, so no step is slow."""

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._failure: SaslAuthenticationFailedError | None = None

    def is_slow(self, data: bytes) -> bool:
        return False

    def step(self, data: bytes) -> Step:
        if self._failure is not None:
            raise self._failure
        authzid, token = _parse(data)
        try:
            identity: Identity = self._check(token)
            if authzid and authzid != identity.user:
                raise failed(OAUTHBEARER, "the authorization id is not the token's user; leave it out")
        except SaslAuthenticationFailedError as error:
            self._failure = error
            return Step(json.dumps({"status": "invalid_token"}).encode())
        return Step(b"", identity)


class OAuthBearerClient:
    """The client's side."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise failed(OAUTHBEARER, "the token is empty, or has spaces or control characters")
        pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in (extensions or {}).items())
        self._message = f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{pairs}{_SEPARATOR}".encode()
        self._refused = False
        self.is_complete = False

    def first(self) -> bytes:
        self.is_complete = True
        return self._message

    def step(self, data: bytes) -> bytes | None:
        if not data:
            return None
        self.is_complete = False
        if self._refused:
            raise failed(OAUTHBEARER, "the server refused the token")
        self._refused = True
        return _SEPARATOR.encode()


def _parse(data: bytes) -> tuple[str, str]:
    """The authorization id, or "", and the token. Raises SaslAuthenticationFailedError."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise failed(OAUTHBEARER, "the client's message is not UTF-8") from None
    header, separator, rest = text.partition(_SEPARATOR)
    flag, comma, authorization = header.partition(",")
    pairs = rest.split(_SEPARATOR)
    if not separator or not comma or flag != "n" or pairs[-2:] != ["", ""] or len(pairs) > EXTENSIONS_MAX + 3:
        raise failed(OAUTHBEARER, "the client's message does not have the form of RFC 7628")
    authzid = authorization.rstrip(",")
    if authzid and not authzid.startswith("a="):
        raise failed(OAUTHBEARER, "the client's message does not have the form of RFC 7628")
    values = [each[len("auth=") :] for each in pairs if each.startswith("auth=")]
    if len(values) != 1:
        raise failed(OAUTHBEARER, "the client's message must contain auth=Bearer TOKEN exactly once")
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise failed(OAUTHBEARER, "the client's message must contain auth=Bearer TOKEN")
    return authzid[2:], token.strip()
