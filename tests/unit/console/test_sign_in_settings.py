"""When a console asks for a sign-in, and the configurations that it refuses."""

from __future__ import annotations

import pytest

from headrace_console.cluster import client_config, command
from headrace_core.errors import InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.security.http import HttpGuard
from tests.unit.console.test_gate import settings

SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
CREDENTIALS = {
    "sasl.username": "root",
    "sasl.password": "s3cret",
    "sasl.jaas.config": 'a.ScramLoginModule required username="root" password="s3cret";',
    "sasl.oauthbearer.token": "s3cret",
    "oauth.cb": "s3cret",
    "sasl_password": "s3cret",
}


def test_an_open_cluster_has_no_sign_in() -> None:
    assert not settings().has_sign_in
    assert not settings(client={"security.protocol": "PLAINTEXT"}).has_sign_in


def test_a_secured_cluster_has_a_sign_in_and_the_console_no_credentials() -> None:
    found = settings(client=SCRAM | CREDENTIALS | {"ssl.ca.location": "/ca.pem"})
    assert found.has_sign_in
    assert found.mechanism == "SCRAM-SHA-512"
    assert found.client == SCRAM | {"ssl.ca.location": "/ca.pem"}
    assert "s3cret" not in repr(found)


def test_the_other_spelling_of_keys_does_not_turn_the_sign_in_off() -> None:
    found = settings(client={"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_password": "s3cret"})
    assert found.has_sign_in
    assert "s3cret" not in repr(found)


def test_a_sign_in_is_turned_off_on_request_alone() -> None:
    found = settings(client=SCRAM | CREDENTIALS, sign_in=False)
    assert not found.has_sign_in
    assert found.client["sasl.username"] == "root"


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({"security.protocol": "SSL"}, "a listener with only certificates"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism=GSSAPI: users of the console sign in with a password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, r"sasl\.mechanism=OAUTHBEARER"),
        ({"security.protocol": "TLS"}, r"security\.protocol=TLS: write one of"),
    ],
)
def test_a_listener_without_passwords_is_refused_with_the_cure(client: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        settings(client=client)


@pytest.mark.parametrize(
    "listener", ["http://0.0.0.0:9090", "http://:9090", "http://10.0.0.5:9090", "http://[::]:9090"]
)
def test_passwords_do_not_cross_a_network_unencrypted(listener: str) -> None:
    with pytest.raises(InvalidConfigError, match="passwords would cross the network unencrypted"):
        settings(client=SCRAM, listeners=[listener])
    assert not settings(listeners=[listener]).has_sign_in  # an open cluster: as before


@pytest.mark.parametrize("listener", ["http://127.0.0.1:0", "http://localhost:0", "http://[::1]:0"])
def test_passwords_may_be_typed_on_this_machine(listener: str) -> None:
    assert settings(client=SCRAM, listeners=[listener]).has_sign_in


def test_https_needs_a_certificate() -> None:
    with pytest.raises(InvalidConfigError, match=r"https needs a certificate; set ssl\.keystore\.location"):
        settings(listeners=["https://127.0.0.1:0"], guard=HttpGuard())


def test_a_wrong_proxy_is_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"console\.trusted\.proxies=proxy\.example"):
        settings(trusted_proxies=["proxy.example"])


@pytest.mark.parametrize("password", ["${env:HOME}", "x${file:/etc/passwd}", "${file:/run/admin:password}"])
def test_a_typed_password_is_no_reference_to_a_secret_of_the_console(password: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError) as caught:
        client_config(settings(client=SCRAM), ("alice", password))
    assert password not in caught.value.message
    assert client_config(settings(client=SCRAM), ("alice", "${other}"))["sasl.password"] == "${other}"


def test_commands_name_the_file_with_the_credentials_of_the_user() -> None:
    words = command(settings(client=SCRAM), "topics", "list")
    assert words[-2:] == ["--command-config", "client.properties"]
    assert "--command-config" not in command(settings(), "topics", "list")
