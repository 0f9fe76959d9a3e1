"""Tests what deploy/compose.secure.yaml promises: the cluster in containers, with TLS on every port, certificates for
some users and passwords for others."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import BootstrapError, SaslAuthenticationFailedError, TopicAuthorizationFailedError
from tests.compose.stack import BOOTSTRAP, PROJECT, ROOT, Stack, docker
from tests.worlds.security import alert, token
from tests.worlds.waiting import until

#: The edge's ports for users with passwords and tokens.
SASL_BOOTSTRAP, SASL_KAFKA_BOOTSTRAP = "127.0.0.1:9097", "127.0.0.1:9093"
CONSOLE = "https://127.0.0.1:9090/"
PASSWORD = "pl4nted-alice-s3cret"

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("compose")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COMPOSE_FILE", f"{ROOT}/compose.yaml:{ROOT}/deploy/compose.secure.yaml")
        made = Stack()
        made.down()
        try:
            made.up()
            yield made
        finally:
            made.down()


@pytest.fixture(scope="module")
def client(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """client.properties of the user admin, on the host."""
    place = tmp_path_factory.mktemp("admin")
    stack.compose("cp", "certs:/certs/admin", str(place / "security"))
    path = place / "security" / "client.properties"
    path.write_text(path.read_text().replace("/certs", str(place / "security")))
    return path


def test_the_user_admin_reaches_the_cluster_from_the_host_and_in_containers(stack: Stack, client: Path) -> None:
    stack.compose("run", "--rm", "-T", "admin", "topics", "create", "orders", "-p", "3")
    with Admin.from_properties(client, bootstrap_servers=BOOTSTRAP) as admin:
        assert "orders" in admin.list_topics()
        admin.create_topics([NewTopic("second", partitions=1)])
    with Producer.from_properties(client, bootstrap_servers=BOOTSTRAP) as producer:
        producer.send("orders", b"x", partition=0).result(timeout=60)
    with Consumer.from_properties(
        client, bootstrap_servers=BOOTSTRAP, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["orders"])
        (record,) = until(lambda: consumer.poll(timeout=1.0), "the record")
        assert record.value == b"x"


def test_other_clients_do_not(stack: Stack, client: Path) -> None:
    with pytest.raises(BootstrapError, match="the server encrypts, but this client does not"):
        Admin(bootstrap_servers=BOOTSTRAP, bootstrap_timeout_ms=2_000).list_topics()
    ca = client.parent / "ca.pem"
    with pytest.raises(BootstrapError, match="requires a certificate of the client"):
        Admin(
            bootstrap_servers=BOOTSTRAP,
            bootstrap_timeout_ms=2_000,
            security_protocol="SSL",
            ssl_ca_location=str(ca),
        ).list_topics()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(
            "https://127.0.0.1:8081/subjects", context=ssl.create_default_context(cafile=str(ca)), timeout=10
        )
    assert caught.value.code == 401
    caught.value.close()


def test_containers_have_the_keys_of_their_role_only(stack: Stack) -> None:
    for role in ("controller", "broker", "console", "edge"):
        names = docker("exec", f"{PROJECT}-{role}-1", "ls", "/certs").split()
        own = {name for name in names if name not in ("ca.pem", "health.pem", "token.secret", "console.properties")}
        assert all(name.startswith(f"{role}-") for name in own), names
        assert "ca.key" not in names


def test_the_admin_makes_delegation_tokens_whose_secret_is_in_no_environment(stack: Stack, client: Path) -> None:
    with Admin.from_properties(client, bootstrap_servers=BOOTSTRAP) as admin:
        token = admin.create_delegation_token()
        assert token.token_id in {each.token_id for each in admin.describe_delegation_token()}
    secrets = {
        docker(
            "exec", f"{PROJECT}-{role}-1", "python", "-c", "print(open('/certs/token.secret').read(), end='')"
        ).strip()
        for role in ("controller", "broker", "coordinator")
    }
    (secret,) = secrets
    assert len(secret) >= 32
    for name in docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={PROJECT}-").split():
        assert secret not in docker("inspect", name)
    for role in ("edge", "registry", "console"):
        assert "token.secret" not in docker("exec", f"{PROJECT}-{role}-1", "ls", "/certs").split()


# -- passwords and tokens


@pytest.fixture(scope="module")
def alice(stack: Stack, client: Path) -> dict[str, Any]:
    """The keys of the user alice on the host; alice may read and write sales, and not payroll."""
    password = ("-e", f"PASSWORD={PASSWORD}")
    stack.compose("run", "--rm", "-T", *password, "admin", "users", "create", "alice", "--password-env", "PASSWORD")
    with Admin.from_properties(client, bootstrap_servers=BOOTSTRAP) as admin:
        admin.create_topics(["sales", "payroll"])
        admin.create_acls(
            [
                AclBinding(
                    resource_type=ResourceType.TOPIC,
                    resource_name="sales",
                    principal="User:alice",
                    operation=operation,
                )
                for operation in (AclOperation.READ, AclOperation.WRITE)
            ]
        )
    return {
        "bootstrap.servers": SASL_BOOTSTRAP,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(client.parent / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }


def test_a_user_with_a_password_writes_from_the_host_and_reads_in_a_container(
    stack: Stack, alice: dict[str, Any]
) -> None:
    with Producer(alice) as producer:
        producer.send("sales", b"by password", partition=0).result(timeout=60)
        with pytest.raises(
            TopicAuthorizationFailedError, match="User:alice is not authorized to DESCRIBE topic 'payroll'"
        ):
            producer.send("payroll", b"x").result(timeout=60)
    failures: list[Any] = []
    kafka = confluent_kafka.Producer(alice | {"bootstrap.servers": SASL_KAFKA_BOOTSTRAP})
    kafka.produce("sales", b"by Kafka's client", partition=0, on_delivery=lambda error, _: failures.append(error))
    kafka.flush(60)
    assert failures == [None]
    inside = {key: alice[key] for key in ("security.protocol", "sasl.mechanism", "sasl.username")}
    inside |= {"ssl.ca.location": "/certs/ca.pem", "sasl.password": "${env:PASSWORD}"}
    keys = [word for key, value in inside.items() for word in ("-X", f"{key}={value}")]
    run = ("run", "--rm", "-T", "-e", f"PASSWORD={PASSWORD}", "-e", "HEADRACE_COMMAND_CONFIG=", "admin")
    read = stack.compose(*run, "consume", "-t", "sales", "-p", "0", "-e", "-b", "broker:9097", *keys)
    assert read.splitlines() == ["by password", "by Kafka's client"]


def test_a_wrong_password_is_refused_and_a_delegation_token_logs_in(alice: dict[str, Any], client: Path) -> None:
    with (
        pytest.raises(SaslAuthenticationFailedError, match="the credentials are wrong"),
        Admin(alice | {"sasl.password": "wrong"}) as admin,
    ):
        admin.list_topics()
    with Admin.from_properties(client, bootstrap_servers=BOOTSTRAP) as admin:
        made = admin.create_delegation_token()
    login = {key: value for key, value in alice.items() if key not in ("sasl.username", "sasl.password")}
    with Admin(login | {"sasl.jaas.config": made.jaas_config}) as holder:
        assert "payroll" in holder.list_topics()


def test_users_sign_in_to_the_console_and_see_what_their_acls_allow(alice: dict[str, Any]) -> None:
    with Producer(alice) as producer:
        producer.send("sales", b"for the console", partition=0).result(timeout=60)
    trusted = ssl.create_default_context(cafile=alice["ssl.ca.location"])
    with httpx.Client(base_url=CONSOLE, verify=trusted, headers={"Accept": "text/html"}, timeout=30) as browser:
        assert browser.get("topics").headers["Location"].startswith("/sign-in")
        form = {"user": "alice", "password": "wrong", "token": token(browser.get("sign-in").text)}
        refused = browser.post("sign-in", data=form)
        assert (refused.status_code, alert(refused.text)) == (401, "The cluster refuses this user name and password.")
        answer = browser.post("sign-in", data=form | {"password": PASSWORD})
        assert answer.status_code == 303, alert(answer.text)
        assert "Secure" in answer.headers["Set-Cookie"]
        topics = str(until(lambda: "takes its first sample" not in (text := browser.get("topics").text) and text))
        assert 'name=sales"' in topics
        assert "payroll" not in topics
        assert "for the console" in browser.get("messages?topic=sales&partition=0").text
        hidden = browser.get("topic?name=payroll")
        assert (hidden.status_code, "is not authorized to DESCRIBE topic" in alert(hidden.text)) == (403, True)
