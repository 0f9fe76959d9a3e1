"""Nodes whose clients have two listeners: one takes certificates, the other one passwords and tokens. These are the
keys of deploy/compose.secure.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace import Admin, Consumer, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import BootstrapError, SaslAuthenticationFailedError, TopicAuthorizationFailedError
from headrace_tools.local import nodes, security
from tests.worlds.waiting import until

PASSWORD = "pl4nted-alice"
SASL = {
    "listener.security.protocol.map": "client:SSL,clientsasl:SASL_SSL,internal:SSL,kafka:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "ssl.client.auth": "required",
    "listener.name.client.ssl.client.auth": "required",
    "listener.name.clientsasl.ssl.client.auth": "none",
    "listener.name.kafka.ssl.client.auth": "none",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    properties = nodes.properties

    def with_two(state: Any, node: Any, directory: Path) -> dict[str, str]:
        values = properties(state, node, directory) | SASL
        if node.role in ("broker", "coordinator"):
            values["listeners"] += ",clientsasl://127.0.0.1:0"
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "properties", with_two)
        with LocalCluster(
            brokers=2, controllers=1, coordinators=1, kafka=True, mode="inprocess", secure=True
        ) as running:
            with admin_of(running) as admin:
                admin.create_topics(["orders", "payroll"])
                admin.alter_user_scram_credentials(
                    [UserScramCredentialUpsertion("alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
                )
                admin.create_acls(
                    [
                        may(ResourceType.TOPIC, "orders", AclOperation.READ),
                        may(ResourceType.TOPIC, "orders", AclOperation.WRITE),
                        may(ResourceType.GROUP, "g", AclOperation.READ),
                    ]
                )
            yield running


def may(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(resource_type=kind, resource_name=name, principal="User:alice", operation=operation)


def with_certificate(cluster: LocalCluster) -> dict[str, Any]:
    place = security.directory_of(cluster.directory)
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": str(place / "ca.pem"),
        "ssl.certificate.location": str(place / "admin.pem"),
        "ssl.key.location": str(place / "admin.pem"),
    }


def with_password(cluster: LocalCluster, password: str = PASSWORD) -> dict[str, Any]:
    place = security.directory_of(cluster.directory)
    return {
        "bootstrap.servers": ",".join(addresses(cluster, "broker", "clientsasl")),
        "bootstrap.timeout.ms": 3_000,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(place / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": password,
    }


def addresses(cluster: LocalCluster, role: str, listener: str) -> list[str]:
    files = sorted(cluster.directory.glob(f"{role}-*/node.json"))
    return [json.loads(path.read_text())["listeners"][listener] for path in files]


def admin_of(cluster: LocalCluster) -> Admin:
    return Admin(with_certificate(cluster))


def test_a_user_with_a_password_produces_and_consumes_beside_users_with_certificates(cluster: LocalCluster) -> None:
    with Producer(with_password(cluster)) as producer:
        producer.send("orders", b"by password").result(timeout=30)
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("payroll", b"x").result(timeout=30)
    config = with_password(cluster) | {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.subscribe(["orders"])
        (record,) = until(lambda: consumer.poll(timeout=1.0), "the record")
        consumer.commit()
    assert record.value == b"by password"
    with admin_of(cluster) as admin:
        assert admin.list_topics() == ["orders", "payroll"]


def test_metadata_names_the_addresses_of_the_listener_that_was_asked(cluster: LocalCluster) -> None:
    for config, listener in ((with_certificate(cluster), "client"), (with_password(cluster), "clientsasl")):
        with Admin(config) as admin:
            found = admin.describe_cluster()
        for role, described in (("broker", found.brokers), ("coordinator", found.coordinators)):
            assert sorted(f"{each.host}:{each.port}" for each in described) == sorted(
                addresses(cluster, role, listener)
            )


def test_a_delegation_token_that_was_made_by_certificate_logs_in(cluster: LocalCluster) -> None:
    with admin_of(cluster) as admin:
        token = admin.create_delegation_token()
    config = with_password(cluster) | {"sasl.jaas.config": token.jaas_config}
    del config["sasl.username"], config["sasl.password"]
    with Admin(config) as holder:
        assert "payroll" in holder.list_topics()


def test_a_wrong_password_and_a_missing_certificate_are_refused_with_words(cluster: LocalCluster) -> None:
    with (
        pytest.raises(SaslAuthenticationFailedError, match="SCRAM-SHA-512"),
        Admin(with_password(cluster, "wrong")) as admin,
    ):
        admin.list_topics()
    config = with_password(cluster) | {"bootstrap.servers": cluster.bootstrap_servers}
    with pytest.raises(BootstrapError, match="requires a certificate of the client"), Admin(config) as admin:
        admin.list_topics()
    config = with_certificate(cluster) | {"bootstrap.servers": addresses(cluster, "broker", "clientsasl")[0]}
    with pytest.raises(SaslAuthenticationFailedError, match="not authenticated"), Admin(config) as admin:
        admin.list_topics()


def test_a_listener_takes_the_passwords_of_kafkas_clients(cluster: LocalCluster) -> None:
    config = with_password(cluster) | {"bootstrap.servers": cluster.kafka_bootstrap_servers}
    del config["bootstrap.timeout.ms"]
    producer, failed = confluent_kafka.Producer(config), []
    producer.produce("orders", b"from Kafka's client", on_delivery=lambda error, _: failed.append(error))
    producer.flush(30)
    assert failed == [None]
