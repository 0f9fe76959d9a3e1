"""Check the bearer tokens of OAUTHBEARER: signed JWTs (RFC 7519) by the keys of an authority, or unsecured JWTs.

The algorithm must be in the list of asymmetric algorithms, and must fit the type of the key. Therefore a token with
``alg: none`` or with an HMAC over a public key is refused before any signature is computed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import MissingDependencyError
from .exchange import OAUTHBEARER, Identity, check_user, failed

TOKEN_CHARS_MAX = 64 * 1024
#: The type of key (RFC 7517's kty) that each accepted algorithm needs.
KEY_TYPES = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The requirements for a token. ``scopes``: a token must have all of these scopes."""

    audiences: Sequence[str] = ()
    issuer: str | None = None
    scopes: Sequence[str] = ()
    scope_claim: str = "scope"
    user_claim: str = "sub"
    clock_skew_s: float = 30.0
    needs_issued_at: bool = True


#: Returns the keys with the given id, or all keys for None; each key is a dict as in RFC 7517.
KeysOf = Callable[[str | None], Sequence[Mapping[str, Any]]]
CheckToken = Callable[[str], Identity]


def signed_tokens(rules: TokenRules, keys_of: KeysOf, now_s: Callable[[], float]) -> CheckToken:
    """Return a check that accepts only tokens with a valid signature. Raises MissingDependencyError."""
    try:
        from joserfc import jws
        from joserfc.errors import JoseError
        from joserfc.jwk import ECKey, OKPKey, RSAKey
    except ImportError:
        raise MissingDependencyError(
            "OAUTHBEARER with signed tokens needs the package joserfc: pip install 'headrace-core[oauthbearer]'"
        ) from None

    kinds: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}

    def verify(token: str, header: Mapping[str, Any]) -> None:
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in KEY_TYPES:
            raise failed(OAUTHBEARER, f"the token's algorithm must be one of {', '.join(KEY_TYPES)}")
        key_id = header.get("kid")
        if key_id is not None and not isinstance(key_id, str):
            raise failed(OAUTHBEARER, "the token's key id is not a string")
        kind = KEY_TYPES[algorithm]
        for each in keys_of(key_id):
            if each.get("kty") != kind or each.get("alg", algorithm) != algorithm or each.get("use", "sig") != "sig":
                continue
            try:
                public = kinds[kind].import_key(dict(each))
                jws.deserialize_compact(token.encode(), public, algorithms=[algorithm])
                return
            except (JoseError, ValueError):
                continue
        raise failed(OAUTHBEARER, "no key of the authority (sasl.oauthbearer.jwks.endpoint.url) verifies the token")

    def check(token: str) -> Identity:
        header, claims = _parts(token)
        verify(token, header)
        return identity_of(claims, rules, now_s())

    return check


def unsecured_tokens(rules: TokenRules, now_s: Callable[[], float]) -> CheckToken:
    """Return a check that accepts only tokens without a signature (``alg: none``). Tokens without a signature prove
    nothing, so they are only for development."""

    def check(token: str) -> Identity:
        header, claims = _parts(token)
        if header.get("alg") != "none" or not token.endswith("."):
            raise failed(OAUTHBEARER, "this listener accepts only unsecured tokens (alg none, no signature)")
        return identity_of(claims, rules, now_s())

    return check


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the claims of a token, without verification. Raises SaslAuthenticationFailedError."""
    parts = token.split(".")
    if len(token) > TOKEN_CHARS_MAX or len(parts) != 3:
        raise failed(OAUTHBEARER, "the token is not a JWT (three parts with dots between them)")
    return _object(parts[0]), _object(parts[1])


def _object(part: str) -> dict[str, Any]:
    try:
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise failed(OAUTHBEARER, "a part of the token is not a JSON object in base64url")
    return found


def claims_of(token: str) -> dict[str, Any]:
    """A token's claims, without a check of its signature, for a client that needs the expiry of its own token. Raises
    SaslAuthenticationFailedError."""
    return _parts(token)[1]


def identity_of(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Identity:
    """Check the claims. Raises SaslAuthenticationFailedError, which names the claim and not its value."""
    expires_s = _seconds(claims, "exp", needed=True)
    issued_s = _seconds(claims, "iat", needed=rules.needs_issued_at)
    not_before_s = _seconds(claims, "nbf", needed=False)
    assert expires_s is not None
    skew_s = rules.clock_skew_s
    if now_s >= expires_s + skew_s:
        raise failed(
            OAUTHBEARER, f"the token expired {now_s - expires_s:.0f} s ago; get a new one, and compare the clocks"
        )
    for name, begins_s in (("nbf", not_before_s), ("iat", issued_s)):
        if begins_s is not None and begins_s > now_s + skew_s:
            raise failed(
                OAUTHBEARER,
                f"the token becomes valid in {begins_s - now_s:.0f} s ({name}); compare the clocks of the authority "
                f"and of "
                "this server",
            )
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise failed(OAUTHBEARER, "the token's issuer (iss) is not sasl.oauthbearer.expected.issuer")
    if rules.audiences:
        audience = claims.get("aud")
        named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        if not any(each in rules.audiences for each in named):
            raise failed(OAUTHBEARER, "the token's audience (aud) is not in sasl.oauthbearer.expected.audience")
    missing = [each for each in rules.scopes if each not in _scopes(claims.get(rules.scope_claim))]
    if missing:
        raise failed(OAUTHBEARER, f"the token lacks the scope {missing[0][:100]}")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str):
        raise failed(OAUTHBEARER, f"the token has no claim {rules.user_claim[:100]} with the user's name")
    return Identity(check_user(user, OAUTHBEARER), OAUTHBEARER, int(expires_s * 1_000))


def _scopes(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _seconds(claims: Mapping[str, Any], name: str, *, needed: bool) -> float | None:
    value = claims.get(name)
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise failed(OAUTHBEARER, f"the token's claim {name} is missing, or is not a time in seconds")
    return float(value)
