"""`headrace up --secure` on real processes: who has the credentials works, who has none is refused, ACLs hold."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from headrace import (
    Admin,
    Consumer,
    LocalCluster,
    Producer,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialUpsertion,
)
from headrace.errors import HeadraceError, TopicAuthorizationFailedError


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0, secure=True, mode="process") as running:
        yield running


def test_the_written_properties_are_all_that_a_client_needs(cluster: LocalCluster) -> None:
    address = {"bootstrap_servers": cluster.bootstrap_servers}
    with Producer.from_properties(cluster.client_properties, **address) as producer:
        producer.send("orders", b"secret").result(60)
    with Consumer.from_properties(cluster.client_properties, **address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        read: list[object] = []
        while not read:
            read += [record.value for record in consumer.poll(timeout=1.0)]
    assert read == [b"secret"]


def test_a_client_without_credentials_and_a_scraper_are_refused(cluster: LocalCluster) -> None:
    with (
        Admin(bootstrap_servers=cluster.bootstrap_servers, bootstrap_timeout_ms=5_000) as admin,
        pytest.raises(HeadraceError),
    ):
        admin.list_topics()
    url = next(node["metrics"] for node in cluster.ps() if node["role"] == "broker")
    with pytest.raises(urllib.error.URLError):  # an untrusted certificate, or 401
        urllib.request.urlopen(url, timeout=30)


def test_a_user_without_an_acl_may_not_write(cluster: LocalCluster) -> None:
    address = {"bootstrap_servers": cluster.bootstrap_servers}
    with Admin.from_properties(cluster.client_properties, **address) as admin:
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("eve", "pw", ScramMechanism.SCRAM_SHA_512)])
        admin.create_topics(["private"])
    eve = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(cluster.directory / "security" / "ca.pem"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "eve",
        "sasl_password": "pw",
    }
    with (
        Producer(**address, **eve) as producer,
        pytest.raises(TopicAuthorizationFailedError),
    ):
        producer.send("private", b"x").result(60)
