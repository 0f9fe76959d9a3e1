"""SCRAM against the vectors of RFC 5802 and RFC 7677, and against every attack that the arithmetic must stop."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import SaslAuthenticationFailedError
from headrace_core.security.sasl.scram import (
    SHA_256,
    SHA_512,
    ScramCredential,
    ScramMechanism,
    credential_of,
    from_sasl_name,
    has_password,
    new_credential,
    salted_password,
    sasl_name,
)
from headrace_core.security.sasl.scram_exchange import ScramClient, ScramServer, Subject

SHA_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1")

RFC_5802 = (
    SHA_1,
    "fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    "QSXCR+Q6sek8bf92",
    (
        "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
)
RFC_7677 = (
    SHA_256,
    "rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "W22ZaJ0SNY7soEsUEjb6gQ==",
    (
        "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
)


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_both_sides_write_the_messages_of_the_rfc(vector) -> None:
    mechanism, client_nonce, server_nonce, salt_text, messages = vector
    salt = base64.b64decode(salt_text)
    credential = credential_of(mechanism, salted_password(mechanism, "pencil", salt, 4096), salt, 4096)
    client = ScramClient(mechanism, "user", "pencil", nonce=lambda: client_nonce)
    server = ScramServer(mechanism, lambda name, token: Subject(credential, name), nonce=lambda: server_nonce)
    first = client.first()
    challenge = server.step(first)
    final = client.step(challenge.data)
    verdict = server.step(final)
    assert [each.decode() for each in (first, challenge.data, final, verdict.data)] == list(messages)
    assert not client.is_complete
    assert client.step(verdict.data) is None
    assert client.is_complete
    assert verdict.identity is not None
    assert verdict.identity.user == "user"


def run(mechanism, client, server):
    """Carry messages until the server is done; returns its identity."""
    data, identity = client.first(), None
    while identity is None:
        step = server.step(data)
        identity = step.identity
        data = client.step(step.data)
    assert client.is_complete
    return identity


def server_of(mechanism, password="secret", *, user="alice", is_real=True, **options):
    made = new_credential(mechanism, password)
    credential = ScramCredential(made.salt, made.stored_key, made.server_key, made.iterations, is_real)
    return ScramServer(mechanism, lambda name, token: Subject(credential, name), **options)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512], ids=lambda each: each.name)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "ü€😀", "CN=alice,O=Example"])
def test_every_user_name_arrives_unchanged(mechanism, user) -> None:
    client = ScramClient(mechanism, user, "secret")
    assert run(mechanism, client, server_of(mechanism)).user == user


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_sasl_names_are_reversible(name) -> None:
    assert from_sasl_name(sasl_name(name), "SCRAM-SHA-256") == name
    assert "," not in sasl_name(name)


def test_a_wrong_password_and_an_unknown_user_get_the_same_error() -> None:
    errors = []
    for server in (server_of(SHA_256), server_of(SHA_256, "wrong", is_real=False)):
        client = ScramClient(SHA_256, "alice", "wrong")
        with pytest.raises(SaslAuthenticationFailedError) as caught:
            run(SHA_256, client, server)
        errors.append(caught.value.message)
    assert errors[0] == errors[1]


def test_a_made_up_credential_is_refused_even_for_the_right_proof() -> None:
    with pytest.raises(SaslAuthenticationFailedError, match="credentials are wrong"):
        run(SHA_256, ScramClient(SHA_256, "alice", "secret"), server_of(SHA_256, "secret", is_real=False))


def test_a_replayed_exchange_fails_at_the_nonce() -> None:
    credential = new_credential(SHA_256, "secret")
    client = ScramClient(SHA_256, "alice", "secret")
    first = client.first()
    server = ScramServer(SHA_256, lambda name, token: Subject(credential, name))
    final = client.step(server.step(first).data)
    assert server.step(final).identity is not None
    again = ScramServer(SHA_256, lambda name, token: Subject(credential, name))
    again.step(first)
    with pytest.raises(SaslAuthenticationFailedError, match="does not belong to this exchange"):
        again.step(final)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"p=tls-unique,,n=a,r=b", "channel binding is not offered"),
        (b"x,,n=a,r=b", "header"),
        (b"n,a=bob,n=alice,r=b", "authorization id"),
        (b"n,,m=x,n=a,r=b", "extension"),
        (b"n,,n=a", "n=USER,r=NONCE"),
        (b"n,,r=b,n=a", "n=USER,r=NONCE"),
        (b"n,,n=a=b,r=c", "=2C or =3D"),
        (b"n,,n=a,r=", "nonce"),
        (b"n,,n=a,r=b\x01", "nonce"),
        (b"n,,n=,r=b", "user name"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "header"),
    ],
)
def test_a_wrong_first_message_is_refused(first, why) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=why):
        server_of(SHA_256).step(first)


def test_the_header_cannot_change_between_the_messages() -> None:
    """A client that says y (it has channel binding) and then n would hide a downgrade."""
    credential = new_credential(SHA_256, "secret")
    client = ScramClient(SHA_256, "alice", "secret", nonce=lambda: "abc")
    server = ScramServer(SHA_256, lambda name, token: Subject(credential, name))
    challenge = server.step(client.first().replace(b"n,,", b"y,,", 1))
    with pytest.raises(SaslAuthenticationFailedError, match="does not belong"):
        server.step(client.step(challenge.data))


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"r=other,s=QQ==,i=4096", "nonce"),
        (b"r=abc,s=QQ==,i=4096", "nonce"),
        (b"r=abcdef,s=QQ==,i=1", "iterations"),
        (b"r=abcdef,s=QQ==,i=4095", "iterations"),
        (b"r=abcdef,s=QQ==,i=99999999", "iterations"),
        (b"r=abcdef,s=QQ==,i=" + b"9" * 5_000, "iterations"),  # Python refuses to parse it
        (b"r=abcdef,s=,i=4096", "iterations"),
        (b"r=abcdef,i=4096,s=QQ==", "r=…,s=…,i=…"),
        (b"e=other-error", "refused"),
    ],
)
def test_a_client_refuses_a_false_or_weak_server(challenge, why) -> None:
    client = ScramClient(SHA_256, "alice", "secret", nonce=lambda: "abc")
    client.first()
    with pytest.raises(SaslAuthenticationFailedError, match=why):
        client.step(challenge)


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient(SHA_256, "alice", "secret", nonce=lambda: "abc")
    client.first()
    client.step(b"r=abcdef,s=QQ==,i=4096")
    for last in (b"v=" + base64.b64encode(bytes(32)), b"", b"x=1"):
        with pytest.raises(SaslAuthenticationFailedError):
            client.step(last)
    assert not client.is_complete


def test_has_password() -> None:
    credential = new_credential(SHA_512, "secret")
    assert has_password(SHA_512, credential, "secret")
    assert not has_password(SHA_512, credential, "Secret")


def test_secrets_do_not_show() -> None:
    credential = new_credential(SHA_512, "secret")
    assert credential.stored_key.hex() not in repr(credential)
    assert repr(credential.stored_key) not in repr(Subject(credential, "alice"))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_get_a_typed_error(first, second) -> None:
    fresh = ScramServer(SHA_256, lambda name, token: Subject(_CREDENTIAL, name))
    for data in (first, second):
        try:
            assert fresh.step(data).identity is None
        except SaslAuthenticationFailedError:
            return


_CREDENTIAL = new_credential(SHA_256, "secret")
