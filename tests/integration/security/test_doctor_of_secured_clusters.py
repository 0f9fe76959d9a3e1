"""`headrace doctor` on clusters whose listeners are secured: it names what is wrong with certificates and logins, and
reads what the user may read."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace_core.security.certificates import read_certificates
from headrace_tools.cli.app import run
from headrace_tools.local import ports
from tests.worlds.security import TestAuthority, listening
from tests.worlds.waiting import until

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="r00t";'
UNSIGNED = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredValidatorPrincipalClaimName="sub";'
)
PASSWORD = "pl4nted-s3cret"

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Doctor:
    """Run the doctor with keys of a client; returns its document. Its output never has a password."""

    def examine(address: str, code: int = 1, **keys: Any) -> dict[str, Any]:
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in keys.items()))
        ended = run(["doctor", "-b", address, "--timeout", "5", "-o", "json", "--command-config", str(file)])
        printed = capsys.readouterr()
        assert not any(secret in printed.out + printed.err for secret in (PASSWORD, "r00t"))
        assert ended == code, printed
        found: dict[str, Any] = json.loads(printed.out)
        return found

    return examine


def only(found: dict[str, Any]) -> tuple[str, str, str]:
    """The rule, the text and the cure of the single finding."""
    (finding,) = found["findings"]
    assert (finding["severity"], found["healthy"]) == ("error", False)
    return finding["rule"], finding["what"], finding["cure"]


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("strangers"), "another authority")


def expire(path: Path) -> None:
    """Wait until a certificate has expired; OpenSSL compares whole seconds."""
    ends = read_certificates(path.read_bytes())[0].not_after
    until(lambda: ends + timedelta(seconds=1) < datetime.now(UTC), "the certificate has expired")


def ssl(ca: Path, own: Path | None = None) -> dict[str, Any]:
    keys = {"security.protocol": "SSL", "ssl.truststore.location": ca, "ssl.keystore.location": own}
    return {name: value for name, value in keys.items() if value is not None}


def test_each_fault_of_a_servers_certificate_is_named(
    doctor: Doctor, authority: TestAuthority, strangers: TestAuthority
) -> None:
    other = authority.issue("name.pem", hosts=["broker-7.example"])
    for own, rule, why, cure in (
        (other, "certificate-name", "is not for 127.0.0.1, but for broker-7.example", "issue the certificate"),
        (strangers.issue("s.pem"), "certificate-untrusted", "CN=another authority", "ssl.truststore.location"),
        (authority.issue("soon.pem", begins_in=timedelta(hours=1)), "certificate-not-yet-valid", "clock", "NTP"),
        (authority.issue("user.pem", only_client=True), "certificate-not-accepted", "purpose", "ssl.keystore"),
    ):
        with listening(own) as address:
            found = only(doctor(address, **ssl(authority.ca)))
        assert found[0] == rule
        assert address in found[1]
        assert why in found[1]
        assert cure in found[2]


def test_a_server_with_an_expired_certificate_is_named(doctor: Doctor, authority: TestAuthority) -> None:
    old = authority.issue("old.pem", begins_in=timedelta(days=-2), ends_in=timedelta(seconds=2))
    with listening(old) as address:
        expire(old)
        rule, what, cure = only(doctor(address, **ssl(authority.ca)))
    assert rule == "certificate-expired"
    assert "expired on" in what
    assert "this machine's clock" in what
    assert "headrace certs renew" in cure


def test_an_expired_certificate_of_the_client_is_named_before_any_connection(
    authority: TestAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    own = authority.issue("mine.pem", begins_in=timedelta(days=-2), ends_in=timedelta(seconds=-60))
    keys = [f"{name}={value}" for name, value in ssl(authority.ca, own).items()]
    assert run(["doctor", "-b", "127.0.0.1:1", *(part for key in keys for part in ("-X", key))]) != 0
    said = capsys.readouterr().err
    assert f"ssl.keystore.location={own}" in said
    assert "headrace certs renew" in said


def test_each_fault_of_a_clients_certificate_is_named(
    doctor: Doctor, authority: TestAuthority, strangers: TestAuthority
) -> None:
    with listening(authority.issue("server.pem"), authority.ca) as address:
        rule, what, cure = only(doctor(address, **ssl(authority.ca)))
        assert rule == "client-certificate-required"
        assert "requires a certificate of the client" in what
        assert "ssl.keystore.location" in cure
        rule, what, cure = only(doctor(address, **ssl(authority.ca, strangers.issue("mine.pem", hosts=()))))
        assert rule == "client-certificate-refused"
        assert "issued by CN=another authority" in what
        assert "ssl.truststore.location of the listener" in cure
        early = authority.issue("early.pem", hosts=(), begins_in=timedelta(hours=1))
        rule, what, cure = only(doctor(address, **ssl(authority.ca, early)))
        assert (rule, "not valid before" in what, "NTP" in cure) == ("client-certificate-refused", True, True)


def test_a_side_that_does_not_encrypt_is_named(doctor: Doctor, authority: TestAuthority) -> None:
    with listening(authority.issue("both.pem")) as address:
        rule, what, cure = only(doctor(address))
        assert (rule, "the server encrypts" in what) == ("tls-required", True)
        assert "security.protocol=SSL or SASL_SSL" in cure
    with listening(None) as address:
        rule, what, cure = only(doctor(address, **ssl(authority.ca)))
        assert (rule, "the server does not encrypt" in what) == ("tls-not-served", True)
        assert "security.protocol=PLAINTEXT" in cure


# -- logins ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "listener.name.client.oauthbearer.sasl.jaas.config": UNSIGNED,
    }
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, mode="inprocess", secure=True, config=config
    ) as running:
        with Admin(login(running, "PLAIN", "root", "r00t")) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
            )
            admin.create_topics(["orders", "secrets"])
            admin.create_acls(
                [
                    AclBinding(
                        resource_type=ResourceType.TOPIC,
                        resource_name="orders",
                        principal="User:alice",
                        operation=AclOperation.ALL,
                    )
                ]
            )
        yield running


def encrypted(cluster: LocalCluster, **more: Any) -> dict[str, Any]:
    keys = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.directory / "security" / "ca.pem"),
    }
    return keys | more


def login(cluster: LocalCluster, mechanism: str, user: str, password: str, **more: Any) -> dict[str, Any]:
    given = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return encrypted(cluster, **given, **more)


def bearer(user: str, **claims: float) -> str:
    """An unsigned token (RFC 7519), which the listener takes for development."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'sub': user, **claims})}."


