"""Which HTTP requests are admitted: by a client certificate, by a bearer token, or without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.security.http import TOKENS_MAX, BearerTokens, HttpGuard
from headrace_core.security.tls import LOOK_S
from tests.worlds.security import TestAuthority

TOKEN, OTHER = "a-token-of-24-characters", "another-token-with-24-ch"
CERTIFICATE = {"subject": ((("commonName", "prometheus"),),)}


def token_file(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


def guard(tmp_path: Path, **keys: Any) -> HttpGuard:
    authority = TestAuthority(tmp_path / "authority")
    files = {"ssl.keystore.location": authority.issue("own.pem"), "ssl.truststore.location": authority.ca}
    values = {key: str(value) for key, value in files.items()}
    return HttpGuard.of(values | {key.replace("_", "."): value for key, value in keys.items()}, encrypts=True)


def test_without_encryption_or_keys_every_request_is_admitted(tmp_path: Path) -> None:
    assert HttpGuard().admits(None, None)
    assert HttpGuard.of({}, encrypts=False).ssl_context() is None
    assert guard(tmp_path).admits(None, None)


def test_a_certificate_admits_where_certificates_are_required(tmp_path: Path) -> None:
    asked = guard(tmp_path, ssl_client_auth="required")
    assert not asked.is_open
    assert asked.admits(None, CERTIFICATE)
    for certificate in (None, {}):
        assert not asked.admits(None, certificate)
        assert not asked.admits(f"Bearer {TOKEN}", certificate)


def test_one_of_the_tokens_admits(tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens", "# of Prometheus", TOKEN, "", OTHER)
    asked = guard(tmp_path, http_bearer_tokens_file=tokens)
    for header in (f"Bearer {TOKEN}", f"bearer {OTHER}", f"BEARER  {TOKEN} "):
        assert asked.admits(header, None), header
    wrong = ("", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}")
    for header in (*wrong, "Bearer # of Prometheus", "Bearer " + "x" * 10_000, "Bearer \ud800", None):
        assert not asked.admits(header, None), header
    # no certificate was asked for, so none was verified
    assert not asked.admits(None, CERTIFICATE)


def test_a_changed_file_of_tokens_is_taken(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "tokens"
    tokens = BearerTokens(token_file(path, TOKEN), clock=lambda: now[0])
    assert tokens.has(TOKEN)
    token_file(path, OTHER)
    assert not tokens.has(OTHER)
    now[0] += LOOK_S
    assert tokens.has(OTHER)
    assert not tokens.has(TOKEN)
    token_file(path, "short")
    now[0] += LOOK_S
    assert tokens.has(OTHER)  # a file that cannot be used changes nothing
    path.unlink()
    now[0] += LOOK_S
    assert tokens.has(OTHER)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["short"], "must have 16 to"),
        (["a token with blanks in it"], "without blanks"),
        (["# only a comment"], "must have 1 to"),
        ([f"{number:020d}" for number in range(TOKENS_MAX + 1)], "must have 1 to"),
    ],
)
def test_a_file_without_usable_tokens_is_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words) as caught:
        BearerTokens(token_file(tmp_path / "tokens", *lines))
    assert lines[0] not in str(caught.value)


def test_tokens_need_encryption_and_a_file_of_their_owner(tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens", TOKEN)
    with pytest.raises(InvalidConfigError, match="use https"):
        HttpGuard.of({"http.bearer.tokens.file": path}, encrypts=False)
    Path(path).chmod(0o644)
    with pytest.raises(InvalidConfigError, match="mode 0644"):
        BearerTokens(path)
