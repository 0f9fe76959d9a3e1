"""OAUTHBEARER: tokens with a wrong signature, algorithm or claim are refused."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

from headrace_core.errors import MissingDependencyError, SaslAuthenticationFailedError
from headrace_core.security.sasl.jwks import parse_keys
from headrace_core.security.sasl.jwt import TokenRules, signed_tokens
from headrace_core.security.sasl.oauthbearer import OAuthBearerClient, OAuthBearerServer

NOW_S = 1_800_000_000.0
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})
CURVE = ECKey.generate_key("P-256", {"kid": "two"})
KEYS = parse_keys(json.dumps({"keys": [KEY.as_dict(private=False), CURVE.as_dict(private=False)]}).encode())
RULES = TokenRules(audiences=("headrace",), issuer="https://issuer", scopes=("stream",))
CLAIMS = {
    "sub": "alice",
    "iss": "https://issuer",
    "aud": ["headrace"],
    "scope": "stream other",
    "iat": NOW_S,
    "exp": NOW_S + 60,
}


def signed(key: Any = KEY, algorithm: str = "RS256", kid: str = "one", **claims: Any) -> str:
    body = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    header = {"alg": algorithm, "kid": kid}
    return jws.serialize_compact(header, json.dumps(body).encode(), key, algorithms=[algorithm])


def check(token: str, rules: TokenRules = RULES) -> Any:
    keys_of = lambda kid: [each for each in KEYS if kid in (None, each["kid"])]  # noqa: E731
    return signed_tokens(rules, keys_of, lambda: NOW_S)(token)


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"), [(KEY, "RS256", "one"), (KEY, "PS256", "one"), (CURVE, "ES256", "two")]
)
def test_a_signed_token_names_its_user_and_its_end(key: Any, algorithm: str, kid: str) -> None:
    server = OAuthBearerServer(lambda token: check(token))
    identity = server.step(OAuthBearerClient(signed(key, algorithm, kid)).first()).identity
    assert identity is not None
    assert (identity.user, identity.expires_at_ms) == ("alice", (NOW_S + 60) * 1000)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


PUBLIC_TEXT = KEY.as_pem(private=False).replace(b"-----", b"")  # (the library refuses to sign with a PEM)
FORGED = {
    "alg none": f"{part({'alg': 'none', 'kid': 'one'})}.{part(CLAIMS)}.",
    "alg None": f"{part({'alg': 'None', 'kid': 'one'})}.{part(CLAIMS)}.",
    "an HMAC over the public key": jws.serialize_compact(
        {"alg": "HS256", "kid": "one"}, json.dumps(CLAIMS).encode(), OctKey.import_key(PUBLIC_TEXT), ["HS256"]
    ),
    "another authority": signed(OTHER),
    "an unknown key id": signed(kid="three"),
    "the key of another algorithm": signed(KEY, "RS256", "two"),
    "changed claims": signed().replace(signed().split(".")[1], part({**CLAIMS, "sub": "root"})),
    "no signature": signed().rpartition(".")[0] + ".",
    "not a token": "abc",
    "garbage": "a.b.c",
}  # fmt: skip


def test_a_node_without_the_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(MissingDependencyError, match=r"headrace-core\[oauthbearer\]"):
        signed_tokens(TokenRules(), lambda _: [], lambda: NOW_S)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_token_is_refused(name: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError):
        check(FORGED[name])


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - 31}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"iat": NOW_S + 31}, "iat"),
        ({"nbf": NOW_S + 31}, "nbf"),
        ({"iss": "https://other"}, "iss"),
        ({"aud": "other"}, "aud"),
        ({"aud": None}, "aud"),
        ({"scope": "other"}, "scope stream"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "user name"),
        ({"exp": True}, "exp"),
    ],
)
def test_a_wrong_claim_is_named(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=why):
        check(signed(**claims))


def test_the_server_answers_a_wrong_token_as_rfc_7628_does() -> None:
    server, client = OAuthBearerServer(check), OAuthBearerClient(FORGED["alg none"])
    answer = server.step(client.first())
    assert json.loads(answer.data) == {"status": "invalid_token"}
    with pytest.raises(SaslAuthenticationFailedError):
        server.step(client.step(answer.data) or b"")
    assert not client.is_complete