def refused(doctor: Doctor, cluster: LocalCluster, keys: dict[str, Any]) -> tuple[str, str, str]:
    rule, what, cure = only(doctor(cluster.bootstrap_servers, **keys))
    assert cluster.bootstrap_servers in what
    return rule, what, cure


@pytest.mark.parametrize(("user", "password"), [("alice", "wr0ng"), ("nobody", PASSWORD)])
def test_a_wrong_user_or_password_is_named(doctor: Doctor, cluster: LocalCluster, user: str, password: str) -> None:
    rule, what, cure = refused(doctor, cluster, login(cluster, "SCRAM-SHA-512", user, password))
    assert rule == "login-refused"
    assert f"{user!r}" in what
    assert "sasl.password" in cure
    assert "headrace users list" in cure


def test_a_mechanism_that_the_listener_lacks_is_named(doctor: Doctor, cluster: LocalCluster) -> None:
    rule, what, cure = refused(doctor, cluster, login(cluster, "SCRAM-SHA-256", "alice", PASSWORD))
    assert rule == "sasl-mechanism"
    assert "PLAIN, SCRAM-SHA-512, OAUTHBEARER" in what
    assert "sasl.enabled.mechanisms" in cure


def test_a_client_without_a_login_at_a_listener_with_one_is_named(doctor: Doctor, cluster: LocalCluster) -> None:
    rule, what, cure = refused(doctor, cluster, encrypted(cluster, **{"security.protocol": "SSL"}))
    assert (rule, "SASL_SSL" in what) == ("sasl-required", True)
    assert "sasl.mechanism" in cure


