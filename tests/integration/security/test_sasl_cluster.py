"""A cluster whose clients authenticate by SASL over TLS: the SDK with each login, right and wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.errors import HeadraceError, SaslAuthenticationFailedError
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import check_in_time

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="r00t";'
PASSWORD = "pl4nted-s3cret"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root;User:alice",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "connections.max.reauth.ms": "1500",
    }
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, mode="inprocess", secure=True, config=config
    ) as running:
        with Admin(login(running, "PLAIN", "root", "r00t")) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("alice", PASSWORD, each) for each in ScramMechanism]
            )
            admin.create_topics(["orders"])
        yield running


def login(cluster: LocalCluster, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.directory / "security" / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_streams_outlive_their_session(cluster: LocalCluster, mechanism: str) -> None:
    config = login(cluster, mechanism, "alice", PASSWORD)
    group = f"group-{mechanism}"
    with (
        Producer(config) as producer,
        Consumer({**config, "group.id": group, "auto.offset.reset": "earliest"}) as consumer,
    ):
        consumer.subscribe(["orders"])
        sent, ends_s = 0, time.monotonic() + 3.5  # more than two sessions
        got: list[bytes | None] = []
        while time.monotonic() < ends_s or sent <= 20:
            producer.send("orders", value=mechanism.encode()).result(timeout=10)
            sent += 1
            got += [record.value for record in consumer.poll(timeout=0.05)]
        got += [record.value for record in read_to_end(consumer)]
        assert got.count(mechanism.encode()) == sent


def test_wrong_credentials_are_a_quick_typed_error_without_the_password(cluster: LocalCluster) -> None:
    for user, password in (("alice", "wr0ng"), ("nobody", "wr0ng")):
        started_s = time.monotonic()
        with Admin(login(cluster, "SCRAM-SHA-512", user, password)) as admin, pytest.raises(HeadraceError) as caught:
            admin.list_topics()
        assert isinstance(caught.value, SaslAuthenticationFailedError), caught.value
        assert password not in str(caught.value)
        check_in_time(started_s, 15, "the time-out of a call is a minute")
