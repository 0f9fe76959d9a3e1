"""A cluster whose clients authenticate by GSSAPI (Kerberos) over TLS: the SDK and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, Producer
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import HeadraceError, SaslAuthenticationFailedError, TopicAuthorizationFailedError
from tests.worlds.readers import read_to_end
from tests.worlds.security import REALM, Realm, krb5_module, running_realm
from tests.worlds.waiting import check_in_time, until

pytestmark = pytest.mark.timeout(120)

REAUTH_S = 1.5
RULES = r"RULE:[2:$2](admin)s/admin/root/,RULE:[1:$1@$0](.*@HEADRACE\.TEST)s/@.*//"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with running_realm(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(realm: Realm) -> Iterator[LocalCluster]:
    # The nodes' addresses are 127.0.0.1, so clients ask the KDC for kafka/127.0.0.1.
    keytab = realm.keytab("kafka/127.0.0.1", name="kafka")
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": RULES,
        "listener.name.client.gssapi.sasl.jaas.config": krb5_module(keytab, "kafka/127.0.0.1"),
        "connections.max.reauth.ms": str(int(REAUTH_S * 1_000)),
    }
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, mode="inprocess", secure=True, config=config
    ) as running:
        admin_keytab = realm.keytab("alice/admin", name="admin")
        with Admin(login(running, admin_keytab, "alice/admin")) as admin:
            admin.create_topics(["orders", "secrets"])
            admin.create_acls([may_use(ResourceType.TOPIC, "orders", "alice")])
        yield running


@pytest.fixture(scope="module")
def alice(realm: Realm) -> str:
    return realm.keytab("alice")


def may_use(kind: ResourceType, name: str, user: str) -> AclBinding:
    return AclBinding(resource_type=kind, resource_name=name, principal=f"User:{user}", operation=AclOperation.ALL)


def login(cluster: LocalCluster, keytab: str | None, principal: str | None, **more: Any) -> dict[str, Any]:
    keys = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.directory / "security" / "ca.pem"),
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": keytab,
        "sasl.kerberos.principal": principal,
        **more,
    }
    return {key: value for key, value in keys.items() if value is not None}


def failure_of(producer: Producer) -> str:
    """Why a record was not written; empty if it was."""
    try:
        producer.send("orders", value=b"4").result(timeout=20)
    except HeadraceError as error:
        return str(error)
    return ""


def by_cache(cluster: LocalCluster, cache: str) -> dict[str, Any]:
    module = f'com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true ticketCache="{cache}";'
    return login(cluster, None, None, **{"sasl.jaas.config": module})


def test_acls_apply_to_the_mapped_user(cluster: LocalCluster, realm: Realm, alice: str) -> None:
    bob = realm.keytab("bob")
    with Producer(login(cluster, alice, "alice")) as producer:
        assert producer.send("orders", value=b"1").result(timeout=20).topic == "orders"
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("secrets", value=b"1").result(timeout=20)
    with Producer(login(cluster, bob, f"bob@{REALM}")) as producer, pytest.raises(TopicAuthorizationFailedError):
        producer.send("orders", value=b"1").result(timeout=20)


def test_a_ticket_of_kinit_suffices(cluster: LocalCluster, realm: Realm, alice: str) -> None:
    with Producer(by_cache(cluster, realm.kinit("alice", alice))) as producer:
        assert producer.send("orders", value=b"2").result(timeout=20).offset >= 0


def test_streams_outlive_their_session(cluster: LocalCluster, realm: Realm) -> None:
    """A session ends after connections.max.reauth.ms, and the tickets end even earlier than the test."""
    alice = realm.keytab("short", options='-maxlife "3 seconds"')
    with Admin(login(cluster, f"{realm.directory}/admin.keytab", "alice/admin")) as admin:
        admin.create_acls(
            [may_use(ResourceType.TOPIC, "orders", "short"), may_use(ResourceType.GROUP, "shorts", "short")]
        )
    config = login(cluster, alice, "short")
    group = {"group.id": "shorts", "auto.offset.reset": "earliest"}
    with Producer(config) as producer, Consumer({**config, **group}) as consumer:
        consumer.subscribe(["orders"])
        got: list[bytes | None] = []

        def take(timeout_s: float) -> None:
            got.extend(record.value for record in consumer.poll(timeout=timeout_s))

        while not consumer.assignment():
            take(0.1)
        sent, ends_s = 0, time.monotonic() + 6
        while time.monotonic() < ends_s or sent <= 20:
            producer.send("orders", value=b"stream").result(timeout=10)
            sent += 1
            take(0.05)
        got += [record.value for record in read_to_end(consumer)]
        assert got.count(b"stream") == sent


def test_an_expired_ticket_ends_the_session_until_the_next_kinit(
    cluster: LocalCluster, realm: Realm, alice: str
) -> None:
    cache = realm.kinit("alice", alice, "-l", "2s", cache=f"FILE:{realm.directory}/ending.cache")
    timeouts = {"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_500, "linger.ms": 0}
    with Producer({**by_cache(cluster, cache), **timeouts}) as producer:
        producer.send("orders", value=b"3").result(timeout=20)
        until(lambda: "expired; run kinit" in failure_of(producer), within_s=30)
        realm.kinit("alice", alice, cache=cache)
        until(lambda: not failure_of(producer), within_s=15)


def test_wrong_credentials_are_a_quick_typed_error(cluster: LocalCluster, realm: Realm, alice: str) -> None:
    for config, why in (
        (login(cluster, None, None), "there is no ticket in the default ticket cache"),
        (login(cluster, alice, "carol"), "has no key of carol"),
        (login(cluster, alice, "alice", **{"sasl.kerberos.service.name": "other"}), "other/127.0.0.1"),
    ):
        started_s = time.monotonic()
        with Admin(config) as admin, pytest.raises(SaslAuthenticationFailedError, match=why):
            admin.list_topics()
        check_in_time(started_s, 5)


def test_the_command_line_uses_the_ticket_of_kinit(
    cluster: LocalCluster, realm: Realm, alice: str, tmp_path: Path
) -> None:
    properties = tmp_path / "alice.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in login(cluster, None, None).items()))
    command = [str(Path(sys.executable).with_name("headrace")), "topics", "list", "--command-config", str(properties)]
    command += ["-b", cluster.bootstrap_servers]

    def run(cache: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **realm.environment, "KRB5CCNAME": cache}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    listed = run(realm.kinit("alice", alice))
    assert listed.returncode == 0, listed.stderr
    assert "orders" in listed.stdout
    assert "secrets" not in listed.stdout
    without = run(f"FILE:{tmp_path}/none")
    assert without.returncode != 0
    assert "run kinit" in without.stderr


def test_the_doctor_names_each_fault_of_kerberos(
    cluster: LocalCluster, realm: Realm, alice: str, tmp_path: Path
) -> None:
    def findings(config: dict[str, Any], *wrapper: str) -> list[tuple[str, str]]:
        properties = tmp_path / "client.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        program = [*wrapper, str(Path(sys.executable).with_name("headrace"))]
        flags = ["-b", cluster.bootstrap_servers, "--timeout", "5", "-o", "json", "--command-config", str(properties)]
        environment = {**os.environ, **realm.environment}
        done = subprocess.run(
            [*program, "doctor", *flags], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout, done.stderr
        return [(each["rule"], each["cure"]) for each in json.loads(done.stdout)["findings"]]

    by_keytab = login(cluster, alice, "alice")
    assert findings(by_keytab) == []
    ((rule, cure),) = findings(by_cache(cluster, f"FILE:{tmp_path}/none"))
    assert (rule, "kinit" in cure) == ("kerberos-ticket", True)
    short = realm.kinit("alice", alice, "-l", "1s", cache=f"FILE:{tmp_path}/short.cache")
    until(lambda: findings(by_cache(cluster, short))[:1] == [("kerberos-ticket", "run kinit")], within_s=30)
    ((rule, cure),) = findings(by_keytab, "faketime", "+1 hour")
    assert (rule, "NTP" in cure) == ("kerberos-clock", True)
    realm.stop()
    try:
        ((rule, cure),) = findings(by_keytab)
    finally:
        realm.start()
    assert (rule, "krb5.conf" in cure) == ("kerberos-kdc", True)


def test_spark_authenticates_by_a_keytab(cluster: LocalCluster, realm: Realm) -> None:
    from pyspark.sql import SparkSession

    import headrace_spark

    config = login(cluster, f"{realm.directory}/admin.keytab", "alice/admin")
    with Admin(config) as admin:
        admin.create_topics(["sparked"])
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.dataSource.register(headrace_spark.HeadraceDataSource)
        options = {f"kafka.{key}": value for key, value in config.items()}
        frame = spark.range(20).selectExpr("cast(cast(id as string) as binary) as value")
        frame.write.format("headrace").options(**options).option("topic", "sparked").mode("append").save()
        read = spark.read.format("headrace").options(**options).option("subscribe", "sparked").load()
        assert sorted(int(row.value) for row in read.collect()) == list(range(20))
    finally:
        spark.stop()