def test_a_login_at_a_listener_without_logins_is_named(doctor: Doctor, authority: TestAuthority) -> None:
    with listening(authority.issue("nosasl.pem")) as address:
        keys = {"sasl.mechanism": "PLAIN", "sasl.username": "root", "sasl.password": "r00t"}
        rule, _, cure = only(doctor(address, **{**ssl(authority.ca), "security.protocol": "SASL_SSL", **keys}))
    assert rule == "sasl-not-served"
    assert "security.protocol=SSL" in cure


def test_an_expired_bearer_token_is_named(doctor: Doctor, cluster: LocalCluster) -> None:
    now_s = time.time()
    token = bearer("root", iat=now_s - 900, exp=now_s - 600)
    keys = encrypted(cluster, **{"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": token})
    rule, what, cure = refused(doctor, cluster, keys)
    assert (rule, "the token expired" in what) == ("token-refused", True)
    assert "by this machine's clock" in what
    assert "sasl.oauthbearer.token.endpoint.url" in cure
    token = bearer("root", iat=now_s, exp=now_s + 600)
    keys["sasl.oauthbearer.token"] = token
    assert doctor(cluster.bootstrap_servers, code=0, **keys)["healthy"]


def test_a_token_endpoint_that_does_not_answer_is_named(doctor: Doctor, cluster: LocalCluster) -> None:
    (port,) = ports.pick(1)
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
        "sasl.oauthbearer.client.credentials.client.id": "etl",
        "sasl.oauthbearer.client.credentials.client.secret": "r00t",
    }
    rule, what, _ = refused(doctor, cluster, encrypted(cluster, **given))
    assert (rule, "refused" in what) == ("token-endpoint", True)


def test_an_expired_delegation_token_is_named(doctor: Doctor, cluster: LocalCluster) -> None:
    with Admin(login(cluster, "SCRAM-SHA-512", "alice", PASSWORD)) as admin:
        token = admin.create_delegation_token()
        keys = encrypted(cluster, **{"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": token.jaas_config})
        assert doctor(cluster.bootstrap_servers, code=0, **keys)["healthy"]
        admin.expire_delegation_token(token.hmac)
    rule, what, cure = refused(doctor, cluster, keys)
    assert rule == "token-refused"
    assert token.token_id in what
    assert "headrace tokens list" in cure
    assert "delegation.token.secret.key" in cure


# -- rights ------------------------------------------------------------------------------------------------------------


def test_the_doctor_reads_what_the_user_may_read_and_names_the_rest(doctor: Doctor, cluster: LocalCluster) -> None:
    """Nothing is wrong with the cluster, so nothing is found; and the nodes describe themselves to every user."""
    found = doctor(cluster.bootstrap_servers, code=0, **login(cluster, "SCRAM-SHA-512", "alice", PASSWORD))
    assert found["findings"] == []
    missed = {each["what"]: each["why"] for each in found["not_asked"]}
    assert "CLUSTER_AUTHORIZATION_FAILED" in missed["the quorum"]
    assert "CLUSTER_AUTHORIZATION_FAILED" in missed["log directories of broker 1"]
    assert not {each for each in missed if each.startswith(("broker 1 about", "coordinator 1 about"))}
    assert PASSWORD not in str(missed)


def test_a_user_with_the_right_to_describe_reads_all_that_clients_can_read(
    doctor: Doctor, cluster: LocalCluster
) -> None:
    rights = [
        AclBinding(resource_type=kind, resource_name=name, principal="User:watcher", operation=operation)
        for kind, name in (
            (ResourceType.CLUSTER, "kafka-cluster"),
            (ResourceType.TOPIC, "*"),
            (ResourceType.GROUP, "*"),
        )
        for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        if not (kind is ResourceType.GROUP and operation is AclOperation.DESCRIBE_CONFIGS)
    ]
    with Admin(login(cluster, "PLAIN", "root", "r00t")) as admin:
        admin.create_acls(rights)
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("watcher", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
        )
    found = doctor(cluster.bootstrap_servers, code=0, **login(cluster, "SCRAM-SHA-512", "watcher", PASSWORD))
    assert [each["what"] for each in found["not_asked"]] == ["controller 1 about itself"]
