"""Tests what deploy/compose.secure.yaml promises: the cluster in containers, with mutual TLS on every port."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, NewTopic, Producer
from headrace.errors import BootstrapError
from tests.compose.stack import BOOTSTRAP, PROJECT, ROOT, Stack, docker
from tests.worlds.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.xdist_group("compose")]


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
    with pytest.raises(BootstrapError, match="the server encrypts, and this client does not"):
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
    for role, service in (("controller", "controller"), ("broker", "broker"), ("gateway", "gateway"), ("edge", "edge")):
        names = docker("exec", f"{PROJECT}-{service}-1", "ls", "/certs").split()
        own = {name for name in names if name not in ("ca.pem", "health.pem", "token.secret")}
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
        for role in ("controller", "broker", "coordinator", "gateway")
    }
    (secret,) = secrets
    assert len(secret) >= 32
    for name in docker("ps", "-a", "--format", "{{.Names}}", "--filter", f"name={PROJECT}-").split():
        assert secret not in docker("inspect", name)
    for role in ("edge", "registry"):
        assert "token.secret" not in docker("exec", f"{PROJECT}-{role}-1", "ls", "/certs").split()
